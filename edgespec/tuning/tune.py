"""Which settings suit a model on a machine, predicted from configuration and headers: nothing is loaded.

    found = tune_model("Qwen/Qwen2.5-7B-Instruct", memory=("4GB", "8GB"))
    found.recommended.speed, found.reasons

Measuring belongs elsewhere: rates are looked up (`devices.rates`), and only an unknown disk is tried.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from contextlib import ExitStack
from dataclasses import replace
from pathlib import Path

from edgespec.config import EngineOptions
from edgespec.devices.machine import Machine
from edgespec.devices.presets import Preset
from edgespec.drafters.kinds import choose_drafters
from edgespec.errors import BudgetError, EdgeSpecError, OptionError
from edgespec.models.planning import choose_dial
from edgespec.offload.plan.needs import Request
from edgespec.progress import ProgressCallback
from edgespec.runtimes.formats.needs import plan_model
from edgespec.schedules.kinds import check_model, check_schedule
from edgespec.tuning.candidate import Candidate
from edgespec.tuning.candidates import find_candidates
from edgespec.tuning.compare import compare
from edgespec.tuning.fit import Fit, fit_runs
from edgespec.tuning.machines import find_preset, measure_disk
from edgespec.tuning.predict import (
    MEASURED,
    NEARLY,
    PRESET,
    UNMEASURED,
    Doubt,
    Setting,
    legal_schedules,
    predict,
)
from edgespec.tuning.reasons import reasons_for
from edgespec.tuning.result import Row, Tuning
from edgespec.tuning.runs import Trial, recall_runs
from edgespec.tuning.subject import Subject, open_subject
from edgespec.values import format_bytes, parse_bytes

USUAL_DIALS = (1, 2, 3, 4, 6, 8, 12, 16, 24, 32, 48, 64, 96, 128, 192, 256)  # GB, where none is named
MOST_DIALS = 64
SHOWN_DIALS = 6
ENOUGH = 0.95  # of the best speed: a smaller dial that gives so much is preferred
MORE = 10**9  # bytes: what so many more would give is told for every dial
LOSSY = ("int8", "int4")  # precisions that are tried beside the files' own, unless one is named


def tune_model(
    model: str,
    options: EngineOptions | None = None,
    memory: Sequence[str | float] = (),
    preset: str | None = None,
    progress: ProgressCallback | None = None,
) -> Tuning:
    """Predict and recommend.

    memory: the dials to try; () = the one that `options` name, or usual ones that this machine has free.
    options: what is set in them stays as it is. preset: tune for a machine that one does not have.

    Raises OptionError and ModelError as loading would, BudgetError when none of the dials is large enough.
    """
    options = options or EngineOptions()
    check_schedule(options.schedule, choose_drafters(options))
    known = None if preset is None else find_preset(preset)
    dials = _given(memory, options)
    with ExitStack() as stack:
        subject = stack.enter_context(open_subject(model, options.offline))
        check_model(options, subject.files.config)
        machine, doubt, notes = _machine(subject, known, progress)
        runs, warned = _runs(subject, options) if known is None else ([], [])
        search = _Search(subject, options, machine, doubt, stack, fit_runs(runs))
        rows = [search.row(dial) for dial in dials] if dials else search.usual_rows()
        fitting = [row for row in rows if row.best is not None]
        if not fitting:
            assert search.refused is not None
            raise search.refused
        recommended = _recommended(fitting)
        later = max(
            (s for row in rows for s in row.settings if s.exact and s.before and s.dial == recommended.dial),
            key=_speed,
            default=recommended,
        )
        table = subject.files.table
        return Tuning(
            model=model,
            digest=subject.files.digest,
            layers=table.layers,
            nbytes=table.nbytes,
            precision=subject.precision,
            machine=machine,
            preset=known,
            doubt=doubt,
            rows=tuple(rows),
            recommended=recommended,
            front=_front(s for row in rows for s in row.settings if s.exact and not s.before),
            later=later if _speed(later) > _speed(recommended) / ENOUGH else None,
            reasons=reasons_for(recommended, fitting),
            notes=(*notes, *warned),
            fit=search.fit,
            compared=compare(runs, [s for row in rows for s in row.settings]),
        )


def _given(memory: Sequence[str | float], options: EngineOptions) -> list[int]:
    """The dials that are named, ascending. Raises OptionError."""
    if len(memory) > MOST_DIALS:
        raise OptionError(f"memory has {len(memory)} dials; at most {MOST_DIALS} are compared", "memory")
    try:
        dials = sorted({EngineOptions(memory=parse_bytes(size)).memory or 0 for size in memory})
    except OptionError as error:
        raise OptionError(f"memory: {error.message.removeprefix('memory: ')}", "memory") from None
    return dials or ([options.memory] if options.memory is not None else [])


def _machine(
    subject: Subject, preset: Preset | None, progress: ProgressCallback | None
) -> tuple[Machine, Doubt, list[str]]:
    if preset is not None:
        return preset.machine(), PRESET, [f"figures of {preset.label} are from data sheets, or assumed"]
    place = _place(subject)
    machine, notes = Machine.remembered(place), list[str]()
    if machine.disk is None:
        facts = measure_disk(place if place.is_dir() else place.parent, progress=progress)
        machine, notes = replace(machine, disk=facts.best), list(facts.notes)
    if machine.matmuls is None:
        notes.append(
            "matmuls were not measured here; measure_machine_facts() does, and narrows the intervals"
        )
    return machine, MEASURED if machine.matmuls else UNMEASURED, notes


def _runs(subject: Subject, options: EngineOptions) -> tuple[list[Trial], list[str]]:
    """What runs of the model have shown here; and what to warn of."""
    own = subject if options.precision is None else subject.variant(options.precision)
    return recall_runs(subject.files.digest, own.precision) if subject.files.digest else ([], [])


def _place(subject: Subject) -> Path:
    """A file of the model, or a folder on the disk where it would be."""
    if subject.here:
        return next(subject.files.table.files())
    from huggingface_hub import constants

    cache = Path(constants.HF_HUB_CACHE).absolute()
    return next(folder for folder in (cache, *cache.parents) if folder.is_dir())


class _Search:
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
        own = subject if options.precision is None else subject.variant(options.precision)
        self.subjects = [(own, find_candidates(own, options, machine.converts, stack))]
        if options.precision is None and subject.order is not None:
            for precision in LOSSY:
                other = subject.variant(precision)
                if other.files.table.nbytes < subject.files.table.nbytes:
                    free = [c for c in self.subjects[0][1] if not c.extras.owners and not c.layers]
                    self.subjects.append((other, free))
        self.refused: EdgeSpecError | None = None

    def row(self, dial: int) -> Row:
        """Everything at this dial. Raises OptionError for a dial that the machine does not have."""
        choose_dial(replace(self.options, memory=dial), self.machine)
        try:
            settings = self._settings(dial)
        except BudgetError as error:
            self.refused = error
            return Row(
                dial, None, None, (), refusal=f"{format_bytes(error.smallest)} is the least that works"
            )
        now = [s for s in settings if s.exact and not s.before]
        best = _best(now)
        plain = next(s for s in settings if s.drafter == "none" and s.exact)
        more = None
        if dial + MORE <= self.machine.total:
            more = max(_speed(s) for s in self._settings(dial + MORE, best)) / _speed(best)
        return Row(dial, plain, best, tuple(sorted(settings, key=_speed, reverse=True)), more)

    def usual_rows(self) -> list[Row]:
        """Dials that this machine has free, up to one that holds the whole model."""
        free = choose_dial(replace(self.options, memory=None), self.machine)
        sizes = [gb * 10**9 for gb in USUAL_DIALS if gb * 10**9 < free]
        rows = list[Row]()
        for dial in [*sizes, free]:
            row = self.row(dial)
            if row.plain is not None or dial == free:
                rows.append(row)
            if row.plain is not None and not row.plain.streams:
                break
        while len(rows) > SHOWN_DIALS:
            del rows[1]
        return rows

    def _settings(self, dial: int, like: Setting | None = None) -> list[Setting]:
        """All settings at a dial; or those of the drafter and the precision of one. Raises BudgetError when
        not even plain decoding runs."""
        found = list[Setting]()
        for subject, candidates in self.subjects:
            for candidate in candidates:
                if like and (like.drafter, like.precision) != (candidate.drafter, subject.precision):
                    continue
                try:
                    new = self._predicted(dial, subject, candidate)
                except (BudgetError, OptionError) as error:
                    fits = isinstance(error, BudgetError) and (candidate.members or subject.packed)
                    if (
                        not fits and not candidate.set_
                    ):  # the user may have fixed what another depth would need
                        raise
                    continue
                # What is set apart may be what the plan comes to by itself.
                known = {(s.precision, s.drafter, s.schedule, s.depth) for s in found}
                found += [s for s in new if (s.precision, s.drafter, s.schedule, s.depth) not in known]
        return found

    def _predicted(self, dial: int, subject: Subject, candidate: Candidate) -> Iterable[Setting]:
        options = self.options
        request = Request(dial, options.context, options.resident_layers)
        plan = plan_model(subject.files, self.machine, request, candidate.extras)
        if not candidate.used(plan):
            return []
        schedules = legal_schedules(candidate, options, subject.files.config)
        exact = not subject.packed or options.precision is not None
        # What was run was the first subject: of another precision that tells how the disk does, no more.
        fit = self.fit if subject is self.subjects[0][0] else Fit(flash=self.fit.flash)
        return list(predict(plan, candidate, schedules, options.tree_nodes, self.doubt, exact, fit))


def _speed(setting: Setting) -> float:
    return setting.speed.middle


def _best(settings: Iterable[Setting]) -> Setting:
    """The fastest; of what is as fast, the first: the simpler."""
    found = list(settings)
    fastest = max(map(_speed, found))
    return next(setting for setting in found if _speed(setting) >= NEARLY * fastest)


def _recommended(rows: Sequence[Row]) -> Setting:
    """The smallest dial's that is nearly as fast as the fastest."""
    bests = [row.best for row in rows if row.best is not None]
    fastest = max(map(_speed, bests))
    return next(best for best in sorted(bests, key=lambda s: s.dial) if _speed(best) >= ENOUGH * fastest)


def _front(settings: Iterable[Setting]) -> tuple[Setting, ...]:
    """Those that are faster than all with as little memory or less, ascending."""
    front = list[Setting]()
    for setting in sorted(settings, key=lambda s: (s.dial, -_speed(s))):
        if not front or _speed(setting) > _speed(front[-1]):
            front.append(setting)
    return tuple(front)
