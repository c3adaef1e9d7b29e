"""Runs: what is kept of them, what is believed of files that are not ours, and what they set right."""

from __future__ import annotations

import json
import math
import os
import random
from collections.abc import Callable
from contextlib import ExitStack
from dataclasses import asdict, replace
from pathlib import Path
from time import time
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest

import edgespec
from edgespec.apps import main
from edgespec.apps.commands import run_command
from edgespec.apps.talk import Talk
from edgespec.apps.terminal import Terminal
from edgespec.config import EngineOptions
from edgespec.core.acceptance import Outcome
from edgespec.core.trace import Cycle, Overlap, Phase
from edgespec.core.tree import TokenTree
from edgespec.devices.machine import Machine
from edgespec.devices.rates import STALE, cache_folder
from edgespec.engine import Engine
from edgespec.errors import ModelError
from edgespec.offload.chunks import ChunkEvent
from edgespec.response import Stats
from edgespec.tuning import runs as keeping
from edgespec.tuning.acceptance import PRIORS, SPREAD, expected_hits, tree_tokens
from edgespec.tuning.candidate import Candidate
from edgespec.tuning.candidates import find_candidates
from edgespec.tuning.fit import FEW, NORMAL_80, UNFITTED, fit_runs, matching_chance, matching_spread
from edgespec.tuning.predict import MEASURED, Setting, costs_of, predict
from edgespec.tuning.runs import FILE_BYTES, MODELS, RUNS, Trial, keep_run, recall_runs, sound
from edgespec.tuning.subject import open_subject
from edgespec.tuning.tune import tune_model
from edgespec.tuning.watch import LEAST_CYCLES, Watch
from tests.machine import GB, MACHINE
from tests.models import make_checkpoint
from tests.tuned import SEVEN, config_only

pytestmark = pytest.mark.usefixtures("tuned_machine")


def trial(**changes: Any) -> Trial:
    values: dict[str, Any] = {
        "dial": 8 * GB, "drafter": "none", "files": "", "schedule": "serial", "cycles": 10, "tokens": 10,
        "seconds": 20.0, "predicted": 0.4, "when": time(),
    }  # fmt: skip
    return Trial(**(values | changes))


def only_file() -> Path:
    (file,) = (cache_folder() / "runs").iterdir()
    return file


# What is kept.


def test_what_was_kept_is_found_of_that_model_alone() -> None:
    shown = trial(flash=1.2, chance=0.5, judged=8)
    keep_run("d", "source", shown)
    assert recall_runs("d", "source") == ([shown], [])
    assert recall_runs("d", "int8") == recall_runs("e", "source") == ([], [])
    if os.name != "nt":
        assert only_file().stat().st_mode & 0o77 == 0


def test_only_the_latest_are_kept_of_a_model_and_only_so_many_models() -> None:
    for n in range(RUNS + 3):
        keep_run("d", "source", trial(tokens=n + 1))
    assert [run.tokens for run in recall_runs("d", "source")[0]] == list(range(4, RUNS + 4))
    assert only_file().stat().st_size < FILE_BYTES / 4  # names can be longer
    for n in range(MODELS + 2):
        keep_run(f"d{n}", "source", trial())
        os.utime(max((cache_folder() / "runs").glob("*.json"), key=lambda f: f.stat().st_mtime), (n, n))
    assert len(list((cache_folder() / "runs").iterdir())) == MODELS
    assert recall_runs(f"d{MODELS + 1}", "source")[0]
    assert not recall_runs("d0", "source")[0]


def test_what_is_stale_counts_no_more() -> None:
    keep_run("d", "source", trial(when=time() - STALE - 1))
    keep_run("d", "source", trial(tokens=7))
    assert [run.tokens for run in recall_runs("d", "source")[0]] == [7]


