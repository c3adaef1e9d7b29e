"""The cost model set right by runs: few numbers, each a factor on one of its terms, or a chance; and, of
settings that ran themselves, what came.

Times are medians over runs, because one pause of the machine makes any of them absurd. Where there are fewer
than FEW, what was expected stands for the others: one reply, which may have been the first of a cold process,
moves nothing but the interval. Chances are means by cycles: they have bounds, and a speed is over all texts.
What no run has shown stays as it is.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from math import exp, hypot, log, sqrt
from statistics import median

from edgespec.offload.plan.costs import CostModel
from edgespec.tuning.acceptance import MOST_NODES, Prior, tree_tokens
from edgespec.tuning.runs import Trial, runs_of

LEAN = 4.0  # cycles' worth of trust in what is believed without runs
LEAST_SD = 0.05  # of a rate's logarithm: a quiet disk's own from reply to reply
FEW_SD = 0.08  # likewise, while fewer than FEW runs tell how much they differ
FEW = 3
ABOUT = 0.05  # of what a pass reads: what a process takes before the model differs from start to start
TEXTS_SD = 0.1  # of a chance from text to text, where fewer than FEW tell
LEAST_TEXTS_SD = 0.02
NORMAL_80 = 1.2816  # standard deviations on either side that hold 80 %


@dataclass(frozen=True)
class Factor:
    """Measured over expected; sd: of its logarithm. runs: that have shown it; without any it is unknown."""

    value: float = 1.0
    sd: float = FEW_SD
    runs: int = 0


@dataclass(frozen=True)
class Ran:
    """What came of a setting in so many cycles. reads: bytes of a pass; plans that read as much are as fast,
    whatever the dial. tree, steps: of its budgets, 0 = the controller's own. tokens, passes, rows: of a cycle
    (`Trial`). paces: of its seconds, by reply. least: replies that say what these are, as FEW."""

    reads: int
    schedule: str
    tree: int
    steps: int
    cycles: int
    tokens: float
    passes: float
    rows: float
    paces: tuple[float, ...]
    least: int = FEW

    def pace(self, expected: float) -> Factor:
        """Of its seconds; `expected` stands for replies that are missing."""
        return _factor(self.paces, self.least, expected)


@dataclass(frozen=True)
class Seen:
    """What runs have shown of a drafter. cycles: that were judged, `texts` of them runs of their own.
    spread: of misses (`acceptance.expected_hits`), as so many lookups have shown. rest: by schedule, what the
    laws leave over of its speed. ran: by plan, schedule and budgets.
    """

    step: Factor = Factor()
    chance: float = 0.0
    sd: float = TEXTS_SD
    cycles: int = 0
    texts: int = 0
    spread: float = 0.0
    lookups: int = 0
    rest: Mapping[str, Factor] = field(default_factory=dict)
    ran: tuple[Ran, ...] = ()

    def prior(self, believed: Prior) -> Prior:
        """What is believed of its drafts now."""
        missed = (self.lookups * self.spread + LEAN * believed.spread) / (self.lookups + LEAN)
        believed = replace(believed, spread=missed)
        if not self.cycles:
            return believed
        middle = (self.cycles * self.chance + LEAN * believed.middle) / (self.cycles + LEAN)
        wide = NORMAL_80 * self.sd * sqrt(1 + 1 / max(1, self.texts))
        low, high = max(0.01, middle - wide), min(0.99, middle + wide)
        source = f"measured, {self.cycles} cycles"
        low, high = min(low, middle), max(high, middle)
        return replace(believed, low=low, middle=middle, high=high, source=source)

    def ran_at(self, reads: int) -> list[Ran]:
        """What ran with a plan that reads about as much, by schedule; what has most replies first."""
        found = dict[str, Ran]()
        for one in sorted(self.ran, key=lambda one: -one.cycles):
            if abs(one.reads - reads) <= ABOUT * reads:
                found.setdefault(one.schedule, one)
        return sorted(found.values(), key=lambda one: -len(one.paces))

    def left_over(self, schedule: str) -> float:
        """Of a schedule that was not run, what its others leave."""
        others = [factor.value for factor in self.rest.values() if factor.runs]
        found = self.rest.get(schedule, Factor())
        return found.value if found.runs or not others else min(others)


UNSEEN = Seen()


@dataclass(frozen=True)
class Fit:
    """What runs of a model have shown on this machine; by default nothing."""

    flash: Factor = Factor()
    compute: Factor = Factor()
    prompt: Factor = Factor()
    drafters: Mapping[tuple[str, str], Seen] = field(default_factory=dict)  # by name and files

    def seen(self, drafter: str, files: str) -> Seen:
        return self.drafters.get((drafter, files), UNSEEN)

    def of_another_precision(self, compute_sd: float) -> Fit:
        """What of it holds where the same weights are stored otherwise: what came of settings does not, and
        how long its matmuls take is in doubt (`compute_sd`)."""
        drafters = {key: replace(seen, rest={}, ran=()) for key, seen in self.drafters.items()}
        compute = replace(self.compute, sd=hypot(self.compute.sd, compute_sd))
        return replace(self, compute=compute, drafters=drafters)

    def costs(self, costs: CostModel, seen: Seen) -> CostModel:
        """With these factors; a step that was never timed is off as the passes' computing is."""
        flash, compute = self.flash.value, self.compute.value
        step = seen.step.value if seen.step.runs else compute
        return replace(
            costs,
            io=costs.io * flash,
            ahead=costs.ahead * flash,
            compute=costs.compute * compute,
            overhead=costs.overhead * compute,
            apart=costs.apart * compute,
            by_rows=tuple(seconds * compute for seconds in costs.by_rows),
            step=costs.step * step,
            waiting_step=costs.waiting_step * step,
        )


