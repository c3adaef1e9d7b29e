"""Memory that is used again by the next tile and the next call of the same thread.

The pages of a fresh megabyte have to be mapped and cleared first. On a busy virtual machine that took up to
ten times as long as unpacking int4 into it.
"""

from __future__ import annotations

import threading
from math import prod

import torch
from torch import Tensor


class _Buffers(threading.local):
    def __init__(self) -> None:
        self.by_use: dict[str, Tensor] = {}  # uint8


_BUFFERS = _Buffers()
_NONE = torch.empty(0, dtype=torch.uint8)


def at_hand(use: str) -> Tensor:
    """All that `scratch` has for this use by now, uint8 [bytes]: for whoever learns its size only then."""
    return _BUFFERS.by_use.get(use, _NONE)


def scratch(use: str, shape: tuple[int, ...], dtype: torch.dtype) -> Tensor:
    """A CPU tensor of any content, valid until this thread asks for the same `use` again."""
    nbytes = prod(shape) * dtype.itemsize
    buffer = _BUFFERS.by_use.get(use)
    if buffer is None or len(buffer) < nbytes:
        with torch.inference_mode(False):  # written to inside and outside of inference mode
            buffer = _BUFFERS.by_use[use] = torch.empty(nbytes, dtype=torch.uint8)
    return buffer[:nbytes].view(dtype).view(shape)
