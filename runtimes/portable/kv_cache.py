"""Keys and values of a client's drafter, and attention over them, in numpy. Needs no torch."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
from numpy.typing import NDArray

from edgespec.runtimes.formats.moa_client import Array


class PortableKVCache:
    """Keys and values of one attention: of committed positions, and of slots directly behind them.

    Both are written where they stay, in memory that grows by half of what it holds: a pass allocates nothing
    of the text's length. They are fp32: fp16 would be half of it, but numpy has no products of these. To
    convert the keys of 10,000 positions, 8 heads of 128, takes 20 ms in every pass, and their product with 8
    drafts' 32 heads of queries 17 ms.

    Attributes:
        length: committed positions.
        slots: rows behind them.
    """

    def __init__(self, heads: int, head_dim: int) -> None:
        self.length = self.slots = 0
        self._memory = np.empty((2, heads, 0, head_dim), np.float32)  # keys, values

    @property
    def k(self) -> Array:
        """[kv_heads, length + slots, e], where it is kept."""
        return self._memory[0, :, : self.length + self.slots]

    @property
    def v(self) -> Array:
        """As `k`."""
        return self._memory[1, :, : self.length + self.slots]

    def append(self, k: Array, v: Array) -> None:
        """New slots' keys and values [n, kv_heads, e]."""
        start = self.length + self.slots
        self._reserve(start + len(k))
        self.slots += len(k)
        self.put(start, k, v)

    def put(self, start: int, k: Array, v: Array) -> None:
        """Instead of what is there from place `start` on: [n, kv_heads, e]."""
        assert start + len(k) <= self.length + self.slots
        for kept, new in zip(self._memory, (k, v), strict=True):
            kept[:, start : start + len(k)] = new.transpose(1, 0, 2)

    def commit(self, path: Sequence[int], keep: Sequence[int] = ()) -> None:
        """Move the path's slots behind the committed positions, and those to `keep` behind them; drop the
        others."""
        moved = self.length + np.array([*path, *keep], dtype=np.int64)
        to = slice(self.length, self.length + len(moved))
        self._memory[:, :, to] = self._memory[:, :, moved]  # the right-hand side is a copy
        self.length, self.slots = self.length + len(path), len(keep)

    def extend(self, k: Array, v: Array) -> None:
        """Commit these [n, kv_heads, e]; begun without slots."""
        assert not self.slots
        self.append(k, v)
        self.length, self.slots = self.length + self.slots, 0

    def truncate(self, length: int) -> None:
        """Forget committed positions from `length` on, and every slot."""
        self.length, self.slots = min(self.length, length), 0

    def _reserve(self, places: int) -> None:
        if places > self._memory.shape[2]:
            both, heads, _, e = self._memory.shape
            grown = np.empty((both, heads, places + places // 2, e), np.float32)
            held = self.length + self.slots
            grown[:, :, :held] = self._memory[:, :, :held]
            self._memory = grown


def attention(q: Array, k: Array, v: Array, visible: NDArray[np.bool_] | None) -> Array:
    """q [n, heads, e] over k, v [kv_heads, t, e] -> [n, heads * e]; 0 over nothing. visible [n, s]: which of
    the last s keys a row sees, one at least; it sees all before them (None: all)."""
    (n, heads, e), (kv_heads, t, _) = q.shape, k.shape
    if not t:
        return np.zeros((n, heads * e), np.float32)
    grouped = (
        q.reshape(n, kv_heads, -1, e).transpose(1, 2, 0, 3).reshape(kv_heads, -1, e)
    )  # [., group * n, e]
    scores = (grouped * np.float32(e**-0.5)) @ k.transpose(0, 2, 1)  # [kv_heads, group * n, t]
    if visible is not None:
        last = scores.reshape(kv_heads, -1, n, t)[..., t - visible.shape[1] :]
        np.copyto(last, np.float32(-np.inf), where=~visible)
    # In place: of a long text, and a wide tree, these are larger than its keys.
    scores -= scores.max(-1, keepdims=True)
    np.exp(scores, out=scores)
    attended = scores @ v / scores.sum(-1, keepdims=True)
    found: Array = attended.reshape(kv_heads, -1, n, e).transpose(2, 0, 1, 3).reshape(n, heads * e)
    return found
