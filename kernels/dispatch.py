"""The kernel for the device that a tensor is on."""

from __future__ import annotations

import importlib.util
from functools import lru_cache

import torch
from torch import Tensor

from edgespec.kernels import cpu, elementwise, reference
from edgespec.kernels.reference import Mask

MOST_WIDTH = 2**14  # of a norm that a Triton program holds
ONE_THREAD = 2**15 - 1  # numbers that torch adds in one thread (its GRAIN_SIZE is one more)
MOST_PIECES = 32  # of a sum: beyond, a prompt's rows are worth all threads


def attend(q: Tensor, k: Tensor, v: Tensor, mask: Mask | None, scale: float) -> tuple[Tensor, Tensor]:
    """See `reference.attend`."""
    if q.device.type == "cpu":
        return cpu.attend(q, k, v, mask, scale)
    if has_triton(q.device):
        from edgespec.kernels.triton import attention

        return attention.attend(q, k, v, mask, scale)
    return reference.attend(q, k, v, mask, scale)


def rms_norm(x: Tensor, weight: Tensor, eps: float) -> Tensor:
    """See `reference.rms_norm`. It has no gradient, nor have `swiglu` and `rotate`."""
    if elementwise.suits(x, weight):
        return elementwise.rms_norm(x, weight, eps)
    return reference.rms_norm(x, weight, eps)


def grouped_rms_norm(x: Tensor, weight: Tensor, eps: float) -> Tensor:
    """`reference.rms_norm` over each of some groups with its own weight: x [..., groups, d], weight
    [groups, d]. It has no gradient."""
    if has_triton(x.device) and weight.shape[-1] <= MOST_WIDTH:
        from edgespec.kernels.triton import norm

        return norm.grouped_rms_norm(x, weight, eps)
    return reference.rms_norm(x, weight, eps)


def add(x: Tensor, y: Tensor) -> Tensor:
    """x + y, [n, d] each, or y [d].

    On a CPU in pieces for which torch takes one thread: between matmuls its others sleep. In 24 layers of a
    0.5b with 64 rows, additions took 31 ms of a pass of 330 by all threads, and take 4.
    """
    rows = ONE_THREAD // max(1, x.shape[-1])
    if not x.is_cpu or x.dtype != y.dtype or not 0 < rows < len(x) <= MOST_PIECES * rows:
        return x + y
    out = torch.empty_like(x)
    for start in range(0, len(x), rows):
        part = slice(start, start + rows)
        torch.add(x[part], y if y.dim() == 1 else y[part], out=out[part])
    return out


def add_norm(x: Tensor, added: Tensor, weight: Tensor, eps: float) -> tuple[Tensor, Tensor]:
    """x + added, which may overwrite `added`, and its `rms_norm`; [n, d] each."""
    if elementwise.suits(x, weight) and elementwise.suits(x, added):
        return elementwise.add_norm(x, added, weight, eps)
    total = x + added
    return total, reference.rms_norm(total, weight, eps)


def swiglu(gate: Tensor, up: Tensor) -> Tensor:
    """See `reference.swiglu`; gate and up [n, f]."""
    if elementwise.suits(gate, up):
        return elementwise.swiglu(gate, up)
    return reference.swiglu(gate, up)


def rotate(q: Tensor, k: Tensor, cos: Tensor, sin: Tensor, interleaved: bool) -> tuple[Tensor, Tensor]:
    """`reference.rotate` of q and k [n, heads, head_dim], by the same angles; may overwrite them."""
    if elementwise.suits(q, k) and elementwise.suits(q, cos):
        return elementwise.rotate(q, k, cos, sin, interleaved)
    return reference.rotate(q, cos, sin, interleaved), reference.rotate(k, cos, sin, interleaved)


@lru_cache
def has_triton(device: torch.device) -> bool:
    """Whether the Triton kernels run on `device`: the extra `cuda` is there, the GPU Ampere or newer."""
    if device.type != "cuda" or importlib.util.find_spec("triton") is None:
        return False
    return torch.cuda.get_device_capability(device) >= (8, 0)
