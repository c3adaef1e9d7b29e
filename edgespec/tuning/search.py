"""Plans and predictions of one model on one machine, dial by dial."""

from __future__ import annotations

from collections.abc import Iterable
from contextlib import ExitStack
from dataclasses import replace

from edgespec.config import EngineOptions
from edgespec.devices.machine import Machine
from edgespec.errors import BudgetError, Call, OptionError
from edgespec.models.planning import choose_dial
from edgespec.offload.plan.needs import Request
from edgespec.offload.plan.plan import Plan
from edgespec.runtimes.formats.needs import DRIFT, plan_model
from edgespec.tuning.candidate import PLAIN, Candidate
from edgespec.tuning.candidates import find_candidates
from edgespec.tuning.fit import Fit
from edgespec.tuning.predict import NEARLY, Doubt, Setting, legal_schedules, predict
from edgespec.tuning.result import Row
from edgespec.tuning.subject import Subject
from edgespec.values import format_bytes

USUAL_DIALS = (1, 2, 3, 4, 6, 8, 12, 16, 24, 32, 48, 64, 96, 128, 192, 256)  # GB, where none is named
SHOWN_DIALS = 6
STEP = 10**8  # bytes, in which the least dial that holds a whole model is told
MORE = 10**9  # bytes: what so many more would give is told for every dial
TOLD = 0.95  # of the fastest: what ran and gave so much is preferred to what only should be faster
LOSSY = ("int8", "int4")  # precisions that are tried beside the files' own, unless one is named


