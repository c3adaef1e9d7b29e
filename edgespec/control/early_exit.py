"""What a target's early exit was found to be worth, and where it should lie (Mirror-SD). Needs no torch."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from edgespec.control.estimates import LEAN, MEMORY
from edgespec.control.notes import Notes, as_notes, from_notes
from edgespec.control.overlap import deepest_exit

TRIED = 8  # passes, in one of which what is not known to be better is tried
KNOWN = 3.0  # passes' worth of evidence below which nothing is known


class Trust:
    """How much of what is believed of an outcome is the exit's word, the rest being the drafter's: the weight
    in a mixture of both distributions, by expectation maximisation over the tokens that came; fading."""

    def __init__(self) -> None:
        self._exits = self._all = 0.0

    @property
    def share(self) -> float:
        return (self._exits + LEAN / 2) / (self._all + LEAN)

    def learn(self, told: float, drafted: float) -> None:
        """The probabilities that the exit and the drafter had given to a token that came."""
        from_exit, mixed = self.share * told, self.share * told + (1 - self.share) * drafted
        if mixed > 0:
            self._exits, self._all = self._exits * MEMORY + from_exit / mixed, self._all * MEMORY + 1


class OverlapBudget:
    """Where the exit should lie: as late as what is then drafted still stays hidden (Appendix E.5)."""

    def __init__(self, layers: int) -> None:
        """Of the target."""
        self._layers = np.zeros(layers)  # seconds, fading sums
        self._passes = self._nodes = self._draft = 0.0

    def add(self, layers: Sequence[float], nodes: int, draft: float) -> None:
        """A pass: the seconds of each layer [N], and those in which so many nodes were drafted."""
        self._layers = self._layers * MEMORY + layers
        self._passes = self._passes * MEMORY + 1
        self._nodes, self._draft = self._nodes * MEMORY + nodes, self._draft * MEMORY + draft

    def layers(self, nodes: int) -> int | None:
        """How many layers should lie before it, with so many nodes to draft behind it: at least one. None =
        nothing was drafted yet, so nobody knows how long it takes."""
        if not self._nodes:
            return None
        wanted = nodes * self._draft / self._nodes
        return deepest_exit((self._layers / self._passes).tolist(), wanted) or 1


class Asking:
    """Whether to ask the exit, by what passes with drafting in their waits were measured to save, asked and
    not: seconds of drafting that what was prepared is worth, without those that the pass took longer than by
    itself. Fading; no clock and no chance.

    It is asked where that is known to pay, by more than both means may be off; and in one of `TRIED` passes
    the other way round, so that a change is noticed.
    """

    def __init__(self) -> None:
        # [not asked, asked] passes, seconds that they saved, seconds that they lost, squares of these.
        self._sums = np.zeros((2, 4))
        self._passes = 0
        self._latest: tuple[bool, float] | None = None  # pass: whether it was asked, and seconds late

    def choose(self) -> bool:
        """For the next pass."""
        self._passes += 1
        return self.pays != (self._passes % TRIED == 0)

    @property
    def pays(self) -> bool:
        if self._sums[:, 0].min() < KNOWN:
            return False
        passes, saved, lost, squares = self._sums.T
        means = (saved - lost) / passes
        off = np.maximum(squares / passes - means**2, 0.0) / passes
        return float(means[1] - means[0]) > float(np.sqrt(off.sum()))

    def learn(self, saved: float | None, asked: bool, late: float | None) -> None:
        """A cycle: what had been prepared in the pass before saved so many seconds (None: nobody looked), and
        its own pass took `late` seconds longer than by itself (None: nothing was drafted in its waits)."""
        if saved is not None and self._latest is not None:
            gain = saved - self._latest[1]
            self._sums[int(self._latest[0])] += 1, max(gain, 0.0), max(-gain, 0.0), gain**2
        self._latest = None if late is None else (asked, late)

    def fade(self, cycles: int = 1) -> None:
        self._sums *= MEMORY**cycles

    def notes(self) -> Notes:
        return {"sums": as_notes(self._sums)}

    def recall(self, notes: Notes) -> None:
        """Raises ValueError, TypeError or KeyError."""
        self._sums = from_notes(notes["sums"], 2, 4)
