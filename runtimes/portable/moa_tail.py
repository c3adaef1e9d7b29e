"""The target's last layers over a client's drafts, in numpy: see `runtimes.torch.moa_tail`. Needs no torch.

Drafts attend there to the target's own keys and values of committed tokens, which come with the memory. Where
they have not come yet, there are those that the token had as a draft; one that was none is not seen.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Protocol

import numpy as np
from numpy.typing import NDArray

from edgespec.runtimes.base import IntArray
from edgespec.runtimes.formats.moa_client import Array, ClientConfig, last_layer
from edgespec.runtimes.portable.kv_cache import PortableKVCache, attention


class Layers(Protocol):
    """See `runtimes.portable.moa.PortableMoa`."""

    config: ClientConfig

    def keys(self, layer: str, x: Array, positions: IntArray) -> tuple[Array, Array]: ...

    def queries(self, layer: str, x: Array, positions: IntArray) -> Array: ...

    def after(self, layer: str, x: Array, attended: Array) -> Array: ...


class PortableTail:
    """One conversation's.

    Attributes:
        come: committed tokens, the first ones, whose keys and values are the target's.
    """

    def __init__(self, moa: Layers, layers: int) -> None:
        """layers: how many."""
        self.moa, self.come = moa, 0
        shape = moa.config.kv_heads, moa.config.head_dim
        self.caches = [PortableKVCache(*shape) for _ in range(layers)]
        self._known = np.zeros(0, dtype=bool)  # [committed + slots] whether there are keys and values

    def extend(self, count: int) -> None:
        """So many tokens are committed that were not drafted."""
        config = self.moa.config
        # Zeros: a masked score is 0, but 0 times what memory held before may be NaN.
        nothing = np.zeros((count, config.kv_heads, config.head_dim), np.float32)
        for cache in self.caches:
            cache.extend(nothing, nothing)
        self._known = np.append(self._known, np.zeros(count, dtype=bool))

    def take(self, states: Array) -> None:
        """What the target has of the next committed tokens: [n, layers * 2 E_kv], a layer's as
        `runtimes.torch.moa.token_states` has it."""
        heads, e = self.moa.config.kv_heads, self.moa.config.head_dim
        layers = states.reshape(len(states), len(self.caches), heads, 2, e)
        for i, cache in enumerate(self.caches):
            cache.put(self.come, layers[:, i, :, 0], layers[:, i, :, 1])
        self._known[self.come : self.come + len(states)] = True
        self.come += len(states)

    def begin(self, count: int) -> None:
        """A pass over so many new slots: each layer will `run`, or the slots be dropped."""
        self._known = np.append(self._known, np.ones(count, dtype=bool))

    def run(self, index: int, hidden: Array, positions: IntArray, seen: NDArray[np.bool_]) -> Array:
        """The `index`th of the layers: [n, d] -> [n, d]. seen [n, slots]: which slots a row attends to."""
        layer, cache = last_layer(index), self.caches[index]
        cache.append(*self.moa.keys(layer, hidden, positions))
        before = self._known[self.come : cache.length]
        visible = np.concatenate([np.broadcast_to(before, (len(hidden), len(before))), seen], axis=1)
        q = self.moa.queries(layer, hidden, positions)
        return self.moa.after(layer, hidden, attention(q, cache.k, cache.v, visible))

    def commit(self, path: Sequence[int], keep: Sequence[int]) -> None:
        length = self.caches[0].length
        slots = self._known[length:]
        self._known = np.concatenate([self._known[:length], slots[[*path]], slots[[*keep]]])
        for cache in self.caches:
            cache.commit(path, keep)

    def truncate(self, length: int) -> None:
        for cache in self.caches:
            cache.truncate(length)
        self._known, self.come = self._known[:length], min(self.come, length)
