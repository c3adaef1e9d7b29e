"""Several drafters' proposals as branches of one tree. Needs no torch."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING

from edgespec.core.acceptance import Outcome
from edgespec.core.schedule import Context, TreeBudget
from edgespec.core.tree import TokenTree, merge
from edgespec.drafters.base import (
    Drafter,
    Drafting,
    DraftingAhead,
    Elsewhere,
    Foreseeing,
    Hearing,
    Root,
    Watching,
)
from edgespec.runtimes.target import Layers, any_of

if TYPE_CHECKING:
    from torch import Tensor

    from edgespec.runtimes.rows import Rows


def without_models(drafter: Drafter) -> Combined:
    """What is left of a drafter when its models are gone, or computed NaN."""
    members = drafter.members if isinstance(drafter, Combined) else [drafter]
    return Combined([member for member in members if not member.resident])


class Combined:
    """See `drafters.base.Drafter`. A step is one step of each member that has any left; of none, nothing."""

    def __init__(self, members: Sequence[Drafter]) -> None:
        self.members = tuple(members)
        self._watching = [member for member in self.members if isinstance(member, Watching)]
        self._elsewhere = [member for member in self.members if isinstance(member, Elsewhere)]
        self._foreseeing = [member for member in self.members if isinstance(member, Foreseeing)]

    @property
    def resident(self) -> bool:
        return any(member.resident for member in self.members)

    @property
    def passes(self) -> range:
        passes = [member.passes for member in self.members] or [range(0)]
        return range(min(p.start for p in passes), max(p.stop for p in passes))

    def prefill(self, context: Context) -> None:
        for member in self.members:
            member.prefill(context)

    def start(self, roots: Sequence[Root], budget: TreeBudget) -> CombinedDrafting:
        started = [member.start(roots, budget) for member in self.members]
        # Where drafts are drawn (`ratio`), trees cannot be merged: the first member that draws is all.
        drawing = [drafting for drafting in started if drafting.tree().drafts is not None]
        return CombinedDrafting(drawing[:1] or started, budget)

    @property
    def width(self) -> int:
        """A step is a pass of each."""
        return sum(member.width for member in self._foreseeing)

    def prepared(self) -> bool:
        return any(member.prepared() for member in self._foreseeing)

    def ahead(self, tree: TokenTree, budget: TreeBudget, fan_out: Sequence[int] = ()) -> DraftingAhead:
        started = [member.ahead(tree, budget, fan_out) for member in self._foreseeing]
        return started[0] if len(started) == 1 else CombinedAhead(started)

    @property
    def lost(self) -> str | None:
        return next((member.lost for member in self._elsewhere if member.lost), None)

    @property
    def damaged(self) -> bool:
        return any(member.damaged for member in self._elsewhere)

    def rest(self) -> None:
        for member in self._elsewhere:
            member.rest()

    def commit(self, root: int, outcome: Outcome) -> None:
        for member in self.members:
            member.commit(root, outcome)

    @property
    def forgoes(self) -> bool:
        return all(member.forgoes for member in self._watching)

    @property
    def hears(self) -> Layers:
        return any_of(member.hears for member in self._watching)

    def on_layer(self, index: int, hidden: Tensor, rows: Rows) -> None:
        for member in self._watching:
            member.on_layer(index, hidden, rows)


class _Together:
    """What is done with all of several members' rounds. A step is one of each that has any left."""

    def __init__(self, members: Sequence[DraftingAhead] | Sequence[Drafting]) -> None:
        self._all = members

    def step(self) -> bool:
        worked = [member.step() for member in self._all]
        return any(worked)

    def stop(self) -> None:
        for member in self._all:
            member.stop()

    def cancel(self) -> None:
        for member in self._all:
            member.cancel()


class CombinedDrafting(_Together):
    """See `drafters.base.Drafting`."""

    def __init__(self, members: Sequence[Drafting], budget: TreeBudget) -> None:
        super().__init__(members)
        self.members, self.budget = members, budget

    def tree(self, root: int = 0) -> TokenTree:
        trees = [member.tree(root) for member in self.members]
        return trees[0] if len(trees) == 1 else merge(trees).best(self.budget.nodes)


class CombinedAhead(_Together):
    """See `drafters.base.Hearing`."""

    def __init__(self, members: Sequence[DraftingAhead]) -> None:
        super().__init__(members)
        self.members = members

    @property
    def passes(self) -> int:
        return sum(member.passes for member in self.members)

    @property
    def nodes(self) -> int:
        return sum(member.nodes for member in self.members)

    def rank(self, outcome: Outcome) -> int | None:
        ranks = [member.rank(outcome) for member in self.members]
        return min((rank for rank in ranks if rank is not None), default=None)

    @property
    def _hearing(self) -> list[Hearing]:
        return [member for member in self.members if isinstance(member, Hearing)]

    def expect(self) -> None:
        for member in self._hearing:
            member.expect()

    def hear(self, said: Mapping[int, Mapping[int, float]], trust: float) -> None:
        for member in self._hearing:
            member.hear(said, trust)

    def believed(self, node: int, token: int) -> float | None:
        told = (member.believed(node, token) for member in self._hearing)
        return max((p for p in told if p is not None), default=None)

    @property
    def seconds(self) -> float | None:
        told = [member.seconds for member in self._hearing if member.seconds is not None]
        return sum(told) if told else None
