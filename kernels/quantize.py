"""The low-bit weight formats: int8 and int4. Both are int8 numbers times one scale a row.

int8: q [n, k] int8 in -127..127 and scale [n] fp32; w ~ q * scale.
int4: data [n, bytes] uint8 and scale [n] fp32; K is k rounded up to a multiple of `GROUP` = 64 (the extra
columns are zero); w ~ q * m * scale with q in -8..7 and, for 64 neighbouring columns, one
multiplier m in -15..15, so that q * m is an int8 number again: after unpacking, one integer matmul serves
both formats (`integer.py`). A row of data is its packed numbers [K/2], its multipliers [K/64] int8, and zeros
up to a multiple of 8 bytes. Byte j holds column j in its low nibble and column K/2 + j in its high nibble,
both as q + 8: a whole row unpacks eight bytes at a time, with no shuffle.

Two levels of scales are QServe's idea (arXiv 2405.04532, section 4.1). Relative rms error on Gaussian weights
is 0.092, where groups with a bf16 scale each have 0.090 and cost 4.25 instead of 4.13 bits a weight;
Student-t(4): 0.140 against 0.134. Taking the multiplier from the largest weight alone gives 0.108.

Scales are bf16 numbers, stored as fp32: `number * scale` is then exact in fp32, and rounded once to the
output's type it is the definition of the dequantised weight.

Quantising is defined by `reference_int8` and `reference_int4`, and done by the compiled kernels where they
are: the same bits, int4 in a sixth of the time.
"""

from __future__ import annotations

import torch
from torch import Tensor
from torch.nn import functional as F

from edgespec.errors import ModelError
from edgespec.kernels import compiled
from edgespec.kernels.low_bit import GROUP, int4_row_bytes, padded_columns

MULTIPLIER = 15  # largest of a group's multipliers: -8 * 15 is still an int8 number

# Weights worked on at a time on a CPU: a block stays in a core's cache from one pass to the next.
_BLOCK = 2**19
_QUANTISED = 2**16
_TRIALS = (0.83, 0.89, 0.94, 1.0, 1.06, 1.15)  # int4 steps tried, relative to largest weight / 8
_TINY = 1e-30  # where the largest weight of a group is smaller, it becomes zeros


def quantize_int8(w: Tensor) -> tuple[Tensor, Tensor]:
    """[n, k] float -> (q [n, k] int8, scale [n] fp32).

    Raises ModelError when a weight is not finite.
    """
    return _compiled(w, "I8") or reference_int8(w)


def quantize_int4(w: Tensor) -> tuple[Tensor, Tensor]:
    """[n, k] float -> (data [n, int4_row_bytes(k)] uint8, scale [n] fp32). Raises like `quantize_int8`."""
    return _compiled(w, "U8") or reference_int4(w)


def _compiled(w: Tensor, encoding: str) -> tuple[Tensor, Tensor] | None:
    """None where torch has to do it: also when a weight is not finite, which it then says."""
    if w.device.type != "cpu" or w.dtype not in compiled.SOURCES or compiled.unavailable():
        return None
    return compiled.quantize(w, encoding)


def reference_int8(w: Tensor) -> tuple[Tensor, Tensor]:
    """`quantize_int8` with torch's operations, on any device."""
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


def reference_int4(w: Tensor) -> tuple[Tensor, Tensor]:
    """`quantize_int4` with torch's operations, on any device.

    Each group's step is the best of six for its squared error, rounded to a multiple of the row's scale.
    """
    n, k = w.shape
    columns = padded_columns(k)
    half, groups = columns // 2, columns // GROUP
    data = torch.zeros((n, int4_row_bytes(k)), dtype=torch.uint8, device=w.device)
    scale = torch.empty(n, device=w.device)
    step = _rows_at_a_time(w, columns, _QUANTISED)
    for row in range(0, n, step):
        rows = slice(row, row + step)
        x = F.pad(w[rows].float(), (0, columns - k)).view(-1, groups, GROUP)
        steps = _best_int4_step(x.view(-1, GROUP)).view(-1, groups, 1)  # [rows, groups, 1], signed
        scale[rows] = steps.abs().amax((1, 2)).div(MULTIPLIER).bfloat16()
        unit = _divisor(scale[rows])[:, None, None]
        m = (steps / unit).round_().clamp_(-MULTIPLIER, MULTIPLIER)
        m = torch.where(m == 0, 1.0, m)  # a step far below the row's largest
        q = (x / (unit * m)).round_().clamp_(-8, 7).add_(8).to(torch.uint8).view(-1, columns)
        data[rows, :half] = q[:, half:] * 16 + q[:, :half]
        data[rows, half : half + groups] = m.squeeze(2).to(torch.int8).view(torch.uint8)
    return data, scale