class SettingSearch:
    """Plans and predicts for one model and machine."""

    def __init__(
        self,
        subject: Subject,
        options: EngineOptions,
        machine: Machine,
        doubt: Doubt,
        stack: ExitStack,
        fit: Fit,
    ) -> None:
        self.options, self.machine, self.doubt, self.fit = options, machine, doubt, fit
        # What is named stays, also where plain decoding would be faster.
        self.named = options.drafter not in ("auto", "none")
        self.drafts = self.named or options.schedule not in ("auto", "serial")
        own = subject if options.precision is None else subject.variant(options.precision)
        self.subjects = [(own, find_candidates(own, options, machine.arithmetic, stack))]
        # What drafts with the target's own chunks would be another there.
        free = [c for c in self.subjects[0][1] if not {"substitute", "cascade"} & {*c.members}]
        if self.drafts:
            free.remove(PLAIN)
        if options.precision is None and subject.order is not None and free:
            for precision in LOSSY:
                other = subject.variant(precision)
                if other.files.table.nbytes < subject.files.table.nbytes:
                    self.subjects.append((other, free))
        self.refused: BudgetError | None = None

    def row(self, dial: int) -> Row:
        """Everything at this dial, which the machine has."""
        row = self.at(dial)
        if row.best is None or dial + MORE > self.machine.total:
            return row
        more = self.at(dial + MORE, lossy=False).best
        return row if more is None else replace(row, more=max(1.0, middle(more) / middle(row.best)))

    def at(self, dial: int, lossy: bool = True) -> Row:
        """Likewise, without what more would give; lossy: at other precisions than the files' own, too."""
        try:
            settings = self.settings(dial, lossy=lossy)
        except BudgetError as error:
            self.refused = error
            refusal = f"{format_bytes(error.smallest)} is the least that works at every start"
            return Row(dial, None, None, (), refusal=refusal)
        ready = [s for s in settings if s.exact and not s.before]
        asked = [s for s in ready if s.drafter != "none"] if self.drafts else ready
        best = fastest_of(asked or ready)
        plain = next(s for s in settings if s.drafter == "none" and s.exact)
        return Row(dial, plain, best, tuple(sorted(settings, key=middle, reverse=True)))

    def usual_rows(self) -> list[Row]:
        """Dials that this machine has free, up to one that holds the whole model."""
        free = choose_dial(replace(self.options, memory=None), self.machine)
        sizes = [gb * 10**9 for gb in USUAL_DIALS if gb * 10**9 < free]
        rows = list[Row]()
        for dial in [*sizes, free]:
            row = self.row(dial)
            if row.plain is not None or dial == free:
                rows.append(row)
            if _holds_all(row):
                rows[-1] = self._least_that_holds_all(rows[-2].dial if len(rows) > 1 else 0, row)
                break
        while len(rows) > SHOWN_DIALS:  # the one that gains least over that before it; not the first or last
            speeds = [middle(row.best) for row in rows if row.best is not None]
            del rows[min(range(1, len(rows) - 1), key=lambda i: speeds[i] / speeds[i - 1])]
        return rows

    def _least_that_holds_all(self, below: int, row: Row) -> Row:
        """A row that holds the whole model with as little as that takes, in whole steps; `row` holds it, and
        a dial `below` does not."""
        low, high = below // STEP, -(-row.dial // STEP)
        while high - low > 1:
            half = (low + high) // 2
            held = _holds_all(self.at(half * STEP - DRIFT, lossy=False))  # at every start
            low, high = (low, half) if held else (half, high)
        return row if high * STEP >= row.dial else self.row(high * STEP)

    def settings(self, dial: int, lossy: bool = True) -> list[Setting]:
        """All settings at a dial. Raises BudgetError when not even plain decoding runs, or not the drafter
        that is named."""
        found, refused = list[Setting](), None
        for subject, candidates in self.subjects if lossy else self.subjects[:1]:
            plan: Plan | None = None
            for candidate in candidates:
                try:
                    new = self._predicted(dial, subject, candidate, plan)
                except BudgetError as error:
                    if not candidate.members and not subject.packed:
                        raise
                    refused = refused or error
                    continue
                except OptionError:
                    if not candidate.set_:  # the user may have fixed what another depth would need
                        raise
                    continue
                plan = new[-1].plan if new else plan
                # What is set apart may be what the plan comes to by itself.
                known = {(s.precision, s.drafter, s.schedule, s.depth) for s in found}
                found += [s for s in new if (s.precision, s.drafter, s.schedule, s.depth) not in known]
            if refused and self.named and all(s.drafter == "none" for s in found):
                raise refused
        return found

    def _predicted(
        self, dial: int, subject: Subject, candidate: Candidate, plan: Plan | None
    ) -> list[Setting]:
        """plan: of a candidate before; n-grams keep no more than plain decoding, and have its plan."""
        options = self.options
        if plan is None or plan.extras != candidate.extras:
            request = Request(dial, options.context, options.resident_layers)
            plan = plan_model(subject.files, self.machine, request, candidate.extras)
        if not candidate.used(plan):
            return []
        schedules = legal_schedules(candidate, options, subject.files.config)
        if options.schedule == "auto" and options.draft_worker is None and not plan.bytes_per_pass:
            schedules = schedules[:1]  # passes without waits: nothing is drafted in them
        exact = not subject.packed or options.precision is not None
        ran = subject is self.subjects[0][0]
        fit = self.fit if ran else self.fit.of_another_precision(self.doubt.compute)
        found = list(predict(plan, candidate, schedules, options.tree_nodes, self.doubt, exact, fit))
        if exact:
            return found
        name, precision = subject.name, subject.precision
        pack = Call("pack_model", {"model": name, "out": f"packed-{precision}", "precision": precision})
        return [replace(s, before=(pack, *s.before)) for s in found]


def _holds_all(row: Row) -> bool:
    """Neither plain decoding nor what is fastest streams."""
    return row.best is not None and row.plain is not None and not (row.plain.streams or row.best.streams)


def middle(setting: Setting) -> float:
    return setting.speed.middle


def fastest_of(settings: Iterable[Setting]) -> Setting:
    """The fastest, where it is faster than all that ran by more than laws can tell; of what is as fast, the
    first: the simpler."""
    found = list(settings)
    fastest = max(map(middle, found))
    found = [s for s in found if s.ran and middle(s) >= TOLD * fastest] or found
    fastest = max(map(middle, found))
    return next(setting for setting in found if middle(setting) >= NEARLY * fastest)
