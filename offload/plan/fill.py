"""Makes the plan, before any weight is read.

The plan fills the dial: what must be there (interpreter, ring, KV, activations), and then pinned chunks. All
matrices are used once a pass, so every pinned byte saves one byte of reading; the LM head goes first, because
a prompt's blocks skip it and the stream then runs through the layers alone. The chunks of the layers are
pinned evenly through the depth, not from the front: the reader then always has room to read ahead.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from dataclasses import replace

from edgespec.errors import BudgetError, OptionError
from edgespec.offload.chunks import Chunk, ChunkTable
from edgespec.offload.plan.ledger import Ledger
from edgespec.offload.plan.plan import Needs, Plan, Rates

RING_CHUNKS = 8  # of the largest size: the reader works ahead while a pass computes
MIN_RING_CHUNKS = 3  # one in use, two being read
MIN_CONTEXT = 512
MAX_DEFAULT_CONTEXT = 4096
MIN_HEADROOM = 32 * 10**6  # bytes; allocator slack, thread stacks, kernels' scratch
HEADROOM_PART = 50  # one part in so many of the dial
DRAFT_STEPS = 8  # of drafting with a low-bit copy in a usual cycle
KV_SHARE = 1 / 8  # of the dial, unless --context says otherwise


def make_plan(
    table: ChunkTable,
    dial: int,
    needs: Needs,
    rates: Rates,
    context: int | None = None,
    resident_layers: int | None = None,
) -> Plan:
    """Fill the dial.

    A low-bit copy stands for what is streamed; what is pinned serves drafts as it is (SubSpec). Every step
    of drafting then reads the pinned layers in full. Where memory is not much faster than flash that costs
    more than pinning fewer of them, so the copy stands for all of them if that makes a cycle shorter.

    Raises BudgetError (naming the owners and the smallest dial that works) when even a stream with
    nothing pinned does not fit, or `resident_layers` do not; OptionError for a context or layer count that
    the model lacks.
    """
    check_request(table, needs, context, resident_layers)
    shared = _fill(table, dial, needs, rates, context, resident_layers)
    if needs.substitute is None or needs.depths or not shared.streamed:
        return shared
    try:
        whole = _fill(table, dial, needs, rates, context, resident_layers, shared=False)
    except BudgetError:
        return shared
    seconds = drafted_seconds(shared), drafted_seconds(whole)
    return whole if seconds[0] is not None and seconds[1] is not None and seconds[1] < seconds[0] else shared


def drafted_seconds(plan: Plan) -> float | None:
    """Of a cycle with a usual draft by the low-bit copy; None when the disk's rate is unknown."""
    cycle = plan.predicted_cycle_seconds
    as_they_are = sum(c.nbytes for c in plan.table.chunks if c.index not in plan.copied)
    step = (plan.owners["substitute"] + as_they_are) / (plan.rates.compute * 1e9)
    return None if cycle is None else cycle + DRAFT_STEPS * step


def _fill(
    table: ChunkTable,
    dial: int,
    needs: Needs,
    rates: Rates,
    context: int | None,
    resident_layers: int | None,
    shared: bool = True,
) -> Plan:
    """`shared`: drafts read what is pinned as it is, so that it needs no low-bit rows."""
    reasons: list[str] = []
    largest = max(c.read_bytes for c in table.chunks)

    low_bit = {c.index: needs.substitute(c) for c in table.chunks} if needs.substitute else {}
    saved = low_bit if shared else {}  # by pinning a chunk

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
            "substitute": sum(low_bit.values()) - sum(saved.get(c.index, 0) for c in pinned),
        }
        if needs.overlay:
            owners["draft overlay"] = needs.overlay if owners["substitute"] else 0
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
        pinned = kept + choose_pinned(rest, book.free, saved)
        book = ledger(pinned, ring, positions)
        share = sum(c.nbytes for c in pinned) / table.nbytes
        if depth:
            reasons.append(f"the LM head and {depth} layers pinned, in which the cascade drafts")
        reasons.append(f"{share:.0%} of the weights pinned, spread evenly; the rest streams through the ring")
    chosen = frozenset(c.index for c in pinned)
    copied = frozenset(low_bit) - chosen if shared else frozenset(low_bit)
    if low_bit and not shared:
        reasons.append("drafts read the low-bit copy alone: quicker than the pinned layers as they are")
    return Plan(
        book,
        table,
        chosen,
        ring,
        positions,
        rates,
        reasons,
        pin_embedding=pin_embedding,
        depth=depth,
        copied=copied,
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


def choose_pinned(table: ChunkTable, budget: int, saved: Mapping[int, int] | None = None) -> list[Chunk]:
    """Chunks to pin within `budget` bytes: the head if it fits, then chunks evenly through the layers.

    `saved`: by chunk index, the bytes of a stand-in that a pinned chunk makes superfluous.
    """
    saved = saved or {}
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
