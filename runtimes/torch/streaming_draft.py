"""One conversation's use of a speculative streaming drafter: see `runtimes.torch.streaming`.

Its cache has a token's keys and values of the main stream alone. Those of lookahead streams lie in slots
behind a pass's own until that has ended:

    committed prefix │ slots: nodes ... │ this pass's nodes │ streams of the first, of the second, ...
"""

from __future__ import annotations

import weakref
from collections.abc import Iterator, Sequence
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray

from edgespec.errors import ModelError
from edgespec.kernels.threads import use_threads
from edgespec.runtimes.base import PREFILL_ROWS
from edgespec.runtimes.config import ModelConfig
from edgespec.runtimes.formats.needs import cache_bytes
from edgespec.runtimes.rows import Rows
from edgespec.runtimes.torch.attention import AttentionPlan
from edgespec.runtimes.torch.blocks import swiglu_bytes
from edgespec.runtimes.torch.exit import HeadPass
from edgespec.runtimes.torch.kv_cache import TorchKVCache
from edgespec.runtimes.torch.streaming import Streaming, StreamingShape
from edgespec.runtimes.torch.target import TorchTarget


class StreamingDraft:
    """See `runtimes.base.DraftRuntime`. Embedding and head are those of `target`."""

    def __init__(
        self, module: Streaming, target: TorchTarget[Any], context: int, rows: int, width: int
    ) -> None:
        """For a conversation of `context` positions, with `rows` uncommitted ones. A pass over up to `width`
        of them has streams, one over more goes without."""
        self.module, self.target, self.rows, self.width = module, target, rows, width
        self.streams = self.most_streams = module.shape.streams  # that speak; the rest are not run
        slots = rows + width * module.shape.streams
        self.cache = TorchKVCache(module.cached, context, slots, target.dtype, target.device)
        self._latest: weakref.ref[StreamingPass] | None = None

    @property
    def length(self) -> int:
        return self.cache.length

    @property
    def capacity(self) -> int:
        return self.cache.capacity

    @property
    def beyond(self) -> NDArray[np.float32]:
        """[n, streams, V] what the latest pass says of the tokens behind the next one, as long as
        somebody has that pass."""
        under_way = self._latest and self._latest()
        return under_way.beyond if under_way else np.empty((0, 0, 0), np.float32)

    def prefill(self, tokens: Sequence[int]) -> Iterator[int]:
        """Runs blocks of a prompt's size, a layer at a time."""
        for start in range(0, len(tokens), PREFILL_ROWS):
            block = tokens[start : start + PREFILL_ROWS]
            try:
                rows = Rows.append(self.cache, np.arange(-1, len(block) - 1), prefill=True)
                attention = AttentionPlan(rows, self.target.device)
                hidden = self.target.embed(block)
                for index in range(self.module.shape.layers):
                    use_threads(self.target.threads)
                    hidden = self.module.run_layer(index, hidden, rows, attention)
                    if index < self.module.shape.layers - 1:
                        yield start
                self.cache.commit(np.arange(len(block)))
            except BaseException:
                self.cache.truncate(self.cache.length)
                raise
            yield start + len(block)

    def begin(self, tokens: Sequence[int], parents: Sequence[int]) -> StreamingPass:
        under_way = StreamingPass(self, tokens, parents)
        self._latest = weakref.ref(under_way)
        return under_way

    def commit(self, path: Sequence[int], keep: Sequence[int]) -> None:
        self.cache.commit(path, keep)

    def truncate(self, length: int) -> None:
        self.cache.truncate(length)


class StreamingPass:
    """See `runtimes.base.DraftPass`: a part is a layer, or a block of the head."""

    def __init__(self, draft: StreamingDraft, tokens: Sequence[int], parents: Sequence[int]) -> None:
        self.draft, self.n = draft, len(tokens)
        self.streams = draft.streams if self.n <= draft.width else 0
        self.rows = Rows.append(draft.cache, parents)
        self.attention = AttentionPlan(self.rows, draft.target.device)
        self.hidden = draft.target.embed(tokens)  # [n, d], and streams behind them: [n (1 + streams), d]
        self.layer = 0  # the next to run
        self._head: HeadPass | None = None

    @torch.inference_mode()
    def advance(self) -> bool:
        draft, module = self.draft, self.draft.module
        use_threads(draft.target.threads)
        if self._head is not None:
            return self._head.advance()
        if self.layer == module.before and self.streams:
            self._branch()
        self.hidden = module.run_layer(self.layer, self.hidden, self.rows, self.attention)
        self.layer += 1
        if self.layer == module.shape.layers:
            self._end()
        return False

    def _branch(self) -> None:
        """Streams enter: to attention each is one token more behind the one before it."""
        draft, nodes, gamma = self.draft, self.rows.slots, self.streams
        first = len(draft.cache.parents)
        parents = first - 1 + np.arange(self.n * gamma).reshape(self.n, gamma)
        parents[:, 0] = nodes
        slots = draft.cache.append(parents.ravel())
        self.rows = Rows.of(draft.cache, np.concatenate([nodes, slots]))
        self.attention = AttentionPlan(self.rows, draft.target.device)
        self.hidden = torch.cat([self.hidden, draft.module.streams(self.hidden).flatten(0, 1)])

    def _end(self) -> None:
        """Nobody attends to streams any more. Raises ModelError for NaN."""
        draft = self.draft
        if self.streams:
            draft.cache.commit([], range(int(self.rows.slots[self.n - 1]) + 1))
        normed = draft.module.normed(self.hidden)
        if not bool(torch.isfinite(normed).all()):
            draft.cache.wipe()  # nothing of it may stay where a later pass looks
            raise ModelError("the streaming drafter's outputs are not finite numbers: train it again")
        self._head = draft.target.head_pass(normed)

    @property
    def logits(self) -> NDArray[np.float32]:
        assert self._head is not None
        return self._head.logits[: self.n]

    @property
    def beyond(self) -> NDArray[np.float32]:
        """[n, streams, V]"""
        assert self._head is not None
        said = self._head.logits
        return said[self.n :].reshape(self.n, self.streams, said.shape[1])


def conversation_bytes(
    config: ModelConfig, shape: StreamingShape, context: int, rows: int, width: int, element: int
) -> int:
    """Of one conversation's cache, as `StreamingDraft` makes it, of `element`-byte numbers."""
    return cache_bytes(shape.cached(config), context, rows + width * shape.streams, element)


def pass_bytes(config: ModelConfig, shape: StreamingShape, rows: int, width: int, element: int) -> int:
    """Temporaries of a pass of `rows`, or of `width` with streams, at their peak: in an MLP, or the head,
    whose logits are kept until the next."""
    rows = max(rows, width * (1 + shape.streams))
    layer = shape.layer(config)
    mlp = max(rows, PREFILL_ROWS) * layer.intermediate_size * swiglu_bytes(element)
    states = max(rows, PREFILL_ROWS) * (6 * config.hidden_size + 2 * layer.q_size) * element
    return mlp + states + rows * config.vocab_size * (element + 8)
