"""A model's tensors one by one, whatever they are stored as, for who writes them in another way."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from edgespec.runtimes.config import EMBEDDING
from edgespec.runtimes.formats.describe import ModelFiles
from edgespec.runtimes.torch.rope import inverse_frequencies
from edgespec.runtimes.torch.weights import Weights

AT_ONCE = 4096  # rows of the embedding


class DenseTensors:
    """Reads all of a model's weights into memory, as they are stored; a tensor is fp32 when it is asked for.

    Raises StorageError and CorruptFileError; `progress` gets bytes read. A context manager.
    """

    def __init__(
        self, files: ModelFiles, progress: Callable[[int], None] | None = None, layers: int | None = None
    ) -> None:
        """layers: the last ones, whose matrices there are beside the head, the embedding, norms and biases;
        None = all."""
        self.config, table = files.config, files.table
        if layers is not None:
            table = replace(table, chunks=tuple(table.end(layers)))
        self._weights = Weights(table, 0, torch.float32)
        try:
            self._weights.pin([chunk.index for chunk in table.chunks], progress=progress)
            self._weights.embedding.keep(True)
        except BaseException:
            self._weights.close()
            raise

    def angles(self) -> NDArray[np.float32]:
        """[head_dim / 2] of rotation, a position."""
        return inverse_frequencies(self.config.rope, self.config.head_dim).numpy()

    def tensor(self, name: str, halves: bool = True) -> NDArray[np.float32]:
        """By canonical name: a matrix [out, in] or a vector. halves: rotated rows in Hugging Face's order,
        else in the model's (`Rope.interleaved`)."""
        if name == EMBEDDING:
            return self._embedding().numpy()
        if name in self._weights.small:
            found = self._weights.small[name]
        else:
            blocks = self._weights.resident_blocks(name.removesuffix(".weight"))
            assert blocks is not None  # all are pinned
            found = torch.cat([block.dense(0, block.rows, torch.float32) for block in blocks])
        rotated = name.endswith((".q_proj.weight", ".k_proj.weight", ".q_proj.bias", ".k_proj.bias"))
        turn = halves and rotated and self.config.rope.interleaved
        return (in_halves(found, self.config.head_dim) if turn else found).numpy()

    def _embedding(self) -> Tensor:
        rows, embed = self.config.vocab_size, self._weights.embed
        return torch.cat([embed(range(i, min(i + AT_ONCE, rows))) for i in range(0, rows, AT_ONCE)])

    def __enter__(self) -> DenseTensors:
        return self

    def __exit__(self, *exception: object) -> None:
        self._weights.close()


def in_halves(rows: Tensor, head_dim: int) -> Tensor:
    """Rotated pairs (2 i, 2 i + 1) of each head as (i, i + head_dim / 2)."""
    heads = rows.view(-1, head_dim // 2, 2, *rows.shape[1:])
    return heads.transpose(1, 2).reshape(rows.shape)
