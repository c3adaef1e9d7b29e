"""Schedule auto asks the target's early exit where that pays, by measurement: simulated, and on an engine."""

from __future__ import annotations

from dataclasses import replace
from functools import lru_cache
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import edgespec
from edgespec.config import EngineOptions, GenerationOptions
from edgespec.control.controller import Adaptive
from edgespec.control.early_exit import KNOWN, TRIED, Asking
from edgespec.control.fixed import Fixed
from edgespec.core.schedule import TreeBudget
from edgespec.core.trace import Cycle, Trace
from edgespec.drafters.choice import choose_drafters
from edgespec.drafters.kinds import find_drafters
from edgespec.drafters.resident import Search
from edgespec.models import planning
from edgespec.offload.plan import fill, pinning
from edgespec.offload.plan.plan import Plan
from edgespec.runtimes.formats.describe import describe_model
from edgespec.schedules.exits import find_exit
from edgespec.schedules.mirror import Mirror
from edgespec.schedules.ssd import Ssd
from edgespec.text.tokenizer import load_tokenizer
from tests.covering import covering
from tests.machine import GIVEN
from tests.sessions import tokens_of
from tests.test_overlapped import WORLDS, Exit, overlapped
from tests.test_session import packed_with_copy, prompt_of
from tests.test_ssd_engine import waiting

HELPS, LIKEWISE = {"hits": 0.9, "prepared": 6}, {"hits": 0.6, "prepared": 6}
CASES: dict[str, tuple[float, int, dict[str, Any]]] = {  # hits and passes prepared without it, and the exit
    "it helps": (0.4, 4, HELPS),
    "it says what the drafter says": (0.6, 6, LIKEWISE),
    "it misleads": (0.6, 6, {"hits": 0.4, "prepared": 4}),
    "it takes time": (0.6, 6, LIKEWISE | {"drag": 0.2}),
    "it helps, and takes more time than that saves": (0.6, 6, HELPS | {"drag": 0.5}),
}


@lru_cache
def without(hits: float, prepared: int, noise: float) -> float:
    """The rate of ssd."""
    world, prior = WORLDS["right 0.9"]
    runs = [overlapped(world, prior, hits, prepared, cycles=220, seed=s, noise=noise) for s in range(3)]
    return float(np.mean([run.rate(100) for run in runs]))


@pytest.mark.parametrize(("case", "noise"), covering(list(CASES), (0.0, 0.1)))
def test_it_is_asked_where_that_pays(case: str, noise: float) -> None:
    world, prior = WORLDS["right 0.9"]
    hits, prepared, told = CASES[case]
    exits, rates = [Exit(**told) for _ in range(3)], []
    for seed, exit in enumerate(exits):
        run = overlapped(world, prior, hits, prepared, cycles=220, seed=seed, exit=exit, noise=noise)
        rates.append(run.rate(100))
    gain = np.mean(rates) / without(hits, prepared, noise)
    shares = [exit.share(100) for exit in exits]
    if case == "it helps":
        assert shares == pytest.approx([1 - 1 / TRIED] * 3, abs=0.03)
        assert gain >= 1.04
    else:
        assert gain >= 0.95 - told.get("drag", 0.0) / TRIED, "one of so many passes is lost"
        if case != "it says what the drafter says":  # then it makes no difference what is measured
            assert shares == pytest.approx([1 / TRIED] * 3, abs=0.03)


@pytest.mark.parametrize("name", ["hopeless", "hopeless when flash-bound", "hardly worth it"])
def test_it_is_no_slower_than_plain(name: str) -> None:
    """However dear it is to ask."""
    world, prior = WORLDS[name]
    for seed in range(3):
        run = overlapped(world, prior, 0.5, 2, cycles=150, seed=seed, exit=Exit(0.5, 2, drag=1.0))
        assert run.rate() >= 0.93 * world.plain_rate
        assert run.rate(60) >= 0.95 * world.plain_rate


def test_what_came_of_a_pass_is_its_own() -> None:
    """Whether it was asked in that pass, not in the one in which the outcome is looked up."""
    asking = Asking()
    for _ in range(40):  # asked, then not, and so on; only what was asked is of use
        asking.learn(0.0, True, 0.0)
        asking.learn(1.0, False, 0.0)
    assert asking.pays
    late = Asking()
    for _ in range(40):  # but for that it takes more time
        late.learn(0.0, True, 1.5)
        late.learn(1.0, False, 0.0)
    assert not late.pays
    nobody = Asking()
    for _ in range(40):  # nothing was drafted in the waits of those passes: nothing is known of either
        nobody.learn(0.0, True, None)
        nobody.learn(1.0, False, None)
    assert not nobody.pays
    assert nobody.notes() == Asking().notes()


def test_what_is_not_known_to_be_better_is_tried() -> None:
    asking = Asking()
    chosen = [asking.choose() for _ in range(3 * TRIED)]
    assert chosen == ([False] * (TRIED - 1) + [True]) * 3
    for number in range(int(KNOWN)):
        assert not asking.pays, number
        asking.learn(None, True, 0.0)
        asking.learn(1.0, False, 0.0)
        asking.learn(0.0, False, 0.0)
    assert asking.pays
    chosen = [asking.choose() for _ in range(3 * TRIED)]
    assert chosen == ([True] * (TRIED - 1) + [False]) * 3
    asking.fade(200)
    assert not asking.pays, "that was long ago"


