"""Tuning: which settings are compared and recommended, and what is refused."""

from __future__ import annotations

import math
import subprocess
import sys
from dataclasses import replace
from itertools import pairwise
from pathlib import Path
from typing import Any

import pytest

import edgespec
from edgespec.config import EngineOptions
from edgespec.devices.filesystem import Filesystem
from edgespec.devices.machine import Machine
from edgespec.devices.presets import PRESETS
from edgespec.errors import BudgetError, OptionError
from edgespec.tuning import search as searching
from edgespec.tuning import tune as tuning
from edgespec.tuning.profile import settings_of
from edgespec.tuning.reasons import reasons_for
from edgespec.tuning.tune import tune_model
from tests.machine import DISK, GB, MACHINE
from tests.tuned import SEVEN, SEVENTY, checkpoint, config_only, seven

__all__ = ["checkpoint", "seven"]  # fixtures
pytestmark = pytest.mark.usefixtures("tuned_machine")


def test_memory_is_what_loading_takes(checkpoint: Path) -> None:
    for layers in (None, 1):
        options = EngineOptions(memory=GB, drafter="none", context=128, resident_layers=layers)
        with edgespec.Engine.load(checkpoint, options, machine=MACHINE) as engine:
            found = tune_model(str(checkpoint), options)
            assert found.recommended.plan.owners == engine.plan.owners
            assert found.recommended.plan.pinned == engine.plan.pinned


def test_more_memory_is_never_slower_and_the_front_rises(seven: str) -> None:
    found = tune_model(seven, memory=["2GB", "3GB", "4GB", "6GB", "8GB", "12GB", "16GB"])
    speeds = [row.plain.speed.middle for row in found.rows if row.plain]
    assert speeds == sorted(speeds)
    front = [(s.dial, s.speed.middle) for s in found.front]
    assert front == sorted(front)
    assert len({speed for _, speed in front}) == len(front)
    for s in (s for row in found.rows for s in row.settings if s.exact and not s.before):
        like = [f for f in found.front if f.dial <= s.dial and f.speed.middle >= 0.94 * s.speed.middle]
        assert like, "somebody of the front is nearly as good"
    speeds = [s.speed.middle for s in found.front]
    assert all(later > 1.05 * former for former, later in pairwise(speeds))
    best = [row.best for row in found.rows if row.best]
    fastest = max(b.speed.middle for b in best)
    assert found.recommended.speed.middle >= 0.95 * fastest
    assert all(b.speed.middle < 0.95 * fastest for b in best if b.dial < found.recommended.dial)
    assert all(row.more is None or row.more > 0.99 for row in found.rows)
    assert found.rows[-1].more is None  # this machine has no more


@pytest.mark.parametrize(("kind", "said"), [("tmpfs", "lie in memory"), ("nfs4", "another machine")])
def test_where_a_model_should_not_lie_is_said_every_time(
    checkpoint: Path, monkeypatch: pytest.MonkeyPatch, kind: str, said: str
) -> None:
    """Also where the disk's rate is known, and nothing is measured."""
    known = replace(MACHINE, disk=DISK)
    monkeypatch.setattr(Machine, "remembered", staticmethod(lambda weights: known))
    monkeypatch.setattr(tuning, "filesystem_of", lambda path: Filesystem(kind, Path("/")))
    for _ in range(2):
        notes = tune_model(str(checkpoint), memory=["1GB"]).notes
        assert [said in note for note in notes].count(True) == 1


def test_what_is_not_the_model_s_own_output_is_never_recommended(seven: str) -> None:
    found = tune_model(seven, memory=["4GB"])
    assert any(
        not s.exact and s.speed.middle > found.recommended.speed.middle for s in found.rows[0].settings
    )
    assert found.recommended.exact
    assert not found.recommended.before
    assert all(s.exact for s in found.front)
    low = tune_model(seven, EngineOptions(precision="int4"), ["4GB"])
    assert low.recommended.precision == "int4"  # asked for
    assert low.recommended.speed.middle > found.recommended.speed.middle


