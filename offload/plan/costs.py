"""What passes should cost on a machine, before any was timed: one model for all who ask.

The plan predicts its speed with it, two plans are compared by it (is more memory for layers worth a stand-in?
a hand-over?), the controller's prior is one, and settings are recommended by it (`edgespec.tuning`). Its
terms are written down in docs/tuning.md.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from edgespec.devices.matmuls import ROWS, Matmuls

FloatArray = NDArray[np.float64]

# Of a pass of one row, beside the weights: Python, attention, norms. 0.06 to 0.12 ms a layer with 0.5b and
# 1b shapes in five encodings (2 cores, compiled kernels, one call a layer), which have 22 to 24 of them; the
# demo model's ten take 0.02 each, and its passes 2 to 3 beside them.
PASS_SECONDS, LAYER_SECONDS = 2e-3, 0.02e-3
# More of a layer that streams, whose matrices are multiplied one by one as they come and not in one call
# (0.5b shape: 1.5 to 2.4 ms with 1 to 64 rows); and of a small one, which is one call when all of it is there
# (the demo model: 0.4).
STREAMED_SECONDS, ARRIVING_SECONDS = 1.5e-3, 0.4e-3
# So many rows more take as long again: 64 rows of 0.5b and 1b shapes took 1.3 to 2.6 ms a layer.
BESIDE_ROWS = 10
FREE_ROWS = 32  # so many cost one more: between what was measured with AMX (64) and plain AVX2 (16)


@dataclass(frozen=True)
class Rates:
    """Of a machine; GB/s."""

    read: float | None  # direct reads of the weights' disk; None = unknown
    compute: float  # weights multiplied by one row, from memory
    matmuls: Matmuls | None = None  # by encoding and rows, where that was measured
    raced: Matmuls | None = None  # likewise, of weights in caches, where nothing else was

    def flash(self, nbytes: int) -> float:
        """Seconds to read so much from flash; 0 where the rate is unknown."""
        return nbytes / (self.read * 1e9) if self.read else 0.0

    def memory(self, nbytes: int) -> float:
        """Seconds to multiply so many bytes of weights by one row."""
        return nbytes / (self.compute * 1e9)

    def multiply(self, stored: Mapping[str, int]) -> tuple[float, ...]:
        """[len(ROWS)] seconds to multiply so many bytes of weights, by encoding, by each number of ROWS."""
        measured = self.matmuls.seconds if self.matmuls else {}
        raced = self.raced.seconds if self.raced else {}
        seconds = np.zeros(len(ROWS))
        for encoding, nbytes in stored.items():
            if encoding in measured:
                seconds += np.array(measured[encoding]) * nbytes / 1e9
            elif encoding in raced:
                seconds += np.maximum(np.array(raced[encoding]) * nbytes / 1e9, self.memory(nbytes))
            else:
                seconds += self.memory(nbytes) * (1 + (np.array(ROWS) - 1) / FREE_ROWS)
        return tuple(np.maximum.accumulate(seconds).tolist())  # never less for more


@dataclass(frozen=True)
class CostModel:
    """Seconds.

    io: to read what one pass streams. compute: a pass of one row, its weights alone. step: one step of
    whoever works between two passes, likewise. overhead: of a pass of one row, beside its weights; apart: of
    any pass, for layers that stream. ahead: of reading that the ring has room for, and which goes on between
    two passes. by_rows: what a pass's weights take for each number of ROWS, where that was measured.
    waiting_step: of who works in a pass's waits, with as many rows as it has there.
    """

    io: float = 0.0
    compute: float = 0.0
    step: float = 0.0
    overhead: float = 0.0
    apart: float = 0.0
    ahead: float = 0.0
    by_rows: tuple[float, ...] = ()
    waiting_step: float = 0.0

    def computing(self, rows: FloatArray) -> FloatArray:
        """[...] -> [...]: to multiply so many rows by all weights; lines between what was measured."""
        if not self.by_rows:
            return self.compute * (1 + (rows - 1) / FREE_ROWS)
        slope = (self.by_rows[-1] - self.by_rows[-2]) / (ROWS[-1] - ROWS[-2])
        return np.interp(rows, ROWS, self.by_rows) + slope * np.maximum(rows - ROWS[-1], 0)

    def working(self, rows: float) -> float:
        """A pass of so many rows that waits for nothing: its weights, and what is beside them."""
        beside = self.overhead * (1 + (rows - 1) / BESIDE_ROWS)
        return float(self.computing(np.array(rows))) + beside + self.apart

    def passes(self, rows: FloatArray) -> FloatArray:
        """[...] -> [...]: the shape of what passes of so many rows cost. What is beside the weights is left
        out, because steps have it too; once a plain cycle was timed, only the shape counts."""
        return np.maximum(self.io, self.computing(rows))

    @property
    def redundancy(self) -> float | None:
        """Rows whose arithmetic takes as long as a pass of one row, which reads the weights: from there on
        passes are bound by arithmetic (SpecFormer's rho = AI_c / AI_m). None where nothing is known."""
        one, many, twice = self.computing(np.array([1.0, ROWS[-1], 2 * ROWS[-1]]))
        row = (twice - many) / ROWS[-1]
        return float(max(self.io, one) / row) if row > 0 else None

    def steps(self, count: FloatArray) -> FloatArray:
        """[...] -> [...]: the shape of what so many steps cost."""
        return self.step * count

    def cycle(self, steps: float = 0, nodes: float = 1) -> float:
        """So many steps and a pass of so many rows, averages too: max(I/O, compute). The ring fills during
        the steps."""
        between = self.step * steps
        reading = self.io - min(self.ahead, between)
        return max(reading, self.working(nodes)) + between
