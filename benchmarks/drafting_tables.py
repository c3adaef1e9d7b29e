"""The tables of `drafting.py`, from whatever has been measured."""

from __future__ import annotations

import statistics
from typing import TYPE_CHECKING

from benchmarks.common import Report, Row, format_bytes, spread
from benchmarks.drafting_parts import LOOK, PROBABILITIES, STEPS, Bench
from benchmarks.held_out import described
from benchmarks.speed_model import Costs, best_steps, expected_tokens

if TYPE_CHECKING:
    from benchmarks.drafting import Arm


def print_tables(bench: Bench) -> None:
    """Markdown on stdout: one table a part and dial, of those that have rows."""
    tables = [tokens(bench)]
    for dial in bench.args.dials:
        tables += [t(bench, dial) for t in (cycles, curve, replies, nodes, adversarial)]
    for table in tables:
        if table.rows:
            print(table.markdown())


def rounds(bench: Bench, stem: str) -> list[Row]:
    """The measurements `stem`/0, /1, ... that succeeded."""
    found = (bench.store.rows.get(f"{stem}/{turn}", {}) for turn in range(bench.args.rounds))
    return [row for row in found if row and "error" not in row]


def seconds(row: Row) -> float:
    """Median seconds a cycle."""
    return float(statistics.median(c["seconds"] for c in row["cycles"]))


def plain_seconds(bench: Bench, dial: int, name: str = "plain") -> float | None:
    found = rounds(bench, f"{format_bytes(dial)}/{name}")
    return statistics.median(seconds(row) for row in found) if found else None


def tokens(bench: Bench) -> Report:
    known = bench.store.rows.get("plain replies", {}).get("prompts", [])
    measured = [
        r for k, row in bench.store.rows.items() if k.startswith("tokens/") for r in row.get("replies", ())
    ]
    differing = sum(not same for _, _, same in measured)
    title = f"Tokens per cycle, small models, {described(known)}; trees of up to 64 nodes"
    report = Report(title, ["drafter", *(f"{n} steps" for n in STEPS)])
    report.notes.append(
        f"{differing} of {len(measured)} replies differ from the plain ones, which another process made."
    )
    for arm in bench.arms:
        tau = bench.tau(arm)
        if 0 in tau:
            report.add(arm.name, f"{tau[0]:.2f} (free)", *[""] * (len(STEPS) - 1))
        elif tau:
            report.add(arm.name, *(f"{tau[n]:.2f}" if n in tau else "" for n in STEPS))
    return report


def cycles(bench: Bench, dial: int) -> Report:
    name = format_bytes(dial)
    columns = ["drafter", "steps", "tokens a cycle", "cycle, s", "draft, s", "pass, s", "tokens/s"]
    columns += ["× plain", "× nothing pinned", "GB read a token", "peak", "cycles timed"]
    report = Report(f"Speed at {name}: tokens per cycle (small) / seconds a cycle (big)", columns)
    bare = plain_seconds(bench, dial, "plain, nothing pinned")
    plain = rounds(bench, f"{name}/plain")
    if plain:
        report.add(*_speed_row("plain", None, 1.0, plain, plain, bare))
    for arm in bench.arms:
        failure = bench.store.rows.get(f"{name}/costs/{arm.name}", {}).get("error")
        rows = rounds(bench, f"{name}/cycles/{arm.name}")
        if failure:
            report.add(arm.name, failure[:80], *[""] * 10)
        elif rows and plain:
            steps = rows[0]["cycles"][0]["steps"]
            tau = bench.tau(arm).get(steps)
            if tau is not None:
                report.add(*_speed_row(arm.name, steps, tau, rows, plain, bare))
    return report


def _speed_row(
    name: str, steps: int | None, tau: float, rows: list[Row], plain: list[Row], bare: float | None
) -> list[str]:
    each = [c for row in rows for c in row["cycles"]]
    cycle = [seconds(row) for row in rows]
    ratios = [tau * seconds(p) / seconds(r) for p, r in zip(plain, rows, strict=False)]
    read = statistics.mean(c["bytes"] for c in each) / tau / 1e9
    return [
        name,
        "" if steps is None else str(steps),
        f"{tau:.2f}",
        spread(cycle),
        f"{statistics.median(c['draft'] for c in each):.2f}",
        f"{statistics.median(c['verify'] for c in each):.2f}",
        f"{tau / statistics.median(cycle):.3f}",
        spread(ratios),
        f"{tau * bare / statistics.median(cycle):.2f}" if bare else "",
        f"{read:.2f}",
        format_bytes(max(row["peak_memory"] for row in rows)),
        str(len(each)),
    ]


