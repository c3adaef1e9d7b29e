"""What a drafted cycle is expected to give: tokens from acceptance, seconds from measured components."""

from __future__ import annotations

import statistics
from collections.abc import Iterable, Sequence
from dataclasses import dataclass

from benchmarks.common import Row


@dataclass(frozen=True)
class Costs:
    """Seconds, measured at one dial: fixed + steps x step for drafting, line over nodes for a pass."""

    fixed: float
    step: float
    verify: float  # of one node
    node: float  # of each further one

    @staticmethod
    def fit(cycles: Iterable[Row]) -> Costs:
        """Straight lines through the medians by number of steps, and of nodes.

        `cycles` as a worker reports them; they need two different numbers of steps.
        """
        rows = [c for c in cycles if c["steps"]]
        fixed, step = line(medians(rows, "steps", "draft"))
        verify, node = line(medians(rows, "nodes", "verify"))
        return Costs(max(fixed, 0.0), step, verify + node, max(node, 0.0))

    def cycle(self, steps: int) -> float:
        """Of drafting a chain of so many steps and verifying it."""
        return self.fixed + steps * self.step + self.verify + steps * self.node


def expected_tokens(probability: float, steps: int) -> float:
    """Of a cycle: the bonus token and the accepted beginning of a chain, 1 + p + p^2 + ... + p^steps."""
    return sum(probability**k for k in range(steps + 1))


def best_steps(costs: Costs, probability: float, most: int = 16) -> int:
    """The chain length with the most expected tokens a second."""
    return max(range(1, most + 1), key=lambda n: expected_tokens(probability, n) / costs.cycle(n))


def medians(rows: Sequence[Row], by: str, what: str) -> dict[int, float]:
    """Median of `what` for each value of `by`."""
    values: dict[int, list[float]] = {}
    for row in rows:
        values.setdefault(row[by], []).append(row[what])
    return {key: statistics.median(group) for key, group in values.items()}


def line(points: dict[int, float]) -> tuple[float, float]:
    """(value at 0, slope) of the least-squares line."""
    if len(points) < 2:
        raise ValueError(f"a line needs two points, not {len(points)}")
    slope, intercept = statistics.linear_regression(list(points), list(points.values()))
    return intercept, slope
