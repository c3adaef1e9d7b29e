"""GGUF's block encodings: how many bytes they take, and how they become numbers.

A row of a matrix is a run of blocks; each block holds `elements` weights in `nbytes` bytes. Layouts, in
order of bytes (d, m: fp16; little-endian):

    Q8_0   32: d, 32 x int8                                 w = d q
    Q4_0   32: d, 16 bytes (low nibbles first)              w = d (q - 8)
    Q4_K  256: d, m, 12 bytes of 6-bit scales and minima,   w = (d s) q - (m t)   s, t per 32 weights
               128 bytes of nibbles
    Q5_K  256: as Q4_K, with 32 bytes of fifth bits before the nibbles
    Q6_K  256: 128 bytes of low nibbles, 64 of high bits,   w = (d s) (q - 32)    s per 16 weights
               16 x int8 scales, d

Source: ggml's block structs (ggml-common.h). Both functions do the same fp32 operations in the same order
as ggml, so their results are equal bit for bit. Importing this module needs no torch.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, NamedTuple

import numpy as np
from numpy.typing import NDArray

if TYPE_CHECKING:
    import torch
    from torch import Tensor


class BlockSize(NamedTuple):
    elements: int  # weights in one block
    nbytes: int


BLOCKS: dict[str, BlockSize] = {
    "F32": BlockSize(1, 4),
    "F16": BlockSize(1, 2),
    "BF16": BlockSize(1, 2),
    "Q8_0": BlockSize(32, 2 + 32),
    "Q4_0": BlockSize(32, 2 + 16),
    "Q4_K": BlockSize(256, 2 + 2 + 12 + 128),
    "Q5_K": BlockSize(256, 2 + 2 + 12 + 32 + 128),
    "Q6_K": BlockSize(256, 128 + 64 + 16 + 2),
}

TILE = 1 << 18  # weights dequantised at a time, so that a tile's temporaries stay in cache


def row_bytes(encoding: str, cols: int) -> int:
    """Bytes of one row of `cols` weights. Raises ValueError when `cols` is not a whole number of blocks."""
    block = BLOCKS[encoding]
    if cols % block.elements:
        raise ValueError(f"{cols} columns are not a whole number of {encoding} blocks of {block.elements}")
    return cols // block.elements * block.nbytes


def dequantize(encoding: str, raw: NDArray[np.uint8], cols: int) -> NDArray[np.float32]:
    """[rows, row_bytes] uint8 -> [rows, cols] fp32. Raises ValueError when the sizes do not fit."""
    blocks = _checked(encoding, raw.shape, cols)
    raw = np.ascontiguousarray(raw)
    if encoding == "F32":
        return raw.view("<f4").astype(np.float32)
    if encoding == "F16":
        return raw.view("<f2").astype(np.float32)
    if encoding == "BF16":
        return (raw.view("<u2").astype(np.uint32) << 16).view(np.float32)
    raw = raw.reshape(-1, blocks.nbytes)  # [blocks, nbytes]
    out = _NUMPY[encoding](raw)
    return out.reshape(-1, cols)


def _half(raw: NDArray[np.uint8]) -> NDArray[np.float32]:
    """[n, 2] bytes -> [n, 1] fp32."""
    return np.ascontiguousarray(raw).view("<f2").astype(np.float32)


def _q8_0(raw: NDArray[np.uint8]) -> NDArray[np.float32]:
    w: NDArray[np.float32] = _half(raw[:, :2]) * raw[:, 2:].view(np.int8)
    return w


def _q4_0(raw: NDArray[np.uint8]) -> NDArray[np.float32]:
    nibbles = np.concatenate((raw[:, 2:] & 15, raw[:, 2:] >> 4), axis=1)
    w: NDArray[np.float32] = _half(raw[:, :2]) * (nibbles.view(np.int8) - np.int8(8))
    return w


def _scales_k(raw: NDArray[np.uint8]) -> tuple[NDArray[np.float32], NDArray[np.float32]]:
    """The factors and minima of a Q4_K or Q5_K block's eight groups, [n, 8, 1] each."""
    d, m = _half(raw[:, 0:2]), _half(raw[:, 2:4])
    low, mid, high = raw[:, 4:8], raw[:, 8:12], raw[:, 12:16]
    s = np.concatenate((low & 63, (high & 15) | (low >> 6 << 4)), axis=1)  # [n, 8]
    t = np.concatenate((mid & 63, (high >> 4) | (mid >> 6 << 4)), axis=1)
    return (d * s)[:, :, None], (m * t)[:, :, None]


