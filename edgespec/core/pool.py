"""The ledger of KV positions: what sessions hold of those that the plan has memory for. Needs no torch."""

from __future__ import annotations

from collections.abc import Callable

from edgespec.errors import BudgetError
from edgespec.offload.plan.plan import Plan
from edgespec.runtimes.formats.needs import pool_positions, round_up


class Pool:
    """Positions, by the numbers of the sessions that hold them.

    positions: that sessions may hold together.
    """

    def __init__(self, context: int, sequences: int, rows: Callable[[], int]) -> None:
        """context, sequences: of the plan. rows: uncommitted ones, now, that a session beyond those that are
        planned for needs room for beside its own positions."""
        self.sequences, self.rows = sequences, rows
        self.positions = pool_positions(context, sequences) if sequences > 1 else context
        self._shares: dict[int, int] = {}

    @property
    def held(self) -> int:
        return sum([*self._shares.values()])  # a list, as finalizers may release in the midst of this

    @property
    def free(self) -> int:
        return self.positions - self.held

    def of(self, context: int) -> int:
        """Positions that another session of so many takes."""
        if self.sequences > 1:
            context = round_up(context)
        return context + (self.rows() if len(self._shares) >= self.sequences else 0)

    @property
    def beside(self) -> str:
        """What another session takes beside its own positions, in words."""
        return f", and a further one takes {rows} for its trees" if (rows := self.of(0)) else ""

    def full(self, asked: str, plan: Plan) -> BudgetError:
        """What to raise where there is no room for what was asked."""
        return BudgetError(
            f"{asked} does not fit: the plan has KV memory for {self.positions} positions and open sessions "
            f"hold {self.held}{self.beside}; close one, give each fewer (new_session takes all that is free "
            "unless it is given context=), or load with a larger context=",
            plan.owners,
            plan.dial,
            plan.dial,
        )

    def share(self, number: int) -> int:
        """What a session holds."""
        return self._shares.get(number, 0)

    def take(self, number: int, positions: int) -> None:
        """From now on it holds so many."""
        self._shares[number] = positions

    def release(self, number: int) -> None:
        self._shares.pop(number, None)
