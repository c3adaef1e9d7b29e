"""The torch draft runtime: a model whose weights are in memory, with one conversation's cache."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from typing import Any

import numpy as np
from numpy.typing import NDArray

from edgespec.errors import ModelError
from edgespec.kernels.threads import use_threads
from edgespec.runtimes.base import PREFILL_ROWS, KVCache
from edgespec.runtimes.formats.describe import ModelFiles
from edgespec.runtimes.rows import Rows
from edgespec.runtimes.torch.exit import HeadPass
from edgespec.runtimes.torch.target import TorchTarget
from edgespec.runtimes.torch.warm_up import warm_up
from edgespec.runtimes.torch.weights import Weights


def open_draft(
    files: ModelFiles, rows: int, progress: Callable[[int], None] | None = None
) -> TorchTarget[Weights]:
    """A model with all its weights in memory, and room for `rows` uncommitted rows a pass.

    Raises StorageError and CorruptFileError; `progress` gets bytes read.
    """
    warm_up(files.table, files.dtype)
    weights = Weights(files.table, 0, files.dtype)
    try:
        weights.pin(range(len(files.table.chunks)), progress=progress)
        if not files.table.tied:  # drafting must not wait for flash
            weights.embedding.keep(True)
    except BaseException:
        weights.close()
        raise
    return TorchTarget(files.config, weights, rows)


class TorchDraft:
    """See `runtimes.base.DraftRuntime`.

    model: has room for `rows` uncommitted rows a pass.
    cache: of `model`, or an overlay of a cache of the target that it stands in for: then what is committed
        are the target's own keys and values.
    """

    def __init__(self, model: TorchTarget[Any], cache: KVCache) -> None:
        self.model, self.cache = model, cache
        self.rows = model.slots

    @staticmethod
    def alone(model: TorchTarget[Any], context: int) -> TorchDraft:
        """With a cache of its own, for a conversation of `context` positions or what the model allows."""
        return TorchDraft(model, model.new_cache(min(context, model.config.max_context)))

    @property
    def length(self) -> int:
        return self.cache.length

    @property
    def capacity(self) -> int:
        return self.cache.capacity

    def prefill(self, tokens: Sequence[int]) -> Iterator[int]:
        """Runs blocks of a prompt's size, a layer at a time. Raises ModelError for NaN."""
        hidden = None
        for start in range(0, len(tokens), PREFILL_ROWS):
            block = tokens[start : start + PREFILL_ROWS]
            try:
                shared = self.model.prepare(
                    Rows.append(self.cache, np.arange(-1, len(block) - 1), prefill=True)
                )
                hidden = self.model.embed(block)
                for index in range(self.model.config.layers):
                    hidden = self.model.run_layer(index, hidden, shared)
                    if index < self.model.config.layers - 1:
                        yield start
                self.cache.commit(np.arange(len(block)))
            except BaseException:
                self.cache.truncate(self.cache.length)
                raise
            yield start + len(block)
        if hidden is not None:
            self.model.normed(hidden[-1:])  # a damaged model is found out before it drafts

    def begin(self, tokens: Sequence[int], parents: Sequence[int]) -> TorchDraftPass:
        return TorchDraftPass(self.model, self.cache, tokens, parents)

    def commit(self, path: Sequence[int], keep: Sequence[int]) -> None:
        self.cache.commit(path, keep)

    def truncate(self, length: int) -> None:
        self.cache.truncate(length)


class TorchDraftPass:
    """See `runtimes.base.DraftPass`: a part is a layer, or a block of the head."""

    def __init__(
        self, model: TorchTarget[Any], cache: KVCache, tokens: Sequence[int], parents: Sequence[int]
    ) -> None:
        self.model, self.cache = model, cache
        self.shared = model.prepare(Rows.append(cache, parents))
        self.hidden = model.embed(tokens)
        self.layer = 0  # the next to run
        self._head: HeadPass | None = None

    def advance(self) -> bool:
        if self.layer < self.model.config.layers:
            self.hidden = self.model.run_layer(self.layer, self.hidden, self.shared)
            self.layer += 1
            return False
        if self._head is None:
            try:
                normed = self.model.normed(self.hidden)
            except ModelError:  # NaN: nothing of it may stay where a later pass looks
                self.cache.wipe()
                raise
            self._head = self.model.head_pass(normed)
        use_threads(self.model.threads)
        return self._head.advance()

    @property
    def logits(self) -> NDArray[np.float32]:
        assert self._head is not None
        return self._head.logits
