"""Weight-only matmul with the stored int8 and int4 formats (`kernels.quantize`) on CUDA.

Numbers are unpacked in registers, multiplied in x's type (int8 numbers are exact in it) and summed in fp32;
the row's scale comes last. Weights are read once, as stored.
"""

from __future__ import annotations

import torch
import triton
import triton.language as tl
from torch import Tensor

from edgespec.kernels.low_bit import GROUP, padded_columns
from edgespec.kernels.triton import operand_type

# Columns are taken this many at a time: half an int4 row is a multiple of it, so a step never has two groups.
STEP: tl.constexpr = tl.constexpr(GROUP // 2)


@triton.jit
def _numbers(data, rows, inside, first, columns, stride, half, INT4: tl.constexpr, HIGH: tl.constexpr):
    """Weight numbers [rows, columns] as fp32; `columns` count from `first`, a multiple of STEP."""
    if INT4:
        packed = tl.load(data + rows[:, None] * stride + (first + columns)[None, :], inside[:, None], other=0)
        group = (first + (half if HIGH else 0)) // (2 * STEP)
        m = tl.load(data + rows * stride + half + group, inside, other=0).to(tl.int8, bitcast=True)
        q = (packed >> 4 if HIGH else packed & 15).to(tl.float32) - 8
        return q * m.to(tl.float32)[:, None]
    else:
        kept = inside[:, None] & ((first + columns) < half)[None, :]  # `half` is k
        q = tl.load(data + rows[:, None] * stride + (first + columns)[None, :], kept, other=0)
        return q.to(tl.int8, bitcast=True).to(tl.float32)


@triton.jit
def _gemm(
    x, data, scale, out, n, m, k, x_stride, stride, half,
    INT4: tl.constexpr, ROWS: tl.constexpr, OUT: tl.constexpr, TYPE: tl.constexpr,
):  # fmt: skip
    """A tile [ROWS, OUT] of x [n, k] @ W^T [k, m]; steps run over bytes of a weight row."""
    row = tl.program_id(1) * ROWS + tl.arange(0, ROWS)
    col = tl.program_id(0) * OUT + tl.arange(0, OUT)
    weights = col.to(tl.int64)  # a matrix may have more than 2^31 bytes
    columns = tl.arange(0, STEP)
    sums = tl.zeros((ROWS, OUT), tl.float32)
    inputs = x + row.to(tl.int64)[:, None] * x_stride
    for first in range(0, half, STEP):
        at = first + columns
        part = tl.load(inputs + at[None, :], (row < n)[:, None] & (at < k)[None, :], other=0)
        w = _numbers(data, weights, col < m, first, columns, stride, half, INT4, False)
        sums = tl.dot(part.to(TYPE), tl.trans(w.to(TYPE)), sums, input_precision="ieee")
        if INT4:
            at = half + first + columns
            part = tl.load(inputs + at[None, :], (row < n)[:, None] & (at < k)[None, :], other=0)
            w = _numbers(data, weights, col < m, first, columns, stride, half, INT4, True)
            sums = tl.dot(part.to(TYPE), tl.trans(w.to(TYPE)), sums, input_precision="ieee")
    sums *= tl.load(scale + col, col < m, other=0)[None, :]
    target = out + row.to(tl.int64)[:, None] * m + col[None, :]
    tl.store(target, sums.to(out.dtype.element_ty), (row < n)[:, None] & (col < m)[None, :])


@triton.jit
def _gemv(x, data, scale, out, m, k, stride, half, INT4: tl.constexpr, OUT: tl.constexpr):
    """OUT elements of x [k] @ W^T [k, m], without tensor cores: one row has nothing for them."""
    col = tl.program_id(0) * OUT + tl.arange(0, OUT)
    weights = col.to(tl.int64)
    columns = tl.arange(0, STEP)
    sums = tl.zeros((OUT, STEP), tl.float32)
    for first in range(0, half, STEP):
        at = first + columns
        part = tl.load(x + at, at < k, other=0).to(tl.float32)
        sums += _numbers(data, weights, col < m, first, columns, stride, half, INT4, False) * part[None, :]
        if INT4:
            at = half + first + columns
            part = tl.load(x + at, at < k, other=0).to(tl.float32)
            sums += _numbers(data, weights, col < m, first, columns, stride, half, INT4, True) * part[None, :]
    total = tl.sum(sums, 1) * tl.load(scale + col, col < m, other=0)
    tl.store(out + col, total.to(out.dtype.element_ty), col < m)


def linear(x: Tensor, data: Tensor, scale: Tensor, exact: bool) -> Tensor:
    """x [n, k] @ W^T -> [n, m], in x's type.

    W is int8 (data [m, k] int8) or int4 (data [m, bytes of a row] uint8), with scale [m] fp32. With `exact`
    every row is computed by the same tiles, whatever n.
    """
    n, k = x.shape
    m = len(data)
    int4 = data.dtype == torch.uint8
    half = padded_columns(k) // 2 if int4 else k
    x = x if x.stride(1) == 1 else x.contiguous()
    out = torch.empty((n, m), dtype=x.dtype, device=x.device)
    raw = data.view(torch.uint8)
    if n == 1 and not exact:
        _gemv[(triton.cdiv(m, 16),)](x, raw, scale, out, m, k, data.stride(0), half, INT4=int4, OUT=16)
        return out
    rows = 16 if exact or n <= 16 else 32 if n <= 32 else 64
    grid = (triton.cdiv(m, 64), triton.cdiv(n, rows))
    _gemm[grid](
        x, raw, scale, out, n, m, k, x.stride(0), data.stride(0), half,
        INT4=int4, ROWS=rows, OUT=64, TYPE=operand_type(x.dtype),
    )  # fmt: skip
    return out
