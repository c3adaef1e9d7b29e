"""How many threads a run trains with: all, or fewer while other programs keep cores busy.

torch shares its work out in equal parts, and all threads wait for the slowest: one that shares its core with
another program holds up the rest at each of hundreds of operations a step (a quarter of the speed is left of
two threads, half of it to one alone). So where steps have become slow, one is made with a thread less, and
what is faster is kept; now and then a step shows whether it still is.
"""

from __future__ import annotations

import os

SHORT = 0.2  # seconds of a step, below which its speed says little
SLOW = 0.75  # of the best speed with as many threads: somebody else computes
FORGET = 0.99  # of the best speed is left after each step: a machine may become slower for good
BETTER = 1.1  # times the speed of the steps before and behind: worth a thread less
AS_GOOD = 0.97  # of it: worth a thread more
OTHERS = 0.7  # processes that want to run, on average: more than what only waits
SOON, LATE = 4, 16  # steps between two trials: after one that paid, and after several that did not


def busy() -> bool:
    """Whether others have computed here in the last minute, as far as the system says."""
    return hasattr(os, "getloadavg") and os.getloadavg()[0] > OTHERS


class Threads:
    """Their number for the next step, by the speed of those before."""

    def __init__(self, most: int, beside: bool = False) -> None:
        """`most`: threads that there are to use; with 1 there is nothing to choose. `beside`: others compute
        already, so that a thread less is tried at once."""
        self.most = self.settled = self.count = most
        self._beside = beside
        self._best: dict[int, float] = {}  # speed, by threads
        self._last = 0.0  # speed of the last step with the settled number
        self._tried: tuple[int, float] | None = None  # another number, and its speed
        self._steps = self._wait = SOON
        self._begun = False

    def took(self, seconds: float, tokens: float) -> None:
        """A step with `count` took so long, for so many tokens."""
        if not self._begun or seconds < SHORT:  # the first one loads and compiles
            self._begun, self.count, self._tried = True, self.settled, None
            return
        speed = tokens / seconds
        self._best[self.count] = max(speed, FORGET * self._best.get(self.count, 0.0))
        if self.count != self.settled:  # how fast it was shows beside the next one
            self._tried, self.count = (self.count, speed), self.settled
        elif self._tried is not None:
            self._judge(*self._tried, max(speed, self._last))
        else:
            self._steps -= 1
            self.count = self._next(speed)
            self._last, self._beside = speed, False

    def _judge(self, count: int, speed: float, beside: float) -> None:
        """`beside`: the better of the steps before and behind that one, with the settled number."""
        pays = speed > (BETTER if count < self.settled else AS_GOOD) * beside
        self._wait = SOON if pays else min(2 * self._wait, LATE)
        self.settled = self.count = count if pays else self.settled
        self._last, self._tried, self._steps = beside, None, self._wait

    def _next(self, speed: float) -> int:
        due = self._steps <= 0
        if self.settled > 1 and (self._beside or (due and speed < SLOW * self._best[self.settled])):
            return self.settled - 1
        if self.settled < self.most and due:
            return self.settled + 1
        return self.settled