@pytest.mark.parametrize("version", ["cores", "release"])
def test_another_machine_or_release_begins_anew(version: str, monkeypatch: pytest.MonkeyPatch) -> None:
    keep_run("d", "source", trial())
    if version == "cores":
        monkeypatch.setattr(keeping, "cpu_count", lambda: 99)
    else:
        monkeypatch.setattr(keeping, "__version__", "other")
    assert recall_runs("d", "source") == ([], [])


def test_a_model_without_a_digest_is_nobody_s() -> None:
    keep_run("", "source", trial())
    assert not (cache_folder() / "runs").exists()


def test_where_nothing_can_be_written_nothing_is_said(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    (tmp_path / "file").write_text("")
    monkeypatch.setenv("EDGESPEC_CACHE", str(tmp_path / "file"))
    keep_run("d", "source", trial())
    assert recall_runs("d", "source")[0] == []


VALUES = asdict(trial(flash=1.0, chance=0.5))
WRONG: list[Any] = [
    None, [], "x", {}, VALUES | {"more": 1}, {k: v for k, v in VALUES.items() if k != "dial"},
    *(VALUES | {name: value} for name in ("dial", "cycles", "tokens", "judged", "lookups")
      for value in (-1, 1.5, True, None, "1", 10**20)),
    *(VALUES | {name: value} for name in ("seconds", "predicted", "when", "low", "high")
      for value in (-1.0, math.nan, math.inf, None, "1", True)),
    *(VALUES | {name: value} for name in ("flash", "compute", "step", "prompt", "chance", "spread", "rest")
      for value in (-1.0, math.nan, math.inf, "1", True, [])),
    *(VALUES | {name: value} for name in ("drafter", "files", "schedule") for value in (1, None, "x" * 5000)),
    VALUES | {"tokens": 0}, VALUES | {"cycles": 0}, VALUES | {"chance": 1.01}, VALUES | {"flash": 0.0},
]  # fmt: skip


def test_a_sound_run_is_what_it_was() -> None:
    assert sound(VALUES) == Trial(**VALUES)


@pytest.mark.parametrize("value", WRONG, ids=range(len(WRONG)))
def test_what_no_run_could_have_shown_is_ignored_with_a_warning(value: Any) -> None:
    assert sound(value) is None
    keep_run("d", "source", trial())
    file = only_file()
    table = json.loads(file.read_text())
    file.write_text(json.dumps(table | {"runs": [*table["runs"], value]}))
    runs, notes = recall_runs("d", "source")
    assert runs == []
    assert "ignored" in notes[0]
    keep_run("d", "source", trial(tokens=3))  # and written over
    assert [run.tokens for run in recall_runs("d", "source")[0]] == [3]


@pytest.mark.parametrize(
    "raw",
    [b"", b"\xff", b"[" * 10**5, b"null", b'{"format": 2, "runs": []}', b'{"format": 1, "runs": 3}',
     b"9" * 5000,
     b" " * (FILE_BYTES + 1), json.dumps({"format": 1, "runs": [VALUES] * (RUNS + 1)}).encode(),
     b"cos\nsystem\n(S'true'\ntR."],
)  # fmt: skip
def test_files_that_are_not_ours_are_ignored_with_a_warning(raw: bytes) -> None:
    keep_run("d", "source", trial())
    only_file().write_bytes(raw)
    runs, notes = recall_runs("d", "source")
    assert (runs, len(notes)) == ([], 1)


def test_a_damaged_file_is_told_by_tune(tmp_path: Path) -> None:
    checkpoint = make_checkpoint(tmp_path / "m")
    with open_subject(str(checkpoint)) as subject:
        keep_run(subject.files.digest, "source", trial())
    assert tune_model(str(checkpoint), None, ["1GB"]).compared
    only_file().write_bytes(b"{}")
    found = tune_model(str(checkpoint), None, ["1GB"])
    assert any("damaged" in note for note in found.notes)
    assert not found.compared


# What runs set right.


@pytest.mark.parametrize("chance", [0.05, 0.4, 0.71, 0.95])
@pytest.mark.parametrize("branches", [False, True])
def test_the_chance_that_matches_is_the_one_that_gave_the_tokens(chance: float, branches: bool) -> None:
    trees = [(8, 16), (3, 4), (5, 32)] * 1000
    tokens = round(sum(tree_tokens(chance, *tree, branches) for tree in trees))
    assert matching_chance(trees, tokens, branches) == pytest.approx(chance, abs=0.002)
    assert matching_chance(trees, 0, branches) == 0
    assert matching_chance(trees, 10**9, branches) == pytest.approx(0.999)


def test_the_spread_that_matches_gives_the_hits() -> None:
    spread = matching_spread(700, 1000, 9.0)
    assert spread is not None
    assert expected_hits(9, spread) == pytest.approx(0.7, abs=0.002)
    assert matching_spread(0, 0, 9.0) is matching_spread(5, 5, 0.0) is None
    always, never = matching_spread(3, 3, 9.0), matching_spread(0, 3, 9.0)
    assert always is not None
    assert never is not None
    assert math.isfinite(always)
    assert always > SPREAD > never > 0


def test_one_pause_of_the_machine_is_shrugged_off() -> None:
    calm = [trial(flash=value, compute=value) for value in (1.08, 1.1, 1.12, 1.09)]
    fit, paused = fit_runs(calm), fit_runs([*calm, trial(flash=30.0, compute=30.0)])
    assert paused.flash.value == pytest.approx(fit.flash.value, rel=0.02)
    assert paused.flash.runs == 5


def test_one_run_moves_no_time_but_the_interval_and_two_that_agree_are_believed() -> None:
    """Of a cold process, a single reply was three times as slow as those behind it."""
    one, two = (fit_runs([trial(flash=3.0, compute=3.0)] * runs) for runs in (1, 2))
    assert (one.flash.value, one.compute.value, one.flash.runs) == (1.0, 1.0, 1)
    assert math.exp(one.flash.sd * NORMAL_80) > 3.0  # what it showed is not ruled out
    assert two.flash.value == pytest.approx(3.0)
    assert two.flash.sd < one.flash.sd
    for others in ([1.1], [1.1, 1.1]):
        assert fit_runs([trial(flash=value) for value in (3.0, *others)]).flash.value == pytest.approx(1.1)
    assert fit_runs([trial(flash=1.02)]).flash.sd < one.flash.sd / 5
    assert fit_runs([trial(flash=3.0)], least=1).flash.value == pytest.approx(3.0)


def test_the_first_reply_of_a_cold_process_does_not_make_plain_decoding_slow(seven_plain: Any) -> None:
    model, setting, candidate = seven_plain
    watch = watch_of(model, setting, candidate)
    World(3.0, 3.0, 1.0, 0.5, SPREAD).play(watch, setting, candidate, 12)
    runs, _ = recall_runs("d", "source")
    assert len(runs) == 1
    assert runs[0].rest == pytest.approx(1.0, rel=0.1)  # its times explain it
    (after,) = predict(setting.plan, candidate, ["serial"], 64, MEASURED, True, fit_runs(runs))
    assert after.speed.middle == setting.speed.middle
    assert after.speed.low < runs[0].speed < setting.speed.low


def test_without_runs_nothing_is_set_right(tmp_path: Path) -> None:
    assert fit_runs([]) == UNFITTED
    seven = config_only(tmp_path / "seven", SEVEN)
    (row,) = tune_model(seven, None, ["8GB"]).rows
    for setting, candidate in settings_of(seven, row.settings):
        (again,) = predict(setting.plan, candidate, [setting.schedule], 64, MEASURED, True, fit_runs([]))
        (plain,) = predict(setting.plan, candidate, [setting.schedule], 64, MEASURED, True)
        assert again == plain


def test_what_is_seen_of_one_draft_model_is_not_believed_of_another() -> None:
    fit = fit_runs([trial(drafter="model", files="/a", chance=0.2, judged=50)])
    prior = PRIORS["model"]
    assert fit.seen("model", "/b").prior(prior) == fit.seen("substitute", "/a").prior(prior) == prior
    assert fit.seen("model", "/a").prior(prior).middle == pytest.approx(0.2, abs=0.05)


def test_few_cycles_are_leant_on_what_was_believed_and_few_texts_say_little() -> None:
    prior = PRIORS["model"]
    few = fit_runs([trial(drafter="model", chance=0.0, judged=2)]).seen("model", "").prior(prior)
    assert prior.middle * 0.6 < few.middle < prior.middle
    one = fit_runs([trial(drafter="model", chance=0.6, judged=40)]).seen("model", "").prior(prior)
    more = [trial(drafter="model", chance=chance, judged=40) for chance in (0.58, 0.6, 0.62, 0.61)]
    many = fit_runs(more).seen("model", "").prior(prior)
    assert many.high - many.low < one.high - one.low < prior.high - prior.low
    apart = [trial(drafter="model", chance=chance, judged=40) for chance in (0.3, 0.6, 0.9, 0.6)]
    assert fit_runs(apart).seen("model", "").sd > 0.1


def settings_of(model: str, settings: Any) -> list[tuple[Setting, Candidate]]:
    with open_subject(model) as subject, ExitStack() as stack:
        found = {c.drafter: c for c in find_candidates(subject, EngineOptions(), frozenset(), stack)}
    return [(s, found[s.drafter]) for s in settings if s.drafter in found and s.exact]


class World:
    """A machine that is not as expected: plays cycles of a setting to a `Watch`."""

    def __init__(self, flash: float, compute: float, step: float, chance: float, spread: float) -> None:
        self.factors, self.chance, self.spread = (flash, compute, step), chance, spread
        self.prompt = 1.0
        self.dice = random.Random(0)

    def costs(self, setting: Setting, candidate: Candidate) -> Any:
        """Seconds of reading, of computing so many rows, of a step."""
        flash, compute, step = self.factors
        costs = costs_of(setting.plan, candidate)

        def computing(rows: int) -> float:
            return compute * costs.working(rows)

        return costs.io * flash, computing, costs.step * step

    def play(self, watch: Watch, setting: Setting, candidate: Candidate, cycles: int) -> Trial | None:
        reading, computing, step = self.costs(setting, candidate)
        ahead = costs_of(setting.plan, candidate).ahead * self.factors[0]  # what the ring has room for
        drafts = bool(candidate.members)
        depth, nodes = (setting.steps, setting.tree_nodes) if drafts else (0, 1)
        given, shown = tree_tokens(self.chance, depth, nodes) if drafts else 1.0, 0
        for n in range(cycles):
            tokens = math.floor(given * (n + 1)) - shown
            shown += tokens
            tree = TokenTree.chain([1] * min(nodes, depth + 1)) if depth else TokenTree.root(1)
            if len(tree) < nodes:  # the other nodes are the root's further children
                rest = nodes - len(tree)
                parents = np.append(tree.parents, np.zeros(rest, dtype=np.int64))
                tree = TokenTree(np.ones(nodes, dtype=np.int64), parents, np.zeros(nodes), None)
            hit = self.dice.random() < expected_hits(8, self.spread) if setting.schedule == "ssd" else None
            late = drafts and not hit
            overlap = (
                Overlap(hit, found=0 if late else depth, passes=8, steps=8, nodes=9)
                if hit is not None
                else None
            )
            passes = None if not drafts else depth if late else 0
            drafting = step * (passes or 0)
            left = reading - min(drafting, ahead)
            luck = self.dice.lognormvariate(0, 0.03)
            verifying = max(left, computing(nodes)) * luck
            watch.phase(Phase("verify", True, 0.0))
            waited = max(0.0, verifying - computing(nodes) * luck)
            watch.chunk(ChunkEvent("wait", setting.plan.table.chunks[0], 0.0, waited))
            watch.chunk(ChunkEvent("read", setting.plan.table.chunks[0], 0.0, 99.0))  # nobody waited for that
            outcome = Outcome(np.arange(tokens), (1,) * tokens, nodes - 1, verifying)
            watch.cycle(Cycle(passes, tree, outcome, drafting, verifying, overlap=overlap))
        prompt = self.prompt * max(reading, computing(200))
        return watch.reply(Stats(prompt_tokens=200, prefill_seconds=prompt))


def watch_of(model: str, setting: Setting, candidate: Candidate) -> Watch:
    with open_subject(model) as subject:
        files = replace(subject.files, digest="d")
    schedule, options = setting.schedule, EngineOptions()
    engine = SimpleNamespace(
        plan=setting.plan,
        files=files,
        options=options,
        drafters=candidate.members,
        schedule=schedule,
        resident={},
    )
    watch = Watch(engine)  # type: ignore[arg-type]
    watch._candidate, watch._known = candidate, True
    return watch


@pytest.fixture(scope="module")
def pair(tmp_path_factory: pytest.TempPathFactory) -> tuple[str, EngineOptions]:
    folder = tmp_path_factory.mktemp("pair")
    small = SEVEN | {"hidden_size": 1024, "intermediate_size": 2816, "num_hidden_layers": 8}
    draft = config_only(folder / "small", small)
    return config_only(folder / "seven", SEVEN), EngineOptions(draft_model=draft)


@pytest.fixture
def seven_plain(pair: tuple[str, EngineOptions]) -> tuple[str, Setting, Candidate]:
    return (pair[0], *of_drafter(*pair, "none")[-1])


def of_drafter(model: str, options: EngineOptions, drafter: str) -> list[tuple[Setting, Candidate]]:
    """By schedule, at 4 GB and at 8 GB."""
    with open_subject(model) as subject, ExitStack() as stack:
        found = {c.drafter: c for c in find_candidates(subject, options, frozenset(), stack)}
    rows = tune_model(model, options, ["4GB", "8GB"]).rows
    return [(s, found[drafter]) for row in rows for s in row.settings if s.drafter == drafter and s.exact]


@pytest.mark.parametrize("schedule", ["serial", "ssd"])
@pytest.mark.parametrize(("flash", "compute", "step"), [(1.4, 1.0, 1.0), (0.8, 1.5, 2.0), (1.1, 1.3, 0.7)])
def test_runs_of_a_machine_that_is_otherwise_set_its_predictions_right(
    pair: tuple[str, EngineOptions], schedule: str, flash: float, compute: float, step: float
) -> None:
    model, options = pair
    world = World(flash, compute, step, chance=0.45, spread=0.9)
    settings = [pair for pair in of_drafter(model, options, "ngram+model") if pair[0].schedule == schedule]
    plain = of_drafter(model, options, "none")
    shown = []
    for setting, candidate in [plain[-1], settings[-1]]:
        watch = watch_of(model, setting, candidate)
        shown += [world.play(watch, setting, candidate, 40) for _ in range(FEW)]
    runs, _ = recall_runs("d", "source")
    assert runs == shown
    fit = fit_runs(runs)
    assert fit.flash.value == pytest.approx(flash, rel=0.05)
    assert fit.compute.value == pytest.approx(compute, rel=0.05)
    seen = fit.seen("ngram+model", settings[-1][1].named)
    assert seen.step.value == pytest.approx(step, rel=0.05)
    assert seen.chance == pytest.approx(0.45, abs=0.03)
    if schedule == "ssd":
        assert seen.spread == pytest.approx(0.9, rel=0.2)
    # The dial that was not run; and plain decoding in it.
    for (setting, candidate), least in ((plain[0], 0.95), (settings[0], 0.9)):
        reading, computing, _ = world.costs(setting, candidate)
        (fitted,) = predict(setting.plan, candidate, [setting.schedule], 64, MEASURED, True, fit)
        assert fitted.speed.high / fitted.speed.low < setting.speed.high / setting.speed.low
        if not candidate.members:
            truth = 1 / max(reading, computing(1))
            assert least < fitted.speed.middle / truth < 1 / least
            assert fitted.speed.low < truth < fitted.speed.high


def test_a_run_that_is_predicted_again_is_what_it_was(pair: tuple[str, EngineOptions]) -> None:
    """Whatever the laws leave over: at the setting that was run, predicted is measured."""
    model, options = pair
    world = World(1.2, 1.1, 3.0, chance=0.3, spread=0.2)
    for setting, candidate in of_drafter(model, options, "ngram+model"):
        keep = [world.play(watch_of(model, setting, candidate), setting, candidate, 40) for _ in range(FEW)]
        fit = fit_runs([run for run in keep if run is not None])
        (again,) = predict(setting.plan, candidate, [setting.schedule], 64, MEASURED, True, fit)
        assert keep[0] is not None
        assert again.speed.middle == pytest.approx(keep[0].speed, rel=0.1)


def test_a_short_run_and_a_stranger_show_nothing(pair: tuple[str, EngineOptions]) -> None:
    model, options = pair
    ((setting, candidate), *_) = of_drafter(model, options, "none")
    world = World(1.0, 1.0, 1.0, 0.5, SPREAD)
    assert world.play(watch_of(model, setting, candidate), setting, candidate, LEAST_CYCLES - 1) is None
    watch = watch_of(model, setting, candidate)
    watch._candidate = None
    assert world.play(watch, setting, candidate, 20) is None
    assert recall_runs("d", "source") == ([], [])


@pytest.mark.parametrize("pause", [1e-5, 1e5])
def test_an_absurd_time_does_not_lose_what_else_a_reply_showed(
    pair: tuple[str, EngineOptions], pause: float
) -> None:
    model, options = pair
    ((setting, candidate), *_) = of_drafter(model, options, "none")
    world = World(1.2, 1.0, 1.0, 0.5, SPREAD)
    world.prompt = pause
    run = world.play(watch_of(model, setting, candidate), setting, candidate, 20)
    assert run is not None
    assert run.prompt == (1e2 if pause > 1 else 1e-2)
    assert run.flash == pytest.approx(1.2, rel=0.05)
    assert recall_runs("d", "source") == ([run], [])


# Real runs.


@pytest.mark.parametrize("layers", [1, None])
def test_a_reply_is_kept_and_tune_goes_by_it(tmp_path: Path, layers: int | None) -> None:
    model = make_checkpoint(tmp_path / "m")
    options = EngineOptions(memory=GB, context=200, drafter="ngram", resident_layers=layers)
    before = tune_model(str(model), options)
    with Engine.load(model, options, machine=MACHINE) as engine:
        watch = Watch(engine)
        engine.target.weights.listen(watch.chunk)
        expected = watch.expected()
        assert expected is not None
        assert expected.speed == next(s for s in before.rows[0].settings if same(s, expected)).speed
        with engine.new_session(trace=watch.trace) as session:
            shown = []
            for _ in range(2):
                reply = edgespec.GenerationOptions(max_tokens=30, ignore_eos=True)
                steps = list(session.generate([5] * 40, reply))
                shown.append(watch.reply(steps[-1].stats))
        again = watch.expected()
    assert None not in shown
    found = tune_model(str(model), options)
    (compared,) = found.compared
    assert (compared.drafter, compared.dials, compared.replies) == ("ngram", (GB, GB), 2)
    assert (compared.told, compared.within) == (
        2,
        sum(run.low <= run.speed <= run.high for run in shown if run),
    )
    assert shown[0] is not None
    assert (shown[0].low, shown[0].high) == (expected.speed.low, expected.speed.high)
    assert compared.measured < 2 * shown[0].speed + 2 * shown[-1].speed
    assert found.fit == fit_runs([run for run in shown if run is not None])
    after = next(s for s in found.rows[0].settings if same(s, expected))
    assert again is not None
    assert after.speed == again.speed != expected.speed
    assert compared.now == after.speed


def same(one: Setting, other: Setting) -> bool:
    return (one.drafter, one.schedule, one.exact) == (other.drafter, other.schedule, other.exact)


def test_a_way_of_drafting_that_cannot_be_predicted_is_not_watched(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def refuse(*arguments: Any) -> Any:
        raise ModelError("gone")

    model = make_checkpoint(tmp_path / "m")
    load: Callable[..., Engine] = Engine.load
    with load(model, EngineOptions(memory=GB, context=100, drafter="ngram"), machine=MACHINE) as engine:
        monkeypatch.setattr("edgespec.tuning.watch.find_candidates", refuse)
        assert Watch(engine).expected() is None


# The commands.


def test_generate_shows_what_was_expected_and_tune_what_came(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    model = str(make_checkpoint(tmp_path / "m"))
    settings = ["--memory", "1GB", "--context", "100", "--drafter", "ngram"]

    def command(name: str, *arguments: str) -> str:
        capsys.readouterr()
        assert main.run([name, model, *settings, *arguments]) == 0
        return capsys.readouterr().out

    monkeypatch.setattr(Machine, "measure", staticmethod(lambda weights, accelerator=None: MACHINE))
    before = json.loads(command("tune", "--json"))
    reply = ["--max-tokens", "20", "--ignore-eos"]
    said = json.loads(command("generate", "-p", "one two one two one", "--json", *reply))
    expected = said["stats"]["expected_tokens_per_second"]
    assert expected["low"] < expected["middle"] < expected["high"]
    assert expected == next(
        s["tokens_per_second"]
        for s in before["rows"][0]["settings"]
        if (s["drafter"], s["schedule"], s["exact"]) == ("ngram", "serial", True)
    )
    (one,) = json.loads(command("tune", "--json"))["measured"]
    assert (one["replies"], one["expected"]) == (1, expected["middle"])
    assert one["measured"] > 0
    short = json.loads(command("generate", "-p", "x", "--max-tokens", "2", "--json"))
    assert short["stats"]["expected_tokens_per_second"] is None  # too short to compare
    again = json.loads(command("generate", "-p", "one two one two one", "--json", *reply))
    assert again["stats"]["expected_tokens_per_second"] != expected  # the first reply has taught it


def test_bench_tells_times_but_not_what_drafts_are_worth(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    model = make_checkpoint(tmp_path / "m")
    flags = ["--memory", "1GB", "--drafter", "ngram", "-p", "0", "-n", "16", "-r", "1"]
    assert main.run(["bench", str(model), *flags]) == 0
    found = tune_model(str(model), EngineOptions(memory=GB))
    (one,) = found.compared
    assert one.drafter == "ngram"
    assert found.fit.compute.runs == 1
    assert found.fit.seen("ngram", "").cycles == 0


def test_a_chat_hears_its_replies_and_warns_of_a_file_that_is_not_ours_once(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    model = make_checkpoint(tmp_path / "m")
    with Engine.load(model, EngineOptions(memory=GB, context=250), machine=MACHINE) as engine:
        talk = Talk(engine, "m", Terminal(), edgespec.GenerationOptions(max_tokens=6, ignore_eos=True))
        talk.ask("a")
        assert len(recall_runs(engine.files.digest, "source")[0]) == 1
        run_command(talk, "/stats")
        assert "were expected" in capsys.readouterr().err
        only_file().write_bytes(b"{}")
        talk.ask("a")
        talk.ask("a")
        assert capsys.readouterr().err.count("damaged") == 1
        assert len(recall_runs(engine.files.digest, "source")[0]) == 2
