"""Who judges trees: the seam between a conversation and whatever runs the target. Needs no torch."""

from __future__ import annotations

from collections.abc import Sequence
from contextlib import AbstractContextManager
from typing import Any, Protocol, TypeVar

from edgespec.core.batch import Part
from edgespec.errors import Cancelled
from edgespec.runtimes.base import Seat

S = TypeVar("S", bound=Seat, covariant=True)


class Verifier(Protocol[S]):
    """Runs the target for conversations: any number of callers in threads of their own, each with one seat or
    several.

    A *seat* is a conversation's place with it, wherever its keys and values are. What it wants of a pass, the
    next block of its prompt or a tree judged, is a *part* (`core.batch`). Whatever goes wrong (Cancelled,
    KeyboardInterrupt, a disk error) leaves seats at their committed lengths, and no pass still uses them.

    Attributes:
        together: blocks of a prompt that a part may have in one piece (`core.batch.blocks`).
    """

    together: int

    @property
    def turn(self) -> AbstractContextManager[Any]:
        """What else computes, drafting above all, takes turns with the passes: `with verifier.turn`.

        Raises BusyError in a thread that has the turn: it would wait for itself.
        """

    def inside(self) -> bool:
        """Whether this thread has the turn: an observer of its pass asks, who must not wait for its end."""

    def new_seat(self, context: int, slots: int | None = None) -> S:
        """For a conversation of up to `context` positions, and beside them a tree of up to `slots` nodes
        (None: the largest)."""

    def compute(self, parts: Sequence[Part]) -> Sequence[Part]:
        """One pass for the first of these parts, each of another seat, and for as many others as there is
        room for; returns those it took. Each of them has its result then, or its error, which is no matter
        to the others. Blocks while others have their turn. What is raised concerns them all."""


class Cancellation:
    """A flag that one thread raises and another looks at."""

    def __init__(self) -> None:
        self.cancelled = False

    def cancel(self) -> None:
        self.cancelled = True

    def check(self) -> None:
        """Raises Cancelled."""
        if self.cancelled:
            raise Cancelled("the reply was cancelled")
