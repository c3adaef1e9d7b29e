"""Matmul with weights in any stored encoding: the rows of a matrix that lie in one chunk."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass

import torch
from torch import Tensor
from torch.nn import functional as F

from edgespec.kernels.cpu import matmul_dtype, multiply
from edgespec.kernels.gguf_blocks import dequantize_torch
from edgespec.kernels.quantize import dequantize_int4, dequantize_int8
from edgespec.kernels.row_class import row_class

STORED = {  # every other encoding is raw bytes to torch
    "F32": torch.float32,
    "F16": torch.float16,
    "BF16": torch.bfloat16,
    "I8": torch.int8,
}
TILE_BYTES = 4 * 2**20  # an unpacked tile stays in cache between unpacking and use


@dataclass(frozen=True)
class Block:
    """Consecutive rows of one weight matrix, as stored.

    `encoding` "F32", "F16" or "BF16": `data` [rows, k] in that type. "I8": int8 [rows, k] with `scale`
    [rows]. "U8" (int4): [rows, k / 2] with `scale` [rows, k / group]. GGUF block types: raw bytes
    [rows, row_bytes].
    """

    encoding: str
    data: Tensor
    scale: Tensor | None
    rows: int
    inner: int  # k

    @staticmethod
    def of_bytes(encoding: str, data: Tensor, rows: int, inner: int, scale: Tensor | None = None) -> Block:
        """The block whose stored bytes are `data` (uint8, any shape)."""
        columns = (inner,) if encoding in STORED else (-1,)
        return Block(encoding, typed(data, encoding, (rows, *columns)), scale, rows, inner)

    def dense(self, start: int, stop: int, dtype: torch.dtype) -> Tensor:
        """Rows [start, stop) as a dense [rows, k] matrix of `dtype`."""
        data = self.data[start:stop]
        if self.encoding in ("F32", "F16", "BF16"):
            return data.to(dtype)
        if self.scale is None:
            return dequantize_torch(self.encoding, data, self.inner, dtype)
        if self.encoding == "I8":
            return dequantize_int8(data, self.scale[start:stop], dtype)
        return dequantize_int4(data, self.scale[start:stop], dtype, self.inner).contiguous()

    def tiles(self, dtype: torch.dtype) -> Iterator[Tensor]:
        """The block as dense matrices of `dtype`, a view where it is stored so."""
        if self.data.dtype == dtype and self.scale is None:
            yield self.data
            return
        for start, stop in tile_bounds(self.rows, self.inner, dtype):
            yield self.dense(start, stop, dtype)


def typed(data: Tensor, encoding: str, shape: Sequence[int]) -> Tensor:
    """A view of stored bytes (uint8): of the encoding's type where torch has one, else the bytes."""
    return data.flatten().view(STORED.get(encoding, torch.uint8)).view(*shape)


def tile_bounds(rows: int, inner: int, dtype: torch.dtype) -> list[tuple[int, int]]:
    """How a block of another stored type is unpacked: (start, stop) rows of each tile."""
    step = max(16, TILE_BYTES // (inner * dtype.itemsize) // 16 * 16)
    return [(start, min(start + step, rows)) for start in range(0, rows, step)]


def linear(x: Tensor, block: Block, exact: bool) -> Tensor:
    """x [n, k] @ block^T -> [n, rows], in x's type.

    With `exact` a row's bits do not depend on n (the matmuls stay within one row class); without it torch is
    left to choose the fastest algorithm for n rows.
    """
    dtype = matmul_dtype(x.dtype) if x.device.type == "cpu" else x.dtype
    inputs = x.to(dtype)
    parts = [_rows_apart(inputs, tile) if exact else F.linear(inputs, tile) for tile in block.tiles(dtype)]
    return (parts[0] if len(parts) == 1 else torch.cat(parts, dim=1)).to(x.dtype)


def _rows_apart(x: Tensor, weight: Tensor) -> Tensor:
    """A matmul within one row class: padded below it, in blocks above it."""
    if x.device.type != "cpu":
        return F.linear(x, weight)
    rows = row_class(weight.shape[0], weight.shape[1], weight.dtype)
    n = len(x)
    if n < rows.pad:
        return multiply(F.pad(x, (0, 0, 0, rows.pad - n)), weight)[:n]
    if n <= rows.block:
        return multiply(x, weight)
    return torch.cat([_rows_apart(part, weight) for part in torch.split(x, rows.block)])
