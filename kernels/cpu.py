"""CPU kernels: attention over key blocks, and which arithmetic this CPU is good at."""

from __future__ import annotations

import os
import warnings
from contextlib import nullcontext
from functools import lru_cache

import torch
from torch import Tensor
from torch.nn import functional as F

from edgespec.kernels.reference import Mask
from edgespec.kernels.threads import alone

# Compiled matmuls that torch and oneDNN keep, each for one shape and number of rows. By default it is a
# thousand, hundreds of megabytes after some fifty replies, of which no ledger knows; a pass uses one for each
# of the shapes in a model. Heard when the first matmul is compiled.
for _cache in ("LRU_CACHE_CAPACITY", "ONEDNN_PRIMITIVE_CACHE_CAPACITY"):
    os.environ.setdefault(_cache, "32")

# The fused attention kernel splits query rows into blocks, and sums in another order for a block (or a
# remainder) of less than this many (measured: docs/exactness.md). Its block sizes are multiples of it.
QUERY_ROWS = 8

# Products of queries by keys that are not worth waking torch's threads for, which sleep while the compiled
# kernels multiply: a row of a 1b model took 14 microseconds with one thread, 140 with two.
ALONE = 2**21


def attend(q: Tensor, k: Tensor, v: Tensor, mask: Mask | None, scale: float) -> tuple[Tensor, Tensor]:
    """`reference.attend` by torch's fused CPU kernel (it accumulates in fp32, also for bf16)."""
    m = q.shape[2]
    bias = None if mask is None else mask.bias(q.dtype)
    if missing := -m % QUERY_ROWS:
        q = F.pad(q, (0, 0, 0, missing))
        if bias is not None and bias.shape[2] > 1:
            bias = F.pad(bias, (0, 0, 0, missing))
    kernel = torch.ops.aten._scaled_dot_product_flash_attention_for_cpu
    with alone() if q.numel() * k.shape[2] <= ALONE else nullcontext():
        out, lse = kernel(q, k, v, attn_mask=bias, scale=scale)
    out, lse = out[:, :, :m], lse[:, :, :m]
    if mask is not None and mask.blind is not None:  # for such a row the kernel reports out 0, lse 0
        lse = lse.masked_fill(mask.blind, -torch.inf)
    return out, lse


def multiply(x: Tensor, weight: Tensor) -> Tensor:
    """x [n, k] @ weight [m, k]^T -> [n, m], for few rows.

    The weights are the left operand: oneDNN then reads them at 26-34 GB/s for 1 to 32 rows of bf16, where
    `F.linear` reaches 18-23 (2 cores with AMX), with the same bits.
    """
    if len(x) == 1:
        return torch.mv(weight, x[0])[None]
    return torch.mm(weight, x.t()).t().contiguous()


NATIVE = {  # CPU features (torch.cpu.get_capabilities) that make a type's matmul fast
    torch.bfloat16: {"amx_bf16", "avx512_bf16", "bf16", "arm_bf16"},
    torch.float16: {"amx_fp16", "avx512_fp16", "fp16_arith", "arm_fp16_arith"},
    torch.int8: {"amx_int8", "avx512_vnni"},
}


@lru_cache
def matmul_dtype(dtype: torch.dtype) -> torch.dtype:
    """The arithmetic for weights of `dtype`: their own where the CPU has it, else fp32 block by block.

    Without AMX or AVX-512 BF16 a bf16 matmul of a tree's rows is 4 times slower than fp32 (measured).
    Decided by CPU features, never by timing: the choice shows in the last bits of the output.
    """
    return dtype if dtype == torch.float32 or is_native(dtype) else torch.float32


@lru_cache
def is_native(dtype: torch.dtype) -> bool:
    """Whether this CPU has fast matmuls of `dtype`."""
    if not hasattr(torch.cpu, "get_capabilities"):
        warnings.warn(
            f"torch {torch.__version__} cannot tell what this CPU computes fast, so weights are multiplied "
            "in float32, which may take several times longer; torch 2.11 or later can",
            RuntimeWarning,
            stacklevel=2,
        )
        return False
    known = torch.cpu.get_capabilities()
    narrow = known.get("architecture") == "x86_64" and "AVX512" not in torch.backends.cpu.get_cpu_capability()
    return not narrow and any(known.get(feature) for feature in NATIVE[dtype])
