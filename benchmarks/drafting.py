"""Is drafting worth it? Speed of every drafter over plain streaming at the same dial.

    python -m benchmarks.drafting --small DEMO --draft-small DRAFT --target models/7b-inflated \\
        --draft models/0.5b-inflated --dials 8GB,4GB

Tokens per cycle (`acceptance.py`), and seconds a cycle of all numbers of steps, in turn with plain decoding
as planned and with nothing pinned. Whole replies of the big model: `schedules.py`.
"""

from __future__ import annotations

import json
import statistics
from pathlib import Path

from benchmarks import acceptance
from benchmarks.arms import OWN, Arm, Bench, drafting_arguments, seconds
from benchmarks.common import Row, in_turn
from benchmarks.tables import Report, spread
from edgespec.runtimes.formats.describe import describe_model
from edgespec.values import format_bytes


def measure(bench: Bench, dial: int) -> None:
    name = format_bytes(dial)
    for turn in range(bench.args.rounds):
        for plain, options in (("plain", {}), ("plain, nothing pinned", {"resident_layers": 0})):
            bench.store.get(f"{name}/{plain}/{turn}", bench.timed, dial, "none", options, OWN, turn)
        for arm in in_turn(bench.arms, turn):
            mode = arm.mode(*arm.steps(bench.args.steps))
            key = f"{name}/cycles/{arm.name}/{turn}"
            bench.store.get(key, bench.timed, dial, arm.drafter, arm.big, mode, turn)


class Speed:
    """An arm at a dial: its best number of steps, and what cycles with it cost."""

    def __init__(self, bench: Bench, dial: int, arm: Arm) -> None:
        self.rows = bench.rounds(f"{format_bytes(dial)}/cycles/{arm.name}")
        self.draft_depth, self.depth, self.big_depth = depths(bench, arm, self.rows)
        known = acceptance.tokens(bench, arm, self.depth) if self.rows else {}
        self.speeds = {n: row["tau"] / self.cycle(n) for n, row in known.items() if all(self.rounds(n))}
        self.steps = max(self.speeds, key=lambda n: self.speeds[n], default=None)
        self.tau = known[self.steps]["tau"] if self.steps is not None else 0.0

    def rounds(self, steps: int) -> list[list[Row]]:
        """By round, the cycles of so many steps."""
        return [[c for c in row["cycles"] if not steps or c["steps"] == steps] for row in self.rows]

    def cycle(self, steps: int) -> float:
        """Seconds, the median of the rounds'."""
        return statistics.median(map(seconds, self.rounds(steps)))


def depths(bench: Bench, arm: Arm, rows: list[Row]) -> tuple[int, int, int]:
    """A cascade's on the big model: how many layers draft; the small model's L_SV that its own stands for
    (`models/inflate.py` writes it down), the next shallower one that was measured; its own."""
    if arm.variant is None or not rows:
        return 0, arm.depths[0], 0
    found = json.loads((bench.args.target_adapters / "adapter.json").read_text())["adapters"]
    (draft,) = (a["depth"] for a in found if a["role"] == "draft")
    small = {a["depth"]: a["training"]["inflated from depth"] for a in found if a["role"] == "verify"}
    big: int = rows[0]["plan"]["must_pin_layers"]
    known = [own for at, own in small.items() if at <= big and own in arm.depths]
    return draft, max(known, default=arm.depths[0]), big


def speeds(bench: Bench, dial: int) -> Report:
    name = format_bytes(dial)
    report = Report(f"Speed at {name}: tokens per cycle (small) / seconds a cycle (big), best steps")
    plain, bare = (bench.rounds(f"{name}/plain{more}") for more in ("", ", nothing pinned"))
    if not plain or not bare:
        return report
    for label, rows in (("plain, nothing pinned", bare), ("plain", plain)):
        figures = speed_cells(1.0, [row["cycles"] for row in rows], plain, bare)
        report.add({"drafter": label, "L_SV": "", "steps": "", **figures, "peak": peak(rows)})
    for arm in bench.arms:
        speed = Speed(bench, dial, arm)
        if speed.steps is None:
            report.failed(arm.name, bench.store.rows.get(f"{name}/cycles/{arm.name}/0", {}).get("error", ""))
            continue
        figures = speed_cells(speed.tau, speed.rounds(speed.steps), plain, bare)
        if arm.variant:
            drafting = speed.big_depth if "deep" in arm.variant else speed.draft_depth
            by_paper = layer_traffic(bench.args.target, drafting, speed.steps) / speed.tau
            figures["by the paper's BPT"] = f"{by_paper / 1e9:.2f}"
        else:  # passes of other drafters are not counted
            figures["GB of layers from memory a token"] = ""
        depths = f"{speed.depth} ({speed.big_depth})" if speed.depth else ""
        named = {"drafter": arm.name, "L_SV": depths, "steps": speed.steps or "free"}
        report.add({**named, **figures, "peak": peak(speed.rows)})
    return report


def speed_cells(tau: float, rounds: list[list[Row]], plain: list[Row], bare: list[Row]) -> Row:
    each = [c for cycles in rounds for c in cycles]
    cycle = [seconds(cycles) for cycles in rounds]
    over = [
        [tau * seconds(row["cycles"]) / own for row, own in zip(other, cycle, strict=False)]
        for other in (plain, bare)
    ]
    read, layers = (statistics.mean(c[key] for c in each) / tau / 1e9 for key in ("bytes", "layers"))
    return {
        "tokens a cycle": f"{tau:.2f}",
        "cycle, s": spread(cycle),
        "draft, s": f"{statistics.median(c['draft'] for c in each):.2f}",
        "pass, s": f"{statistics.median(c['verify'] for c in each):.2f}",
        "tokens/s": f"{tau / statistics.median(cycle):.3f}",
        "× plain": spread(over[0]),
        "× nothing pinned": spread(over[1]),
        "GB read a token": f"{read:.2f}",
        "GB of layers from memory a token": f"{layers:.2f}",
        "by the paper's BPT": "",
        "cycles timed": len(each),
    }


def peak(rows: list[Row]) -> str:
    return format_bytes(max(row["peak_memory"] for row in rows))


def layer_traffic(target: Path, drafting: int, g: int) -> float:
    """Bytes of layers that a cycle reads from memory: those of the first `drafting` in each of g steps, the
    others once. That is the numerator of the CATS paper's BPT, Eq. 3 and 4, for two stages and for three; its
    Table 5 counts 10 draft layers for Kangaroo, which has 3."""
    table = describe_model(target).table
    layers = [sum(c.nbytes for c in table.chunks if c.layer == layer) for layer in range(table.layers)]
    return g * sum(layers[:drafting]) + sum(layers[drafting:])


def main() -> None:
    bench = Bench(drafting_arguments(__doc__))
    acceptance.measure(bench)
    print(acceptance.table(bench).markdown(), flush=True)
    for dial in bench.args.dials:
        measure(bench, dial)
        print(speeds(bench, dial).markdown(), flush=True)


if __name__ == "__main__":
    main()
