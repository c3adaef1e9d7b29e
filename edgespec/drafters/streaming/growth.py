"""Growing trees with lookahead streams: a step verifies what the step before it named, and names more.

Needs no torch. What streams name beyond a node is run in the pass that runs the node itself. The main stream
then says whether it agrees: what it proposes and has been run costs no pass, so a pass grows a branch by all
tokens that it agrees with and one (Mirror-SD, section 3.2: eta tokens a step).

    pass 1   once                      main: upon, there ...      streams: a, time
    pass 2   once ── upon ── a ── time    upon: a!   a: quiet, time   time: ...
                └─ there
             kept: upon, a, and what follows them; `quiet` is run next, with what streams named beyond `a`

A tree ends with what the streams named beyond its leaves, that no pass of the drafter has verified.
"""

from __future__ import annotations

from collections.abc import Generator, Sequence
from dataclasses import replace
from heapq import heappop, heappush
from itertools import count
from typing import Protocol

import numpy as np
from numpy.typing import NDArray

from edgespec.core.sampling import FloatArray, IntArray
from edgespec.core.tree import TokenTree, TreeBuilder
from edgespec.drafters.ahead import LEAST, Ahead
from edgespec.drafters.continuations import following, possible
from edgespec.drafters.forest import Forest, Node
from edgespec.drafters.growth import KNOWN, BestFirst, Growing, Preparer

NAMED = 3  # tokens kept of each stream


class StreamingGrower(Preparer, Protocol):
    """A drafter whose model has lookahead streams."""

    named: int  # nodes that a pass may take along beyond those that it is over

    @property
    def beyond(self) -> NDArray[np.float32]:
        """[n, gamma, V] what the latest pass says of the tokens behind the next one, by its rows."""


class Streamed(Growing):
    """A pass over nodes takes along what streams have named beyond them, if rows are left."""

    drafter: StreamingGrower

    @property
    def spare(self) -> int:
        """Rows that may be taken."""
        return self.forest.free_rows

    def _ask(self, nodes: Sequence[Node]) -> Generator[None, None, None]:
        forest, context, first = self.forest, self.drafter.context, len(self.forest.slots)

        def read(slots: range, logits: NDArray[np.float32], positions: list[int]) -> None:
            said = zip(*following(logits, KNOWN, context, positions), strict=True)
            forest.said.update(zip(slots, said, strict=True))
            beyond = self.drafter.beyond[slots.start - first : slots.stop - first, :, : forest.vocabulary]
            for slot, rows, position in zip(slots, beyond, positions, strict=True):
                places = range(position + 1, position + 1 + len(rows))
                forest.beyond[slot] = list(zip(*following(rows, NAMED, context, places), strict=True))

        most = min(self.drafter.named, self.spare - len(nodes))
        yield from forest.run([*nodes, *foreseen(forest, nodes, most)], read)


def foreseen(forest: Forest, nodes: Sequence[Node], most: int) -> list[Node]:
    """What streams have named beyond `nodes`, which are run next: the likeliest, parents first."""
    first, age = len(forest.slots), count()
    order, scores = [*forest.slots, *nodes], {-1: 0.0}  # by slot

    def likely(slot: int) -> float:
        """The log-probability of its path."""
        if slot not in scores:
            parent, token = order[slot]
            own = possible(*forest.said[parent]).get(token, 0.0) if parent in forest.said else 0.0
            scores[slot] = likely(parent) + own
        return scores[slot]

    waiting: list[tuple[float, int, int, int, int, int]] = []

    def push(score: float, slot: int, base: int, depth: int) -> None:
        """What hangs below `slot`, by what stream number `depth` of `base` says."""
        for token, logprob in named(forest, base, depth).items():
            if score + logprob > LEAST:
                heappush(waiting, (-score - logprob, next(age), slot, token, base, depth))

    taken = dict.fromkeys(nodes)
    for slot, (parent, _) in enumerate(nodes, first):
        push(likely(slot), slot, parent, 0)
    found: list[Node] = []
    while waiting and len(found) < most:
        score, _, parent, token, base, depth = heappop(waiting)
        if (parent, token) not in taken:
            push(-score, first + len(nodes) + len(found), base, depth + 1)
            found.append((parent, token))
    return found


def named(forest: Forest, slot: int, depth: int) -> dict[int, float]:
    """What stream number `depth` of a slot says: log-probabilities by token."""
    said = forest.beyond.get(slot, [])
    return possible(*said[depth]) if depth < len(said) else {}


class StreamedTree(Streamed, BestFirst):
    """See `drafters.growth.BestFirst`."""

    def _grow(self) -> Generator[None, None, None]:
        yield from super()._grow()
        for builder, known in zip(self.builders, self.slots, strict=True):
            self._lengthen(builder, known)

    def tree(self, root: int = 0) -> TokenTree:
        ran = np.isin(self.builders[root].selection, list(self.slots[root]))
        return replace(super().tree(root), run=ran)

    def _lengthen(self, builder: TreeBuilder, known: dict[int, int]) -> None:
        """What streams name beyond a tree's leaves: node -> the slot whose streams speak of its children, and
        the number of that which does."""
        speaks: dict[int, tuple[int, int]] = {}
        while True:
            said: dict[int, tuple[IntArray, FloatArray]] = {}
            for node in builder.frontier(builder.nodes).tolist():
                parent = int(builder.parents[node])
                if parent in known:
                    speaks[node] = known[parent], 0
                elif parent in speaks:
                    speaks[node] = speaks[parent][0], speaks[parent][1] + 1
                slot, depth = speaks.get(node, (-1, 0))
                streams = self.forest.beyond.get(slot, [])
                if depth < len(streams):
                    said[node] = streams[depth]
            if not said:
                return
            tokens, logprobs = (np.stack(column) for column in zip(*said.values(), strict=True))
            builder.expand(np.array(list(said)), tokens, logprobs)


class StreamedAhead(Streamed, Ahead):
    """See `drafters.ahead.Ahead`."""

    @property
    def spare(self) -> int:
        return self.forest.free_rows - self._reserved
