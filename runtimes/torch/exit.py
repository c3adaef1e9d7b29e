"""The target's own early exit: its final norm and LM head on states that have passed only its first layers.

    layers 0 ... l-1 ─► states [n, d] ─► norm ─► head, a block of its rows at a time ─► logits [n, V]

The head is multiplied where it lies in memory, block by block (32 MiB at most), so that each fits into a wait
for flash; it takes nothing from the ring. A head that is itself streamed is no use: it would have to be read
twice a pass. Whose bits depend on nothing here: what leaves early only guides drafts.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from itertools import accumulate

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from edgespec.kernels.matmul import Block
from edgespec.runtimes.rows import Rows

Head = Callable[[], Sequence[Block] | None]
"""Blocks of the head's rows, in order; None = they are not all in memory now."""

Times = Callable[[Tensor, Block], Tensor]
"""x [n, in] times a block [rows, in] -> [n, rows]."""


class HeadExit:
    """See `runtimes.target.EarlyExit`."""

    def __init__(
        self,
        layers: int,
        norm: Callable[[Tensor], Tensor],
        head: Head,
        times: Times,
    ) -> None:
        """norm: [n, d] -> [n, d]."""
        self.layers, self.norm, self.head, self.times = layers, norm, head, times
        self._states: Tensor | None = None  # of the tree under verification

    @property
    def able(self) -> bool:
        return self.head() is not None

    def observe(self, hidden: Tensor, rows: Rows) -> None:
        self._states = None if rows.prefill else hidden

    @torch.inference_mode()
    def begin(self, nodes: Sequence[int]) -> HeadPass:
        states, self._states = self._states, None
        assert states is not None
        return HeadPass(self.norm(states[list(nodes)]), self.head, self.times)

    def commit(self, path: Sequence[int]) -> None:
        """It follows nothing."""


class HeadPass:
    """See `runtimes.base.DraftPass`: a part is a block of the head."""

    def __init__(self, normed: Tensor, head: Head, times: Times) -> None:
        """normed: [n, d]."""
        self.normed, self.head, self.times = normed, head, times
        vocabulary = sum(block.rows for block in self._blocks())
        self.logits: NDArray[np.float32] = np.empty((len(normed), vocabulary), np.float32)
        self._done = 0  # rows of the head

    def _blocks(self) -> Sequence[Block]:
        """Not kept: between two parts memory may change hands, and some blocks be cut in two."""
        blocks = self.head()
        assert blocks is not None
        return blocks

    @torch.inference_mode()
    def advance(self) -> bool:
        blocks = self._blocks()
        firsts = list(accumulate((block.rows for block in blocks), initial=0))
        block, stop = blocks[firsts.index(self._done)], firsts[firsts.index(self._done) + 1]
        self.logits[:, self._done : stop] = self.times(self.normed, block).float().cpu().numpy()
        self._done = stop
        return stop == firsts[-1]
