"""How a model grows trees: best first for likely continuations, or chains drawn from its distribution."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from math import inf
from typing import Protocol

import numpy as np
import torch
from numpy.typing import NDArray

from edgespec.core.sampling import DRAFT_DRAW, Distribution, FloatArray, IntArray, Noise, Sampler
from edgespec.core.schedule import Context, TreeBudget
from edgespec.core.tree import TokenTree, TreeBuilder
from edgespec.drafters.base import Cancelling, Drafting, Root
from edgespec.runtimes.base import KVCache, Rows, Target

BRANCH = 8  # children proposed for a node
MAX_PASSES = 16


class Forest(Protocol):
    """A model with uncommitted slots behind what is committed: the nodes that it has expanded."""

    width: int  # nodes expanded in one pass

    @property
    def position(self) -> int:
        """Of the first token behind the committed ones."""

    @property
    def free_rows(self) -> int:
        """Nodes that may still be expanded."""

    def extend_roots(self, roots: Sequence[Root]) -> tuple[list[int], NDArray[np.float32]]:
        """Run the roots' paths: the roots' slots, and what follows them [r, V]."""

    def extend(self, nodes: Sequence[tuple[int, int]]) -> tuple[list[int], NDArray[np.float32]]:
        """Run new nodes (parent slot, token): their slots, and what follows them [n, V]."""

    def forget(self) -> None:
        """Drop all slots."""


def grow(forest: Forest, context: Context, roots: Sequence[Root], budget: TreeBudget) -> Drafting:
    """A round of drafting, as the reply's acceptance needs it."""
    if context.drawn:
        return DrawnChain(forest, roots, budget, context.sampler, context.noise)
    return BestFirst(forest, roots, budget)


def run_nodes(
    model: Target, cache: KVCache, nodes: Sequence[tuple[int, int]], check: Callable[[], None]
) -> tuple[list[int], NDArray[np.float32]]:
    """One pass over new nodes (parent slot, token): their slots, and what follows them [n, V]. `check` raises
    Cancelled."""
    rows = Rows.append(cache, [parent for parent, _ in nodes])
    hidden = model.embed([token for _, token in nodes])
    hidden = model.run(hidden, rows, range(model.config.layers), Cancelling(check))
    logits: NDArray[np.float32] = model.logits(hidden).cpu().numpy()
    return rows.slots.tolist(), logits


def root_nodes(paths: Sequence[Sequence[int]]) -> tuple[list[tuple[int, int]], list[int]]:
    """Nodes (parent slot, token) that the first slots of an empty forest get, and each path's last slot.

    Paths that begin alike share slots.
    """
    nodes: list[tuple[int, int]] = []
    known: dict[tuple[int, int], int] = {}
    ends = []
    for path in paths:
        slot = -1
        for token in path:
            if (slot, token) not in known:
                known[slot, token] = len(nodes)
                nodes.append((slot, token))
            slot = known[slot, token]
        ends.append(slot)
    return nodes, ends


class BestFirst:
    """A tree for each root, the likeliest nodes of all expanded first; see `drafters.base.Drafting`."""

    def __init__(self, drafter: Forest, roots: Sequence[Root], budget: TreeBudget) -> None:
        self.drafter, self.roots = drafter, roots
        self.left = budget.passes if budget.nodes > 1 and budget.depth > 0 else 0
        self.builders = [TreeBuilder(root.token, budget.nodes, budget.depth) for root in roots]
        self.slots: list[dict[int, int]] = [{} for _ in roots]  # expanded node -> slot

    def step(self) -> bool:
        if self.left <= 0:
            return False
        self.left -= 1
        if not self.slots[0]:
            slots, logits = self.drafter.extend_roots(self.roots)
            work = [(builder, np.array([0])) for builder in self.builders]
        else:
            share = max(1, self.drafter.width // len(self.roots))
            work = [(builder, builder.frontier(share)) for builder in self.builders]
            if not 0 < sum(len(nodes) for _, nodes in work) <= self.drafter.free_rows:
                self.left = 0
                return False
            slots, logits = self.drafter.extend(
                [
                    (known[int(builder.parents[node])], int(builder.tokens[node]))
                    for (builder, nodes), known in zip(work, self.slots, strict=True)
                    for node in nodes
                ]
            )
        tokens, logprobs = likeliest(logits, BRANCH)
        done = 0
        for (builder, nodes), known in zip(work, self.slots, strict=True):
            part = slice(done, done + len(nodes))
            known.update(zip(nodes.tolist(), slots[part], strict=True))
            if len(nodes):
                builder.expand(nodes, tokens[part], logprobs[part])
            done += len(nodes)
        return True

    def tree(self, root: int = 0) -> TokenTree:
        return self.builders[root].tree()

    def stop(self) -> None:
        self.left = 0

    def cancel(self) -> None:
        self.left = 0
        self.drafter.forget()


class DrawnChain:
    """One branch a root, *drawn* from the draft model's distribution, which `ratio` acceptance needs."""

    def __init__(
        self,
        drafter: Forest,
        roots: Sequence[Root],
        budget: TreeBudget,
        sampler: Sampler,
        noise: Noise,
    ) -> None:
        self.drafter, self.roots, self.sampler, self.noise = drafter, roots, sampler, noise
        self.left = min(budget.passes, budget.depth, budget.nodes - 1)
        self.position = drafter.position
        self.slots: list[int] = []
        self.chains = [[root.token] for root in roots]
        self.drafts: list[list[Distribution]] = [[] for _ in roots]

    def step(self) -> bool:
        if self.left <= 0 or (self.slots and len(self.roots) > self.drafter.free_rows):
            return False
        self.left -= 1
        if not self.slots:
            self.slots, logits = self.drafter.extend_roots(self.roots)
        else:
            ends = [(slot, chain[-1]) for slot, chain in zip(self.slots, self.chains, strict=True)]
            self.slots, logits = self.drafter.extend(ends)
        for root, chain, drafts, row in zip(self.roots, self.chains, self.drafts, logits, strict=True):
            drafts.append(self.sampler.distribution(row))
            # The depth makes it another draw than the one for the same position a cycle ago: what was seen
            # of that had a say in how much is drafted now.
            depth = len(chain) - 1
            position = self.position + len(root.path) + depth
            chain.append(drafts[-1].pick(self.noise.uniform(position, DRAFT_DRAW + depth)))
        return True

    def tree(self, root: int = 0) -> TokenTree:
        chain, drafts = self.chains[root], self.drafts[root]
        drawn = [np.log(draft.of(token)) for draft, token in zip(drafts, chain[1:], strict=True)]
        return TokenTree.chain(chain, [0.0, *drawn], drafts)

    def stop(self) -> None:
        self.left = 0

    def cancel(self) -> None:
        self.left = 0
        self.drafter.forget()


def likeliest(logits: NDArray[np.float32], count: int) -> tuple[IntArray, FloatArray]:
    """[n, V] -> the `count` likeliest tokens of each row and their log-probabilities, [n, count] each."""
    rows = torch.from_numpy(logits)
    top = rows.topk(min(count, rows.shape[1]), dim=1)
    logprobs = top.values.double() - rows.double().logsumexp(1, keepdim=True)
    logprobs = torch.nan_to_num(logprobs, nan=-inf)  # a damaged draft model proposes nothing
    return top.indices.numpy(), logprobs.numpy()
