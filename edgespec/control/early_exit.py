"""What a target's early exit was found to be worth, and where it should lie (Mirror-SD). Needs no torch."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from edgespec.control.estimates import LEAN, MEMORY
from edgespec.control.overlap import deepest_exit


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
