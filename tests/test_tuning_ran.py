"""What is said of a setting that ran: what came of it, and not what the laws make of that."""

from __future__ import annotations

from dataclasses import replace
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
from edgespec.tuning.predict import MEASURED, Setting, costs_of, predict
from edgespec.tuning.runs import Trial
from tests.test_tuning_runs import of_drafter, pair, trial, watch_of

__all__ = ["pair"]  # a fixture
pytestmark = pytest.mark.usefixtures("tuned_machine")

Pair = tuple[str, EngineOptions]


def ran(setting: Setting, candidate: Candidate, **changes: Any) -> Trial:
    """Three replies' worth of a setting."""
    costs = costs_of(setting.plan, candidate)
    values: dict[str, Any] = {
        "dial": setting.dial, "drafter": candidate.drafter, "files": candidate.named,
        "schedule": setting.schedule, "cycles": 30, "tokens": 120, "tree": setting.tree_nodes,
        "steps": setting.steps, "passes": 3.0, "rows": 40.0, "pace": 1.3, "chance": 0.5, "judged": 30,
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


def cycle(setting: Setting, tokens: int, passes: int, found: int, levels: int) -> Cycle:
    tree = TokenTree.chain([1] * (levels + 1))
    outcome = Outcome(np.arange(tokens), (1,) * tokens, levels, 2.0)
    return Cycle(passes, tree, outcome, 0.5, 2.0, overlap=Overlap(hit=found > 0, found=found))


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
