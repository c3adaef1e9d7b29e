"""How much drafts give for what they take: SpecFormer's measures (Equations 3 to 5), of one reply or several.

a        tokens that were drafted and accepted, a cycle (mean accepted length)
k        nodes that were verified for them, a cycle; r2, what passes have more to multiply
l_d      levels of the trees that had any
kappa    a * l_d / k (Equation 5): of a chain, which has as many nodes as levels, it is a
p        computation over plain decoding's: 1 + what drafts read of parameters, over the target's
r1       a / p (Equation 3, in AI_m): what is gained for all that is computed
rho      rows at which passes become bound by arithmetic (`CostModel.redundancy`); r2 <= rho / batch is
         what drafts can have for nothing
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from edgespec.core.trace import Cycle


@dataclass
class Drafts:
    """Sums over cycles."""

    cycles: int = 0
    accepted: int = 0  # drafted tokens
    nodes: int = 0  # verified, roots aside
    trees: int = 0  # that have such nodes
    levels: int = 0  # of these
    passes: int = 0  # of drafting

    def add(self, cycle: Cycle) -> None:
        self.cycles += 1
        self.accepted += cycle.outcome.accepted
        self.passes += cycle.passes or 0
        if len(cycle.tree) > 1:
            self.nodes += len(cycle.tree) - 1
            self.trees += 1
            self.levels += int(cycle.tree.depths.max())

    @property
    def a(self) -> float:
        """Tokens a cycle."""
        return self.accepted / max(self.cycles, 1)

    @property
    def k(self) -> float:
        """Nodes a cycle."""
        return self.nodes / max(self.cycles, 1)

    @property
    def kappa(self) -> float | None:
        """None without drafts."""
        return self.a * (self.levels / self.trees) / self.k if self.trees else None

    def r1(self, step_bytes: int, target_bytes: int) -> float | None:
        """In the target's own arithmetic intensity; None without drafts. step_bytes: of parameters, that a
        pass of drafting reads; target_bytes: of the target's."""
        if not self.trees:
            return None
        return self.a / (1 + self.passes / self.cycles * step_bytes / target_bytes)
