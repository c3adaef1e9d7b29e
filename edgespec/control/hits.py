"""What drafting while the target verifies was measured to give. Needs no torch."""

from __future__ import annotations

import numpy as np

from edgespec.control.estimates import HOPE, LEAN, MEMORY
from edgespec.core.sampling import FloatArray


class Hits:
    """How often an outcome had been prepared for, and what the cycles after such hits gave and took. A
    conversation's own; fading by cycle."""

    def __init__(self) -> None:
        self._lookups = self._hits = 0.0
        self._tokens = self._seconds = 0.0  # of cycles after hits

    def fade(self, cycles: int = 1) -> None:
        keep = MEMORY**cycles
        self._lookups, self._hits = self._lookups * keep, self._hits * keep
        self._tokens, self._seconds = self._tokens * keep, self._seconds * keep

    def add(self, hit: bool, tokens: float, seconds: float) -> None:
        """A cycle whose tree was looked up: the tokens it was expected to give, and its time."""
        self._lookups += 1
        if hit:
            self._hits += 1
            self._tokens += tokens
            self._seconds += seconds

    @property
    def rate(self) -> float:
        """How often an outcome has been prepared for."""
        return (self._hits + LEAN * HOPE) / (self._lookups + LEAN)

    def tokens_per_second(self, tokens: FloatArray, passes: FloatArray, drafts: FloatArray) -> FloatArray:
        """[choices] of cycles on the whole, where misses are drafted for (SSD, Theorem 7, in seconds).

        tokens, passes, drafts: [choices] what such a draft gives, and the seconds of its pass and of itself.
        A hit gives and takes what was measured. Before that, what the best draft gives, or the longest that
        fits into half a pass (the other half goes to other outcomes), in its pass's time.
        """
        best = int(np.argmax(tokens / (passes + drafts)))
        best = max([best, *np.flatnonzero(drafts <= passes[0] / 2).tolist()])
        hits = self._hits + LEAN
        given = (self._tokens + LEAN * tokens[best]) / hits
        taken = (self._seconds + LEAN * passes[best]) / hits
        miss = 1 - self.rate
        rates: FloatArray = (self.rate * given + miss * tokens) / (
            self.rate * taken + miss * (passes + drafts)
        )
        return rates
