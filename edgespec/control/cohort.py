"""What drafts cost that several conversations make for one pass. Needs no torch.

    seconds of a step    first + each x conversations

A draft model that runs each one's rows by itself has no `first`; one forward for all of them (SpecFormer, a
level of EAGLE's trees) is hardly anything else. Where sixteen converse, a draft of one by itself may take
longer than it is worth though it would be cheap for all: whoever drafts first is taken to pay its share of
`first`, at first of all, and when different numbers have told the two apart, or none came, of those who
drafted together of late, and were held back by caution. What has not been timed for long is forgotten, and
tried again.
"""

from __future__ import annotations

import numpy as np

from edgespec.control.curve import PAUSE
from edgespec.control.estimates import MEMORY

SURE = 4.0  # timings, beyond which one that takes `PAUSE` times as long is a pause of the machine
HOPES = 16.0  # timings of one number, beyond which no others are hoped for
CAREFUL = 1 / 3  # of what a conversation's step took on average does another one's take at least
FORGOTTEN = 0.05  # weight of timings that are as good as none
ALIKE = 0.05  # relative variance of their numbers below which timings do not tell the two apart


class Cohort:
    """See the module. Timings fade, and the line through them is that of least squares."""

    def __init__(self) -> None:
        self._sums = np.zeros(5)  # of 1, n, n^2, seconds, n x seconds
        self._willing = 0.0  # the largest n of late, with those held back; fading

    @property
    def known(self) -> bool:
        return bool(self._sums[0] > FORGOTTEN)

    @property
    def _variance(self) -> float:
        """Of n, relative to its mean's square."""
        weight, number, square = self._sums[:3]
        return float(weight * square / number**2 - 1)

    @property
    def told(self) -> bool:
        """Which of it is `first`."""
        return self.known and self._variance > ALIKE

    def fade(self) -> None:
        """A pass later."""
        self._sums *= MEMORY
        self._willing *= MEMORY

    def add(self, number: int, step: float, held: int = 0) -> float:
        """So many conversations took `step` seconds together for each step; others, perhaps willing, were
        held back, so that this is found out by a few. Returns the seconds that it counts as: a pause of the
        machine is nobody's fault."""
        if self._sums[0] > SURE:
            step = min(step, PAUSE * self.together(number))
        self._sums += (1, number, number**2, step, number * step)
        self._willing = max(self._willing, number + held)
        return step

    def line(self, unknown: float) -> tuple[float, float]:
        """Seconds of a step: once, and for each conversation. unknown: the share of the latter while timings
        do not tell the two apart."""
        if not self.known:
            return 0.0, 0.0
        _, number, _, seconds, product = (self._sums / self._sums[0]).tolist()
        each = unknown * seconds / number
        if self.told:
            each = (product - number * seconds) / (self._variance * number**2)
            each = min(max(each, 0.0), seconds / number)
        return seconds - each * number, each

    @property
    def joining(self) -> float:
        """Seconds of a step that another one may take who joins in: timings scatter, and two of few numbers
        may say that it takes nothing."""
        return max(self.line(1.0)[1], CAREFUL * float(self._sums[3] / self._sums[1])) if self.known else 0.0

    def together(self, number: int) -> float:
        """Seconds of a step of so many."""
        first, each = self.line(0.0)
        return first + each * number

    def share(self, conversations: int) -> float:
        """Seconds of a step for who drafts first, of so many."""
        first, each = self.line(0.0)
        hopes = not self.told and self._sums[0] <= HOPES
        return each + first / (conversations if hopes else min(max(self._willing, 1.0), conversations))
