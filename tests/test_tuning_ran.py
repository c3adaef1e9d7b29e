"""What is said of a setting that ran: what came of it, and not what the laws make of that."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from edgespec.config import EngineOptions
from edgespec.core.acceptance import Outcome
from edgespec.core.schedule import TreeBudget
from edgespec.core.trace import Cycle, Overlap
from edgespec.core.tree import TokenTree
from edgespec.response import Stats
from edgespec.tuning.acceptance import tree_tokens
from edgespec.tuning.candidate import Candidate
from edgespec.tuning.fit import FEW, UNFITTED, fit_runs
from edgespec.tuning.predict import MEASURED, Interval, Setting, costs_of, predict
from edgespec.tuning.runs import Trial, keep_run
from edgespec.tuning.search import fastest_of
from edgespec.tuning.subject import open_subject
from edgespec.tuning.tune import tune_model
from tests.covering import covering
from tests.machine import GB
from tests.models import make_checkpoint
from tests.test_tuning_runs import of_drafter, pair, trial, watch_of

__all__ = ["pair"]  # a fixture
pytestmark = pytest.mark.usefixtures("tuned_machine")

Pair = tuple[str, EngineOptions]


def ran(setting: Setting, candidate: Candidate, **changes: Any) -> Trial:
    """Three replies' worth of a setting."""
    costs = costs_of(setting.plan, candidate)
    values: dict[str, Any] = {
        "dial": setting.dial, "drafter": candidate.drafter, "files": candidate.named,
        "schedule": setting.schedule, "reads": setting.plan.bytes_per_pass, "cycles": 30, "tokens": 120,
        "tree": setting.tree_nodes, "steps": setting.steps, "passes": 3.0, "rows": 40.0, "pace": 1.3,
        "chance": 0.5, "judged": 30,
    }  # fmt: skip
    values |= changes
    values["seconds"] = costs.cycle(values["passes"], values["rows"]) * values["pace"] * values["cycles"]
    return trial(**values)


def again(setting: Setting, candidate: Candidate, *runs: Trial) -> Setting:
    (found,) = predict(setting.plan, candidate, [setting.schedule], 64, MEASURED, True, fit_runs(runs))
    return found


@pytest.mark.parametrize("chance", [0.05, 0.999])
@pytest.mark.parametrize("schedule", ["serial", "ssd", "mirror"])
def test_what_came_is_what_is_expected_whatever_the_laws_say(
    pair: Pair, schedule: str, chance: float
) -> None:
    """Of ssd and mirror, whose laws expected 23 to 57 % more than came: of the best of many numbers of steps,
    none of which had run."""
    for setting, candidate in of_drafter(*pair, "ngram+model"):
        if setting.schedule == schedule:
            run = ran(setting, candidate, chance=chance, spread=0.01, lookups=30)
            now = again(setting, candidate, *[run] * FEW)
            assert now.speed.middle == pytest.approx(run.speed, rel=0.1)
            assert now.speed.low < run.speed < now.speed.high
            assert (now.tree_nodes, now.steps) == (setting.tree_nodes, setting.steps)
            assert now.cycle_seconds == pytest.approx(run.seconds / run.cycles)
            assert now.bytes_per_token == pytest.approx(setting.plan.bytes_per_pass / now.tokens_per_cycle)


def test_a_few_cycles_lean_on_the_law_and_many_do_not(pair: Pair) -> None:
    setting, candidate = of_drafter(*pair, "ngram+model")[0]
    expected = [
        again(setting, candidate, ran(setting, candidate, cycles=n, tokens=n)).tokens_per_cycle
        for n in (4, 40, 4000)
    ]
    assert expected == sorted(expected, reverse=True)
    assert expected[0] > 1.5
    assert expected[2] == pytest.approx(1.0, abs=0.01)


def test_replies_count_by_their_cycles(pair: Pair) -> None:
    """A mean of replies would give a short one as much weight as a long one."""
    setting, candidate = of_drafter(*pair, "ngram+model")[0]
    short, long = (ran(setting, candidate, cycles=n, tokens=t) for n, t in ((4, 40), (400, 800)))
    (found,) = fit_runs([short, long]).seen(candidate.drafter, candidate.named).ran
    assert found.tokens == pytest.approx(840 / 404)


