"""SpecFormer as a drafter: one forward for all positions, and small trees of the candidates at each of them.

What may stand at one position does not depend on what stands at the others: a tree is the likeliest of all
paths through the positions' candidates, ranked together. For `ratio` each position of a chain is drawn from
its own distribution.
"""

from __future__ import annotations

from collections.abc import Generator, Sequence
from typing import TYPE_CHECKING

import numpy as np
from numpy.typing import NDArray

from edgespec.core.acceptance import Outcome
from edgespec.core.sampling import DRAFT_DRAW, Distribution, FloatArray, IntArray
from edgespec.core.schedule import Context, TreeBudget
from edgespec.core.tree import TokenTree
from edgespec.drafters.base import Drafting, Root
from edgespec.drafters.continuations import following, rows_at_once
from edgespec.drafters.growth import BRANCH
from edgespec.drafters.specformer.batch import SpecFormerBatch
from edgespec.drafters.specformer.paths import likeliest_paths
from edgespec.drafters.watch import StateWatch
from edgespec.runtimes.base import KVCache
from edgespec.runtimes.rows import Rows
from edgespec.runtimes.target import Layers

if TYPE_CHECKING:
    from torch import Tensor


class SpecFormerDrafter:
    """See `drafters.base.Drafter`. `cache` is the conversation's own, the target's."""

    resident = forgoes = True
    passes = range(1, 2)  # one says all there is to say

    def __init__(self, batch: SpecFormerBatch, cache: KVCache) -> None:
        self.batch = batch
        self.seen = seen = batch.new_context(cache.capacity)
        self.watch = StateWatch(cache, seen.module.shape.hooks, seen)
        self.context = Context([])
        self.length = 0  # tokens that the target has committed

    def prefill(self, context: Context) -> None:
        self.context, self.length = context, len(context.tokens)
        self.seen.forget(self.length)
        self.seen.expect()

    def start(self, roots: Sequence[Root], budget: TreeBudget) -> Drafting:
        """Raises ValueError for more than one root, or a root behind a path: its states are the target's,
        which has not been there."""
        if len(roots) != 1 or len(roots[0].path) != 1:
            raise ValueError("SpecFormer drafts behind one root, which the target has said")
        return SpecFormerDrafting(self, roots[0].token, budget)

    def commit(self, root: int, outcome: Outcome) -> None:
        self.watch.commit(outcome.path)
        self.length += len(outcome.tokens)

    @property
    def hears(self) -> Layers:
        """See `drafters.base.Watching`."""
        return self.watch.hears

    def on_layer(self, index: int, hidden: Tensor, rows: Rows) -> None:
        """Likewise."""
        self.watch.on_layer(index, hidden, rows)


class SpecFormerDrafting:
    """See `drafters.base.Drafting`. A step is the module's forward, a block of the head, or the choices at
    some positions."""

    def __init__(self, drafter: SpecFormerDrafter, root: int, budget: TreeBudget) -> None:
        self.drafter, self.root = drafter, root
        self.depth = min(budget.depth, drafter.seen.module.shape.length, budget.nodes - 1)
        if not budget.passes or drafter.seen.end != drafter.length:  # it has not seen the last position
            self.depth = 0
        self.nodes, self.least = budget.nodes, budget.least
        self._said = list[tuple[IntArray, FloatArray]]()  # of each position: what may stand there
        self._tokens, self._drawn = [root], list[Distribution]()
        self._work = self._grow()

    def step(self) -> bool:
        self.drafter.context.check()
        return next(self._work, None) is not None

    def tree(self, root: int = 0) -> TokenTree:
        if not self.drafter.context.drawn:
            return likeliest_paths(self.root, self._said, self.nodes, self.least)
        drawn = [float(np.log(q.of(t))) for q, t in zip(self._drawn, self._tokens[1:], strict=True)]
        return TokenTree.chain(self._tokens, [0.0, *drawn], self._drawn)

    def stop(self) -> None:
        self._work.close()

    def cancel(self) -> None:
        self._work.close()

    def _grow(self) -> Generator[int, None, None]:
        """All the work; yields a number behind each part of it."""
        if self.depth <= 0:
            return
        saying = self.drafter.batch.say(self.drafter.seen)
        yield 0
        while not saying.advance():
            yield 0
        context = self.drafter.context
        if not context.drawn and not context.keyed:
            while (found := saying.likeliest()) is None:
                yield 0
            self._said = list(zip(*found, strict=True))[: self.depth]
            return
        logits = saying.logits[: self.depth]
        at_once = rows_at_once(logits.shape[1])
        for start in range(0, self.depth, at_once):
            self._choose(logits[start : start + at_once], start)
            yield 0

    def _choose(self, logits: NDArray[np.float32], start: int) -> None:
        """What may stand at the draft's positions from `start` on, [n, V], by the reply's own noise."""
        context = self.drafter.context
        # The root stands behind the committed tokens, and the draft's first position behind that.
        positions = [self.drafter.length + 1 + start + j for j in range(len(logits))]
        if context.drawn:
            for j, (row, position) in enumerate(zip(logits, positions, strict=True), start):
                q = context.sampler.distribution(row)
                self._drawn.append(q)
                self._tokens.append(q.pick(context.noise.uniform(position, DRAFT_DRAW + j)))
            return
        tokens, logprobs = following(logits, BRANCH, context, positions)
        self._said += zip(tokens, logprobs, strict=True)
