"""Keys and values of one conversation, laid out so that a tree can be verified and committed in place."""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
from contextlib import contextmanager

import numpy as np
import torch
from torch import Tensor

from edgespec.errors import BusyError, ContextError, DeviceError
from edgespec.runtimes.base import IntArray, KVCache
from edgespec.runtimes.config import ModelConfig
from edgespec.runtimes.formats.needs import overlay_positions, round_up
from edgespec.runtimes.formats.passes import BLOCK
from edgespec.runtimes.rows import kept_parents, with_slots
from edgespec.runtimes.torch.reserved import Reserved


class TorchKVCache:
    """K and V [layers, kv_heads, positions, head_dim]; see `runtimes.base.KVCache`.

    Slots lie directly behind the committed prefix. The memory is touched at once: what the ledger counts is
    really there, and a reply cannot run out of it half-way. Raises DeviceError when the system refuses.

    One that may grow has addresses for `most` positions, and memory for those that it holds
    (`runtimes/torch/reserved.py`): nothing is copied when that changes.
    """

    origin = 0  # the position that the first place of `k` and `v` is

    def __init__(
        self,
        config: ModelConfig,
        context: int,
        slots: int,
        dtype: torch.dtype,
        device: torch.device,
        most: int | None = None,
    ) -> None:
        """most: positions that `hold` may ask for; None = it stays as it is."""
        self.slots = slots
        self._areas: tuple[Reserved, Reserved] | None = None
        places = round_up(context + slots)
        if most is None:
            shape = (config.layers, config.kv_heads, places, config.head_dim)
            self._allocate(shape, dtype, device, f"a KV cache of {context} positions")
        else:
            shape = (config.layers, config.kv_heads, round_up(most + slots), config.head_dim)
            self._areas = Reserved(shape, dtype), Reserved(shape, dtype)
            self.k, self.v = (area.hold(places) for area in self._areas)
        self.capacity = context
        self.length = 0
        self.parents: IntArray = np.empty(0, dtype=np.int64)

    def _allocate(self, shape: tuple[int, ...], dtype: torch.dtype, device: torch.device, what: str) -> None:
        try:
            self.k = torch.empty(shape, dtype=dtype, device=device).zero_()
            self.v = torch.empty(shape, dtype=dtype, device=device).zero_()
        except RuntimeError:  # torch has no narrower type for it on a CPU
            raise DeviceError(
                f"the system refused {2 * math.prod(shape) * dtype.itemsize} bytes for {what}; load with a "
                "smaller context"
            ) from None

    @property
    def owner(self) -> TorchKVCache:
        return self

    @property
    def nbytes(self) -> int:
        return self.k.nbytes + self.v.nbytes

    def hold(self, context: int) -> None:
        assert self._areas is not None, "this cache was made for so many positions and no more"
        assert self.length <= context
        assert not len(self.parents)
        self.k, self.v = (area.hold(round_up(context + self.slots)) for area in self._areas)
        self.capacity = context

    def copy(self, other: KVCache, length: int) -> None:
        assert not self.length
        for layer in range(len(self.k)):
            for own, theirs in zip((self.k, self.v), other.view(layer), strict=True):
                own[layer, :, :length] = theirs[:, :length]
        self.length = length

    def append(self, parents: Sequence[int] | IntArray) -> IntArray:
        """Open one slot per entry; parents are earlier slots, or -1 for the committed prefix."""
        joined, first = with_slots(self.parents, parents), len(self.parents)
        end = self.length + len(joined) - self.origin
        if end > self.k.shape[2]:
            raise ContextError(
                f"{self.length} committed positions and {len(joined)} uncommitted rows need {end} "
                f"places, but the cache has {self.k.shape[2]}; load with a larger context"
            )
        self.parents = joined
        return np.arange(first, len(joined))

    def adopt(self, parents: Sequence[int] | IntArray, written: IntArray, layers: int) -> IntArray:
        """`append` for nodes that were run `inside` through the first `layers` layers, at slots `written`."""
        assert not len(self.parents), "what was drafted inside is adopted before there are other slots"
        slots = self.append(parents)
        moved = (written >= 0) & (written != slots)
        if moved.any():
            to, start = (torch.from_numpy(s[moved] + self.length) for s in (slots, written))
            to, start = to.to(self.k.device), start.to(self.k.device)
            for kv in (self.k, self.v):
                kv[:layers, :, to] = kv[:layers, :, start]  # the right-hand side is a copy
        return slots

    def places(self, slots: IntArray) -> slice | Tensor:
        """Where in `k` and `v` these slots lie."""
        places = slots + (self.length - self.origin)
        if len(slots) == slots[-1] - slots[0] + 1:  # a contiguous run: a plain copy
            return slice(int(places[0]), int(places[-1]) + 1)
        return torch.from_numpy(places).to(self.k.device)

    def check_free(self) -> None:
        """Raises BusyError where its slots must not be written to now."""

    def write(self, layer: int, places: slice | Tensor, k: Tensor, v: Tensor) -> None:
        """Store k, v [n, kv_heads, head_dim] of one layer."""
        self.k[layer][:, places] = k.transpose(0, 1)
        self.v[layer][:, places] = v.transpose(0, 1)

    def blocks(self, start: int, end: int) -> tuple[Tensor, Tensor]:
        """K, V of positions [start, end), whole blocks [layers, kv_heads, blocks, BLOCK, head_dim], K after
        RoPE: the prefix's, and where slots lie directly behind it, theirs too."""
        layers, kv_heads, _, head_dim = self.k.shape
        shape = layers, kv_heads, (end - start) // BLOCK, BLOCK, head_dim
        k, v = (kv[:, :, start:end].view(shape) for kv in (self.k, self.v))
        return k, v

    @property
    def prefix(self) -> tuple[Tensor, Tensor]:
        """K, V [layers, kv_heads, positions, head_dim]; the first `length` positions are committed."""
        return self.k, self.v

    def view(self, layer: int) -> tuple[Tensor, Tensor]:
        """K, V of the committed prefix [kv_heads, length, head_dim], K after RoPE."""
        return self.k[layer, :, : self.length], self.v[layer, :, : self.length]

    def overlay(self, rows: int) -> TorchKVCache:
        return Overlay(self, rows)

    def inside(self) -> TorchKVCache:
        return Inside(self)

    @contextmanager
    def rewound(self, start: int, stop: int, layers: int) -> Iterator[TorchKVCache]:
        again = self.inside()
        again.truncate(start)
        places = slice(None, layers), slice(None), slice(start, stop)
        k, v = self.k[places].clone(), self.v[places].clone()
        try:
            yield again
        finally:
            self.k[places], self.v[places] = k, v

    def wipe(self) -> None:
        """Zero what lies behind the prefix: a masked score is 0, but 0 times NaN is NaN."""
        for kv in (self.k, self.v):
            kv[:, :, self.length - self.origin :].zero_()

    def commit(self, path: Sequence[int] | IntArray, keep: Sequence[int] | IntArray = ()) -> None:
        """Move the path's slots (root first) behind the prefix, and then those to `keep`; drop the others."""
        parents = kept_parents(self.parents, path, keep)
        if self.length + len(path) > self.capacity:
            raise ContextError(
                f"committing {len(path)} positions to {self.length} passes the {self.capacity} held"
            )
        for place, slot in enumerate((*path, *keep)):
            if slot != place:  # slots ascend along a path, so the source is never overwritten first
                to, start = self.length + place, self.length + int(slot)
                self.k[:, :, to] = self.k[:, :, start]
                self.v[:, :, to] = self.v[:, :, start]
        self.length += len(path)
        self.parents = parents

    def truncate(self, length: int) -> None:
        """Forget positions from `length` on, and every slot."""
        if not 0 <= length <= self.length:
            raise ValueError(f"cannot truncate {self.length} positions to {length}")
        self.length = length
        self.parents = self.parents[:0]


