"""How does speed depend on acceptance? Chains that are right with a set probability, measured and modelled.

    python -m benchmarks.set_acceptance --small DEMO --target models/7b-inflated \\
        --arms "substitute int4" --dials 8GB

`drafters.SetAcceptance` does the work of a real drafter; `speed_model.py` has the model.
"""

from __future__ import annotations

import statistics
from functools import partial

from benchmarks.bench import OWN, SMALL_MEMORY, Arm, Bench, bench_of, drafting_arguments, middle, open_worker
from benchmarks.common import Row
from benchmarks.speed_model import Costs, best_steps, expected_tokens
from benchmarks.tables import Report
from edgespec.values import format_bytes

LOOK = (2, 4, 8, 16)  # lengths of chains through whose costs lines are drawn
PROBABILITIES = (0.5, 0.6, 0.7, 0.8, 0.9, 0.95, 0.97)
SET_CYCLES = 200  # of the small model, for tokens per cycle at set acceptance


def chains_of(*steps: int, p: float = 0.9) -> Row:
    return {"kind": "set", "p": p, "steps": list(steps)}


def measure(bench: Bench, dial: int, arm: Arm, chains: dict[float, int]) -> None:
    """Seconds a cycle do not depend on what is right, so one process runs chains of all lengths in turn,
    those through which the model's lines are drawn among them; plain cycles before and after it."""
    for p, steps in chains.items():
        bench.store.get(f"set tokens/{arm.name}/{p}/{steps}", partial(count, bench, arm, p, steps))
    mode, stem = chains_of(*sorted({*LOOK, *chains.values()})), f"{format_bytes(dial)}/curve"
    for turn in range(bench.args.rounds):
        plain = partial(bench.timed, dial, "none", (), OWN, turn)
        bench.store.get(f"{stem}/plain before {arm.name}/{turn}", plain)
        chained = partial(bench.timed, dial, arm.drafter, arm.big, mode, turn)
        bench.store.get(f"{stem}/{arm.name}/{turn}", chained)
        bench.store.get(f"{stem}/plain after {arm.name}/{turn}", plain)


def count(bench: Bench, arm: Arm, p: float, steps: int) -> Row:
    """Tokens per cycle at set acceptance, by whole stories of the small model."""
    with open_worker(bench.args.small, SMALL_MEMORY, arm.drafter, *arm.small) as worker:
        cycles = bench.long_replies(worker, SET_CYCLES, chains_of(steps, p=p))["cycles"]
    return {"tau": sum(c["tokens"] for c in cycles) / len(cycles), "cycles": len(cycles)}


def curve(bench: Bench, dial: int) -> Report:
    name = format_bytes(dial)
    columns = ["drafter's cost", "p", "steps", "tokens a cycle", "cycle, s", "× plain", "modelled"]
    report = Report(f"Speed against set acceptance at {name}", [*columns, "model is off by", "cycles timed"])
    errors = []
    for arm in bench.arms:
        if arm.drafter == "ngram":
            continue
        timed = partial(bench.timed, dial, arm.drafter, arm.big, chains_of(*LOOK))
        look = bench.store.get(f"{name}/chain costs/{arm.name}", timed)
        if "error" in look:
            report.failed(arm.name, look["error"])
            continue
        first = Costs.fit(look["cycles"])
        chains = {p: best_steps(first, p) for p in PROBABILITIES}
        measure(bench, dial, arm, chains)
        cycles = [c for row in bench.rounds(f"{name}/curve/{arm.name}") for c in row["cycles"]]
        beside = [
            middle(bench.rounds(f"{name}/curve/plain {when} {arm.name}")) for when in ("before", "after")
        ]
        known = [plain for plain in beside if plain is not None]
        if not known or not cycles:
            continue
        plain, costs = statistics.mean(known), Costs.fit([c for c in cycles if c["steps"] in LOOK])
        for p, steps in chains.items():
            each = [c["seconds"] for c in cycles if c["steps"] == steps]
            tau = bench.store.rows[f"set tokens/{arm.name}/{p}/{steps}"].get("tau")
            if not each or tau is None:
                continue
            taken = statistics.mean(each)
            measured, modelled = plain * tau / taken, plain * expected_tokens(p, steps) / costs.cycle(steps)
            errors.append(modelled / measured - 1)
            figures = [f"{x:.2f}" for x in (tau, taken, measured, modelled)]
            report.add(arm.name, str(p), str(steps), *figures, f"{errors[-1]:+.1%}", str(len(each)))
        report.notes.append(
            f"{arm.name}: a chain of n costs {costs.fixed:.2f} + {costs.step:.3f} n s to draft and "
            f"{costs.verify:.2f} + {costs.node:.4f} n s to verify; plain cycle {plain:.2f} s. "
            f"Tokens a cycle are the small model's, over {SET_CYCLES} cycles or more."
        )
    if errors:
        report.notes.append(f"The model is off by at most {max(map(abs, errors)):.1%}.")
    return report


def main() -> None:
    bench = bench_of(drafting_arguments(__doc__))
    for dial in bench.args.dials:
        print(curve(bench, dial).markdown(), flush=True)


if __name__ == "__main__":
    main()
