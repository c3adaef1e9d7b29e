"""What drafts cost that several conversations make for one pass. Needs no torch.

    seconds of a step    first + each x conversations

A draft model that runs each one's rows by itself has no `first`; one forward for all of them (SpecFormer, a
level of EAGLE's trees) is hardly anything else: by the time that a draft of one conversation takes, none of
sixteen would begin. So as long as different numbers were not timed, all is believed to be `first`, and the
credit (`control.shares`) to be needed for as much as if nothing was.
"""

from __future__ import annotations

from edgespec.control.costs import PAUSE
from edgespec.control.estimates import MEMORY

SURE = 4.0  # timings, beyond which one that takes `PAUSE` times as long is a pause of the machine
ALIKE = 0.05  # relative variance of their numbers below which timings do not tell the two apart


class Cohort:
    """See the module. Timings fade, the line through them is that of least squares."""

    def __init__(self) -> None:
        self._weight = self._number = self._square = self._seconds = self._product = 0.0  # sums

    @property
    def known(self) -> bool:
        return self._weight > 0

    def add(self, number: int, step: float) -> None:
        """So many conversations took `step` seconds together for each step."""
        if self._weight > SURE:
            step = min(step, PAUSE * self.together(number))
        kept = MEMORY * self._weight, MEMORY * self._number, MEMORY * self._square
        self._weight, self._number, self._square = kept[0] + 1, kept[1] + number, kept[2] + number**2
        self._seconds = MEMORY * self._seconds + step
        self._product = MEMORY * self._product + number * step

    def together(self, number: int) -> float:
        """Seconds of a step of so many."""
        first, each = self.line(0.0)
        return first + each * number

    @property
    def _variance(self) -> float:
        """Of their numbers, relative to the mean's square."""
        return self._weight * self._square / self._number**2 - 1

    @property
    def told(self) -> bool:
        """Which of it is `first`."""
        return self.known and self._variance > ALIKE

    def line(self, unknown: float) -> tuple[float, float]:
        """Seconds of a step: once, and for each conversation. unknown: the share of the latter while timings
        do not tell the two apart."""
        if not self.known:
            return 0.0, 0.0
        number, seconds = self._number / self._weight, self._seconds / self._weight
        each = unknown * seconds / number
        if self.told:
            each = (self._product / self._weight - number * seconds) / (self._variance * number**2)
            each = min(max(each, 0.0), seconds / number)
        return seconds - each * number, each
