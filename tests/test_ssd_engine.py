"""The ssd schedule on engines that stream: every drafter, whatever the waits; sessions; what is told."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from functools import partial
from pathlib import Path
from typing import Any
from weakref import WeakSet

import pytest

import edgespec
from apps.stats import stats_object, stats_table
from edgespec.config import EngineOptions, GenerationOptions
from edgespec.control.fixed import Fixed
from edgespec.core import passes
from edgespec.core.schedule import TreeBudget
from edgespec.core.trace import Cycle, Trace
from edgespec.drafters.choice import choose_drafters
from edgespec.drafters.kinds import KINDS
from edgespec.engine import Engine
from edgespec.offload.chunks import Chunk
from edgespec.offload.streamer import Streamer
from edgespec.response import Response
from edgespec.runtimes.base import TREE_ROWS
from edgespec.runtimes.torch.exit import HeadPass
from edgespec.schedules.kinds import choose_schedule
from edgespec.schedules.ssd import Ssd
from tests.covering import covering
from tests.eagles import write_eagle
from tests.moa import write_moa
from tests.sessions import in_threads, tokens_of
from tests.streamings import write_spd, write_streaming
from tests.test_session import packed_with_copy, prompt_of

PROMPT = prompt_of(70)  # the first slots share a block of keys with the prefix
COUNT = 20
GREEDY = GenerationOptions(max_tokens=COUNT, ignore_eos=True)
SAMPLED = GenerationOptions(max_tokens=COUNT, ignore_eos=True, temperature=0.9, top_p=0.95, seed=7)
BUDGET = TreeBudget(12, 4, 3)
DRAFTERS = ["ngram", "model", "substitute", "ngram+model", "ngram+substitute", "moa", "ngram+moa", "eagle"]
DRAFTERS += ["streaming", "spd"]
TRAINED = {"moa", "eagle", "streaming", "spd"}


@pytest.fixture(scope="module")
def packed(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("ssd")
    packed = packed_with_copy(folder, max_position_embeddings=2048)
    write_moa(packed, folder / "moa")
    write_eagle(folder / "m", "exits", out=folder / "eagle")
    write_streaming(folder / "m", "exits", out=folder / "streaming")
    write_spd(folder / "m", "exits", out=folder / "spd")
    return packed


def load(packed: Path, drafter: str, **options: Any) -> Engine:
    if "model" in drafter:
        options["draft_model"] = packed.parent / "m"  # it knows what the target says
    for trained in TRAINED:
        if trained in drafter:
            options["adapters"] = packed.parent / trained
    settings = {"memory": "4GB", "context": 600, "resident_layers": 1, "schedule": "ssd", **options}
    return edgespec.load(packed, drafter=drafter, **settings)


@contextmanager
def waiting(monkeypatch: pytest.MonkeyPatch, waits: Callable[[], int]) -> Iterator[None]:
    """Each chunk that streams is waited for, so many times."""
    acquire = Streamer.acquire

    def late(self: Streamer, chunk: Chunk, on_wait: Callable[[], bool] | None = None) -> memoryview:
        for _ in range(waits() if on_wait is not None else 0):
            assert on_wait is not None
            if not on_wait():
                break
        return acquire(self, chunk)

    with monkeypatch.context() as patch:
        patch.setattr(Streamer, "acquire", late)
        yield


@pytest.fixture(scope="module")
def expected(packed: Path) -> dict[float, list[int]]:
    with load(packed, "none") as engine:
        return {o.temperature: edgespec.generate(engine, PROMPT, o).tokens for o in (GREEDY, SAMPLED)}


@pytest.mark.parametrize(("drafter", "options"), covering(DRAFTERS, {"greedy": GREEDY, "sampled": SAMPLED}))
def test_waits_are_drafted_in(
    packed: Path,
    expected: dict[float, list[int]],
    monkeypatch: pytest.MonkeyPatch,
    drafter: str,
    options: GenerationOptions,
) -> None:
    """By what holds memory. (Texts under all waits: `test_schedule_identity`.)"""
    with (
        load(packed, drafter) as engine,
        waiting(monkeypatch, lambda: 6),
        engine.new_session(200, Fixed(BUDGET)) as session,
    ):
        assert isinstance(session.schedule, Ssd)
        last = list(session.generate(PROMPT, options))
        assert tokens_of(last) == expected[options.temperature]
        stats = last[-1].stats
        if drafter == "ngram":
            assert stats.cache_hits == stats.cache_misses == 0
        else:
            assert stats.drafted_while_verifying > 20
            # int4 makes others of random weights, and what was never trained knows little of them
            knows = not ({"substitute"} | TRAINED) & {*drafter.split("+")}
            assert stats.cache_hits > 0 or not knows


def test_sessions_in_one_pass_each_prepare_for_themselves(
    packed: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """They share a draft model, and a thread of one runs the waits of all."""
    prompts = [prompt_of(n, seed=n) for n in (20, 33, 7)]
    monkeypatch.setattr(passes, "GATHER", 4.0)
    with load(packed, "none") as engine:
        plain = [edgespec.generate(engine, prompt, GREEDY).tokens for prompt in prompts]
    for drafter in ("ngram+model", "substitute"):
        with load(packed, drafter, context=1400) as engine, waiting(monkeypatch, lambda: 12):
            cycles: list[Cycle] = []
            opened = [engine.new_session(100, Fixed(BUDGET), Trace(cycle=cycles.append)) for _ in prompts]
            calls: list[Callable[[], list[Response]]] = [
                partial(lambda s, p: list(s.generate(p, GREEDY)), *job)
                for job in zip(opened, prompts, strict=True)
            ]
            found = in_threads(calls)
            assert [tokens_of(responses) for responses in found] == plain
            assert all(responses[-1].stats.drafted_while_verifying > 0 for responses in found)
            hits = [responses[-1].stats.cache_hits for responses in found]
            assert min(hits) > 0 or drafter == "substitute"  # of random weights, which int4 makes others
            assert any(cycle.outcome.beside for cycle in cycles)


def test_what_is_told(packed: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    with load(packed, "model") as engine, waiting(monkeypatch, lambda: 8):
        cycles: list[Cycle] = []
        with engine.new_session(200, Fixed(BUDGET), Trace(cycle=cycles.append)) as session:
            stats = list(session.generate(PROMPT, GREEDY))[-1].stats
        overlaps = [cycle.overlap for cycle in cycles if cycle.overlap is not None]
        assert len(overlaps) == len(cycles)
        assert stats.schedule == "ssd"
        assert stats.cache_hits == sum(overlap.hit is True for overlap in overlaps) > 0
        assert stats.cache_misses == sum(overlap.hit is False for overlap in overlaps)
        assert stats.cache_hits + stats.cache_misses == len(cycles) - 1
        assert stats.drafted_while_verifying == sum(overlap.nodes for overlap in overlaps) > 0
        assert stats.fallbacks == sum(overlap.fallback for overlap in overlaps) <= stats.cache_misses
        said = json.loads(json.dumps(stats_object(stats, {})))
        assert said["predicted_speedup"] is said["measured_speedup"] is None, "this controller knows no costs"
        names = ("schedule", "cache_hits", "cache_misses", "drafted_while_verifying", "fallbacks")
        assert [said[name] for name in names] == [getattr(stats, name) for name in names]
    with load(packed, "model", schedule="serial") as engine:
        stats = edgespec.generate(engine, PROMPT, GREEDY).stats
        said = json.loads(json.dumps(stats_object(stats, {})))
        assert said["predicted_speedup"] >= 1
        assert said["measured_speedup"] == (stats.accepted + stats.cycles - 1) / stats.plain_cycles > 0
        row = f"{stats.measured_speedup:.3g} × plain decoding, predicted {stats.predicted_speedup:.3g}"
        assert row in stats_table(stats, engine.plan)
        assert (stats.schedule, stats.cache_hits, stats.cache_misses, stats.fallbacks) == ("serial", 0, 0, 0)
    with load(packed, "none") as engine:
        assert edgespec.generate(engine, PROMPT, GREEDY).stats.schedule == "plain"


def test_auto_is_ssd_where_there_are_waits_to_draft_in(packed: Path) -> None:
    for drafter, layers, schedule in (
        ("model", 1, "ssd"),
        ("ngram+model", 1, "ssd"),
        ("substitute", 1, "ssd"),
        ("moa", 1, "ssd"),
        ("model", None, "serial"),  # nothing streams
        ("ngram", 1, "serial"),  # its drafts are free
    ):
        with load(packed, drafter, schedule="auto", resident_layers=layers) as engine:
            assert engine.new_session(100).schedule.name == schedule
    assert choose_schedule("auto", ["ngram", "cascade"], free=True) == "serial"
    assert choose_schedule("serial", ["model"], free=True) == "serial"
    assert choose_schedule("ssd", ["model"], free=False) == "ssd"


def test_the_logits_of_a_pass_in_waits_are_in_the_ledger(
    packed: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """They are there while the target's own activations are; those before a pass are gone by then, and have
    the room of the target's logits."""
    made: dict[bool, list[int]] = {True: [], False: []}  # in waits, and before passes
    make, wait, waits = HeadPass.__init__, Ssd.on_wait, [False]
    before = WeakSet[HeadPass]()

    def making(self: HeadPass, *given: Any) -> None:
        make(self, *given)
        made[waits[0]].append(self.logits.nbytes)
        if not waits[0]:
            before.add(self)

    def on_wait(self: Ssd) -> bool:
        waits[0] = True
        assert not before
        try:
            return wait(self)
        finally:
            waits[0] = False

    monkeypatch.setattr(HeadPass, "__init__", making)
    monkeypatch.setattr(Ssd, "on_wait", on_wait)
    with (
        load(packed, "substitute") as engine,
        waiting(monkeypatch, lambda: 8),
        engine.new_session(200, Fixed(BUDGET)) as session,
    ):
        list(session.generate(PROMPT, GREEDY))
        row = 4 * engine.config.vocab_size
        assert engine.plan.owners["draft logits"] == max(made[True]) > row
        assert row < max(made[False]) <= TREE_ROWS * row
    with load(packed, "substitute", schedule="serial") as engine:
        assert "draft logits" not in engine.plan.owners


