"""Drafting while a tree is being verified: below every outcome it may have, before one is known. No torch.

An outcome is a node of the verified tree and a bonus token that is none of its children (behind a leaf, any).
So what to prepare is the tree itself, grown on beyond what is verified: a path's probability is that of the
outcome on it x that of what follows the bonus token. Best first by it, the work may end anywhere, and what
was done was what promised most.

    verified   once ─┬─ upon ─── a ─── time     its nodes have slots first, likeliest first; those that were
                     └─ there                   expanded when the tree was drafted cost nothing
    ahead            ├─ in ┄ the                outcome (once, in), and what may follow it
                          └─ on ┄ a             outcome (once upon, on)

The next round goes on in the forest below the bonus token: the forest is the speculation cache.
"""

from __future__ import annotations

from collections.abc import Generator
from heapq import heappop, heappush
from itertools import count

from edgespec.core.acceptance import Outcome
from edgespec.core.schedule import TreeBudget
from edgespec.core.tree import TokenTree
from edgespec.drafters.base import Root
from edgespec.drafters.forest import Node
from edgespec.drafters.growth import Growing, Preparer

LEAST = -6.0  # log-probability; what is less likely would only take memory's time from the target
BEYOND = -1  # the number of a node that is not in the verified tree


class Ahead(Growing):
    """See `drafters.base.DraftingAhead`; best first over all outcomes (SSD's cache, for trees)."""

    def __init__(self, drafter: Preparer, verified: TokenTree, budget: TreeBudget) -> None:
        """`budget.depth`: of the deepest node, from the verified tree's root on; nothing else is limited."""
        super().__init__(drafter, [Root((int(verified.tokens[0]),))])
        self.verified, self.depth = verified, budget.depth
        self.nodes, self.width = 0, drafter.ahead_width
        # Nodes whose parent has a slot: (-log-probability, age, parent's slot, token, node, depth).
        self._open: list[tuple[float, int, int, int, int, int]] = []
        self._age = count()

    def tree(self, root: int = 0) -> TokenTree:
        """The verified tree: what is ahead of it shows in the next round."""
        return self.verified

    def stop(self) -> None:
        super().stop()
        self.forest.keeps = True

    def rank(self, outcome: Outcome) -> int | None:
        """Nobody asks: it makes no difference."""
        return None

    def _grow(self) -> Generator[None, None, None]:
        if self.depth < 1:
            return
        nodes, (root,) = yield from self._plant()
        if root is None:
            return
        if nodes:
            yield from self._count(nodes)
        self._say(root, 0, 0.0, 0)
        self._follow(root, 0, 0)
        while batch := self._likeliest():
            if nodes:
                yield
            nodes = list(batch)
            yield from self._count(nodes)
            for key, (score, node, depth) in batch.items():
                self._say(self.forest.slots[key], node, score, depth)

    def _count(self, nodes: list[Node]) -> Generator[None, None, None]:
        yield from self._ask(nodes)
        self.nodes += len(nodes)

    def _likeliest(self) -> dict[Node, tuple[float, int, int]]:
        """What the next pass runs: the likeliest nodes that have no slot, and for each its log-probability,
        its number in the verified tree and its depth. What has a slot is gone through on the way."""
        forest, batch = self.forest, dict[Node, tuple[float, int, int]]()
        most = min(self.width, forest.free_rows)
        while self._open and len(batch) < most:
            score, _, parent, token, node, depth = heappop(self._open)
            key, score = (parent, token), -score
            slot = forest.slots.get(key)
            if slot is None:
                slot = len(forest.slots) + len(batch)
                batch[key] = score, node, depth
            else:
                self._say(slot, node, score, depth)
            if node != BEYOND:  # its tokens are known: a branch of them may be run in one pass
                self._follow(slot, node, depth)
        return batch

    def _follow(self, slot: int, node: int, depth: int) -> None:
        """The children that a node has in the verified tree."""
        for child in self.verified.children(node).tolist():
            token, score = int(self.verified.tokens[child]), float(self.verified.scores[child])
            self._push(score, slot, token, child, depth + 1)

    def _say(self, slot: int, node: int, score: float, depth: int) -> None:
        """What else may follow a node that has been run: beyond the verified tree."""
        verified = set[int]()
        if node != BEYOND:
            verified = set(self.verified.tokens[self.verified.children(node)].tolist())
        for token, logprob in zip(*(found.tolist() for found in self.forest.said[slot]), strict=True):
            if token not in verified and logprob > float("-inf"):
                self._push(score + min(logprob, 0.0), slot, token, BEYOND, depth + 1)

    def _push(self, score: float, slot: int, token: int, node: int, depth: int) -> None:
        if depth < self.depth and score > LEAST:  # else nobody asks what follows it, or hardly ever
            heappush(self._open, (-score, next(self._age), slot, token, node, depth))
