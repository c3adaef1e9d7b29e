"""One round of a cascade's drafting: steps of the draft, shallow verifications, and what they lead to."""

from __future__ import annotations

from collections.abc import Generator, Iterator, Sequence
from dataclasses import dataclass, replace
from math import ceil
from typing import Protocol

import numpy as np
import torch
from numpy.typing import NDArray

from edgespec.core.sampling import FloatArray, IntArray
from edgespec.core.schedule import Context, TreeBudget
from edgespec.core.tree import TokenTree
from edgespec.drafters.base import Root
from edgespec.drafters.cascade.exits import Exit
from edgespec.drafters.cascade.inside import InsideForest
from edgespec.drafters.cascade.tree import Calibration, RankedTree
from edgespec.drafters.cascade.variant import Variant
from edgespec.drafters.drawn import DrawnChain
from edgespec.drafters.forest import Forest, Room, kept_bytes
from edgespec.errors import ModelError
from edgespec.runtimes.base import TREE_ROWS, KVCache
from edgespec.runtimes.target import Target

SCALED_ROWS = 8  # logits whose log-probabilities are worked out at a time: bounds the temporaries


@dataclass(frozen=True)
class Claim:
    """What a source proposed to follow a node: tokens and its log-probabilities, [k] each."""

    source: Calibration
    tokens: IntArray
    logprobs: FloatArray


class CascadeState(Protocol):
    """The conversation's drafter, as its rounds know it."""

    draft: Exit
    verify: Exit | None
    variant: Variant
    calibrations: tuple[Calibration, Calibration]  # of the two
    context: Context
    claims: dict[int, list[Claim]]  # by slot: what was proposed to follow it

    @property
    def target(self) -> Target: ...

    @property
    def cache(self) -> KVCache: ...

    def catch_up(self) -> None:
        """Let the exits follow all that is committed. Raises Cancelled."""

    def forget(self) -> None:
        """Drop what is drafted."""


class CascadeDrafting:
    """See `drafters.base.Drafting`. Steps beyond the budget's are shallow verifications, and what is drafted
    on from their corrections."""

    def __init__(self, drafter: CascadeState, forest: InsideForest, root: int, budget: TreeBudget) -> None:
        self.drafter, self.forest = drafter, forest
        self.ranked = RankedTree(root, budget.nodes, budget.depth)
        self.nodes: list[int] = []  # of the tree, by slot
        self.verified = 0  # slots that the shallow verifier has seen
        self.work = self._rounds(budget.passes if budget.nodes > 1 and budget.depth > 0 else 0)

    def step(self) -> bool:
        return next(self.work, None) is not None

    def tree(self, root: int = 0) -> TokenTree:
        chosen, tokens, parents, logprobs = self.ranked.arrays()
        if not self.nodes:
            return TokenTree(tokens, parents, logprobs)
        slots = {node: slot for slot, node in enumerate(self.nodes)}
        own = np.array([slots.get(node, -1) for node in chosen.tolist()])
        return TokenTree(tokens, parents, logprobs, computed=self.forest.computed(own))

    def stop(self) -> None:
        self.work.close()

    def cancel(self) -> None:
        self.work.close()
        self.drafter.forget()

    def _rounds(self, left: int) -> Generator[bool, None, None]:
        """Yields after each unit of work."""
        variant, verifies = self.drafter.variant, self.drafter.verify is not None
        rounds = ceil(left / variant.round) if verifies else min(left, 1)
        for rounds_left in range(rounds, 0, -1):
            steps = ceil(left / rounds_left)
            left -= steps
            for _ in range(steps):
                if not self._draft():
                    break
                yield True
            if not self._verify():
                return  # nothing was worth drafting any more
            yield True
        for _ in range(variant.after if rounds and verifies else 0):
            if self._draft():
                yield True

    def _draft(self) -> bool:
        """Expand the likeliest nodes; False when there is none, or none likely enough."""
        drafter, forest, variant = self.drafter, self.forest, self.drafter.variant
        nodes = self.ranked.frontier(min(variant.width, forest.free))
        if not nodes or self.ranked.chance(nodes) < variant.stop:
            return False
        if not self.nodes:
            drafter.catch_up()
        slot_of = {node: slot for slot, node in enumerate(self.nodes)}
        parents = [slot_of.get(self.ranked.parents[node], -1) for node in nodes]
        slots = forest.plant(
            [(parent, self.ranked.tokens[node]) for parent, node in zip(parents, nodes, strict=True)]
        )
        self.nodes += nodes
        self._propose(drafter.draft, slots, drafter.calibrations[0])
        return True

    def _verify(self) -> bool:
        """Shallow verification of what was drafted since the last one; False when that is nothing."""
        fresh = np.arange(self.verified, len(self.nodes))
        if self.drafter.verify is None or not len(fresh):
            return False
        self._propose(self.drafter.verify, fresh, self.drafter.calibrations[1])
        self.verified = len(self.nodes)
        return True

    def _propose(self, source: Exit, slots: IntArray, calibration: Calibration) -> None:
        """Take the slots' nodes to an exit, and what it says may follow them into the tree.

        Raises ModelError for NaN.
        """
        rows = self.forest.run(slots, source.depth)
        logits = source.logits(self.forest.hidden[slots], rows)  # [n, V]
        for first in range(0, len(slots), SCALED_ROWS):
            part = logits[first : first + SCALED_ROWS]
            total = part.logsumexp(1)
            if not bool(torch.isfinite(total).all()):
                raise ModelError("a cascade's outputs are not finite numbers: train its adapters again")
            likeliest = part.topk(min(self.drafter.variant.branch, part.shape[1]), dim=1).indices.tolist()
            for i, (row, top) in enumerate(zip(part, likeliest, strict=True)):
                slot = int(slots[first + i])
                node = self.nodes[slot]
                tokens = list(dict.fromkeys([*top, *self.ranked.children.get(node, ())]))
                said = np.minimum((row[tokens] - total[i]).double().cpu().numpy(), 0.0)
                self.drafter.claims.setdefault(slot, []).append(Claim(calibration, np.array(tokens), said))
                self.ranked.propose(node, tokens, calibration(said).tolist())
        self.ranked.rank()


