"""A drafter that loses, is damaged or cancelled: the reply stays the target's, and memory its ledger's."""

from __future__ import annotations

import gc
import threading
import weakref
from collections.abc import Generator, Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

import edgespec
from edgespec.config import GenerationOptions
from edgespec.control.fixed import Fixed
from edgespec.control.handover import HandOver
from edgespec.core.schedule import TreeBudget
from edgespec.drafters.combined import Combined
from edgespec.drafters.forest import Forest, Read
from edgespec.drafters.ngram import NGram
from edgespec.drafters.substitute import Substitute
from edgespec.engine import Engine
from edgespec.errors import StorageError
from edgespec.models.packing import pack_model
from edgespec.offload.plan import fill, pinning
from edgespec.runtimes.torch.substitute import SubstituteWeights
from edgespec.schedules.serial import Serial
from tests.test_session import prompt_of, write_model

REPLY = GenerationOptions(max_tokens=60)
SHORT = GenerationOptions(max_tokens=24)  # where it is known when memory changes hands


@pytest.fixture(scope="module")
def packed(tmp_path_factory: pytest.TempPathFactory) -> Path:
    path = tmp_path_factory.mktemp("model")
    pack_model(str(write_model(path / "m", num_hidden_layers=24)), path / "packed", substitute="int4")
    return path / "packed"


@pytest.fixture(scope="module")
def expected(packed: Path) -> list[int]:
    with edgespec.load(packed, memory="2GB", context=300, drafter="none", resident_layers=0) as engine:
        engine.eos = frozenset()
        return edgespec.generate(engine, prompt_of(20), REPLY).tokens


@pytest.fixture
def engine(packed: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Engine]:
    """Under a dial with room for the low-bit copy and some layers, and sure to gain from the others."""
    monkeypatch.setattr(pinning, "RING_CHUNKS", pinning.MIN_RING_CHUNKS)
    monkeypatch.setattr(pinning, "READS", 0)  # no ring that holds all of so small a model
    options: dict[str, Any] = {"context": 512, "drafter": "auto"}
    with edgespec.load(packed, memory="2GB", resident_layers=0, **options) as bare:
        owners, weights = bare.plan.owners, bare.plan.table.nbytes
    dial = sum(owners.values()) - owners["headroom"] + fill.MIN_HEADROOM + weights // 3
    with edgespec.load(packed, memory=dial, **options) as engine:
        engine.eos = frozenset()
        assert engine.drafters == ("ngram", "substitute")
        assert engine.plan.streamed
        engine.holdings.handover = HandOver(2.0)
        yield engine


def wrong(self: Forest, nodes: list[tuple[int, int]], read: Read) -> Generator[None, None, None]:
    """Drafts that are never right, at the usual cost."""
    yield from run(self, nodes, lambda slots, logits, positions: read(slots, -logits, positions))


run = Forest.run


