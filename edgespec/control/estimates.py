"""What the controller believes about costs and acceptance. Needs no torch.

Everything fades by cycle: with `MEMORY` as the weight of evidence one cycle later, about the last 70 cycles
count, and what has not been tried for long is believed as if it never had been.
"""

from __future__ import annotations

import threading
from collections import deque
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from math import log2

import numpy as np

from edgespec.core.sampling import FloatArray, IntArray
from edgespec.core.tree import TokenTree
from edgespec.offload.plan.costs import CostModel

MEMORY = 0.985
HOPE = 0.7  # chance of acceptance before anything is known
LEAN = 2.0  # observations' worth of evidence that a belief without measurements has
CURVE_LEAN = 0.5  # likewise, of costs
KEPT_LEAN = 10.0  # tokens' worth of evidence that what is expected comes true on the whole
QUICK = 0.975  # as MEMORY, of that: another subject should show within some tens of cycles
STEPS = np.array([0, 1, 2, 3, 4, 5, 6, 8, 10, 12, 16, 20, 24, 32])  # numbers of steps considered
DEPTHS = 32  # beyond this depth evidence is pooled
RANKS = 4  # likewise
PAUSE = 3.0  # times what is usual: beyond that, one timing alone is not believed
LATEST = 9  # timings kept of a point: their median shrugs off pauses of the machine