class Inside(TorchKVCache):
    """Slots in the memory of another cache, behind its prefix as it was; see `KVCache.inside`."""

    def __init__(self, base: TorchKVCache) -> None:
        self.base = base
        self.k, self.v = base.k, base.v
        self.capacity, self.length = base.capacity, base.length
        self.behind = base.length
        self.parents = np.empty(0, dtype=np.int64)
        self.check_free()

    @property
    def owner(self) -> TorchKVCache:
        return self.base

    def append(self, parents: Sequence[int] | IntArray) -> IntArray:
        self.check_free()
        return super().append(parents)

    def write(self, layer: int, places: slice | Tensor, k: Tensor, v: Tensor) -> None:
        self.check_free()
        super().write(layer, places, k, v)

    def wipe(self) -> None:
        self.check_free()
        super().wipe()

    def check_free(self) -> None:
        if slots := len(self.base.parents):
            raise BusyError(
                f"a pass is under way over {slots} slots behind {self.base.length} positions, and drafting "
                "inside this cache would overwrite them; draft before the pass, or in an overlay"
            )
        if self.base.length != self.behind:
            raise BusyError(
                f"this cache went on from {self.behind} to {self.base.length} positions since this drafting "
                "inside it began, which would overwrite them; begin anew"
            )


class Overlay(TorchKVCache):
    """Slots in memory of their own, behind another cache's prefix; see `KVCache.overlay`.

    Attention reads the prefix in whole blocks, so the rest of it, less than one block, is copied here: `k`
    and `v` begin with the position `origin`, a multiple of BLOCK, and have room for `rows` slots.
    """

    def __init__(self, base: TorchKVCache, rows: int) -> None:
        self.base = base
        layers, kv_heads, _, head_dim = base.k.shape
        shape = (layers, kv_heads, overlay_positions(rows), head_dim)
        self._allocate(shape, base.k.dtype, base.k.device, f"{rows} rows of drafts")
        self.capacity = base.capacity
        self.parents = np.empty(0, dtype=np.int64)
        self.truncate(base.length)

    def blocks(self, start: int, end: int) -> tuple[Tensor, Tensor]:
        return self.base.blocks(start, end)

    @property
    def prefix(self) -> tuple[Tensor, Tensor]:
        return self.base.prefix

    def view(self, layer: int) -> tuple[Tensor, Tensor]:
        return self.base.k[layer, :, : self.length], self.base.v[layer, :, : self.length]

    def commit(self, path: Sequence[int] | IntArray, keep: Sequence[int] | IntArray = ()) -> None:
        """The base has committed a path of this length, with its own keys and values for it."""
        parents = kept_parents(self.parents, path, keep)
        length = self.length + len(path)
        for new, slot in enumerate(keep):
            # Never behind where it was, as the path's slots come before it: no source is overwritten first.
            to, start = length % BLOCK + new, self.length - self.origin + int(slot)
            if to != start:
                self.k[:, :, to] = self.k[:, :, start]
                self.v[:, :, to] = self.v[:, :, start]
        self.truncate(length)
        self.parents = parents

    def truncate(self, length: int) -> None:
        """Begin anew behind the base's first `length` positions."""
        if not 0 <= length <= self.base.length:
            raise ValueError(f"an overlay of {self.base.length} positions cannot begin behind {length}")
        self.length, self.parents = length, self.parents[:0]
        self.origin = length // BLOCK * BLOCK
        rest = length - self.origin
        self.k[:, :, :rest] = self.base.k[:, :, self.origin : length]
        self.v[:, :, :rest] = self.base.v[:, :, self.origin : length]
