"""`tune --measure`: what is run, for how long, what is kept of it, and what is refused before anything is."""

from __future__ import annotations

import json
import re
from collections.abc import Callable, Sequence
from dataclasses import replace
from html import unescape
from pathlib import Path
from typing import Any

import pytest

import edgespec
from edgespec.apps import main
from edgespec.config import EngineOptions
from edgespec.devices.machine import Machine
from edgespec.devices.probe import ProcessMemory
from edgespec.drafters.choice import choose_drafters
from edgespec.engine import Engine
from edgespec.errors import BudgetError, ModelError, OptionError
from edgespec.models.packing import pack_model
from edgespec.progress import Progress
from edgespec.session import Session
from edgespec.tuning import measure as measuring
from edgespec.tuning.measure import (
    MOST_AGAIN,
    PROMPT_TOKENS,
    PROMPTS,
    REPLY_CYCLES,
    SAMPLES,
    measure_model,
    settings_to_run,
    settings_to_run_again,
)
from edgespec.tuning.predict import Interval, Setting
from edgespec.tuning.profile import settings_of
from edgespec.tuning.result import Tuning
from edgespec.tuning.runs import Trial
from edgespec.tuning.tune import tune_model
from edgespec.tuning.watch import LEAST_CYCLES
from tests.machine import GB, MACHINE
from tests.models import make_checkpoint
from tests.tuned import SEVEN, config_only

pytestmark = pytest.mark.usefixtures("tuned_machine")

OPTIONS = EngineOptions(memory=GB, context=200)


@pytest.fixture
def rates(monkeypatch: pytest.MonkeyPatch) -> None:
    """Are not taken: that takes seconds."""
    monkeypatch.setattr(measuring, "_take_rates", lambda *arguments: None)


@pytest.fixture(scope="module")
def packed(tmp_path_factory: pytest.TempPathFactory) -> str:
    """With a low-bit copy, so that there are three ways of drafting."""
    folder = tmp_path_factory.mktemp("measure")
    pack_model(str(make_checkpoint(folder / "m")), folder / "packed", substitute="int4")
    return str(folder / "packed")


@pytest.fixture
def run(
    capsys: pytest.CaptureFixture[str], tmp_path: Path, monkeypatch: pytest.MonkeyPatch, packed: str
) -> Callable[..., tuple[int, str, str]]:
    monkeypatch.chdir(tmp_path)
    Path("m").symlink_to(packed)

    def command(*arguments: str) -> tuple[int, str, str]:
        capsys.readouterr()
        code = main.run(["tune", "m", "--memory", "1GB", "--context", "200", *arguments])
        return code, *capsys.readouterr()

    return command


def test_every_way_of_drafting_that_is_there_is_run_and_tune_goes_by_it(packed: str, rates: None) -> None:
    options = replace(OPTIONS, resident_layers=1)  # the rest streams
    before = tune_model(packed, options)
    stages = list[Progress]()
    assert measure_model(packed, options, progress=stages.append) == []
    after = tune_model(packed, options)
    ways = {setting.drafter: setting.schedule for setting in settings_to_run(before)}
    assert {"none", "ngram", "ngram+substitute"} == set(ways)
    assert ways.items() <= {(one.drafter, one.schedule) for one in after.compared}
    assert all(one.replies % len(SAMPLES) == 0 and one.dials == (GB, GB) for one in after.compared)
    assert all(one.cycles <= REPLY_CYCLES * one.replies for one in after.compared)
    assert before.compared == ()
    assert after.fit.compute.runs or after.fit.flash.runs
    told = [(s.done, s.total) for s in stages if s.stage == "measure"]
    assert told[:3] == [(0, 3), (1, 3), (2, 3)]
    again = len(told) - 3
    assert told[3:] == [(number, again) for number in range(again)]
    for one in after.compared:
        assert one.now is not None
        assert one.now.low <= one.now.middle <= one.now.high


