"""The client's half of a Mixture-of-Attentions drafter, in numpy: see `runtimes.torch.moa`. Needs no torch.

embedded tokens ── causal attention over tokens ──► attention to memory ──► norm ── head
                                                       │ projection      └ or through the target's last layers
                              vectors of committed tokens, from the       (`portable.moa_tail`), to their norm
                              server (`split.recall`)
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from typing import Protocol

import numpy as np
from numpy.typing import NDArray

from edgespec.errors import ModelError
from edgespec.runtimes.base import PREFILL_ROWS, IntArray
from edgespec.runtimes.formats.moa_client import Array, ClientConfig
from edgespec.runtimes.formats.moa_sizes import MoaSizes
from edgespec.runtimes.portable.kv_cache import PortableKVCache, attention
from edgespec.runtimes.portable.moa_tail import PortableTail
from edgespec.runtimes.rows import kept_parents, slot_depths

REMEMBERED = 64  # vectors that are taken in at once; of an 8B model's shape they take 2 GFLOP


class Vectors(Protocol):
    """Of committed tokens; see `split.recall.Recollection`."""

    @property
    def length(self) -> int: ...

    def vectors(self, start: int, stop: int) -> Array:
        """[stop - start, width]: the memory [2 E_kv], and as much of each of the target's last layers that
        drafts go through."""


class PortableMoa:
    """The network."""

    def __init__(self, config: ClientConfig, tensors: Mapping[str, Array]) -> None:
        """tensors: by the names of `formats.moa_client.client_shapes`."""
        self.config, self._t = config, tensors
        self._head = tensors["embedding" if config.tied else "head"]

    def embed(self, tokens: Sequence[int]) -> Array:
        """[n, d]."""
        found: Array = self._t["embedding"][np.asarray(tokens)]
        return found

    def keys(self, layer: str, x: Array, positions: IntArray) -> tuple[Array, Array]:
        """Keys, rotated, and values [n, kv_heads, e] of an attention, from its inputs [n, d]."""
        x = self._norm(x, f"{layer}.input_norm")
        k, v = (self._heads(x, layer, name) for name in "kv")
        return self._rotated(k, positions), v

    def queries(self, layer: str, x: Array, positions: IntArray) -> Array:
        """[n, heads, e]."""
        x = self._norm(x, f"{layer}.input_norm")
        return self._rotated(self._heads(x, layer, "q"), positions)

    def after(self, layer: str, x: Array, attended: Array) -> Array:
        """The layer's output, from its input and what its attention gave."""
        y = x + self._times(attended, f"{layer}.o_proj")
        z = self._norm(y, f"{layer}.post_norm")
        gate, up = (self._times(z, f"{layer}.{name}") for name in ("gate_proj", "up_proj"))
        with np.errstate(over="ignore"):  # exp of a very negative number's opposite: silu is 0 there
            return y + self._times(gate / (1 + np.exp(-gate)) * up, f"{layer}.down_proj")

    def projected(self, memory: Array) -> Array:
        """Memory vectors [n, 2 E_kv] -> [n, d]."""
        return self._times(memory, "projection")

    def logits(self, x: Array) -> Array:
        """[n, V]."""
        found: Array = self._norm(x, "norm") @ self._head.T
        return found

    def _norm(self, x: Array, name: str) -> Array:
        scale = 1 / np.sqrt(np.mean(x * x, axis=-1, keepdims=True) + np.float32(self.config.norm_eps))
        found: Array = x * scale * self._t[name]
        return found

    def _times(self, x: Array, name: str) -> Array:
        """A matrix's product, and its bias, if it has one."""
        found: Array = x @ self._t[name].T
        bias = self._t.get(f"{name}_bias")
        return found if bias is None else found + bias

    def _heads(self, x: Array, layer: str, which: str) -> Array:
        """[n, heads, e] of the matrix q, k or v; normed, where a layer has a norm for it."""
        found = self._times(x, f"{layer}.{which}_proj").reshape(len(x), -1, self.config.head_dim)
        norm = f"{layer}.{which}_norm"
        return self._norm(found, norm) if norm in self._t else found

    def _rotated(self, x: Array, positions: IntArray) -> Array:
        angles = positions[:, None].astype(np.float32) * self._t["inverse"]
        cos, sin = (f(angles).astype(np.float32)[:, None] for f in (np.cos, np.sin))
        pairs = x.reshape(*x.shape[:2], -1, 2) if self.config.interleaved else None
        a, b = np.split(x, 2, -1) if pairs is None else (pairs[..., 0], pairs[..., 1])
        turned = a * cos - b * sin, a * sin + b * cos
        if pairs is None:
            return np.concatenate(turned, -1)
        return np.stack(turned, -1).reshape(x.shape)


