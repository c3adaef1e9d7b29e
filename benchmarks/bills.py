"""A small model's cycles, billed as a big one's; the product's controller hears of nothing else."""

from __future__ import annotations

from dataclasses import dataclass, replace

from torch import Tensor

from edgespec.control.controller import Adaptive
from edgespec.core.trace import Cycle
from edgespec.devices.matmuls import ROWS
from edgespec.offload.plan.costs import CostModel
from edgespec.runtimes.rows import Rows
from edgespec.runtimes.target import EVERY_LAYER
from edgespec.schedules.mirror import Mirror
from edgespec.schedules.ssd import Ssd

NODES = 64  # of a tree


@dataclass(frozen=True)
class Bill:
    """Seconds of the big model. compute, row: of a pass's arithmetic, of one row and of each further one, as
    far as they are no part of `node`. late: of a pass of drafting in waits; 0 = nobody drafts there."""

    plain: float
    node: float
    step: float
    compute: float = 0.0
    row: float = 0.0
    late: float = 0.0
    slower: float = 0.0

    def of(self, cycle: Cycle) -> Cycle:
        beside = self.slower if cycle.overlap and cycle.overlap.passes else 0.0
        rows = len(cycle.tree)
        took = max(self.plain, self._computing(rows)) + self.node * (rows - 1)
        return replace(cycle, draft_seconds=self.step * (cycle.passes or 0), verify_seconds=took + beside)

    def waits(self, rows: int) -> int:
        """Of a pass over so many rows, in passes of drafting."""
        return int(max(self.plain - self._computing(rows), 0.0) / self.late) if self.late else 0

    def _computing(self, rows: int) -> float:
        return self.compute + self.row * (rows - 1)

    @property
    def prior(self) -> CostModel:
        """What a plan would have said of it."""
        by_rows = tuple(self._computing(rows) for rows in ROWS)
        return CostModel(io=self.plain, compute=self.compute, step=self.step, by_rows=by_rows)


class Billed(Adaptive):
    """The product's controller, told what the big model's cycles would have taken."""

    def __init__(self, bill: Bill) -> None:
        super().__init__(bill.prior)
        self.bill = bill

    def record(self, cycle: Cycle) -> None:
        super().record(self.bill.of(cycle))

    def successor(self) -> Billed:
        heir = Billed(self.bill)
        vars(heir).update(vars(super().successor()))
        return heir

    def next_process(self) -> Billed:
        heir = Billed(self.bill)
        heir.recall(self.notes())
        return heir


class Waiting:
    """Beside a target whose pass waits behind each layer for its share of what the bill says."""

    bill: Bill
    layers: int
    hears = EVERY_LAYER

    def on_layer(self, index: int, hidden: Tensor, rows: Rows) -> None:
        super().on_layer(index, hidden, rows)  # type: ignore[misc]
        room = self.bill.waits(rows.n) * (index + 1) // self.layers
        while (ahead := self._ahead) is not None and ahead.passes < room and self.on_wait():  # type: ignore[attr-defined]
            pass


class SsdWaiting(Waiting, Ssd):
    """Schedule ssd."""


class MirrorWaiting(Waiting, Mirror):
    """Schedule mirror."""
