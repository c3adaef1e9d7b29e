"""Drafting while a tree is being verified: below every outcome it may have, before one is known. No torch.

An outcome is a node of the verified tree and a bonus token that is none of its children (behind a leaf, any).
So what to prepare is the tree itself, grown on beyond what is verified: a path's probability is that of the
outcome on it x that of what follows the bonus token. Best first by it, the work may end anywhere, and what
was done was what promised most.

    verified   once ─┬─ upon ─── a ─── time     its nodes have slots first, likeliest first; those that were
                     └─ there                   expanded when the tree was drafted cost nothing
    ahead            ├─ in ┄ the                outcome (once, in), and what may follow it
                          └─ on ┄ a             outcome (once upon, on)

The next round goes on in the forest below the bonus token: the forest is the speculation cache. Its tree has
no more nodes than the budget says, so no outcome is prepared for beyond these: the likeliest one would take
what others lack.

While the work goes on, somebody who knows the target better may say what follows the verified nodes (its own
early exit: `schedules.mirror`). Then all outcomes are ranked anew, those that only he thinks of among them.
"""

from __future__ import annotations

from collections.abc import Generator, Mapping
from dataclasses import dataclass
from heapq import heappop, heappush, heappushpop
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


@dataclass(frozen=True, slots=True)
class _Open:
    """A node that may be run.

    score: log-probability of its path.
    node: its number in the verified tree, or BEYOND.
    outcome: below which it lies; None in the verified tree.
    """

    score: float
    parent: int  # its slot
    token: int
    node: int
    depth: int
    outcome: Node | None


class Ahead(Growing):
    """See `drafters.base.Hearing`; best first over all outcomes (SSD's cache, for trees)."""

    def __init__(self, drafter: Preparer, verified: TokenTree, budget: TreeBudget) -> None:
        """`budget.depth`: of the deepest node, from the verified tree's root on; `budget.nodes`: of the next
        round's tree."""
        super().__init__(drafter, [Root((int(verified.tokens[0]),))])
        self.verified, self.depth = verified, budget.depth
        self.inner = max(budget.nodes - 1, 1)  # of a tree's nodes the last one needs no slot
        self.passes = self.nodes = 0
        self.width = drafter.ahead_width
        self._open: list[tuple[float, int, _Open]] = []  # parents have a slot; -score, age
        self._best: dict[Node, list[float]] = {}  # by outcome: scores of what is expanded below it, a heap
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
            for key, opened in batch.items():
                self._say(self.forest.slots[key], opened)

    def _rank(self) -> None:
        """Go through all that is there (again), from the root on."""
        assert self._root is not None
        self._open, self._anew = [], False
        self._best.clear()
        root = _Open(0.0, -1, int(self.verified.tokens[0]), 0, 0, None)
        self._say(self._root, root)
        self._follow(self._root, root)

    def _count(self, nodes: list[Node]) -> Generator[None, None, None]:
        yield from self.forest.ahead(len(nodes), self._ask(nodes))
        self.nodes += len(nodes)
        self.passes += 1

    def _likeliest(self) -> dict[Node, _Open]:
        """What the next pass runs: the likeliest nodes that have no slot. What has a slot is gone through on
        the way."""
        forest, batch = self.forest, dict[Node, _Open]()
        most = min(forest.breadth.width(self.width), forest.free_rows - self._reserved)
        while self._open and len(batch) < most:
            _, _, opened = heappop(self._open)
            if opened.outcome is not None and opened.score < self._best[opened.outcome][0]:
                continue  # better ones have come up since
            key = opened.parent, opened.token
            slot = forest.slots.get(key)
            if slot is None:
                slot = len(forest.slots) + len(batch)
                batch[key] = opened
            else:
                self._say(slot, opened)
            if opened.node != BEYOND:  # its tokens are known: a branch of them may be run in one pass
                self._follow(slot, opened)
        return batch

    def _follow(self, slot: int, above: _Open) -> None:
        """What is known to follow a node of the verified tree before the drafter says it: its children there,
        and what was heard."""
        children = self.verified.children(above.node)
        tokens = self.verified.tokens[children].tolist()
        logprobs = self.verified.logprobs[children].tolist()
        for child, token, own in zip(children.tolist(), tokens, logprobs, strict=True):
            self._push(above, slot, token, own, child)
        said = self._own(slot)
        for token in self._heard.get(above.node, ()):
            if token not in tokens:
                self._push(above, slot, token, said.get(token, -inf))

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

    def _say(self, slot: int, above: _Open) -> None:
        """What else may follow a node that has been run: by the drafter, beyond the verified tree."""
        known = set[int]()
        if above.node != BEYOND:
            known.update(self.verified.tokens[self.verified.children(above.node)].tolist())
            known.update(self._heard.get(above.node, ()))
        for token, logprob in self._own(slot).items():
            if token not in known:
                self._push(above, slot, token, min(logprob, 0.0))

    def _push(self, above: _Open, slot: int, token: int, own: float, node: int = BEYOND) -> None:
        """A token behind the one in `slot`, with the drafter's log-probability for it."""
        score, depth = above.score + self._mixed(above.node, token, own), above.depth + 1
        if depth >= self.depth or score <= LEAST:
            return  # nobody asks what follows it, or hardly ever
        outcome = None if node != BEYOND else above.outcome or (slot, token)
        if outcome is not None:
            best = self._best.setdefault(outcome, [])
            if len(best) < self.inner:
                heappush(best, score)
            elif heappushpop(best, score) == score:
                return
        opened = _Open(score, slot, token, node, depth, outcome)
        heappush(self._open, (-score, next(self._age), opened))
