"""How fast a setting should be, by its plan and what is believed of drafts: the laws of docs/tuning.md."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from math import exp, hypot, log

import numpy as np

from edgespec.config import EngineOptions
from edgespec.control.controller import ALLOWANCE
from edgespec.control.estimates import STEPS
from edgespec.control.overlap import Drafted, Mirrored, speedup
from edgespec.drafters.kinds import check_worker, kinds_of
from edgespec.errors import Call, OptionError
from edgespec.offload.plan.costs import LAYER_SECONDS, CostModel
from edgespec.offload.plan.plan import Plan
from edgespec.runtimes.config import ModelConfig
from edgespec.schedules.kinds import SCHEDULES, check_model, check_schedule
from edgespec.tuning.acceptance import SPREAD, expected_hits, tree_tokens
from edgespec.tuning.candidate import Candidate
from edgespec.tuning.fit import LEAN, NORMAL_80, UNFITTED, Fit, Ran

PROMPT = 500  # tokens, to whose reply's first token the time is told: one block of a prompt
TREES = (2, 4, 8, 16, 32, 64)  # sizes that are tried, the root included
NEARLY = 0.99  # of the best: a smaller tree that gives so much is preferred
AHEAD = 12  # passes of drafting that are ever made in the waits of a pass
FREE_DEPTH = 8  # levels of drafts that cost no passes
# Standard deviation of what passes take against this model, rates being right (benchmarks); and, assumed,
# after runs on the same machine have set it right.
MODEL_ERROR, RUN_ERROR = 0.08, 0.04


Guess = Callable[[int, int], float]
"""Tokens of a cycle, by levels and nodes of its tree."""
Way = tuple[int, int]
"""Nodes of a tree, the root included, and steps of drafting."""


@dataclass(frozen=True)
class Interval:
    """80 % lies between `low` and `high`."""

    low: float
    middle: float
    high: float

    @staticmethod
    def around(middle: float, below: float, above: float) -> Interval:
        """`below`, `above`: how far the ends are, as logarithms."""
        return Interval(middle * exp(-below), middle, middle * exp(above))


@dataclass(frozen=True)
class Doubt:
    """Standard deviations of a machine's rates, as shares."""

    flash: float
    compute: float
    model: float = MODEL_ERROR

    def after(self, fit: Fit) -> Doubt:
        """What is left of it, as far as runs have shown what the rates and the model get wrong."""
        flash = fit.flash.sd if fit.flash.runs else self.flash
        compute = fit.compute.sd if fit.compute.runs else self.compute
        shown = fit.flash.runs or fit.compute.runs
        return replace(self, flash=flash, compute=compute, model=RUN_ERROR if shown else self.model)


MEASURED = Doubt(flash=0.15, compute=0.15)  # a shared virtual disk's own, within an hour
UNMEASURED = Doubt(flash=0.15, compute=0.3)  # memory's rate alone is known
PRESET = Doubt(flash=0.25, compute=0.3)  # data sheets


@dataclass(frozen=True)
class Setting:
    """What can be set, and what it should give. Seconds and bytes.

    depth: L_SV, first layers that are pinned for the cascade. set_: options that make it this one. steps: of
    drafting, at which the speed is highest; the controller finds them. exact: the output is that of the
    model's own weights. bound: what a pass waits for, "flash" or "compute". files: options that name files.
    before: what must be made first.
    """

    dial: int
    precision: str
    drafter: str
    schedule: str
    tree_nodes: int
    steps: int
    depth: int
    speed: Interval  # tokens a second
    first_token: Interval
    tokens_per_cycle: float
    cycle_seconds: float
    bytes_per_token: float  # read from flash (CATS' BPT)
    bound: str
    exact: bool
    files: Mapping[str, str]
    before: tuple[Call, ...]
    plan: Plan = field(repr=False)
    costs: CostModel = field(default_factory=CostModel, repr=False)  # as runs have set them right
    set_: Mapping[str, int] = field(default_factory=dict)

    @property
    def streams(self) -> bool:
        return self.plan.bytes_per_pass > 0


