"""One conversation's use of a Mixture-of-Attentions network: see `runtimes.torch.moa`.

What it knows of the target is a memory of what is committed, a vector a token, made once for each; drafts are
slots of its own attention over tokens, and see all of that memory, however far they have gone beyond it.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Any, Protocol

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from edgespec.errors import ModelError
from edgespec.kernels.dispatch import attend
from edgespec.kernels.reference import Mask
from edgespec.kernels.threads import use_threads
from edgespec.runtimes.base import PREFILL_ROWS, KVCache
from edgespec.runtimes.config import ModelConfig
from edgespec.runtimes.formats.moa_sizes import MoaSizes, memory_width
from edgespec.runtimes.formats.needs import round_up
from edgespec.runtimes.rows import Rows
from edgespec.runtimes.torch.attention import AttentionPlan
from edgespec.runtimes.torch.exit import HeadPass
from edgespec.runtimes.torch.kv_cache import TorchKVCache
from edgespec.runtimes.torch.moa import Moa, committed_states
from edgespec.runtimes.torch.moa_tail import Tail
from edgespec.runtimes.torch.target import TorchTarget

# Numbers of tokens times layers that go through the attention over layers in one part: 64 of an 8B model's
# shape are two tokens, and take 6 GFLOP.
PART_ROWS = 64


class Memory(Protocol):
    """Memory vectors of what the target has committed, from wherever its keys and values are."""

    @property
    def length(self) -> int:
        """Tokens that there are vectors of."""

    def vectors(self, start: int, stop: int) -> Tensor:
        """[stop - start, 2 E_kv]."""


class LocalMemory:
    """See `Memory`: made from the conversation's own cache of the target, which it only reads."""

    def __init__(self, moa: Moa, cache: KVCache) -> None:
        self.moa, self.cache = moa, cache

    @property
    def length(self) -> int:
        return self.cache.length

    def vectors(self, start: int, stop: int) -> Tensor:
        return self.moa.summary(committed_states(self.cache, start, stop))


