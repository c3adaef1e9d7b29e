"""The cascade: the target drafts with its first layers, and verifies the drafts with its middle ones first.

CATS (arXiv 2605.11186, section 4 and Algorithm 1). An adapter behind layer L_DM drafts; a *shallow
verification* runs layers L_DM..L_SV over what was drafted, in parallel, and its own adapter says again what
follows each node: other probabilities, and *corrections* the draft did not have. Corrections are drafted on
from, and verified again, while that pays. All these layers are pinned, so none of it reads flash. The
verification then goes on from L_SV: nothing is computed twice.

Everything lies in the session's own cache, behind the committed prefix, so nothing can be drafted while the
target verifies. The adapters' caches follow by watching the target's passes.
"""

from __future__ import annotations

from collections.abc import Sequence
from math import inf
from typing import TYPE_CHECKING

import numpy as np

from edgespec.core.acceptance import Outcome
from edgespec.core.schedule import Context, TreeBudget
from edgespec.drafters.base import Cancelling, Drafting, Root, committed, shared_prefix
from edgespec.drafters.cascade.exits import AdapterExit, Exit
from edgespec.drafters.cascade.inside import InsideForest
from edgespec.drafters.cascade.rounds import CascadeDrafting, Claim, DrawnInside
from edgespec.drafters.cascade.tree import Calibration
from edgespec.drafters.cascade.variant import Variant
from edgespec.drafters.growth import MAX_PASSES
from edgespec.runtimes.base import KVCache
from edgespec.runtimes.rows import Rows
from edgespec.runtimes.target import Layers, Target

if TYPE_CHECKING:
    from torch import Tensor

AGAIN_ROWS = 64  # committed positions computed again at a time: their keys and values are copied meanwhile


class CascadeDrafter:
    """See `drafters.base.Drafter`. `cache` is the conversation's own, the target's.

    Its cache of drafts follows the passes that it watches (`on_layer`); what it has not seen, it computes
    again in the layers below its exits, without touching the target's keys and values.
    """

    resident, forgoes = True, False
    passes = range(1, MAX_PASSES + 1)

    def __init__(
        self,
        target: Target,
        cache: KVCache,
        draft: Exit,
        verify: Exit | None,
        variant: Variant,
        calibrations: tuple[Calibration, Calibration] | None = None,
    ) -> None:
        """`calibrations` of the draft and of the shallow verifier, which conversations may share."""
        if variant.deep and verify is not None:
            draft = verify
        self.target, self.cache, self.variant = target, cache, variant
        self.draft = draft
        self.verify = verify if variant.round > 0 else None
        self.calibrations = calibrations or (Calibration(), Calibration())
        self.exits = [e for e in (draft, self.verify) if isinstance(e, AdapterExit)]
        self.context = Context([])
        self.tokens: list[int] = []  # that the target has committed
        self.watched = inf  # the least length behind which a pass was watched since the last commit
        self.forest: InsideForest | None = None
        self.claims: dict[int, list[Claim]] = {}  # by slot: what was proposed to follow it

    def prefill(self, context: Context) -> None:
        self.context = context
        kept = shared_prefix(self.tokens, context.tokens)
        if self.watched > kept:  # it was not shown how the rest came about
            for e in self.exits:
                e.truncate(kept)
        self.tokens = [int(t) for t in context.tokens]
        self.watched = inf
        self.forget()

    def start(self, roots: Sequence[Root], budget: TreeBudget) -> Drafting:
        """Raises ValueError for more than one root, or a root behind a path: its nodes lie where the target's
        own pass writes, so there is nothing to draft before the outcome is known."""
        if len(roots) != 1 or len(roots[0].path) != 1:
            raise ValueError("a cascade drafts behind one root, while the target rests")
        self.forget()
        self.forest = forest = InsideForest(self.target, self.cache, Cancelling(self.context.check))
        if self.context.drawn:
            return DrawnInside(self, forest, roots[0], budget)
        return CascadeDrafting(self, forest, roots[0].token, budget)

    def commit(self, root: int, outcome: Outcome) -> None:
        fresh = committed(root, outcome)
        slots = self.forest.path(fresh) if self.forest is not None else []
        for slot, token in zip(slots, outcome.tokens, strict=False):
            for claim in self.claims.get(slot, ()):
                claim.source.learn(claim.logprobs, claim.tokens == token)
        for e in self.exits:
            e.commit(len(self.tokens), slots, outcome.path.tolist())
        self.tokens += fresh
        self.watched = inf
        self.forget()

    def forget(self) -> None:
        """Drop all that is drafted."""
        self.forest = None
        self.claims = {}
        for e in self.exits:
            e.forget()

    def catch_up(self) -> None:
        """Let the adapters follow all that is committed. Raises Cancelled."""
        for e in self.exits:
            e.truncate(self.cache.length)
            e.flush()
        while self.exits and (start := min(e.length for e in self.exits)) < self.cache.length:
            self._recompute(start, min(start + AGAIN_ROWS, self.cache.length))
        self.watched = inf

    def _recompute(self, start: int, stop: int) -> None:
        """Run committed tokens through the layers below the exits again. They are cut into other blocks than
        when they were committed, so their keys and values may differ in the last bit and are put back."""
        depth = max(e.depth for e in self.exits)
        with self.cache.rewound(start, stop, depth) as again:
            rows = Rows.append(again, np.arange(-1, stop - start - 1), prefill=True)
            self.target.run(self.target.embed(self.tokens[start:stop]), rows, range(depth), self)

    # What it watches of the target's passes; see `runtimes.target.PassObserver`.

    @property
    def hears(self) -> Layers:
        return frozenset(e.depth - 1 for e in self.exits)

    def on_layer(self, index: int, hidden: Tensor, rows: Rows) -> None:
        for e in self.exits:
            if e.depth != index + 1:
                continue
            for cache, segment in zip(rows.caches, rows.segments, strict=True):
                if cache.owner is self.cache:
                    part = slice(segment.start, segment.stop)
                    e.observe(hidden[part], rows.slots[part], cache.length, rows.prefill)
                    self.watched = min(self.watched, cache.length)

    def on_chunk(self) -> None:
        self.context.check()

    def on_wait(self) -> bool:
        return False
