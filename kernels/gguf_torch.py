"""GGUF's blocks (`gguf_blocks` has their layouts) as torch tensors, on any device: the same fp32 operations
in the same order as ggml."""

from __future__ import annotations

import torch
from torch import Tensor

from edgespec.kernels.gguf_blocks import checked

TILE = 1 << 18  # weights dequantised at a time, so that a tile's temporaries stay in cache


def dequantize_torch(
    encoding: str, raw: Tensor, cols: int, dtype: torch.dtype, out: Tensor | None = None
) -> Tensor:
    """[rows, row_bytes] uint8 -> [rows, cols] of `dtype`, on raw's device, without a full-size temporary.

    The arithmetic is fp32; `dtype` only rounds the result, which is written into `out`, if given.
    Raises ValueError when the sizes do not fit.
    """
    blocks = checked(encoding, tuple(raw.shape), cols)
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
    return raw.clone(memory_format=torch.contiguous_format).view(torch.int64)


def _torch_half(raw: Tensor) -> Tensor:
    """[n, 2] bytes -> [n, 1] fp32."""
    return raw.clone(memory_format=torch.contiguous_format).view(torch.float16).float()


def _nibbles(raw: Tensor, group: int) -> Tensor:
    """[n, bytes] -> int8 [n, 2 * bytes]: of each `group` bytes first the low nibbles, then the high ones."""
    words = _words(raw).view(-1, group // 8)
    mask = 0x0F0F0F0F0F0F0F0F
    return torch.stack((words & mask, words >> 4 & mask), dim=1).view(torch.int8).view(len(raw), -1)


def _torch_q8_0(raw: Tensor, out: Tensor) -> None:
    torch.mul(raw[:, 2:].view(torch.int8), _torch_half(raw[:, :2]), out=out)


def _torch_q4_0(raw: Tensor, out: Tensor) -> None:
    torch.mul(_nibbles(raw[:, 2:], 16).sub_(8), _torch_half(raw[:, :2]), out=out)


def _torch_five(raw: Tensor) -> Tensor:
    """As `_five`."""
    bits = torch.arange(8, dtype=torch.uint8, device=raw.device)
    fifth = (raw[:, :4, None] >> bits & 1).view(len(raw), 32)
    return _nibbles(raw[:, 4:], 16).bitwise_or_((fifth << 4).view(torch.int8))


def _torch_q4_1(raw: Tensor, out: Tensor) -> None:
    torch.add(_nibbles(raw[:, 4:], 16) * _torch_half(raw[:, :2]), _torch_half(raw[:, 2:4]), out=out)


def _torch_q5_0(raw: Tensor, out: Tensor) -> None:
    torch.mul(_torch_five(raw[:, 2:]).sub_(16), _torch_half(raw[:, :2]), out=out)


def _torch_q5_1(raw: Tensor, out: Tensor) -> None:
    torch.add(_torch_five(raw[:, 4:]) * _torch_half(raw[:, :2]), _torch_half(raw[:, 2:4]), out=out)


def _torch_q3_k(raw: Tensor, out: Tensor) -> None:
    scales = raw[:, 96:108]
    low = torch.cat((scales[:, :8] & 15, scales[:, :8] >> 4), dim=1)  # [n, 16]
    high = torch.cat([scales[:, 8:] >> shift & 3 for shift in (0, 2, 4, 6)], dim=1)
    s = (low | high << 4).view(torch.int8).sub_(32)
    two = torch.stack([raw[:, 32:96].view(-1, 2, 32) >> shift & 3 for shift in (0, 2, 4, 6)], dim=2)
    third = torch.stack([raw[:, :32] >> bit & 1 for bit in range(8)], dim=1)  # [n, 8, 32]
    q = (two.view(-1, 8, 32) | third << 2).view(torch.int8).sub_(4)
    factor = (_torch_half(raw[:, 108:]) * s)[:, :, None]
    torch.mul(q.view(-1, 16, 16), factor, out=out.view(-1, 16, 16))


def _torch_scales_k(raw: Tensor) -> tuple[Tensor, Tensor]:
    """As `_scales_k`."""
    head = raw[:, :16].clone(memory_format=torch.contiguous_format)
    dm = head[:, :4].view(torch.float16).float()  # [n, 2]
    low, mid, high = head.view(torch.int32)[:, 1:].unbind(1)  # four 6-bit numbers a word
    four, six, two = 0x0F0F0F0F, 0x3F3F3F3F, 0x30303030
    s = torch.stack((low & six, high & four | low >> 2 & two), dim=1).view(torch.int8)  # [n, 8]
    t = torch.stack((mid & six, high >> 4 & four | mid >> 2 & two), dim=1).view(torch.int8)
    return (s * dm[:, :1])[:, :, None], (t * dm[:, 1:])[:, :, None]


def _torch_q4_k(raw: Tensor, out: Tensor) -> None:
    factor, minimum = _torch_scales_k(raw)
    q = _nibbles(raw[:, 16:], 32).view(-1, 8, 32)
    torch.sub(q * factor, minimum, out=out.view(-1, 8, 32))


def _torch_q5_k(raw: Tensor, out: Tensor) -> None:
    factor, minimum = _torch_scales_k(raw)
    bits = _words(raw[:, 16:48]).view(-1, 4)  # bit g of byte j: of weight j of group g
    mask = 0x1010101010101010
    fifth = [bits << 4 - g & mask if g < 5 else bits >> g - 4 & mask for g in range(8)]
    high = torch.stack(fifth, dim=1).view(torch.int8).view(-1, 8, 32)
    q = _nibbles(raw[:, 48:], 32).view(-1, 8, 32).bitwise_or_(high)
    torch.sub(q * factor, minimum, out=out.view(-1, 8, 32))


def _torch_q6_k(raw: Tensor, out: Tensor) -> None:
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
    "Q4_1": _torch_q4_1,
    "Q5_0": _torch_q5_0,
    "Q5_1": _torch_q5_1,
    "Q3_K": _torch_q3_k,
    "Q4_K": _torch_q4_k,
    "Q5_K": _torch_q5_k,
    "Q6_K": _torch_q6_k,
}