def test_what_is_set_stays(seven: str) -> None:
    def all_of(**options: Any) -> list[Any]:
        rows = tune_model(seven, EngineOptions(**options), ["8GB"]).rows
        return [s for row in rows for s in row.settings if s.drafter != "none"]

    assert {s.drafter for s in all_of(drafter="ngram")} == {"ngram"}
    assert {s.schedule for s in all_of(schedule="serial")} == {"serial"}
    assert max(s.tree_nodes for s in all_of(tree_nodes=5)) == 5
    assert not all_of(drafter="none")
    assert {s.plan.context for s in all_of(context=700)} == {700}
    assert all(s.plan.streamed[0].layer == 3 for s in all_of(resident_layers=3))
    with pytest.raises(OptionError, match="needs"):
        all_of(drafter="cascade")
    with pytest.raises(OptionError, match="no low-bit copy"):
        all_of(drafter="substitute")
    with pytest.raises(OptionError, match="schedule 'now' is unknown"):
        all_of(schedule="now")
    with pytest.raises(OptionError, match="layers"):
        all_of(resident_layers=99)


def test_a_drafter_that_is_named_is_recommended_whatever_it_gives(seven: str, tmp_path: Path) -> None:
    dials = ["4GB", "16GB"]
    slow = config_only(tmp_path / "slow", SEVEN | {"num_hidden_layers": 3})
    for asked in ({"drafter": "ngram"}, {"drafter": "model", "draft_model": slow, "schedule": "serial"}):
        options = EngineOptions(**asked)
        found = tune_model(seven, options, dials)
        plain = tune_model(seven, replace(options, drafter="none", draft_model=None), dials)
        told, usual = ([r.plain.speed for r in one.rows if r.plain] for one in (found, plain))
        assert told == usual
        chosen = [row.best for row in found.rows] + [found.recommended, *found.front]
        assert {s.drafter for s in chosen if s} == {asked["drafter"]}
        assert settings_of(found.recommended, options).items() >= asked.items()
        others = [s for row in found.rows for s in row.settings if not s.exact]
        assert {s.drafter for s in others} == {asked["drafter"]}
    best, by_itself = found.recommended, found.rows[-1].plain
    assert by_itself is not None
    slower = replace(best, speed=by_itself.speed)
    (row,) = [replace(row, best=slower) for row in found.rows if row.dial == best.dial]
    assert "model, as was asked for, should be no faster than plain decoding" in reasons_for(slower, [row])
    (row,) = tune_model(seven, EngineOptions(schedule="ssd"), ["4GB"]).rows
    assert row.best is not None
    assert row.best.schedule == "ssd"


def test_a_drafter_that_is_named_and_does_not_fit_is_refused(seven: str) -> None:
    options = EngineOptions(drafter="model", draft_model=seven)
    found = tune_model(seven, options, ["2GB", "16GB"])
    small, large = found.rows
    assert small.best is None
    assert large.best is not None
    assert small.refusal is not None
    assert "is the least that works" in small.refusal
    with pytest.raises(BudgetError):
        tune_model(seven, options, ["2GB"])


def test_what_is_told_of_the_weights_is_of_the_precision_that_is_named(seven: str) -> None:
    own, low = (tune_model(seven, EngineOptions(precision=p), ["4GB"]) for p in (None, "int4"))
    assert (own.precision, low.precision) == ("source", "int4")
    assert low.nbytes < own.nbytes / 3


def test_a_dial_above_what_is_free_is_told(seven: str) -> None:
    free = MACHINE.baseline + MACHINE.available
    (note,) = [n for n in tune_model(seven, memory=[free + 10**8]).notes if "are free" in n]
    assert note.endswith("larger dials push out what other programs hold")
    assert not [n for n in tune_model(seven, memory=[free - 10**8]).notes if "are free" in n]
    (note,) = [
        n for n in tune_model(seven, memory=["8.5GB"], preset="raspberry-pi-5").notes if "are free" in n
    ]
    assert "as the system keeps the rest" in note


