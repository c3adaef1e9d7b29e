"""Which bytes go where, decided before any weight is read.

The plan fills the dial: what must be there (interpreter, ring, KV, activations), and then pinned chunks. All
matrices are used once a pass, so every pinned byte saves one byte of reading; the LM head goes first, because
a prompt's blocks skip it and the stream then runs through the layers alone. The chunks of the layers are
pinned evenly through the depth, not from the front: the reader then always has room to read ahead.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, field, replace

from edgespec.errors import OptionError
from edgespec.offload.chunks import Chunk, ChunkTable
from edgespec.offload.ledger import Ledger, gigabytes

RING_CHUNKS = 8  # of the largest size: the reader works ahead while a pass computes
MIN_RING_CHUNKS = 3  # one in use, two being read
MIN_CONTEXT = 512
MAX_DEFAULT_CONTEXT = 4096
LAYER_SECONDS = 0.8e-3  # of a pass of one row, beside the weights: attention, norms, Python (measured)
MIN_HEADROOM = 32 * 10**6  # bytes; allocator slack, thread stacks, kernels' scratch
HEADROOM_PART = 50  # one part in so many of the dial
KV_SHARE = 1 / 8  # of the dial, unless --context says otherwise


@dataclass(frozen=True)
class Needs:
    """What a model needs beside its matrices; bytes."""

    baseline: int  # the process as it is now: interpreter, libraries
    small: int  # norms and biases
    activations: int  # of the largest pass
    kv: Callable[[int], int]  # of a cache for so many positions
    max_context: int
    drafter: Callable[[int], int] | None = None  # of a resident drafter that follows so many positions
    substitute: Callable[[Chunk], int] | None = None  # of the low-bit rows that stand for a streamed chunk
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
            "predicted_tokens_per_second": self.predicted_tokens_per_second,
            "reasons": self.reasons,
        }


def make_plan(
    table: ChunkTable,
    dial: int,
    needs: Needs,
    rates: Rates,
    context: int | None = None,
    resident_layers: int | None = None,
) -> Plan:
    """Fill the dial.

    Raises BudgetError (naming the owners and the smallest dial that works) when even a stream with
    nothing pinned does not fit, or `resident_layers` do not; OptionError for a context or layer count that
    the model lacks.
    """
    reasons: list[str] = []
    check_request(table, needs, context, resident_layers)
    largest = max(c.read_bytes for c in table.chunks)

    low_bit = {c.index: needs.substitute(c) for c in table.chunks} if needs.substitute else {}

    def ledger(pinned: Iterable[Chunk], ring: int, positions: int, embedding: int = 0) -> Ledger:
        pinned = list(pinned)
        owners = {
            "interpreter and libraries": needs.baseline,
            "headroom": max(MIN_HEADROOM, dial // HEADROOM_PART),
            "activations": needs.activations,
            f"KV cache and attention ({positions} positions)": needs.kv(positions),
            "norms and biases": needs.small,
            "ring": ring,
            "pinned weights": pages(pinned),
            "embedding": embedding,
            "substitute": sum(low_bit.values()) - sum(low_bit.get(c.index, 0) for c in pinned),
        }
        if needs.drafter is not None:
            owners["drafter"] = needs.drafter(positions)
        return Ledger(dial, owners)

    def fits_whole(positions: int) -> bool:
        return ledger(table.chunks, 0, positions).free >= 0

    positions = context or default_context(dial, needs, fits_whole, reasons)
    least = min(MIN_CONTEXT, needs.max_context)
    must = first_layers(table, min(needs.depths, default=0))
    if context is None and ledger(must, MIN_RING_CHUNKS * largest, positions).free < 0 and positions > least:
        positions = least
        reasons[-1] = f"context {positions} positions: the dial has no room for more"

    # What to pin.
    pin_embedding = False
    depth = max(needs.depths, default=0)
    if resident_layers is not None:
        depth = max((d for d in needs.depths if d <= resident_layers), default=0)
        pinned = [c for c in table.chunks if c.layer < resident_layers or (depth and c.layer == table.layers)]
        reasons.append(f"{resident_layers} layers pinned, as asked" + (", and the LM head" if depth else ""))
        ring = RING_CHUNKS * largest if len(pinned) < len(table.chunks) else 0
        smallest = ledger(pinned, min(ring, MIN_RING_CHUNKS * largest), positions)
        if ring:
            ring = choose_ring(largest, lambda ring: ledger(pinned, ring, positions).free)
        book = ledger(pinned, ring, positions)
        book.require(
            smallest_dial(smallest), f" with {resident_layers} layers pinned and context {positions}."
        )
    elif (book := ledger(table.chunks, 0, positions)).free >= 0:
        pinned, ring = list(table.chunks), 0
        reasons.append("the whole model fits: nothing is streamed")
        if not table.tied and book.free >= table.embedding.nbytes:
            book = ledger(table.chunks, 0, positions, table.embedding.nbytes)
            pin_embedding = True
    else:
        least_ring = MIN_RING_CHUNKS * largest
        fitting = [d for d in needs.depths if ledger(first_layers(table, d), least_ring, positions).free >= 0]
        depth = max(fitting, default=min(needs.depths, default=0))
        kept = first_layers(table, depth)
        ring = choose_ring(largest, lambda ring: ledger(kept, ring, positions).free - 2 * largest)
        book = ledger(kept, ring, positions)
        smaller = "" if positions <= MIN_CONTEXT else f"; --context {MIN_CONTEXT} would need less"
        cascade = (
            f", with {depth} layers and the head pinned for the cascade (others need less)" if depth else ""
        )
        book.require(smallest_dial(book), f" with context {positions}{cascade}{smaller}.")
        held = {c.index for c in kept}
        rest = replace(table, chunks=tuple(c for c in table.chunks if c.index not in held))
        pinned = kept + choose_pinned(rest, book.free, low_bit)
        book = ledger(pinned, ring, positions)
        share = sum(c.nbytes for c in pinned) / table.nbytes
        if depth:
            reasons.append(f"the LM head and {depth} layers pinned, in which the cascade drafts")
        reasons.append(f"{share:.0%} of the weights pinned, spread evenly; the rest streams through the ring")
    chosen = frozenset(c.index for c in pinned)
    return Plan(
        book, table, chosen, ring, positions, rates, reasons, pin_embedding=pin_embedding, depth=depth
    )


def first_layers(table: ChunkTable, depth: int) -> list[Chunk]:
    """The chunks of the first `depth` layers and of the head; none of nothing."""
    return [c for c in table.chunks if depth and (c.layer < depth or c.layer == table.layers)]


def choose_ring(largest: int, left: Callable[[int], int]) -> int:
    """Bytes of the largest ring, a whole number of `largest` chunks, with which `left` is not negative."""
    sizes = range(RING_CHUNKS, MIN_RING_CHUNKS, -1)
    return next((n * largest for n in sizes if left(n * largest) >= 0), MIN_RING_CHUNKS * largest)


def pages(chunks: Iterable[Chunk]) -> int:
    """Bytes of memory that these chunks take when pinned."""
    return sum(c.read_bytes for c in chunks)


def check_request(table: ChunkTable, needs: Needs, context: int | None, resident_layers: int | None) -> None:
    """Raises OptionError for more positions or layers than the model has."""
    if context is not None and context > needs.max_context:
        raise OptionError(f"context {context} is more than the model's {needs.max_context} positions")
    if resident_layers is not None and resident_layers > table.layers:
        raise OptionError(f"resident_layers is {resident_layers}, but the model has {table.layers} layers")
    if resident_layers is not None and needs.depths and resident_layers < min(needs.depths):
        raise OptionError(
            f"resident_layers is {resident_layers}, but the cascade drafts in {min(needs.depths)} pinned "
            "layers; pin at least so many, or leave the cascade out"
        )


def default_context(dial: int, needs: Needs, fits_whole: Callable[[int], bool], reasons: list[str]) -> int:
    """Positions when the user names none: the usual ones when the whole model fits beside them, else as
    many as KV's share of the dial holds."""
    positions = min(needs.max_context, MAX_DEFAULT_CONTEXT)
    if not fits_whole(positions):
        per_position = max(1, needs.kv(1024) // 1024)
        affordable = int(dial * KV_SHARE) // per_position // 64 * 64
        positions = min(positions, max(affordable, min(MIN_CONTEXT, needs.max_context)))
    reasons.append(
        f"context {positions} positions (--context to change; the model allows {needs.max_context})"
    )
    return positions


def smallest_dial(book: Ledger) -> int:
    """The dial at which these owners fit, headroom growing with it."""
    others = book.used - book.owners["headroom"]
    return max(others + MIN_HEADROOM, -(-others * HEADROOM_PART // (HEADROOM_PART - 1)))


def choose_pinned(table: ChunkTable, budget: int, low_bit: Mapping[int, int] | None = None) -> list[Chunk]:
    """Chunks to pin within `budget` bytes: the head if it fits, then chunks evenly through the layers.

    `low_bit`: by chunk index, the bytes of a stand-in that a pinned chunk makes superfluous.
    """
    saved = low_bit or {}
    cost = {c.index: c.read_bytes - saved.get(c.index, 0) for c in table.chunks}
    head = [c for c in table.chunks if c.layer == table.layers]
    chosen: list[Chunk] = []
    if sum(cost[c.index] for c in head) <= budget:
        chosen += head
        budget -= sum(cost[c.index] for c in head)
    candidates = [c for c in table.chunks if c not in chosen]
    total = sum(cost[c.index] for c in candidates)
    if not total:
        return chosen
    share, credit = budget / total, 0.0
    left = []
    for chunk in candidates:  # error diffusion: each chunk adds its share, and is pinned when that covers it
        credit += share * cost[chunk.index]
        if credit >= cost[chunk.index] / 2 and cost[chunk.index] <= budget:
            chosen.append(chunk)
            credit -= cost[chunk.index]
            budget -= cost[chunk.index]
        else:
            left.append(chunk)
    for chunk in left:  # what remains of the budget takes whatever still fits
        if cost[chunk.index] <= budget:
            chosen.append(chunk)
            budget -= cost[chunk.index]
    return chosen
