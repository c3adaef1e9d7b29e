"""How many tokens does a cycle give, by drafter and steps of drafting? On the small model, and a plot.

    python -m benchmarks.acceptance --small edgespec/demo_model --adapters edgespec/demo_model/cascade \\
        --arms kangaroo,chain,tree --steps 3,5,7,10 --base kangaroo

A cascade's drafts are always so many steps deep, so that a chain of g gives g + 1 tokens at most. What else
was trained for the model (`--trained DIR,...`) is an arm by the name of its directory.
`drafting.py` goes on with an inflated model, in the same results file.
"""

from __future__ import annotations

import statistics
from pathlib import Path

import numpy as np

from benchmarks.arms import LONGEST, SMALL_MEMORY, Arm, Bench, drafting_arguments, open_worker
from benchmarks.common import Row
from benchmarks.tables import Report, interval
from edgespec.core.sampling import FloatArray, IntArray


def measure(bench: Bench) -> None:
    for arm in bench.arms:
        for depth in arm.depths:
            for steps in arm.steps(bench.args.steps):
                bench.store.get(key(arm, depth, steps), count, bench, arm, depth, steps)


def key(arm: Arm, depth: int, steps: int) -> str:
    return f"tokens/{arm.name}/{depth}/{steps}"


def count(bench: Bench, arm: Arm, depth: int, steps: int) -> Row:
    each: list[tuple[int, int]] = []  # tokens, cycles of a reply
    same = 0
    with open_worker(bench.args.small, SMALL_MEMORY, arm.drafter, **arm.on_small(depth)) as worker:
        for known in bench.prompts:
            row = worker.run(known["prompt"], LONGEST, arm.mode(steps))
            # The last cycle of a reply is cut by its end, whoever drafts.
            whole = row["cycles"][:-1]
            each.append((sum(c["tokens"] for c in whole), len(whole)))
            same += row["tokens"] == known["reply"]
    tokens, cycles = (sum(column) for column in zip(*each, strict=True))
    return {"tau": tokens / cycles, "each": each, "same": same, "replies": len(each)}


def tokens(bench: Bench, arm: Arm, depth: int = 0) -> dict[int, Row]:
    """What was measured, by steps; `tau` are tokens per cycle."""
    found = {n: bench.store.rows.get(key(arm, depth, n), {}) for n in arm.steps(bench.args.steps)}
    return {n: row for n, row in found.items() if "tau" in row}


def table(bench: Bench, base: str | None = None, at: int = 5) -> Report:
    """`base`: an arm that others are compared with, at so many steps."""
    asked = bench.prompts
    length = statistics.mean(len(row["reply"]) for row in asked)
    repeats = statistics.mean(row["repeats"] for row in asked)
    report = Report(
        f"Tokens per cycle, small model, {len(asked)} held-out prompts, replies of {length:.0f} tokens on "
        f"average, {repeats:.0%} of their 4-grams seen before"
    )
    reference = next((tokens(bench, arm, arm.depths[0]) for arm in bench.arms if arm.name == base), {})
    different = total = 0
    for arm in bench.arms:
        for depth in arm.depths:
            found = tokens(bench, arm, depth)
            different += sum(row["replies"] - row["same"] for row in found.values())
            total += sum(row["replies"] for row in found.values())
            row = {"drafter": arm.name, "L_SV": depth or ""}
            row |= {f"{n} steps": f"{found[n]['tau']:.2f}" if n in found else "" for n in bench.args.steps}
            if 0 in found:
                row[f"{bench.args.steps[0]} steps"] = f"{found[0]['tau']:.2f} (free)"
            if base:
                known = at in found and at in reference
                row[f"× {base} at {at}"] = compared(found[at], reference[at]) if known else ""
            report.add(row)
    report.notes.append(
        f"{different} of {total} replies differ from the plain ones, made by another process."
    )
    return report


def compared(ours: Row, base: Row) -> str:
    """The ratio of tokens per cycle, and how far the choice of prompts moves it."""
    pairs = np.array([ours["each"], base["each"]])  # [2, prompts, 2]: tokens, cycles

    def ratio(drawn: IntArray) -> FloatArray:
        sums = pairs[:, drawn].sum(2)  # [2, draws, 2]
        quotient: FloatArray = np.divide(*(sums[..., 0] / sums[..., 1]))
        return quotient

    low, high = interval(pairs.shape[1], ratio)
    return f"{ours['tau'] / base['tau']:.2f} ({low:.2f}–{high:.2f})"


def plot(bench: Bench, path: Path) -> None:
    """Tokens per cycle against steps, a panel for each L_SV, below a chain's ceiling."""
    from matplotlib.figure import Figure

    depths, steps = bench.args.verify, bench.args.steps
    figure = Figure(figsize=(4 * len(depths), 4), layout="constrained")
    panels = figure.subplots(1, len(depths), sharey=True, squeeze=False)
    for panel, depth in zip(panels[0], depths, strict=True):
        for arm in bench.arms:
            found = tokens(bench, arm, depth if arm.depths != (0,) else 0)
            if len(found) > 1:
                panel.plot(list(found), [row["tau"] for row in found.values()], marker="o", label=arm.name)
        panel.plot(steps, [n + 1 for n in steps], color="gray", linestyle=":", label="ceiling")
        panel.set(title=f"L_SV = {depth}", xlabel="steps of drafting", xticks=steps)
    panels[0][0].set(ylabel="tokens a cycle", ylim=(1, None))
    panels[0][0].legend(fontsize="small")
    figure.savefig(path, dpi=100)


def main() -> None:
    parser = drafting_arguments(__doc__, target=False)
    parser.add_argument("--base", help="an arm to compare with")
    parser.add_argument("--at", type=int, default=5, help="steps at which arms are compared")
    parser.add_argument("--plot", type=Path, help="a PNG of tokens per cycle to draw")
    bench = Bench(parser)
    measure(bench)
    print(table(bench, bench.args.base, bench.args.at).markdown())
    if bench.args.plot:
        plot(bench, bench.args.plot)


if __name__ == "__main__":
    main()
