"""A controller that decides nothing."""

from __future__ import annotations

from dataclasses import replace

from edgespec.core.sampling import FloatArray
from edgespec.core.schedule import TreeBudget
from edgespec.core.trace import Cycle
from edgespec.core.tree import TokenTree


class Fixed:
    """Always the same budget, whatever it costs: for benchmarks and tests. See `core.schedule.Controller`."""

    took: float | None = None
    speedup: float | None = None
    refusal: str | None = None
    pauses = rests = False

    def __init__(self, budget: TreeBudget) -> None:
        self._budget = budget

    def alone(self, nodes: int) -> float | None:
        return None

    def budget(self, limit: TreeBudget, passes: range) -> TreeBudget | None:
        own = self._budget
        return TreeBudget(min(own.nodes, limit.nodes), min(own.depth, limit.depth), own.passes)

    def overlapped(
        self, limit: TreeBudget, passes: range, prepared: TokenTree, width: int
    ) -> tuple[TreeBudget | None, TokenTree]:
        """The same: a level that was prepared is a pass less."""
        budget = self.budget(limit, passes)
        if budget is None:
            return None, prepared
        found = min(int(prepared.depths.max()), budget.passes)
        return replace(budget, passes=budget.passes - found, found=found, ahead=True), prepared

    def asks(self) -> bool:
        return True

    def prune(self, tree: TokenTree) -> TokenTree:
        return tree

    def gains(self, tree: TokenTree) -> FloatArray | None:
        return None

    def record(self, cycle: Cycle) -> None:
        pass

    def rested(self) -> None:
        pass

    def successor(self) -> Fixed:
        return self
