"""Learned numbers as JSON, and back; what comes back is checked. Needs no torch."""

from __future__ import annotations

from typing import Any

import numpy as np

from edgespec.core.sampling import FloatArray

Notes = dict[str, Any]
MOST = 1e9  # of any number here: counts, and seconds


def as_notes(values: FloatArray) -> Any:
    """[...] -> lists of lists, of five digits each."""
    return np.vectorize(lambda value: float(f"{value:.5g}"))(values).tolist()


def from_notes(notes: Any, *shape: int) -> FloatArray:
    """[shape] numbers, none of them negative. Raises ValueError or TypeError for anything else."""
    values = np.array(notes, dtype=np.float64)
    if values.shape != shape or not np.all((values >= 0) & (values <= MOST)):
        raise ValueError(f"not {shape} numbers from 0 to {MOST:.0e}")
    return values