def legal_schedules(candidate: Candidate, options: EngineOptions, config: ModelConfig) -> list[str]:
    """The schedules that these drafters and this model can follow, of those that the options leave open, by
    the engine's own rules. Raises OptionError when a named one is not among them."""
    if not candidate.members:
        return ["serial"]
    found = []
    for name in [row.name for row in SCHEDULES] if options.schedule == "auto" else [options.schedule]:
        try:
            check_schedule(name, candidate.members)
            asked = replace(options, schedule=name)
            if "model" in candidate.members:
                check_worker(asked, kinds_of(candidate.members))
            check_model(asked, config)
        except OptionError:
            if options.schedule != "auto":
                raise
            continue
        found.append(name)
    return found


def costs_of(plan: Plan, candidate: Candidate) -> CostModel:
    """What passes of this plan and steps of this drafter should cost, before any run."""
    step = plan.rates.multiply(candidate.reads(plan))[0] + candidate.layers * LAYER_SECONDS
    # Spans are contiguous, so that about one of the largest chunk does not fit before the ring's end.
    largest = max((chunk.read_bytes for chunk in plan.streamed), default=0)
    return replace(plan.costs(), step=step, ahead=plan.rates.flash(max(0, plan.ring_bytes - largest)))


def predict(
    plan: Plan,
    candidate: Candidate,
    schedules: Sequence[str],
    most: int,
    doubt: Doubt,
    exact: bool,
    fit: Fit = UNFITTED,
    way: Way | None = None,
) -> Iterator[Setting]:
    """A setting for each schedule, with the tree and the steps that give the highest speed, or those of
    `way`; as runs have set the laws right. Of a setting that ran it is said what came, by its own tree."""
    seen = fit.seen(candidate.drafter, candidate.named)
    unfitted = costs_of(plan, candidate)
    costs = fit.costs(unfitted, seen)
    prior, doubt = seen.prior(candidate.prior(plan)), doubt.after(fit)

    def rate_of(schedule: str, way: Way, chance: float) -> _Rate:
        def guess(depth: int, nodes: int) -> float:
            return tree_tokens(chance, depth, nodes, prior.branches, prior.width)

        return _rate(schedule, costs, guess, *way, seen.spread)

    for schedule in schedules:
        ran = seen.as_it_ran(plan.dial, schedule)
        ways = _ways(candidate, most) if way is None else [way]
        if ran is not None and (ran.tree, ran.steps) in ways:
            ways = [(ran.tree, ran.steps)]  # the best of many that did not run is an optimist's
        rates = {one: rate_of(schedule, one, prior.middle) for one in ways} or {(1, 0): _plain(costs)}
        best = max(rate.speed for rate in rates.values())
        nodes, steps = min(one for one, rate in rates.items() if rate.speed >= NEARLY * best)
        rate, below, above = rates[nodes, steps], 0.0, 0.0
        computing = float(costs.computing(np.array(nodes))) + costs.overhead
        flash = costs.io >= computing
        sd = hypot(doubt.flash if flash else doubt.compute, doubt.model) * NORMAL_80
        if candidate.members:
            below = log(rate.speed / rate_of(schedule, (nodes, steps), prior.low).speed)
            above = log(rate_of(schedule, (nodes, steps), prior.high).speed / rate.speed)
        if ran is None:
            rate = _Rate(rate.tokens, rate.seconds / seen.left_over(schedule).value)
        else:
            rate, sd = _as_it_ran(ran, rate, unfitted), hypot(ran.pace.sd, RUN_ERROR) * NORMAL_80
        speed = Interval.around(rate.speed, hypot(sd, below), hypot(sd, above))
        plain = _plain(costs).speed * (1 - ALLOWANCE)  # the controller keeps to that, whatever the text
        speed = Interval(max(speed.low, min(plain * exp(-sd), speed.middle)), speed.middle, speed.high)
        first = (unfitted if fit.prompt.runs else costs).cycle(nodes=PROMPT) * fit.prompt.value
        wide = hypot(doubt.flash if costs.io >= first else doubt.compute, doubt.model) * NORMAL_80
        yield Setting(
            dial=plan.dial,
            precision=plan.table.precision,
            drafter=candidate.drafter,
            schedule=schedule,
            tree_nodes=nodes,
            steps=steps,
            depth=plan.depth,
            speed=speed,
            first_token=Interval.around(first, wide, wide),
            tokens_per_cycle=rate.tokens,
            cycle_seconds=rate.seconds,
            bytes_per_token=plan.bytes_per_pass / rate.tokens,
            bound="flash" if flash else "compute",
            exact=exact,
            files=candidate.files,
            before=candidate.before,
            plan=plan,
            costs=costs,
            set_=candidate.set_,
        )


