"""The plan under another dial, while the model runs: as few differences as possible.

Whatever is there stays: the interpreter, KV caches, what others keep, and of what is pinned as much as the
new dial has room for, thinned out evenly. A larger dial pins more beside it.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import replace

from edgespec.offload.chunks import Chunk
from edgespec.offload.plan.fill import headroom_of, smallest_dial
from edgespec.offload.plan.ledger import HEADROOM, Ledger, gigabytes
from edgespec.offload.plan.pinning import MIN_RING_CHUNKS, choose_pinned, choose_ring, must_stay, pages
from edgespec.offload.plan.plan import Plan


def at_dial(plan: Plan, dial: int, as_asked: bool = False) -> Plan:
    """`as_asked`: what is pinned was the user's choice, and neither more nor less will be.

    A stand-in's copies stay; what it shared with the target and is pinned no longer, it has copies of.

    Raises BudgetError, naming the owners and the smallest dial, when what must stay does not fit.
    """
    table = plan.table
    largest = max(c.read_bytes for c in table.chunks)
    pinned = [c for c in table.chunks if c.index in plan.pinned]
    must = pinned if as_asked else must_stay(table, plan.extras.must_pin, plan.depth)
    stand_in = plan.extras.stand_in if plan.copied else None
    copies = {c.index: stand_in.nbytes(c) for c in table.chunks} if stand_in else {}
    shared = {index: nbytes for index, nbytes in copies.items() if index not in plan.copied}

    def book(chosen: Iterable[Chunk], ring: int, embedding: int = 0) -> Ledger:
        chosen = list(chosen)
        weights = {"ring": ring, "pinned weights": pages(chosen), "embedding": embedding}
        owners = plan.owners | {HEADROOM: headroom_of(dial)} | weights
        if stand_in is not None:
            owners[stand_in.owner] = sum(copies.values()) - sum(shared.get(c.index, 0) for c in chosen)
        return Ledger(dial, owners)

    def planned(chosen: list[Chunk], ring: int, embedding: int = 0) -> Plan:
        held = frozenset(c.index for c in chosen)
        share = sum(c.nbytes for c in chosen) / table.nbytes
        return replace(
            plan,
            ledger=book(chosen, ring, embedding),
            pinned=held,
            ring_bytes=ring,
            pin_embedding=embedding > 0,
            copied=plan.copied | (shared.keys() - held),
            reasons=[f"memory set to {gigabytes(dial)} meanwhile: {share:.0%} of the weights pinned"],
        )

    # While what is missing streams by, the ring is still there.
    everything = list(table.chunks)
    free = book(everything, plan.ring_bytes).free
    if free >= 0 and (not as_asked or len(pinned) == len(everything)):
        free = book(everything, 0).free
        embedding = 0 if table.tied or free < table.embedding.nbytes else table.embedding.nbytes
        return planned(everything, 0, embedding)

    least = book(must, MIN_RING_CHUNKS * largest if len(must) < len(everything) else 0)
    least.require(smallest_dial(least), f" with context {plan.context} and what is open.")
    if as_asked:
        streamed = pages(everything) - pages(pinned)
        return planned(pinned, choose_ring(largest, lambda ring: book(pinned, ring).free, streamed))
    ring = choose_ring(largest, lambda ring: book(must, ring).free - 2 * largest)
    chosen = must
    for candidates in (pinned, everything):
        left = tuple(c for c in candidates if c not in chosen)
        chosen = chosen + choose_pinned(replace(table, chunks=left), book(chosen, ring).free, shared)
    return planned(chosen, ring)