def test_a_disk_that_has_become_slower_makes_what_ran_slower(pair: Pair) -> None:
    setting, candidate = of_drafter(*pair, "ngram+model")[0]
    assert setting.streams
    read = setting.plan.rates.read
    assert read is not None
    slow = replace(setting, plan=replace(setting.plan, rates=replace(setting.plan.rates, read=read / 2)))
    runs = [ran(setting, candidate)] * FEW
    factor = again(setting, candidate, *runs).speed.middle / again(slow, candidate, *runs).speed.middle
    assert 1.7 < factor < 2.01


def test_of_another_dial_and_another_schedule_the_laws_speak(pair: Pair) -> None:
    settings = of_drafter(*pair, "ngram+model")
    setting, candidate = settings[0]
    runs = [ran(setting, candidate, tokens=600, chance=None, judged=0)] * FEW  # twenty a cycle: no tree's
    for other, _ in settings[1:]:
        assert again(other, candidate, *runs).tokens_per_cycle < 12
    assert again(setting, candidate, *runs).tokens_per_cycle > 18


def test_the_budgets_that_ran_longest_count_and_the_controller_s_own_leave_them_open(pair: Pair) -> None:
    setting, candidate = of_drafter(*pair, "ngram+model")[0]
    few = ran(setting, candidate, tree=8, steps=2, cycles=20, tokens=60)
    many = ran(setting, candidate, tree=16, steps=3, cycles=21, tokens=84)
    now = again(setting, candidate, few, many)
    assert (now.tree_nodes, now.steps) == (16, 3)
    own = ran(setting, candidate, tree=0, steps=0, cycles=50, tokens=150, chance=0.7)
    free = again(setting, candidate, few, many, own)
    assert free.tokens_per_cycle == pytest.approx(3.0, abs=0.35)
    assert (free.tree_nodes, free.steps) not in ((8, 2), (16, 3))
    strange = again(setting, candidate, ran(setting, candidate, tree=5000, steps=3))  # tree_nodes= was larger
    assert strange.tree_nodes <= 64


def test_one_run_moves_its_seconds_by_nothing_but_the_interval(pair: Pair) -> None:
    setting, candidate = of_drafter(*pair, "ngram+model")[0]
    usual, slow = (again(setting, candidate, ran(setting, candidate, pace=pace)) for pace in (1.0, 3.0))
    assert slow.cycle_seconds == usual.cycle_seconds
    assert slow.speed.low < usual.speed.low / 2


@pytest.mark.parametrize(
    ("replies", "times", "flash"), covering((1, 2), (0.3, 0.9, 1.0, 1.1, 3.0), (2.5, 0.01))
)  # plain decoding's cycle bounds the first from below
def test_few_replies_leave_a_setting_between_the_fit_and_what_they_measured(
    pair: Pair, flash: float, times: float, replies: int
) -> None:
    """On a machine that fifteen runs showed to be 2.5 times as slow as believed, one reply that took about as
    long as that fit says made its setting 2.2 times as fast. times: as long as the fit says."""
    for setting, candidate in of_drafter(*pair, "ngram+model"):
        known = [trial(compute=2.5, flash=flash)] * 15
        before = again(setting, candidate, *known)
        cycle = {"passes": float(before.steps), "rows": float(before.tree_nodes)}
        usual = costs_of(setting.plan, candidate).cycle(cycle["passes"], cycle["rows"])
        reply = ran(
            setting, candidate, cycles=1000, tokens=round(1000 * before.tokens_per_cycle),
            pace=times * before.cycle_seconds / usual, tree=before.tree_nodes, steps=before.steps,
            chance=None, judged=0, **cycle,
        )  # fmt: skip
        after = again(setting, candidate, *known, *[reply] * replies).speed.middle
        ends = sorted((before.speed.middle, reply.speed))
        assert ends[0] * 0.999 <= after <= ends[1] * 1.001