UNFITTED = Fit()


def fit_runs(runs: Sequence[Trial], least: int = FEW) -> Fit:
    """`runs` of one model on one machine. least: runs that say what times are, as FEW; 1 = these alone."""
    drafters = {}
    for drafter, files in {(run.drafter, run.files) for run in runs}:
        own = runs_of(runs, drafter, files)
        drafters[drafter, files] = _seen(own, least)
    return Fit(
        flash=_factor((run.flash for run in runs), least),
        compute=_factor((run.compute for run in runs), least),
        prompt=_factor((run.prompt for run in runs), least),
        drafters=drafters,
    )


def _seen(runs: Sequence[Trial], least: int) -> Seen:
    judged = [(run.chance, run.judged) for run in runs if run.chance is not None and run.judged]
    chance, cycles = _mean(judged)
    spread, lookups = _mean([(run.spread, run.lookups) for run in runs if run.spread is not None])
    sd = TEXTS_SD
    if len(judged) >= FEW:
        off = sum(n * (one - chance) ** 2 for one, n in judged) / cycles
        sd = max(LEAST_TEXTS_SD, sqrt(off * len(judged) / (len(judged) - 1)))
    return Seen(
        step=_factor((run.step for run in runs), least),
        chance=chance,
        sd=sd,
        cycles=cycles,
        texts=len(judged),
        spread=spread,
        lookups=lookups,
        rest={
            schedule: _factor((run.rest for run in runs if run.schedule == schedule), least)
            for schedule in {run.schedule for run in runs}
        },
        ran=_ran(runs, least),
    )


def _ran(runs: Sequence[Trial], least: int) -> tuple[Ran, ...]:
    """Tokens over cycles of all replies together: a short one says less than a long one."""
    groups = dict[tuple[int, str, int, int], list[Trial]]()
    for run in runs:
        if run.pace is not None:
            groups.setdefault((run.reads, run.schedule, run.tree, run.steps), []).append(run)
    found = []
    for key, group in groups.items():
        tokens, cycles = _mean([(run.tokens / run.cycles, run.cycles) for run in group])
        passes, _ = _mean([(run.passes, run.cycles) for run in group])
        rows, _ = _mean([(run.rows, run.cycles) for run in group])
        paces = tuple(run.pace for run in group if run.pace is not None)
        found.append(Ran(*key, cycles, tokens, passes, rows, paces, least))
    return (*found,)


def _mean(values: Sequence[tuple[float, int]]) -> tuple[float, int]:
    """(the mean, the weights' sum) of values with weights."""
    total = sum(n for _, n in values)
    return (sum(value * n for value, n in values) / total if total else 0.0), total


def _factor(values: Iterable[float | None], least: int, expected: float = 1.0) -> Factor:
    """The median of at least so many, of which `expected` stands for those that are missing. The interval
    reaches what the runs alone would say."""
    logs = [log(value) for value in values if value is not None]
    if not logs:
        return Factor()
    middle, sd = median(logs + [log(expected)] * (least - len(logs))), FEW_SD
    if len(logs) >= FEW:
        sd = max(LEAST_SD, 1.4826 * median(abs(one - middle) for one in logs))  # a normal's, by its MAD
    overruled = abs(median(logs) - middle) / NORMAL_80
    return Factor(exp(middle), hypot(sd, sd / sqrt(len(logs)), overruled), len(logs))


def matching_chance(
    trees: Sequence[tuple[int, int]], tokens: int, branches: bool, width: int = MOST_NODES
) -> float:
    """The chance with which trees of so many (levels, nodes), the root among them, should give so many tokens
    in all, bonus tokens included; see `tree_tokens`."""
    low, high = 0, 1000  # thousandths: the curve is drawn for these
    while high - low > 1:
        middle = (low + high) // 2
        given = sum(tree_tokens(middle / 1000, depth, nodes, branches, width) for depth, nodes in trees)
        low, high = (middle, high) if given <= tokens else (low, middle)
    return low / 1000


def matching_spread(hits: int, lookups: int, passes: float) -> float | None:
    """The power of misses where so many passes prepared for so many outcomes that came; None = none did."""
    if not lookups or passes <= 0:
        return None
    missed = (lookups - hits + 0.5) / (lookups + 1)  # neither always nor never is to be believed of a few
    return min(10.0, -log(missed) / log(1 + passes))