class DrawnInside(DrawnChain):
    """A chain drawn from the draft's distribution, for `ratio`: corrections would not be draws."""

    def __init__(
        self,
        drafter: CascadeState,
        forest: InsideForest,
        root: Root,
        budget: TreeBudget,
    ) -> None:
        super().__init__(_Draws(drafter, forest), [root], budget)
        self.inside = forest

    def tree(self, root: int = 0) -> TokenTree:
        tree = super().tree(root)
        if not len(self.inside):
            return tree
        nodes = np.arange(len(tree))
        return replace(tree, computed=self.inside.computed(np.where(nodes < len(self.inside), nodes, -1)))


class _Draws:
    """The cascade's draft as a model of its own: see `drafters.growth.Grower`, `runtimes.base.DraftRuntime`.
    Nothing is committed through it: the target verifies what lies inside its cache."""

    width = 1
    rows = TREE_ROWS

    def __init__(self, drafter: CascadeState, inside: InsideForest) -> None:
        self.drafter, self.inside, self.context = drafter, inside, drafter.context
        self.length, self.capacity = drafter.cache.length, drafter.cache.capacity
        self.position = self.length
        vocabulary = drafter.target.config.vocab_size
        self.forest = Forest(self, vocabulary, Room(kept_bytes(TREE_ROWS, vocabulary)))

    def trunk(self) -> Generator[None, None, Sequence[int]]:
        self.drafter.catch_up()
        yield from ()
        return ()

    def prefill(self, tokens: Sequence[int]) -> Iterator[int]:
        raise NotImplementedError("a cascade's draft follows the target's passes")

    def begin(self, tokens: Sequence[int], parents: Sequence[int]) -> _DrawsPass:
        return _DrawsPass(self, list(zip(parents, tokens, strict=True)))

    def commit(self, path: Sequence[int], keep: Sequence[int]) -> None:
        """A pass has failed: the schedule cancels all."""

    def truncate(self, length: int) -> None:
        self.drafter.forget()


class _DrawsPass:
    """See `runtimes.base.DraftPass`: whole, because nobody waits for it."""

    logits: NDArray[np.float32]

    def __init__(self, draws: _Draws, nodes: Sequence[tuple[int, int]]) -> None:
        self.draws, self.nodes = draws, nodes

    def advance(self) -> bool:
        inside, draft = self.draws.inside, self.draws.drafter.draft
        slots = inside.plant(self.nodes)
        rows = inside.run(slots, draft.depth)
        self.logits = draft.logits(inside.hidden[slots], rows).cpu().numpy()
        return True
