"""How does speed depend on acceptance? Chains that are right with a set probability, measured and modelled.

    python -m benchmarks.set_acceptance --small DEMO --target models/7b-inflated \\
        --arms "substitute int4" --dials 8GB

`drafters.SetAcceptance` does the work of a real drafter. The model: (1 + p + ... + p^n) / (draft(n) +
pass(n + 1)), both costs from straight lines through the cycles.
"""

from __future__ import annotations

import statistics
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from benchmarks.arms import OWN, SMALL_MEMORY, Arm, Bench, drafting_arguments, middle, open_worker
from benchmarks.common import Row
from benchmarks.tables import Report
from edgespec.values import format_bytes

LENGTHS = (2, 3, 4, 6, 8, 10, 12, 16)  # of chains
PROBABILITIES = (0.5, 0.6, 0.7, 0.8, 0.9, 0.95, 0.97)
SET_CYCLES = 200  # of the small model, for tokens per cycle at set acceptance


@dataclass(frozen=True)
class Costs:
    """Seconds, measured at one dial: fixed + steps x step for drafting, line over nodes for a pass."""

    fixed: float
    step: float
    verify: float  # of one node
    node: float  # of each further one

    @staticmethod
    def fit(cycles: Sequence[Row]) -> Costs:
        """Straight lines through the medians by number of steps, and of nodes.

        `cycles` as a worker reports them; they need two different numbers of steps.
        """
        rows = [c for c in cycles if c["steps"]]
        fixed, step = line(rows, "steps", "draft")
        verify, node = line(rows, "nodes", "verify")
        return Costs(max(fixed, 0.0), step, verify + node, max(node, 0.0))

    def cycle(self, steps: int) -> float:
        """Of drafting a chain of so many steps and verifying it."""
        return self.fixed + steps * self.step + self.verify + steps * self.node


def line(rows: Sequence[Row], by: str, what: str) -> tuple[float, float]:
    """(value at 0, slope) of the least-squares line through the medians of `what` for each value of `by`."""
    at = sorted({row[by] for row in rows})
    if len(at) < 2:
        raise ValueError(f"a line needs two points, not {len(at)}")
    medians = [statistics.median(row[what] for row in rows if row[by] == value) for value in at]
    slope, intercept = statistics.linear_regression(at, medians)
    return intercept, slope


def expected_tokens(probability: float, steps: int) -> float:
    """Of a cycle: the bonus token and the accepted beginning of a chain, 1 + p + p^2 + ... + p^steps."""
    return sum(probability**k for k in range(steps + 1))


def best_steps(costs: Costs, probability: float, lengths: Sequence[int] = range(1, 17)) -> int:
    """The chain length with the most expected tokens a second."""
    return max(lengths, key=lambda n: expected_tokens(probability, n) / costs.cycle(n))


def chains(*steps: int, p: float = 0.9) -> Row:
    return {"kind": "set", "p": p, "steps": list(steps)}


def measure(bench: Bench, dial: int, arm: Arm) -> None:
    """Seconds a cycle do not depend on what is right, so one process runs chains of all lengths in turn;
    plain cycles before and after it."""
    stem = f"{format_bytes(dial)}/curve"
    for turn in range(bench.args.rounds):
        plain: tuple[Any, ...] = (bench.timed, dial, "none", {}, OWN, turn)
        bench.store.get(f"{stem}/plain before {arm.name}/{turn}", *plain)
        drafted = dial, arm.drafter, arm.big, chains(*LENGTHS), turn
        bench.store.get(f"{stem}/{arm.name}/{turn}", bench.timed, *drafted)
        bench.store.get(f"{stem}/plain after {arm.name}/{turn}", *plain)


def count(bench: Bench, arm: Arm, p: float, steps: int) -> Row:
    """Tokens per cycle at set acceptance, by whole stories of the small model."""
    with open_worker(bench.args.small, SMALL_MEMORY, arm.drafter, **arm.small) as worker:
        cycles = bench.cycles(worker, SET_CYCLES, chains(steps, p=p))["cycles"]
    return {"tau": sum(c["tokens"] for c in cycles) / len(cycles), "cycles": len(cycles)}


def curve(bench: Bench, dial: int) -> Report:
    name = format_bytes(dial)
    report = Report(f"Speed against set acceptance at {name}")
    for arm in bench.arms:
        if arm.drafter not in ("model", "substitute"):  # whose chains are drafted a node a step
            continue
        measure(bench, dial, arm)
        cycles = [c for row in bench.rounds(f"{name}/curve/{arm.name}") for c in row["cycles"]]
        beside = [
            middle(bench.rounds(f"{name}/curve/plain {when} {arm.name}")) for when in ("before", "after")
        ]
        known = [plain for plain in beside if plain is not None]
        if not known or not cycles:
            report.failed(arm.name, bench.store.rows[f"{name}/curve/{arm.name}/0"].get("error", ""))
            continue
        plain, costs = statistics.mean(known), Costs.fit(cycles)
        for p in PROBABILITIES:
            steps = best_steps(costs, p, LENGTHS)
            got = bench.store.get(f"set tokens/{arm.name}/{p}/{steps}", count, bench, arm, p, steps)
            each = [c["seconds"] for c in cycles if c["steps"] == steps]
            if not each or "tau" not in got:
                continue
            taken = statistics.mean(each)
            measured = plain * got["tau"] / taken
            modelled = plain * expected_tokens(p, steps) / costs.cycle(steps)
            report.add(
                {
                    "drafter's cost": arm.name,
                    "p": p,
                    "steps": steps,
                    "tokens a cycle": f"{got['tau']:.2f}",
                    "cycle, s": f"{taken:.2f}",
                    "× plain": f"{measured:.2f}",
                    "modelled": f"{modelled:.2f}",
                    "model is off by": f"{modelled / measured - 1:+.1%}",
                    "cycles timed": len(each),
                }
            )
        report.notes.append(
            f"{arm.name}: a chain of n costs {costs.fixed:.2f} + {costs.step:.3f} n s to draft and "
            f"{costs.verify:.2f} + {costs.node:.4f} n s to verify; plain cycle {plain:.2f} s. "
            f"Tokens a cycle are the small model's, over {SET_CYCLES} cycles or more."
        )
    return report


def main() -> None:
    bench = Bench(drafting_arguments(__doc__))
    for dial in bench.args.dials:
        print(curve(bench, dial).markdown(), flush=True)


if __name__ == "__main__":
    main()
