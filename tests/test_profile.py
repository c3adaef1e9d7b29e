"""Profiles: written by tuning, taken over where they hold; and `edgespec tune`."""

from __future__ import annotations

import io
import json
import os
import re
from collections.abc import Callable
from html import escape
from pathlib import Path
from typing import Any

import pytest

import edgespec
from edgespec.apps import common, main
from edgespec.apps.terminal import Terminal
from edgespec.apps.tune_words import seconds_of
from edgespec.config import EngineOptions
from edgespec.errors import OptionError, StorageError
from edgespec.tuning import profile as profiles
from edgespec.tuning.predict import Interval
from edgespec.tuning.profile import read_profile, settings_of, write_profile
from edgespec.tuning.tune import tune_model
from edgespec.values import format_seconds
from tests.fake_engine import FakeEngine
from tests.machine import GB
from tests.test_session import write_model
from tests.tuned import SEVEN, config_only


@pytest.fixture(autouse=True)
def machine(tuned_machine: None, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(profiles, "memory_total", lambda: 16 * GB)
    for name in [name for name in os.environ if name.startswith("EDGESPEC_") and name != "EDGESPEC_CACHE"]:
        monkeypatch.delenv(name)


@pytest.fixture(scope="module")
def model(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return write_model(tmp_path_factory.mktemp("model") / "m")


@pytest.fixture
def written(model: Path, tmp_path: Path) -> Path:
    """For `model`, on this machine."""
    path = tmp_path / "fast.toml"
    options = EngineOptions(context=120, drafter="ngram", schedule="serial")
    write_profile(tune_model(str(model), options, ["1GB"]), options, path)
    return path


def test_a_profile_is_read_as_it_was_written(model: Path, written: Path) -> None:
    found = read_profile(written, str(model))
    assert found.options == {"memory": GB, "drafter": "ngram", "schedule": "serial", "context": 120}
    assert not found.notes
    assert read_profile(written, f"{model}/") == found


def test_names_of_models_may_hold_anything(tmp_path: Path) -> None:
    name = config_only(tmp_path / 'a "b"\n\\c \x7f é 中', SEVEN)
    path = tmp_path / "p.toml"
    found = tune_model(name, memory=["4GB"])
    write_profile(found, EngineOptions(), path)
    assert read_profile(path, name).options == settings_of(found.recommended, EngineOptions())
    with pytest.raises(StorageError, match="cannot be written"):
        write_profile(found, EngineOptions(), tmp_path / "gone" / "p.toml")


def test_what_is_fixed_is_in_the_profile_and_what_is_of_no_use_is_not(tmp_path: Path) -> None:
    seven = config_only(tmp_path / "m", SEVEN)
    options = EngineOptions(context=512, tree_nodes=9)
    best = tune_model(seven, options, ["4GB"]).recommended
    assert settings_of(best, options).items() >= {"context": 512, "tree_nodes": 9, "memory": 4 * GB}.items()
    plain = EngineOptions(drafter="none", context=512, tree_nodes=9)
    best = tune_model(seven, plain, ["4GB"]).recommended
    assert settings_of(best, plain) == {"memory": 4 * GB, "drafter": "none", "context": 512}


def test_files_are_named_so_that_other_folders_find_them(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    config_only(tmp_path / "m", SEVEN)
    config_only(tmp_path / "d", SEVEN | {"num_hidden_layers": 2, "hidden_size": 512})
    options = EngineOptions(draft_model="d", drafter="model")
    found = tune_model("m", options, ["8GB"])
    write_profile(found, options, tmp_path / "p.toml")
    assert read_profile(tmp_path / "p.toml", "m").options["draft_model"] == str(tmp_path / "d")


def test_another_model_takes_what_holds_for_it(written: Path, tmp_path: Path) -> None:
    other = write_model(tmp_path / "other", seed=5)
    found = read_profile(written, str(other))
    assert found.options == {"memory": GB, "drafter": "ngram", "schedule": "serial"}
    assert "was made for" in found.notes[0]
    assert "context= left out" in found.notes[0]


def test_another_machine_takes_what_it_has_memory_for(
    model: Path, written: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(profiles, "this_machine", lambda: "elsewhere")
    found = read_profile(written, str(model))
    assert found.options["memory"] == GB
    assert "too hopeful" in found.notes[0]
    monkeypatch.setattr(profiles, "memory_total", lambda: GB // 2)
    found = read_profile(written, str(model))
    assert "memory" not in found.options
    assert "memory= left out, as this one, or its container, has 500 MB" in found.notes[0]


def test_a_container_without_the_memory_leaves_the_dial_out(
    model: Path, written: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    assert read_profile(written, str(model)).notes == ()
    monkeypatch.setattr(profiles, "memory_total", lambda: GB // 2)
    found = read_profile(written, str(model))
    assert "memory" not in found.options
    assert found.options["drafter"] == "ngram"
    assert "memory= left out, as this one, or its container, has 500 MB" in found.notes[0]


GOOD = 'format = 1\n[model]\nname = "m"\n[machine]\nname = "x"\n[options]\n'


@pytest.mark.parametrize(
    ("text", "error"),
    [
        ("", "not a profile of format 1"),
        ("[options]\nmemory = 1", "not a profile"),
        ("format = 2", "not a profile"),
        ("format = = 1", "not valid TOML"),
        ("\x00", "not valid TOML"),
        ("format = 1\noptions = 3", r"no table \[model\]"),
        ("format = 1\n[model]\n[machine]\noptions = []", r"no table \[options\]"),
        (GOOD + "temperature = 1.0", "unknown option 'temperature'"),
        (GOOD + "memory = true", "memory"),
        (GOOD + "memory = -5", "memory"),
        (GOOD + "memory = nan", "memory"),
        (GOOD + 'schedule = ["ssd"]', "schedule"),
        (GOOD + "tree_nodes = 0", "tree_nodes"),
        (GOOD + "context = " + "9" * 5000, "p.toml"),
        (GOOD + "# " + "x" * 10**5, "larger than"),
        ("a=" + "[" * 50_000, "not valid TOML"),
    ],
)
def test_files_that_are_no_profiles_are_refused(model: Path, tmp_path: Path, text: str, error: str) -> None:
    path = tmp_path / "p.toml"
    path.write_text(text)
    with pytest.raises(OptionError, match=error):
        read_profile(path, str(model))


def test_a_profile_that_is_not_there_is_refused(model: Path, tmp_path: Path) -> None:
    for path, said in ((tmp_path / "gone", "is missing"), (tmp_path, "is a folder")):
        with pytest.raises(OptionError, match=rf"profile .* {said}"):
            read_profile(path, str(model))


def test_names_in_a_profile_of_others_do_not_reach_the_terminal_raw(model: Path, tmp_path: Path) -> None:
    path, name = tmp_path / "p.toml", r"mo\u001b[31mdel\u0007\u009b2J\u202egnp.exe"
    path.write_text(f'format = 1\n[model]\nname = "{name}"\n[machine]\nname = "{name}"\n[options]\n')
    notes = read_profile(path, str(model)).notes
    assert len(notes) == 2
    for note in notes:
        assert note.isprintable()
        assert "\\x1b[31mdel" in note


def test_notes_cannot_drive_a_terminal(capsys: pytest.CaptureFixture[str]) -> None:
    Terminal().note("a\x1b[31m\x07\x9b2J\tb\nc")
    assert capsys.readouterr().err == "a\\x1b[31m\\x07\\x9b2J\tb\nc\n"


# Loading with one.


def test_a_model_loads_with_its_profile(model: Path, written: Path) -> None:
    with edgespec.load(model, profile=written) as engine:
        assert engine.plan.dial == GB
        assert engine.plan.context == 120
        assert engine.drafters == ("ngram",)
        assert engine.plan.reasons == [r for r in engine.plan.reasons if "was made for" not in r]
    with edgespec.load(model, profile=str(written), memory="2GB", drafter="none") as engine:
        assert engine.plan.dial == 2 * GB
        assert engine.drafters == ()
        assert engine.plan.context == 120


def test_what_was_left_out_is_among_the_plan_s_reasons(
    model: Path, written: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(profiles, "this_machine", lambda: "elsewhere")
    with edgespec.load(model, profile=written) as engine:
        assert "was made for the machine" in engine.plan.reasons[-1]


def test_tune_is_a_function_of_the_package(model: Path) -> None:
    found = edgespec.tune(model, dials=["1GB", 2 * GB], drafter="none")
    assert [row.dial for row in found.rows] == [GB, 2 * GB]
    assert found.recommended.drafter == "none"
    assert edgespec.tune(model, memory="1GB").recommended.dial == GB
    with pytest.raises(OptionError, match="unknown engine option"):
        edgespec.tune(model, drafters="none")  # type: ignore[call-arg]


# The command line.

Run = Callable[..., tuple[int, str, str]]


@pytest.fixture
def run(capsys: pytest.CaptureFixture[str], tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Run:
    monkeypatch.chdir(tmp_path)

    def command(*arguments: str) -> tuple[int, str, str]:
        monkeypatch.setattr("sys.stdin", io.TextIOWrapper(io.BytesIO()))
        code = main.run(arguments)
        shown = capsys.readouterr()
        return code, shown.out, shown.err

    return command


@pytest.fixture
def loaded(monkeypatch: pytest.MonkeyPatch) -> list[EngineOptions]:
    """The options that commands load models with."""
    engine, seen = FakeEngine(), list[EngineOptions]()

    def load(model: Any, options: EngineOptions, progress: Any) -> Any:
        seen.append(options)
        return engine.load(model, options, progress)

    monkeypatch.setattr(common, "load_engine", load)
    return seen


def test_a_flag_goes_before_the_environment_and_that_before_the_profile_and_that_before_the_file(
    model: Path, written: Path, run: Run, loaded: list[EngineOptions], monkeypatch: pytest.MonkeyPatch
) -> None:
    def options(*flags: str) -> EngineOptions:
        code, _, err = run("generate", str(model), "-p", "x", "--profile", str(written), *flags)
        assert code == 0, err
        return loaded[-1]

    Path("edgespec.toml").write_text('memory = "3GB"\nthreads = 2\n')
    assert (options().memory, options().drafter, options().threads) == (GB, "ngram", 2)
    monkeypatch.setenv("EDGESPEC_MEMORY", "4GB")
    assert options().memory == 4 * GB
    assert options("--memory", "5GB").memory == 5 * GB
    assert options("--drafter", "auto").drafter == "auto"
    code, _, _ = run("chat", str(model), "-p", "x", "--profile", str(written))
    assert code == 0
    assert loaded[-1].context == 120


def test_the_command_line_says_what_of_a_profile_it_leaves_out(
    model: Path, written: Path, run: Run, loaded: list[EngineOptions], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(profiles, "this_machine", lambda: "elsewhere")
    monkeypatch.setattr(profiles, "memory_total", lambda: GB // 2)
    code, _, err = run("generate", str(model), "-p", "x", "--profile", str(written))
    assert code == 0
    assert loaded[-1].memory is None
    assert "--memory left out" in err
    code, _, err = run("generate", str(model), "-p", "x", "--profile", "gone.toml")
    assert code == 2
    assert "--profile gone.toml is missing" in err


def test_tune_shows_a_table_that_fits(run: Run, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    config_only(tmp_path / "m", SEVEN)
    monkeypatch.setattr("edgespec.apps.tune.sys.stdout.isatty", lambda: True)
    for columns in (80, 120):
        monkeypatch.setenv("COLUMNS", str(columns))
        code, out, _ = run("tune", "m", "--memory", "500MB,4GB,8GB")
        assert code == 0
        assert all(len(line) <= columns for line in out.split("\n") if not line.startswith("  edgespec"))
        assert "is the least that works" in out
        assert "  edgespec chat m --memory" in out
        assert "edgespec pack m --out low --precision int4" in out
        assert ("a pass reads" in out.split("\n")[3]) == (columns == 120)
        assert all(name in out.split("\n")[3] for name in ("memory", "plain, tokens/s", "best, tokens/s"))


def test_tune_s_object_has_every_setting(run: Run, tmp_path: Path) -> None:
    config_only(tmp_path / "m", SEVEN)
    code, out, _ = run("tune", "m", "--memory", "4GB,8GB", "--json", "-o", "p.toml")
    assert code == 0
    found = json.loads(out)
    assert [row["memory"] for row in found["rows"]] == [4 * GB, 8 * GB]
    first = found["rows"][0]["settings"][0]
    assert first["tokens_per_second"]["low"] < first["tokens_per_second"]["middle"]
    assert sum(first["owners"].values()) <= 4 * GB
    assert found["recommended"]["command"].startswith("edgespec chat m --memory ")
    assert read_profile(tmp_path / "p.toml", "m").options["memory"] == found["recommended"]["memory"]


def test_commands_run_the_setting_that_they_stand_beside(run: Run, tmp_path: Path) -> None:
    config_only(tmp_path / "m x", SEVEN)
    code, out, _ = run("tune", "m x", "--memory", "8GB", "--drafter", "none", "--json")
    assert code == 0
    settings = json.loads(out)["rows"][0]["settings"]
    assert {one["precision"] for one in settings} == {"source", "int8", "int4"}
    for one in settings:
        packed = one["precision"] != "source"
        name, folder = one["precision"], f"packed-{one['precision']}" if packed else "'m x'"
        assert one["first"] == [f"edgespec pack 'm x' --out {folder} --precision {name}"] * packed
        assert one["command"] == f"edgespec chat {folder} --memory 8GB --drafter none"
        assert one["exact"] is not packed
    code, out, _ = run("tune", "m x", "--memory", "8GB", "--drafter", "none", "--html", "x.html")
    best = next(one for one in settings if one["precision"] != "source")  # the fastest come first
    for line in (*best["first"], best["command"]):
        assert f"\n  {line}" in out
        assert f"<code>{escape(line)}</code>" in (tmp_path / "x.html").read_text()


def test_notes_name_commands_and_no_functions(run: Run, tmp_path: Path) -> None:
    config_only(tmp_path / "m", SEVEN)
    _, out, _ = run("tune", "m", "--memory", "4GB", "--json")
    notes = " ".join(json.loads(out)["notes"])
    assert "matmuls were not measured here; `edgespec devices` does" in notes
    assert "measure_machine_facts" not in notes


def test_the_first_token_has_its_interval(run: Run, tmp_path: Path) -> None:
    config_only(tmp_path / "m", SEVEN)
    _, out, _ = run("tune", "m", "--memory", "4GB", "--json")
    first = json.loads(out)["recommended"]["first_token_seconds"]
    _, table, _ = run("tune", "m", "--memory", "4GB")
    low, middle, high = (format_seconds(first[end]) for end in ("low", "middle", "high"))
    assert f"{middle} ({low.removesuffix(' s')}-{high.removesuffix(' s')})" in table
    assert seconds_of(Interval(50.0, 61.0, 75.0)) == "1 min 1 s (50 s-1 min 15 s)"


def test_columns_of_the_front_stay_apart(run: Run, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    config_only(tmp_path / "m", SEVEN)
    monkeypatch.setattr("edgespec.apps.tune.speed_of", lambda speed: "123456 (123456-123456)")
    _, out, _ = run("tune", "m", "--memory", "4GB,4.01GB,8GB")
    assert re.search(
        r"\(123456-123456\)  (plain|ngram)", out.split("The dials at which more memory buys speed")[1]
    )


def test_wrong_use_of_tune(run: Run, tmp_path: Path) -> None:
    config_only(tmp_path / "m", SEVEN)
    for arguments, said in (
        (("m", "--memory", "big"), "--memory"),
        (("m", "--memory", "4GB,,8GB"), "--memory"),
        (("m", "--preset", "pi-6"), "--preset 'pi-6' is unknown"),
        (
            ("m", "--memory", "64GB"),
            "16.00 GB is all that this machine, or its container, has; lower --memory",
        ),
        (("m", "--schedule", "soon"), "schedule 'soon' is unknown"),
        (("m", "--temperature", "1"), "--temperature"),
    ):
        code, out, err = run("tune", *arguments)
        assert (code, out) == (2, ""), arguments
        assert said in err
    assert run("tune", "gone")[0] == 1