def test_a_losing_copy_becomes_pinned_layers(
    engine: Engine, expected: list[int], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(Forest, "run", wrong)
    before = engine.plan
    session = engine.new_session()
    assert [r.token for r in session.generate(prompt_of(20), REPLY)] == expected
    assert engine.resident == []
    assert engine.plan.pinned > before.pinned
    assert engine.plan.owners.get("substitute", 0) == 0
    assert engine.plan.ledger.used <= before.ledger.used
    assert set(engine.target.weights.pinned) == engine.plan.pinned
    assert isinstance(session.schedule, Serial)
    assert isinstance(session.schedule.drafter, Combined)
    assert [type(m) for m in session.schedule.drafter.members] == [NGram]
    # What is drafted from now on is n-grams, and a pass reads what the new plan says.
    read = engine.bytes_read
    last = list(session.generate([*prompt_of(20), *expected, *prompt_of(9, 1)], REPLY))[-1]
    assert last.stats is not None
    assert engine.bytes_read - read <= (last.stats.cycles + 3) * engine.plan.bytes_per_pass * 1.5


def test_another_session_keeps_the_drafter(engine: Engine, expected: list[int]) -> None:
    engine.holdings.handover.record = lambda tokens, took: True  # type: ignore[method-assign]
    other = engine.new_session(100)
    session = engine.new_session(150)
    assert [r.token for r in session.generate(prompt_of(20), SHORT)] == expected[: SHORT.max_tokens]
    assert len(engine.resident) == 1
    other.close()
    assert [r.token for r in session.generate(prompt_of(20), SHORT)] == expected[: SHORT.max_tokens]
    assert engine.resident == []


def test_a_failed_hand_over_is_gone_on_with(
    engine: Engine, expected: list[int], monkeypatch: pytest.MonkeyPatch
) -> None:
    """An error in the middle of pinning leaves a sound stream, and the next reply finishes the work."""
    engine.holdings.handover.record = lambda tokens, took: True  # type: ignore[method-assign]
    weights = engine.target.weights
    pin, before = weights.pin, set(weights.pinned)

    def fail_at_second(chunks: Any, on_device: Any = (), progress: Any = None) -> None:
        count = 0

        def advance(nbytes: int) -> None:
            nonlocal count
            count += 1
            if count == 2:
                raise StorageError("the disk went away")

        pin(chunks, on_device, advance)

    monkeypatch.setattr(weights, "pin", fail_at_second)
    session = engine.new_session()
    with pytest.raises(StorageError):
        list(session.generate(prompt_of(20), SHORT))
    assert set(weights.pinned) > before
    assert weights.streamer is not None
    monkeypatch.undo()
    assert [r.token for r in session.generate(prompt_of(20), SHORT)] == expected[: SHORT.max_tokens]
    assert set(weights.pinned) == engine.plan.pinned
    assert engine.plan.owners.get("substitute", 0) == 0


def test_nobody_begins_while_memory_changes_hands(
    engine: Engine, expected: list[int], monkeypatch: pytest.MonkeyPatch
) -> None:
    engine.holdings.handover.record = lambda tokens, took: True  # type: ignore[method-assign]
    pin, begun, go_on = engine.target.weights.pin, threading.Event(), threading.Event()

    def slow(*args: Any, **kwargs: Any) -> None:
        begun.set()
        assert go_on.wait(60)
        pin(*args, **kwargs)

    monkeypatch.setattr(engine.target.weights, "pin", slow)
    said: list[int | None] = []
    first = engine.new_session(150)
    one = threading.Thread(target=lambda: said.extend(r.token for r in first.generate(prompt_of(20), SHORT)))
    one.start()
    assert begun.wait(60)
    opened: list[Any] = []
    two = threading.Thread(target=lambda: opened.append(engine.new_session(100)))
    two.start()
    two.join(0.2)
    assert not opened
    go_on.set()
    one.join(60)
    two.join(60)
    assert said == expected[: SHORT.max_tokens]
    assert isinstance(opened[0].schedule.drafter, NGram)


@pytest.mark.parametrize("whole", [True, False])
def test_a_damaged_copy_drafts_no_more(engine: Engine, expected: list[int], whole: bool) -> None:
    """What is not a number ends drafting, and leaves no trace in the target's cache."""
    (substitute,) = engine.resident
    assert isinstance(substitute, Substitute)
    names = list(substitute.weights.blocks)
    for name in names if whole else names[-8:-7]:
        for block in substitute.weights.blocks[name]:
            if block.scale is not None:
                block.scale.fill_(torch.nan)
    session = engine.new_session()
    responses = list(session.generate(prompt_of(20), SHORT))
    assert [r.token for r in responses] == expected[: SHORT.max_tokens]
    assert responses[-1].stats.drafter_damaged
    assert isinstance(session.schedule, Serial)
    assert isinstance(session.schedule.drafter, Combined)
    assert [type(m) for m in session.schedule.drafter.members] == [NGram]  # which goes on
    session.schedule.controller = Fixed(TreeBudget(16, 4, 0))
    repeated = list(session.generate([*prompt_of(20), *expected[: SHORT.max_tokens], *prompt_of(20)], SHORT))[
        -1
    ]
    assert repeated.stats.accepted > 0
    for kv in (session.cache.k, session.cache.v):
        assert torch.isfinite(kv).all()


def test_cancel_is_heard_while_the_copy_drafts(engine: Engine, monkeypatch: pytest.MonkeyPatch) -> None:
    session, linear, calls = engine.new_session(), SubstituteWeights.linear, 0

    def counted(self: SubstituteWeights, *args: Any, **kwargs: Any) -> torch.Tensor:
        nonlocal calls
        calls += 1
        if calls == 10:  # in the second layer
            session.cancel()
        return linear(self, *args, **kwargs)

    monkeypatch.setattr(SubstituteWeights, "linear", counted)
    last = list(session.generate(prompt_of(20), SHORT))[-1]
    assert last.finish_reason == "cancelled"
    assert calls <= 14  # to the end of that layer


def test_a_closed_session_frees_its_cache_at_once(engine: Engine) -> None:
    """Not when Python happens to collect circles: the ledger has room for one."""
    engine.holdings.handover.record = lambda tokens, took: False  # type: ignore[method-assign]
    session = engine.new_session()
    list(session.generate(prompt_of(20), SHORT))
    early = iter(session.generate(prompt_of(25), SHORT))
    next(early)
    cache = weakref.ref(session.cache)
    gc.disable()
    try:
        del early
        session.close()
        assert cache() is None
    finally:
        gc.enable()


def test_a_good_drafter_with_scattered_luck_stays() -> None:
    """A fifth better than plain decoding with its memory; 6.4 tokens a cycle, give or take 3."""
    kept = 0
    for seed in range(20):
        chance, handover = np.random.default_rng(seed), HandOver(1.5)
        took = 6.4 / 1.2 / 1.5 * 1.05
        tokens = np.clip(chance.normal(6.4, 3, 500).round(), 1, 13).astype(int)
        kept += not any(handover.record(int(t), took) for t in tokens)
    assert kept >= 18
