"""Makes the plan, before any weight is read.

The plan fills the dial: what must be there (interpreter, ring, KV, activations, what others keep beside the
model), and then pinned chunks (`pinning`).
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, field, replace
from functools import cached_property

from edgespec.errors import BudgetError, OptionError
from edgespec.offload.chunks import Chunk, ChunkTable
from edgespec.offload.plan.costs import Rates
from edgespec.offload.plan.ledger import HEADROOM, PROGRAMS, Ledger, gigabytes
from edgespec.offload.plan.needs import Needs, Request
from edgespec.offload.plan.pinning import MIN_RING_CHUNKS, choose_pinned, choose_ring, must_stay, pages
from edgespec.offload.plan.plan import Plan

MIN_CONTEXT = 512
MAX_DEFAULT_CONTEXT = 4096
MIN_HEADROOM = 32 * 10**6  # bytes; allocator slack, thread stacks, kernels' scratch
HEADROOM_PART = 50  # one part in so many of the dial
ROUNDED = 10**6  # bytes: of dials that are named
PAGES = 2**20  # bytes: by less a cgroup's limit, cut to whole pages, may be below what was written
KV_SHARE = 1 / 8  # of the dial, unless the user names a context


def make_plan(table: ChunkTable, needs: Needs, rates: Rates, request: Request) -> Plan:
    """Fill the dial.

    A stand-in is for what is streamed, or for all if that makes a cycle shorter (`needs.StandIn`).

    Raises BudgetError (naming the owners and the smallest dial that works) when even a stream with
    nothing pinned does not fit, or `resident_layers` do not; OptionError for a context or layer count that
    the model lacks.
    """
    check_request(table, needs, request)
    shared = _fill(_Books(table, needs, request), rates)
    if needs.extras.stand_in is None or needs.extras.must_pin is not None or not shared.streamed:
        return shared
    try:
        whole = _fill(_Books(table, needs, request, for_all=True), rates)
    except BudgetError:
        return shared
    seconds = cycle_seconds(shared), cycle_seconds(whole)
    return whole if seconds[0] is not None and seconds[1] is not None and seconds[1] < seconds[0] else shared


def cycle_seconds(plan: Plan) -> float | None:
    """Of a usual cycle with the stand-in; None when the disk's rate is unknown."""
    stand_in = plan.extras.stand_in
    if stand_in is None or plan.predicted_cycle_seconds is None:
        return plan.predicted_cycle_seconds
    as_they_are = sum(c.nbytes for c in plan.table.chunks if c.index not in plan.copied)
    return plan.costs(plan.owners[stand_in.owner] + as_they_are).cycle(stand_in.steps)


@dataclass(frozen=True)
class _Books:
    """Adds up owners, for whatever may be pinned."""

    table: ChunkTable
    needs: Needs
    request: Request
    for_all: bool = False  # the stand-in is for pinned chunks, too; else pinning one saves its part

    @cached_property
    def largest(self) -> int:
        """Bytes of the largest chunk."""
        return max(c.read_bytes for c in self.table.chunks)

    @cached_property
    def copies(self) -> Mapping[int, int]:
        """By chunk index, bytes of what stands for it."""
        stand_in = self.needs.extras.stand_in
        return {c.index: stand_in.nbytes(c) for c in self.table.chunks} if stand_in else {}

    @property
    def saved(self) -> Mapping[int, int]:
        """By chunk index, bytes of the stand-in that pinning it makes superfluous."""
        return {} if self.for_all else self.copies

    def ledger(self, pinned: Iterable[Chunk], ring: int, positions: int, embedding: int = 0) -> Ledger:
        pinned, needs, dial = list(pinned), self.needs, self.request.dial
        owners = {
            "interpreter and libraries": needs.baseline,
            PROGRAMS: needs.program_cache,
            HEADROOM: headroom_of(dial),
            "activations": needs.activations,
            f"KV cache and attention ({positions} positions)": needs.kv(positions),
            "norms and biases": needs.small,
            "ring": ring,
            "pinned weights": pages(pinned),
            "embedding": embedding,
        }
        if (stand_in := needs.extras.stand_in) is not None:
            copied = sum(self.copies.values()) - sum(self.saved.get(c.index, 0) for c in pinned)
            owners[stand_in.owner] = copied
            owners |= {name: nbytes if copied else 0 for name, nbytes in stand_in.beside.items()}
        owners |= needs.extras.bytes_for(positions, needs.baseline)
        return Ledger(dial, owners)

    def fits_whole(self, positions: int) -> bool:
        return self.ledger(self.table.chunks, 0, positions).free >= 0


