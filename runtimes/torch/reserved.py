"""Memory of caches that grow: addresses for all that there may be, pages for what is held."""

from __future__ import annotations

import math
import mmap

import torch
from torch import Tensor

from edgespec.errors import DeviceError

# Where pages cannot be given back one by one (Windows), those that were held stay until the whole is freed.
_PRIVATE = sum(getattr(mmap, name, 0) for name in ("MAP_PRIVATE", "MAP_ANONYMOUS", "MAP_NORESERVE"))


class Reserved:
    """A tensor [layers, heads, positions, e] whose first positions, in every layer and head, have memory.

    Raises DeviceError when the system refuses the addresses.
    """

    def __init__(self, shape: tuple[int, int, int, int], dtype: torch.dtype) -> None:
        nbytes = math.prod(shape) * dtype.itemsize
        try:
            self._area = mmap.mmap(-1, nbytes, flags=_PRIVATE) if _PRIVATE else mmap.mmap(-1, nbytes)
        except OSError:
            raise DeviceError(
                f"the system refused {nbytes} bytes of addresses for a KV cache; load with a smaller context"
            ) from None
        # A huge page would take the memory of many heads at the first touch of one.
        if hasattr(mmap, "MADV_NOHUGEPAGE"):
            self._area.madvise(mmap.MADV_NOHUGEPAGE)
        self._whole = torch.frombuffer(self._area, dtype=dtype).view(shape)
        self._held = 0

    def hold(self, positions: int) -> Tensor:
        """The first positions of all, with memory, which is touched now: [layers, heads, positions, e]. What
        lay there stays; what lay beyond is given back."""
        if positions > self._held:
            self._whole[:, :, self._held : positions].zero_()
        elif hasattr(mmap, "MADV_DONTNEED"):
            self._give_back(positions)
        self._held = positions
        return self._whole[:, :, :positions]

    def _give_back(self, positions: int) -> None:
        layers, heads, most, e = self._whole.shape
        row = e * self._whole.element_size()
        for head in range(layers * heads):
            # Whole pages only: the last may have the next head's first positions.
            start = _up((head * most + positions) * row)
            stop = (head * most + self._held) * row // mmap.PAGESIZE * mmap.PAGESIZE
            if stop > start:
                self._area.madvise(mmap.MADV_DONTNEED, start, stop - start)


def _up(offset: int) -> int:
    return -(-offset // mmap.PAGESIZE) * mmap.PAGESIZE