def curve(bench: Bench, dial: int) -> Report:
    name = format_bytes(dial)
    columns = ["drafter's cost", "p", "steps", "tokens a cycle", "cycle, s", "× plain", "modelled"]
    columns += ["model is off by", "cycles timed"]
    report = Report(f"Speed against set acceptance at {name}", columns)
    errors = []
    for arm in bench.arms:
        look = bench.store.rows.get(f"{name}/chain costs/{arm.name}")
        cycles = [c for row in rounds(bench, f"{name}/curve/{arm.name}") for c in row["cycles"]]
        plains = [
            plain_seconds(bench, dial, f"curve/plain {when} {arm.name}") for when in ("before", "after")
        ]
        known = [p for p in plains if p is not None]
        if not known or look is None or "error" in look or not cycles:
            continue
        plain = statistics.mean(known)
        chosen = Costs.fit(look["cycles"])  # the first look, which chose the chains
        costs = Costs.fit([c for c in cycles if c["steps"] in LOOK])
        for p in PROBABILITIES:
            steps = best_steps(chosen, p)
            each = [c for c in cycles if c["steps"] == steps]
            tau = bench.store.rows.get(f"set tokens/{arm.name}/{p}/{steps}", {}).get("tau")
            if not each or tau is None:
                continue
            taken = statistics.mean(c["seconds"] for c in each)
            measured = plain * tau / taken
            modelled = plain * expected_tokens(p, steps) / costs.cycle(steps)
            errors.append(modelled / measured - 1)
            figures = [f"{x:.2f}" for x in (tau, taken, measured, modelled)]
            report.add(arm.name, str(p), str(steps), *figures, f"{errors[-1]:+.1%}", str(len(each)))
        report.notes.append(
            f"{arm.name}: a chain of n costs {costs.fixed:.2f} + {costs.step:.3f} n s to draft and "
            f"{costs.verify:.2f} + {costs.node:.4f} n s to verify; plain cycle {plain:.2f} s. "
            "Tokens a cycle are the small model's, over 200 cycles or more."
        )
    if errors:
        report.notes.append(f"The model is off by at most {max(map(abs, errors)):.1%}.")
    return report


def replies(bench: Bench, dial: int) -> Report:
    name = format_bytes(dial)
    columns = [
        "drafter",
        "steps",
        "tokens/s, whole replies",
        "predicted",
        "off by",
        "own controller, × plain",
    ]
    columns += ["replies", "same text", "peak"]
    report = Report(f"Whole replies at {name}", columns)
    rows = bench.store.rows
    plain = plain_seconds(bench, dial)
    for arm in bench.arms:
        big = rows.get(f"{name}/replies/{arm.name}", {}).get("replies")
        timed = [seconds(row) for row in rounds(bench, f"{name}/cycles/{arm.name}")]
        steps = _steps(bench, dial, arm)
        small = rows.get(f"replies small/{arm.name}/{steps}", {}).get("replies")
        if not (big and small and timed and plain):
            continue
        speed = _rate(big)
        tau = sum(len(r["tokens"]) - 1 for r in small) / sum(len(r["cycles"]) for r in small)
        predicted = tau / statistics.median(timed)
        auto = rows.get(f"{name}/replies auto/{arm.name}", {}).get("replies")
        report.add(
            arm.name,
            str(steps),
            f"{speed:.3f}",
            f"{predicted:.3f}",
            f"{speed / predicted - 1:+.0%}",
            f"{_rate(auto) * plain:.2f}" if auto else "",
            ", ".join(str(len(r["tokens"])) for r in big),
            "all" if all(r["same"] for r in big) else "differs",
            format_bytes(max(r["peak_memory"] for r in big)),
        )
    return report


def _steps(bench: Bench, dial: int, arm: Arm) -> int:
    rows = rounds(bench, f"{format_bytes(dial)}/cycles/{arm.name}")
    return int(rows[0]["cycles"][0]["steps"]) if rows else -1


def _rate(found: list[Row]) -> float:
    """Tokens a second of decoding over several replies."""
    spent = float(sum(c["seconds"] for r in found for c in r["cycles"]))
    made: int = sum(len(r["tokens"]) - 1 for r in found)
    return made / spent


def nodes(bench: Bench, dial: int) -> Report:
    name = format_bytes(dial)
    report = Report(
        f"A pass over 64 nodes against one node at {name}", ["1 node, s", "64 nodes, s", "ratio", "passes"]
    )
    one: list[float] = []
    many: list[float] = []
    found = rounds(bench, f"{name}/nodes")
    for row in found:
        for group, count in ((one, 1), (many, 64)):
            group.append(statistics.median(c["verify"] for c in row["cycles"] if c["nodes"] == count))
    if found:
        ratios = [b / a for a, b in zip(one, many, strict=True)]
        report.add(spread(one), spread(many), spread(ratios, 3), str(sum(len(r["cycles"]) for r in found)))
    return report


def adversarial(bench: Bench, dial: int) -> Report:
    name = format_bytes(dial)
    report = Report(
        f"--drafter auto on random tokens at {name}", ["where", "drafters", "× plain", "tokens timed"]
    )
    for where in ("streamed", "resident"):
        stem = f"{name}/adversarial/{where}"
        plain = rounds(bench, f"{stem}/plain")
        for arm in ("ngram", *(a.name for a in bench.arms if a.name != "ngram"), "model"):
            found = rounds(bench, f"{stem}/{arm}")
            if found and plain and [where, arm] not in [row[:2] for row in report.rows]:
                ratios = [f["rate"] / p["rate"] for f, p in zip(found, plain, strict=False)]
                report.add(where, arm, spread(ratios, 3), str(sum(f["tokens"] for f in found)))
    return report