class MoaDraft:
    """See `runtimes.base.DraftRuntime`. Embedding and head are those of `target`."""

    def __init__(
        self,
        moa: Moa,
        target: TorchTarget[Any],
        source: Memory,
        context: int,
        rows: int,
        tail: Tail | None = None,
    ) -> None:
        """For a conversation of `context` positions, with `rows` uncommitted ones; `tail`: where drafts go
        through the target's last layers."""
        self.moa, self.target, self.source, self.rows, self.tail = moa, target, source, rows, tail
        self.tokens, self.memory = moa.new_caches(context, rows)

    @property
    def length(self) -> int:
        return self.tokens.length

    @property
    def capacity(self) -> int:
        return self.tokens.capacity

    def prefill(self, tokens: Sequence[int]) -> Iterator[int]:
        """Keys and values of tokens follow from their embedding alone; their memory is made behind them."""
        for start in range(0, len(tokens), PREFILL_ROWS):
            block = tokens[start : start + PREFILL_ROWS]
            self._follow(block)
            yield start + len(block)
        while self.remember():
            yield len(tokens)

    @torch.inference_mode()
    def _follow(self, tokens: Sequence[int]) -> None:
        use_threads(self.target.threads)
        positions = np.arange(self.length, self.length + len(tokens))
        k, v = self.moa.followed(self.target.embed(tokens), positions)
        _extend(self.tokens, k, v)

    @torch.inference_mode()
    def remember(self) -> bool:
        """Take in the memory of some more of what the target has committed; False = it was all there."""
        start = self.memory.length
        most = min(self.source.length, self.memory.capacity)
        stop = min(most, start + max(1, PART_ROWS // self.moa.config.layers))
        if start >= stop:
            return False
        use_threads(self.target.threads)
        k, v = self.moa.recalled(self.source.vectors(start, stop), np.arange(start, stop))
        _extend(self.memory, k, v)
        return True

    def begin(self, tokens: Sequence[int], parents: Sequence[int]) -> MoaPass:
        return MoaPass(self, tokens, parents)

    def commit(self, path: Sequence[int], keep: Sequence[int]) -> None:
        self.tokens.commit(path, keep)
        if self.tail is not None:
            self.tail.commit(path, keep)

    def truncate(self, length: int) -> None:
        self.tokens.truncate(length)
        self.memory.truncate(min(length, self.memory.length))
        if self.tail is not None:
            self.tail.truncate(length)


class MoaPass:
    """See `runtimes.base.DraftPass`: a part is some memory, one of the two attentions, a layer of the tail,
    or a block of the head."""

    def __init__(self, draft: MoaDraft, tokens: Sequence[int], parents: Sequence[int]) -> None:
        self.draft = draft
        self.rows = Rows.append(draft.tokens, parents)
        self.hidden = draft.target.embed(tokens)  # [n, d]
        self._through = None if draft.tail is None else draft.tail.begin(parents, draft.length)
        self._done = 0  # of the layers
        self._head: HeadPass | None = None

    @torch.inference_mode()
    def advance(self) -> bool:
        draft, tail = self.draft, self.draft.tail
        if not self._done and draft.remember():
            return False
        use_threads(draft.target.threads)
        if self._head is not None:
            return self._head.advance()
        if self._done < 2:
            (self._over_tokens, self._to_memory)[self._done]()
        elif tail is not None and self._through is not None:
            self.hidden = tail.run(tail.layers[self._done - 2], self.hidden, self._through)
        self._done += 1
        if self._done == 2 + (0 if tail is None else len(tail.layers)):
            normed = self.hidden if tail is None else draft.target.normed(self.hidden)
            self._head = draft.target.head_pass(normed)
        return False

    def _over_tokens(self) -> None:
        moa, places = self.draft.moa, self.rows.positions
        q, (k, v) = moa.token_queries(self.hidden, places), moa.followed(self.hidden, places)
        attended = AttentionPlan(self.rows, self.hidden.device)(0, q, k, v, None)
        self.hidden = moa.over_tokens.after(self.hidden, attended)

    def _to_memory(self) -> None:
        """Raises ModelError for NaN."""
        moa = self.draft.moa
        q = moa.memory_queries(self.hidden, self.rows.positions)
        self.hidden = moa.output(moa.to_memory.after(self.hidden, _recall(q, self.draft.memory)))
        if not bool(torch.isfinite(self.hidden).all()):
            self.draft.tokens.wipe()  # nothing of it may stay where a later pass looks
            raise ModelError("the MoA drafter's outputs are not finite numbers: train it again")

    @property
    def logits(self) -> NDArray[np.float32]:
        assert self._head is not None
        return self._head.logits


def _recall(q: Tensor, memory: TorchKVCache) -> Tensor:
    """q [n, heads, e] over all that is remembered -> [n, heads * e]; 0 where that is nothing."""
    (n, heads, e), kv_heads, length = q.shape, memory.k.shape[1], memory.length
    if not length:
        return q.new_zeros(n, heads * e)
    end = round_up(length)  # whole blocks: torch keeps compiled code for each remainder that it meets
    known = Mask((torch.arange(end, device=q.device) < length)[None, None, None])
    grouped = q.view(n, kv_heads, -1, e).transpose(0, 1).reshape(1, kv_heads, -1, e)
    k, v = (kv[:, :, :end] for kv in (memory.k, memory.v))
    out, _ = attend(grouped, k, v, known, e**-0.5)
    return out.view(kv_heads, n, -1, e).transpose(0, 1).reshape(n, -1)


def _extend(cache: TorchKVCache, k: Tensor, v: Tensor) -> None:
    """Commit k, v [n, kv_heads, e] behind what is there."""
    chain = np.arange(len(k))
    try:
        cache.write(0, cache.places(cache.append(chain - 1)), k, v)
        cache.commit(chain)
    except BaseException:
        cache.truncate(cache.length)
        raise


def pass_bytes(config: ModelConfig, sizes: MoaSizes, rows: int, element: int) -> int:
    """Temporaries of a pass of so many rows, at their peak: in a part of the memory, an MLP, or the head."""
    over_layers = max(PART_ROWS, config.layers) * (12 * memory_width(config) + 4 * sizes.mlp[0])
    mlp = rows * (6 * config.hidden_size + 4 * max(sizes.mlp[1:]))
    return max(over_layers, mlp) * element + rows * config.vocab_size * (element + 4)
