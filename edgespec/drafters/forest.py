"""The nodes that a draft model has run behind what is committed, and what it said follows them. No torch.

Leaves of a tree have no slot: nobody has asked what comes after them. Trees of several roots, and of several
rounds, share what they begin with.
"""

from __future__ import annotations

from collections.abc import Callable, Generator, Sequence
from math import inf
from time import perf_counter
from typing import Protocol
from weakref import WeakSet

import numpy as np
from numpy.typing import NDArray

from edgespec.core.sampling import Distribution, FloatArray, IntArray
from edgespec.drafters.breadth import BEFORE, Breadth
from edgespec.drafters.continuations import rows_at_once
from edgespec.runtimes.base import DraftPass
from edgespec.runtimes.rows import slot_depths

Node = tuple[int, int]  # slot of the parent, or -1 = the last committed token; token

Read = Callable[[range, NDArray[np.float32], list[int]], None]
"""What follows some slots: their logits [n, V], and the absolute positions [n] that these are of."""


class SlotRuntime(Protocol):
    """What a forest needs of who runs its nodes: a `runtimes.base.DraftRuntime`, but for how that follows a
    conversation's tokens."""

    @property
    def length(self) -> int: ...

    @property
    def rows(self) -> int: ...

    def begin(self, tokens: Sequence[int], parents: Sequence[int]) -> DraftPass: ...

    def commit(self, path: Sequence[int], keep: Sequence[int]) -> None: ...

    def truncate(self, length: int) -> None: ...


# Tokens of a distribution that is kept; of a vocabulary of 1536, at temperature 1, 512 have all but 0.0002 of
# the probability.
KEPT = 1024


def kept_bytes(rows: int, vocabulary: int) -> int:
    """Of the distributions kept for so many nodes, at most: the room of all conversations together."""
    return rows * min(KEPT, vocabulary) * 16


class Room:
    """The memory that all conversations with one open drafter have together for what their chains are drawn
    from."""

    def __init__(self, nbytes: float = inf) -> None:
        self.nbytes = nbytes
        self._forests = WeakSet[Forest]()

    def add(self, forest: Forest) -> None:
        self._forests.add(forest)

    @property
    def left(self) -> float:
        """Bytes. A distribution of few tokens counts as one of `KEPT`: how many have any chance depends on
        those before, and whether a token is drawn must not depend on other chains' (`drawn.draw`)."""
        return self.nbytes - sum(
            max(q.nbytes, kept_bytes(1, forest.vocabulary))
            for forest in self._forests
            for q, _ in forest.drawn.values()
        )


