"""Any small model as a drafter: resident, with a KV cache of its own, growing trees best first.

Its cache holds what the target has committed, as far as it has followed, and behind that a *forest* of
uncommitted slots: the tokens it has still to follow, the roots, and the nodes it has expanded (leaves have
no slot: nobody has asked what comes after them). An outcome commits the part of its path that is in the
forest; the rest becomes the *tail* and is run again, together with the next root, in one pass.
"""

from __future__ import annotations

from collections.abc import Sequence
from math import inf

import numpy as np
import torch
from numpy.typing import NDArray

from edgespec.acceptance import Outcome
from edgespec.decode import prefill
from edgespec.drafters.base import Context, Drafting, Root, TreeBudget, committed, shared_prefix
from edgespec.runtimes.base import Rows, Target
from edgespec.sampling import DRAFT_DRAW, Distribution, FloatArray, IntArray, Noise, Sampler
from edgespec.tree import TokenTree, TreeBuilder

WIDTH = 8  # nodes expanded in one pass
BRANCH = 8  # children proposed for a node
MAX_STEPS = 16
LONG_TAIL = 16  # a tail beyond this is followed by prefill passes, not beside the root
DRAFT_ROWS = 256  # slots beside the context: a tail, the roots, and `MAX_STEPS` x `WIDTH` nodes


class ModelDrafter:
    """See `drafters.base.Drafter`. One conversation's use of a draft model.

    model: shared by all conversations, all its weights in memory; opened with `DRAFT_ROWS` slots.
    context: positions the conversation may have; beyond the draft model's own limit it stops drafting.
    vocabulary: of the target; where the draft model's is padded further, the padding is never proposed.
    """

    steps = range(1, MAX_STEPS + 1)

    def __init__(self, model: Target, context: int, vocabulary: int) -> None:
        self.model = model
        self.vocabulary = min(vocabulary, model.config.vocab_size)
        self.cache = model.new_cache(min(context, model.config.max_context))
        self.tokens: list[int] = []  # committed here
        self.tail: list[int] = []  # committed by the target, but not here yet
        self.forest: dict[tuple[int, int], int] = {}  # (parent slot or -1, token) -> slot
        self.context = Context([])

    def prefill(self, context: Context) -> None:
        self.context = context
        shared = min(shared_prefix(self.tokens, context.tokens), self.cache.length)
        self.drop(shared)
        self.tail = [int(t) for t in context.tokens[shared:]]
        self.follow()

    def start(self, roots: Sequence[Root], budget: TreeBudget) -> Drafting:
        self.drop(self.cache.length)
        room = self.cache.capacity - len(self.tokens) - len(self.tail) - max(len(r.path) for r in roots)
        budget = TreeBudget(budget.nodes, max(0, min(budget.depth, room)), budget.steps)
        if self.context.sampler is not None and self.context.noise is not None:
            return DrawnChain(self, roots, budget, self.context.sampler, self.context.noise)
        return BestFirst(self, roots, budget)

    def commit(self, root: int, outcome: Outcome) -> None:
        fresh = self.tail + committed(root, outcome)
        path, slot = [], -1
        for token in fresh:
            if (slot := self.forest.get((slot, token), -1)) < 0:
                break
            path.append(slot)
        self.forest.clear()
        self.cache.commit(path)
        self.tokens += fresh[: len(path)]
        self.tail = fresh[len(path) :]

    def follow(self) -> None:
        """Commit the tail, as far as there is room, in passes of a prompt's size. Raises Cancelled."""
        base, tail = self.tokens, self.tail[: self.cache.capacity - len(self.tokens)]
        rest = self.tail[len(tail) :]

        def advance(done: int) -> None:
            self.tokens, self.tail = base + tail[:done], tail[done:] + rest
            self.context.check()

        if tail:
            prefill(self.model, self.cache, tail, progress=advance)

    def extend(self, nodes: Sequence[tuple[int, int]]) -> tuple[list[int], NDArray[np.float32]]:
        """One pass over new nodes (parent slot, token): their slots, and what follows them [n, V]."""
        rows = Rows.append(self.cache, [parent for parent, _ in nodes])
        hidden = self.model.embed([token for _, token in nodes])
        hidden = self.model.run(hidden, rows, range(self.model.config.layers))
        logits = self.model.logits(hidden)[:, : self.vocabulary]
        slots = rows.slots.tolist()
        self.forest.update(zip(nodes, slots, strict=True))
        return slots, logits.cpu().numpy()

    def extend_roots(self, roots: Sequence[Root]) -> tuple[list[int], NDArray[np.float32]]:
        """Follow the tail and the roots' paths, in one pass: the roots' slots, and what follows them [r, V].

        Paths that begin alike share slots.
        """
        if len(self.tail) > LONG_TAIL:
            self.follow()
        nodes: list[tuple[int, int]] = []
        ends = []
        known: dict[tuple[int, int], int] = {}
        for root in roots:
            slot = -1
            for token in (*self.tail, *root.path):
                if (slot, token) not in known:
                    known[slot, token] = len(nodes)  # slots of an empty forest count from 0
                    nodes.append((slot, token))
                slot = known[slot, token]
            ends.append(slot)
        _, logits = self.extend(nodes)
        return ends, logits[ends]

    @property
    def free_rows(self) -> int:
        return DRAFT_ROWS - len(self.cache.parents)

    def drop(self, length: int) -> None:
        """Forget the forest, and committed positions from `length` on."""
        self.forest.clear()
        self.cache.truncate(length)
        del self.tokens[length:]


