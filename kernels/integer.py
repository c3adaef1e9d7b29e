"""Matmul with int8 numbers and one scale a row of weights, in integers: every row count gives the same bits.

Activations are written as three base-256 digits, so that the whole product is one int8 matmul with int32
sums: these are exact, whatever their order, so a row's bits cannot depend on how many rows share the call.
A row's largest element gets 22 bits: a bf16 element down to 2^-14 of it is represented exactly, smaller ones
with that absolute error, which is less than what fp32 sums of the same products lose. So this is the
weight-only matmul, without quantised activations, for which three rows of int8 arithmetic take the place of
one in bf16; AMX and VNNI make up for it, and half the bytes come from memory (benchmarks/kernels.py).
"""

from __future__ import annotations

from functools import lru_cache
from typing import NamedTuple

import torch
from torch import Tensor

from edgespec.kernels.cpu import is_native
from edgespec.kernels.scratch import scratch

BITS = 22  # of the largest element, without its sign: the first digit stays within int8
MOST_COLUMNS = 2**31 // (128 * 127)  # more could overflow int32


class Digits(NamedTuple):
    """x [n, k] ~ step * (65536 high + 256 middle + low), as int8 [3n, k]: all high rows, then middle, low."""

    digits: Tensor
    step: Tensor  # [n] fp32, powers of two


def split(x: Tensor) -> Digits:
    """The digits of activations [n, k]. The step of a row with NaN or infinity is NaN."""
    n, k = x.shape
    x = x.float()
    largest = x.abs().amax(1)
    exponent = torch.frexp(largest).exponent.clamp_(min=-100)  # largest < 2^exponent
    one = torch.ones_like(largest)
    rest = (x * torch.ldexp(one, BITS - exponent)[:, None]).round_().to(torch.int32)
    digits = torch.empty((3, n, k), dtype=torch.int8)
    for place in (2, 1, 0):
        digits[place] = rest  # the conversion keeps the low eight bits, as a number in -128..127
        rest.add_(128).bitwise_right_shift_(8)
    step = torch.where(torch.isfinite(largest), torch.ldexp(one, exponent - BITS), torch.nan)
    return Digits(digits.view(3 * n, k), step)


def multiply(x: Digits, numbers: Tensor, scale: Tensor, dtype: torch.dtype) -> Tensor:
    """x [n, k] @ (numbers [m, k] int8 * scale [m] fp32)^T -> [n, m] of `dtype`."""
    n = len(x.step)
    sums = scratch("sums", (len(numbers), 3 * n), torch.int32)
    torch._int_mm(numbers, x.digits.t(), out=sums)  # the weights on the left, as in cpu.multiply
    high, middle, low = (
        scratch("fp32 sums", (len(numbers), 3, n), torch.float32).copy_(sums.view(-1, 3, n)).unbind(1)
    )
    # Products with powers of two are exact, so a fused multiply-add gives the same bits as two operations.
    low.add_(middle, alpha=256).add_(high, alpha=65536).mul_(scale[:, None])
    return torch.mul(low.t(), x.step[:, None]).to(dtype).contiguous()


@lru_cache
def available() -> bool:
    """Whether this CPU's int8 matmuls are fast and exact: without VNNI, oneDNN's saturate at 16 bits."""
    if not is_native(torch.int8):
        return False
    generator = torch.Generator().manual_seed(0)
    a = torch.randint(-128, 128, (64, 256), dtype=torch.int8, generator=generator)
    a[0], a[1] = 127, -128
    for n in (1, 3, 24, 96):
        b = torch.randint(-128, 128, (n, 256), dtype=torch.int8, generator=generator)
        b[0] = -128
        if not torch.equal(torch._int_mm(a, b.t()).double(), a.double() @ b.double().t()):
            return False
    return True
