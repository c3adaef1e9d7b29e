"""Is drafting worth it? Speed of every drafter over plain streaming at the same dial.

    python -m benchmarks.drafting --small DEMO --draft-small DRAFT --target models/7b-inflated \\
        --draft models/0.5b-inflated --dials 8GB,4GB

Tokens per cycle of each arm at each number of drafting steps (small models), seconds a cycle in turn with
plain decoding (big models), and whole replies of the big model: as predicted? and with the product's own
controller.
"""

from __future__ import annotations

import statistics
from functools import partial
from pathlib import Path

from benchmarks.bench import (
    LONGEST,
    OWN,
    SMALL_MEMORY,
    Arm,
    Bench,
    Options,
    bench_of,
    described,
    drafting_arguments,
    middle,
    open_worker,
    seconds,
)
from benchmarks.common import Row
from benchmarks.speed_model import medians
from benchmarks.tables import Report, spread
from edgespec.values import format_bytes

STEPS = (1, 2, 3, 4, 6, 8, 12, 16)  # of drafting


def fixed(steps: int) -> Row:
    return {"kind": "fixed", "steps": [steps]}


# tokens per cycle


def tokens(bench: Bench) -> Report:
    known = bench.plain_replies["prompts"]
    title = f"Tokens per cycle, small models, {described(known)}; trees of up to 64 nodes"
    report = Report(title, ["drafter", *(f"{n} steps" for n in STEPS)])
    replies = differing = 0
    for arm in bench.arms:
        for steps in (0,) if arm.drafter == "ngram" else STEPS:
            row = bench.store.get(f"tokens/{arm.name}/{steps}", partial(count, bench, arm, steps))
            replies += row.get("replies", 0)
            differing += row.get("differing", 0)
        found = tau(bench, arm)
        if 0 in found:
            report.add(arm.name, f"{found[0]:.2f} (free)", *[""] * (len(STEPS) - 1))
        else:
            report.add(arm.name, *(f"{found[n]:.2f}" if n in found else "" for n in STEPS))
    report.notes.append(
        f"{differing} of {replies} replies differ from the plain ones, made by another process."
    )
    return report


def count(bench: Bench, arm: Arm, steps: int) -> Row:
    cycles: list[Row] = []
    differing = 0
    asked = bench.plain_replies["prompts"]
    with open_worker(bench.args.small, SMALL_MEMORY, arm.drafter, *arm.small) as worker:
        for known in asked:
            row = worker.run(known["prompt"], LONGEST, fixed(steps))
            cycles += row["cycles"]
            differing += row["tokens"] != known["reply"]
    made = sum(c["tokens"] for c in cycles)
    return {"tau": made / len(cycles), "cycles": len(cycles), "replies": len(asked), "differing": differing}


def tau(bench: Bench, arm: Arm) -> dict[int, float]:
    """Tokens per cycle by number of steps, as far as measured."""
    found = {n: bench.store.rows.get(f"tokens/{arm.name}/{n}", {}) for n in (0, *STEPS)}
    return {n: row["tau"] for n, row in found.items() if "tau" in row}


# seconds a cycle


def chosen(bench: Bench, dial: int, arm: Arm) -> int | None:
    """The number of steps that promises most, from a first look at all of them; None = not legal."""
    if arm.drafter == "ngram":
        return 0
    mode = {"kind": "fixed", "steps": list(STEPS[1:])}
    look = bench.store.get(
        f"{format_bytes(dial)}/costs/{arm.name}", partial(bench.timed, dial, arm.drafter, arm.big, mode)
    )
    if "error" in look:
        return None
    cost, known = medians(look["cycles"], "steps", "seconds"), tau(bench, arm)
    best = max((n for n in cost if n in known), key=lambda n: known[n] / cost[n], default=8)
    kept = bench.store.get(f"{format_bytes(dial)}/chosen/{arm.name}", lambda: {"steps": best})
    return int(kept["steps"])


def cycles(bench: Bench, dial: int) -> Report:
    name = format_bytes(dial)
    columns = ["drafter", "steps", "tokens a cycle", "cycle, s", "draft, s", "pass, s", "tokens/s"]
    columns += ["× plain", "× nothing pinned", "GB read a token", "peak", "cycles timed"]
    report = Report(f"Speed at {name}: tokens per cycle (small) / seconds a cycle (big)", columns)
    for turn in range(bench.args.rounds):
        for arm in bench.arms:
            if (steps := chosen(bench, dial, arm)) is not None:
                timed = partial(bench.timed, dial, arm.drafter, arm.big, fixed(steps), turn)
                bench.store.get(f"{name}/cycles/{arm.name}/{turn}", timed)
            bench.plain(dial, turn)
        bench.plain(dial, turn, pinned=False)
    plain, bare = bench.rounds(f"{name}/plain"), middle(bench.rounds(f"{name}/plain, nothing pinned"))
    report.add(*speed_row("plain", "", 1.0, plain, plain, bare))
    for arm in bench.arms:
        steps, rows = chosen(bench, dial, arm), bench.rounds(f"{name}/cycles/{arm.name}")
        if steps is None or not rows:
            report.failed(arm.name, bench.store.rows.get(f"{name}/costs/{arm.name}", {}).get("error", ""))
        elif (each := tau(bench, arm).get(steps)) is not None:
            report.add(*speed_row(arm.name, str(steps), each, rows, plain, bare))
    return report


