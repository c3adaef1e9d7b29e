"""GGUF's block encodings: how many bytes they take, and how they become numbers.

A row of a matrix is a run of blocks; each block holds `elements` weights in `nbytes` bytes. Layouts, in
order of bytes (d, m: fp16; little-endian):

    Q8_0   32: d, 32 x int8                                 w = d q
    Q4_0   32: d, 16 bytes (low nibbles first)              w = d (q - 8)
    Q4_1   32: d, m, 16 bytes                               w = d q + m
    Q5_0   32: d, 4 bytes of fifth bits, 16 bytes           w = d (q - 16)
    Q5_1   32: d, m, 4 bytes of fifth bits, 16 bytes        w = d q + m
    Q3_K  256: 32 bytes of third bits, 64 of low ones,      w = (d (s - 32)) (q - 4)    s per 16 weights
               12 of 6-bit scales, d
    Q4_K  256: d, m, 12 bytes of 6-bit scales and minima,   w = (d s) q - (m t)   s, t per 32 weights
               128 bytes of nibbles
    Q5_K  256: as Q4_K, with 32 bytes of fifth bits before the nibbles
    Q6_K  256: 128 bytes of low nibbles, 64 of high bits,   w = (d s) (q - 32)    s per 16 weights
               16 x int8 scales, d

Source: ggml's block structs (ggml-common.h). `dequantize` does the same fp32 operations in the same order as
ggml, so its results are equal bit for bit. Importing this module needs no torch.
"""

from __future__ import annotations

from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray


class BlockSize(NamedTuple):
    elements: int  # weights in one block
    nbytes: int


BLOCKS: dict[str, BlockSize] = {
    "F32": BlockSize(1, 4),
    "F16": BlockSize(1, 2),
    "BF16": BlockSize(1, 2),
    "Q8_0": BlockSize(32, 2 + 32),
    "Q4_0": BlockSize(32, 2 + 16),
    "Q4_1": BlockSize(32, 2 + 2 + 16),
    "Q5_0": BlockSize(32, 2 + 4 + 16),
    "Q5_1": BlockSize(32, 2 + 2 + 4 + 16),
    "Q3_K": BlockSize(256, 32 + 64 + 12 + 2),
    "Q4_K": BlockSize(256, 2 + 2 + 12 + 128),
    "Q5_K": BlockSize(256, 2 + 2 + 12 + 32 + 128),
    "Q6_K": BlockSize(256, 128 + 64 + 16 + 2),
}


def row_bytes(encoding: str, cols: int) -> int:
    """Bytes of one row of `cols` weights. Raises ValueError when `cols` is not a whole number of blocks."""
    block = BLOCKS[encoding]
    if cols % block.elements:
        raise ValueError(f"{cols} columns are not a whole number of {encoding} blocks of {block.elements}")
    return cols // block.elements * block.nbytes


def dequantize(encoding: str, raw: NDArray[np.uint8], cols: int) -> NDArray[np.float32]:
    """[rows, row_bytes] uint8 -> [rows, cols] fp32. Raises ValueError when the sizes do not fit."""
    blocks = checked(encoding, raw.shape, cols)
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


def _nibbles(raw: NDArray[np.uint8]) -> NDArray[np.uint8]:
    """[n, bytes] -> [n, 2 * bytes]: the low nibbles, then the high ones."""
    return np.concatenate((raw & 15, raw >> 4), axis=1)


def _q8_0(raw: NDArray[np.uint8]) -> NDArray[np.float32]:
    w: NDArray[np.float32] = _half(raw[:, :2]) * raw[:, 2:].view(np.int8)
    return w


def _q4_0(raw: NDArray[np.uint8]) -> NDArray[np.float32]:
    w: NDArray[np.float32] = _half(raw[:, :2]) * (_nibbles(raw[:, 2:]).view(np.int8) - np.int8(8))
    return w


def _five(raw: NDArray[np.uint8]) -> NDArray[np.int8]:
    """4 bytes of fifth bits and 16 of nibbles -> [n, 32]."""
    fifth = np.unpackbits(raw[:, :4], axis=1, bitorder="little") << 4
    numbers: NDArray[np.int8] = (_nibbles(raw[:, 4:]) | fifth).view(np.int8)
    return numbers


def _q4_1(raw: NDArray[np.uint8]) -> NDArray[np.float32]:
    w: NDArray[np.float32] = _half(raw[:, :2]) * _nibbles(raw[:, 4:]) + _half(raw[:, 2:4])
    return w


def _q5_0(raw: NDArray[np.uint8]) -> NDArray[np.float32]:
    w: NDArray[np.float32] = _half(raw[:, :2]) * (_five(raw[:, 2:]) - np.int8(16))
    return w


def _q5_1(raw: NDArray[np.uint8]) -> NDArray[np.float32]:
    w: NDArray[np.float32] = _half(raw[:, :2]) * _five(raw[:, 4:]) + _half(raw[:, 2:4])
    return w


def _q3_k(raw: NDArray[np.uint8]) -> NDArray[np.float32]:
    scales = raw[:, 96:108]
    low = np.concatenate((scales[:, :8] & 15, scales[:, :8] >> 4), axis=1)  # [n, 16]
    high = np.concatenate([scales[:, 8:] >> shift & 3 for shift in (0, 2, 4, 6)], axis=1)
    s = (low | high << 4).view(np.int8) - np.int8(32)
    two = raw[:, 32:96].reshape(-1, 2, 1, 32) >> np.array([0, 2, 4, 6], dtype=np.uint8)[:, None] & 3
    third = raw[:, None, :32] >> np.arange(8, dtype=np.uint8)[:, None] & 1  # [n, 8, 32]
    q = (two.reshape(-1, 8, 32) | third << 2).view(np.int8) - np.int8(4)
    w: NDArray[np.float32] = (_half(raw[:, 108:]) * s)[:, :, None] * q.reshape(-1, 16, 16)
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


_NUMPY = {
    "Q8_0": _q8_0, "Q4_0": _q4_0, "Q4_1": _q4_1, "Q5_0": _q5_0, "Q5_1": _q5_1, "Q3_K": _q3_k, "Q4_K": _q4_k,
    "Q5_K": _q5_k, "Q6_K": _q6_k,
}  # fmt: skip


def checked(encoding: str, shape: tuple[int, ...], cols: int) -> BlockSize:
    """Raises ValueError when bytes of this shape are no rows of `cols` weights."""
    if encoding not in BLOCKS:
        raise ValueError(f"encoding {encoding!r} is unknown; known are {', '.join(BLOCKS)}")
    if len(shape) != 2 or shape[1] != row_bytes(encoding, cols):
        raise ValueError(f"{encoding}: bytes of shape {list(shape)} do not hold rows of {cols} weights")
    return BLOCKS[encoding]
