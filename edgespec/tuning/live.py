"""Predictions at any dial, for a view in which it moves: a plan takes milliseconds, once."""

from __future__ import annotations

from edgespec.tuning.predict import Setting
from edgespec.tuning.result import Row
from edgespec.tuning.search import MORE, SettingSearch, middle

DIALS = 256  # that are remembered: each holds its plans
GRAIN = 10**6  # bytes: dials are whole megabytes, as they are typed

Way = tuple[str, str, tuple[tuple[str, int], ...]]
"""A drafter, a schedule, and the options that make it another than its like."""


def way_of(setting: Setting) -> Way:
    return setting.drafter, setting.schedule, tuple(setting.set_.items())


class Live:
    """What one model should do at a dial, by its files' own precision.

    least, most: dials between which something runs, in bytes. ways: all that run at some dial, in an order
    that is the same at all of them; plain decoding is the first.

    Raises BudgetError when nothing runs in all that the machine has.
    """

    def __init__(self, search: SettingSearch) -> None:
        self._search = search
        self._rows = dict[int, Row]()
        self.most = search.machine.total // GRAIN * GRAIN
        self.least = self._least()
        found = [s for dial in (self.most, self.least) for s in self.row(dial).settings]
        found.sort(key=lambda s: s.drafter != "none")
        self.ways: tuple[Way, ...] = tuple(dict.fromkeys(map(way_of, found)))

    def row(self, dial: int) -> Row:
        """What runs at it; without what one more GB would give, which is `more` of a setting."""
        if dial not in self._rows:
            while len(self._rows) >= DIALS:
                del self._rows[next(iter(self._rows))]  # the oldest
            self._rows[dial] = self._search.at(dial, lossy=False)
        return self._rows[dial]

    def setting(self, dial: int, way: Way | None) -> Setting | None:
        """Of one way, or the fastest that is there; None where that does not fit."""
        row = self.row(dial)
        return row.best if way is None else next((s for s in row.settings if way_of(s) == way), None)

    def more(self, setting: Setting) -> float | None:
        """How many times as fast it is with 1 GB more: the fastest beside the fastest there, any other beside
        its own way where that is left; None = the machine has no more."""
        if setting.dial + MORE > self.most:
            return None
        way = None if setting is self.row(setting.dial).best else way_of(setting)
        then = self.setting(setting.dial + MORE, way) or self.row(setting.dial + MORE).best
        return None if then is None else max(1.0, middle(then) / middle(setting))

    def _least(self) -> int:
        """The refusal of a dial names the smallest one that works."""
        dial = GRAIN
        while self.row(dial).best is None:
            assert self._search.refused is not None
            smallest = -(-self._search.refused.smallest // GRAIN) * GRAIN
            if smallest <= dial or smallest > self.most:
                raise self._search.refused
            dial = smallest
        return dial
