"""What was predicted beside what was measured, setting by setting."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from statistics import median

from edgespec.tuning.candidate import name_files
from edgespec.tuning.fit import ABOUT
from edgespec.tuning.predict import Interval, Setting
from edgespec.tuning.runs import Trial


@dataclass(frozen=True)
class Compared:
    """Replies by one way of drafting with plans that read about as much: these are as fast, whatever the
    dial.

    dials: the least and the largest. files: the drafter's. reads: bytes of a pass, the median. told: replies
    of which an interval was stated before they ran, and within: those that lay in it. expected: tokens a
    second, before they ran (the median); measured: of all together; now: as it is predicted by what they have
    shown, None where no such setting is among those that were compared.
    """

    dials: tuple[int, int]
    drafter: str
    files: str
    schedule: str
    reads: int
    replies: int
    cycles: int
    tokens: int
    told: int
    within: int
    expected: float
    measured: float
    now: Interval | None

    @property
    def tokens_per_cycle(self) -> float:
        return self.tokens / self.cycles

    @property
    def error(self) -> float:
        """Of what was expected, as a share of what was measured."""
        return self.expected / self.measured - 1


def compare(runs: Sequence[Trial], settings: Sequence[Setting]) -> tuple[Compared, ...]:
    """By dial, the fastest first."""
    ways = dict[tuple[str, str, str], list[Trial]]()
    for run in runs:
        ways.setdefault((run.drafter, run.files, run.schedule), []).append(run)
    found = []
    for way, of_way in ways.items():
        same = [
            s
            for s in settings
            if s.exact and not s.before and (s.drafter, name_files(s.files), s.schedule) == way
        ]
        found += [_compared(group, same) for group in _alike(of_way)]
    return tuple(sorted(found, key=lambda one: (one.dials, -one.measured)))


def _alike(runs: Iterable[Trial]) -> list[list[Trial]]:
    """Groups of runs whose passes read as much, to ABOUT."""
    groups = list[list[Trial]]()
    for run in sorted(runs, key=lambda run: run.reads):
        if groups and run.reads <= (1 + ABOUT) * groups[-1][0].reads:
            groups[-1].append(run)
        else:
            groups.append([run])
    return groups


def _compared(group: Sequence[Trial], settings: Iterable[Setting]) -> Compared:
    """settings: of the same way."""
    first, reads = group[0], round(median(run.reads for run in group))
    told = [run for run in group if run.high]
    alike = [s for s in settings if abs(s.plan.bytes_per_pass - reads) <= ABOUT * reads]
    fastest = max(alike, key=lambda s: s.speed.middle, default=None)
    return Compared(
        dials=(min(run.dial for run in group), max(run.dial for run in group)),
        drafter=first.drafter,
        files=first.files,
        schedule=first.schedule,
        reads=reads,
        replies=len(group),
        cycles=sum(run.cycles for run in group),
        tokens=sum(run.tokens for run in group),
        told=len(told),
        within=sum(run.low <= run.speed <= run.high for run in told),
        expected=median(run.predicted for run in group),
        measured=sum(run.tokens for run in group) / sum(run.seconds for run in group),
        now=None if fastest is None else fastest.speed,
    )
