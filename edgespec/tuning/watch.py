"""Hears a run's cycles, and tells what they show of the cost model. Needs no torch."""

from __future__ import annotations

from collections import deque
from collections.abc import Sequence
from contextlib import ExitStack
from dataclasses import dataclass, replace
from statistics import median
from time import time
from typing import TYPE_CHECKING

from edgespec.core.schedule import TreeBudget
from edgespec.core.trace import Cycle, Overlap, Phase, Trace
from edgespec.devices.arithmetic import USUAL
from edgespec.drafters.resident import away
from edgespec.errors import EdgeSpecError
from edgespec.offload.plan.costs import CostModel, Rates
from edgespec.tuning.candidate import PLAIN, Candidate
from edgespec.tuning.candidates import find_candidates
from edgespec.tuning.fit import Fit, fit_runs, matching_chance, matching_spread
from edgespec.tuning.predict import (
    FREE_DEPTH,
    MEASURED,
    UNMEASURED,
    Interval,
    Setting,
    costs_of,
    predict,
    prompt_seconds,
)
from edgespec.tuning.runs import Trial, bounded, keep_run, recall_runs
from edgespec.tuning.subject import Subject

if TYPE_CHECKING:
    from edgespec.engine import Engine
    from edgespec.offload.chunks import ChunkEvent
    from edgespec.offload.plan.plan import Plan
    from edgespec.response import Stats

LEAST_CYCLES = 4  # of a run: fewer are about how replies begin
CYCLES = 2000  # that are held; of a longer reply the latest
WAITED = 0.05  # of a pass: from there on flash is what it waits for
LEAST_PROMPT = 16  # tokens: of a shorter one hardly more than a pass's fixed costs shows


@dataclass(frozen=True)
class _Seen:
    """A cycle; seconds. waited: of the pass, blocked on flash. levels, nodes: of the tree."""

    plan: Plan
    passes: int | None
    levels: int
    nodes: int
    tokens: int
    rows: int
    drafting: float
    verifying: float
    waited: float
    overlap: Overlap

    @property
    def depth(self) -> int:
        """Passes that made the tree: those that went into its other branches count, too, and a pass that was
        made ahead is one of them."""
        return max(self.levels, (self.passes or 0) + self.overlap.found)


