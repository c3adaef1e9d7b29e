"""Grouped RMSNorm on CUDA: `reference.rms_norm` with a weight for each of some groups, in one launch.

The loop over groups that it stands for costs a launch each, of the CPU's time, which such small work does not
hide (SpecFormer, "Efficient Grouped RMS Norm").
"""

from __future__ import annotations

import torch
import triton
import triton.language as tl
from torch import Tensor

import edgespec.kernels.triton  # noqa: F401  # sets what compiling needs


@triton.jit
def _norm(x, weight, out, eps, groups, width, x_row, PADDED: tl.constexpr):
    """A row of one group: [width]."""
    row = tl.program_id(0).to(tl.int64)
    group = row % groups
    place = tl.arange(0, PADDED)
    inside = place < width
    numbers = tl.load(x + row * x_row + place, inside, other=0).to(tl.float32)
    scale = tl.rsqrt(tl.sum(numbers * numbers, 0) / width + eps)
    # Rounded before the weight comes, as in the reference; the product is then exact in fp32.
    scaled = (numbers * scale).to(out.dtype.element_ty).to(tl.float32)
    factor = tl.load(weight + group * width + place, inside, other=0).to(tl.float32)
    tl.store(out + row * width + place, (factor * scaled).to(out.dtype.element_ty), inside)


def grouped_rms_norm(x: Tensor, weight: Tensor, eps: float) -> Tensor:
    """x [..., groups, d], weight [groups, d] of the same type -> [..., groups, d]."""
    groups, width = weight.shape
    rows = x.reshape(-1, width)
    out = torch.empty_like(rows)
    if len(rows):
        padded = triton.next_power_of_2(width)
        _norm[(len(rows),)](
            rows, weight.contiguous(), out, eps, groups, width, rows.stride(0), PADDED=padded, num_warps=4
        )
    return out.view(x.shape)