def _best_int4_step(x: Tensor) -> Tensor:
    """[groups, 64] -> [groups, 1]: the step with the smallest squared error found; 0 for tiny weights alone.

    Numbers q that a trial step gives have their own best step, xq / qq, with which the squared error is
    xx - xq^2 / qq. So the trial whose numbers have the largest xq^2 / qq wins. A group is first scaled by a
    power of two, so that its squares fit. Its sums are exact, whatever their order: numbers that are not 0
    belong to weights of at least 1/20 of the largest, and fp64 has room for 64 fp32 products of theirs.
    """
    extreme = x.gather(1, x.abs().argmax(1, keepdim=True))  # signed: it becomes -8, the longer side
    power = (_finite(extreme).view(torch.int32) & 0x7F800000).view(torch.float32)  # the largest one below
    power = torch.where(extreme.abs() < _TINY, 0.0, power)
    x = x / _divisor(power)
    inverse = -8 / _divisor(extreme / _divisor(power))
    best = torch.zeros_like(extreme)
    most = torch.zeros_like(extreme)
    for factor in _TRIALS:
        q = (x * (inverse / factor)).round_().clamp_(-8, 7)
        qq = q.square().sum(1, keepdim=True).clamp_min_(1)
        xq = q.mul_(x).sum(1, keepdim=True, dtype=torch.float64)
        gain = xq.float().square_().div_(qq)
        better = gain > most
        most = torch.where(better, gain, most)
        best = torch.where(better, xq.div_(qq).float(), best)
    return best.mul_(power)


def unpack_int4(data: Tensor, out: Tensor | None = None) -> Tensor:
    """data [n, bytes of a row] uint8 -> its numbers q * m, int8 [n, K]; written into `out` if it is given."""
    packed, multipliers = split_int4(data)
    multipliers = multipliers.contiguous()  # broadcasting them is then twice as fast
    columns, groups = 2 * packed.shape[1], multipliers.shape[1]
    if out is None:
        out = torch.empty((len(data), columns), dtype=torch.int8, device=data.device)
    if packed.storage_offset() % 8:
        packed = packed.clone(memory_format=torch.contiguous_format)
    words, nibbles = packed.view(torch.int64), 0x0F0F0F0F0F0F0F0F
    low, high = out.view(torch.int64).chunk(2, dim=1)
    torch.bitwise_and(words, nibbles, out=low)
    torch.bitwise_right_shift(words, 4, out=high).bitwise_and_(nibbles)
    # (q + 8) m - 8 m, where int8 arithmetic wraps and wraps back
    numbers = out.view(-1, groups, GROUP).mul_(multipliers[:, :, None])
    numbers.sub_((multipliers * 8)[:, :, None])
    return out


def split_int4(data: Tensor) -> tuple[Tensor, Tensor]:
    """data [n, bytes of a row] -> packed numbers [n, K/2] uint8, multipliers [n, K/64] int8 (views)."""
    groups = data.shape[1] // (GROUP // 2 + 1)  # the rest, at most 7 bytes, is none
    half = groups * GROUP // 2
    return data[:, :half], data[:, half : half + groups].view(torch.int8)


def dequantize_int4(
    data: Tensor,
    scale: Tensor,
    out_dtype: torch.dtype = torch.bfloat16,
    columns: int | None = None,
    out: Tensor | None = None,
) -> Tensor:
    """(data [n, bytes of a row] uint8, scale [n] fp32) -> [n, columns] of `out_dtype`.

    `columns` defaults to K; fewer give a view without the padding. `out`, when given, is [n, K].
    """
    k = 2 * split_int4(data)[0].shape[1]
    if out is None:
        out = torch.empty((len(data), k), dtype=out_dtype, device=data.device)
    step = _rows_at_a_time(data, k, _BLOCK)
    for row in range(0, len(data), step):
        rows = slice(row, row + step)
        dequantize_int8(unpack_int4(data[rows]), scale[rows], out_dtype, out=out[rows])
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
