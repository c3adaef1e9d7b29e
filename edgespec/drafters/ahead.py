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

While the work goes on, somebody who knows the target better may say what follows the verified nodes (its own
early exit: `schedules.mirror`). Then all outcomes are ranked anew, those that only he thinks of among them.
"""

from __future__ import annotations

from collections.abc import Generator, Mapping
from heapq import heappop, heappush
from inspect import GEN_CLOSED, getgeneratorstate
from itertools import count
from math import exp, inf, log

from edgespec.core.acceptance import Outcome
from edgespec.core.schedule import TreeBudget
from edgespec.core.tree import TokenTree
from edgespec.drafters.base import Root
from edgespec.drafters.continuations import possible
from edgespec.drafters.forest import Node
from edgespec.drafters.growth import Growing, Preparer

LEAST = -8.0  # log-probability; what is less likely would only take memory's time from the target
BEYOND = -1  # the number of a node that is not in the verified tree


class Ahead(Growing):
    """See `drafters.base.Hearing`; best first over all outcomes (SSD's cache, for trees)."""

    def __init__(self, drafter: Preparer, verified: TokenTree, budget: TreeBudget) -> None:
        """`budget.depth`: of the deepest node, from the verified tree's root on; nothing else is limited."""
        super().__init__(drafter, [Root((int(verified.tokens[0]),))])
        self.verified, self.depth = verified, budget.depth
        self.passes = self.nodes = 0
        self.width = drafter.ahead_width
        # Nodes whose parent has a slot: (-log-probability, age, parent's slot, token, node, depth).
        self._open: list[tuple[float, int, int, int, int, int]] = []
        self._age = count()
        self._heard: Mapping[int, Mapping[int, float]] = {}  # log-probabilities, by node and token
        self._trust = 0.0
        self._anew = False  # the order is to be made again, when the pass under way has ended
        self._reserved = 0  # rows
        self._root: int | None = None  # its slot

    seconds: float | None = None

    def tree(self, root: int = 0) -> TokenTree:
        """The verified tree: what is ahead of it shows in the next round."""
        return self.verified

    def rank(self, outcome: Outcome) -> int | None:
        """Nobody asks: it makes no difference."""
        return None

    def expect(self) -> None:
        self._reserved = self.forest.free_rows // 2

    def hear(self, said: Mapping[int, Mapping[int, float]], trust: float) -> None:
        self._heard, self._trust, self._reserved, self._anew = said, trust, 0, True
        if getgeneratorstate(self.work) == GEN_CLOSED:  # it had nothing left to do
            self.work = self.forest.work = self._grow()

    def believed(self, node: int, token: int) -> float:
        slot = self._root
        for below in self.verified.path_to(node)[1:].tolist():
            if slot is not None:
                slot = self.forest.slots.get((slot, int(self.verified.tokens[below])))
        said = {} if slot is None else self._own(slot)
        drafted = [c for c in self.verified.children(node).tolist() if self.verified.tokens[c] == token]
        return exp(max([said.get(token, -inf), *(float(self.verified.logprobs[c]) for c in drafted)]))

    def _reach(self) -> Generator[None, None, tuple[int | None, bool]]:
        """Run what leads to the root: its slot, None where there is nothing to do or no room; and whether
        anything was run."""
        if self.depth < 1:
            return None, False
        nodes, (root,) = yield from self._plant()
        if root is not None and nodes:
            yield from self._count(nodes)
        return root, bool(nodes)

    def _grow(self) -> Generator[None, None, None]:
        self._root, ran = yield from self._reach()
        if self._root is None:
            return
        self._rank()
        while batch := self._likeliest():
            if ran:
                yield
            ran = True
            yield from self._count(list(batch))
            if self._anew:
                self._rank()
                continue
            for key, (score, node, depth) in batch.items():
                self._say(self.forest.slots[key], node, score, depth)

    def _rank(self) -> None:
        """Go through all that is there (again), from the root on."""
        assert self._root is not None
        self._open, self._anew = [], False
        self._say(self._root, 0, 0.0, 0)
        self._follow(self._root, 0, 0.0, 0)

    def _count(self, nodes: list[Node]) -> Generator[None, None, None]:
        yield from self._ask(nodes)
        self.nodes += len(nodes)
        self.passes += 1

    def _likeliest(self) -> dict[Node, tuple[float, int, int]]:
        """What the next pass runs: the likeliest nodes that have no slot, and for each its log-probability,
        its number in the verified tree and its depth. What has a slot is gone through on the way."""
        forest, batch = self.forest, dict[Node, tuple[float, int, int]]()
        most = min(self.width, forest.free_rows - self._reserved)
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
                self._follow(slot, node, score, depth)
        return batch

    def _follow(self, slot: int, node: int, score: float, depth: int) -> None:
        """What is known to follow a node of the verified tree before the drafter says it: its children there,
        and what was heard."""
        children = self.verified.children(node)
        tokens = self.verified.tokens[children].tolist()
        logprobs = self.verified.logprobs[children].tolist()
        for child, token, own in zip(children.tolist(), tokens, logprobs, strict=True):
            self._push(score + self._mixed(node, token, own), slot, token, child, depth + 1)
        said = self._own(slot)
        for token in self._heard.get(node, ()):
            if token not in tokens:
                mixed = self._mixed(node, token, said.get(token, -inf))
                self._push(score + mixed, slot, token, BEYOND, depth + 1)

    def _own(self, slot: int) -> dict[int, float]:
        """What the drafter says of a slot: log-probabilities by token; nothing before it was run."""
        if slot not in self.forest.said:
            return {}
        return possible(*self.forest.said[slot])

    def _mixed(self, node: int, token: int, own: float) -> float:
        """The drafter's log-probability, `own`, and what was heard: both distributions, by trust."""
        if node not in self._heard:
            return own
        heard = exp(self._heard[node].get(token, -inf))
        mixed = self._trust * heard + (1 - self._trust) * exp(own)
        return log(mixed) if mixed > 0 else -inf

    def _say(self, slot: int, node: int, score: float, depth: int) -> None:
        """What else may follow a node that has been run: by the drafter, beyond the verified tree."""
        known = set[int]()
        if node != BEYOND:
            known.update(self.verified.tokens[self.verified.children(node)].tolist())
            known.update(self._heard.get(node, ()))
        for token, logprob in self._own(slot).items():
            if token not in known:
                self._push(
                    score + self._mixed(node, token, min(logprob, 0.0)), slot, token, BEYOND, depth + 1
                )

    def _push(self, score: float, slot: int, token: int, node: int, depth: int) -> None:
        if depth < self.depth and score > LEAST:  # else nobody asks what follows it, or hardly ever
            heappush(self._open, (-score, next(self._age), slot, token, node, depth))