def _q4_k(raw: NDArray[np.uint8]) -> NDArray[np.float32]:
    factor, minimum = _scales_k(raw)
    packed = raw[:, 16:].reshape(-1, 4, 1, 32)
    q = np.concatenate((packed & 15, packed >> 4), axis=2).reshape(-1, 8, 32)
    return factor * q - minimum


def _q5_k(raw: NDArray[np.uint8]) -> NDArray[np.float32]:
    factor, minimum = _scales_k(raw)
    packed = raw[:, 48:].reshape(-1, 4, 1, 32)
    low = np.concatenate((packed & 15, packed >> 4), axis=2).reshape(-1, 8, 32)
    fifth = raw[:, None, 16:48] >> np.arange(8, dtype=np.uint8)[:, None] & 1  # [n, 8, 32]
    w: NDArray[np.float32] = factor * (low | fifth << 4) - minimum
    return w


def _q6_k(raw: NDArray[np.uint8]) -> NDArray[np.float32]:
    d, s = _half(raw[:, 208:210]), raw[:, 192:208].view(np.int8)
    low = raw[:, :128].reshape(-1, 2, 1, 64)  # each half of the block: 64 bytes, both nibbles
    high = raw[:, 128:192].reshape(-1, 2, 1, 32)
    low = np.concatenate((low & 15, low >> 4), axis=2).reshape(-1, 2, 4, 32)
    high = np.concatenate([(high >> shift & 3) << 4 for shift in (0, 2, 4, 6)], axis=2)
    q = (low | high).view(np.int8) - np.int8(32)
    w: NDArray[np.float32] = (d * s)[:, :, None] * q.reshape(-1, 16, 16)
    return w


_NUMPY = {"Q8_0": _q8_0, "Q4_0": _q4_0, "Q4_K": _q4_k, "Q5_K": _q5_k, "Q6_K": _q6_k}


