"""Kernels for CUDA, compared with `kernels.reference`. Importing this needs triton (the extra `cuda`)."""

from __future__ import annotations

import os

import torch
import triton.language as tl

# Fused multiply-adds, which is the default; while unset, Triton 3.9 warns that it will not stay so.
os.environ.setdefault("TRITON_DEFAULT_FP_FUSION", "1")

_TYPES = {torch.float32: tl.float32, torch.float16: tl.float16, torch.bfloat16: tl.bfloat16}


def operand_type(dtype: torch.dtype) -> tl.dtype:
    """What a dot product's operands are: x's own type, but Triton's interpreter has none of bf16."""
    interpreted = os.environ.get("TRITON_INTERPRET") == "1"
    return tl.float32 if interpreted and dtype == torch.bfloat16 else _TYPES[dtype]
