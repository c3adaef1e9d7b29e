"""How fast a setting should be, by its plan, what is believed of drafts, and what runs have shown."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from math import exp, hypot, log

from edgespec.config import EngineOptions
from edgespec.control.controller import ALLOWANCE
from edgespec.control.estimates import STEPS
from edgespec.drafters.choice import check_worker
from edgespec.drafters.kinds import kinds_of
from edgespec.errors import Call, OptionError
from edgespec.offload.plan.costs import LAYER_SECONDS, CostModel
from edgespec.offload.plan.plan import Plan
from edgespec.runtimes.config import ModelConfig
from edgespec.schedules.kinds import SCHEDULES, check_model, check_schedule
from edgespec.tuning.acceptance import tree_tokens
from edgespec.tuning.candidate import PLAIN, Candidate
from edgespec.tuning.fit import LEAN, NORMAL_80, UNFITTED, Fit, Ran
from edgespec.tuning.laws import Rate, plain_rate, rate_of

PROMPT = 500  # tokens, to whose reply's first token the time is told: one block of a prompt
TREES = (2, 4, 8, 16, 32, 64)  # sizes that are tried, the root included
NEARLY = 0.99  # of the best: a smaller tree that gives so much is preferred
FREE_DEPTH = 8  # levels of drafts that cost no passes
# Standard deviation of what passes take against this model, rates being right (benchmarks); and, assumed,
# after runs on the same machine have set it right.
MODEL_ERROR, RUN_ERROR = 0.08, 0.04
DRAFTED_ERROR = 0.15  # likewise of cycles with a model's drafts, which were 21 to 24 % longer than expected

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
    drafted: float = DRAFTED_ERROR

    def after(self, fit: Fit) -> Doubt:
        """What is left of it, as far as runs have shown what the rates and the model get wrong."""
        flash = fit.flash.sd if fit.flash.runs else self.flash
        compute = fit.compute.sd if fit.compute.runs else self.compute
        shown = fit.flash.runs or fit.compute.runs
        model, drafted = (RUN_ERROR, RUN_ERROR) if shown else (self.model, self.drafted)
        return Doubt(flash, compute, model, drafted)


MEASURED = Doubt(flash=0.15, compute=0.15)  # a shared virtual disk's own, within an hour
UNMEASURED = Doubt(flash=0.15, compute=0.7)  # memory's rate alone is known: matmuls take 1 to 4 times as long
PRESET = Doubt(flash=0.25, compute=0.3)  # data sheets


@dataclass(frozen=True)
class Setting:
    """What can be set, and what it should give. Seconds and bytes.

    depth: L_SV, first layers that are pinned for the cascade. set_: options that make it this one. steps: of
    drafting, at which the speed is highest; the controller finds them. exact: the output is that of the
    model's own weights. ran: here, with a plan that reads as much, so that what is said is what came. bound:
    what a pass waits for, "flash" or "compute". files: options that name files. before: what must be made
    first.
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
    ran: bool
    files: Mapping[str, str]
    before: tuple[Call, ...]
    plan: Plan = field(repr=False)
    costs: CostModel = field(default_factory=CostModel, repr=False)  # as runs have set them right
    set_: Mapping[str, int] = field(default_factory=dict)

    @property
    def streams(self) -> bool:
        return self.plan.bytes_per_pass > 0

    @property
    def known(self) -> bool:
        """Nothing that it takes was left out: of what streams there is a rate, or it ran."""
        return self.ran or not self.streams or self.plan.rates.read is not None


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
    drafting = _drafting(plan, candidate)
    # Spans are contiguous, so that about one of the largest chunk does not fit before the ring's end.
    largest = max((chunk.read_bytes for chunk in plan.streamed), default=0)
    return replace(
        plan.costs(),
        step=drafting.working(candidate.rows),
        waiting_step=drafting.working(candidate.ahead_rows),
        ahead=plan.rates.flash(max(0, plan.ring_bytes - largest)),
    )


def prompt_seconds(costs: CostModel, plan: Plan, candidate: Candidate, rows: int) -> float:
    """A prompt of so many tokens, by what passes of this plan cost: the target's pass, and the drafter's."""
    own = _drafting(plan, candidate).working(rows) if candidate.reads_prompt else 0.0
    return costs.cycle(nodes=rows) + own


