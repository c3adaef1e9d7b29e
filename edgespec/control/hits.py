"""What drafting while the target verifies was measured to give. Needs no torch."""

from __future__ import annotations

import numpy as np

from edgespec.control.estimates import HOPE, LEAN, MEMORY
from edgespec.control.notes import Notes, as_notes, from_notes
from edgespec.core.sampling import FloatArray


class Hits:
    """How often an outcome had been prepared for, and how much drafting that saved. A conversation's own;
    fading by cycle."""

    def __init__(self) -> None:
        self._lookups = self._hits = self._saved = 0.0

    def fade(self, cycles: int = 1) -> None:
        keep = MEMORY**cycles
        self._lookups, self._hits, self._saved = (
            self._lookups * keep,
            self._hits * keep,
            self._saved * keep,
        )

    def add(self, hit: bool, saved: float) -> None:
        """An outcome was looked up; what was there would have taken `saved` seconds to draft."""
        self._lookups += 1
        self._hits += hit
        self._saved += saved if hit else 0.0

    def notes(self) -> Notes:
        return {"sums": as_notes(np.array([self._lookups, self._hits, self._saved]))}

    def recall(self, notes: Notes) -> None:
        """Raises ValueError, TypeError or KeyError."""
        lookups, hits, saved = from_notes(notes["sums"], 3).tolist()
        self._lookups, self._hits, self._saved = lookups, min(hits, lookups), saved

    @property
    def rate(self) -> float:
        """How often an outcome has been prepared for."""
        return (self._hits + LEAN * HOPE) / (self._lookups + LEAN)

    def tokens_per_second(self, tokens: FloatArray, passes: FloatArray, drafts: FloatArray) -> float:
        """The best of cycles on the whole (SSD, Theorem 7, in seconds), where after a hit what was prepared
        is there for nothing, and may be drafted on, and a miss is drafted for from its beginning.

        tokens, passes, drafts: [choices > 0] what such a draft gives, and seconds of its pass and of itself:
        the first is a draft of no passes, which takes no less after a hit.
        Before anything is known, half a pass is hoped to be saved: the other half goes to other outcomes.
        """
        hope = min(float(passes[0]) / 2, float(drafts.max()))
        saved = (self._saved + LEAN * hope) / (self._hits + LEAN)
        hit, miss = passes + np.maximum(drafts - saved, drafts[0]), passes + drafts
        given = self.rate * tokens[:, None] + (1 - self.rate) * tokens  # [after a hit, after a miss]
        taken = self.rate * hit[:, None] + (1 - self.rate) * miss
        return float((given / taken).max())
