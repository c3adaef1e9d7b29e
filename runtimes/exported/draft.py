"""The draft runtime of an exported model that an engine has open, with one conversation's cache. No torch.

    keys, values    a layer: [kv_heads, C, head_dim]: what is committed, the slots, and room

A pass reads the cache, and what it makes of its rows is put behind the slots. So to go back is to forget a
number, slots are committed by moving them, and the rows of several branches, or roots, run in one call: by
the mask each sees its own ancestors.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from typing import Any, Protocol

import numpy as np
from numpy.typing import NDArray

from edgespec.errors import ContextError
from edgespec.runtimes.base import IntArray
from edgespec.runtimes.config import ModelConfig
from edgespec.runtimes.exported.host import PassRows
from edgespec.runtimes.rows import kept_parents, slot_depths, with_slots

GROWTH = 256  # positions that a cache begins with, where it may grow; then a half more each time
BLOCK = 64  # it has a multiple of
Run = Callable[..., NDArray[Any]]  # as `OpenModel.run`


class OpenModel(Protocol):
    """An exported model that an engine has open, shared by conversations."""

    config: ModelConfig
    positions: int  # of a cache; 0 = any

    @property
    def most_rows(self) -> int:
        """Of one call."""

    def new_cache(self, positions: int) -> NDArray[Any]:
        """Keys, or values, of one layer: [kv_heads, positions, head_dim]."""

    def run(self, tokens: Sequence[int], rows: PassRows, cache: Sequence[NDArray[Any]]) -> NDArray[Any]:
        """States [n, d] behind the last norm, of n rows; their keys and values go into the cache, to
        `rows.place` and behind. Raises ModelError where states are not finite."""

    def head(self, normed: NDArray[Any], logits: NDArray[np.float32]) -> None:
        """Fills logits [n, V]. Raises ModelError where they are not finite."""


class ExportedDraft:
    """See `runtimes.base.DraftRuntime`."""

    def __init__(self, model: OpenModel, capacity: int, rows: int) -> None:
        """For a conversation of `capacity` positions, or what the model has room for beside `rows` slots."""
        self.model, self.rows = model, rows
        self.capacity = min(capacity, model.config.max_context)
        if model.positions:
            self.capacity = max(0, min(self.capacity, model.positions - rows))
        self.length = 0
        self._parents: IntArray = np.empty(0, dtype=np.int64)
        self._depths: IntArray = self._parents
        self._sees = np.zeros((rows, rows), dtype=np.bool_)  # a slot itself and its ancestors
        self._held = model.positions or min(GROWTH, self._most)  # positions of the cache
        self._cache = [
            model.new_cache(self._held) for _ in range(2 * model.config.layers)
        ]  # keys, values, keys...

    @property
    def _most(self) -> int:
        return -(-(self.capacity + self.rows) // BLOCK) * BLOCK

    def prefill(self, tokens: Sequence[int]) -> Iterator[int]:
        """Runs a pass of the largest size at a time, without the LM head. Raises ModelError for what is not
        finite."""
        for start in range(0, len(tokens), self.model.most_rows):
            block = tokens[start : start + self.model.most_rows]
            self._hold(self.length + len(block))
            chain = np.tril(np.ones((len(block), len(block)), dtype=np.bool_))
            self._run(block, np.arange(len(block)), chain)
            self.length += len(block)
            yield start + len(block)

    def begin(self, tokens: Sequence[int], parents: Sequence[int]) -> ExportedDraftPass:
        joined, first = with_slots(self._parents, parents), len(self._parents)
        if len(joined) > self.rows:
            raise ContextError(f"{len(joined)} slots; there is room for {self.rows}")
        self._hold(self.length + len(joined))
        self._adopt(joined, first)
        return ExportedDraftPass(self, tokens, first)

    def commit(self, path: Sequence[int], keep: Sequence[int]) -> None:
        parents = kept_parents(self._parents, path, keep)
        if self.length + len(path) > self.capacity:
            raise ContextError(f"{self.length + len(path)} positions; there is room for {self.capacity}")
        stay = np.array([*path, *keep], dtype=np.int64)
        if not np.array_equal(stay, np.arange(len(stay))):
            for part in self._cache:
                part[:, self.length : self.length + len(stay)] = part[:, self.length + stay]
        self.length += len(path)
        self._adopt(parents, 0)

    def truncate(self, length: int) -> None:
        if not 0 <= length <= self.length:
            raise ValueError(f"length {length} of {self.length}")
        self.length = length
        self._adopt(self._parents[:0], 0)

    def step(self, tokens: Sequence[int], first: int) -> NDArray[Any]:
        """States [n, d], for the LM head, of slots from `first` on; earlier ones have been run. Raises
        ModelError for what is not finite, and nothing of it stays."""
        last = first + len(tokens)
        return self._run(tokens, self._depths[first:last], self._sees[first:last, :last])

    def _run(
        self, tokens: Sequence[int], depths: IntArray, sees: NDArray[np.bool_], run: Run | None = None
    ) -> NDArray[Any]:
        """Run n rows, of these depths behind what is committed, behind m slots; `sees` [n, m + n]: which of
        those, and of one another, they see. run: another way than the model's own."""
        n, place = len(tokens), self.length + sees.shape[1] - len(tokens)
        keys = np.concatenate([np.arange(self.length), self.length + self._depths[: place - self.length]])
        seen = np.concatenate([np.ones((n, self.length), dtype=np.bool_), sees[:, :-n]], axis=1)
        try:
            run = run or self.model.run
            return run(tokens, PassRows(self.length + depths, seen, keys, sees[:, -n:]), self._cache)
        except BaseException:  # 0 times NaN is NaN, also where nobody looks
            for part in self._cache:
                part[:, self.length :] = 0
            raise

    def _adopt(self, parents: IntArray, first: int) -> None:
        """The slots from `first` on are those of `parents`."""
        self._parents, self._depths = parents, slot_depths(parents)
        self._sees[first:] = False
        for slot in range(first, len(parents)):
            if parents[slot] >= 0:
                self._sees[slot] = self._sees[parents[slot]]
            self._sees[slot, slot] = True

    def _hold(self, positions: int) -> None:
        """Have room for so many."""
        if positions <= self._held:
            return
        wanted = max(positions, self._held * 3 // 2)
        self._held, before = min(-(-wanted // BLOCK) * BLOCK, self._most), self._held
        for index, part in enumerate(self._cache):
            self._cache[index] = self.model.new_cache(self._held)
            self._cache[index][:, :before] = part


class ExportedDraftPass:
    """See `runtimes.base.DraftPass`: a part is a call of the largest size."""

    def __init__(self, draft: ExportedDraft, tokens: Sequence[int], first: int) -> None:
        self.draft, self.tokens, self.first = draft, tokens, first
        self.done = 0
        self._logits = np.empty((len(tokens), draft.model.config.vocab_size), dtype=np.float32)

    def advance(self) -> bool:
        model = self.draft.model
        part = self.tokens[self.done : self.done + model.most_rows]
        normed = self.draft.step(part, self.first + self.done)
        model.head(normed, self._logits[self.done : self.done + len(part)])
        self.done += len(part)
        return self.done == len(self.tokens)

    @property
    def logits(self) -> NDArray[np.float32]:
        assert self.done == len(self.tokens)
        return self._logits