def test_every_drafter_that_can_is_tested() -> None:
    able = {kind.name for kind in KINDS if kind.roots and not kind.elsewhere}  # that: test_draft_server.py
    assert able == {name for drafter in DRAFTERS for name in drafter.split("+")}
    for drafter in DRAFTERS:
        options = EngineOptions(
            drafter=drafter,
            draft_model="m" if "model" in drafter else None,
            adapters="a" if TRAINED & {*drafter.split("+")} else None,
        )
        assert choose_drafters(options) == tuple(drafter.split("+"))


def test_memory_is_what_the_ledger_says(packed: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Whatever is drafted during passes lies in what was planned: nothing grows."""
    with (
        load(packed, "substitute") as engine,
        waiting(monkeypatch, lambda: 8),
        engine.new_session(200, Fixed(BUDGET)) as session,
    ):
        drafter = session.schedule.drafter  # type: ignore[attr-defined]
        overlay, own = drafter.runtime.cache, session.cache
        assert engine.plan.owners["draft overlay"] == overlay.nbytes
        before = overlay.k.data_ptr(), overlay.nbytes, own.k.data_ptr(), own.nbytes
        assert overlay.k.data_ptr() != own.k.data_ptr()
        stats = list(session.generate(PROMPT, GREEDY))[-1].stats
        assert stats.drafted_while_verifying > 50
        assert before == (overlay.k.data_ptr(), overlay.nbytes, own.k.data_ptr(), own.nbytes)
        assert len(drafter.forest.slots) <= drafter.runtime.rows


@pytest.mark.parametrize("drafter", ["model", "ngram+substitute"])
def test_a_model_that_is_damaged_meanwhile_drafts_no_more(
    packed: Path, expected: dict[float, list[int]], monkeypatch: pytest.MonkeyPatch, drafter: str
) -> None:
    """NaN in a wait: the pass goes on, and so does the reply."""
    with load(packed, drafter) as engine, engine.new_session(200, Fixed(BUDGET)) as session:
        norm = engine.resident[0].model.weights.small["model.norm.weight"]  # type: ignore[attr-defined]
        whole, left, step = norm.clone(), 20, Ssd.on_wait

        def on_wait(self: Ssd) -> bool:  # a substitute has its norms from the target, which keeps its own
            nonlocal left
            left -= 1
            norm.copy_(whole if left > 0 else whole * float("nan"))
            try:
                return step(self)
            finally:
                norm.copy_(whole)

        monkeypatch.setattr(Ssd, "on_wait", on_wait)
        with waiting(monkeypatch, lambda: 6):
            last = list(session.generate(PROMPT, GREEDY))
        assert left < 0
        assert tokens_of(last) == expected[0.0]
        assert last[-1].stats.drafter_damaged
        assert not session.schedule.drafter.resident  # type: ignore[attr-defined]


@pytest.mark.parametrize("drafter", ["model", "substitute"])
def test_chains_are_drawn_ahead_for_ratio(
    packed: Path, monkeypatch: pytest.MonkeyPatch, drafter: str
) -> None:
    """What they are drawn from is in the ledger, where it may be kept; the next reply is as plain again."""
    drawn = GenerationOptions(max_tokens=COUNT, ignore_eos=True, temperature=0.8, acceptance="ratio")
    with load(packed, drafter, schedule="serial") as engine:
        assert "drawn drafts" not in engine.plan.owners
    with load(packed, "none") as engine:
        plain = edgespec.generate(engine, PROMPT, GREEDY).tokens
    with load(packed, drafter) as engine, waiting(monkeypatch, lambda: 12):
        rows = {"model": 512, "substitute": 128}[drafter]
        assert engine.plan.owners["drawn drafts"] == rows * engine.config.vocab_size * 16
        with engine.new_session(200, Fixed(BUDGET)) as session:
            last = list(session.generate(PROMPT, drawn))[-1]
            assert (last.stats.acceptance, last.stats.lossless) == ("ratio", True)
            assert last.stats.reply_tokens == COUNT
            assert last.stats.drafted_while_verifying > 20
            assert last.stats.cache_hits > 0 or drafter == "substitute"
            assert tokens_of(session.generate(PROMPT, GREEDY)) == plain


@pytest.mark.parametrize("drafter", ["model", "substitute"])
@pytest.mark.parametrize("step", [1, 3, 5])
def test_a_reply_cancelled_in_a_wait_leaves_nothing_in_the_way(
    packed: Path, monkeypatch: pytest.MonkeyPatch, drafter: str, step: int
) -> None:
    """Also of one whose text was longer than the next one's: a pass of drafting was under way in it."""
    prompt, greedy = prompt_of(30, seed=4), GenerationOptions(max_tokens=20, ignore_eos=True)
    with load(packed, "none") as engine:
        expected = edgespec.generate(engine, prompt, greedy).tokens
    on_wait, left = Ssd.on_wait, [10**9]
    with (
        load(packed, drafter) as engine,
        waiting(monkeypatch, lambda: 4),
        engine.new_session(200, Fixed(TreeBudget(12, 4, 3))) as session,
    ):

        def counting(self: Ssd) -> bool:
            worked = on_wait(self)
            left[0] -= 1
            if left[0] == 0:
                session.cancel()
            return worked

        monkeypatch.setattr(Ssd, "on_wait", counting)
        replying = session.generate(prompt_of(70), greedy)
        next(replying)
        next(replying)
        left[0] = step
        assert list(replying)[-1].finish_reason == "cancelled"
        assert tokens_of(list(session.generate(prompt, greedy))) == expected
