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


def _prepared(costs: CostModel, wait: float, spread: float) -> tuple[float, int]:
    """How often an outcome has been prepared for in so long a wait, and how many levels its tree has then:
    half of what is drafted ahead is for outcomes that do not come."""
    step = costs.waiting_step or costs.step
    passes = min(AHEAD, int(wait / step)) if step else AHEAD
    return expected_hits(passes, spread), passes // 2


def _ssd(costs: CostModel, tokens: Guess, nodes: int, steps: int, spread: float = SPREAD) -> Rate:
    """SSD, Theorem 7: the cache is filled in the waits of a pass. What was prepared is drafted on to as many
    levels as are drafted after a miss, between two passes."""
    alone = costs.cycle(nodes=nodes)
    hits, found = _prepared(costs, alone - costs.working(nodes), spread)
    primary = Drafted(tokens(max(found, steps), nodes), costs.cycle(max(0, steps - found), nodes) / alone)
    fallback = Drafted(tokens(steps, nodes), max(0.0, costs.cycle(steps, nodes) / alone - 1))
    given = hits * primary.tokens + (1 - hits) * fallback.tokens
    return Rate(given, given * alone / speedup(hits, primary, fallback))


def _mirror(costs: CostModel, tokens: Guess, nodes: int, steps: int, spread: float = SPREAD) -> Rate:
    """Mirror-SD, Equation 10, with an exit half-way: what comes behind it hides the drafting."""
    alone = costs.cycle(nodes=nodes)
    wait = (alone - costs.working(nodes)) / 2
    hits, found = _prepared(costs, wait, spread)
    late = costs.cycle(steps - hits * min(found, steps), nodes) - alone
    hidden = Mirrored(alone / 2, alone / 2, draft=wait, early=LAYER_SECONDS)
    given = hits * tokens(max(found, steps), nodes) + (1 - hits) * tokens(steps, nodes)
    return Rate(given, hidden.step + late)
