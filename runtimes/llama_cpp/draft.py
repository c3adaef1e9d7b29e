"""The llama.cpp draft runtime: a GGUF model, with one conversation's cache. Needs no torch.

    sequence 0          what is committed
    sequence 1, 2 ...   of a slot: what is committed, its ancestors, and the slot itself

A row sees what is of its sequence, so a slot's is its parent's and one cell more: cells are marked, and
never moved. Branches and roots share a call. To commit a path is to mark it for sequence 0; to go back is to
cut off all sequences. What a slot's sequence has of what is committed, it keeps for the next slot.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence

import numpy as np
from numpy.typing import NDArray

from edgespec.errors import ContextError, ModelError
from edgespec.runtimes.base import IntArray
from edgespec.runtimes.llama_cpp.files import SLOTS, STEP_ROWS
from edgespec.runtimes.llama_cpp.model import LlamaCppModel
from edgespec.runtimes.rows import kept_parents, slot_depths, with_slots


class LlamaCppDraft:
    """See `runtimes.base.DraftRuntime`."""

    rows = SLOTS

    def __init__(self, model: LlamaCppModel, capacity: int) -> None:
        """For a conversation of `capacity` positions, or what the model has. Raises ModelError."""
        self.model, self.capacity = model, min(capacity, model.files.max_context)
        self.context = model.new_context(self.capacity)
        self.length = 0
        self._parents: IntArray = np.empty(0, dtype=np.int64)
        self._depths: IntArray = self._parents
        self._sequences: list[int] = []  # of slots
        self._free = list(range(SLOTS, 0, -1))
        self._held = [0] * (SLOTS + 1)  # by sequence: positions of what is committed, which it keeps

    def prefill(self, tokens: Sequence[int]) -> Iterator[int]:
        """Raises ModelError."""
        for start in range(0, len(tokens), STEP_ROWS):
            block = list(tokens[start : start + STEP_ROWS])
            positions = list(range(self.length, self.length + len(block)))
            self.context.run(self._known(block), positions, [[0]] * len(block), logits=False)
            self.length += len(block)
            yield start + len(block)

    def begin(self, tokens: Sequence[int], parents: Sequence[int]) -> LlamaCppPass:
        joined, first = with_slots(self._parents, parents), len(self._parents)
        if len(joined) > self.rows:
            raise ContextError(f"{len(joined)} slots; there is room for {self.rows}")
        self._adopt(joined)
        self._sequences += [self._free.pop() for _ in tokens]
        return LlamaCppPass(self, list(tokens), first)

    def commit(self, path: Sequence[int], keep: Sequence[int]) -> None:
        parents = kept_parents(self._parents, path, keep)
        before = self.length
        if before + len(path) > self.capacity:
            raise ContextError(f"{before + len(path)} positions; there is room for {self.capacity}")
        if path:
            self.context.copy(self._sequences[path[-1]], 0, before)
            self.length += len(path)
        kept = [self._sequences[slot] for slot in keep]
        for sequence in set(self._sequences) - set(kept):
            self._release(sequence)
        self._sequences = kept
        self._adopt(parents)

    def truncate(self, length: int) -> None:
        if not 0 <= length <= self.length:
            raise ValueError(f"length {length} of {self.length}")
        for sequence in self._sequences:
            self._release(sequence)
        self.context.remove(-1, length)
        self._held = [min(held, length) for held in self._held]
        self._sequences, self.length = [], length
        self._adopt(self._parents[:0])

    def step(self, tokens: Sequence[int], first: int, logits: NDArray[np.float32]) -> None:
        """Fills `logits` [n, V], of slots from `first` on; earlier ones have been run. Raises ModelError."""
        count, marks = len(tokens), [[sequence] for sequence in self._sequences[first : first + len(tokens)]]
        for row in range(count):
            above = int(self._parents[first + row])
            while above >= first:  # it is run by this call, and of its descendants' sequences
                marks[above - first].append(marks[row][0])
                above = int(self._parents[above])
            sequence = marks[row][0]
            self.context.copy(self._sequences[above] if above >= 0 else 0, sequence, self._held[sequence])
            self._held[sequence] = self.length
        positions = (self.length + self._depths[first : first + count]).tolist()
        found = self.context.run(self._known(tokens), positions, marks, logits=True)
        logits[:] = np.ctypeslib.as_array(found, logits.shape)
        if not np.isfinite(logits).all():
            raise ModelError(
                f"{self.model.files.path}: the logits are not finite numbers; fetch the model again"
            )

    def _release(self, sequence: int) -> None:
        """It is of no slot any more."""
        self.context.remove(sequence, self._held[sequence])
        self._free.append(sequence)

    def _known(self, tokens: Sequence[int]) -> list[int]:
        """A target may have more tokens, which nobody says: any will do."""
        return [min(int(token), self.model.vocabulary - 1) for token in tokens]

    def _adopt(self, parents: IntArray) -> None:
        self._parents, self._depths = parents, slot_depths(parents)


class LlamaCppPass:
    """See `runtimes.base.DraftPass`: a part is a call of `STEP_ROWS`."""

    def __init__(self, draft: LlamaCppDraft, tokens: Sequence[int], first: int) -> None:
        self.draft, self.tokens, self.first = draft, tokens, first
        self._logits = np.empty((len(tokens), draft.model.vocabulary), np.float32)
        self.done = 0

    def advance(self) -> bool:
        part = slice(self.done, self.done + STEP_ROWS)
        self.draft.step(self.tokens[part], self.first + self.done, self._logits[part])
        self.done = min(part.stop, len(self.tokens))
        return self.done == len(self.tokens)

    @property
    def logits(self) -> NDArray[np.float32]:
        assert self.done == len(self.tokens)
        return self._logits