class Watch:
    """Hears one conversation of an engine, and its flash.

        watch = Watch(engine)
        session = engine.new_session(trace=watch.trace)
        engine.target.weights.listen(watch.chunk)
        ...
        watch.reply(stats)      # after each reply: a Trial, which is kept for the next `tune`

    What it holds of a cycle is small, and everything else waits for the end of the reply.

    texts: they are of the kind that a user has: else only times are kept of them, not what drafts were worth.
    rates: of the machine now; None = as of when the model was loaded.
    expected_speed: of the last reply, before it; None = it was too short to compare.
    """

    def __init__(self, engine: Engine, texts: bool = True, rates: Rates | None = None) -> None:
        self.engine, self.texts, self.rates = engine, texts, rates
        self.expected_speed: Interval | None = None
        self.trace = Trace(self.cycle, None, self.phase)
        self._warned = list[str]()
        self._warnings = list[str]()
        self._cycles = deque[_Seen](maxlen=CYCLES)
        self._waited = 0.0
        self._candidate: Candidate | None = None
        self._known = False
        self._away = away(engine.resident) is not None  # which was said when it was loaded

    @property
    def plan(self) -> Plan:
        """The engine's, with these rates."""
        plan = self.engine.plan
        return plan if self.rates is None else replace(plan, rates=self.rates)

    # What it hears of.

    def phase(self, event: Phase) -> None:
        if event.name == "verify" and event.begins:
            self._waited = 0.0

    def chunk(self, event: ChunkEvent) -> None:
        if event.kind == "wait":
            self._waited += event.ended - event.began

    def cycle(self, event: Cycle) -> None:
        tree, outcome = event.tree, event.outcome
        self._cycles.append(
            _Seen(
                plan=self.plan,
                passes=event.passes,
                levels=int(tree.depths.max()),
                nodes=len(tree),
                tokens=len(outcome.tokens),
                rows=len(tree) + outcome.beside,
                drafting=event.draft_seconds,
                verifying=event.verify_seconds,
                waited=self._waited,
                overlap=event.overlap or Overlap(),
            )
        )
        self._waited = 0.0

    # What it tells.

    def expected(self, fit: Fit | None = None, budget: TreeBudget | None = None) -> Setting | None:
        """What the engine's own setting should give, by what runs before have shown, unless another `fit` is
        given, and with the best budget, unless another is; None where its way of drafting cannot be
        predicted."""
        candidate = self.candidate
        if candidate is None:
            return None
        if fit is None:
            files = self.engine.files
            runs, notes = recall_runs(files.digest, files.table.precision)
            self._warnings += [note for note in notes if note not in self._warned]
            self._warned += self._warnings
            fit = fit_runs(runs)
        engine, plan = self.engine, self.plan
        doubt = MEASURED if plan.rates.matmuls is not None else UNMEASURED
        schedule = engine.schedule if candidate.members else "serial"
        nodes = engine.options.tree_nodes
        way = None if budget is None or not candidate.members else (budget.nodes, budget.depth)
        return next(predict(plan, candidate, [schedule], nodes, doubt, exact=True, fit=fit, way=way))

    def warnings(self) -> list[str]:
        """What is to be said, once."""
        told, self._warnings = self._warnings, []
        why = away(self.engine.resident)
        if self._away != (why is not None):
            self._away = why is not None
            told.append(
                "drafts come from the server again" if why is None else f"no drafts from the server: {why}"
            )
        return told

    @property
    def candidate(self) -> Candidate | None:
        """The engine's way of drafting, as predictions see it; None = they do not know it."""
        if not self._known:
            self._candidate, self._known = _candidate_of(self.engine), True
        return self._candidate

    def reply(self, stats: Stats, budget: TreeBudget | None = None) -> Trial | None:
        """A reply is over: what it showed, which is kept. None where it was too short to show anything.
        budget: of all its cycles; None = the controller's own."""
        cycles, self._cycles = [*self._cycles], deque(maxlen=CYCLES)
        self.expected_speed = None
        if len(cycles) < LEAST_CYCLES or stats.drafter_damaged:
            return None
        expected, candidate = self.expected(), self.candidate
        if candidate is None or expected is None:
            return None
        self.expected_speed = expected.speed if expected.known else None
        run = Trial(
            dial=expected.dial,
            drafter=candidate.drafter,
            files=candidate.named,
            schedule=expected.schedule,
            cycles=len(cycles),
            tokens=sum(one.tokens for one in cycles),
            seconds=sum(one.drafting + one.verifying for one in cycles),
            predicted=expected.speed.middle,
            low=expected.speed.low,
            high=expected.speed.high,
            when=time(),
            prompt=_prompt(stats, self.plan, candidate),
            reads=expected.plan.bytes_per_pass,
        )
        if budget is not None and candidate.members:
            run = replace(run, tree=budget.nodes, steps=budget.depth)
        run = _passes(run, cycles, candidate)
        if candidate.members and self.texts:
            run = _drafts(run, cycles, candidate, self.engine.options.tree_nodes)
        run = bounded(run)
        if not candidate.members or run.judged >= max(LEAST_CYCLES, len(cycles) / 2):
            # Else most of it was plain decoding.
            own = self.expected(fit_runs([run], least=1), budget)
            assert own is not None
            run = bounded(_pace(replace(run, rest=run.speed / own.speed.middle), cycles, candidate))
        files = self.engine.files
        keep_run(files.digest, files.table.precision, run)
        return run