def test_dials_that_cannot_be(seven: str) -> None:
    with pytest.raises(
        OptionError,
        match=r"the dial is 20\.00 GB, but 16\.00 GB is all that this machine, or its container, has",
    ):
        tune_model(seven, memory=["20GB", "30GB"])
    found = tune_model(seven, memory=["4GB", "20GB"])
    assert found.rows[1].best is None
    assert found.rows[1].refusal is not None
    assert "16.00 GB is all" in found.rows[1].refusal
    assert found.recommended.dial == 4 * GB
    with pytest.raises(OptionError, match=r"but 8\.59 GB is all that a Raspberry Pi 5"):
        tune_model(seven, memory=["12GB"], preset="raspberry-pi-5")
    with pytest.raises(BudgetError, match="smallest dial"):
        tune_model(seven, memory=["500MB"])
    found = tune_model(seven, memory=["500MB", "4GB"])
    assert found.rows[0].refusal is not None
    assert "least that works" in found.rows[0].refusal
    assert found.recommended.dial == 4 * GB
    for wrong in (["big"], ["4"], ["-4GB"], ["1KB"], [math.nan], ["4GB"] * 100):
        with pytest.raises(OptionError, match="memory"):
            tune_model(seven, memory=wrong)
    with pytest.raises(OptionError, match="did you mean raspberry-pi-5"):
        tune_model(seven, preset="raspbery-pi5")


def test_usual_dials_end_where_the_whole_model_fits(seven: str, checkpoint: Path) -> None:
    rows = tune_model(seven).rows
    assert 2 <= len(rows) <= searching.SHOWN_DIALS
    assert rows[-1].dial <= MACHINE.baseline + MACHINE.available
    (row,) = tune_model(str(checkpoint)).rows
    assert row.plain is not None
    assert not row.plain.streams


@pytest.mark.parametrize("preset", [p.name for p in PRESETS])
def test_every_preset_can_be_tuned_for(seven: str, preset: str) -> None:
    found = tune_model(seven, preset=preset)
    assert found.recommended.speed.middle > 0
    assert found.reasons
    assert "data sheets" in found.notes[0]


def test_a_disk_that_nobody_knows_is_measured_once(seven: str, monkeypatch: pytest.MonkeyPatch) -> None:
    measured: list[Path] = []

    def measure(path: Path, fresh: bool = False, progress: Any = None) -> Any:
        measured.append(path)
        return type("Facts", (), {"best": DISK, "notes": ("lies in memory",)})

    monkeypatch.setattr(tuning, "measure_disk", measure)
    tune_model(seven, memory=["4GB"])
    assert not measured
    monkeypatch.setattr(Machine, "remembered", staticmethod(lambda weights: replace(MACHINE, disk=None)))
    found = tune_model(seven, memory=["4GB"])
    assert len(measured) == 1
    assert measured[0].is_dir()
    assert "lies in memory" in found.notes


def test_seventy_billion_weights_are_little_work(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    model, plans = config_only(tmp_path / "m", SEVENTY), list[int]()
    real = searching.plan_model

    def plan(files: Any, *rest: Any) -> Any:
        plans.append(len(files.table.chunks))
        return real(files, *rest)

    monkeypatch.setattr(searching, "plan_model", plan)
    found = tune_model(model, memory=["4GB", "8GB", "12GB"])
    assert found.nbytes > 130 * GB
    assert len(plans) <= 3 * 8
    assert sum(plans) < 100_000  # chunks looked at
    script = (
        "import sys; from edgespec.tuning.tune import tune_model; "
        f"tune_model({model!r}, memory=['4GB'], preset='laptop-32gb-nvme'); print('torch' in sys.modules)"
    )
    done = subprocess.run([sys.executable, "-c", script], capture_output=True, text=True, check=True)
    assert done.stdout == "False\n"
