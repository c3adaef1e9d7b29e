"""What a conversation believes of acceptance, and when it begins to do so anew. Needs no torch.

Much evidence is right about text like before, and slow about any other. So a second belief, of the last few
cycles alone, runs along, and as soon as these explain themselves much better than all that was learned does,
that counts no more than they: the text is another. (A sequential likelihood-ratio test: Page, "Continuous
inspection schemes", 1954. In the worlds of `tests/test_controller.py`, after 60 cycles: a substitute that is
suddenly right half as often loses 13 % of the best speed over the next 60 cycles, not 21; what one loses that
is never right has a bound in any case, the controller's credit. Where nothing changes nothing is lost.)
"""

from __future__ import annotations

from math import ceil, log

import numpy as np

from edgespec.control.estimates import MEMORY, STEPS, Chances, Yield
from edgespec.control.notes import Notes
from edgespec.core.acceptance import Outcome
from edgespec.core.sampling import FloatArray
from edgespec.core.tree import TokenTree

LATE = 22  # cycles' fading in a cycle: about the last four count
NEWS = 3.0  # nats by which the late cycles' belief must have been the better one
LEFT = 2.0  # cycles' worth of evidence that is left then


class Beliefs:
    """Chances of acceptance, and what drafts give by them. A conversation's own; fading by cycle."""

    def __init__(self) -> None:
        self.chances, self.gives = Chances(), Yield()
        self.begin_anew()

    def begin_anew(self) -> None:
        """What comes now may be another text."""
        self._late = Chances()  # the same, of late cycles alone
        self._news = 0.0

    def fade(self, cycles: int = 1) -> None:
        self.chances.fade(cycles)
        self.gives.fade(cycles)

    def learn(self, steps: int, tree: TokenTree, outcome: Outcome) -> None:
        """What became of a tree of `steps`."""
        path = outcome.path
        better = self._late.likelihood(tree, path) - self.chances.likelihood(tree, path)
        self._news = max(self._news + better, 0.0)
        self.chances.add(tree, path)
        self.gives.add(steps, tree, self.chances.scores(tree), outcome.accepted)
        self._late.fade(LATE)
        self._late.add(tree, path)
        if self._news > NEWS:
            self.fade(max(0, ceil(log(LEFT / self.chances.cycles) / log(MEMORY))))
            self._news = 0.0

    def worth(self, prepared: TokenTree, tokens: FloatArray, width: int) -> tuple[float, int, int]:
        """What a prepared tree is expected to give, the bonus token included; the passes that give as much by
        `tokens` [len(STEPS)], no more than it is deep; and which of STEPS gets as far, so that another pass,
        at `width` ends, would gain as much."""
        if len(prepared) == 1:
            return float(tokens[0]), 0, 0
        chances, kept = np.exp(self.chances.scores(prepared)), self.gives.kept
        given = 1 + kept * float(chances[1:].sum())
        found = max(int(np.searchsorted(tokens, given, side="right")) - 1, 0)
        named = np.bincount(prepared.parents[1:], chances[1:], minlength=len(prepared))  # below each node
        more = np.maximum(chances * self.chances.after(prepared.depths) - named, 0.0)
        ends = np.sort(np.where(prepared.open, more, 0.0))
        gain = kept * float(ends[::-1][:width].sum())
        slopes = np.diff(tokens) / np.diff(STEPS)
        even = int(np.argmax(np.append(slopes, 0.0) <= gain))
        return given, min(int(STEPS[found]), int(prepared.depths.max())), even

    def notes(self) -> Notes:
        return {"chances": self.chances.notes(), "gives": self.gives.notes()}

    def recall(self, notes: Notes) -> None:
        """Raises ValueError, TypeError or KeyError, in the midst of it."""
        self.chances.recall(notes["chances"])
        self.gives.recall(notes["gives"])
