"""The plan fills the dial, says why, and refuses what does not fit."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

import pytest

from edgespec.apps.stats import memory_line
from edgespec.control.handover import without_drafter
from edgespec.errors import BudgetError, OptionError
from edgespec.offload.chunks import PAGE, Chunk, ChunkTable, Piece, TensorSource
from edgespec.offload.plan.costs import (
    ARRIVING_SECONDS,
    LAYER_SECONDS,
    PASS_SECONDS,
    STREAMED_SECONDS,
    Rates,
)
from edgespec.offload.plan.device import DeviceMemory, make_device_plan
from edgespec.offload.plan.fill import cycle_seconds, make_plan
from edgespec.offload.plan.needs import Extras, Needs, Request, StandIn
from edgespec.offload.plan.pinning import READ, READS, choose_pinned
from edgespec.offload.plan.plan import Plan
from edgespec.offload.plan.replan import at_dial
from edgespec.response import Stats
from edgespec.values import format_bytes

MB = 10**6


def table(layers: int = 8, per_layer: int = 6, size: int = 1024 * PAGE, head: int = 3) -> ChunkTable:
    chunks = []
    for layer in range(layers + 1):
        for _ in range(per_layer if layer < layers else head):
            index = len(chunks)
            piece = Piece(f"t{index}", "F32", (1, size // 4), 0, 0, size)
            chunks.append(Chunk(index, layer, Path("w"), index * size, size, (piece,)))
    embedding = TensorSource("e", "F32", (1, 1), Path("w"), 0, 4)
    return ChunkTable(tuple(chunks), (), embedding, layers, "w", "source")


def needs(baseline: int = 100 * MB, per_position: int = 1000, max_context: int = 2048) -> Needs:
    return Needs(baseline, 1 * MB, 5 * MB, lambda positions: positions * per_position, max_context)


def plan(dial: int, **options: int | None) -> Plan:
    return make_plan(table(), needs(), Rates(read=2.0, compute=10.0), Request(dial, **options))


def stand_in(nbytes: Callable[[Chunk], int]) -> StandIn:
    return StandIn("substitute", nbytes, 8, "quicker so")


@pytest.mark.parametrize("dial", range(180 * MB, 390 * MB, 10 * MB))
def test_the_dial_is_filled_and_never_passed(dial: int) -> None:
    made = plan(dial)
    assert made.ledger.used <= dial
    streamed = [c for c in made.table.chunks if c.index not in made.pinned]
    if streamed:
        assert made.ledger.free < min(c.read_bytes for c in streamed), "a chunk more would have fitted"
        assert made.bytes_per_pass == sum(c.read_bytes for c in streamed)
    else:
        assert made.ring_bytes == 0
        assert made.bytes_per_pass == 0


def test_more_memory_never_reads_more() -> None:
    reads = [plan(dial).bytes_per_pass for dial in range(180 * MB, 390 * MB, 5 * MB)]
    assert reads == sorted(reads, reverse=True)
    assert reads[0] > 0
    assert reads[-1] == 0


def test_pinned_chunks_are_spread_and_the_head_comes_first() -> None:
    model = table()
    chosen = choose_pinned(model, 3 * 1024 * PAGE + 24 * 1024 * PAGE)  # the head and half of the layers
    assert {c.index for c in chosen if c.layer == 8} == {48, 49, 50}
    per_layer = [sum(c.layer == layer for c in chosen) for layer in range(8)]
    assert per_layer == [3] * 8


def test_resident_layers_override_the_plan() -> None:
    made = plan(300 * MB, resident_layers=2)
    assert {made.table.chunks[i].layer for i in made.pinned} == {0, 1}
    assert plan(300 * MB, resident_layers=0).pinned_bytes == 0
    with pytest.raises(OptionError, match="has 8 layers"):
        plan(300 * MB, resident_layers=9)


def test_a_dial_too_small_names_owners_shortfall_and_the_smallest_that_works() -> None:
    with pytest.raises(BudgetError) as caught:
        plan(120 * MB, context=512)
    error = caught.value
    for text in (
        "120.0 MB",
        "short",
        "interpreter and libraries",
        "KV cache and attention (512 positions)",
        "ring",
    ):
        assert text in str(error)
    assert sum(error.owners.values()) > 120 * MB
    assert plan(error.smallest, context=512).ledger.free >= 0
    assert make_plan(table(), needs(baseline=3 * 10**9), Rates(2.0, 10.0), Request(10**10)).ledger.free >= 0
    with pytest.raises(BudgetError):
        plan(error.smallest - MB, context=512)


def test_planned_bytes_are_all_but_the_headroom() -> None:
    for dial in (200 * MB, 10**10):  # where most of it is pinned, and where the whole model is little of it
        ledger = plan(dial).ledger
        assert ledger.headroom == max(32 * 10**6, dial // 50)
        assert ledger.planned == sum(n for owner, n in ledger.owners.items() if owner != "headroom")


def test_the_smallest_dial_holds_for_resident_layers_too() -> None:
    with pytest.raises(BudgetError) as caught:
        plan(200 * MB, resident_layers=8)
    assert plan(caught.value.smallest, resident_layers=8).pinned_bytes > 0


@pytest.mark.parametrize("layers", [None, 0, 2, 8])
@pytest.mark.parametrize("device", [False, True])
def test_the_smallest_dial_holds_whatever_context_it_gives(layers: int | None, device: bool) -> None:
    """A larger dial has room for more positions, but need not have room for what was asked beside them."""

    def made(dial: int) -> Plan:
        if device:
            request = Request(10**10, resident_layers=layers, device_dial=dial)
            return make_device_plan(table(), many, rates, request, DeviceMemory(10**10, 50 * MB, 3))
        return make_plan(table(), many, rates, Request(dial, resident_layers=layers))

    rates, named = Rates(2.0, 10.0), list[int]()
    for per_position in (20_000, 100_000, 200_000):
        many = needs(per_position=per_position, max_context=100_000)
        for dial in range(20 * MB, 400 * MB, 19 * MB):
            try:
                made(dial)
            except BudgetError as error:
                named.append(error.smallest)
        assert named
        while named:
            assert made(named.pop()).ledger.free >= 0


def test_a_dial_that_was_named_works_at_other_starts() -> None:
    """What the process takes differs by megabytes from start to start."""
    starts = [replace(needs(), baseline=(100 + more) * MB, drift=20 * MB) for more in range(-10, 11)]
    named = set()
    for start in starts:
        with pytest.raises(BudgetError) as caught:
            make_plan(table(), start, Rates(2.0, 10.0), Request(120 * MB, context=512))
        named.add(caught.value.smallest)
    for dial in named:
        assert dial % MB == 0
        for start in starts:
            assert make_plan(table(), start, Rates(2.0, 10.0), Request(dial, context=512)).ledger.free >= 0


def test_context_defaults_to_its_share_and_is_said() -> None:
    small = make_plan(table(), needs(per_position=100_000), Rates(2.0, 10.0), Request(300 * MB))
    assert small.context == 512
    larger = make_plan(table(layers=200), needs(per_position=100_000), Rates(2.0, 10.0), Request(900 * MB))
    assert 512 < larger.context <= 900 * MB / 8 / 100_000
    assert any(f"context {small.context}" in reason for reason in small.reasons)
    with pytest.raises(OptionError, match="4096 is more than the model's 2048"):
        plan(300 * MB, context=4096)


def test_the_suggested_dial_works_when_the_context_is_automatic_too() -> None:
    many = needs(per_position=20_000, max_context=100_000)
    with pytest.raises(BudgetError) as caught:
        make_plan(table(), many, Rates(2.0, 10.0), Request(120 * MB))
    made = make_plan(table(), many, Rates(2.0, 10.0), Request(caught.value.smallest))
    assert made.context == 512
    assert made.ledger.free >= 0


def test_prediction_is_the_slower_of_reading_and_computing() -> None:
    made = plan(200 * MB)
    assert made.predicted_cycle_seconds == pytest.approx(made.bytes_per_pass / 2e9)
    resident = plan(10**9)
    assert resident.predicted_cycle_seconds == pytest.approx(
        resident.table.nbytes / 10e9 + PASS_SECONDS + 8 * LAYER_SECONDS
    )
    unknown = make_plan(table(), needs(), Rates(None, 10.0), Request(200 * MB))
    assert unknown.predicted_tokens_per_second is None


def test_description_has_every_owner() -> None:
    text = plan(200 * MB).describe()
    for owner, nbytes in plan(200 * MB).owners.items():
        assert (owner in text) == (nbytes > 0)
    assert "tokens/s" in text
    assert plan(200 * MB).describe("expected: 5 tokens/s").endswith("\nexpected: 5 tokens/s")
    assert "predicted: " not in plan(200 * MB).describe("expected: 5 tokens/s")
    assert not [name for name in plan(200 * MB).to_dict() if "second" in name], "told as expected"


def test_page_cache_of_programs_is_an_owner_and_counts_once() -> None:
    """Not in the process, nor in each that is planned beside it; a container's limit counts it."""
    extras = Extras(processes=("draft worker",))
    bare = make_plan(table(), replace(needs(), extras=extras), Rates(2.0, 10.0), Request(10**9))
    cached = replace(needs(), extras=extras, program_cache=80 * MB)
    found = make_plan(table(), cached, Rates(2.0, 10.0), Request(10**9, bare.context))
    assert found.owners["page cache of programs"] == 80 * MB
    assert found.owners["interpreter and libraries"] == found.owners["draft worker"] == 100 * MB
    assert found.ledger.planned == bare.ledger.planned + 80 * MB
    shown = memory_line(Stats(), found)
    assert f"planned {format_bytes(bare.ledger.planned)} + 80 MB of page cache of programs + " in shown


