"""The client's half of a Mixture-of-Attentions drafter, in numpy: see `runtimes.torch.moa`. Needs no torch.

embedded tokens ── causal attention over tokens ──► attention to memory ──► norm ── head
                                                       │ projection
                              vectors of committed tokens, from the server (`split.recall`)
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from typing import Protocol

import numpy as np

from edgespec.errors import ModelError
from edgespec.runtimes.base import PREFILL_ROWS, IntArray
from edgespec.runtimes.formats.moa_client import Array, ClientConfig
from edgespec.runtimes.rows import slot_depths


class Vectors(Protocol):
    """Of committed tokens; see `split.recall.Recollection`."""

    @property
    def length(self) -> int: ...

    def vectors(self, start: int, stop: int) -> Array: ...


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
        k, v = (self._heads(x, f"{layer}.{name}") for name in ("k_proj", "v_proj"))
        return self._rotated(k, positions), v

    def queries(self, layer: str, x: Array, positions: IntArray) -> Array:
        """[n, heads, e]."""
        x = self._norm(x, f"{layer}.input_norm")
        return self._rotated(self._heads(x, f"{layer}.q_proj"), positions)

    def after(self, layer: str, x: Array, attended: Array) -> Array:
        """The layer's output, from its input and what its attention gave."""
        t = self._t
        y = x + attended @ t[f"{layer}.o_proj"].T
        z = self._norm(y, f"{layer}.post_norm")
        gate, up = z @ t[f"{layer}.gate_proj"].T, z @ t[f"{layer}.up_proj"].T
        with np.errstate(over="ignore"):  # exp of a very negative number's opposite: silu is 0 there
            found: Array = y + (gate / (1 + np.exp(-gate)) * up) @ t[f"{layer}.down_proj"].T
        return found

    def projected(self, memory: Array) -> Array:
        """Memory vectors [n, width] -> [n, d]."""
        found: Array = memory @ self._t["projection"].T + self._t["projection_bias"]
        return found

    def logits(self, x: Array) -> Array:
        """[n, V]."""
        found: Array = self._norm(x, "norm") @ self._head.T
        return found

    def _norm(self, x: Array, name: str) -> Array:
        scale = 1 / np.sqrt(np.mean(x * x, axis=-1, keepdims=True) + np.float32(self.config.norm_eps))
        found: Array = x * scale * self._t[name]
        return found

    def _heads(self, x: Array, name: str) -> Array:
        found: Array = (x @ self._t[name].T).reshape(len(x), -1, self.config.head_dim)
        return found

    def _rotated(self, x: Array, positions: IntArray) -> Array:
        angles = positions[:, None].astype(np.float32) * self._t["inverse"]
        cos, sin = (f(angles).astype(np.float32)[:, None] for f in (np.cos, np.sin))
        pairs = x.reshape(*x.shape[:2], -1, 2) if self.config.interleaved else None
        a, b = np.split(x, 2, -1) if pairs is None else (pairs[..., 0], pairs[..., 1])
        turned = a * cos - b * sin, a * sin + b * cos
        if pairs is None:
            return np.concatenate(turned, -1)
        return np.stack(turned, -1).reshape(x.shape)


def attention(q: Array, k: Array, v: Array, visible: NDArrayBool | None) -> Array:
    """q [n, heads, e] over k, v [t, kv_heads, e], where `visible` [n, t] (None: all)
    -> [n, heads * e]; 0 over nothing."""
    (n, heads, e), (t, kv_heads, _) = q.shape, k.shape
    if not t:
        return np.zeros((n, heads * e), np.float32)
    grouped = q.reshape(n, kv_heads, -1, e).transpose(1, 2, 0, 3)  # [kv_heads, group, n, e]
    scores = grouped @ k.transpose(1, 2, 0)[:, None] * np.float32(e**-0.5)
    if visible is not None:
        scores = np.where(visible, scores, np.float32(-np.inf))
    weights = np.exp(scores - scores.max(-1, keepdims=True))
    weights /= weights.sum(-1, keepdims=True)
    found: Array = (weights @ v.transpose(1, 0, 2)[:, None]).transpose(2, 0, 1, 3).reshape(n, heads * e)
    return found


NDArrayBool = np.ndarray[tuple[int, ...], np.dtype[np.bool_]]


class _Store:
    """Keys and values [n, kv_heads, e] that grow at the end."""

    def __init__(self, heads: int, head_dim: int) -> None:
        self.k, self.v = (np.zeros((0, heads, head_dim), np.float32) for _ in "kv")

    def __len__(self) -> int:
        return len(self.k)

    def extend(self, k: Array, v: Array) -> None:
        self.k, self.v = np.concatenate([self.k, k]), np.concatenate([self.v, v])

    def take(self, rows: Sequence[int] | slice) -> tuple[Array, Array]:
        return self.k[rows], self.v[rows]


