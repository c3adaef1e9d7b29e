"""How much to draft and to verify: whatever makes the most tokens per second, measured as it goes.

A cycle costs drafting + verification and gives 1 + accepted tokens. Before a cycle the controller chooses
how many steps to draft (or not to draft at all), and once the tree is there, how many of its nodes to
verify. It believes:

    what steps and passes cost      means by number of steps and of nodes, straight lines between; what was
                                    never tried is extrapolated as max(I/O, compute) would have it
    a node's chance of acceptance   the drafter's probability x a factor by depth and rank: accepted / claimed
    what a number of steps gives    its own mean tokens, leaning on the chances by depth while it is young

All this fades, so what was given up is tried again some day. Trying may cost: whatever the estimates say,
a cycle that gives a single token may not bring what drafting has lost against plain decoding above
`ALLOWANCE` of the time.

No clock and no chance here: the same recorded cycles lead to the same decisions. Needs no torch.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import Protocol

import numpy as np

from edgespec.acceptance import Outcome
from edgespec.drafters.base import TreeBudget
from edgespec.estimates import DEPTHS, MEMORY, Chances, Curve, Prior
from edgespec.sampling import FloatArray
from edgespec.tree import TokenTree

ALLOWANCE = 0.02  # of the time may be lost by drafting,
GRACE = 2.0  # and so many plain cycles beyond that
HORIZON = 0.998  # of that book-keeping: about the last 500 cycles
FIRST = 2  # plain cycles that a conversation begins with
STALE = 0.3  # weight of evidence on plain cycles below which one is measured again
STEPS = np.array([0, 1, 2, 3, 4, 5, 6, 8, 10, 12, 16])  # numbers of steps considered
ARM_LEAN = 4.0  # cycles' worth of evidence of the chances by depth on what a number of steps gives
ENOUGH = 200  # cycles before a drafter may be called hopeless
MARGIN = 1.05
PAUSE = 2.0  # times its usual cost: what a cycle takes beyond that is not held against it


@dataclass(frozen=True)
class Cycle:
    """What one cycle did; seconds."""

    steps: int | None  # of drafting; None = the drafter was not asked
    tree: TokenTree  # as verified
    outcome: Outcome
    draft_seconds: float
    verify_seconds: float


class Controller(Protocol):
    """Decides for one conversation; told of every cycle that was completed."""

    def budget(self, limit: TreeBudget, steps: range) -> TreeBudget | None:
        """What to draft, within `limit` and the drafter's sensible `steps`; None = nothing."""

    def prune(self, tree: TokenTree) -> TokenTree:
        """The part of a drafted tree that is worth verifying."""

    def record(self, cycle: Cycle) -> None:
        """Learn from a cycle."""


class Fixed:
    """Always the same budget, whatever it costs: for benchmarks and tests."""

    def __init__(self, budget: TreeBudget) -> None:
        self._budget = budget

    def budget(self, limit: TreeBudget, steps: range) -> TreeBudget | None:
        own = self._budget
        return TreeBudget(min(own.nodes, limit.nodes), min(own.depth, limit.depth), own.steps)

    def prune(self, tree: TokenTree) -> TokenTree:
        return tree

    def record(self, cycle: Cycle) -> None:
        pass


