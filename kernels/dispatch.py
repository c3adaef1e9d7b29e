"""The kernel for the device that a tensor is on."""

from __future__ import annotations

from torch import Tensor

from edgespec.kernels import cpu, reference
from edgespec.kernels.reference import Mask


def attend(q: Tensor, k: Tensor, v: Tensor, mask: Mask | None, scale: float) -> tuple[Tensor, Tensor]:
    """See `reference.attend`."""
    kernel = cpu.attend if q.device.type == "cpu" else reference.attend
    return kernel(q, k, v, mask, scale)
