"""What passes or steps of a number of rows take, as it was measured. Needs no torch.

What was measured fades by cycle, as `estimates` has it; what was never tried has the shape that the plan's
cost model gives it.
"""

from __future__ import annotations

import threading
from collections import deque
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from math import log2

import numpy as np

from edgespec.control.estimates import MEMORY
from edgespec.control.notes import Notes, from_notes
from edgespec.core.sampling import FloatArray, IntArray

LEAN = 0.5  # cycles' worth of evidence that a cost without measurements has
PAUSE = 3.0  # times what is usual: beyond that, one timing alone is not believed
MOST = 2**16  # rows or steps of a cycle
WIDTH = 0.3  # of a count, below which another bucket begins (`bucket`)
AGREE = 1.5  # times more or less than another process found is still the same machine
SPELL = 3  # timings of known points in a row, all of them slower or quicker than usual by so many times
STEADY = 1.25  # or more, are the machine's pace
NEAR = 0.5  # rows by which points of one bucket must differ
LATEST = 9  # timings kept of a point: their median shrugs off pauses of the machine


class Curve:
    """Seconds as a function of a count: medians where measured, lines between, and beyond the last point the
    flatter of `shape` and the line so far. Never less for more. Of counts below the first point, those that
    are timed with it are on the line to the second; others would take as long, as far as is known.

    Counts of one bucket are one point, but for those that are added `apart`: the next row may cost as much as
    many (beyond 64 layers are no single calls: 12 % of a pass of the bundled model).

    All of it times the machine's `pace`: for a while it may be slower than usual, for counts that are not
    timed meanwhile as for those that are. Else what was tried in such a while would look dear long after it.
    """

    def __init__(
        self,
        shape: Callable[[FloatArray], FloatArray],
        start: float | None = None,
        beside: float | None = None,
    ) -> None:
        """`start`: the known value at 0, if there is one. `beside`: seconds that the shape leaves out, where
        what takes longer than both waits for flash or memory, which hides the arithmetic of more rows."""
        self.shape = shape
        self.start = start
        self._beside = beside
        self._points: dict[tuple[int, bool], _Point] = {}  # by bucket, and whether they are apart
        self._odd = 0  # which way a timing was off what another process found
        self._pace, self._late = 1.0, deque[float](maxlen=SPELL)  # times what is usual; of the latest timings
        self._line: _Line | None = None
        self._lock = threading.Lock()  # conversations in threads of their own learn together

    def weight(self, count: int) -> float:
        """Cycles' worth of evidence for such counts, but for those apart."""
        point = self._points.get((bucket(count), False))
        return point.weight if point else 0.0

    @property
    def known(self) -> bool:
        """Something was measured."""
        return bool(self._points)

    @property
    def largest(self) -> int:
        """The largest count that was measured; 0 = none."""
        with self._lock:
            return max((count for point in self._points.values() for count in point.counts), default=0)

    def fade(self) -> None:
        with self._lock:
            for point in self._points.values():
                point.weight *= MEMORY
            self._pace **= MEMORY
            self._line = None

    def add(self, count: int, seconds: float, apart: bool = False) -> None:
        key = bucket(count), apart
        with self._lock:
            recalled = any(point.kept for point in self._points.values())
        if recalled:
            believed = float(self.at(count))
            odd = int(seconds > believed * AGREE) - int(seconds < believed / AGREE)
            if odd and odd != self._odd:  # a pause, it may be, or a first draft from cold memory
                self._odd = odd
                return
            if odd:  # the machine is another by now
                with self._lock:
                    self._points = {bucket: p for bucket, p in self._points.items() if not p.kept}
        with self._lock:
            point = self._points.get(key)
            if point is None or point.kept:
                point = self._points[key] = _Point()
            if len(point.seconds) >= SPELL and point.median > 0:
                self._late.append(seconds / point.median)
                slower, quicker = min(self._late), max(self._late)
                steady = len(self._late) < SPELL or (slower <= STEADY and quicker >= 1 / STEADY)
                self._pace = 1.0 if steady else slower if slower > 1 else quicker
            point.add(count, seconds / self._pace)
            self._line = None

    def notes(self) -> Notes:
        """Counts, and seconds of each."""
        with self._lock:
            points = [self._points[bucket] for bucket in sorted(self._points)]
        counts = [sorted(p.counts)[len(p.counts) // 2] for p in points]
        return {"counts": counts, "seconds": [round(p.median, 9) for p in points]}

    def recall(self, notes: Notes) -> None:
        """As if each had been measured in one cycle, until measuring says otherwise. Raises ValueError,
        TypeError or KeyError."""
        counts = from_notes(notes["counts"], len(notes["counts"]))
        seconds = from_notes(notes["seconds"], len(counts))
        if np.any(counts > MOST):
            raise ValueError(f"no more than {MOST} rows or steps are ever taken at a time")
        for count, took in zip(counts.tolist(), seconds.tolist(), strict=True):
            key = bucket(int(count)), False
            if key not in self._points:  # of one bucket the lower count comes first
                point = self._points[key] = _Point(kept=True)
                point.add(int(count), took)

    def at(self, counts: FloatArray | IntArray | float) -> FloatArray:
        """[...] -> [...] seconds."""
        wanted = np.asarray(counts, dtype=np.float64)
        if not self._points:
            return self.shape(wanted)
        with self._lock:
            line = self._line = self._line or self._fit()
        first, last = float(line.counts[0]), float(line.counts[-1])
        found = np.interp(wanted, line.counts, line.seconds)
        if (wanted < first).any():
            found = found - line.first_slope * np.minimum(np.maximum(first - wanted, 0.0), WIDTH * first)
        if (wanted > last).any():
            there = np.maximum(wanted, last)
            more = line.scale * (self.shape(there) - self.shape(np.asarray(last)))
            # Where several counts were timed, what the last takes longer may be its rows.
            waits = self._waits(last, float(line.seconds[0])) if len(line.counts) == 1 else 0.0
            beyond = np.maximum(more - waits, 0.0)
            found = found + np.minimum(beyond, line.slope * (there - last))
        seconds: FloatArray = self._pace * found
        return seconds

    def _waits(self, count: float, took: float) -> float:
        """Seconds of `took` that were waited for flash or memory, beyond what the shape knows of: some part
        of it, as more may have been a pause of the machine."""
        if self._beside is None:
            return 0.0
        known = float(self.shape(np.asarray(count)))
        return min(max(took - self._beside - known, 0.0), (AGREE - 1) * known)

    def _fit(self) -> _Line:
        keys = sorted(self._points)
        # Where conversations have come or gone, those apart may be no more than the others by now.
        keys = [k for k in keys if not k[1] or self._mean(k) > self._mean((k[0], False)) + NEAR]
        points = [self._points[key] for key in keys]
        xs = [self._mean(key) for key in keys]
        medians = [p.median for p in points]
        weights = [p.weight for p in points]
        if self.start is not None and xs[0] > 0:
            xs, medians, weights = [0.0, *xs], [self.start, *medians], [1e9, *weights]
        # A point leans on the first one and the shape, so that an old outlier does not stand for ever.
        shape = self.shape(np.array(xs))
        lean = LEAN if shape.any() else 0.0
        more = np.maximum(shape - shape[0] - self._waits(xs[0], medians[0]), 0.0)
        believed = (medians[0] + more).tolist()
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
        seconds = np.array(rising(ys, weights))
        second = 1 + (len(points) == len(xs) > 1 and keys[1][1])  # the first point of another bucket
        first_slope = (seconds[second] - seconds[0]) / (xs[second] - xs[0]) if len(xs) > second else 0.0
        return _Line(np.array(xs), seconds, float(first_slope), slope, scale)

    def _mean(self, key: tuple[int, bool]) -> float:
        """Count of a point; 0 = there is none."""
        counts = self._points[key].counts if key in self._points else [0]
        return sum(counts) / len(counts)


@dataclass(frozen=True)
class _Line:
    counts: FloatArray  # [points], ascending
    seconds: FloatArray  # [points], ascending
    first_slope: float  # between the first two points: a bucket's lower counts cost less than its mean one
    slope: float  # of what was measured, without the first point
    scale: float  # of the shape behind the last point


class _Point:
    """What was measured for counts of one bucket: the latest only, as a machine changes."""

    def __init__(self, kept: bool = False) -> None:
        self.kept = kept  # from another process
        self.weight = 0.0  # fading
        self.counts: deque[int] = deque(maxlen=LATEST)
        self.seconds: deque[float] = deque(maxlen=LATEST)

    def add(self, count: int, seconds: float) -> None:
        self.weight += 1
        self.counts.append(count)
        self.seconds.append(seconds)

    @property
    def median(self) -> float:
        """Of two, the quicker."""
        return sorted(self.seconds)[(len(self.seconds) - 1) // 2]


def bucket(count: int) -> int:
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
