"""How often a drafter's first choice is the target's, on held-out sequences."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
from numpy.typing import NDArray

GAMMA = 5  # draft positions, as in the paper's tables


class Agreement:
    """Teacher-forced top-1 agreement, and what it says about chains of `gamma` drafted tokens.

    Cycles are walked through each text as decoding would: a chain, the token that corrects or follows
    it, and the next chain from there, so that stretches that are hard to draft have the more cycles. p_i is
    the agreement at draft position i, given that positions 1 to i - 1 agreed. Where a text is the
    target's own greedy text, that is exactly what greedy chains would have met: all their drafts so far are
    then the text's own tokens. On other text it is an estimate, for the prefix is the text and not the
    target's continuation.
    """

    def __init__(self, gamma: int = GAMMA) -> None:
        self.gamma = gamma
        self.positions = self.agreed = 0
        self.loss = 0.0
        self.cycles = 0
        self.reached = np.zeros(gamma, np.int64)  # cycles whose positions up to i agreed

    def add(self, agree: Sequence[NDArray[np.bool_]], loss: float) -> None:
        """`agree`: of each text, whether each of its positions agrees, [n] each; [gamma, n] where that is
        another matter for each draft of a chain. `loss`: their sum."""
        self.loss += loss
        for hits in agree:
            by_draft = np.broadcast_to(hits, (self.gamma, hits.shape[-1]))
            n = by_draft.shape[1]
            self.positions += n
            self.agreed += int(by_draft[0].sum())
            start = 0
            while start < n:
                chain = np.diagonal(by_draft, start)  # of the drafts from here on, at most gamma
                accepted = len(chain) if chain.all() else int(chain.argmin())
                if accepted < self.gamma and start + accepted == n:
                    break  # the text ends within this chain
                self.cycles += 1
                self.reached[:accepted] += 1
                start += accepted + 1

    def result(self) -> dict[str, Any]:
        """Loss per position, agreement, p_1..p_gamma, and 1 + p_1 + p_1 p_2 + ...: tokens per verification
        with the target's own, at most gamma + 1."""
        p = self.reached / np.maximum(np.append(self.cycles, self.reached[:-1]), 1)
        n = max(1, self.positions)
        return {
            "loss": self.loss / n,
            "agreement": self.agreed / n,
            "positions": [round(float(x), 4) for x in p],
            "accepted": 1 + float(np.cumprod(p).sum()),
        }
