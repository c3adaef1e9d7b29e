"""Any small model as a drafter: with a state of its own, growing trees best first. Needs no torch.

Its runtime holds what the target has committed, as far as it has followed, and behind that a *forest* of
uncommitted slots: the tokens it has still to follow, the roots, and the nodes it has expanded. An outcome
commits the part of its path that is in the forest; the rest becomes the *tail* and is run again, together
with the next root, in one pass.
"""

from __future__ import annotations

from collections.abc import Generator, Sequence
from contextlib import closing
from dataclasses import replace
from math import ceil

from edgespec.core.acceptance import Outcome
from edgespec.core.schedule import Context, TreeBudget
from edgespec.core.tree import TokenTree
from edgespec.drafters.base import Drafting, DraftingAhead, Root, committed, shared_prefix
from edgespec.drafters.forest import Forest, Room
from edgespec.drafters.growth import MAX_PASSES
from edgespec.drafters.rounds import go_ahead, grow
from edgespec.runtimes.base import TREE_ROWS, DraftRuntime
from edgespec.runtimes.config import ModelConfig

LONG_TAIL = 16  # a tail beyond this is followed by prefill passes, not beside the root
PASS_ROWS = TREE_ROWS + LONG_TAIL  # of the largest pass: a tail, and a tree or roots
# Slots beside the context: a tail, the roots, and what is drafted ahead of a pass. In the waits of a streamed
# 7B fit 1600 more: in 512 slots 69 of 100 outcomes were prepared for, in 1024 79, in 2560 83, and the speed
# over plain decoding's would be 5.33, 5.49 and 5.48; but every further session has to hold as many.
DRAFT_ROWS = 512


def further_rows(slots: int, own: int, target: ModelConfig) -> int:
    """See `drafters.resident.Resident.rows`, of a model with so many slots and `own` bytes of a position. A
    position takes keys and values of both models, those of the target of two bytes a number at least; a slot
    more takes this model's only."""
    return ceil(max(slots - TREE_ROWS, 0) * own / (own + target.kv_bytes(1, 2)))


class ModelDrafter:
    """See `drafters.base.Drafter`. One conversation's use of a draft model.

    runtime: has room for `DRAFT_ROWS` slots; where its capacity ends, it stops drafting.
    vocabulary, room: see `drafters.forest.Forest`.
    """

    resident = True
    passes = range(1, MAX_PASSES + 1)
    width = 8
    ahead_width = 32  # at most: `drafters.breadth`

    def __init__(self, runtime: DraftRuntime, vocabulary: int, room: Room | None = None) -> None:
        self.runtime = runtime
        self.forest = Forest(runtime, vocabulary, room)
        self.tokens: list[int] = []  # committed here
        self.tail: list[int] = []  # committed by the target, but not here yet
        self.context = Context([])

    def prefill(self, context: Context) -> None:
        self.context = context
        shared = min(shared_prefix(self.tokens, context.tokens), self.runtime.length)
        self.forest.drop(shared)
        del self.tokens[shared:]
        self.tail = [int(t) for t in context.tokens[shared:]]
        if self.position < self.runtime.capacity:  # else it will never draft here
            with closing(self._follow()) as parts:
                for _ in parts:
                    context.check()

    def start(self, roots: Sequence[Root], budget: TreeBudget) -> Drafting:
        self.forest.renew()
        return grow(self, roots, self._fitting(budget, max(len(r.path) for r in roots)))

    def prepared(self) -> bool:
        return self.forest.kept

    def ahead(self, tree: TokenTree, budget: TreeBudget, fan_out: Sequence[int] = ()) -> DraftingAhead:
        self.forest.renew()
        return go_ahead(self, tree, self._fitting(budget, 1), fan_out)

    def _fitting(self, budget: TreeBudget, path: int) -> TreeBudget:
        """As deep as there is room behind a path of so many tokens."""
        room = self.runtime.capacity - self.position - path
        return replace(budget, depth=max(0, min(budget.depth, room)))

    def commit(self, root: int, outcome: Outcome) -> None:
        fresh = self.tail + committed(root, outcome)
        here = self.forest.commit(fresh, outcome.tokens[-1])
        self.tokens += fresh[:here]
        self.tail = fresh[here:]

    @property
    def position(self) -> int:
        """See `drafters.growth.Grower`."""
        return len(self.tokens) + len(self.tail)

    def trunk(self) -> Generator[None, None, Sequence[int]]:
        """See `drafters.growth.Grower`: the tail, after prefill passes if it is long."""
        if len(self.tail) > LONG_TAIL:
            yield from self._follow()
        return self.tail

    def _follow(self) -> Generator[None, None, None]:
        """Commit the tail, as far as there is room, in passes of a prompt's size."""
        base, tail = self.tokens, self.tail[: self.runtime.capacity - len(self.tokens)]
        rest = self.tail[len(tail) :]
        for done in self.runtime.prefill(tail):
            self.tokens, self.tail = base + tail[:done], tail[done:] + rest
            yield