def _ways(candidate: Candidate, most: int) -> list[Way]:
    """That are tried, of trees of at most so many nodes; none without drafts."""
    trees = sorted({n for n in TREES if n < most} | {most})
    depths = [int(s) for s in STEPS if s] if candidate.layers else [FREE_DEPTH]
    return [(nodes, steps) for nodes in trees for steps in depths] if candidate.members else []


@dataclass(frozen=True)
class _Rate:
    tokens: float  # a cycle
    seconds: float

    @property
    def speed(self) -> float:
        return self.tokens / self.seconds


def _as_it_ran(ran: Ran, law: _Rate, unfitted: CostModel) -> _Rate:
    """What came of this setting, with the disk as it is now; tokens of few cycles lean on the law."""
    tokens = (ran.cycles * ran.tokens + LEAN * law.tokens) / (ran.cycles + LEAN)
    return _Rate(tokens, unfitted.cycle(ran.passes, ran.rows) * ran.pace.value)


def _plain(costs: CostModel) -> _Rate:
    return _Rate(1.0, costs.cycle())


def _rate(
    schedule: str, costs: CostModel, tokens: Guess, nodes: int, steps: int, spread: float = SPREAD
) -> _Rate:
    """By the law of the schedule; where one that goes on drafting does not pay, it drafts in time only.
    `spread`: see `acceptance.expected_hits`."""
    serial = _Rate(tokens(steps, nodes), costs.cycle(steps if costs.step else 0, nodes))
    if schedule == "serial":
        return serial
    law = {"ssd": _ssd, "mirror": _mirror}[schedule]
    return max(serial, law(costs, tokens, nodes, steps, spread), key=lambda rate: rate.speed)


def _waits(costs: CostModel, nodes: int) -> tuple[float, float]:
    """Seconds of a pass, and those of it in which it waits for flash."""
    computing = float(costs.computing(np.array(nodes))) + costs.overhead
    return max(costs.io, computing), max(0.0, costs.io - computing)


def _ahead(costs: CostModel, wait: float) -> int:
    """Passes of drafting that fit so long a wait."""
    return min(AHEAD, int(wait / costs.step)) if costs.step else AHEAD


def _ssd(costs: CostModel, tokens: Guess, nodes: int, steps: int, spread: float = SPREAD) -> _Rate:
    """SSD, Theorem 7: the cache is filled in the waits of a pass; after a miss the drafter drafts then. Half
    of what is drafted ahead is for outcomes that do not come."""
    seconds, wait = _waits(costs, nodes)
    passes = _ahead(costs, wait)
    hits = expected_hits(passes, spread)
    primary = Drafted(tokens(passes // 2, nodes), 1.0)
    fallback = Drafted(tokens(steps, nodes), costs.step * steps / seconds)
    given = hits * primary.tokens + (1 - hits) * fallback.tokens
    return _Rate(given, given * seconds / speedup(hits, primary, fallback))


def _mirror(costs: CostModel, tokens: Guess, nodes: int, steps: int, spread: float = SPREAD) -> _Rate:
    """Mirror-SD, Equation 10, with an exit half-way: what comes behind it hides the drafting."""
    seconds, wait = _waits(costs, nodes)
    passes = _ahead(costs, wait / 2)
    hits = expected_hits(passes, spread)
    step = Mirrored(seconds / 2, seconds / 2, draft=costs.step * passes, early=LAYER_SECONDS).step
    given = hits * tokens(passes // 2, nodes) + (1 - hits) * tokens(steps, nodes)
    return _Rate(given, step + (1 - hits) * costs.step * steps)
