"""Which bytes of a model go where, under which dial, and how fast that should be."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field

from edgespec.offload.chunks import Chunk, ChunkTable
from edgespec.offload.plan.ledger import Ledger, gigabytes

LAYER_SECONDS = 0.8e-3  # of a pass of one row, beside the weights: attention, norms, Python (measured)


@dataclass(frozen=True)
class Needs:
    """What a model needs beside its matrices; bytes."""

    baseline: int  # the process as it is now: interpreter, libraries
    small: int  # norms and biases
    activations: int  # of the largest pass
    kv: Callable[[int], int]  # of a cache for so many positions
    max_context: int
    drafter: Callable[[int], int] | None = None  # of a resident drafter that follows so many positions
    substitute: Callable[[Chunk], int] | None = None  # of the low-bit rows that stand for a chunk
    overlay: int = 0  # of the drafts' own keys and values, where such rows draft
    depths: tuple[int, ...] = ()  # a cascade's: so many first layers, and the head, must be pinned; ascending


@dataclass(frozen=True)
class Rates:
    """Measured on this machine; GB/s."""

    read: float | None  # direct reads of the weights' disk
    compute: float  # weights multiplied by one row, from memory


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
    depth: int = 0  # first layers that are pinned for a cascade
    copied: frozenset[int] = frozenset()  # chunks that drafts read from the low-bit copy

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

    @property
    def streamed_bytes(self) -> int:
        return sum(c.nbytes for c in self.streamed)

    @property
    def bytes_per_pass(self) -> int:
        """Bytes that one pass reads from flash, alignment included (embedding rows aside: 4-8 KB a token)."""
        return sum(c.read_bytes for c in self.streamed)

    @property
    def predicted_cycle_seconds(self) -> float | None:
        """max(I/O, compute) of a pass of one row; None when the disk's rate is unknown."""
        compute = self.table.nbytes / (self.rates.compute * 1e9) + self.table.layers * LAYER_SECONDS
        if not self.bytes_per_pass:
            return compute
        if self.rates.read is None:
            return None
        return max(compute, self.bytes_per_pass / (self.rates.read * 1e9))

    @property
    def predicted_tokens_per_second(self) -> float | None:
        """Of plain decoding."""
        seconds = self.predicted_cycle_seconds
        return None if seconds is None else 1 / seconds

    def describe(self) -> str:
        """The ledger as a table, the reasons, and the predicted speed."""
        lines = [f"dial {gigabytes(self.dial)}", *self.ledger.rows()]
        lines.append(f"  {gigabytes(self.ledger.free):>10}  free")
        if self.device_ledger is not None:
            lines += [f"device {gigabytes(self.device_ledger.dial)}", *self.device_ledger.rows()]
        lines += self.reasons
        speed = self.predicted_tokens_per_second
        if speed is not None:
            lines.append(f"predicted: {speed:.3g} tokens/s without drafting")
        return "\n".join(lines)

    def to_dict(self) -> dict[str, object]:
        return {
            "dial": self.dial,
            "owners": self.owners,
            "device_owners": dict(self.device_ledger.owners) if self.device_ledger else None,
            "context": self.context,
            "pinned_bytes": self.pinned_bytes,
            "streamed_bytes": self.streamed_bytes,
            "bytes_per_pass": self.bytes_per_pass,
            "cascade_layers": self.depth,
            "predicted_tokens_per_second": self.predicted_tokens_per_second,
            "reasons": self.reasons,
        }