class Forest:
    """The slots of a `SlotRuntime` as nodes.

    vocabulary: of the target; where the draft model's is padded further, the padding is never proposed.
    room: for what chains are drawn from.
    """

    def __init__(self, runtime: SlotRuntime, vocabulary: int, room: Room | None = None) -> None:
        self.runtime, self.vocabulary = runtime, vocabulary
        self.room = room or Room()
        self.slots: dict[Node, int] = {}
        self.said: dict[int, tuple[IntArray, FloatArray]] = {}  # by slot: likeliest tokens, log-probabilities
        self.drawn: dict[
            int, tuple[Distribution, int]
        ] = {}  # by slot, in chains: what its child is drawn from
        # By slot, where lookahead streams spoke: likeliest tokens behind the next one, behind that, ...
        self.beyond: dict[int, list[tuple[IntArray, FloatArray]]] = {}
        self.work: Generator[None, None, None] | None = None  # of the latest round
        self.keeps = False  # that round was stopped: the next one, or what lies below its outcome, goes on
        self.kept = False  # the last commit did
        self.breadth = Breadth()  # of passes ahead, and of those before verification, which share memory
        self.breadth_before = Breadth(BEFORE)  # with none
        self.seconds = 0.0  # that the latest pass took, without what was done between its parts
        self._dropping = False
        self.room.add(self)

    @property
    def free_rows(self) -> int:
        """Nodes that may still be run."""
        return self.runtime.rows - len(self.slots)

    def path(self, tokens: Sequence[int]) -> list[int]:
        """Slots of the beginning of a path of tokens, as far as it is here."""
        found: list[int] = []
        for token in tokens:
            slot = self.slots.get((found[-1] if found else -1, token))
            if slot is None:
                break
            found.append(slot)
        return found

    def run(self, nodes: Sequence[Node], read: Read) -> Generator[None, None, None]:
        """One pass over new nodes, and `read` what follows them, part by part. Left in the middle, it leaves
        nothing."""
        before, rows, seconds = len(self.slots), rows_at_once(self.vocabulary), 0.0
        try:
            parents, began = [parent for parent, _ in nodes], perf_counter()
            under_way = self.runtime.begin([token for _, token in nodes], parents)
            while not under_way.advance():
                seconds += perf_counter() - began
                yield
                began = perf_counter()
            logits = under_way.logits[:, : self.vocabulary]
            depths = slot_depths(np.array([*(parent for parent, _ in self.slots), *parents], dtype=np.int64))
            positions = (self.runtime.length + depths[before:] + 1).tolist()
            for start in range(0, len(nodes), rows):
                if start:
                    seconds += perf_counter() - began
                    yield
                    began = perf_counter()
                part = slice(start, start + rows)
                read(range(before, before + len(nodes))[part], logits[part], positions[part])
            self.seconds = seconds + perf_counter() - began
        except BaseException:
            for slot in range(before, before + len(nodes)):
                self.said.pop(slot, None)
                self.drawn.pop(slot, None)
                self.beyond.pop(slot, None)
            if not self._dropping:
                self.runtime.commit([], range(before))
            raise
        self.slots.update(zip(nodes, range(before, before + len(nodes)), strict=True))

    def ahead(self, nodes: int, work: Generator[None, None, None]) -> Generator[None, None, None]:
        """A pass over so many nodes while the target verifies. How wide later ones are goes by what it took,
        or that it did not come to its end."""
        try:
            yield from work
        except GeneratorExit:
            self.breadth.dropped(nodes)
            raise
        self.breadth.learn(nodes, self.seconds)

    def commit(self, tokens: Sequence[int], bonus: int) -> int:
        """Commit these tokens as far as they are here: how many. If all are, and a round was stopped, then
        `bonus` behind them and what hangs there is kept."""
        self._end()
        path = self.path(tokens)
        keep = (
            self._below((path[-1] if path else -1, bonus)) if self.keeps and len(path) == len(tokens) else []
        )
        self.runtime.commit(path, keep)
        number = {slot: new for new, slot in enumerate(keep)}
        self.slots = {
            (number.get(parent, -1), token): number[slot]
            for (parent, token), slot in self.slots.items()
            if slot in number
        }
        self.said = {number[slot]: said for slot, said in self.said.items() if slot in number}
        self.drawn = {number[slot]: drawn for slot, drawn in self.drawn.items() if slot in number}
        self.beyond = {number[slot]: named for slot, named in self.beyond.items() if slot in number}
        self.keeps, self.kept = False, bool(keep)
        return len(path)

    def _end(self) -> None:
        """A round left in the middle must not go on, nor clean up later, among the next one's slots."""
        if self.work is not None:
            self.work.close()

    def _below(self, top: Node) -> list[int]:
        """Slots of a node and all its descendants, ascending."""
        if top not in self.slots:
            return []
        found = {self.slots[top]: None}
        for (parent, _), slot in self.slots.items():  # in slot order: parents precede children
            if parent in found:
                found[slot] = None
        return list(found)

    def renew(self) -> None:
        """A round of drafting begins: drop what is here, but for what the last commit kept, or what was there
        when the round before was stopped."""
        self._end()
        if not (self.kept or self.keeps):
            self.forget()
        self.kept = self.keeps = False

    def forget(self) -> None:
        """Drop all nodes."""
        self.drop(self.runtime.length)

    def drop(self, length: int) -> None:
        """Drop all nodes, and committed tokens from `length` on."""
        self._dropping = True  # the target's cache may be shorter by now than what a pass in it began with
        try:
            self._end()
        finally:
            self._dropping = False
        self.slots, self.said, self.drawn, self.beyond = {}, {}, {}, {}
        self.keeps = self.kept = False
        self.runtime.truncate(length)
