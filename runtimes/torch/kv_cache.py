"""Keys and values of one conversation, laid out so that a tree can be verified and committed in place."""

from __future__ import annotations

from collections.abc import Sequence
from copy import copy

import numpy as np
import torch
from torch import Tensor

from edgespec.errors import ContextError, DeviceError
from edgespec.runtimes.base import IntArray
from edgespec.runtimes.config import ModelConfig

BLOCK = 64  # positions per attention block; see attention.py


def round_up(positions: int) -> int:
    return -(-positions // BLOCK) * BLOCK


def cache_bytes(config: ModelConfig, context: int, slots: int, dtype: torch.dtype) -> int:
    """Bytes of a cache for `context` positions and `slots` uncommitted rows."""
    return config.kv_bytes(round_up(context + slots), dtype.itemsize)


class TorchKVCache:
    """K and V [layers, kv_heads, positions, head_dim]; see `runtimes.base.KVCache`.

    Slots lie directly behind the committed prefix. The memory is touched at once: what the ledger counts is
    really there, and a reply cannot run out of it half-way. Raises DeviceError when the system refuses.
    """

    def __init__(
        self, config: ModelConfig, context: int, slots: int, dtype: torch.dtype, device: torch.device
    ) -> None:
        shape = (config.layers, config.kv_heads, round_up(context + slots), config.head_dim)
        try:
            self.k = torch.empty(shape, dtype=dtype, device=device).zero_()
            self.v = torch.empty(shape, dtype=dtype, device=device).zero_()
        except RuntimeError:  # torch has no narrower type for it on a CPU
            raise DeviceError(
                f"the system refused {cache_bytes(config, context, slots, dtype)} bytes for a KV cache of "
                f"{context} positions; load with a smaller context"
            ) from None
        self.capacity = context
        self.length = 0
        self.parents: IntArray = np.empty(0, dtype=np.int64)

    @property
    def nbytes(self) -> int:
        return self.k.nbytes + self.v.nbytes

    def append(self, parents: Sequence[int] | IntArray) -> IntArray:
        """Open one slot per entry; parents are earlier slots, or -1 for the committed prefix."""
        added = np.asarray(parents, dtype=np.int64)
        first = len(self.parents)
        slots = np.arange(first, first + len(added))
        if np.any(added >= slots) or np.any(added < -1):
            raise ValueError("a slot's parent must be an earlier slot or -1")
        end = self.length + first + len(added)
        if end > self.k.shape[2]:
            raise ContextError(
                f"{self.length} committed positions and {first + len(added)} uncommitted rows need {end} "
                f"places, but the cache has {self.k.shape[2]}; load with a larger context"
            )
        self.parents = np.concatenate([self.parents, added])
        return slots

    def adopt(self, parents: Sequence[int] | IntArray, written: IntArray, layers: int) -> IntArray:
        """`append` for nodes that a fork has run through the first `layers` layers, at slots `written`."""
        assert not len(self.parents), "what a fork wrote is adopted before there are other slots"
        slots = self.append(parents)
        moved = (written >= 0) & (written != slots)
        if moved.any():
            to, start = (torch.from_numpy(s[moved] + self.length) for s in (slots, written))
            to, start = to.to(self.k.device), start.to(self.k.device)
            for kv in (self.k, self.v):
                kv[:layers, :, to] = kv[:layers, :, start]  # the right-hand side is a copy
        return slots

    def write(self, layer: int, slots: IntArray, k: Tensor, v: Tensor) -> None:
        """Store k, v [n, kv_heads, head_dim] of one layer in these slots."""
        if len(slots) == slots[-1] - slots[0] + 1:  # a contiguous run: a plain copy
            where: slice | Tensor = slice(self.length + int(slots[0]), self.length + int(slots[-1]) + 1)
        else:
            where = torch.from_numpy(slots + self.length).to(self.k.device)
        self.k[layer][:, where] = k.transpose(0, 1)
        self.v[layer][:, where] = v.transpose(0, 1)

    def view(self, layer: int) -> tuple[Tensor, Tensor]:
        """K, V of the committed prefix [kv_heads, length, head_dim], K after RoPE."""
        return self.k[layer, :, : self.length], self.v[layer, :, : self.length]

    def fork(self) -> TorchKVCache:
        """The same prefix and memory with no slots: for drafts behind the prefix, to be forgotten before this
        cache has slots of its own."""
        other = copy(self)
        other.parents = self.parents[:0]
        return other

    def wipe(self) -> None:
        """Zero what lies behind the prefix: a masked score is 0, but 0 times what is no number is none."""
        for kv in (self.k, self.v):
            kv[:, :, self.length :].zero_()

    def commit(self, path: Sequence[int] | IntArray) -> None:
        """Move the path's slots (root first) behind the prefix; drop all other slots."""
        for depth, slot in enumerate(path):
            expected = -1 if depth == 0 else path[depth - 1]
            if self.parents[slot] != expected:
                raise ValueError(f"slot {slot} does not continue the path {list(path)[:depth]}")
        if self.length + len(path) > self.capacity:
            raise ContextError(
                f"committing {len(path)} positions to {self.length} passes the {self.capacity} held"
            )
        for depth, slot in enumerate(path):
            if slot != depth:  # slots ascend along a path, so the source is never overwritten first
                to, start = self.length + depth, self.length + int(slot)
                self.k[:, :, to] = self.k[:, :, start]
                self.v[:, :, to] = self.v[:, :, start]
        self.length += len(path)
        self.parents = self.parents[:0]

    def truncate(self, length: int) -> None:
        """Forget positions from `length` on, and every slot."""
        if not 0 <= length <= self.length:
            raise ValueError(f"cannot truncate {self.length} positions to {length}")
        self.length = length
        self.parents = self.parents[:0]