@dataclass(frozen=True)
class _Choice:
    """What is pinned, bytes of ring, how many first layers somebody must have among the pinned, and why."""

    pinned: list[Chunk]
    ring: int
    depth: int
    reasons: list[str] = field(default_factory=list)
    embedding: int = 0  # bytes pinned of it


def _fill(books: _Books, rates: Rates) -> Plan:
    positions, reasons = _choose_context(books)
    if books.request.resident_layers is not None:
        choice = _as_asked(books, positions, books.request.resident_layers)
    else:
        choice = _whole(books, positions) or _as_far_as_it_fits(books, positions)
    reasons += choice.reasons
    chosen = frozenset(c.index for c in choice.pinned)
    stand_in = books.needs.extras.stand_in
    if stand_in is not None and books.for_all:
        reasons.append(stand_in.reason)
    return Plan(
        books.ledger(choice.pinned, choice.ring, positions, choice.embedding),
        books.table,
        chosen,
        choice.ring,
        positions,
        rates,
        reasons,
        pin_embedding=choice.embedding > 0,
        depth=choice.depth,
        copied=frozenset(books.copies) - (frozenset() if books.for_all else chosen),
        extras=books.needs.extras,
        sequences=books.request.sequences,
    )


def _choose_context(books: _Books) -> tuple[int, list[str]]:
    """Positions, and why so many."""
    needs, request, table = books.needs, books.request, books.table
    if request.context is not None:
        return request.context, []
    if request.resident_layers is None:
        must = must_stay(table, needs.extras.must_pin, min(needs.extras.depths, default=0))
    else:
        must, _ = _asked_for(books, request.resident_layers)
    ring = MIN_RING_CHUNKS * books.largest if len(must) < len(table.chunks) else 0

    def fits(positions: int) -> bool:
        return books.ledger(must, ring, positions).free >= 0

    return default_context(request.dial, needs, books.fits_whole, fits)


def _asked_for(books: _Books, layers: int) -> tuple[list[Chunk], int]:
    """The first `layers` layers, and the head if somebody must have some of them; how many these are."""
    extras, table = books.needs.extras, books.table
    depth = max((d for d in extras.depths if d <= layers), default=0)
    must = {c.index for c in must_stay(table, extras.must_pin, depth)}
    return [c for c in table.chunks if c.layer < layers or c.index in must], depth


def _as_asked(books: _Books, positions: int, layers: int) -> _Choice:
    """So many layers pinned, neither more nor fewer. Raises BudgetError."""
    table, largest = books.table, books.largest
    pinned, depth = _asked_for(books, layers)
    ring = least = 0
    if len(pinned) < len(table.chunks):
        streamed = pages(table.chunks) - pages(pinned)
        ring = choose_ring(largest, lambda ring: books.ledger(pinned, ring, positions).free, streamed)
        least = MIN_RING_CHUNKS * largest
    smallest = smallest_dial(books.ledger(pinned, least, positions), books.needs.drift)
    advice = f" with {layers} layers pinned and context {positions}."
    books.ledger(pinned, ring, positions).require(smallest, advice)
    head = books.needs.extras.must_pin is not None
    reason = f"{layers} layers pinned, as asked" + (", and the LM head" if head else "")
    return _Choice(pinned, ring, depth, [reason])


def _whole(books: _Books, positions: int) -> _Choice | None:
    """All chunks, and the embedding if it is not the head and fits too; None where they do not fit."""
    table = books.table
    free = books.ledger(table.chunks, 0, positions).free
    if free < 0:
        return None
    depth = max(books.needs.extras.depths, default=0)
    embedding = table.embedding.nbytes if not table.tied and free >= table.embedding.nbytes else 0
    reasons = ["the whole model fits: nothing is streamed"]
    return _Choice(list(table.chunks), 0, depth, reasons, embedding)


