"""Weights of one encoding into another, a tile of rows at a time."""

from __future__ import annotations

from collections.abc import Iterator

import numpy as np
from numpy.typing import NDArray

from edgespec.errors import ModelError
from edgespec.offload.layout import Part

READ_BYTES = 8 * 2**20  # of source a tile
TILE_WEIGHTS = 2**20  # of a tile that is converted, which takes some 40 bytes of memory a weight

Bytes = NDArray[np.uint8]


def tiles(part: Part) -> Iterator[tuple[int, int]]:
    """(first row, rows) of each tile of a part; rows count from the part's own first."""
    step = max(1, READ_BYTES // part.source.row_bytes)
    if part.encoding != part.source.encoding:
        step = max(1, min(step, TILE_WEIGHTS // part.columns))
    for row in range(0, part.rows, step):
        yield row, min(step, part.rows - row)


def convert(part: Part, raw: memoryview, rows: int) -> tuple[Bytes, Bytes | None]:
    """The stored bytes of `rows` rows, and those of their scales, from the source's bytes.

    Raises ModelError when a weight is not finite and has to be quantised.
    """
    source = np.frombuffer(raw, np.uint8)
    if part.encoding == part.source.encoding:
        return source, None
    import torch

    from edgespec.kernels.gguf_blocks import dequantize_torch
    from edgespec.kernels.quantize import quantize_int4, quantize_int8

    if source.ctypes.data % 8:
        source = source.copy()  # a tensor may lie anywhere in its file
    stored = torch.from_numpy(source).view(rows, -1)  # [rows, row_bytes]
    if part.encoding == "BF16":
        return _bytes(dequantize_torch(part.source.encoding, stored, part.columns, torch.bfloat16)), None
    weights = dequantize_torch(part.source.encoding, stored, part.columns, torch.float32)
    try:
        data, scale = quantize_int8(weights) if part.encoding == "I8" else quantize_int4(weights)
    except ModelError as error:
        raise ModelError(f"{part.source.file}: tensor {part.source.name}: {error}") from None
    return _bytes(data), _bytes(scale)


def _bytes(tensor: object) -> Bytes:
    import torch

    assert isinstance(tensor, torch.Tensor)
    flat: Bytes = tensor.contiguous().view(torch.uint8).numpy().reshape(-1)
    return flat
