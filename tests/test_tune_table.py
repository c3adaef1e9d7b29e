"""What `edgespec tune` prints: columns that fit, and what ran beside what was expected of it."""

from __future__ import annotations

from dataclasses import asdict, replace
from pathlib import Path

import pytest

from edgespec.apps import main
from edgespec.apps.tune import _measured, _table
from edgespec.apps.tune_table import fitted
from edgespec.apps.tune_words import HEADS, MEASURED_HEADS, cells_of, context_note, measured_lines
from edgespec.config import EngineOptions
from edgespec.tuning.compare import compare
from edgespec.tuning.tune import tune_model
from tests.machine import GB
from tests.tuned import SEVEN, SEVENTY, config_only, trial

pytestmark = pytest.mark.usefixtures("tuned_machine")


# The table of dials.


def test_what_does_not_fit_is_left_out_and_refusals_count_for_no_width() -> None:
    lines = [["a", "bb", "ccc", "d"], ["1", "2", "3", "4"], ["12345", "a long refusal " * 9]]
    whole = ["    a  bb  ccc  d", "    1   2  3    4", "12345  " + "a long refusal " * 9]
    assert fitted(lines, [0, 3, 1, 2], {2}, 17) == whole
    assert fitted(lines, [0, 3, 1, 2], {2}, 16) == ["    a  ccc  d", "    1  3    4", whole[2]]
    assert fitted(lines, [0, 3, 1, 2], {2}, 1) == fitted(lines, [0, 3, 1, 2], {2}, 13), "three stay"


def test_a_refused_dial_costs_the_others_no_column(tmp_path: Path) -> None:
    model = config_only(tmp_path / "m", SEVEN)
    rows = tune_model(model, EngineOptions(context=512), ["300MB", "4GB"]).rows
    assert rows[0].refusal is not None
    for width in (80, 100, 10**6):
        refused, fits = _table(rows, width), _table(rows[1:], width)
        assert [line.split() for line in (refused[0], refused[2])] == [line.split() for line in fits]
        assert rows[0].refusal in refused[1]
    assert "pinned" in _table(rows, 120)[0]


def test_contexts_are_told_where_they_differ_and_go_first_where_they_do_not(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    model = config_only(tmp_path / "m", SEVENTY)
    found = tune_model(model, EngineOptions(), ["2GB", "16GB"])
    contexts = [row.best.plan.context for row in found.rows if row.best is not None]
    assert contexts[0] < 1000 < contexts[1], "else this shows nothing"
    assert [cells_of(row)[HEADS.index("context")] for row in found.rows] == [str(n) for n in contexts]
    narrow = _table(found.rows, 80)
    assert "context" in narrow[0]
    assert "pinned" not in narrow[0]
    assert all(len(line) <= 80 for line in narrow)
    assert main.run(["tune", model, "--memory", "2GB,16GB"]) == 0
    said = " ".join(capsys.readouterr().out.split())
    assert f"With 2 GB, prompt and reply have room for {contexts[0]} tokens together" in said
    given = EngineOptions(context=512)
    same = tune_model(model, given, ["2GB", "16GB"])
    heads = [_table(same.rows, width)[0] for width in range(160, 60, -1)]
    assert "context" in heads[0]
    assert next(head for head in heads if "context" not in head) == heads[0].replace("context  ", "", 1)
    assert context_note(same, given) is None, "it was asked for"
    assert context_note(replace(found, max_context=contexts[0]), EngineOptions()) is None, "there is no more"
    assert context_note(replace(found, rows=found.rows[1:]), EngineOptions()) is None


# Predicted beside measured.


def test_replies_whose_passes_read_as_much_are_one_line() -> None:
    """To 5 %, whatever their dials were; another drafter, schedule or draft model is another line."""
    runs = [
        trial(5 * GB, 20 * GB, tokens=30),
        trial(5 * GB + GB // 5, 21 * GB, predicted=0.6, tokens=4),
        trial(5 * GB, 22 * GB, low=0.0, high=0.0),
        trial(6 * GB, 20 * GB),
        trial(5 * GB, drafter="ngram"),
        trial(5 * GB, drafter="ngram", schedule="ssd"),
        trial(5 * GB, drafter="model", files="/a/small"),
        trial(5 * GB, drafter="model", files="/a/tiny"),
        trial(0, 30 * GB),
        trial(0, 64 * GB),
    ]
    found = compare(runs, [])
    assert len(found) == 7
    (one,) = (one for one in found if one.dials == (20 * GB, 22 * GB))
    assert (one.replies, one.cycles, one.tokens, one.reads) == (3, 30, 44, 5 * GB)
    assert one.expected == 0.4
    assert one.measured == pytest.approx(44 / 60)
    assert (one.told, one.within) == (2, 0), "1.5 is above, 0.2 below; of one nothing was told"
    lines = measured_lines(found)
    assert all(len(line) == len(MEASURED_HEADS) for line in lines)
    assert len({(line[0], line[1], line[2]) for line in lines}) == len(lines), "they can be told apart"
    assert ["20-22 GB", "plain decoding", "5 GB", "3"] in [line[:4] for line in lines]
    assert ["30-64 GB", "plain decoding", "nothing", "2"] in [line[:4] for line in lines]
    assert {"model (small), serial", "model (tiny), serial", "ngram, ssd"} <= {line[1] for line in lines}
    place = MEASURED_HEADS.index("in its 80 %")
    assert {line[place] for line in lines} == {"0 of 2", "1 of 1", "2 of 2"}
    for width in (80, 120):
        shown = _measured(found, width)
        assert all(len(line) <= width for line in shown)
        assert "measured" in shown[0]


def test_many_dials_are_no_chain_of_neighbours() -> None:
    """Each 4 % more than the one before: the ends are not alike."""
    found = compare([trial(round(GB * 1.04**n), GB * (40 - n)) for n in range(8)], [])
    assert [one.replies for one in found] == [2, 2, 2, 2]


def test_what_is_expected_now_is_of_the_same_way_and_of_plans_alike(tmp_path: Path) -> None:
    model = config_only(tmp_path / "m", SEVEN)
    rows = tune_model(model, EngineOptions(drafter="none", context=512), ["4GB", "8GB"]).rows
    settings = [s for row in rows for s in row.settings]
    plain = rows[1].plain
    assert plain is not None
    reads = plain.plan.bytes_per_pass
    (one,) = compare([trial(round(reads * 1.04), 9 * GB)], settings)
    assert one.now == plain.speed
    assert compare([trial(round(reads * 1.1))], settings)[0].now is None
    assert compare([trial(reads, files="/a/small")], settings)[0].now is None
    assert asdict(one)["dials"] == (9 * GB, 9 * GB)