def _as_far_as_it_fits(books: _Books, positions: int) -> _Choice:
    """What must be pinned, then a ring, then as many chunks as the dial has room for. Raises BudgetError."""
    table, extras, largest = books.table, books.needs.extras, books.largest
    least, who = MIN_RING_CHUNKS * largest, extras.must_pin
    fitting = [d for d in extras.depths if books.ledger(must_stay(table, who, d), least, positions).free >= 0]
    depth = max(fitting, default=min(extras.depths, default=0))
    kept = must_stay(table, who, depth)
    ring = choose_ring(largest, lambda ring: books.ledger(kept, ring, positions).free - 2 * largest)
    book = books.ledger(kept, ring, positions)
    smaller = "" if positions <= MIN_CONTEXT else f"; context={MIN_CONTEXT} would need less"
    reasons = []
    must = ""
    if who is not None:
        layers = f"{depth} layers and " if depth else ""
        must = f", with {layers}the head pinned for {who.owner} (others need less)"
        reasons.append(f"{who.owner} {who.use} {layers}the LM head, pinned for that")
    book.require(smallest_dial(book, books.needs.drift), f" with context {positions}{must}{smaller}.")
    held = {c.index for c in kept}
    rest = replace(table, chunks=tuple(c for c in table.chunks if c.index not in held))
    pinned = kept + choose_pinned(rest, book.free, books.saved)
    share = sum(c.nbytes for c in pinned) / table.nbytes
    reasons.append(f"{share:.0%} of the weights pinned, spread evenly; the rest streams through the ring")
    return _Choice(pinned, ring, depth, reasons)


def check_dial(dial: int, total: int) -> None:
    """Raises OptionError for a dial above the memory, `total`, that the process could ever have."""
    if dial > total + PAGES:
        raise OptionError(f"{too_large(dial, total)}; lower memory=", "memory")


def too_large(dial: int, total: int, whose: str = "this machine, or its container,") -> str:
    """What is wrong with a dial above the memory of a machine, in words."""
    return f"the dial is {gigabytes(dial)}, but {gigabytes(total)} is all that {whose} has"


def check_request(table: ChunkTable, needs: Needs, request: Request) -> None:
    """Raises OptionError for more positions or layers than the model has, or fewer layers than must be."""
    context, layers, must = request.context, request.resident_layers, needs.extras.must_pin
    if context is not None and context > needs.max_context:
        raise OptionError(f"context {context} is more than the model's {needs.max_context} positions")
    if layers is not None and layers > table.layers:
        raise OptionError(f"resident_layers is {layers}, but the model has {table.layers} layers")
    if layers is not None and must is not None and layers < min(must.depths):
        raise OptionError(
            f"resident_layers is {layers}, but {must.owner} {must.use} {min(must.depths)} pinned layers; pin "
            f"at least so many, or leave {must.owner} out"
        )


def default_context(
    dial: int, needs: Needs, fits_whole: Callable[[int], bool], fits: Callable[[int], bool]
) -> tuple[int, list[str]]:
    """Positions when the user names none, and why: the usual ones when the whole model fits beside them, else
    as many as KV's share of the dial holds; the fewest where what must be there does not fit beside those."""
    least = min(MIN_CONTEXT, needs.max_context)
    positions = min(needs.max_context, MAX_DEFAULT_CONTEXT)
    if not fits_whole(positions):
        per_position = max(1, needs.kv(1024) // 1024)
        affordable = int(dial * KV_SHARE) // per_position // 64 * 64
        positions = min(positions, max(affordable, least))
    if positions > least and not fits(positions):
        return least, [f"context {least} positions: the dial has no room for more"]
    return positions, [
        f"context {positions} positions, as none was named (the model allows {needs.max_context})"
    ]


def headroom_of(dial: int) -> int:
    """Bytes of a dial that nobody means to use."""
    return max(MIN_HEADROOM, dial // HEADROOM_PART)


def smallest_dial(book: Ledger, drift: int = 0) -> int:
    """The dial at which these owners fit, headroom growing with it; where there is a drift, it holds so much
    more, and is in whole `ROUNDED`."""
    planned = book.planned + drift
    least = max(planned + MIN_HEADROOM, -(-planned * HEADROOM_PART // (HEADROOM_PART - 1)))
    return -(-least // ROUNDED) * ROUNDED if drift else least