def test_the_next_process_begins_with_it() -> None:
    world, prior = WORLDS["right 0.9"]
    controller = Adaptive(prior)
    overlapped(world, prior, 0.4, 4, cycles=150, controller=controller, exit=Exit(**HELPS))
    assert controller.asking.pays
    after = Adaptive(prior)
    after.recall(controller.notes())
    assert after.asking.pays
    assert controller.successor().asking.pays


@pytest.fixture(scope="module")
def packed(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return packed_with_copy(tmp_path_factory.mktemp("asking"), num_hidden_layers=4)


@pytest.fixture
def small_ring(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(pinning, "RING_CHUNKS", pinning.MIN_RING_CHUNKS)
    monkeypatch.setattr(pinning, "READS", 0)  # no ring that holds all of so small a model


def planned(packed: Path, memory: int, drafter: str = "model", **options: Any) -> Plan:
    """By a machine that is not this one."""
    given = {"draft_model": packed.parent / "m"} if drafter == "model" else {}
    asked = EngineOptions(memory=memory, context=100, drafter=drafter, draft_model="m", **options)
    members, files = choose_drafters(asked), describe_model(packed)
    search = Search(drafter, members, files, load_tokenizer(files, packed), given)
    drafters = find_drafters(search)
    found = replace(drafters, exit=find_exit(asked, files, drafters))
    return planning.plan_engine(files, asked, GIVEN, found)


@pytest.mark.usefixtures("small_ring")
def test_the_dial_has_room_for_it_where_it_may_speak(packed: Path) -> None:
    """And nowhere else: that would be room for nothing."""
    least = planned(packed, 4 * 10**9, resident_layers=0, schedule="ssd")
    table, bare = least.table, least.ledger.planned + fill.MIN_HEADROOM
    head = sum(chunk.read_bytes for chunk in table.chunks if chunk.layer == table.layers)
    room = 4 * head  # for that, and what the exit says
    streams = planned(packed, bare + room)
    assert streams.streamed_bytes > 0
    assert streams.owners["early exit"] > 0
    assert "early exit" not in planned(packed, 4 * 10**9).owners, "nothing streams: nobody waits"
    assert "early exit" not in planned(packed, 4 * 10**9, resident_layers=1).owners, "the head streams"
    for options in (
        {"schedule": "ssd"},
        {"schedule": "serial"},
        {"fan_out": "uniform"},
        {"exit_layer": 4},
        {"kappa": 161},
    ):
        assert "early exit" not in planned(packed, bare + room, **options).owners, options
    assert planned(packed, bare + head).streamed_bytes > 0, "a dial that has no room for it is large enough"


def load(packed: Path, monkeypatch: pytest.MonkeyPatch, **options: Any) -> edgespec.Engine:
    """Its layers stream, but for the first, and its head is in memory."""
    monkeypatch.setattr(planning, "_able", lambda plan, options: True)
    settings = {"memory": "4GB", "context": 400, "resident_layers": 1, **options}
    engine = edgespec.load(packed, drafter="model", draft_model=packed.parent / "m", **settings)
    table = engine.plan.table
    engine.target.weights.pin([chunk.index for chunk in table.chunks if chunk.layer == table.layers])
    return engine


class Turns(Fixed):
    """Asks in every other pass."""

    turn = 0

    def asks(self) -> bool:
        self.turn += 1
        return self.turn % 2 == 1


def test_what_is_told_of_it(packed: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    options = GenerationOptions(max_tokens=24, ignore_eos=True)
    drawn = replace(options, temperature=0.9, acceptance="ratio")
    cycles: list[Cycle] = []
    with load(packed, monkeypatch) as engine, waiting(monkeypatch, lambda: 8):
        assert "early exit" in engine.plan.owners
        with engine.new_session(150, Turns(TreeBudget(12, 4, 3)), Trace(cycle=cycles.append)) as session:
            assert isinstance(session.schedule, Mirror)
            said = list(session.generate(prompt_of(70), options))
            stats = said[-1].stats
            assert stats.schedule == "ssd"
            assert stats.undrafted is None
            assert sum(stats.schedules.values()) == len(cycles) == stats.cycles - 1
            assert stats.schedules["mirror"] == stats.early_exit.cycles > 2
            assert abs(stats.schedules["mirror"] - stats.schedules["ssd"]) <= 2
            assert [c.schedule for c in cycles[:4]] == ["mirror", "ssd", "mirror", "ssd"]
            stats = list(session.generate(prompt_of(70), drawn))[-1].stats
            assert stats.drafted_while_verifying > 0
            assert stats.early_exit.cycles == 0, "nothing may go by what was drawn"
    with load(packed, monkeypatch, schedule="ssd") as engine, engine.new_session(150) as session:
        assert type(session.schedule) is Ssd
        assert tokens_of(list(session.generate(prompt_of(70), options))) == tokens_of(said)
