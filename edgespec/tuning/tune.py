"""Which settings suit a model on a machine, predicted from configuration and headers: nothing is loaded.

    found = tune_model("Qwen/Qwen2.5-7B-Instruct", memory=("4GB", "8GB"))
    found.recommended.speed, found.reasons

Measuring belongs elsewhere: rates are looked up (`devices.rates`), and only an unknown disk is tried.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass, replace
from pathlib import Path

from edgespec.config import EngineOptions
from edgespec.devices.filesystem import filesystem_of
from edgespec.devices.machine import Machine
from edgespec.devices.presets import Preset
from edgespec.drafters.choice import choose_drafters
from edgespec.errors import OptionError
from edgespec.offload.plan.fill import PAGES, too_large
from edgespec.progress import ProgressCallback
from edgespec.schedules.kinds import check_model, check_schedule
from edgespec.tuning.compare import compare
from edgespec.tuning.fit import fit_runs
from edgespec.tuning.machines import find_preset, measure_disk, place_notes
from edgespec.tuning.predict import (
    MEASURED,
    PRESET,
    UNMEASURED,
    Doubt,
    Setting,
)
from edgespec.tuning.reasons import reasons_for
from edgespec.tuning.result import Row, Tuning
from edgespec.tuning.runs import Trial, recall_runs
from edgespec.tuning.search import SettingSearch, middle
from edgespec.tuning.subject import Subject, open_subject
from edgespec.values import format_bytes, parse_bytes

MOST_DIALS = 64
ENOUGH = 0.95  # of the best speed: a smaller dial that gives so much is preferred


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
    dials = dials_of(memory, options)
    with open_tuner(model, options, preset, progress) as tuner:
        return tuner.tune(dials)


@contextmanager
def open_tuner(
    model: str,
    options: EngineOptions,
    preset: str | None = None,
    progress: ProgressCallback | None = None,
) -> Iterator[Tuner]:
    """What tunes a model for one machine, while the context lasts. Raises as `tune_model`."""
    check_schedule(options.schedule, choose_drafters(options))
    known = None if preset is None else find_preset(preset)
    with ExitStack() as stack:
        subject = stack.enter_context(open_subject(model, options.offline))
        check_model(options, subject.files.config)
        machine, doubt, notes = _machine(subject, known, progress)
        runs, warned = _runs(subject, options) if known is None else ([], [])
        search = SettingSearch(subject, options, machine, doubt, stack, fit_runs(runs))
        yield Tuner(model, subject, known, search, runs, (*notes, *warned))


@dataclass(frozen=True)
class Tuner:
    """A model and a machine, as far as they are known."""

    model: str
    subject: Subject
    preset: Preset | None
    search: SettingSearch
    runs: Sequence[Trial]
    notes: tuple[str, ...]

    def tune(self, dials: Sequence[int]) -> Tuning:
        """() = usual ones that are free. Raises BudgetError when none of them is large enough."""
        subject, search = self.subject, self.search
        rows = [self._row(dial) for dial in dials] if dials else search.usual_rows()
        fitting = [row for row in rows if row.best is not None]
        if not fitting:
            raise search.refused or OptionError(f"{rows[0].refusal}; lower memory=")
        recommended = _recommended(fitting)
        later = max(
            (s for row in rows for s in row.settings if s.exact and s.before and s.dial == recommended.dial),
            key=middle,
            default=recommended,
        )
        own = search.subjects[0][0]
        table = own.files.table
        return Tuning(
            model=self.model,
            digest=subject.files.digest,
            layers=table.layers,
            max_context=subject.files.config.max_context,
            nbytes=table.nbytes,
            precision=own.precision,
            machine=search.machine,
            preset=self.preset,
            doubt=search.doubt,
            rows=tuple(rows),
            recommended=recommended,
            front=_front(fitting),
            later=later if middle(later) > middle(recommended) / ENOUGH else None,
            reasons=reasons_for(recommended, fitting),
            notes=(*self.notes, *self._too_little_free(fitting)),
            fit=search.fit,
            compared=compare(self.runs, [s for row in rows for s in row.settings]),
        )

    def _row(self, dial: int) -> Row:
        """Likewise of a dial that the machine does not have."""
        total = self.search.machine.total
        if dial <= total + PAGES:
            return self.search.row(dial)
        whose = () if self.preset is None else (f"a {self.preset.label}",)
        return Row(dial, None, None, (), refusal=too_large(dial, total, *whose))

    def _too_little_free(self, rows: Sequence[Row]) -> list[str]:
        machine = self.search.machine
        free = machine.baseline + machine.available
        if rows[-1].dial <= free:
            return []
        when = "now" if self.preset is None else "there, as the system keeps the rest"
        return [f"only {format_bytes(free)} are free {when}: larger dials push out what other programs hold"]


def dials_of(memory: Sequence[str | float], options: EngineOptions) -> list[int]:
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
    machine, notes = Machine.remembered(place), [*place_notes(filesystem_of(place))]
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


def _recommended(rows: Sequence[Row]) -> Setting:
    """The smallest dial's that is nearly as fast as the fastest."""
    bests = [row.best for row in rows if row.best is not None]
    fastest = max(map(middle, bests))
    return next(best for best in sorted(bests, key=lambda s: s.dial) if middle(best) >= ENOUGH * fastest)


def _front(rows: Sequence[Row]) -> tuple[Setting, ...]:
    """The best of each dial that is faster than that of all smaller ones by more than is within `ENOUGH`."""
    front = list[Setting]()
    for row in sorted(rows, key=lambda row: row.dial):
        if row.best is not None and (not front or ENOUGH * middle(row.best) > middle(front[-1])):
            front.append(row.best)
    return tuple(front)
