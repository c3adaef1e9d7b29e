"""The plan for a discrete accelerator: two memories, two dials.

The device holds what every pass touches (KV, activations) and as many chunks as fit beside a few buffers for
the others; host memory pins chunks that then cross the bus in every pass; the rest streams from flash through
the host's ring and the device's buffers.
"""

from __future__ import annotations

from dataclasses import dataclass, replace

from edgespec.offload.chunks import Chunk, ChunkTable
from edgespec.offload.plan.costs import Rates
from edgespec.offload.plan.fill import (
    MIN_HEADROOM,
    check_request,
    default_context,
    headroom_of,
    smallest_dial,
)
from edgespec.offload.plan.ledger import HEADROOM, PROGRAMS, Ledger
from edgespec.offload.plan.needs import Needs, Request
from edgespec.offload.plan.pinning import choose_pinned, choose_ring, pages
from edgespec.offload.plan.plan import Plan


@dataclass(frozen=True)
class DeviceMemory:
    """A discrete accelerator's memory, in bytes."""

    total: int
    baseline: int  # what the driver's context takes
    slots: int  # buffers that chunks pass through


def make_device_plan(
    table: ChunkTable, needs: Needs, rates: Rates, request: Request, memory: DeviceMemory
) -> Plan:
    """Fill both dials. `resident_layers` are pinned on the device.

    Raises like `make_plan`; the BudgetError's dial is the one that is too small.
    """
    dial, device_dial = request.dial, request.device_dial or memory.total - MIN_HEADROOM
    check_request(table, needs, request)
    largest = max(c.read_bytes for c in table.chunks)

    def device(pinned: int, slots: int, positions: int) -> Ledger:
        owners = {
            "driver context": memory.baseline,
            HEADROOM: headroom_of(device_dial),
            "activations": needs.activations,
            f"KV cache and attention ({positions} positions)": needs.kv(positions),
            "norms and biases": needs.small,
            "device buffers": slots * largest,
            "pinned weights": pinned,
        }
        return Ledger(device_dial, owners)

    def host(pinned: int, ring: int) -> Ledger:
        owners = {
            "interpreter and libraries": needs.baseline,
            PROGRAMS: needs.program_cache,
            HEADROOM: headroom_of(dial),
            "ring": ring,
            "pinned weights": pinned,
        }
        owners |= needs.extras.bytes_for(positions, needs.baseline)  # all on the host
        return Ledger(dial, owners)

    def fits_whole(positions: int) -> bool:
        return device(pages(table.chunks), 0, positions).free >= 0

    # The device first: what it holds is neither read nor copied again.
    layers = request.resident_layers
    asked = [c for c in table.chunks if c.layer < (layers or 0)]

    def fits(positions: int) -> bool:
        slots = memory.slots if len(asked) < len(table.chunks) else 0
        return device(pages(asked), slots, positions).free >= 0

    if request.context is not None:
        positions, reasons = request.context, list[str]()
    else:
        positions, reasons = default_context(device_dial, needs, fits_whole, fits)
    if layers is not None:
        on_device = asked
        reasons.append(f"{layers} layers pinned on the device, as asked")
    elif fits_whole(positions):
        on_device = list(table.chunks)
    else:
        book = device(0, memory.slots, positions)
        book.require(smallest_dial(book), " of device memory.")
        on_device = choose_pinned(table, book.free)
    slots = memory.slots if len(on_device) < len(table.chunks) else 0
    device_book = device(pages(on_device), slots, positions)
    device_book.require(smallest_dial(device_book), " of device memory.")

    # Then host memory, for the rest.
    held = frozenset(c.index for c in on_device)
    rest = replace(table, chunks=tuple(c for c in table.chunks if c.index not in held))
    pinned: list[Chunk] = []
    ring = 0
    if not rest.chunks:
        reasons.append("the whole model fits the device: nothing is streamed")
    elif host(pages(rest.chunks), 0).free >= 0:
        reasons.append("what the device does not hold is in host memory: nothing is read from flash")
        pinned = list(rest.chunks)
    else:
        ring = choose_ring(largest, lambda ring: host(0, ring).free - 2 * largest)
        book = host(0, ring)
        book.require(smallest_dial(book, needs.drift), " of host memory.")
        pinned = choose_pinned(rest, book.free)
        reasons.append("the rest is pinned in host memory as far as it fits, and streamed")
    host_book = host(pages(pinned), ring)
    host_book.require(smallest_dial(host_book, needs.drift), " of host memory.")
    return Plan(
        host_book,
        table,
        frozenset(c.index for c in pinned),
        ring,
        positions,
        rates,
        reasons,
        held,
        device_book,
        extras=needs.extras,
        sequences=request.sequences,
    )
