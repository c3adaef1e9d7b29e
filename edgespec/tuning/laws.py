"""The laws of docs/tuning.md: tokens and seconds of a cycle, by the schedule."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

from edgespec.control.overlap import Drafted, Mirrored, speedup
from edgespec.offload.plan.costs import LAYER_SECONDS, CostModel
from edgespec.tuning.acceptance import SPREAD, expected_hits

AHEAD = 12  # passes of drafting that are ever made in the waits of a pass

Guess = Callable[[int, int], float]
"""Tokens of a cycle, by levels and nodes of its tree."""


@dataclass(frozen=True)
class Rate:
    """Tokens and seconds of a cycle."""

    tokens: float
    seconds: float

    @property
    def speed(self) -> float:
        return self.tokens / self.seconds

    def times(self, factor: float) -> Rate:
        """So many times as fast."""
        return Rate(self.tokens, self.seconds / factor)


def plain_rate(costs: CostModel) -> Rate:
    return Rate(1.0, costs.cycle())


def rate_of(
    schedule: str, costs: CostModel, tokens: Guess, nodes: int, steps: int, spread: float = SPREAD
) -> Rate:
    """By the law of the schedule; where one that goes on drafting does not pay, it drafts in time only.
    `spread`: see `acceptance.expected_hits`."""
    serial = Rate(tokens(steps, nodes), costs.cycle(steps if costs.step else 0, nodes))
    if schedule == "serial":
        return serial
    law = {"ssd": _ssd, "mirror": _mirror}[schedule]
    return max(serial, law(costs, tokens, nodes, steps, spread), key=lambda rate: rate.speed)


def _waits(costs: CostModel, nodes: int) -> tuple[float, float]:
    """Seconds of a pass, and those of it in which it waits for flash."""
    working = costs.working(nodes)
    return max(costs.io, working), max(0.0, costs.io - working)


def _ahead(costs: CostModel, wait: float) -> int:
    """Passes of drafting that fit so long a wait."""
    return min(AHEAD, int(wait / costs.step)) if costs.step else AHEAD


def _ssd(costs: CostModel, tokens: Guess, nodes: int, steps: int, spread: float = SPREAD) -> Rate:
    """SSD, Theorem 7: the cache is filled in the waits of a pass; after a miss the drafter drafts then. Half
    of what is drafted ahead is for outcomes that do not come."""
    seconds, wait = _waits(costs, nodes)
    passes = _ahead(costs, wait)
    hits = expected_hits(passes, spread)
    primary = Drafted(tokens(passes // 2, nodes), 1.0)
    fallback = Drafted(tokens(steps, nodes), costs.step * steps / seconds)
    given = hits * primary.tokens + (1 - hits) * fallback.tokens
    return Rate(given, given * seconds / speedup(hits, primary, fallback))


def _mirror(costs: CostModel, tokens: Guess, nodes: int, steps: int, spread: float = SPREAD) -> Rate:
    """Mirror-SD, Equation 10, with an exit half-way: what comes behind it hides the drafting."""
    seconds, wait = _waits(costs, nodes)
    passes = _ahead(costs, wait / 2)
    hits = expected_hits(passes, spread)
    step = Mirrored(seconds / 2, seconds / 2, draft=costs.step * passes, early=LAYER_SECONDS).step
    given = hits * tokens(passes // 2, nodes) + (1 - hits) * tokens(steps, nodes)
    return Rate(given, step + (1 - hits) * costs.step * steps)
