"""Other precisions than the files' own, and which dials are shown where none is named."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from edgespec.config import EngineOptions
from edgespec.errors import BudgetError
from edgespec.models.packing import pack_model
from edgespec.runtimes.formats.needs import DRIFT
from edgespec.tuning import search as searching
from edgespec.tuning.predict import Setting
from edgespec.tuning.runs import keep_run
from edgespec.tuning.search import SettingSearch
from edgespec.tuning.subject import open_subject
from edgespec.tuning.tune import tune_model
from tests.machine import GB, MACHINE
from tests.models import make_checkpoint
from tests.test_tuning_runs import trial
from tests.tuned import SEVEN, checkpoint, config_only, seven

__all__ = ["checkpoint", "seven"]  # fixtures
pytestmark = pytest.mark.usefixtures("tuned_machine")


def lossy(model: str, dial: str, **options: Any) -> dict[tuple[str, str], Setting]:
    """By precision and drafter, under the serial schedule."""
    (row,) = tune_model(model, EngineOptions(**options), [dial]).rows
    found = (s for s in row.settings if not s.exact and s.schedule == "serial")
    return {(s.precision, s.drafter): s for s in found}


def test_what_runs_have_shown_of_the_machine_and_of_drafts_holds_for_other_precisions(
    tmp_path: Path,
) -> None:
    """A model that made 84 tokens/s was to make 370 once packed as int4, by rates that no run had shown."""
    model = str(make_checkpoint(tmp_path / "m"))
    before = lossy(model, "1GB")
    with open_subject(model) as subject:
        digest = subject.files.digest
    for drafter in ("none", "ngram"):
        shown = trial(dial=GB, drafter=drafter, compute=3.0, prompt=2.0, pace=30.0, rest=0.1)
        if drafter == "ngram":
            shown = replace(shown, chance=0.0, judged=1000)
        for _ in range(3):
            keep_run(digest, "source", shown)
    after = lossy(model, "1GB")
    assert {precision for precision, _ in after} == {"int8", "int4"}
    for key, setting in after.items():
        times = 3.0 if setting.drafter == "none" else 3.0 * before[key].tokens_per_cycle
        assert setting.speed.middle == pytest.approx(before[key].speed.middle / times, rel=0.1)
        assert setting.first_token.middle == pytest.approx(2 * before[key].first_token.middle)
        # Nobody has seen these matmuls.
        if setting.drafter == "none":
            assert setting.speed.high / setting.speed.low > 0.9 * (
                before[key].speed.high / before[key].speed.low
            )


def test_a_drafter_that_is_fixed_drafts_for_other_precisions_too(seven: str, tmp_path: Path) -> None:
    small = SEVEN | {"hidden_size": 1024, "intermediate_size": 2816, "num_hidden_layers": 8}
    draft = config_only(tmp_path / "small", small)
    fixed = lossy(seven, "8GB", drafter="model", draft_model=draft)
    assert {drafter for _, drafter in fixed} == {"model"}
    plain = lossy(seven, "8GB", drafter="none")
    assert fixed["int4", "model"].speed.middle > plain["int4", "none"].speed.middle
    assert fixed["int4", "model"].plan.owners["drafter"] > 0
    free = lossy(seven, "8GB", draft_model=draft)
    assert {drafter for _, drafter in free} == {"none", "ngram", "ngram+model"}
    assert {drafter for _, drafter in lossy(seven, "8GB", drafter="none")} == {"none"}
    assert {drafter for _, drafter in lossy(seven, "8GB", drafter="ngram")} == {"ngram"}


def test_what_cannot_draft_for_another_precision_is_not_advised_about_it(
    checkpoint: Path, tmp_path: Path
) -> None:
    pack_model(str(checkpoint), tmp_path / "low", precision="int4")
    options = {"draft_model": str(tmp_path / "low"), "resident_layers": 1}
    assert not lossy(str(checkpoint), "1GB", drafter="substitute", **options)
    assert lossy(str(checkpoint), "1GB", **options)


def test_of_usual_dials_those_are_left_out_that_gain_least(monkeypatch: pytest.MonkeyPatch) -> None:
    speeds = {1: 0.2, 2: 0.23, 3: 0.78, 4: 0.79, 6: 0.8, 8: 1.5, 12: 1.51, 16: 1.515, 24: 2.0, 32: 2.1}

    def row(dial: int) -> Any:
        speed = speeds.get(dial // GB, 2.1)
        setting = SimpleNamespace(speed=SimpleNamespace(middle=speed), streams=dial < 32 * GB)
        return SimpleNamespace(dial=dial, plain=setting, best=setting)

    monkeypatch.setattr(searching, "choose_dial", lambda options, machine: 40 * GB)
    search: Any = SimpleNamespace(options=EngineOptions(), machine=MACHINE, row=row)
    search._least_that_holds_all = lambda below, row: row
    shown = [row.dial // GB for row in SettingSearch.usual_rows(search)]
    assert shown == [1, 2, 3, 8, 24, 32]


@pytest.mark.parametrize("free", [16 * GB, 15_987_654_321])
@pytest.mark.parametrize("needed", [12 * GB + 1, 13.35 * GB, 13.38 * GB, 13.4 * GB, 15.98 * GB])
def test_the_least_dial_that_holds_the_whole_model(needed: float, free: int) -> None:
    def row(dial: int, lossy: bool = True) -> Any:
        setting = SimpleNamespace(streams=dial < needed)
        return SimpleNamespace(dial=dial, plain=setting, best=setting)

    search: Any = SimpleNamespace(row=row, at=row)
    found = SettingSearch._least_that_holds_all(search, 12 * GB, row(free))
    assert found.dial == free or (found.dial % searching.STEP == 0 and found.dial - DRIFT >= needed)
    assert found.dial <= free
    assert found.dial - searching.STEP < needed + DRIFT


def test_of_usual_dials_the_last_holds_the_whole_model_and_no_more(checkpoint: Path) -> None:
    (row,) = tune_model(str(checkpoint)).rows
    assert row.dial < GB
    assert row.plain is not None
    assert not row.plain.streams
    with pytest.raises(BudgetError):  # it streams nothing, or does not run
        tune_model(str(checkpoint), memory=[row.dial - searching.STEP - DRIFT])