def dequantize_torch(
    encoding: str, raw: Tensor, cols: int, dtype: torch.dtype, out: Tensor | None = None
) -> Tensor:
    """[rows, row_bytes] uint8 -> [rows, cols] of `dtype`, on raw's device, without a full-size temporary.

    The arithmetic is fp32; `dtype` only rounds the result, which is written into `out`, if given.
    Raises ValueError when the sizes do not fit.
    """
    import torch

    blocks = _checked(encoding, tuple(raw.shape), cols)
    if blocks.elements == 1:
        plain = {"F32": torch.float32, "F16": torch.float16, "BF16": torch.bfloat16}[encoding]
        raw = raw.contiguous()
        if raw.storage_offset() % blocks.nbytes:
            raw = raw.clone()  # a typed view must start on a multiple of its element size
        plain_rows = raw.view(plain)
        return plain_rows.to(dtype) if out is None else out.copy_(plain_rows)
    expand = _TORCH[encoding]
    rows = raw.shape[0]
    if out is None:
        out = torch.empty(rows, cols, dtype=dtype, device=raw.device)
    step = max(1, TILE // cols)
    for row in range(0, rows, step):
        tile = raw[row : row + step].reshape(-1, blocks.nbytes)  # [blocks, nbytes]
        expand(tile, out[row : row + step].view(-1, blocks.elements))
    return out


def _words(raw: Tensor) -> Tensor:
    """A copy of [n, bytes] as int64 [n, bytes / 8]: eight bytes an operation."""
    import torch

    return raw.clone(memory_format=torch.contiguous_format).view(torch.int64)


def _torch_half(raw: Tensor) -> Tensor:
    """[n, 2] bytes -> [n, 1] fp32."""
    import torch

    return raw.clone(memory_format=torch.contiguous_format).view(torch.float16).float()


def _nibbles(raw: Tensor, group: int) -> Tensor:
    """[n, bytes] -> int8 [n, 2 * bytes]: of each `group` bytes first the low nibbles, then the high ones."""
    import torch

    words = _words(raw).view(-1, group // 8)
    mask = 0x0F0F0F0F0F0F0F0F
    return torch.stack((words & mask, words >> 4 & mask), dim=1).view(torch.int8).view(len(raw), -1)


def _torch_q8_0(raw: Tensor, out: Tensor) -> None:
    import torch

    torch.mul(raw[:, 2:].view(torch.int8), _torch_half(raw[:, :2]), out=out)


def _torch_q4_0(raw: Tensor, out: Tensor) -> None:
    import torch

    torch.mul(_nibbles(raw[:, 2:], 16).sub_(8), _torch_half(raw[:, :2]), out=out)


def _torch_scales_k(raw: Tensor) -> tuple[Tensor, Tensor]:
    """As `_scales_k`."""
    import torch

    head = raw[:, :16].clone(memory_format=torch.contiguous_format)
    dm = head[:, :4].view(torch.float16).float()  # [n, 2]
    low, mid, high = head.view(torch.int32)[:, 1:].unbind(1)  # four 6-bit numbers a word
    four, six, two = 0x0F0F0F0F, 0x3F3F3F3F, 0x30303030
    s = torch.stack((low & six, high & four | low >> 2 & two), dim=1).view(torch.int8)  # [n, 8]
    t = torch.stack((mid & six, high >> 4 & four | mid >> 2 & two), dim=1).view(torch.int8)
    return (s * dm[:, :1])[:, :, None], (t * dm[:, 1:])[:, :, None]


def _torch_q4_k(raw: Tensor, out: Tensor) -> None:
    import torch

    factor, minimum = _torch_scales_k(raw)
    q = _nibbles(raw[:, 16:], 32).view(-1, 8, 32)
    torch.sub(q * factor, minimum, out=out.view(-1, 8, 32))


def _torch_q5_k(raw: Tensor, out: Tensor) -> None:
    import torch

    factor, minimum = _torch_scales_k(raw)
    bits = _words(raw[:, 16:48]).view(-1, 4)  # bit g of byte j: of weight j of group g
    mask = 0x1010101010101010
    fifth = [bits << 4 - g & mask if g < 5 else bits >> g - 4 & mask for g in range(8)]
    high = torch.stack(fifth, dim=1).view(torch.int8).view(-1, 8, 32)
    q = _nibbles(raw[:, 48:], 32).view(-1, 8, 32).bitwise_or_(high)
    torch.sub(q * factor, minimum, out=out.view(-1, 8, 32))


def _torch_q6_k(raw: Tensor, out: Tensor) -> None:
    import torch

    d, s = _torch_half(raw[:, 208:210]), raw[:, 192:208].view(torch.int8)
    bits = _words(raw[:, 128:192]).view(-1, 4)  # each half of the block: 32 bytes of four 2-bit groups
    mask = 0x3030303030303030
    shifted = (bits << 4 & mask, bits << 2 & mask, bits & mask, bits >> 2 & mask)
    high = torch.stack(shifted, dim=1).view(torch.int8).view(len(raw), -1)  # [n, 256]
    q = _nibbles(raw[:, :128], 64).bitwise_or_(high).sub_(32)
    torch.mul(q.view(-1, 16, 16), (d * s)[:, :, None], out=out.view(-1, 16, 16))


_TORCH = {
    "Q8_0": _torch_q8_0,
    "Q4_0": _torch_q4_0,
    "Q4_K": _torch_q4_k,
    "Q5_K": _torch_q5_k,
    "Q6_K": _torch_q6_k,
}


def _checked(encoding: str, shape: tuple[int, ...], cols: int) -> BlockSize:
    if encoding not in BLOCKS:
        raise ValueError(f"encoding {encoding!r} is unknown; known are {', '.join(BLOCKS)}")
    if len(shape) != 2 or shape[1] != row_bytes(encoding, cols):
        raise ValueError(f"{encoding}: bytes of shape {list(shape)} do not hold rows of {cols} weights")
    return BLOCKS[encoding]
