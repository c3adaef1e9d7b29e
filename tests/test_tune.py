"""Tuning: which settings are compared and recommended, and what is refused."""

from __future__ import annotations

import math
import subprocess
import sys
from dataclasses import replace
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
from edgespec.tuning.tune import tune_model
from tests.machine import DISK, GB, MACHINE
from tests.tuned import SEVENTY, checkpoint, config_only, seven

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
        beaten = [f for f in found.front if f.dial <= s.dial and f.speed.middle >= s.speed.middle]
        assert beaten, "somebody of the front is as good"
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


def test_dials_that_cannot_be(seven: str) -> None:
    with pytest.raises(
        OptionError,
        match=r"the dial is 20\.00 GB, but 16\.00 GB is all that this machine, or its container, has",
    ):
        tune_model(seven, memory=["4GB", "20GB"])
    with pytest.raises(OptionError, match=r"but 8\.59 GB is all that this machine"):
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