def test_what_could_be_the_best_runs_again_and_what_could_not_does_not(
    packed: str, rates: None, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The last texts first; and where time is over after the first round nothing does."""
    found = tune_model(packed, OPTIONS)
    plain, other = found.rows[0].settings[:2]

    def tuned(settings: list[Setting]) -> Tuning:
        return replace(found, rows=(replace(found.rows[0], settings=tuple(settings)),))

    def times(setting: Setting, factor: float, ran: bool = True) -> Setting:
        speed = Interval(*(factor * end for end in (0.5, 1.0, 2.0)))
        return replace(setting, speed=speed, exact=True, before=(), ran=ran)

    near = [times(other, 10), times(plain, 8.6), times(other, 8.4)]
    assert settings_to_run_again(tuned(near)) == near[:2]
    assert settings_to_run_again(tuned([near[0], near[2]])) == []
    guessed = times(other, 10, ran=False)
    assert settings_to_run_again(tuned([guessed, near[2]])) == [guessed]
    assert settings_to_run_again(tuned([replace(near[0], exact=False), near[2]])) == []
    assert len(settings_to_run_again(tuned([guessed] * 5))) == MOST_AGAIN

    asked = list[Sequence[Any]]()
    monkeypatch.setattr(measuring, "run_setting", lambda w, s, prompts, *more: asked.append(prompts))
    monkeypatch.setattr(measuring, "settings_to_run", lambda found: near[1:2])
    monkeypatch.setattr(measuring, "settings_to_run_again", lambda found: near[1:2])
    measure_model(packed, OPTIONS, prompts=["a", "b"])
    assert asked == [["a", "b"], ["b", "a"]]
    measure_model(packed, OPTIONS, prompts=["a", "b"], seconds=0.0)
    assert asked[2:] == [["a", "b"]]


def test_time_bounds_it(packed: str, rates: None) -> None:
    """When the time is over every way still has its least; and no reply is longer than it may be."""
    options = replace(OPTIONS, resident_layers=1)
    measure_model(packed, options, seconds=0.0)
    compared = tune_model(packed, options).compared
    assert len(compared) == 3
    assert all(one.replies == 1 and LEAST_CYCLES <= one.cycles <= LEAST_CYCLES + 1 for one in compared)


def test_long_and_many_prompts_are_cut(packed: str, rates: None, monkeypatch: pytest.MonkeyPatch) -> None:
    asked = list[int]()
    generate = Session.generate

    def counted(self: Session, prompt: Any, *more: Any) -> Any:
        asked.append(len(prompt))
        return generate(self, prompt, *more)

    monkeypatch.setattr(Session, "generate", counted)
    options = replace(OPTIONS, drafter="none")
    long = "word " * 5000
    measure_model(packed, options, prompts=[long, [{"role": "user", "content": long}]] * (3 * PROMPTS // 2))
    assert len(asked) == PROMPTS
    assert set(asked) == {100}  # half the context
    asked.clear()
    measure_model(packed, replace(options, context=None), prompts=["word " * 5000])
    assert asked[0] <= PROMPT_TOKENS


def test_ctrl_c_loses_nothing_that_was_measured(packed: str, rates: None) -> None:
    passes = 0

    def interrupt(report: Progress) -> None:
        nonlocal passes
        passes += report.stage == "layers" and report.done == report.total
        if passes > REPLY_CYCLES + 7:  # in the midst of the second reply
            raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        measure_model(packed, OPTIONS, progress=interrupt)
    (compared,) = tune_model(packed, OPTIONS).compared
    assert compared.drafter == "none"
    assert compared.replies == 2
    with Engine.load(packed, OPTIONS, machine=MACHINE):  # nothing is left open
        pass


def test_settings_that_are_run_can_be_loaded(packed: str, tmp_path: Path) -> None:
    """Files of one drafter are not given to the others, which would refuse them; nor are they in commands."""
    demo = Path(edgespec.__file__).parent / "demo_model"
    options = replace(OPTIONS, adapters=str(demo / "cascade"))
    found = tune_model(str(demo), options)
    drafters = {setting.drafter for setting in settings_to_run(found)}
    assert drafters == {"none", "ngram", "ngram+cascade"}
    for row in found.rows:
        for setting in row.settings:
            choose_drafters(EngineOptions(**settings_of(setting, options)))
    small = config_only(tmp_path / "small", SEVEN | {"num_hidden_layers": 1})
    worker = EngineOptions(draft_model=small, draft_worker=1)
    for setting in tune_model(config_only(tmp_path / "seven", SEVEN), worker, ["8GB"]).rows[0].settings:
        choose_drafters(EngineOptions(**settings_of(setting, worker)))


def test_a_process_that_has_grown_runs_what_one_that_only_loads_has_room_for(
    packed: str, rates: None, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The least dial that works is run, though measuring takes memory itself."""
    tried, real, grown = list[int](), Engine.load, 70 * 10**6
    usual = tune_model(packed, OPTIONS).recommended.plan.owners["interpreter and libraries"]
    monkeypatch.setattr(measuring, "process_memory", lambda: ProcessMemory(usual + grown, usual + grown))

    def load(model: str, options: EngineOptions, progress: Any) -> Engine:
        assert options.memory is not None
        tried.append(options.memory)
        if options.memory < GB + grown:
            raise BudgetError("it is too large", {}, options.memory, GB + grown)
        return real(model, options, progress, machine=MACHINE)

    monkeypatch.setattr(Engine, "load", load)
    trials = list[Trial]()
    assert measure_model(packed, OPTIONS, trials=trials, seconds=1) == []
    assert set(tried) == {GB, GB + grown}
    assert {one.drafter for one in trials} == {"none", "ngram"}
    monkeypatch.setattr(measuring, "process_memory", lambda: ProcessMemory(usual, usual))
    with pytest.raises(BudgetError):
        measure_model(packed, OPTIONS, seconds=1)


# What is refused.


def test_a_model_that_is_not_here_is_not_run(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(Engine, "load", None)
    with pytest.raises(ModelError, match="not on this machine"):
        measure_model(config_only(tmp_path / "seven", SEVEN), EngineOptions(memory=8 * GB))


def test_dials_that_cannot_be_run(packed: str, rates: None, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(Engine, "load", None)
    with pytest.raises(BudgetError):
        measure_model(packed, replace(OPTIONS, memory=10**6))
    short = replace(MACHINE, available=10**8)
    monkeypatch.setattr(Machine, "remembered", staticmethod(lambda weights: short))
    with pytest.raises(OptionError, match="free now"):
        measure_model(packed, OPTIONS)


def test_the_largest_dial_that_is_free_is_run(packed: str, monkeypatch: pytest.MonkeyPatch) -> None:
    found = tune_model(packed, replace(OPTIONS, memory=None), ["500MB", "1GB", "2GB"])
    small = replace(found.recommended, dial=2 * GB)
    short = replace(MACHINE, available=8 * 10**8)
    assert {s.dial for s in settings_to_run(replace(found, recommended=small, machine=short))} == {GB}
    assert {s.dial for s in settings_to_run(found)} == {found.recommended.dial}


@pytest.mark.parametrize(
    ("content", "said"),
    [
        (None, "not there"), ("folder", "is a folder"), (b"", "has no prompt"), (b"\n \n", "has no prompt"),
        (b"caf\xe9\n", "not UTF-8"), (b"x" * (2**20 + 1), "longer than 1048576"), (b'{"turns": []}', "turns"),
        (b'{"prompt": 3}', "prompt"),
    ],
)  # fmt: skip
def test_prompts_that_cannot_be_are_refused_before_any_work(
    run: Callable[..., tuple[int, str, str]], content: bytes | str | None, said: str,
    monkeypatch: pytest.MonkeyPatch,
) -> None:  # fmt: skip
    monkeypatch.setattr(measuring, "measure_model", None)
    if content == "folder":
        Path("p").mkdir()
    elif isinstance(content, bytes):
        Path("p").write_bytes(content)
    code, out, error = run("--measure", "--prompts", "p")
    assert (code, out) == (2, "")
    assert said in error
    assert "p" in error.split()


@pytest.mark.parametrize(
    ("flags", "said"),
    [
        (["--prompts", "p"], "changes nothing without {}measure"),
        (["--measure", "--preset", "raspberry-pi-5"], "another machine"),
    ],
)
def test_what_does_not_go_together(
    run: Callable[..., tuple[int, str, str]], flags: list[str], said: str
) -> None:
    Path("p").write_text("a prompt\n")
    code, _, error = run(*flags)
    assert code == 2
    assert said.format("--") in error
    assert "=" not in error
    keywords = {"measure": "--measure" in flags, "preset": "raspberry-pi-5" if len(flags) > 2 else None}
    with pytest.raises(OptionError, match=said.format("")):
        edgespec.tune("m", prompts=["x"] if "p" in flags else [], **keywords)  # type: ignore[arg-type]


def test_an_empty_prompt_is_refused(packed: str) -> None:
    with pytest.raises(OptionError, match="empty"):
        edgespec.tune(packed, measure=True, prompts=["a", ""])


# What is shown.


def test_predicted_stands_beside_measured_everywhere(
    run: Callable[..., tuple[int, str, str]], rates: None, tmp_path: Path
) -> None:
    Path("p").write_text('Once upon a time\n{"turns": ["Hello", "again"]}\n')
    code, out, _ = run("--measure", "--prompts", "p", "--html", "page.html", "--resident-layers", "1")
    assert code == 0
    table = out[out.index("Predicted beside measured") :].splitlines()
    assert [word in table[1] for word in ("expected", "measured", "off by", "expected now")] == [True] * 4
    assert len(table) >= 5
    page = unescape(re.sub("</?span[^>]*>", "", Path("page.html").read_text()))
    assert "Predicted beside measured" in page
    assert "the machine's rates and what " in page
    for line in table[2:]:
        for cell in line.split("  "):
            assert cell.strip() in page
    code, out, _ = run("--json", "--resident-layers", "1")
    found = json.loads(out)
    assert {one["drafter"] for one in found["measured"]} == {"none", "ngram", "ngram+substitute"}
    for one in found["measured"]:
        assert one["error"] == pytest.approx(one["expected"] / one["measured"] - 1)
        assert one["replies"] in (2, 4)
    assert found["fit"]["prompt"]["value"] > 0
    assert {one["drafter"] for one in found["fit"]["drafters"]} == {"none", "ngram", "ngram+substitute"}


def test_measuring_that_was_stopped_shows_what_there_is(
    run: Callable[..., tuple[int, str, str]], monkeypatch: pytest.MonkeyPatch
) -> None:
    def stopped(*arguments: Any) -> Any:
        raise KeyboardInterrupt

    monkeypatch.setattr(measuring, "measure_model", stopped)
    code, out, error = run("--measure", "-o", "p.toml", "--html", "x.html")
    assert code == 130
    assert "Recommended" in out
    assert "measuring was stopped; nothing was measured, no file is written" in error
    assert "written to" not in error
    assert [path.name for path in Path().iterdir()] == ["m"]

    def stopped_later(*arguments: Any) -> Any:
        arguments[-1].append("what a reply showed")
        raise KeyboardInterrupt

    monkeypatch.setattr(measuring, "measure_model", stopped_later)
    code, _, error = run("--measure", "-o", "p.toml")
    assert code == 130
    assert "what it has shown until then counts" in error
    assert Path("p.toml").exists()


def test_a_reply_counts_from_its_end_on(packed: str, rates: None) -> None:
    trials, seen = list[Trial](), list[int]()

    def interrupt(report: Progress) -> None:
        seen.append(len(trials))
        if len(trials) == 2:
            raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        measure_model(packed, OPTIONS, progress=interrupt, trials=trials)
    assert sorted(set(seen)) == [0, 1, 2]


def test_a_process_is_remembered_as_it_was_before_matmuls_were_measured(
    packed: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    done = list[str]()
    monkeypatch.setattr(measuring, "read_rate", lambda path, fresh: None)
    monkeypatch.setattr(measuring, "memory_rate", lambda fresh: 10.0)
    for name, function in (("machine", "measure_machine"), ("matmuls", "matmuls")):
        monkeypatch.setattr(
            f"edgespec.runtimes.torch.{name}.{function}", lambda *a, f=function, **b: done.append(f)
        )
    measuring._take_rates(packed, OPTIONS, None)
    assert done == ["measure_machine", "matmuls"]
