"""Drafting while a drawn chain is verified: chains below the outcomes it may have (SSD, Saguaro). No torch.

An outcome is a number k of accepted tokens and a bonus token, which is none that was refused there. The bonus
token is taken to be one of the likeliest ones behind the last accepted token; below each such outcome a chain
is drawn. All of them grow together, by what the outcome's chance and so many accepted tokens more make of it.

    verified   once ── upon ── a                 slots it has already, but for the last
    ahead               └─ on ── a ── time       outcome (1, on)
                               └─ time ── in     outcome (2, time)

`ratio` stays lossless, as the order never depends on a token that is drawn here, and no such token is left
out: what promises little because an unlikely token was drawn is gone on with all the same (`drawn.draw`). So
a chain below an outcome is the one that would be drawn after it, bit for bit, as far as it goes.
"""

from __future__ import annotations

from collections.abc import Generator, Mapping, Sequence
from functools import partial
from heapq import heappop, heappush
from itertools import count, takewhile
from math import exp, inf, log

import numpy as np
from numpy.typing import NDArray

from edgespec.core.acceptance import Outcome
from edgespec.core.schedule import TreeBudget
from edgespec.core.tree import TokenTree
from edgespec.drafters.ahead import LEAST
from edgespec.drafters.base import Root
from edgespec.drafters.continuations import possible
from edgespec.drafters.drawn import draw, say
from edgespec.drafters.forest import Node, Read, kept_bytes
from edgespec.drafters.growth import MAX_PASSES, Growing, Preparer

ACCEPTED = 0.8  # the chance of a drawn token, as this order takes it: the demo model's drafts have 0.87


class DrawnAhead(Growing):
    """See `drafters.base.DraftingAhead`."""

    def __init__(
        self, drafter: Preparer, verified: TokenTree, budget: TreeBudget, fan_out: Sequence[int]
    ) -> None:
        """verified: a chain. fan_out: [K + 1] outcomes to prepare for, by the number of accepted tokens, all
        chains of which grow level by level; (): by their chance."""
        super().__init__(drafter, [Root((int(verified.tokens[0]),))])
        self.verified, self.depth, self.fan_out = verified, budget.depth, fan_out
        self.passes = self.nodes = 0
        self.width = drafter.ahead_width
        self._trunk: list[int] = []  # slots of the verified nodes that have been run
        # Nodes to be run next, one a chain: (-score, age, node, depth in the chain, and from the root on).
        self._open: list[tuple[float, int, Node, int, int]] = []
        self._age = count()

    def tree(self, root: int = 0) -> TokenTree:
        """The verified chain: what is ahead of it shows in the next round."""
        return self.verified

    def guesses(self, accepted: int) -> list[tuple[float, int]]:
        """Log-probability and token of the bonus tokens after so many accepted ones, likeliest first: as the
        drafter has it, but for the one that was refused. Of tokens whose successor has been asked for."""
        said = possible(*self.forest.said[self._trunk[accepted]])
        left = 1.0
        if accepted + 1 < len(self.verified):
            left -= exp(said.pop(int(self.verified.tokens[accepted + 1]), -inf))
        return [(logprob - log(left), token) for token, logprob in said.items() if left > 0]

    def rank(self, outcome: Outcome) -> int | None:
        if outcome.accepted >= len(self._trunk):
            return None
        tokens = [token for _, token in self.guesses(outcome.accepted)]
        return tokens.index(outcome.bonus) if outcome.bonus in tokens else len(tokens)

    def _grow(self) -> Generator[None, None, None]:
        if self.depth < 1:
            return
        ran = yield from self._follow()
        self._foresee()
        while batch := self._next():
            if ran:
                yield
            ran = True
            depths = dict(enumerate((drawn for _, _, drawn, _ in batch), len(self.forest.slots)))
            yield from self._run([node for _, node, _, _ in batch], partial(self._draw, depths))
            for score, node, drawn, depth in batch:
                slot = self.forest.slots[node]
                following = slot, self.forest.drawn[slot][1]
                self._push(score + log(ACCEPTED), following, drawn + 1, depth + 1)

    def _run(self, nodes: list[Node], read: Read) -> Generator[None, None, None]:
        yield from self.forest.ahead(len(nodes), self.forest.run(nodes, read))
        self.nodes += len(nodes)
        self.passes += 1

    def _draw(
        self, depths: Mapping[int, int], slots: range, logits: NDArray[np.float32], positions: list[int]
    ) -> None:
        """See `drafters.forest.Read`: draw behind slots of chains, which are `depths` long, by slot."""
        for slot, row, position in zip(slots, logits, positions, strict=True):
            draw(self.drafter, slot, row, position, depths[slot], ahead=True)

    def _follow(self) -> Generator[None, None, bool]:
        """Run what there is not yet of the verified chain, as far as there is room: whether that was any."""
        nodes, (slot,) = yield from self._plant()
        first, trunk = len(self.forest.slots), list[int]()
        for token in [*self.verified.tokens[1:].tolist(), None]:
            if slot is None or len(trunk) == self.depth:
                break
            trunk.append(slot)
            slot = self.forest.slots.get((slot, token))
            room = len(nodes) < self.forest.free_rows and len(trunk) < self.depth
            if slot is None and token is not None and room:
                nodes.append((trunk[-1], token))
                slot = first + len(nodes) - 1
        if nodes:
            yield from self._run(nodes, partial(self._say, trunk))
        self._trunk = list(takewhile(self.forest.said.__contains__, trunk))
        return bool(nodes)

    def _say(
        self, trunk: Sequence[int], slots: range, logits: NDArray[np.float32], positions: list[int]
    ) -> None:
        """See `drafters.forest.Read`: what may follow the verified nodes."""
        for slot, row in zip(slots, logits, strict=True):
            if slot in trunk:
                say(self.forest, slot, self.drafter.context.sampler.distribution(row))

    def _foresee(self) -> None:
        """Open the chains below the outcomes."""
        for accepted in range(len(self._trunk)):
            found = self.guesses(accepted)
            if self.fan_out:
                found = [(0.0, token) for _, token in found[: self.fan_out[accepted]]]
            else:
                ends = log(1 - ACCEPTED) if accepted + 1 < len(self.verified) else 0.0
                found = [(accepted * log(ACCEPTED) + ends + logprob, token) for logprob, token in found]
            for score, token in found:
                self._push(score, (self._trunk[accepted], token), 0, accepted + 1)

    def _push(self, score: float, node: Node, drawn: int, depth: int) -> None:
        """A chain may go on with this node, `drawn` tokens behind its bonus token. What it has there, of a
        chain that was cut where it was verified, is gone through."""
        while (slot := self.forest.slots.get(node)) is not None:
            if slot not in self.forest.drawn:
                return
            node, drawn, depth = (slot, self.forest.drawn[slot][1]), drawn + 1, depth + 1
        if depth < self.depth and drawn < MAX_PASSES and (self.fan_out or score > LEAST):
            heappush(self._open, (-score, next(self._age), node, drawn, depth))

    def _next(self) -> list[tuple[float, Node, int, int]]:
        """What the next pass runs: score, node, its chain's drawn tokens, and its depth from the root on."""
        room = max(self.forest.room.left, 0) // kept_bytes(1, self.forest.vocabulary)
        most = int(min(self.forest.breadth.width(self.width), self.forest.free_rows, len(self._open), room))
        popped = [heappop(self._open) for _ in range(most)]
        return [(-score, node, drawn, depth) for score, _, node, drawn, depth in popped]