def test_a_pinned_chunk_needs_no_low_bit_stand_in() -> None:
    """Low-bit rows are counted for what streams, and pinning fills the dial that they leave."""
    model = table()
    quarter = {c.index: c.nbytes // 4 for c in model.chunks}
    with_copy = replace(needs(), extras=Extras(stand_in=stand_in(lambda chunk: quarter[chunk.index])))
    plain = make_plan(model, needs(), Rates(2.0, 10.0), Request(300 * MB))
    made = make_plan(model, with_copy, Rates(2.0, 1000.0), Request(300 * MB))
    assert made.owners["substitute"] == sum(quarter[c.index] for c in made.streamed) > 0
    assert made.copied == {c.index for c in made.streamed}
    assert 0 < made.pinned_bytes < plain.pinned_bytes
    largest = max(c.read_bytes for c in model.chunks)
    assert 0 <= made.ledger.free < largest
    whole = make_plan(model, with_copy, Rates(2.0, 10.0), Request(10**10))
    assert not whole.streamed
    assert whole.owners["substitute"] == 0
    with pytest.raises(BudgetError, match="substitute"):
        make_plan(model, with_copy, Rates(2.0, 10.0), Request(plain.ledger.used - plain.pinned_bytes + MB))


def test_the_copy_stands_for_pinned_chunks_where_memory_is_slow() -> None:
    """Each step of drafting reads what it drafts with; a cycle's time decides."""
    model = table()
    with_copy = replace(needs(), extras=Extras(stand_in=stand_in(lambda chunk: chunk.nbytes // 4)))

    def made(rates: Rates) -> Plan:
        return make_plan(model, with_copy, rates, Request(300 * MB))

    shared, whole = made(Rates(2.0, 1000.0)), made(Rates(2.0, 10.0))
    assert whole.copied == {c.index for c in model.chunks}
    assert whole.owners["substitute"] == sum(c.nbytes // 4 for c in model.chunks)
    assert whole.pinned_bytes < shared.pinned_bytes
    assert whole.ledger.free >= 0
    seconds = cycle_seconds(whole), cycle_seconds(replace(shared, rates=Rates(2.0, 10.0)))
    assert seconds[0] is not None
    assert seconds[1] is not None
    assert seconds[0] < seconds[1]
    assert made(Rates(None, 10.0)).copied == shared.copied  # nothing is known of the disk
    after = without_drafter(whole)
    assert after is not None
    assert after.copied == frozenset()
    assert after.owners.get("substitute", 0) == 0
    tight = next(mb for mb in range(60, 300) if fits(model, mb * MB, with_copy))
    assert make_plan(model, with_copy, Rates(2.0, 10.0), Request(tight * MB)).ledger.free >= 0


def fits(model: ChunkTable, dial: int, wanted: Needs) -> bool:
    try:
        make_plan(model, wanted, Rates(2.0, 10.0), Request(dial))
    except BudgetError:
        return False
    return True


def test_small_layers_that_stream_cost_less_than_those_that_come_matrix_by_matrix() -> None:
    """Where the ring has room for all of one."""
    model, rates = table(size=64 * PAGE), Rates(2.0, 10.0)
    small = make_plan(model, needs(), rates, Request(10**9, resident_layers=1))
    streamed = len({chunk.layer for chunk in small.streamed})
    assert streamed == 8  # the head is no layer, and none of the kind
    assert small.costs().apart == pytest.approx(7 * ARRIVING_SECONDS + STREAMED_SECONDS)
    tight = replace(small, ring_bytes=3 * 64 * PAGE)
    assert tight.costs().apart == pytest.approx(8 * STREAMED_SECONDS)
    large = make_plan(table(), needs(), rates, Request(10**9, resident_layers=1))  # layers of 25 MB
    assert large.ring_bytes // 4 < 6 * 1024 * PAGE
    assert large.costs().apart == pytest.approx(8 * STREAMED_SECONDS)


def test_a_ring_holds_reads_of_many_small_chunks_where_nobody_else_would_have_the_memory() -> None:
    """With layers pinned as the user said; else a small ring leaves room for pinned ones. It has no more than
    a pass and what is held meanwhile."""
    model, rates = table(size=64 * PAGE), Rates(2.0, 10.0)
    largest = max(c.read_bytes for c in model.chunks)
    assert 8 * largest < READS * READ
    asked = make_plan(model, needs(), rates, Request(10**9, resident_layers=1))
    assert asked.ring_bytes == min(READS * READ, asked.bytes_per_pass + 2 * READ) > 8 * largest
    assert asked.owners["ring"] == asked.ring_bytes
    assert at_dial(asked, 10**9 + MB, as_asked=True).ring_bytes == asked.ring_bytes
    filled = make_plan(model, needs(), rates, Request(150 * MB, 512))
    assert filled.streamed
    assert filled.ring_bytes <= 8 * largest
    tight = asked.ledger.used - asked.ring_bytes + 3 * largest
    assert make_plan(model, needs(), rates, Request(tight, asked.context, 1)).ring_bytes < 5 * largest
