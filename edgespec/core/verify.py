"""Who judges trees: the seam between a conversation and whatever runs the target. Needs no torch."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from contextlib import AbstractContextManager
from typing import Any, Protocol

from edgespec.core.acceptance import Acceptance, Logits, Outcome
from edgespec.core.sampling import Noise
from edgespec.core.tree import TokenTree
from edgespec.errors import Cancelled
from edgespec.runtimes.base import KVCache, PassObserver


class Verifier(Protocol):
    """Runs the target for conversations, any number of them in threads of their own.

    A *seat* is a conversation's place with it: its keys and values. Whatever a call raises (Cancelled,
    KeyboardInterrupt, a disk error) leaves the seat at its committed length, and no pass still uses it.
    """

    @property
    def turn(self) -> AbstractContextManager[Any]:
        """What else computes, drafting above all, takes turns with the passes: `with verifier.turn`."""

    def inside(self) -> bool:
        """Whether this thread is in a pass: one of its observers asks, who must not wait for its end."""

    def prefill(
        self,
        seat: KVCache,
        tokens: Sequence[int],
        observer: PassObserver | None = None,
        progress: Callable[[int], None] | None = None,
    ) -> Logits:
        """Commit `tokens`, at least one; returns what follows the last of them, logits [V].

        `progress` gets the number of tokens committed so far, after each block. What is raised on the way
        leaves the blocks before committed.
        """

    def verify(
        self,
        seat: KVCache,
        tree: TokenTree,
        acceptance: Acceptance,
        noise: Noise,
        observer: PassObserver | None = None,
    ) -> Outcome:
        """Judge a tree, and commit what is accepted. Blocks while others have their turn."""


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