def _drafting(plan: Plan, candidate: Candidate) -> CostModel:
    overhead = candidate.beside + candidate.layers * LAYER_SECONDS if candidate.layers else 0.0
    return CostModel(overhead=overhead, by_rows=plan.rates.multiply(candidate.reads(plan)))


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

    def rated(schedule: str, way: Way, chance: float) -> Rate:
        def guess(depth: int, nodes: int) -> float:
            return tree_tokens(chance, depth, nodes, prior.branches, prior.width)

        return rate_of(schedule, costs, guess, *way, prior.spread)

    def choose(schedule: str, ran: Ran | None = None) -> tuple[Way, Rate]:
        """The best of its ways, and what the laws say of that."""
        ways = _ways(candidate, most) if way is None else [way]
        if ran is not None and (ran.tree, ran.steps) in ways:
            ways = [(ran.tree, ran.steps)]  # the best of many that did not run is an optimist's
        rates = {one: rated(schedule, one, prior.middle) for one in ways} or {(1, 0): plain_rate(costs)}
        best = max(rate.speed for rate in rates.values())
        chosen = min(one for one, rate in rates.items() if rate.speed >= NEARLY * best)
        return chosen, rates[chosen].times(seen.left_over(schedule))

    plain, behind, came = _plain(plan, fit), 1.0, dict[str, tuple[Way, Rate, float]]()
    for ran in seen.ran_at(plan.bytes_per_pass):
        chosen, law = choose(ran.schedule, ran)
        if not ran.tree:  # its tokens are those of the controller's trees, so its seconds are, too
            law = Rate(law.tokens, costs.cycle(ran.passes, ran.rows))
        came[ran.schedule] = (chosen, *_as_it_ran(ran, law.times(behind), unfitted))
        behind = min(behind, came[ran.schedule][1].speed / choose(ran.schedule)[1].speed)
    for schedule in schedules:
        if schedule in came:
            (nodes, steps), rate, sd = came[schedule]
        else:  # it comes no nearer to its law than what ran
            (nodes, steps), rate = choose(schedule)
            rate, sd = rate.times(behind), 0.0
        rate = Rate(rate.tokens, max(rate.seconds, plain.seconds))  # no pass is shorter than that of one row
        flash = costs.io >= costs.working(nodes)
        if not sd:
            error = doubt.drafted if candidate.layers else doubt.model
            sd = hypot(doubt.flash if flash else doubt.compute, error)
        sd, below, above = sd * NORMAL_80, 0.0, 0.0
        if candidate.members:
            low, mid, high = (rated(schedule, (nodes, steps), chance).speed for chance in prior.chances)
            below, above = log(mid / low), log(high / mid)
        speed = Interval.around(rate.speed, hypot(sd, below), hypot(sd, above))
        least = plain.speed * (1 - ALLOWANCE) * exp(-sd)  # the controller keeps to that, whatever the text
        speed = replace(speed, low=max(speed.low, min(least, speed.middle)))
        passes = unfitted if fit.prompt.runs else costs
        first = prompt_seconds(passes, plan, candidate, PROMPT) * fit.prompt.value
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
            ran=schedule in came,
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


def _as_it_ran(ran: Ran, law: Rate, unfitted: CostModel) -> tuple[Rate, float]:
    """What came of this setting, with the disk as it is now, and the standard deviation of its logarithm;
    tokens of few cycles lean on the law, and so do seconds of few replies."""
    tokens = (ran.cycles * ran.tokens + LEAN * law.tokens) / (ran.cycles + LEAN)
    usual = unfitted.cycle(ran.passes, ran.rows)
    pace = ran.pace(law.seconds / usual)
    return Rate(tokens, usual * pace.value), hypot(pace.sd, RUN_ERROR)


def _plain(plan: Plan, fit: Fit) -> Rate:
    """Plain decoding with this plan, as runs have set that right."""
    seen, unfitted = fit.seen(PLAIN.drafter, PLAIN.named), plan.costs()
    law = plain_rate(fit.costs(unfitted, seen)).times(seen.left_over("serial"))
    return next((_as_it_ran(ran, law, unfitted)[0] for ran in seen.ran_at(plan.bytes_per_pass)), law)