class PortableMoaDraft:
    """See `runtimes.base.DraftRuntime`."""

    def __init__(self, moa: PortableMoa, kv_heads: tuple[int, int], source: Vectors, context: int, rows: int):
        """For a conversation of `context` positions, with `rows` uncommitted ones; kv_heads: over tokens, to
        memory."""
        self.moa, self.source, self.capacity, self.rows = moa, source, context, rows
        self.tokens, self.slots, self.memory = (
            _Store(heads, moa.config.head_dim) for heads in (kv_heads[0], *kv_heads)
        )
        self.parents = np.zeros(0, dtype=np.int64)  # of the slots

    @property
    def length(self) -> int:
        return len(self.tokens)

    def prefill(self, tokens: Sequence[int]) -> Iterator[int]:
        for start in range(0, len(tokens), PREFILL_ROWS):
            block = tokens[start : start + PREFILL_ROWS]
            places = np.arange(self.length, self.length + len(block))
            self.tokens.extend(*self.moa.keys("over_tokens", self.moa.embed(block), places))
            yield start + len(block)

    def remember(self) -> None:
        """Take in the vectors that have come."""
        start, stop = len(self.memory), min(self.source.length, self.capacity)
        if start < stop:
            vectors = self.moa.projected(self.source.vectors(start, stop))
            self.memory.extend(*self.moa.keys("to_memory", vectors, np.arange(start, stop)))

    def begin(self, tokens: Sequence[int], parents: Sequence[int]) -> PortableMoaPass:
        return PortableMoaPass(self, tokens, parents)

    def commit(self, path: Sequence[int], keep: Sequence[int]) -> None:
        self.tokens.extend(*self.slots.take(list(path)))
        number = {slot: new for new, slot in enumerate(keep)}
        self.parents = np.array([number.get(int(self.parents[slot]), -1) for slot in keep], dtype=np.int64)
        self.slots.k, self.slots.v = self.slots.take(list(keep))

    def truncate(self, length: int) -> None:
        self.tokens.k, self.tokens.v = self.tokens.take(slice(length))
        self.memory.k, self.memory.v = self.memory.take(slice(length))
        self.commit([], [])


class PortableMoaPass:
    """See `runtimes.base.DraftPass`: a part is one of the two attentions, or the head."""

    def __init__(self, draft: PortableMoaDraft, tokens: Sequence[int], parents: Sequence[int]) -> None:
        self.draft, self._done = draft, 0
        self.hidden = draft.moa.embed(tokens)  # [n, d]
        draft.parents = np.concatenate([draft.parents, np.asarray(parents, dtype=np.int64)])
        self._first = len(draft.slots)
        self.positions = draft.length + slot_depths(draft.parents)[self._first :]
        k, v = draft.moa.keys("over_tokens", self.hidden, self.positions)
        draft.slots.extend(k, v)

    def advance(self) -> bool:
        (self._over_tokens, self._to_memory, self._say)[self._done]()
        self._done += 1
        return self._done == 3

    def _over_tokens(self) -> None:
        draft, moa = self.draft, self.draft.moa
        k, v = (
            np.concatenate(both)
            for both in zip(draft.tokens.take(slice(None)), draft.slots.take(slice(None)), strict=True)
        )
        seen = np.ones((len(self.hidden), len(k)), dtype=bool)
        seen[:, draft.length :] = _ancestors(draft.parents)[self._first :]
        q = moa.queries("over_tokens", self.hidden, self.positions)
        self.hidden = moa.after("over_tokens", self.hidden, attention(q, k, v, seen))

    def _to_memory(self) -> None:
        draft, moa = self.draft, self.draft.moa
        draft.remember()
        q = moa.queries("to_memory", self.hidden, self.positions)
        self.hidden = moa.after("to_memory", self.hidden, attention(q, draft.memory.k, draft.memory.v, None))

    def _say(self) -> None:
        """Raises ModelError for NaN."""
        self.logits: Array = self.draft.moa.logits(self.hidden)
        if not np.isfinite(self.logits).all():
            raise ModelError("the MoA drafter has computed NaN; its files are damaged: export it again")


def _ancestors(parents: IntArray) -> NDArrayBool:
    """[n, n]: whether one slot is another's ancestor, or itself."""
    seen = np.eye(len(parents), dtype=bool)
    for slot, parent in enumerate(parents):
        if parent >= 0:
            seen[slot] |= seen[parent]
    return seen