class Curve:
    """Seconds as a function of a count: medians where measured, lines between, and beyond the last point the
    flatter of `shape` and the line so far. Never less for more."""

    def __init__(self, shape: Callable[[FloatArray], FloatArray], start: float | None = None) -> None:
        """`start`: the known value at 0, if there is one."""
        self.shape = shape
        self.start = start
        self._points: dict[int, _Point] = {}  # by bucket
        self._line: _Line | None = None
        self._lock = threading.Lock()  # conversations in threads of their own learn together

    def weight(self, count: int) -> float:
        """Cycles' worth of evidence for such counts."""
        point = self._points.get(_bucket(count))
        return point.weight if point else 0.0

    @property
    def known(self) -> bool:
        """Something was measured."""
        return bool(self._points)

    def fade(self) -> None:
        with self._lock:
            for point in self._points.values():
                point.weight *= MEMORY
            self._line = None

    def add(self, count: int, seconds: float) -> None:
        with self._lock:
            point = self._points.setdefault(_bucket(count), _Point())
            point.weight += 1
            point.counts.append(count)
            point.seconds.append(seconds)
            self._line = None

    def at(self, counts: FloatArray | IntArray | float) -> FloatArray:
        """[...] -> [...] seconds."""
        wanted = np.asarray(counts, dtype=np.float64)
        if not self._points:
            return self.shape(wanted)
        with self._lock:
            line = self._line = self._line or self._fit()
        last = np.asarray(line.counts[-1])
        there = np.maximum(wanted, last)
        beyond = np.maximum(line.scale * (self.shape(there) - self.shape(last)), 0.0)
        beyond = np.minimum(beyond, line.slope * (there - last))
        seconds: FloatArray = np.interp(wanted, line.counts, line.seconds) + beyond
        return seconds

    def _fit(self) -> _Line:
        points = [self._points[bucket] for bucket in sorted(self._points)]
        xs = [sum(p.counts) / len(p.counts) for p in points]
        medians = [sorted(p.seconds)[(len(p.seconds) - 1) // 2] for p in points]  # of two, the quicker
        weights = [p.weight for p in points]
        if self.start is not None and xs[0] > 0:
            xs, medians, weights = [0.0, *xs], [self.start, *medians], [1e9, *weights]
        # A point leans on the first one and the shape, so that an old outlier does not stand for ever.
        shape = self.shape(np.array(xs))
        lean = CURVE_LEAN if shape.any() else 0.0
        believed = (medians[0] + shape - shape[0]).tolist()
        if lean:  # a single timing far above that may be a pause of the machine
            single = [len(p.seconds) == 1 for p in points]
            single = [False] * (len(xs) - len(points)) + single
            medians = [
                min(m, PAUSE * b) if s else m for m, b, s in zip(medians, believed, single, strict=True)
            ]
        ys = [
            (w * m + lean * b) / max(w + lean, 1e-9)
            for w, m, b in zip(weights, medians, believed, strict=True)
        ]
        weights = [w + 1e-9 for w in weights]
        # The first row may be a case of its own, and two points are too few to tell.
        measured = rising(medians, weights)
        slope = (measured[-1] - measured[1]) / (xs[-1] - xs[1]) if len(xs) > 2 else 1e9
        # A line through a known start is known by one point.
        scale = measured[-1] / float(shape[-1]) if self.start is not None and shape[-1] > 0 else 1.0
        return _Line(np.array(xs), np.array(rising(ys, weights)), slope, scale)


class Costs:
    """What passes and drafting cost. All conversations of an engine learn it together."""

    def __init__(self, prior: CostModel | None = None) -> None:
        prior = prior or CostModel()
        self.verify = Curve(prior.passes)
        self.overlapped = Curve(prior.passes)  # passes with drafting in their waits
        self.draft = Curve(prior.steps, start=0.0)
        self.longest = 0.0  # draft of late, in steps; fading

    def cycle(self, nodes: FloatArray | int, steps: IntArray | int) -> FloatArray:
        """Seconds of cycles that draft so many steps and verify so many nodes; counts as arrays or not."""
        return self.verify.at(nodes) + self.draft.at(steps)

    def passes(self, nodes: FloatArray | IntArray | int, overlapped: bool) -> FloatArray:
        """Seconds of passes, with drafting in their waits or without: as long until more is known, as nothing
        gets quicker by it."""
        alone = self.verify.at(nodes)
        known = overlapped and self.overlapped.known
        return np.maximum(alone, self.overlapped.at(nodes)) if known else alone

    def add(
        self,
        nodes: int,
        verify_seconds: float,
        steps: int | None,
        draft_seconds: float,
        overlapped: bool = False,
    ) -> None:
        """A cycle; `steps` None = the drafter was not asked. `overlapped`: it drafted in the pass's waits."""
        self.verify.fade()
        self.overlapped.fade()
        self.draft.fade()
        self.longest *= MEMORY
        (self.overlapped if overlapped else self.verify).add(nodes, verify_seconds)
        if steps is not None:
            self.draft.add(steps, draft_seconds)
            self.longest = max(self.longest, steps)

    def tried(self, steps: int) -> None:
        """So many were made in a pass's waits, of more rows and between other work: no measure of what a
        draft costs, but as many steps are no adventure any more, once some were timed."""
        if self.draft.known:
            self.longest = max(self.longest, steps)


@dataclass(frozen=True)
class _Line:
    counts: FloatArray  # [points], ascending
    seconds: FloatArray  # [points], ascending
    slope: float  # of what was measured, without the first point
    scale: float  # of the shape behind the last point


class _Point:
    """What was measured for counts of one bucket: the latest only, as a machine changes."""

    def __init__(self) -> None:
        self.weight = 0.0  # fading
        self.counts: deque[int] = deque(maxlen=LATEST)
        self.seconds: deque[float] = deque(maxlen=LATEST)


def _bucket(count: int) -> int:
    """0, 1, 2, 3, 4, 5-6, 7-9, 10-13, 14-19, ...: counts that cost about the same."""
    return count if count < 4 else round(2 * log2(count))


def rising(values: Sequence[float], weights: Sequence[float]) -> list[float]:
    """The non-decreasing sequence nearest to `values` (least squares; pool adjacent violators)."""
    pools: list[list[float]] = []  # mean, weight, length
    for value, weight in zip(values, weights, strict=True):
        pools.append([value, weight, 1])
        while len(pools) > 1 and pools[-2][0] > pools[-1][0]:
            mean, other, length = pools.pop()
            total = pools[-1][1] + other
            pools[-1][0] += (mean - pools[-1][0]) * other / total
            pools[-1][1:] = [total, pools[-1][2] + length]
    return [mean for mean, _, length in pools for _ in range(int(length))]


class Chances:
    """Measured acceptance: by depth alone, and by depth and rank against what the drafter claimed."""

    def __init__(self) -> None:
        self._reached = np.zeros(DEPTHS + 1)  # accepted paths with drafted children at this depth
        self._went_on = np.zeros(DEPTHS + 1)  # and how many of them one of these continued
        self._claimed = np.zeros((DEPTHS + 1, RANKS))  # the drafter's probabilities for these children
        self._accepted = np.zeros((DEPTHS + 1, RANKS))  # and how many were accepted
        self.by_depth = np.full(DEPTHS + 1, HOPE)
        self._corrections: FloatArray | None = None  # as of `_factors`, until something is learned

    def fade(self, cycles: int = 1) -> None:
        for sums in (self._reached, self._went_on, self._claimed, self._accepted):
            sums *= MEMORY**cycles
        self._update()

    def add(self, tree: TokenTree, path: IntArray) -> None:
        """A verified tree, and the nodes of it that were accepted."""
        ahead = [*path.tolist()[1:], -1]
        for depth, (node, following) in enumerate(zip(path.tolist(), ahead, strict=True), start=1):
            children = tree.children(node)
            if not len(children):
                break
            cell = min(depth, DEPTHS)
            self._reached[cell] += 1
            self._went_on[cell] += following >= 0
            best_first = children[np.argsort(-tree.logprobs[children], kind="stable")]
            for rank, child in enumerate(best_first.tolist()):
                self._claimed[cell, min(rank, RANKS - 1)] += np.exp(tree.logprobs[child])
                self._accepted[cell, min(rank, RANKS - 1)] += child == following
        self._update()

    def _update(self) -> None:
        self._corrections = None
        chance = HOPE  # each depth leans on the one before
        for depth, (reached, went_on) in enumerate(
            zip(self._reached.tolist(), self._went_on.tolist(), strict=True)
        ):
            chance = (went_on + LEAN * chance) / (reached + LEAN)
            self.by_depth[depth] = chance

    def _factors(self) -> FloatArray:
        """[depths, ranks] log of accepted / claimed."""
        if self._corrections is None:
            factor = np.ones_like(self._claimed)
            for depth in range(1, DEPTHS + 1):  # each depth leans on the one before
                factor[depth] = self._accepted[depth] + LEAN * factor[depth - 1]
                factor[depth] /= self._claimed[depth] + LEAN
            self._corrections = np.log(factor)
        return self._corrections

    def after(self, depths: IntArray) -> FloatArray:
        """[n] the chance that a child of an accepted node at these depths is accepted, if there are any."""
        return self.by_depth[np.minimum(depths + 1, DEPTHS)]

    def scores(self, tree: TokenTree) -> FloatArray:
        """[n] log of each node's chance to be on the accepted path."""
        cells = np.minimum(tree.depths, DEPTHS), np.minimum(ranks(tree), RANKS - 1)
        corrected = np.minimum(tree.logprobs + self._factors()[cells], np.log(0.99))
        corrected[0] = 0.0
        return replace(tree, logprobs=corrected).scores


class Yield:
    """What a number of steps gives: tokens, and nodes to verify.

    Tokens are counted as they were to be *expected* of the trees, which scatters much less than what a few
    cycles happened to accept; on the whole, expected is corrected by accepted. A number of steps is believed
    by its own trees, and leans on what all trees gave at each depth.
    """

    def __init__(self) -> None:
        self._own = np.zeros((3, len(STEPS)))  # trees of so many steps, their expected tokens, their nodes
        self._trees = np.zeros(DEPTHS + 1)  # of at least so many steps (0: of none)
        self._tokens = np.zeros(DEPTHS + 1)  # expected at that depth of them (the last step's: and deeper)
        self._nodes = np.zeros(DEPTHS + 1)  # likewise
        self._accepted = self._expected = 0.0  # of late

    def fade(self, cycles: int = 1) -> None:
        for sums in (self._own, self._trees, self._tokens, self._nodes):
            sums *= MEMORY**cycles
        self._accepted *= QUICK**cycles
        self._expected *= QUICK**cycles

    def add(self, steps: int, tree: TokenTree, scores: FloatArray, accepted: int) -> float:
        """A tree of `steps`, with the log-chances [n] of its nodes to be accepted, and how many were.

        Returns how many of such trees are accepted on average.
        """
        tokens = np.exp(scores[1:])
        depths = np.minimum(tree.depths[1:], min(steps, DEPTHS))
        self._tokens += np.bincount(depths, tokens, minlength=DEPTHS + 1)
        self._nodes += np.bincount(depths, minlength=DEPTHS + 1)
        self._trees[1 if steps else 0 : steps + 1] += 1
        self._own[:, int(np.searchsorted(STEPS, steps))] += (1, tokens.sum(), len(tree))
        self._accepted += accepted
        self._expected += tokens.sum()
        return float(tokens.sum()) * self.kept

    @property
    def kept(self) -> float:
        """What is accepted, of what was expected."""
        return (self._accepted + KEPT_LEAN) / (self._expected + KEPT_LEAN)

    def expect(self, by_depth: FloatArray) -> tuple[FloatArray, FloatArray]:
        """Tokens, bonus token included, and nodes [len(STEPS)]; `by_depth` as `Chances` has it."""
        gained = np.zeros(DEPTHS + 1)
        chance = 1.0  # that the path gets to this depth
        for depth in range(1, DEPTHS + 1):
            believed = LEAN * chance * by_depth[depth]
            chance = (self._tokens[depth] + believed) / (self._trees[depth] + LEAN)
            gained[depth] = gained[depth - 1] + chance
        gained[0] = (self._tokens[0] + LEAN * by_depth[1]) / (self._trees[0] + LEAN)
        level = (self._nodes + 2 * LEAN) / (self._trees + LEAN)
        size = np.append(1 + level[0], 1 + np.cumsum(level[1:]))
        trees, tokens, nodes = self._own
        tokens = (tokens + LEAN * gained[STEPS]) / (trees + LEAN)
        nodes = (nodes + LEAN * size[STEPS]) / (trees + LEAN)
        return 1 + tokens * self.kept, nodes


def ranks(tree: TokenTree) -> IntArray:
    """[n] a node's place among its siblings, the likeliest being 0."""
    order = np.lexsort((-tree.logprobs, tree.parents))
    parents = tree.parents[order]
    found = np.empty(len(tree), dtype=np.int64)
    found[order] = np.arange(len(tree)) - np.searchsorted(parents, parents)
    return found