def _candidate_of(engine: Engine) -> Candidate | None:
    if not engine.drafters:
        return PLAIN
    try:
        subject = Subject(str(engine.files.path), engine.files, None, here=True)
        with ExitStack() as stack:
            found = find_candidates(subject, engine.options, USUAL, stack)
    except EdgeSpecError:
        return None
    named = [c for c in found if c.drafter == engine.options.drafter]  # of the copy in a cascade nobody hears
    same = named or [c for c in found if set(c.members) == set(engine.drafters) and not c.before]
    return same[0] if same else None


def _passes(run: Trial, cycles: Sequence[_Seen], candidate: Candidate) -> Trial:
    """With what reading and computing took, over what they should have.

    A pass that was blocked on flash took as long as its reading, but for what was read during the drafting
    before it; what it computed is the rest of its time, if nothing was drafted in its waits.
    """
    reading, computing, steps = list[float](), list[float](), list[float]()
    plan, costs = None, CostModel()
    for one in cycles:
        if one.plan is not plan:
            plan, costs = one.plan, costs_of(one.plan, candidate)
        if costs.io and one.waited > WAITED * one.verifying:
            reading.append(_reading(one, costs))
        if not one.overlap.steps and not one.overlap.nodes:
            computing.append((one.verifying - one.waited) / costs.working(one.rows))
        if one.passes and costs.step:
            steps.append(one.drafting / one.passes / costs.step)
    return replace(run, flash=_median(reading), compute=_median(computing), step=_median(steps))


def _reading(one: _Seen, costs: CostModel) -> float:
    """What a pass that waited for flash has read, over what it should have in that time: from the draft's
    beginning on, or with the ring full before the pass began."""
    factor = (one.verifying + one.drafting) / costs.io
    full = factor * costs.ahead < one.drafting and costs.ahead < costs.io
    return one.verifying / (costs.io - costs.ahead) if full else factor


def _pace(run: Trial, cycles: Sequence[_Seen], candidate: Candidate) -> Trial:
    """With what its cycles were, on average, and how long they took beside what such cycles should have."""
    passes = sum(one.passes or 0 for one in cycles) / len(cycles)
    rows = sum(one.rows for one in cycles) / len(cycles)
    seconds = costs_of(cycles[-1].plan, candidate).cycle(passes, rows)
    return replace(run, passes=passes, rows=rows, pace=run.seconds / run.cycles / seconds)


def _median(values: Sequence[float]) -> float | None:
    """Of what can be a factor."""
    found = [value for value in values if value > 0]
    return median(found) if found else None


def _prompt(stats: Stats, plan: Plan, candidate: Candidate) -> float | None:
    fresh = stats.prompt_tokens - stats.reused_tokens
    if fresh < LEAST_PROMPT:
        return None
    return stats.prefill_seconds / prompt_seconds(costs_of(plan, candidate), plan, candidate, fresh)


def _drafts(run: Trial, cycles: Sequence[_Seen], candidate: Candidate, most: int) -> Trial:
    """With what its drafts were worth: of cycles in which the drafter was asked."""
    asked = [one for one in cycles if one.passes is not None]
    looked = [one for one in asked if one.overlap.hit is not None]
    if asked:
        # N-grams often find nothing: that is part of their chance.
        free = not candidate.layers
        trees = [(FREE_DEPTH, most) if free else (one.depth, one.nodes) for one in asked]
        prior = candidate.prior(asked[-1].plan)
        chance = matching_chance(trees, sum(one.tokens for one in asked), prior.branches, prior.width)
        run = replace(run, chance=chance, judged=len(asked))
    ahead = [one.overlap.passes for one in cycles if one.overlap.passes]
    if looked and ahead:
        hits = sum(one.overlap.hit is True for one in looked)
        spread = matching_spread(hits, len(looked), sum(ahead) / len(ahead))
        run = replace(run, spread=spread, lookups=len(looked))
    return run