class PortableMoaDraft:
    """See `runtimes.base.DraftRuntime`."""

    def __init__(self, moa: PortableMoa, sizes: MoaSizes, source: Vectors, context: int, rows: int) -> None:
        """For a conversation of `context` positions, with `rows` uncommitted ones."""
        self.moa, self.source, self.capacity, self.rows = moa, source, context, rows
        self.tokens, self.memory = (
            PortableKVCache(heads, moa.config.head_dim) for heads in sizes.kv_heads[1:]
        )
        self.tail = PortableTail(moa, sizes.target_layers) if sizes.target_layers else None
        self.parents = np.zeros(0, dtype=np.int64)  # of the slots

    @property
    def length(self) -> int:
        return self.tokens.length

    def prefill(self, tokens: Sequence[int]) -> Iterator[int]:
        for start in range(0, len(tokens), PREFILL_ROWS):
            block = tokens[start : start + PREFILL_ROWS]
            places = np.arange(self.length, self.length + len(block))
            self.tokens.extend(*self.moa.keys("over_tokens", self.moa.embed(block), places))
            if self.tail is not None:
                self.tail.extend(len(block))
            yield start + len(block)

    def remember(self) -> bool:
        """Take in some more of the vectors that have come; False = they were all here."""
        width = self.moa.config.width
        new = self._coming(self.memory.length, self.capacity)
        if new:
            vectors = self.moa.projected(self.source.vectors(new.start, new.stop)[:, :width])
            self.memory.extend(*self.moa.keys("to_memory", vectors, np.array(new)))
        if self.tail is None:
            return bool(new)
        # What the target has committed, and not this yet, is slots there.
        behind = self._coming(self.tail.come, self.length)
        if behind:
            self.tail.take(self.source.vectors(behind.start, behind.stop)[:, width:])
        return bool(new or behind)

    def _coming(self, start: int, most: int) -> range:
        """The next of the first `most` tokens whose vectors are there."""
        return range(start, min(self.source.length, most, start + REMEMBERED))

    def begin(self, tokens: Sequence[int], parents: Sequence[int]) -> PortableMoaPass:
        return PortableMoaPass(self, tokens, parents)

    def commit(self, path: Sequence[int], keep: Sequence[int]) -> None:
        self.parents = kept_parents(self.parents, path, keep)
        self.tokens.commit(path, keep)
        if self.tail is not None:
            self.tail.commit(path, keep)

    def truncate(self, length: int) -> None:
        self.tokens.truncate(length)
        self.memory.truncate(length)
        if self.tail is not None:
            self.tail.truncate(length)
        self.parents = self.parents[:0]


class PortableMoaPass:
    """See `runtimes.base.DraftPass`: a part is some memory, one of the two attentions, a layer of the
    tail, or the head."""

    def __init__(self, draft: PortableMoaDraft, tokens: Sequence[int], parents: Sequence[int]) -> None:
        self.draft, self._done = draft, 0
        self.hidden = draft.moa.embed(tokens)  # [n, d]
        first = len(draft.parents)
        draft.parents = np.concatenate([draft.parents, np.asarray(parents, dtype=np.int64)])
        self.positions = draft.length + slot_depths(draft.parents)[first:]  # [n]
        self.seen = _ancestors(draft.parents)[first:]  # [n, slots]
        draft.tokens.append(*draft.moa.keys("over_tokens", self.hidden, self.positions))
        if draft.tail is not None:
            draft.tail.begin(len(tokens))

    def advance(self) -> bool:
        layers = 2 if self.draft.tail is None else 2 + len(self.draft.tail.caches)
        if self._done == 1 and self.draft.remember():
            return False
        if self._done < 2:
            (self._over_tokens, self._to_memory)[self._done]()
        elif self._done < layers:
            self._through(self._done - 2)
        else:
            self._say()
        self._done += 1
        return self._done > layers

    def _over_tokens(self) -> None:
        moa, tokens = self.draft.moa, self.draft.tokens
        q = moa.queries("over_tokens", self.hidden, self.positions)
        self.hidden = moa.after("over_tokens", self.hidden, attention(q, tokens.k, tokens.v, self.seen))

    def _to_memory(self) -> None:
        moa, memory = self.draft.moa, self.draft.memory
        q = moa.queries("to_memory", self.hidden, self.positions)
        self.hidden = moa.after("to_memory", self.hidden, attention(q, memory.k, memory.v, None))

    def _through(self, index: int) -> None:
        assert self.draft.tail is not None
        self.hidden = self.draft.tail.run(index, self.hidden, self.positions, self.seen)

    def _say(self) -> None:
        """Raises ModelError for NaN."""
        self.logits: Array = self.draft.moa.logits(self.hidden)
        if not np.isfinite(self.logits).all():
            raise ModelError("the MoA drafter has computed NaN; its files are damaged: export it again")


def _ancestors(parents: IntArray) -> NDArray[np.bool_]:
    """[n, n]: whether one slot is another's ancestor, or itself."""
    seen = np.eye(len(parents), dtype=bool)
    for slot, parent in enumerate(parents):
        if parent >= 0:
            seen[slot] |= seen[parent]
    return seen
