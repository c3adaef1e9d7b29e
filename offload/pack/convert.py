"""Weights of one encoding into another, a tile of rows at a time."""

from __future__ import annotations

import contextlib
from collections.abc import Iterator
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from edgespec.errors import ModelError
from edgespec.offload.pack.layout import Part
from edgespec.offload.read_ahead import Range

READ_BYTES = 8 * 2**20  # of source a tile
TILE_WEIGHTS = 2**20  # of a tile that is converted, which takes some 10 bytes of memory a weight

Bytes = NDArray[np.uint8]


@dataclass(frozen=True, slots=True)
class Tile:
    """Rows [row, row + rows) of a part; `row` counts from the part's own first."""

    part: Part
    row: int
    rows: int

    @property
    def source(self) -> Range:
        source = self.part.source
        first = self.part.row + self.row
        return Range(source.file, source.offset + first * source.row_bytes, self.rows * source.row_bytes)


def tiles(part: Part) -> Iterator[Tile]:
    """A part, cut into what is read and converted at a time."""
    step = max(1, READ_BYTES // part.source.row_bytes)
    if part.encoding != part.source.encoding:
        step = max(1, min(step, TILE_WEIGHTS // part.columns))
    for row in range(0, part.rows, step):
        yield Tile(part, row, min(step, part.rows - row))


@contextlib.contextmanager
def one_torch_thread() -> Iterator[None]:
    """For conversions in several threads at once: each computes alone."""
    import torch

    threads = torch.get_num_threads()
    torch.set_num_threads(1)
    try:
        yield
    finally:
        torch.set_num_threads(threads)


def convert(tile: Tile, raw: memoryview) -> tuple[Bytes, Bytes | None]:
    """The stored bytes of a tile, and those of its scales, from the source's bytes.

    Raises ModelError when a weight is not finite and has to be quantised.
    """
    part = tile.part
    source = np.frombuffer(raw, np.uint8)
    if part.encoding == part.source.encoding:
        return source, None
    import torch

    from edgespec.kernels.gguf_torch import dequantize_torch
    from edgespec.kernels.matmul import STORED, Block
    from edgespec.kernels.quantize import quantize_int4, quantize_int8

    if source.ctypes.data % 8:
        source = source.copy()  # a tensor may lie anywhere in its file
    stored = torch.from_numpy(source).view(tile.rows, -1)  # [rows, row_bytes]
    if part.encoding == "BF16":  # not by compiled kernels, whose zeros may have another sign
        return _bytes(dequantize_torch(part.source.encoding, stored, part.columns, torch.bfloat16)), None
    block = Block.of_bytes(part.source.encoding, stored, tile.rows, part.columns)
    numbers = block.data if block.encoding in STORED else block.dense(0, tile.rows, torch.float32)
    try:
        data, scale = quantize_int8(numbers) if part.encoding == "I8" else quantize_int4(numbers)
    except ModelError as error:
        raise ModelError(f"{part.source.file}: tensor {part.source.name}: {error}") from None
    return _bytes(data), _bytes(scale)


def _bytes(tensor: object) -> Bytes:
    import torch

    assert isinstance(tensor, torch.Tensor)
    flat: Bytes = tensor.contiguous().view(torch.uint8).numpy().reshape(-1)
    return flat
