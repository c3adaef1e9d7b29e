"""Which bytes of a model go where, under which dial, and how fast that should be."""

from __future__ import annotations

from dataclasses import dataclass, field
from functools import cached_property

from edgespec.offload.chunks import Chunk, ChunkTable, by_layer
from edgespec.offload.plan.costs import (
    ARRIVING_SECONDS,
    LAYER_SECONDS,
    PASS_SECONDS,
    STREAMED_SECONDS,
    CostModel,
    Rates,
)
from edgespec.offload.plan.ledger import Ledger, gigabytes
from edgespec.offload.plan.needs import Extras
from edgespec.offload.ring import fits_at_once


@dataclass(frozen=True)
class Plan:
    """Where every byte of a model will be, and what that costs."""

    ledger: Ledger
    table: ChunkTable
    pinned: frozenset[int]  # chunk indices
    ring_bytes: int
    context: int
    rates: Rates
    reasons: list[str] = field(default_factory=list)
    on_device: frozenset[int] = frozenset()  # chunks pinned in a discrete accelerator's memory
    device_ledger: Ledger | None = None
    pin_embedding: bool = False
    depth: int = 0  # first layers that are pinned for somebody's sake (`needs.MustPin`)
    copied: frozenset[int] = frozenset()  # chunks that the stand-in stands for
    extras: Extras = field(default_factory=Extras)  # what others keep beside the model
    sequences: int = 1  # that are decoded at once

    @property
    def dial(self) -> int:
        return self.ledger.dial

    @property
    def owners(self) -> dict[str, int]:
        return dict(self.ledger.owners)

    @property
    def pinned_bytes(self) -> int:
        """Bytes of weights that stay in memory, the host's or the device's."""
        return self.table.nbytes - self.streamed_bytes

    @property
    def streamed(self) -> list[Chunk]:
        return [c for c in self.table.chunks if c.index not in self.pinned and c.index not in self.on_device]

    @cached_property
    def streamed_bytes(self) -> int:
        return sum(c.nbytes for c in self.streamed)

    @cached_property
    def bytes_per_pass(self) -> int:
        """Bytes that one pass reads from flash, alignment included (embedding rows aside: 4-8 KB a token)."""
        return sum(c.read_bytes for c in self.streamed)

    def costs(self, step_bytes: int = 0) -> CostModel:
        """What its passes should cost, and steps that read so many bytes of memory."""
        rates, table = self.rates, self.table
        by_rows = rates.multiply(table.stored) if rates.matmuls or rates.raced else ()
        return CostModel(
            io=rates.flash(self.bytes_per_pass),
            compute=by_rows[0] if by_rows else rates.memory(table.nbytes),
            step=rates.memory(step_bytes),
            overhead=PASS_SECONDS + table.layers * LAYER_SECONDS,
            apart=self._apart(),
            by_rows=by_rows,
        )

    def _apart(self) -> float:
        """Seconds more of layers that stream."""
        arriving = [
            layer < self.table.layers and fits_at_once(some, self.ring_bytes)
            for layer, some in by_layer(self.streamed).items()
        ]
        return sum(ARRIVING_SECONDS if small else STREAMED_SECONDS for small in arriving)

    @property
    def predicted_cycle_seconds(self) -> float | None:
        """max(I/O, compute) of a pass of one row; None when the disk's rate is unknown."""
        if self.bytes_per_pass and self.rates.read is None:
            return None
        return self.costs().cycle()

    @property
    def predicted_tokens_per_second(self) -> float | None:
        """Of plain decoding, by rates alone; what runs have shown is not in it."""
        seconds = self.predicted_cycle_seconds
        return None if seconds is None else 1 / seconds

    def describe(self, speed: str = "") -> str:
        """The ledger as a table, the reasons, and what speed to expect: what its rates predict of plain
        decoding, unless the caller knows better."""
        lines = [f"dial {gigabytes(self.dial)}", *self.ledger.rows()]
        lines.append(f"  {gigabytes(self.ledger.free):>10}  free")
        if self.device_ledger is not None:
            lines += [f"device {gigabytes(self.device_ledger.dial)}", *self.device_ledger.rows()]
        lines += self.reasons
        predicted = self.predicted_tokens_per_second
        if speed or predicted is not None:
            lines.append(speed or f"predicted: {predicted:.3g} tokens/s, one a pass")
        return "\n".join(lines)

    def to_dict(self) -> dict[str, object]:
        return {
            "dial": self.dial,
            "owners": self.owners,
            "device_owners": dict(self.device_ledger.owners) if self.device_ledger else None,
            "context": self.context,
            "batch": self.sequences,
            "pinned_bytes": self.pinned_bytes,
            "streamed_bytes": self.streamed_bytes,
            "bytes_per_pass": self.bytes_per_pass,
            "must_pin_layers": self.depth,
            "reasons": self.reasons,
        }
