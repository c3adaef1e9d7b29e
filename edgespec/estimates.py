"""What the controller believes about costs and acceptance. Needs no torch.

Everything fades by cycle: with `MEMORY` as the weight of evidence one cycle later, about the last 70 cycles
count, and what has not been tried for long is believed as if it never had been.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from math import log2

import numpy as np

from edgespec.sampling import FloatArray, IntArray
from edgespec.tree import TokenTree

MEMORY = 0.985
HOPE = 0.7  # chance of acceptance before anything is known
LEAN = 2.0  # observations' worth of evidence that a belief without measurements has
CURVE_LEAN = 0.5  # likewise, of costs
DEPTHS = 32  # beyond this depth evidence is pooled
RANKS = 4  # likewise
LATEST = 9  # timings kept of a point: their median shrugs off pauses of the machine


@dataclass(frozen=True)
class Prior:
    """Costs before they are measured, seconds; only the shape counts once a plain cycle was timed.

    io: to read what one pass streams. compute: of a pass of one row. step: of drafting one step.
    """

    io: float = 0.0
    compute: float = 0.0
    step: float = 0.0

    def verify(self, nodes: FloatArray) -> FloatArray:
        """Of a pass over a tree. A row costs a thirty-second of reading the weights from memory: between
        what was measured with AMX (1/64) and plain AVX2 (1/16)."""
        return np.maximum(self.io, self.compute * (1 + (nodes - 1) / 32))

    def draft(self, steps: FloatArray) -> FloatArray:
        return self.step * steps


class Curve:
    """Seconds as a function of a count: medians where measured, lines between, and beyond the last point the
    flatter of `shape` and the line so far. Never less for more."""

    def __init__(self, shape: Callable[[FloatArray], FloatArray], start: float | None = None) -> None:
        """`start`: the known value at 0, if there is one."""
        self.shape = shape
        self.start = start
        self._points: dict[int, _Point] = {}  # by bucket
        self._line: tuple[FloatArray, FloatArray, float] | None = None

    def weight(self, count: int) -> float:
        """Cycles' worth of evidence for such counts."""
        point = self._points.get(_bucket(count))
        return point.weight if point else 0.0

    def fade(self) -> None:
        for point in self._points.values():
            point.weight *= MEMORY
        self._line = None

    def add(self, count: int, seconds: float) -> None:
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
        xs, ys, slope = self._line = self._line or self._fit()
        last = float(xs[-1])
        beyond = self.shape(np.maximum(wanted, last)) - self.shape(np.full_like(wanted, last))
        beyond = np.minimum(np.maximum(beyond, 0.0), slope * np.maximum(wanted - last, 0.0))
        return np.interp(wanted, xs, ys) + beyond

    def _fit(self) -> tuple[FloatArray, FloatArray, float]:
        """Points' counts and seconds, ascending both, and the slope without the first point."""
        points = [self._points[bucket] for bucket in sorted(self._points)]
        xs = [sum(p.counts) / len(p.counts) for p in points]
        medians = [sorted(p.seconds)[len(p.seconds) // 2] for p in points]
        weights = [p.weight for p in points]
        if self.start is not None and xs[0] > 0:
            xs, medians, weights = [0.0, *xs], [self.start, *medians], [1e9, *weights]
        # A point leans on the first one and the shape, so that an old misfortune does not stand for ever.
        shape = self.shape(np.array(xs))
        lean = CURVE_LEAN if shape.any() else 0.0
        believed = (medians[0] + shape - shape[0]).tolist()
        ys = [
            (w * m + lean * b) / max(w + lean, 1e-9)
            for w, m, b in zip(weights, medians, believed, strict=True)
        ]
        weights = [w + 1e-9 for w in weights]
        # The first row may be a case of its own, and two points are too few to tell.
        measured = rising(medians, weights)
        slope = (measured[-1] - measured[1]) / (xs[-1] - xs[1]) if len(xs) > 2 else 1e9
        return np.array(xs), np.array(rising(ys, weights)), slope


class _Point:
    """What was measured for counts of one bucket: the latest only, as a machine changes."""

    def __init__(self) -> None:
        self.weight = 0.0  # fading
        self.counts: deque[int] = deque(maxlen=LATEST)
        self.seconds: deque[float] = deque(maxlen=LATEST)


def _bucket(count: int) -> int:
    """0, 1, 2, 3, 4, 5-6, 7-8, 9-11, 12-16, ...: counts that cost about the same."""
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

    def fade(self) -> None:
        for sums in (self._reached, self._went_on, self._claimed, self._accepted):
            sums *= MEMORY
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
        chance = HOPE  # each depth leans on the one before
        for depth, (reached, went_on) in enumerate(
            zip(self._reached.tolist(), self._went_on.tolist(), strict=True)
        ):
            chance = (went_on + LEAN * chance) / (reached + LEAN)
            self.by_depth[depth] = chance

    def scores(self, tree: TokenTree) -> FloatArray:
        """[n] log of each node's chance to be on the accepted path."""
        factor = (self._accepted + LEAN) / (self._claimed + LEAN)
        cells = np.minimum(tree.depths, DEPTHS), np.minimum(ranks(tree), RANKS - 1)
        corrected = np.minimum(tree.logprobs + np.log(factor[cells]), np.log(0.99))
        corrected[0] = 0.0
        return replace(tree, logprobs=corrected).scores


def ranks(tree: TokenTree) -> IntArray:
    """[n] a node's place among its siblings, the likeliest being 0."""
    order = np.lexsort((-tree.logprobs, tree.parents))
    parents = tree.parents[order]
    found = np.empty(len(tree), dtype=np.int64)
    found[order] = np.arange(len(tree)) - np.searchsorted(parents, parents)
    return found
