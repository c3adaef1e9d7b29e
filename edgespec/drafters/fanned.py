"""Drafting ahead as SSD does it: a fixed number of outcomes by how many drafted tokens they accept.

Beside best first (`drafters.ahead`), to compare with. No torch.
"""

from __future__ import annotations

from collections.abc import Generator, Sequence

import numpy as np

from edgespec.core.acceptance import Outcome
from edgespec.core.schedule import TreeBudget
from edgespec.core.tree import TokenTree
from edgespec.drafters.ahead import Ahead
from edgespec.drafters.forest import Node
from edgespec.drafters.growth import Preparer


class Fanned(Ahead):
    """See `drafters.base.DraftingAhead`. First the verified tree is run; then each outcome has a chain of the
    drafter's first choices, and all chains grow level by level.

    fan_out: [K + 1] outcomes to prepare for, by the number of accepted tokens (F_k of SSD's Definition 10).
        In a tree they are the likeliest of all nodes at depth k.
    """

    def __init__(
        self, drafter: Preparer, verified: TokenTree, budget: TreeBudget, fan_out: Sequence[int]
    ) -> None:
        super().__init__(drafter, verified, budget)
        self.fan_out = fan_out
        self._slots: dict[int, int] = {}  # of the verified tree's nodes, those that are still to be run too

    def _grow(self) -> Generator[None, None, None]:
        root, ran = yield from self._reach()
        if root is None:
            return
        if ran:
            yield
        yield from self._run(self._missing(root))
        chains = [
            (slot, token, k + 1)
            for k, count in enumerate(self.fan_out)
            for _, slot, token in self.guesses(k)[:count]
        ]
        while wanted := [(slot, token) for slot, token, depth in chains if depth < self.depth]:
            yield from self._run([node for node in dict.fromkeys(wanted) if node not in self.forest.slots])
            here = self.forest.slots
            chains = [
                (here[slot, token], int(self.forest.said[here[slot, token]][0][0]), depth + 1)
                for slot, token, depth in chains
                if (slot, token) in here
            ]

    def _run(self, nodes: Sequence[Node]) -> Generator[None, None, None]:
        """New nodes, parents before children, in passes of the drafter's width, as far as there is room."""
        for start in range(0, len(nodes), self.width):
            batch = list(nodes[start : start + self.width])[: self.forest.free_rows]
            if not batch:
                return
            yield from self._count(batch)
            yield

    def _missing(self, root: int) -> list[Node]:
        """The verified tree's nodes that have no slot, likeliest first: they get the next ones in order."""
        tree, forest = self.verified, self.forest
        missing = list[Node]()
        slots = self._slots = {0: root}
        for node in np.argsort(-tree.scores, kind="stable")[1:].tolist():
            parent = slots.get(int(tree.parents[node]))
            if parent is None or tree.depths[node] >= self.depth:
                continue
            key = parent, int(tree.tokens[node])
            if key in forest.slots:
                slots[node] = forest.slots[key]
            elif len(missing) < forest.free_rows:
                slots[node] = len(forest.slots) + len(missing)
                missing.append(key)
        return missing

    def guesses(self, accepted: int) -> list[tuple[float, int, int]]:
        """Outcomes that accept so many tokens, likeliest first: log-probability, slot of the last accepted
        token, bonus token. Of nodes that have been run."""
        tree, found = self.verified, list[tuple[float, int, int]]()
        for node in np.flatnonzero(tree.depths == accepted).tolist():
            slot = self._slot(node)
            if slot is None:
                continue
            drafted = set(tree.tokens[tree.children(node)].tolist())
            for token, logprob in zip(*(said.tolist() for said in self.forest.said[slot]), strict=True):
                if token not in drafted and logprob > float("-inf"):
                    found.append((float(tree.scores[node]) + logprob, slot, token))
        return sorted(found, key=lambda guess: -guess[0])

    def rank(self, outcome: Outcome) -> int | None:
        """The place of an outcome among the guesses, their number when it is not there; None where nobody has
        asked what follows its last node."""
        slot = self._slot(int(outcome.path[-1]))
        if slot is None:
            return None
        places = [guess[1:] for guess in self.guesses(outcome.accepted)]
        guess = slot, outcome.bonus
        return places.index(guess) if guess in places else len(places)

    def _slot(self, node: int) -> int | None:
        """Of a node of the verified tree, once it has been run."""
        slot = self._slots.get(node)
        return slot if slot in self.forest.said else None
