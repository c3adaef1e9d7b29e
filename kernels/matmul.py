"""Matmul with weights in any stored encoding: the rows of a matrix that lie in one chunk."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass

import torch
from torch import Tensor
from torch.nn import functional as F

from edgespec.kernels import compiled, integer
from edgespec.kernels.choice import FEWS
from edgespec.kernels.cpu import matmul_dtype, multiply
from edgespec.kernels.dispatch import has_triton
from edgespec.kernels.gguf_torch import dequantize_torch
from edgespec.kernels.layer import WholeLayer
from edgespec.kernels.low_bit import padded_columns
from edgespec.kernels.quantize import dequantize_int4, dequantize_int8, unpack_int4
from edgespec.kernels.row_class import row_class
from edgespec.kernels.scratch import scratch

STORED = {  # every other encoding is raw bytes to torch
    "F32": torch.float32,
    "F16": torch.float16,
    "BF16": torch.bfloat16,
    "I8": torch.int8,
}
FEW = FEWS[1]  # 256: above so many rows one bf16 matmul with unpacked weights is faster than those of digits
PROMPT_ROWS = 512  # multiplied in one call: it takes 1 KiB of sums for each, and their numbers once more
TILE_BYTES = 2 * 2**20  # unpacked at a time: stays in cache until it is used
# Unpacked at a time for a prompt's block by torch, whose every matmul arranges all of x anew: Q4_K, 512 rows,
# 11008 x 4096 took 60 ms in tiles of 2 MiB, 38 of 8 and 37 of 16, beside bf16's 25.
PROMPT_TILE_BYTES = 4 * TILE_BYTES


@dataclass(frozen=True)
class Block:
    """Consecutive rows of one weight matrix, as stored.

    `encoding` "F32", "F16" or "BF16": `data` [rows, k] in that type. "I8": int8 [rows, k] with `scale`
    [rows]. "U8" (int4): bytes [rows, int4_row_bytes(k)] with `scale` [rows]. GGUF block types: raw bytes
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

    def dense(self, start: int, stop: int, dtype: torch.dtype, out: Tensor | None = None) -> Tensor:
        """Rows [start, stop) as a dense [rows, k] matrix of `dtype`; in `out` [rows, padded k] if given."""
        data = self.data[start:stop]
        if data.device.type == "cpu" and compiled.unpacks(self.encoding, dtype):
            if out is None:
                out = torch.empty((stop - start, self.inner), dtype=dtype)
            scale = None if self.scale is None else self.scale[start:stop]
            return compiled.dense(self.encoding, data, scale, self.inner, out)
        if self.scale is None:
            if self.encoding in STORED:
                return data.to(dtype) if out is None else out.copy_(data)
            return dequantize_torch(self.encoding, data, self.inner, dtype, out)
        if self.encoding == "I8":
            return dequantize_int8(data, self.scale[start:stop], dtype, out)
        return dequantize_int4(data, self.scale[start:stop], dtype, self.inner, out).contiguous()

    def numbers(self, start: int, stop: int, out: Tensor | None = None) -> Tensor:
        """Rows [start, stop) of a block with scales, without them: int8 [rows, k]; those of int4 in `out`."""
        data = self.data[start:stop]
        return data if self.encoding == "I8" else unpack_int4(data, out)[:, : self.inner]

    def tiles(self, dtype: torch.dtype, nbytes: int | None = None) -> Iterator[Tensor]:
        """The block as dense matrices of `dtype`, a view where it is stored so, else of at most `nbytes` (by
        default a tile's) or 16 rows; valid until the next."""
        if self.data.dtype == dtype and self.scale is None:
            yield self.data
            return
        for start, stop in tile_bounds(self.rows, self.inner * dtype.itemsize, nbytes):
            out = None
            if self.data.device.type == "cpu":
                columns = padded_columns(self.inner) if self.encoding == "U8" else self.inner
                out = scratch("weights", (stop - start, columns), dtype)
            yield self.dense(start, stop, dtype, out)


