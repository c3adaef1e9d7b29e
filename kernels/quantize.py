"""The low-bit weight formats: int8 (row-scaled) and int4 (group-scaled), both symmetric.

int8: q [n, k] int8 in -127..127 and scale [n] fp32; w ~ q * scale.
int4: packed [n, K/2] uint8 and scale [n, K/64] bf16, where K is k rounded up to a multiple of `GROUP` = 64
(the extra columns are zero); w ~ q * scale with q in -8..7, one scale for 64 neighbouring columns.
Byte j of a row holds column j in its low nibble and column K/2 + j in its high nibble, both as two's
complement: a whole row unpacks with one multiplication, one mask and no shuffle, because as int8
`byte * 16` is 16 times the low number and `byte & 0xF0` 16 times the high one.

Why 64: relative rms error on Gaussian weights is 0.081 for groups of 32 (4.5 bits a weight), 0.090 for 64
(4.25) and 0.097 for 128 (4.125); Student-t(4): 0.112, 0.135, 0.159. Going from 64 to 32 leaves 0.81 of the
squared error for a quarter of a bit, where a quarter of a bit spent on finer numbers would leave 0.71, and
applying scales over runs of 32 is 2-4 times slower in torch. Taking the scale from the largest weight alone
gives 0.108 for 64.

Scales are bf16 numbers in both formats (int8 stores them as fp32), so that `q * scale` rounded once to the
output's type is the definition of the dequantised weight, and needs no fp32 pass for bf16.
"""

from __future__ import annotations

import torch
from torch import Tensor
from torch.nn import functional as F

from edgespec.errors import ModelError
from edgespec.kernels.low_bit import GROUP, padded_columns

_BLOCK = 2**19  # weights dequantised at a time on a CPU: a block stays in a core's cache between two passes
_TRIALS = (0.85, 0.92, 1.0, 1.08, 1.15)  # int4 steps tried, relative to largest weight / 8


def quantize_int8(w: Tensor) -> tuple[Tensor, Tensor]:
    """[n, k] float -> (q [n, k] int8, scale [n] fp32).

    Raises ModelError when a weight is not finite.
    """
    w = w.float()
    scale = _finite(w.abs().amax(1)).div(127).bfloat16().float()  # [n]
    q = (w / _divisor(scale)[:, None]).round_().clamp_(-127, 127)
    return q.to(torch.int8), scale


def dequantize_int8(
    q: Tensor, scale: Tensor, out_dtype: torch.dtype = torch.bfloat16, out: Tensor | None = None
) -> Tensor:
    """(q [n, k] int8, scale [n] fp32) -> [n, k] of `out_dtype`; written into `out` when it is given."""
    n, k = q.shape
    if out is None:
        out = torch.empty((n, k), dtype=out_dtype, device=q.device)
    if out_dtype == torch.float16:  # scales may lie outside its range
        return out.copy_(dequantize_int8(q, scale, torch.float32))
    scale = scale.to(out_dtype)[:, None]
    step = _rows_at_a_time(q, k)
    for row in range(0, n, step):
        out[row : row + step].copy_(q[row : row + step]).mul_(scale[row : row + step])
    return out


def quantize_int4(w: Tensor) -> tuple[Tensor, Tensor]:
    """[n, k] float -> (packed [n, K/2] uint8, scale [n, K/64] bf16), K = padded_columns(k).

    Each scale is the best of ten for its group's squared error: five steps around (largest weight) / -8,
    and for the numbers that each of them gives, the least-squares step. Raises ModelError when a weight is
    not finite.
    """
    n, k = w.shape
    columns = padded_columns(k)
    x = F.pad(w.float(), (0, columns - k)).view(-1, GROUP)  # [groups, 64]
    extreme = x.gather(1, x.abs().argmax(1, keepdim=True))  # signed: it becomes -8, the longer side
    _finite(extreme)
    best = torch.zeros_like(extreme)
    least = x.square().sum(1, keepdim=True)  # the error of a zero scale
    for factor in _TRIALS:
        step = (extreme / -8 * factor).bfloat16().float()
        q = _round_int4(x, step)
        fitted = (x * q).sum(1, keepdim=True).div_(q.square().sum(1, keepdim=True).clamp_min_(1))
        for candidate in (step, fitted.bfloat16().float()):
            error = _round_int4(x, candidate).mul_(candidate).sub_(x).square_().sum(1, keepdim=True)
            better = error < least
            least = torch.where(better, error, least)
            best = torch.where(better, candidate, best)
    q = _round_int4(x, best).to(torch.int8).view(n, columns)
    low, high = q[:, : columns // 2], q[:, columns // 2 :]
    packed = (high * 16) | (low & 15)  # int8 multiplication wraps, which keeps the low four bits
    return packed.view(torch.uint8), best.bfloat16().view(n, columns // GROUP)


def dequantize_int4(
    packed: Tensor,
    scale: Tensor,
    out_dtype: torch.dtype = torch.bfloat16,
    columns: int | None = None,
    out: Tensor | None = None,
) -> Tensor:
    """(packed [n, K/2] uint8, scale [n, K/64] bf16) -> [n, columns] of `out_dtype`.

    `columns` defaults to K; fewer give a view without the padding. `out`, when given, is [n, K].
    """
    n, half = packed.shape
    k = 2 * half
    if out is None:
        out = torch.empty((n, k), dtype=out_dtype, device=packed.device)
    if out_dtype == torch.float16:
        return out.copy_(dequantize_int4(packed, scale, torch.float32))[:, :columns]
    pairs = packed.view(torch.int8)
    sixteenth = scale.to(out_dtype).div(16).unsqueeze(2)  # [n, K/64, 1]; exact: a power of two
    step = _rows_at_a_time(packed, k)
    numbers = torch.empty((min(step, n), k), dtype=torch.int8, device=packed.device)  # 16 q, in -128..112
    for row in range(0, n, step):
        rows = slice(row, min(row + step, n))
        block = numbers[: rows.stop - row]
        torch.mul(pairs[rows], 16, out=block[:, :half])
        torch.bitwise_and(pairs[rows], -16, out=block[:, half:])
        out[rows].copy_(block).view(-1, k // GROUP, GROUP).mul_(sixteenth[rows])
    return out[:, :columns]


def _rows_at_a_time(stored: Tensor, k: int) -> int:
    return max(1, _BLOCK // k) if stored.device.type == "cpu" else max(1, len(stored))


def _round_int4(x: Tensor, scale: Tensor) -> Tensor:
    return (x / _divisor(scale)).round_().clamp_(-8, 7)


def _divisor(scale: Tensor) -> Tensor:
    """The scale, or infinity where it is zero: those weights become 0."""
    return torch.where(scale == 0, torch.inf, scale)


def _finite(values: Tensor) -> Tensor:
    if not bool(torch.isfinite(values).all()):
        raise ModelError(
            "a weight is infinite or not a number, so it cannot be quantised; check the checkpoint"
        )
    return values
