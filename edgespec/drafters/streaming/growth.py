"""Growing trees with lookahead streams: a step verifies what the step before it named, and names more.

Needs no torch. What streams name beyond a node is run in the pass that runs the node itself. The main stream
then says whether it agrees: what it proposes and has been run costs no pass, so a pass grows a branch by all
tokens that it agrees with and one (Mirror-SD, section 3.2: eta tokens a step).

    pass 1   once                      main: upon, there ...      streams: a, time
    pass 2   once ── upon ── a ── time    upon: a!   a: quiet, time   time: ...
                └─ there
             kept: upon, a, and what follows them; `quiet` is run next, with what streams named beyond `a`

A tree ends with what the streams named beyond its leaves, that no pass of the drafter has verified. Rows that
are taken along cost what any do, so before a verification they are as many as are worth it (`breadth`).
"""

from __future__ import annotations

from collections.abc import Callable, Generator, Mapping, Sequence
from dataclasses import replace
from heapq import heappop, heappush
from itertools import count
from math import exp
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

        yield from forest.run([*nodes, *self._along(nodes)], read)

    def _along(self, nodes: Sequence[Node]) -> list[Node]:
        """What is run beside these nodes."""
        most = min(self.drafter.named, self.spare - len(nodes))
        return list(foreseen(self.forest, nodes, most, likelihoods(self.forest, nodes, {})))


def likelihoods(forest: Forest, nodes: Sequence[Node], known: Mapping[int, float]) -> Callable[[int], float]:
    """The log-probability of a slot's path, those of `nodes`, which are run next, among them; `known` of some
    slots, and what lies below them goes by it."""
    order, scores = [*forest.slots, *nodes], {-1: 0.0, **known}  # by slot

    def likely(slot: int) -> float:
        if slot not in scores:
            parent, token = order[slot]
            own = possible(*forest.said[parent]).get(token, 0.0) if parent in forest.said else 0.0
            scores[slot] = likely(parent) + own
        return scores[slot]

    return likely


def foreseen(
    forest: Forest, nodes: Sequence[Node], most: int, likely: Callable[[int], float]
) -> dict[Node, float]:
    """What streams have named beyond `nodes`, which are run next: the likeliest, parents first, and the
    log-probability of each. likely: see `likelihoods`."""
    first, age = len(forest.slots), count()
    waiting: list[tuple[float, int, int, int, int, int]] = []

    def push(score: float, slot: int, base: int, depth: int) -> None:
        """What hangs below `slot`, by what stream number `depth` of `base` says."""
        for token, logprob in named(forest, base, depth).items():
            if score + logprob > LEAST:
                heappush(waiting, (-score - logprob, next(age), slot, token, base, depth))

    taken = dict.fromkeys(nodes)
    for slot, (parent, _) in enumerate(nodes, first):
        push(likely(slot), slot, parent, 0)
    found: dict[Node, float] = {}
    while waiting and len(found) < most:
        score, _, parent, token, base, depth = heappop(waiting)
        if (parent, token) not in taken:
            push(-score, first + len(nodes) + len(found), base, depth + 1)
            found[parent, token] = -score
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

    def _along(self, nodes: Sequence[Node]) -> list[Node]:
        """As many as are worth their time: one that the main stream will agree with is gone on from without
        another pass, as any that is run."""
        most = min(self.drafter.named, self.spare - len(nodes))
        roots = ((end, root.logprob) for end, root in zip(self.ends, self.roots, strict=True))
        likely = likelihoods(self.forest, nodes, {end: score for end, score in roots if end is not None})
        found = foreseen(self.forest, nodes, most, likely)
        if not self.price:
            return list(found)
        first = len(self.forest.slots)
        scores = [*map(likely, range(first, first + len(nodes))), *found.values()]
        chances = sorted((exp(min(score, 0.0)) for score in scores), reverse=True)
        rows = self.forest.breadth_before.worth(chances, self.price)
        return list(found)[: max(rows - len(nodes), 0)]

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
