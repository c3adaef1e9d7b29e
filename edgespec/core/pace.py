"""How much of newcomers' prompts goes beside the trees of those who are there.

A prompt's block is computed in one piece, or its bits would be others; but its layers need not be of one
pass:

    pass        1          2          3
    trees     0 ... 31   0 ... 31   0 ... 31     all layers in each pass
    a block   0 ... 11   12 ... 23  24 ... 31    as many as make the pass hardly longer

How many these are is found out: a pass that streams hides far more than one that computes all the time. What
a pass takes longer for having a block at all, however small, is spent in each of them: where that is more
than what passes may grow by, they may take as much again, or newcomers and those who are there would lose
most of their time to it. The first in line goes on by one layer at least, so nobody starves. Needs no torch.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Sequence
from statistics import median

import numpy as np

from edgespec.core.batch import PrefillBlock

GROWTH = 0.1  # of a pass's time that blocks may add
LATEST = 9  # passes without blocks, whose median is their time
BESIDE = 32  # latest passes with blocks
FEW = 3  # of these, before one tries more than passes may grow by


class Pace:
    """Of a target's passes."""

    def __init__(self, layers: int) -> None:
        self.layers = layers
        self._alone = deque[float](maxlen=LATEST)  # seconds of passes over trees
        self._beside = deque[tuple[int, float]](maxlen=BESIDE)  # rows times layers of blocks, and growth
        self._most = 0.0  # rows times layers that a pass may have of blocks
        self._given = 0  # in this pass

    def allot(self, blocks: Sequence[PrefillBlock]) -> list[PrefillBlock]:
        """Those of these blocks that the next pass takes, beside trees; how far, `until` says."""
        taken, left = list[PrefillBlock](), self._most
        for block in blocks:
            layers = min(max(int(left / len(block)), not taken), self.layers - block.at)
            if layers:
                stop = block.at + layers
                block.until = stop if stop < self.layers else None
                left -= layers * len(block)
                taken.append(block)
        self._given = int(self._most - left)
        return taken

    def record(self, seconds: float, trees: bool, blocks: bool) -> None:
        """A pass over trees, over blocks, or over both, as they were allotted."""
        if trees and not blocks:
            self._alone.append(seconds)
        elif trees and self._alone:
            growth = seconds / median(self._alone) - 1
            self._beside.append((self._given, growth))
            given = [given for given, _ in self._beside]
            own = self._own() if max(given) >= 2 * min(given) else 0.0
            may, rest = max(GROWTH, own), max(growth - own, GROWTH / 2)
            if max(given) < 2 * min(given) and growth > GROWTH and len(given) >= FEW:
                self._most = 2.0 * self._given  # what of it is each pass's own?
            elif rest > may or self._given > self._most / 2:  # else it was not tried out
                self._most = self._given * may / rest

    def _own(self) -> float:
        """Of a pass's time, what it takes longer for having blocks, however small."""
        given, growth = np.array(self._beside).T
        slope, own = np.polyfit(given, growth, 1)
        return float(max(own if slope > 0 else growth.mean(), 0.0))
