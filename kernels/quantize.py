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

# Weights worked on at a time on a CPU: a block stays in a core's cache from one pass to the next.
_BLOCK = 2**19
_QUANTISED = 2**16
_TRIALS = (0.83, 0.89, 0.94, 1.0, 1.06, 1.15)  # int4 steps tried, relative to largest weight / 8


def quantize_int8(w: Tensor) -> tuple[Tensor, Tensor]:
    """[n, k] float -> (q [n, k] int8, scale [n] fp32).

    Raises ModelError when a weight is not finite.
    """
    n, k = w.shape
    q = torch.empty((n, k), dtype=torch.int8, device=w.device)
    scale = torch.empty(n, device=w.device)
    step = _rows_at_a_time(w, k, _QUANTISED)
    for row in range(0, n, step):
        x = w[row : row + step].float()
        largest = _finite(x.abs().amax(1))
        scale[row : row + step] = largest.div(127).bfloat16()
        q[row : row + step] = (x / _divisor(scale[row : row + step])[:, None]).round_().clamp_(-127, 127)
    return q, scale


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
    step = _rows_at_a_time(q, k, _BLOCK)
    for row in range(0, n, step):
        out[row : row + step].copy_(q[row : row + step]).mul_(scale[row : row + step])
    return out


def quantize_int4(w: Tensor) -> tuple[Tensor, Tensor]:
    """[n, k] float -> (packed [n, K/2] uint8, scale [n, K/64] bf16), K = padded_columns(k).

    Each group's scale is the best of six for its squared error. Raises like `quantize_int8`.
    """
    n, k = w.shape
    columns = padded_columns(k)
    packed = torch.empty((n, columns // 2), dtype=torch.uint8, device=w.device)
    scale = torch.empty((n, columns // GROUP), dtype=torch.bfloat16, device=w.device)
    step = _rows_at_a_time(w, columns, _QUANTISED)
    for row in range(0, n, step):
        x = F.pad(w[row : row + step].float(), (0, columns - k)).view(-1, GROUP)  # [groups, 64]
        steps = _best_int4_step(x).bfloat16()
        q = (x / _divisor(steps.float())).round_().clamp_(-8, 7).to(torch.int8).view(-1, columns)
        low, high = q[:, : columns // 2], q[:, columns // 2 :]
        # int8 multiplication wraps, which keeps the low four bits
        packed[row : row + step] = ((high * 16) | (low & 15)).view(torch.uint8)
        scale[row : row + step] = steps.view(-1, columns // GROUP)
    return packed, scale


def _best_int4_step(x: Tensor) -> Tensor:
    """[groups, 64] -> [groups, 1]: the step with the smallest squared error found.

    Numbers q that a trial step gives have their own best step, xq / qq, with which the squared error is
    xx - xq^2 / qq. So the trial whose numbers have the largest xq^2 / qq wins.
    """
    extreme = x.gather(1, x.abs().argmax(1, keepdim=True))  # signed: it becomes -8, the longer side
    inverse = -8 / _divisor(_finite(extreme))
    best = torch.zeros_like(extreme)
    most = torch.zeros_like(extreme)
    for factor in _TRIALS:
        q = (x * (inverse / factor)).round_().clamp_(-8, 7)
        qq = q.square().sum(1, keepdim=True).clamp_min_(1)
        xq = q.mul_(x).sum(1, keepdim=True)
        gain = xq.square().div_(qq)
        better = gain > most
        most = torch.where(better, gain, most)
        best = torch.where(better, xq / qq, best)
    return best


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
    step = _rows_at_a_time(packed, k, _BLOCK)
    numbers = torch.empty((min(step, n), k), dtype=torch.int8, device=packed.device)  # 16 q, in -128..112
    for row in range(0, n, step):
        rows = slice(row, min(row + step, n))
        block = numbers[: rows.stop - row]
        torch.mul(pairs[rows], 16, out=block[:, :half])
        torch.bitwise_and(pairs[rows], -16, out=block[:, half:])
        out[rows].copy_(block).view(-1, k // GROUP, GROUP).mul_(sixteenth[rows])
    return out[:, :columns]


def _rows_at_a_time(rows: Tensor, k: int, weights: int) -> int:
    return max(1, weights // k) if rows.device.type == "cpu" else max(1, len(rows))


def _divisor(scale: Tensor) -> Tensor:
    """The scale, or infinity where it is zero: those weights become 0."""
    return torch.where(scale == 0, torch.inf, scale)


def _finite(values: Tensor) -> Tensor:
    if not bool(torch.isfinite(values).all()):
        raise ModelError(
            "a weight is infinite or not a number, so it cannot be quantised; check the checkpoint"
        )
    return values