class BestFirst:
    """A tree for each root, the likeliest nodes of all expanded first; see `drafters.base.Drafting`."""

    def __init__(self, drafter: ModelDrafter, roots: Sequence[Root], budget: TreeBudget) -> None:
        self.drafter, self.roots = drafter, roots
        self.left = budget.steps if budget.nodes > 1 and budget.depth > 0 else 0
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
            share = max(1, WIDTH // len(self.roots))
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

    def cancel(self) -> None:
        self.left = 0
        self.drafter.drop(self.drafter.cache.length)


class DrawnChain:
    """One branch a root, *drawn* from the draft model's distribution, which `ratio` acceptance needs."""

    def __init__(
        self,
        drafter: ModelDrafter,
        roots: Sequence[Root],
        budget: TreeBudget,
        sampler: Sampler,
        noise: Noise,
    ) -> None:
        self.drafter, self.roots, self.sampler, self.noise = drafter, roots, sampler, noise
        self.left = min(budget.steps, budget.depth, budget.nodes - 1)
        self.position = len(drafter.tokens) + len(drafter.tail)
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
            position = self.position + len(root.path) + len(chain) - 1
            chain.append(drafts[-1].pick(self.noise.uniform(position, DRAFT_DRAW)))
        return True

    def tree(self, root: int = 0) -> TokenTree:
        chain, drafts = self.chains[root], self.drafts[root]
        drawn = [np.log(draft.of(token)) for draft, token in zip(drafts, chain[1:], strict=True)]
        return TokenTree.chain(chain, [0.0, *drawn], drafts)

    def cancel(self) -> None:
        self.left = 0
        self.drafter.drop(self.drafter.cache.length)


def likeliest(logits: NDArray[np.float32], count: int) -> tuple[IntArray, FloatArray]:
    """[n, V] -> the `count` likeliest tokens of each row and their log-probabilities, [n, count] each."""
    rows = torch.from_numpy(logits)
    top = rows.topk(min(count, rows.shape[1]), dim=1)
    logprobs = top.values.double() - rows.double().logsumexp(1, keepdim=True)
    logprobs = torch.nan_to_num(logprobs, nan=-inf)  # a damaged draft model proposes nothing
    return top.indices.numpy(), logprobs.numpy()
