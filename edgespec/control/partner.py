"""What one conversation drafts where it shares passes with others. Needs no torch.

It believes what it has seen of its own drafts. What is verified of them, and at what price time goes, is said
for all together (`control.shares`): a draft must give more tokens than everybody makes in the time that it
takes, made together with theirs (`control.cohort`).

A drafter without a model says itself, quickly, whether a draft would: it is asked to *look*. Finding nothing
is no failure, it has drafted nothing. But it takes time, too, so after some looks in vain there is a pause
before the next one, twice as long each time, as far as all looks together take a small share of the time.
"""

from __future__ import annotations

from dataclasses import replace

import numpy as np
from numpy.typing import NDArray

from edgespec.control.controller import REST, Adaptive
from edgespec.control.estimates import STEPS
from edgespec.control.notes import Notes
from edgespec.control.shares import Shares
from edgespec.core.sampling import FloatArray
from edgespec.core.schedule import TreeBudget
from edgespec.core.trace import Cycle
from edgespec.core.tree import TokenTree

ROOT = np.ones(1)  # a tree's gains without drafts
DOUBTED = 4.0  # times less likely than pays, what a model says may still be worth a look
VAIN = 8  # looks in vain, beyond which pauses get no longer by them
LONGER = 4  # doublings of a refusal that follows others: 64 weigh drafts for half a pass of 15 ms together


class Partner(Adaptive):
    """See the module, and `core.schedule.Controller`."""

    def __init__(self, shares: Shares) -> None:
        super().__init__(shares.costs.prior)
        self.allotter = self.shares = shares
        self.costs = shares.costs
        self._vain = 0  # times in a row that it found nothing,
        self._looks = False  # and the pause is for that: drafts of a model may come beside
        self._place = 0  # in STEPS, of the latest draft
        self._drafted = False  # in this cycle

    def _another(self) -> Partner:
        return Partner(self.shares)

    def recall(self, notes: Notes) -> None:
        super().recall(notes)
        self.shares.begin(self.costs)

    def budget(self, limit: TreeBudget, passes: range) -> TreeBudget | None:
        self._drafted = False
        if self._pause > 0:
            return None
        self.refusal, self._looks = None, False
        if limit.depth < 1 or limit.nodes < 2 or not passes:
            return None  # nothing fits
        if self.shares.full:
            self.shares.hold()
            return None
        if rest := self.shares.rest:
            self._pause = rest
            return None
        affordable = self.shares.affords
        self._place = self._best(limit, passes, affordable) if passes.stop > 1 else 0
        kept = self.beliefs.gives.kept * self.shares.kept
        if self._place:
            steps, least = int(STEPS[self._place]), self.shares.least / (kept * DOUBTED)
            return replace(limit, passes=steps, price=float(self.shares.pace / kept), least=least)
        if passes.start or not affordable[0]:
            return None
        worth = float(self.shares.price[0]) / kept
        return replace(limit, passes=0, least=self.shares.least / kept, worth=worth)

    def _best(self, limit: TreeBudget, passes: range, affordable: NDArray[np.bool_]) -> int:
        """The place in STEPS of the most useful number of passes of a model; 0 = of none, and why."""
        most = self._most(limit, passes)
        tokens, _ = self.beliefs.gives.expect(self.beliefs.chances.by_depth, int(most))
        sensible = (max(passes.start, 1) <= STEPS) & (most >= STEPS) & affordable
        price = self.shares.price
        gains = np.where(sensible, tokens - 1 - price, -np.inf)
        best = int(np.argmax(gains))
        if gains[best] > 0:
            self._refusals = 0
            return best
        if not sensible.any() and self.shares.granted:
            self.shares.hold()  # the credit is others' in this pass
            return 0
        if passes.start:
            self.refusal = (
                self._too_little(float(tokens[best]) - 1, float(price[best]))
                if sensible.any()
                else self._refusal(0.0)
            )
            self._stand(min(self.shares.weighing, self._longest))
        return 0

    def _too_little(self, tokens: float, price: float) -> str:
        return (
            f"a draft would give {tokens:.2g} tokens, and {self.shares.trees} replies together make "
            f"{price:.2g} in the time that it takes"
        )

    @property
    def pauses(self) -> bool:
        return self._pause > 0

    def rested(self) -> None:
        self._pause -= 1
        self._rested += 1
        self.took, self.speedup = self.shares.took, self.shares.speedup

    @property
    def rests(self) -> bool:
        """A refusal is likely to be followed by another; behind other rests there may be a draft."""
        return self._pause > (self.refusal is None) and not self._looks

    @property
    def _longest(self) -> int:
        """Passes of many take less time for each of them than cycles of one by itself do."""
        return REST << min(self._refusals, LONGER)

    def overlapped(
        self, limit: TreeBudget, passes: range, prepared: TokenTree, width: int
    ) -> tuple[TreeBudget | None, TokenTree]:
        """Nothing is prepared: outcomes are of a whole tree, and a shared pass may verify a part."""
        return self.budget(limit, passes), prepared

    def prune(self, tree: TokenTree) -> TokenTree:
        """The pass does. Others are told that somebody drafts."""
        self._drafted = len(tree) > 1
        if self._drafted:
            self.shares.grant(self._place)
        return tree

    def gains(self, tree: TokenTree) -> FloatArray:
        """Of a sampled tree by depth alone: leaving out nodes by the tokens that were drawn would bias."""
        if len(tree) == 1:
            return ROOT
        chances = self.beliefs.chances
        if tree.drafts is None:
            likely = np.exp(chances.scores(tree))
        else:
            likely = np.append(1.0, np.cumprod(chances.by_depth[1:]))[
                np.minimum(tree.depths, len(chances.by_depth) - 1)
            ]
        gains = self.beliefs.gives.kept * likely
        gains[0] = 1.0
        return np.minimum(gains, 1.0)

    def record(self, cycle: Cycle) -> None:
        """Of acceptance; what passes and drafts cost, `Shares` has learned."""
        self.rested()
        if self._drafted or self._rested >= REST:
            self.beliefs.fade(self._rested)
            self._rested = 0
        if self._drafted and cycle.passes is not None:
            self.beliefs.learn(min(cycle.passes, int(STEPS[-1])), cycle.tree, cycle.outcome)
        if cycle.passes == 0:
            self._pause_after(cycle)

    def _pause_after(self, look: Cycle) -> None:
        if len(look.tree) > 1:
            self._vain = 0
        else:  # or nothing of the draft was worth its verification
            self._vain = min(self._vain + 1, VAIN)
            self._pause = REST if self._drafted else min(2**self._vain - 1, self.shares.pause)
            self._looks = True