@pytest.mark.parametrize(
    ("replies", "plain_pace", "pace"), covering((1, 2, 4), (0.6, None, 2.5), (0.3, 1.0, 3.0))
)
def test_one_token_a_cycle_is_never_faster_than_plain_decoding(
    pair: Pair, pace: float, plain_pace: float | None, replies: int
) -> None:
    (plain, nobody), (setting, candidate) = (of_drafter(*pair, name)[0] for name in ("none", "ngram"))
    shown = ran(setting, candidate, cycles=10000, tokens=10000, passes=0.0, rows=1.0, pace=pace, chance=0.0)
    runs = [shown] * replies + [trial(compute=2.5, flash=2.5)] * 5
    if plain_pace is not None:
        runs.append(
            ran(plain, nobody, cycles=9, tokens=9, passes=0.0, rows=1.0, pace=plain_pace, chance=None)
        )
    found = again(setting, candidate, *runs)
    assert found.tokens_per_cycle == pytest.approx(1.0, abs=0.01)
    assert found.speed.middle <= again(plain, nobody, *runs).speed.middle * found.tokens_per_cycle * 1.0001


def test_the_same_plan_is_as_fast_under_every_dial(tmp_path: Path) -> None:
    model = make_checkpoint(tmp_path / "m")
    dials = ["1GB", "2GB", "4GB"]
    for replies in (1, 3):
        with open_subject(str(model)) as subject:
            digest = subject.files.digest
        for _ in range(replies):
            keep_run(digest, "source", trial(dial=2 * GB, drafter="ngram", pace=2.0, chance=0.3, judged=9))
            keep_run(digest, "source", trial(dial=2 * GB, pace=3.0, compute=3.0))
        rows = tune_model(str(model), None, dials).rows
        for row in rows:
            assert row.more in (None, 1.0)
            assert {s.drafter for s in row.settings} >= {"none", "ngram"}
            for one, other in zip(row.settings, rows[0].settings, strict=True):
                assert (one.drafter, one.speed, one.first_token) == (
                    other.drafter, other.speed, other.first_token,
                )  # fmt: skip


def test_a_plan_that_reads_nearly_as_much_is_what_ran_and_another_is_not(pair: Pair) -> None:
    """What a process takes before it holds a model is not the same in all, and with it a chunk is pinned."""
    setting, candidate = of_drafter(*pair, "ngram")[0]
    reads = setting.plan.bytes_per_pass
    law = again(setting, candidate).speed.middle
    for off, same in ((0.97, True), (1.03, True), (0.9, False), (1.1, False), (0.0, False)):
        now = again(setting, candidate, *[ran(setting, candidate, reads=round(reads * off), pace=9.0)] * FEW)
        assert (now.cycle_seconds > 4 / law) == same


@pytest.mark.parametrize("pace", [1.0, 1.5, 4.0])
@pytest.mark.parametrize("replies", [1, 2, 3, 5])
def test_a_schedule_that_did_not_run_is_not_ahead_of_one_that_did_by_more_than_the_laws_say(
    pair: Pair, pace: float, replies: int
) -> None:
    settings = {s.schedule: (s, c) for s, c in of_drafter(*pair, "ngram+model")[:3]}
    serial, candidate = settings["serial"]
    assert set(settings) == {"serial", "ssd", "mirror"}
    cycles = {"passes": float(serial.steps), "rows": float(serial.tree_nodes)}
    tokens = round(100 * serial.tokens_per_cycle)
    runs = [ran(serial, candidate, cycles=100, tokens=tokens, pace=pace, chance=None, **cycles)] * replies
    held = again(serial, candidate, *runs).speed.middle / serial.speed.middle
    once = [ran(settings["mirror"][0], candidate, cycles=9, tokens=9, pace=8.0, chance=None, **cycles)]
    for more in ([], once):
        for schedule in ("ssd", "mirror"):
            law = settings[schedule][0]
            now = again(law, candidate, *runs, *more)
            assert now.speed.middle <= law.speed.middle * min(1.0, held) * 1.01


def test_nothing_is_drafted_in_waits_that_there_are_not(pair: Pair) -> None:
    model, options = pair
    small = options.draft_model
    assert small is not None
    (row,) = tune_model(small, EngineOptions(draft_model=small), ["8GB"]).rows
    assert {s.schedule for s in row.settings if not s.streams} == {"serial"}
    assert {s.drafter for s in row.settings} > {"none", "ngram"}
    (asked,) = tune_model(small, EngineOptions(drafter="ngram", schedule="ssd"), ["8GB"]).rows
    assert "ssd" in {s.schedule for s in asked.settings}
    (streams,) = tune_model(model, options, ["4GB"]).rows
    assert {s.schedule for s in streams.settings if s.exact} == {"serial", "ssd", "mirror"}


