"""Embedding rows by token: from memory where they are, else from flash, one row at a time."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import torch
from torch import Tensor

from edgespec.kernels.matmul import Block
from edgespec.offload.chunks import Chunk, ChunkTable
from edgespec.offload.reader import DirectFile
from edgespec.runtimes.base import IntArray


class Embedding:
    """The table [V, d]. A pass needs a few rows of it (4-8 KB each), so it is the last thing to pin."""

    def __init__(self, table: ChunkTable, file: DirectFile, pinned: Mapping[int, memoryview]) -> None:
        self.source = table.embedding
        self.file = file
        self.whole: memoryview | None = None
        self.pinned = pinned  # by chunk index; a tied head's chunks are rows of this table
        self.tied: list[Chunk] = [c for c in table.chunks if c.layer == table.layers] if table.tied else []

    def keep(self, whole: bool) -> None:
        """The whole table in memory, or not."""
        if not whole:
            self.whole = None
        elif self.whole is None:
            self.whole = self.file.read(self.source.offset, self.source.nbytes)

    def rows(self, tokens: Sequence[int] | IntArray, dtype: torch.dtype) -> Tensor:
        """[n] -> [n, d] of `dtype`, in host memory."""
        asked = [int(token) for token in tokens]
        places = {token: place for place, token in enumerate(dict.fromkeys(asked))}
        raw = torch.stack([torch.frombuffer(self._row(token), dtype=torch.uint8) for token in places])
        block = Block.of_bytes(self.source.encoding, raw, len(places), self.source.shape[1])
        dense = block.dense(0, len(places), dtype)
        return dense if len(places) == len(asked) else dense[[places[token] for token in asked]]

    def _row(self, token: int) -> memoryview:
        start, nbytes = token * self.source.row_bytes, self.source.row_bytes
        if self.whole is not None:
            return self.whole[start : start + nbytes]
        for chunk in self.tied:
            buffer, place = self.pinned.get(chunk.index), self.source.offset + start - chunk.offset
            if buffer is not None and 0 <= place < chunk.nbytes:
                return buffer[place : place + nbytes]
        return self.file.read(self.source.offset + start, nbytes)
