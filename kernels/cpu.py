"""CPU kernels: attention over key blocks, and which arithmetic this CPU is good at."""

from __future__ import annotations

from functools import lru_cache

import torch
from torch import Tensor
from torch.nn import functional as F

# The fused attention kernel splits query rows into blocks, and sums in another order for a block (or a
# remainder) of less than this many (measured: docs/exactness.md). Its block sizes are multiples of it.
QUERY_ROWS = 8


def attend(q: Tensor, k: Tensor, v: Tensor, mask: Tensor | None, scale: float) -> tuple[Tensor, Tensor]:
    """`reference.attend` by torch's fused CPU kernel (it accumulates in fp32, also for bf16)."""
    m = q.shape[2]
    if missing := -m % QUERY_ROWS:
        q = F.pad(q, (0, 0, 0, missing))
        if mask is not None and mask.shape[2] > 1:
            mask = F.pad(mask, (0, 0, 0, missing), value=True)
    bias = None
    if mask is not None:
        bias = torch.zeros(mask.shape, dtype=q.dtype).masked_fill_(~mask, -torch.inf)
    out, lse = torch.ops.aten._scaled_dot_product_flash_attention_for_cpu(
        q, k, v, attn_mask=bias, scale=scale
    )
    if mask is not None:  # the kernel reports a row without keys as out 0, lse 0
        lse = torch.where(mask.any(-1).expand(lse.shape), lse, -torch.inf)
    return out[:, :, :m], lse[:, :, :m]


NATIVE = {  # CPU features (torch.cpu.get_capabilities) that make a type's matmul fast
    torch.bfloat16: {"amx_bf16", "avx512_bf16", "bf16", "arm_bf16"},
    torch.float16: {"amx_fp16", "avx512_fp16", "fp16_arith", "arm_fp16_arith"},
}


@lru_cache
def matmul_dtype(dtype: torch.dtype) -> torch.dtype:
    """The arithmetic for weights of `dtype`: their own where the CPU has it, else fp32 block by block.

    Without AMX or AVX-512 BF16 a bf16 matmul of a tree's rows is 4 times slower than fp32 (measured).
    Decided by CPU features, never by timing: the choice shows in the last bits of the output.
    """
    if dtype == torch.float32:
        return dtype
    known = getattr(torch.cpu, "get_capabilities", dict)()  # torch before 2.11 cannot tell: then fp32
    narrow = known.get("architecture") == "x86_64" and "AVX512" not in torch.backends.cpu.get_cpu_capability()
    return dtype if not narrow and any(known.get(f) for f in NATIVE[dtype]) else torch.float32
