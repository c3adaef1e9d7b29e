"""Which kind of round a reply needs: by how its acceptance judges, and what is prepared for. No torch."""

from __future__ import annotations

from collections.abc import Sequence

from edgespec.core.schedule import TreeBudget
from edgespec.core.tree import TokenTree
from edgespec.drafters.ahead import Ahead
from edgespec.drafters.base import Drafting, DraftingAhead, Root
from edgespec.drafters.drawn import DrawnChain
from edgespec.drafters.drawn_ahead import DrawnAhead
from edgespec.drafters.fanned import Fanned
from edgespec.drafters.growth import BestFirst, Grower, Preparer


def grow(drafter: Grower, roots: Sequence[Root], budget: TreeBudget) -> Drafting:
    """As `drafters.base.Drafter.start`."""
    return (DrawnChain if drafter.context.drawn else BestFirst)(drafter, roots, budget)


def go_ahead(
    drafter: Preparer, verified: TokenTree, budget: TreeBudget, fan_out: Sequence[int]
) -> DraftingAhead:
    """As `drafters.base.Foreseeing.ahead`."""
    if drafter.context.drawn:
        return DrawnAhead(drafter, verified, budget, fan_out)
    return Fanned(drafter, verified, budget, fan_out) if fan_out else Ahead(drafter, verified, budget)
