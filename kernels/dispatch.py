"""The kernel for the device that a tensor is on."""

from __future__ import annotations

import importlib.util
from functools import lru_cache

import torch
from torch import Tensor

from edgespec.kernels import cpu, reference
from edgespec.kernels.reference import Mask


def attend(q: Tensor, k: Tensor, v: Tensor, mask: Mask | None, scale: float) -> tuple[Tensor, Tensor]:
    """See `reference.attend`."""
    if q.device.type == "cpu":
        return cpu.attend(q, k, v, mask, scale)
    if has_triton(q.device):
        from edgespec.kernels.triton import attention

        return attention.attend(q, k, v, mask, scale)
    return reference.attend(q, k, v, mask, scale)


@lru_cache
def has_triton(device: torch.device) -> bool:
    """Whether the Triton kernels run on `device`: the extra `cuda` is there, the GPU Ampere or newer."""
    if device.type != "cuda" or importlib.util.find_spec("triton") is None:
        return False
    return torch.cuda.get_device_capability(device) >= (8, 0)