def typed(data: Tensor, encoding: str, shape: Sequence[int]) -> Tensor:
    """A view of stored bytes (uint8): of the encoding's type where torch has one, else the bytes."""
    return data.flatten().view(STORED.get(encoding, torch.uint8)).view(*shape)


def tile_bounds(rows: int, row_bytes: int, nbytes: int | None = None) -> list[tuple[int, int]]:
    """How a block of another stored type is unpacked: (start, stop) rows of each tile."""
    step = max(16, (nbytes or TILE_BYTES) // row_bytes // 16 * 16)
    return [(start, min(start + step, rows)) for start in range(0, rows, step)]


def one_class(encoding: str, inner: int) -> bool:
    """Whether every row count gives the same bits with weights so stored, multiplied on this CPU."""
    return compiled.available(encoding) or _digits_do(encoding, inner)


def _digits_do(encoding: str, inner: int) -> bool:
    return encoding in ("I8", "U8") and 1 < inner < integer.MOST_COLUMNS and integer.available()


class Together:
    """One call in place of several of `linear`, for matrices that the same rows are multiplied with."""

    def __init__(self, matrices: Mapping[str, Sequence[Block]]) -> None:
        """`matrices`: by name, the blocks of those that stay in memory."""
        self._matrices = dict(matrices)
        self._made: dict[tuple[str, ...], compiled.Matrices | None] = {}
        # Made of them by whoever asks; None: cannot be one call.
        self.layers: dict[int, WholeLayer | None] = {}

    def call(self, names: tuple[str, ...], x: Tensor, exact: bool) -> compiled.Matrices | None:
        """What gives x [n, k] @ W^T of all of `names` the bits that `linear` gives each; None where one call
        does not do what `linear` would."""
        matrices = self.made(names)
        if matrices is None or exact or len(x) <= FEWS[0]:
            return matrices
        blocks = (block for name in names for block in self._matrices[name])
        return None if any(len(x) > most_as_exact(block, x) for block in blocks) else matrices

    def made(self, names: tuple[str, ...]) -> compiled.Matrices | None:
        """What gives exact rows the bits that `linear` gives each; None where one call does not."""
        try:
            return self._made[names]
        except KeyError:
            matrices = self._made[names] = self._make(names)
            return matrices

    def _make(self, names: tuple[str, ...]) -> compiled.Matrices | None:
        if not self._matrices.keys() >= set(names):
            return None
        matrices = [self._matrices[name] for name in names]
        blocks = [block for matrix in matrices for block in matrix]
        if len(blocks) > compiled.MOST_BLOCKS or not all(
            block.data.device.type == "cpu" and compiled.available(block.encoding) for block in blocks
        ):
            return None
        rows = [[(block.encoding, block.data, block.scale) for block in matrix] for matrix in matrices]
        return compiled.Matrices(rows, blocks[0].inner)

    def clear(self) -> None:
        """Let the memory go."""
        self._matrices.clear()
        self._made.clear()
        self.layers.clear()


def most_as_exact(block: Block, x: Tensor) -> int:
    """So many of a prompt's rows, of x's type, are multiplied as exact ones would be; more in another way."""
    return FEW if x.device.type != "cpu" else compiled.few(block.encoding, x.dtype)


def linear(x: Tensor, block: Block, exact: bool) -> Tensor:
    """x [n, k] @ block^T -> [n, rows], in x's type.

    With `exact` a row's bits do not depend on n (the matmuls stay within one row class); without it torch is
    left to choose the fastest algorithm for n rows.
    """
    cpu = x.device.type == "cpu"
    as_exact = exact or len(x) <= most_as_exact(block, x)
    prompt = cpu and not as_exact
    if prompt and compiled.own_prompt(block.encoding, x.dtype):
        twice = block.encoding == "F16" or compiled.as_trees(compiled.order(block.encoding))
        rows = FEW if twice else PROMPT_ROWS  # x is made fp32, or numbers that are then arranged
        parts = [
            compiled.linear(part, block.encoding, block.data, block.scale, x.dtype, prompt)
            for part in torch.split(x, rows)
        ]
        return parts[0] if len(parts) == 1 else torch.cat(parts)
    if cpu and as_exact and compiled.available(block.encoding):
        return compiled.linear(x, block.encoding, block.data, block.scale, x.dtype)
    if cpu and as_exact and _digits_do(block.encoding, block.inner):
        return _in_integers(x, block)
    if block.scale is not None and has_triton(x.device):
        from edgespec.kernels.triton import low_bit

        return low_bit.linear(x, block.data, block.scale, exact)
    dtype = matmul_dtype(x.dtype) if cpu else x.dtype
    inputs = x.to(dtype)
    if exact:
        parts = [_rows_apart(inputs, tile) for tile in block.tiles(dtype)]
    else:
        n, tile_bytes = len(x), PROMPT_TILE_BYTES if len(x) > FEW else TILE_BYTES
        if cpu and dtype != torch.float32:  # which MKL multiplies, and keeps nothing
            inputs = _padded(inputs, padded_rows(n))
        parts = [F.linear(inputs, tile)[:n] for tile in block.tiles(dtype, tile_bytes)]
    return (parts[0] if len(parts) == 1 else torch.cat(parts, dim=1)).to(x.dtype)


def ragged(x: Tensor, block: Block, apart: Sequence[range]) -> Tensor:
    """x [n, k] @ block^T -> [n, rows]: the rows before those of `apart`, which are the last ones of x, are
    `exact`; each of these spans has the bits of a call of its own without `exact`.

    Short spans, where their bits do not depend on n either, are multiplied with those before them, no more
    at once than `FEW` or the first rows are: memory is planned for these.
    """
    first, short = apart[0].start, 0
    if x.device.type == "cpu" and one_class(block.encoding, block.inner):
        short = most_as_exact(block, x)
    calls = [(range(first), True)] if first else []
    for span in apart:
        exact = len(span) <= short
        last, open_ = calls[-1] if calls else (span, False)
        if exact and open_ and span.stop - last.start <= max(FEW, first):
            calls[-1] = range(last.start, span.stop), True
        else:
            calls.append((span, exact))
    parts = [linear(x[span.start : span.stop], block, exact) for span, exact in calls]
    return parts[0] if len(parts) == 1 else torch.cat(parts)


def _in_integers(x: Tensor, block: Block) -> Tensor:
    assert block.scale is not None
    digits = integer.split(x)
    # What a tile takes: its sums, and for int4 its unpacked numbers. The cut does not change any bits.
    columns = 0 if block.encoding == "I8" else padded_columns(block.inner)
    parts = []
    for start, stop in tile_bounds(block.rows, 12 * len(x) + columns):
        numbers = block.numbers(start, stop, scratch("weights", (stop - start, columns), torch.int8))
        parts.append(integer.multiply(digits, numbers, block.scale[start:stop], x.dtype))
    return parts[0] if len(parts) == 1 else torch.cat(parts, dim=1)


def _rows_apart(x: Tensor, weight: Tensor) -> Tensor:
    """A matmul within one row class: padded below it, in blocks above it."""
    if x.device.type != "cpu":
        return F.linear(x, weight)
    rows = row_class(weight.shape[0], weight.shape[1], weight.dtype)
    n = len(x)
    if n > rows.block:
        return torch.cat([_rows_apart(part, weight) for part in torch.split(x, rows.block)])
    return multiply(_padded(x, max(rows.pad, min(rows.block, padded_rows(n)))), weight)[:n]


def _padded(x: Tensor, rows: int) -> Tensor:
    """With rows of zeros; x itself where it has as many, since F.pad would copy it."""
    return F.pad(x, (0, 0, 0, rows - len(x))) if rows > len(x) else x


def padded_rows(n: int) -> int:
    """As how many rows n are multiplied: a power of two, above 8 a multiple of 8, above 64 of 64. oneDNN
    keeps half a megabyte for every shape and number of rows it has met, and trees and prompts have any."""
    if n <= 8:
        return 1 << (n - 1).bit_length()
    step = 8 if n <= 64 else 64
    return -(-n // step) * step
