"""What one conversation drafts where it shares passes with others. Needs no torch.

It believes what it has seen of its own drafts. What is verified of them, and at what price time goes, is said
for all together (`control.shares`): a draft must give more tokens than everybody makes in the time that it
takes.
"""

from __future__ import annotations

from dataclasses import replace

import numpy as np

from edgespec.control.controller import Adaptive
from edgespec.control.estimates import STEPS
from edgespec.control.notes import Notes
from edgespec.control.shares import Shares
from edgespec.core.sampling import FloatArray
from edgespec.core.schedule import TreeBudget
from edgespec.core.trace import Cycle
from edgespec.core.tree import TokenTree

ROOT = np.ones(1)  # a tree's gains without drafts
REST = 8  # cycles that a refusal stands: beliefs change little, and thinking of drafts takes time, too


class Partner(Adaptive):
    """See the module, and `core.schedule.Controller`."""

    def __init__(self, shares: Shares) -> None:
        super().__init__(shares.costs.prior)
        self.allotter = self.shares = shares
        self.costs = shares.costs
        self._rested = 0  # cycles without drafts that have not faded yet

    def _another(self) -> Partner:
        return Partner(self.shares)

    def recall(self, notes: Notes) -> None:
        super().recall(notes)
        self.shares.begin(self.costs)

    def budget(self, limit: TreeBudget, passes: range) -> TreeBudget | None:
        if self.refusal is not None and self._rested < REST:
            return None
        self.refusal = None
        affordable = self.shares.affords
        if limit.depth < 1 or limit.nodes < 2 or self.shares.stale or not affordable.any():
            return None  # others try first, or nobody does
        tokens, _ = self.beliefs.gives.expect(self.beliefs.chances.by_depth)
        most = self._most(limit, passes)
        sensible = (passes.start <= STEPS) & (most >= STEPS) & affordable
        price = self.shares.price
        gains = np.where(sensible, tokens - 1 - price, -np.inf)
        best = int(np.argmax(gains))
        if gains[best] > 0:
            self.shares.grant(best)
            return replace(limit, passes=int(STEPS[best]))
        self.refusal = (
            f"a draft would give {tokens[best] - 1:.2g} tokens, and {self.shares.trees} replies together "
            f"make {price[best]:.2g} in the time that it takes"
            if sensible.any()
            else self._refusal(0.0)
        )
        return None

    def overlapped(
        self, limit: TreeBudget, passes: range, prepared: TokenTree, width: int
    ) -> TreeBudget | None:
        """Nothing is prepared: outcomes are of a whole tree, and a shared pass may verify a part."""
        return self.budget(limit, passes)

    def prune(self, tree: TokenTree) -> TokenTree:
        """The pass does."""
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
        self.took, self.speedup = self.shares.took, self.shares.speedup
        self._rested += 1
        if cycle.passes is not None or self._rested >= REST:
            self.beliefs.fade(self._rested)
            self._rested = 0
        if cycle.passes is not None:
            self.beliefs.learn(min(cycle.passes, int(STEPS[-1])), cycle.tree, cycle.outcome)
