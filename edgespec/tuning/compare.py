"""What was predicted beside what was measured, setting by setting."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from statistics import median

from edgespec.tuning.predict import Interval, Setting
from edgespec.tuning.runs import Trial


@dataclass(frozen=True)
class Compared:
    """Replies under one setting; tokens a second. expected: before they ran (the median). measured: of all
    together. now: as it is predicted by what they have shown; None where this setting is not among those
    that were compared."""

    dial: int
    drafter: str
    schedule: str
    replies: int
    cycles: int
    tokens: int
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
    groups = dict[tuple[int, str, str], list[Trial]]()
    for run in runs:
        groups.setdefault((run.dial, run.drafter, run.schedule), []).append(run)
    now = dict[tuple[int, str, str], Interval]()
    for s in sorted(settings, key=lambda s: -s.speed.middle):
        if s.exact and not s.before:
            now.setdefault((s.dial, s.drafter, s.schedule), s.speed)
    found = [
        Compared(
            *key,
            replies=len(group),
            cycles=sum(run.cycles for run in group),
            tokens=sum(run.tokens for run in group),
            expected=median(run.predicted for run in group),
            measured=sum(run.tokens for run in group) / sum(run.seconds for run in group),
            now=now.get(key),
        )
        for key, group in groups.items()
    ]
    return tuple(sorted(found, key=lambda one: (one.dial, -one.measured)))
