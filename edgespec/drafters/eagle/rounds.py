"""Conversations that share passes draft in step with each other: one forward for a level of all their trees.

    pass      │  A, B, C  │                              │  A, B, C  │                              │ ...
    drafts                 A ▓ ▓ ▓ ▓   B ·   C ·                      A ▓ ▓ ▓ ▓   B ·   C ·
                             └─┴─┴─┴── a level, or a block of the head, of all three

Whoever is asked first takes along who drafted for the pass before, each behind the root that the target has
said, with the budget that it had then. Who is asked afterwards for just that finds it done, or under way; for
anything else it begins anew. Who was taken along and was not asked is not taken along again until it has
drafted by itself. What goes wrong with one of them is its own matter, and raised when it is asked.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from itertools import count
from typing import Protocol
from weakref import WeakValueDictionary

from edgespec.core.batch import attempt
from edgespec.core.schedule import TreeBudget
from edgespec.core.tree import TokenTree
from edgespec.drafters.base import Drafting, Root
from edgespec.drafters.eagle.batch import EagleBatch
from edgespec.drafters.growth import Grower
from edgespec.drafters.rounds import grow


@dataclass(frozen=True)
class Wanted:
    """What a round is for."""

    root: int
    budget: TreeBudget

    @staticmethod
    def of(root: int, budget: TreeBudget) -> Wanted:
        """No tree is deeper than it has passes."""
        return Wanted(root, replace(budget, depth=min(budget.depth, budget.passes)))


class Companion(Grower, Protocol):
    """A drafter that others take along."""

    def expected(self) -> Wanted | None:
        """What it will be asked for next, if that is likely and is not drafted yet: room is made for it."""

    def take(self, made: SharedRound) -> None:
        """This is for what was expected."""


class EagleRounds:
    """Of all conversations that draft with an open module."""

    def __init__(self, batch: EagleBatch) -> None:
        self.batch = batch
        self._drafters: WeakValueDictionary[int, Companion] = WeakValueDictionary()
        self._numbers = count()

    def join(self, drafter: Companion) -> None:
        self._drafters[next(self._numbers)] = drafter

    def begin(self, asked: Companion, what: Wanted) -> SharedRound:
        """A round of this one, and of all who are likely to be asked."""
        rounds = [SharedRound(self.batch, asked, what)]
        for drafter in list(self._drafters.values()):
            if drafter is not asked and (expected := drafter.expected()) is not None:
                rounds.append(SharedRound(self.batch, drafter, expected))
                drafter.take(rounds[-1])
        for each in rounds:
            each.others = rounds
        return rounds[0]


class SharedRound:
    """See `drafters.base.Drafting`. All of `others`, it among them, go on with it."""

    def __init__(self, batch: EagleBatch, drafter: Companion, what: Wanted) -> None:
        self.batch, self.what = batch, what
        self.drafting: Drafting = grow(drafter, [Root((what.root,))], what.budget)
        self.others: Sequence[SharedRound] = [self]
        self.error: BaseException | None = None
        self._over = False

    def step(self) -> bool:
        with self.batch.lock:
            if not self._over:
                self._step_all()
            error, self.error = self.error, None
            if error is not None:
                try:
                    raise error
                finally:
                    del error
            return not self._over

    def _step_all(self) -> None:
        try:
            with self.batch.together():
                for each in self.others:
                    if not each._over:
                        each.error = attempt(each._go_on)
                        each._over = each._over or each.error is not None
        except BaseException:  # nobody's alone: what has no part of it may not go on
            for each in self.others:
                each.cancel()
            raise

    def _go_on(self) -> None:
        self._over = not self.drafting.step()

    def tree(self, root: int = 0) -> TokenTree:
        return self.drafting.tree(root)

    def stop(self) -> None:
        with self.batch.lock:
            self.drafting.stop()

    def cancel(self) -> None:
        with self.batch.lock:
            self._over = True
            self.drafting.cancel()
