"""How often a drafter's first choice is the target's, on held-out sequences."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
from numpy.typing import NDArray

GAMMA = 5  # draft positions, as in the paper's tables


class Agreement:
    """Teacher-forced top-1 agreement, and what it says about chains of `gamma` drafted tokens.

    p_i is the agreement at draft position i, given that positions 1 to i - 1 agreed. It is read off runs of
    consecutive positions, without drafting anything. Where a sequence is the target's own greedy text, that
    is exactly what a greedy chain would have met: all its drafts so far are then the text's own tokens.
    On other text it is an estimate, for the prefix is the text and not the target's continuation.
    """

    def __init__(self, gamma: int = GAMMA) -> None:
        self.gamma = gamma
        self.positions = self.agreed = 0
        self.loss = 0.0
        self.reached = np.zeros(gamma, np.int64)  # chains whose position i agreed
        self.tried = np.zeros(gamma, np.int64)  # chains that had a position i, all before it agreed

    def add(self, agree: Sequence[NDArray[np.bool_]], loss: float) -> None:
        """`agree`: of each sequence, whether each of its positions agrees, [n] each; `loss`: their sum."""
        self.loss += loss
        for hits in agree:
            self.positions += len(hits)
            self.agreed += int(hits.sum())
            alive = np.ones(len(hits), np.bool_)  # by first position of a chain
            for i in range(min(self.gamma, len(hits))):
                alive = alive[: len(hits) - i]
                self.tried[i] += alive.sum()
                alive = alive & hits[i:]
                self.reached[i] += alive.sum()

    def result(self) -> dict[str, Any]:
        """Loss per position, agreement, p_1..p_gamma, and 1 + p_1 + p_1 p_2 + ...: tokens per verification
        with the target's own, at most gamma + 1."""
        p = self.reached / np.maximum(self.tried, 1)
        n = max(1, self.positions)
        return {
            "loss": self.loss / n,
            "agreement": self.agreed / n,
            "positions": [round(float(x), 4) for x in p],
            "accepted": 1 + float(np.cumprod(p).sum()),
        }