def cycle(setting: Setting, tokens: int, passes: int, found: int, levels: int) -> Cycle:
    tree = TokenTree.chain([1] * (levels + 1))
    outcome = Outcome(np.arange(tokens), (1,) * tokens, levels, 2.0)
    return Cycle(passes, tree, outcome, 0.5, 2.0, overlap=Overlap(hit=found > 0, found=found))


def test_what_ran_is_preferred_to_what_only_should_be_as_fast(pair: Pair) -> None:
    (setting,) = tune_model(pair[0], pair[1]).rows[0].settings[:1]

    def times(factor: float, ran: bool) -> Setting:
        return replace(setting, speed=Interval(0.5 * factor, factor, 2 * factor), ran=ran)

    slow, shown, guessed = times(5.0, True), times(9.6, True), times(10.0, False)
    assert fastest_of([slow, guessed, shown]) is shown
    assert fastest_of([slow, guessed]) is guessed
    assert fastest_of([times(9.95, False), guessed]).speed.middle == 9.95  # as fast: the simpler


def test_a_watch_tells_what_ran(pair: Pair) -> None:
    setting, candidate = of_drafter(*pair, "ngram+model")[0]
    watch = watch_of(pair[0], setting, candidate)
    for n in range(20):
        watch.cycle(cycle(setting, 3, passes=6 * (n % 2), found=0 if n % 2 else 6, levels=3))
    run = watch.reply(Stats(), TreeBudget(8, 6, 6))
    assert run is not None
    assert (run.tree, run.steps, run.passes, run.rows) == (8, 6, 3.0, 4.0)
    law = costs_of(setting.plan, candidate).cycle(3.0, 4.0)
    assert run.pace == pytest.approx(2.5 / law)
    # Six passes made each tree, though it has three levels: all of those would have had to be right.
    assert run.chance is not None
    prior = candidate.prior(setting.plan)
    assert tree_tokens(run.chance, 6, 4, prior.branches, prior.width) == pytest.approx(3.0, abs=0.05)
    assert run.rest is not None
    own = watch.reply(Stats())
    assert own is None  # nothing was heard since


def test_plain_decoding_s_rate_of_reading_may_be_another_than_when_it_was_loaded(pair: Pair) -> None:
    setting, candidate = of_drafter(*pair, "none")[0]
    assert setting.plan.rates.read is not None
    watch = watch_of(pair[0], setting, candidate)
    watch.rates = replace(setting.plan.rates, read=setting.plan.rates.read / 2)
    slow = watch.expected(UNFITTED)
    assert slow is not None
    assert slow.speed.middle == pytest.approx(setting.speed.middle / 2, rel=0.1)
    for _ in range(5):
        watch.cycle(replace(cycle(setting, 1, 0, 0, 0), passes=None, overlap=None, draft_seconds=0.0))
    run = watch.reply(Stats())
    assert run is not None
    assert run.pace == pytest.approx(2.0 * slow.speed.middle)


def test_one_reply_by_trees_of_the_controller_s_own_is_told_with_their_seconds(pair: Pair) -> None:
    """Many tokens by many passes, of one reply, whose seconds the laws stand in for: of such cycles, and not
    of the cycle that they think best, with few passes."""
    setting, candidate = next(one for one in of_drafter(*pair, "ngram+model") if one[0].schedule == "serial")
    passes = 4.0 * setting.steps
    own = {"tree": 0, "steps": 0, "passes": passes, "rows": 20.0, "pace": 1.0, "cycles": 200, "tokens": 1000}
    run = ran(setting, candidate, **own)
    now = again(setting, candidate, run)
    assert now.tokens_per_cycle == pytest.approx(5, rel=0.05)
    assert now.cycle_seconds == pytest.approx(costs_of(setting.plan, candidate).cycle(passes, 20), rel=0.05)
    assert now.speed.middle == pytest.approx(run.speed, rel=0.1)
