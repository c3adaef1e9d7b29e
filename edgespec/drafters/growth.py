"""How a model grows trees: best first, for likely continuations.

Needs no torch. A round of growth is a generator that yields after each part of a pass, so that it can be
resumed, stopped and cancelled anywhere.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Generator, Sequence
from math import exp
from typing import Protocol

import numpy as np
from numpy.typing import NDArray

from edgespec.core.schedule import Context, TreeBudget
from edgespec.core.tree import TokenTree, TreeBuilder
from edgespec.drafters.base import Root
from edgespec.drafters.continuations import following
from edgespec.drafters.forest import Forest, Node

BRANCH = 8  # children proposed for a node
KNOWN = 16  # continuations kept of one: of 100 outcomes 24 were none of the likeliest 8, and 9 none of 16
MAX_PASSES = 16


class Grower(Protocol):
    """A drafter whose model grows trees."""

    width: int  # nodes expanded in one pass, at most: see `drafters.breadth`
    forest: Forest
    context: Context

    @property
    def position(self) -> int:
        """The position of the first token behind those that the target has committed."""

    def trunk(self) -> Generator[None, None, Sequence[int]]:
        """The committed tokens that the forest has still to follow, after what has to be done first, part by
        part."""


class Preparer(Grower, Protocol):
    """One that can go on while the target verifies."""

    ahead_width: int  # nodes of one pass then, at most: see `drafters.breadth`


class Growing(ABC):
    """See `drafters.base.Drafting`. A step is a part of a pass of the drafter's model."""

    def __init__(self, drafter: Grower, roots: Sequence[Root]) -> None:
        self.drafter, self.forest, self.roots = drafter, drafter.forest, roots
        self.work = self.forest.work = self._grow()

    @abstractmethod
    def _grow(self) -> Generator[None, None, None]:
        """All the work, part by part."""

    @abstractmethod
    def tree(self, root: int = 0) -> TokenTree:
        """The best tree so far for the given root."""

    def step(self) -> bool:
        self.drafter.context.check()
        try:
            next(self.work)
        except StopIteration:
            return False
        return True

    def stop(self) -> None:
        self.work.close()
        self.forest.keeps = True

    def cancel(self) -> None:
        self.forest.forget()

    def _ask(self, nodes: Sequence[Node]) -> Generator[None, None, None]:
        """A pass over new nodes, for their likeliest continuations."""

        def read(slots: range, logits: NDArray[np.float32], positions: list[int]) -> None:
            said = zip(*following(logits, KNOWN, self.drafter.context, positions), strict=True)
            self.forest.said.update(zip(slots, said, strict=True))

        yield from self.forest.run(nodes, read)

    def _plant(self) -> Generator[None, None, tuple[list[Node], list[int | None]]]:
        """Nodes of the roots' paths that are not in the forest yet, and the slot each root will have; None
        where there is no room. The likeliest outcomes come first; paths that begin alike share slots."""
        trunk = yield from self.drafter.trunk()
        nodes: list[Node] = []
        known = dict(self.forest.slots)
        ends: list[int | None] = [None] * len(self.roots)
        for i in sorted(range(len(self.roots)), key=lambda i: -self.roots[i].logprob):
            slot, fresh = -1, dict[Node, int]()
            for token in (*trunk, *self.roots[i].path):
                node = slot, token
                if node not in known:
                    fresh[node] = len(known) + len(fresh)
                slot = known[node] if node in known else fresh[node]
            if len(nodes) + len(fresh) <= self.forest.free_rows:
                nodes += fresh
                known |= fresh
                ends[i] = slot
        return nodes, ends


class BestFirst(Growing):
    """A tree for each root. Of all trees the likeliest nodes are expanded first, and those cost no pass that
    the forest has expanded already."""

    def __init__(self, drafter: Grower, roots: Sequence[Root], budget: TreeBudget) -> None:
        super().__init__(drafter, roots)
        self.passes, self.price = budget.passes, budget.price
        self.useful = budget.nodes > 1 and budget.depth > 0
        self.builders = [TreeBuilder(root.token, budget.nodes, budget.depth) for root in roots]
        self.slots: list[dict[int, int]] = [{} for _ in roots]  # by root: expanded node -> slot
        self.ends: list[int | None] = [None] * len(roots)  # slots of the roots

    def tree(self, root: int = 0) -> TokenTree:
        return self.builders[root].tree()

    def _grow(self) -> Generator[None, None, None]:
        if not self.useful or not (self.passes or self.forest.slots):
            return
        nodes, self.ends = yield from self._plant()
        if nodes:
            if not self.passes:
                return
            yield from self._run(nodes)
        self._expand([(i, 0, slot) for i, slot in enumerate(self.ends) if slot is not None])
        while True:
            if nodes:
                yield
            open_nodes = self._frontier()
            chosen = [
                item for item in open_nodes if item[2] in self.forest.slots
            ]  # costs no pass: goes first
            nodes = []
            if not chosen:
                chosen = self._worthwhile(open_nodes[: self.drafter.width])
                nodes = list(dict.fromkeys(key for _, _, key in chosen))[: self.forest.free_rows]
                if not nodes or not self.passes:
                    return
                yield from self._run(nodes)
            here = self.forest.slots
            self._expand([(i, node, here[key]) for i, node, key in chosen if key in here])

    def _worthwhile(self, nodes: list[tuple[int, int, Node]]) -> list[tuple[int, int, Node]]:
        """The first ones, as many as are worth their time in the next pass."""
        if not self.price:
            return nodes
        chances = [exp(self.roots[i].logprob + float(self.builders[i].scores[node])) for i, node, _ in nodes]
        return nodes[: self.forest.breadth_before.worth(chances, self.price)]

    def _run(self, nodes: Sequence[Node]) -> Generator[None, None, None]:
        """A pass over new nodes; rows that a drafter adds of itself are timed with them."""
        self.passes -= 1
        before = len(self.forest.slots)
        yield from self._ask(nodes)
        self.forest.breadth_before.learn(len(self.forest.slots) - before, self.forest.seconds)

    def _frontier(self) -> list[tuple[int, int, Node]]:
        """(root, node of its tree, node of the forest) of those that may be expanded, likeliest first."""
        found = []
        for i, (builder, known) in enumerate(zip(self.builders, self.slots, strict=True)):
            for node in builder.frontier(builder.nodes).tolist() if known else ():
                key = known[int(builder.parents[node])], int(builder.tokens[node])
                found.append((self.roots[i].logprob + float(builder.scores[node]), (i, node, key)))
        found.sort(key=lambda item: -item[0])  # stable
        return [chosen for _, chosen in found]

    def _expand(self, chosen: Sequence[tuple[int, int, int]]) -> None:
        """Let trees have what the forest says: (root, node of its tree, slot)."""
        for i, (builder, known) in enumerate(zip(self.builders, self.slots, strict=True)):
            mine = [(node, slot) for root, node, slot in chosen if root == i]
            if mine:
                known.update(mine)
                said = [self.forest.said[slot] for _, slot in mine]
                tokens, logprobs = (np.stack(column)[:, :BRANCH] for column in zip(*said, strict=True))
                builder.expand(np.array([node for node, _ in mine]), tokens, logprobs)
