"""The target's own early exit: its final norm and LM head on states that have passed only its first layers.

    layers 0 ... l-1 ─► states [n, d] ─► norm ─► head, a block of its rows at a time ─► logits [n, V]

The head is multiplied where it lies in memory, block by block (32 MiB at most), so that each fits into a wait
for flash; it takes nothing from the ring. A head that is itself streamed is no use: it would have to be read
twice a pass. Whose bits depend on nothing here: what leaves early only guides drafts.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from edgespec.kernels.matmul import Block, linear
from edgespec.runtimes.base import Rows


class HeadExit:
    """See `runtimes.base.EarlyExit`."""

    def __init__(
        self,
        layers: int,
        norm: Callable[[Tensor], Tensor],
        head: Callable[[], Sequence[Block] | None],
    ) -> None:
        """norm: [n, d] -> [n, d]. head: blocks of its rows; None = it is not in memory now."""
        self.layers, self.norm, self.head = layers, norm, head
        self._states: Tensor | None = None  # of the tree under verification

    @property
    def able(self) -> bool:
        return self.head() is not None

    def observe(self, hidden: Tensor, rows: Rows) -> None:
        self._states = None if rows.prefill else hidden

    @torch.inference_mode()
    def begin(self, nodes: Sequence[int]) -> HeadPass:
        blocks, states, self._states = self.head(), self._states, None
        assert blocks is not None
        assert states is not None
        return HeadPass(self.norm(states[list(nodes)]), blocks)

    def commit(self, path: Sequence[int]) -> None:
        """It follows nothing."""


class HeadPass:
    """See `runtimes.base.DraftPass`: a part is a block of the head."""

    def __init__(self, normed: Tensor, blocks: Sequence[Block]) -> None:
        """normed: [n, d]."""
        self.normed, self.blocks = normed, blocks
        self.done: list[NDArray[np.float32]] = []

    @torch.inference_mode()
    def advance(self) -> bool:
        self.done.append(linear(self.normed, self.blocks[len(self.done)], True).float().cpu().numpy())
        return len(self.done) == len(self.blocks)

    @property
    def logits(self) -> NDArray[np.float32]:
        return np.concatenate(self.done, axis=1)
