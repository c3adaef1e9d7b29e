"""Chains *drawn* from a draft model's distribution, as `ratio` acceptance needs them. Needs no torch.

A drafter may draw from whatever it likes, as long as it draws independently and says what it drew from. Where
the next chains are prepared while one is verified, that is not the model's own distribution, for two reasons:

    its `KEPT` likeliest alone    the distribution of each token that is prepared has to be kept, and that of
                                  a vocabulary of 128k takes 2 MB
    Saguaro sampling              of the very likeliest a little less, so that where a token is refused, the
    (SSD, Definition 14)          target's own is rather one of those that are prepared for
"""

from __future__ import annotations

from collections.abc import Generator, Mapping, Sequence
from functools import partial

import numpy as np
from numpy.typing import NDArray

from edgespec.core.sampling import DRAFT_DRAW, Distribution, largest, saguaro
from edgespec.core.schedule import TreeBudget
from edgespec.core.tree import TokenTree
from edgespec.drafters.base import Root
from edgespec.drafters.forest import KEPT, Forest, Node
from edgespec.drafters.growth import KNOWN, Grower, Growing

FAN_OUT = 4  # bonus tokens that are prepared for behind a place of a chain, about
# C of Definition 14. For the demo model and its 0.5b draft (temperature 1, 480 tokens, F = 4) and C = 1, 0.9,
# 0.6 and 0.2, a drafted token is accepted in 0.874, 0.874, 0.871 and 0.849 of cases, and foreseen is 0.545,
# 0.551, 0.574 and 0.652 of what follows a refused one. By Theorem 7, with chains of 6 that take 0.15 to 0.8
# passes to draft, 0.9 is within 0.1 % of the best, and 0.2 loses 5 to 6 %.
WEIGHT = 0.9


def draw(
    drafter: Grower, slot: int, logits: NDArray[np.float32], position: int, depth: int, ahead: bool
) -> None:
    """Draw the token of a chain that follows this slot, at absolute `position`, by the slot's row [V].

    depth: of the token in its chain; the first drafted one is 0. So a number serves one place of the chains
        that begin at one position. These begin with different tokens, and at most one of them comes true.
        `ratio` is lossless if whether a token is drawn, and verified, does not depend on what the same number
        has drawn, there or in another chain: nobody may choose among chains, or cut them, by their tokens.
    ahead: chains are prepared while this one is verified, also for what may stand in the place of its token:
        what the forest then says are the likeliest ones by the target's own way of drawing. Otherwise it is
        drawn from all of the model's distribution, as far as there is room to keep it.
    """
    context, forest = drafter.context, drafter.forest
    found = context.sampler.distribution(logits)
    if ahead or found.nbytes > forest.room.left:
        found = likeliest(found, KEPT)
    if ahead:
        say(forest, slot, found)
        found = saguaro(found, FAN_OUT, WEIGHT)
    token = found.pick(context.noise.uniform(position, DRAFT_DRAW + depth))
    forest.drawn[slot] = found, token


def say(forest: Forest, slot: int, q: Distribution) -> None:
    """Let the forest say what is likely to follow a slot: at most `KNOWN` tokens."""
    best = largest(q.probs, KNOWN)
    with np.errstate(divide="ignore"):
        forest.said[slot] = q.ids[best], np.log(q.probs[best])


def likeliest(q: Distribution, count: int) -> Distribution:
    """q of its `count` likeliest tokens alone."""
    if len(q.ids) <= count:
        return q
    kept = np.sort(largest(q.probs, count))
    return Distribution(q.ids[kept], q.probs[kept] / q.probs[kept].sum())


class DrawnChain(Growing):
    """One branch a root. It begins with what was drawn below the root while the target verified, all of it as
    far as the budget has room, and goes on from there."""

    def __init__(self, drafter: Grower, roots: Sequence[Root], budget: TreeBudget) -> None:
        super().__init__(drafter, roots)
        self.most, self.passes, self.ahead = min(budget.depth, budget.nodes - 1), budget.passes, budget.ahead
        self.chains = [[root.token] for root in roots]
        self.drafts: list[list[Distribution]] = [[] for _ in roots]

    def tree(self, root: int = 0) -> TokenTree:
        chain, drafts = self.chains[root], self.drafts[root]
        drawn = [np.log(draft.of(token)) for draft, token in zip(drafts, chain[1:], strict=True)]
        return TokenTree.chain(chain, [0.0, *drawn], drafts)

    def _grow(self) -> Generator[None, None, None]:
        if self.most <= 0 or not (self.passes or self.forest.slots):
            return
        nodes, ends = yield from self._plant()
        last = {i: slot for i, slot in enumerate(ends) if slot is not None}  # of each chain that goes on
        while last:
            if nodes:
                if not self.passes or len(nodes) > self.forest.free_rows:
                    return
                self.passes -= 1
                depths = {slot: len(self.drafts[i]) for i, slot in last.items()}
                yield from self.forest.run(nodes, partial(self._read, depths))
            tips = {i: tip for i, slot in last.items() if (tip := self._follow(i, slot)) is not None}
            if nodes:
                yield
            nodes = list(dict.fromkeys(tips.values()))
            last = {i: len(self.forest.slots) + nodes.index(tip) for i, tip in tips.items()}

    def _read(
        self, depths: Mapping[int, int], slots: range, logits: NDArray[np.float32], positions: list[int]
    ) -> None:
        """See `drafters.forest.Read`: draw behind the ends of chains, which are `depths` long, by slot."""
        for slot, row, position in zip(slots, logits, positions, strict=True):
            if slot in depths:
                draw(self.drafter, slot, row, position, depths[slot], self.ahead)

    def _follow(self, root: int, slot: int) -> Node | None:
        """Take what has been drawn below a slot into the chain: the node to run next, if any."""
        chain, drafts, forest = self.chains[root], self.drafts[root], self.forest
        while slot in forest.drawn and len(drafts) < self.most:
            draft, token = forest.drawn[slot]
            drafts.append(draft)
            chain.append(token)
            if (slot, token) not in forest.slots:
                return (slot, token) if len(drafts) < self.most else None
            slot = forest.slots[slot, token]
        return None
