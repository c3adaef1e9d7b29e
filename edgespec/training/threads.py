"""How many threads a run trains with: all, or fewer while other programs keep cores busy.

torch shares its work out in equal parts, and all threads wait for the slowest: one that shares its core with
another program holds up the rest at each of hundreds of operations a step (a quarter of the speed is left of
two threads, half of it to one alone). So where steps have become slow, one is made with a thread less, and
what is faster is kept; now and then a step shows whether it still is.
"""

from __future__ import annotations

SHORT = 0.2  # seconds of a step, below which its speed says little
SLOW = 0.75  # of the best speed with as many threads: somebody else computes
BETTER = 1.1  # times the speed: worth another number of threads
SOON, LATE = 4, 16  # steps between two trials: after one that paid, and after several that did not


class Threads:
    """Their number for the next step, by the speed of those before."""

    def __init__(self, most: int) -> None:
        """`most`: threads that there are to use; with 1 there is nothing to choose."""
        self.most = self.settled = self.count = most
        self._best: dict[int, float] = {}  # speed, by threads
        self._last = 0.0  # speed of the last step with the settled number
        self._steps = self._wait = SOON
        self._begun = False

    def took(self, seconds: float, tokens: float) -> None:
        """A step with `count` took so long, for so many tokens."""
        if not self._begun or seconds < SHORT:  # the first one loads and compiles
            self._begun, self.count = True, self.settled
            return
        speed = tokens / seconds
        first = not self._best
        self._best[self.count] = max(speed, self._best.get(self.count, 0.0))
        if self.count != self.settled:
            pays = speed > BETTER * self._last
            self._wait = SOON if pays else min(2 * self._wait, LATE)
            self.settled = self.count if pays else self.settled
            self._last = speed if pays else self._last
            self._steps = self._wait
        else:
            self._last = speed
            self._steps -= 1
        self.count = self._next(speed, first)

    def _next(self, speed: float, first: bool) -> int:
        """`first`: nobody knows yet whether others compute."""
        due = self._steps <= 0
        if self.settled > 1 and (first or (due and speed < SLOW * self._best[self.settled])):
            return self.settled - 1
        if self.settled < self.most and due:
            return self.settled + 1
        return self.settled
