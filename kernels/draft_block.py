"""int4 weights arranged in memory for drafting: torch's int4 kernel, the fastest for one to some ten rows.

Its cost grows with every row, and its sums run in another order than those of `integer`, so it is for drafts
only, whose bits nobody relies on. It wants its own order of bytes and a scale and a zero for each group: 4.5
bits a weight instead of 4.13, made once when the weights are loaded.
"""

from __future__ import annotations

import torch
from torch import Tensor
from torch.nn import functional as F

from edgespec.kernels.low_bit import DRAFT_ROWS, GROUP
from edgespec.kernels.quantize import split_int4
from edgespec.kernels.scratch import scratch

_TILE = 2**20  # weights rearranged at a time, which takes some 6 bytes each


def available(rows: int) -> bool:
    """Whether a block of so many rows can be arranged, with this torch."""
    return rows % DRAFT_ROWS == 0 and hasattr(torch.ops.aten, "_weight_int4pack_mm_for_cpu")


def arrange(data: Tensor, scale: Tensor) -> tuple[Tensor, Tensor]:
    """int4 (data [n, bytes of a row], scale [n]) -> (packed [n, K/2] uint8, scales and zeros [K/64, n, 2]).

    The latter are bf16. A group's scale is rounded to bf16: weights may be off by 2^-9.
    """
    packed, multipliers = split_int4(data)
    n, half = packed.shape
    groups = 2 * half // GROUP
    # One piece of memory: many middling ones among short-lived others leave holes that nobody counts.
    room = torch.empty(n * (half + 4 * groups), dtype=torch.uint8)
    out, scales = room[: n * half].view(n, half), room[n * half :].view(torch.bfloat16).view(groups, n, 2)
    step = max(64, _TILE // (2 * half) // 64 * 64)  # blocks of 64 rows are arranged alike wherever they are
    numbers = scratch("weights", (min(step, n), 2 * half), torch.int32)  # q + 8
    for row in range(0, n, step):
        tile = packed[row : row + step]
        part = numbers[: len(tile)]
        part[:, :half] = tile & 15
        part[:, half:] = tile >> 4
        out[row : row + step] = torch.ops.aten._convert_weight_to_int4pack_for_cpu(part, 2)
    scales[:, :, 0] = (multipliers * scale[:, None]).t()
    scales[:, :, 1] = 0
    return out, scales


def multiply(x: Tensor, packed: Tensor, scales: Tensor) -> Tensor:
    """x [n, k] @ (what `arrange` was given)^T -> [n, rows], in x's type."""
    dtype = (
        torch.bfloat16 if x.dtype == torch.bfloat16 else torch.float32
    )  # fp16 has no room for small scales
    padded = F.pad(x, (0, 2 * packed.shape[1] - x.shape[1])).to(dtype).contiguous()
    out: Tensor = torch.ops.aten._weight_int4pack_mm_for_cpu(padded, packed, GROUP, scales.to(dtype))
    return out.to(x.dtype)
