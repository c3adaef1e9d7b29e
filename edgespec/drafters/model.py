"""Any small model as a drafter: resident, with a KV cache of its own, growing trees best first.

Its cache holds what the target has committed, as far as it has followed, and behind that a *forest* of
uncommitted slots: the tokens it has still to follow, the roots, and the nodes it has expanded (leaves have
no slot: nobody has asked what comes after them). An outcome commits the part of its path that is in the
forest; the rest becomes the *tail* and is run again, together with the next root, in one pass.
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
from numpy.typing import NDArray

from edgespec.core.acceptance import Outcome
from edgespec.core.batch import prefill
from edgespec.core.schedule import Context, TreeBudget
from edgespec.drafters.base import Drafting, Root, committed, shared_prefix
from edgespec.drafters.growth import MAX_PASSES, grow, root_nodes, run_nodes
from edgespec.runtimes.base import Target

LONG_TAIL = 16  # a tail beyond this is followed by prefill passes, not beside the root
DRAFT_ROWS = 256  # slots beside the context: a tail, the roots, and `MAX_PASSES` x `width` nodes


class ModelDrafter:
    """See `drafters.base.Drafter`. One conversation's use of a draft model.

    model: shared by all conversations, all its weights in memory; opened with `DRAFT_ROWS` slots.
    context: positions the conversation may have; beyond the draft model's own limit it stops drafting.
    vocabulary: of the target; where the draft model's is padded further, the padding is never proposed.
    """

    passes = range(1, MAX_PASSES + 1)
    width = 8

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
        if self.position < self.cache.capacity:  # else it will never draft here
            self.follow()

    def start(self, roots: Sequence[Root], budget: TreeBudget) -> Drafting:
        self.forget()
        room = self.cache.capacity - len(self.tokens) - len(self.tail) - max(len(r.path) for r in roots)
        budget = TreeBudget(budget.nodes, max(0, min(budget.depth, room)), budget.passes)
        return grow(self, self.context, roots, budget)

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
        slots, logits = run_nodes(self.model, self.cache, nodes, self.context.check)
        self.forest.update(zip(nodes, slots, strict=True))
        return slots, logits[:, : self.vocabulary]

    def extend_roots(self, roots: Sequence[Root]) -> tuple[list[int], NDArray[np.float32]]:
        """Follow the tail and the roots' paths, in one pass: the roots' slots, and what follows them [r, V].

        Paths that begin alike share slots.
        """
        if len(self.tail) > LONG_TAIL:
            self.follow()
        nodes, ends = root_nodes([(*self.tail, *root.path) for root in roots])
        _, logits = self.extend(nodes)
        return ends, logits[ends]

    @property
    def position(self) -> int:
        return len(self.tokens) + len(self.tail)

    @property
    def free_rows(self) -> int:
        return DRAFT_ROWS - len(self.cache.parents)

    def forget(self) -> None:
        self.drop(self.cache.length)

    def drop(self, length: int) -> None:
        """Forget the forest, and committed positions from `length` on."""
        self.forest.clear()
        self.cache.truncate(length)
        del self.tokens[length:]
