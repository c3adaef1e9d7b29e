"""Who judges trees: the seam between a conversation and whatever runs the target. Needs no torch."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from contextlib import AbstractContextManager
from typing import Any, Protocol, TypeVar

from edgespec.core.acceptance import Acceptance, Logits, Outcome
from edgespec.core.sampling import Noise
from edgespec.core.tree import TokenTree
from edgespec.errors import Cancelled
from edgespec.runtimes.base import PassObserver, Seat

S = TypeVar("S", bound=Seat)


class Verifier(Protocol[S]):
    """Runs the target for conversations: any number of callers in threads of their own, each with one seat or
    several.

    A *seat* is a conversation's place with it, wherever its keys and values are. Whatever a call raises
    (Cancelled, KeyboardInterrupt, a disk error) leaves its seats at their committed lengths, and no pass
    still uses them. An observer hears of each seat's rows by themselves.
    """

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

    def prefill(
        self,
        prompts: Sequence[tuple[S, Sequence[int]]],
        observer: PassObserver | None = None,
        progress: Callable[[int], None] | None = None,
    ) -> list[Logits]:
        """Commit each seat's tokens, at least one; returns what follows the last of them, logits [V] each.

        `progress` gets the number of tokens committed so far, after each block. What is raised on the way
        leaves the blocks before committed.
        """

    def verify(
        self,
        trees: Sequence[tuple[S, TokenTree, Noise]],
        acceptance: Acceptance,
        observer: PassObserver | None = None,
    ) -> list[Outcome]:
        """Judge each seat's tree, and commit what is accepted. Blocks while others have their turn. What
        goes wrong with one tree is raised when all have been judged."""


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