class Adaptive:
    """See the module."""

    def __init__(self, prior: Prior | None = None) -> None:
        prior = prior or Prior()
        self.verify = Curve(prior.verify)
        self.draft = Curve(prior.draft, start=0.0)
        self.chances = Chances()
        self.cycles = 0
        self._arms = np.zeros(
            (3, len(STEPS))
        )  # by number of steps: cycles, their tokens, their nodes; fading
        self._rate = 0.0  # the highest expected tokens per second, as of the last `budget`
        self._tokens = self._seconds = self._lost = 0.0  # of all cycles; fading by HORIZON

    def budget(self, limit: TreeBudget, steps: range) -> TreeBudget | None:
        if limit.depth < 1 or limit.nodes < 2 or self.cycles < FIRST or self.verify.weight(1) < STALE:
            return None
        tokens, seconds = self.expect()
        # Steps beyond the depth that the reply has left are wasted; so is what may lose more than is allowed.
        most = min(steps.stop - 1, max(limit.depth, steps.start))
        sensible = (steps.start <= STEPS) & (most >= STEPS) & (seconds - 1 / self.plain_rate <= self.credit)
        rates = np.where(sensible, tokens / seconds, 0.0)
        best = int(np.argmax(rates))
        self._rate = max(self.plain_rate, float(rates[best]))
        return replace(limit, steps=int(STEPS[best])) if rates[best] > self.plain_rate else None

    def prune(self, tree: TokenTree) -> TokenTree:
        """The nodes that earn their verification at the best rate known; a sampled tree stays whole."""
        if tree.drafts is not None or len(tree) == 1:
            return tree
        scores = self.chances.scores(tree)
        likeliest = np.argsort(-scores, kind="stable")
        tokens = np.cumsum(np.exp(scores[likeliest]))
        worth = tokens - self._rate * self.verify.at(np.arange(1, len(tree) + 1))
        return tree.select(np.sort(likeliest[: int(np.argmax(worth)) + 1]))

    def record(self, cycle: Cycle) -> None:
        nodes, tokens = len(cycle.tree), len(cycle.outcome.tokens)
        self.cycles += 1
        self.verify.fade()
        self.draft.fade()
        self.chances.fade()
        self._arms *= MEMORY
        self.verify.add(nodes, cycle.verify_seconds)
        if cycle.steps is not None:
            self.draft.add(cycle.steps, cycle.draft_seconds)
        # A pause of the machine is nobody's fault.
        usual = float(self.verify.at(nodes) + self.draft.at(cycle.steps or 0))
        seconds = min(cycle.draft_seconds + cycle.verify_seconds, PAUSE * usual)
        self._tokens = HORIZON * self._tokens + tokens
        self._seconds = HORIZON * self._seconds + seconds
        self._lost *= HORIZON
        if cycle.steps is None:
            return
        self.chances.add(cycle.tree, cycle.outcome.path)
        self._arms[:, int(np.searchsorted(STEPS, cycle.steps))] += (1, tokens, nodes)
        plain = 1 / self.plain_rate
        # Of gains only a few cycles' worth is kept, so that old ones do not pay for new losses.
        self._lost = max(self._lost + seconds - tokens * plain, -2 * GRACE * plain)

    @property
    def plain_rate(self) -> float:
        """Tokens per second without drafts."""
        return 1 / max(float(self.verify.at(1)), 1e-9)

    @property
    def credit(self) -> float:
        """Seconds that drafting may still lose."""
        return ALLOWANCE * self._seconds + GRACE / self.plain_rate - self._lost

    def loses(self, speedup: float) -> bool:
        """Whether plain decoding, `speedup` times as fast with the drafter's memory, would clearly beat what
        was reached of late: then the drafter should go for good."""
        reached = self._tokens / max(self._seconds, 1e-9)
        return self.cycles >= ENOUGH and speedup * self.plain_rate > MARGIN * reached

    def expect(self) -> tuple[FloatArray, FloatArray]:
        """Tokens and seconds [len(STEPS)] of a cycle with so many steps."""
        cycles, tokens, nodes = self._arms
        along = np.cumprod(self.chances.by_depth[1:])  # chance that the path gets to each depth
        believed = 1 + np.cumsum(along)[np.clip(STEPS, 1, DEPTHS) - 1]
        tokens = (tokens + ARM_LEAN * believed) / (cycles + ARM_LEAN)
        nodes = (nodes + ARM_LEAN * (2 + 2 * STEPS)) / (cycles + ARM_LEAN)
        return tokens, np.maximum(self.verify.at(nodes) + self.draft.at(STEPS), 1e-9)