def speed_row(
    name: str, steps: str, tau: float, rows: list[Row], plain: list[Row], bare: float | None
) -> list[str]:
    each = [c for row in rows for c in row["cycles"]]
    cycle = [seconds(row) for row in rows]
    ratios = [tau * seconds(p) / seconds(r) for p, r in zip(plain, rows, strict=False)]
    return [
        name,
        steps,
        f"{tau:.2f}",
        spread(cycle),
        f"{statistics.median(c['draft'] for c in each):.2f}",
        f"{statistics.median(c['verify'] for c in each):.2f}",
        f"{tau / statistics.median(cycle):.3f}",
        spread(ratios),
        f"{tau * bare / statistics.median(cycle):.2f}" if bare else "",
        f"{statistics.mean(c['bytes'] for c in each) / tau / 1e9:.2f}",
        format_bytes(max(row["peak_memory"] for row in rows)),
        str(len(each)),
    ]


# whole replies


def replies(bench: Bench, dial: int) -> Report:
    """The shortest held-out replies of at least 24 tokens, with the chosen steps and as users get it."""
    name = format_bytes(dial)
    columns = ["drafter", "steps", "tokens/s, whole replies", "predicted", "off by"]
    columns += ["own controller, × plain", "replies", "same text", "peak"]
    report = Report(f"Whole replies at {name}", columns)
    known = [row for row in bench.plain_replies["prompts"] if len(row["reply"]) >= 24]
    known = sorted(known, key=lambda row: len(row["reply"]))[: bench.args.replies]
    plain = middle(bench.rounds(f"{name}/plain"))
    for arm in bench.arms:
        steps = chosen(bench, dial, arm)
        timed = middle(bench.rounds(f"{name}/cycles/{arm.name}"))
        if steps is None or timed is None or plain is None:
            continue
        ways = {
            f"replies small/{arm.name}/{steps}": (bench.args.small, SMALL_MEMORY, arm.drafter, arm.small),
            f"{name}/replies/{arm.name}": (bench.args.target, dial, arm.drafter, arm.big),
            f"{name}/replies auto/{arm.name}": (bench.args.target, dial, "auto", arm.big),
        }
        found = []
        for key, way in ways.items():
            mode = OWN if "auto" in way else fixed(steps)
            found.append(bench.store.get(key, partial(said, known, mode, *way)).get("replies"))
        small, big, auto = found
        if not (small and big):
            continue
        predicted = sum(len(r["tokens"]) - 1 for r in small) / sum(len(r["cycles"]) for r in small) / timed
        report.add(
            arm.name,
            str(steps),
            f"{rate(big):.3f}",
            f"{predicted:.3f}",
            f"{rate(big) / predicted - 1:+.0%}",
            f"{rate(auto) * plain:.2f}" if auto else "",
            ", ".join(str(len(r["tokens"])) for r in big),
            "all" if all(r["same"] for r in big) else "differs",
            format_bytes(max(r["peak_memory"] for r in big)),
        )
    return report


def said(known: list[Row], mode: Row, model: Path, dial: int, drafter: str, options: Options) -> Row:
    rows = []
    with open_worker(model, dial, drafter, *options) as worker:
        for each in known:
            row = worker.run(each["prompt"], LONGEST, mode)
            rows.append({**row, "same": row["tokens"] == each["reply"]})
    return {"replies": rows, "plan": worker.loaded["plan"]}


def rate(found: list[Row]) -> float:
    """Tokens a second of decoding over several replies."""
    spent = float(sum(c["seconds"] for r in found for c in r["cycles"]))
    made: int = sum(len(r["tokens"]) - 1 for r in found)
    return made / spent


def main() -> None:
    parser = drafting_arguments(__doc__)
    parser.add_argument("--replies", type=int, default=3, help="whole replies an arm")
    bench = bench_of(parser)
    print(tokens(bench).markdown(), flush=True)
    for dial in bench.args.dials:
        for part in (cycles, replies):
            print(part(bench, dial).markdown(), flush=True)


if __name__ == "__main__":
    main()
