"""What passes should cost on a machine, before any was timed: one model for all who ask.

The plan predicts its speed with it, two plans are compared by it (is more memory for layers worth a stand-in?
a hand-over?), and the controller's prior is one.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

FloatArray = NDArray[np.float64]

LAYER_SECONDS = 0.8e-3  # of a pass of one row, beside the weights: attention, norms, Python (measured)
FREE_ROWS = 32  # so many cost one more: between what was measured with AMX (64) and plain AVX2 (16)


@dataclass(frozen=True)
class Rates:
    """Of a machine; GB/s."""

    read: float | None  # direct reads of the weights' disk; None = unknown
    compute: float  # weights multiplied by one row, from memory

    def flash(self, nbytes: int) -> float:
        """Seconds to read so much from flash; 0 where the rate is unknown."""
        return nbytes / (self.read * 1e9) if self.read else 0.0

    def memory(self, nbytes: int) -> float:
        """Seconds to multiply so many bytes of weights by one row."""
        return nbytes / (self.compute * 1e9)


@dataclass(frozen=True)
class CostModel:
    """Seconds.

    io: to read what one pass streams. compute: a pass of one row, its weights alone. step: one step of
    whoever works between two passes, likewise. overhead: of a pass, beside its weights.
    """

    io: float = 0.0
    compute: float = 0.0
    step: float = 0.0
    overhead: float = 0.0

    def passes(self, rows: FloatArray) -> FloatArray:
        """[...] -> [...]: the shape of what passes of so many rows cost. What is beside the weights is left
        out, because steps have it too; once a plain cycle was timed, only the shape counts."""
        return np.maximum(self.io, self.compute * (1 + (rows - 1) / FREE_ROWS))

    def steps(self, count: FloatArray) -> FloatArray:
        """[...] -> [...]: the shape of what so many steps cost."""
        return self.step * count

    def cycle(self, steps: int = 0) -> float:
        """So many steps and a pass of one row: max(I/O, compute)."""
        return max(self.io, self.compute + self.overhead) + self.step * steps
