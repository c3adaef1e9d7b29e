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

_TILE = 2**22  # weights rearranged at a time, which takes some 6 bytes each


def available(rows: int) -> bool:
    """Whether a block of so many rows can be arranged, with this torch."""
    return rows % DRAFT_ROWS == 0 and hasattr(torch.ops.aten, "_weight_int4pack_mm_for_cpu")


def arrange(data: Tensor, scale: Tensor) -> tuple[Tensor, Tensor]:
    """int4 (data [n, bytes of a row], scale [n]) -> (packed [n, K/2] uint8, scales and zeros [K/64, n, 2]).

    The latter are bf16. A group's scale is rounded to bf16: weights may be off by 2^-9.
    """
    packed, multipliers = split_int4(data)
    n, half = packed.shape
    out = torch.empty((n, half), dtype=torch.uint8)
    step = max(64, _TILE // (2 * half) // 64 * 64)  # blocks of 64 rows are arranged alike wherever they are
    for row in range(0, n, step):
        tile = packed[row : row + step]
        numbers = torch.cat((tile & 15, tile >> 4), dim=1).to(torch.int32)  # [rows, K], q + 8
        out[row : row + step] = torch.ops.aten._convert_weight_to_int4pack_for_cpu(numbers, 2)
    scales = torch.zeros((2 * half // GROUP, n, 2), dtype=torch.bfloat16)
    scales[:, :, 0] = (multipliers * scale[:, None]).t()
    return out, scales


def multiply(x: Tensor, packed: Tensor, scales: Tensor) -> Tensor:
    """x [n, k] @ (what `arrange` was given)^T -> [n, rows], in x's type."""
    dtype = (
        torch.bfloat16 if x.dtype == torch.bfloat16 else torch.float32
    )  # fp16 has no room for small scales
    padded = F.pad(x, (0, 2 * packed.shape[1] - x.shape[1])).to(dtype).contiguous()
    out: Tensor = torch.ops.aten._weight_int4pack_mm_for_cpu(padded, packed, GROUP, scales.to(dtype))
    return out.to(x.dtype)
