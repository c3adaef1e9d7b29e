"""The tables and the plot of `cascade.py`, from whatever has been measured."""

from __future__ import annotations

import json
import statistics
from pathlib import Path
from typing import TYPE_CHECKING

import numpy as np

from benchmarks.common import Report, Row, format_bytes, spread
from benchmarks.held_out import described

if TYPE_CHECKING:
    from benchmarks.cascade import Bench

VARIANTS = ("kangaroo", "chain", "kangaroo-tree", "tree", "deep", "deep-tree")
COPY = "substitute"  # a low-bit copy of the streamed layers verifies in place of an adapter: `tree` with it
WITHOUT = ("kangaroo", "kangaroo-tree", COPY)  # an adapter at L_SV: the same at every depth
PAPER = {  # Vicuna-7B, Table 5
    "kangaroo": {3: 2.25, 5: 2.49, 7: 2.63, 10: 2.71},
    "chain": {3: 2.71, 5: 3.05, 7: 3.23, 10: 3.33},
}


def length_key(depth: int, variant: str, g: int) -> str:
    """Of tokens per cycle in the store."""
    return f"lengths/{'any' if variant in WITHOUT else depth}/{variant}/{g}"


def inflated_depths(adapters: Path) -> tuple[int, dict[int, int]]:
    """Of inflated adapters, the draft's depth; and by depth of a verifier, that of the small one
    (`inflate_adapters.py` writes it down)."""
    found = json.loads((adapters / "adapter.json").read_text())["adapters"]
    (draft,) = (a["depth"] for a in found if a["role"] == "draft")
    return draft, {a["depth"]: a["training"]["inflated from depth"] for a in found if a["role"] == "verify"}


def lengths(bench: Bench) -> Report:
    rows = bench.store.rows
    known = rows.get("plain replies", {}).get("prompts", [])
    report = Report(
        f"Tokens per cycle, {described(known)}",
        ["L_SV", "variant", *(f"g = {g} (at most {g + 1})" for g in bench.args.g), "× Kangaroo at g = 5"],
    )
    different = total = 0
    base = rows.get(length_key(0, "kangaroo", 5), {})
    places: list[tuple[int, str]] = [(0, variant) for variant in WITHOUT]
    places += [(depth, v) for depth in bench.args.verify for v in VARIANTS if v not in WITHOUT]
    for depth, variant in places:
        found = [rows.get(length_key(depth, variant, g), {}) for g in bench.args.g]
        if not all("tau" in row for row in found):
            continue
        different += sum(row["replies"] - row["same"] for row in found)
        total += sum(row["replies"] for row in found)
        ratio = compared(rows.get(length_key(depth, variant, 5), {}), base)
        report.add(str(depth or ""), variant, *(f"{row['tau']:.2f}" for row in found), ratio)
    for variant, known_tau in PAPER.items():
        cells = (f"{known_tau[g]:.2f}" if g in known_tau else "" for g in bench.args.g)
        ratio = f"{known_tau[5] / PAPER['kangaroo'][5]:.2f}"
        report.add("15 of 32", f"{variant}, CATS paper", *cells, ratio)
    report.notes.append(f"{different} of {total} replies differ from plain ones.")
    report.notes.append("In brackets: 95 % of 2000 draws of as many prompts.")
    return report


def compared(ours: Row, base: Row) -> str:
    """The ratio of tokens per cycle, and how far the choice of prompts moves it."""
    if "tau" not in ours or "tau" not in base:
        return ""
    ratio = f"{ours['tau'] / base['tau']:.2f}"
    if ours is base or "each" not in ours or "each" not in base:
        return ratio
    pairs = np.stack([ours["each"], base["each"]])  # [2, prompts, 2]: tokens, cycles
    drawn = np.random.default_rng(0).integers(0, pairs.shape[1], (2000, pairs.shape[1]))
    sums = pairs[:, drawn].sum(2)  # [2, draws, 2]
    tau = sums[..., 0] / sums[..., 1]
    low, high = np.percentile(tau[0] / tau[1], [2.5, 97.5])
    return f"{ratio} ({low:.2f}–{high:.2f})"


def layer_traffic(target: Path, drafting: int, g: int) -> float:
    """Bytes of layers that a cycle reads from memory: those of the first `drafting` in each of g steps, the
    others once. That is the numerator of the paper's BPT, Eq. 3 and 4, for two stages and for three; its
    Table 5 counts 10 draft layers for Kangaroo, which has 3."""
    from edgespec.runtimes.formats.describe import describe_model

    table = describe_model(target).table
    sizes = [sum(c.nbytes for c in table.chunks if c.layer == layer) for layer in range(table.layers)]
    return g * sum(sizes[:drafting]) + sum(sizes[drafting:])


def speeds(bench: Bench, dial: int) -> Report:
    """Tokens per cycle of the small model at the depth that the dial allows / seconds of the big one."""
    rows, at = bench.store.rows, format_bytes(dial)
    columns = [
        "variant",
        "L_SV",
        "g",
        "tokens a cycle",
        "cycle, s",
        "tokens/s",
        "× plain",
        "× nothing pinned",
    ]
    more = ["GB streamed a token", "GB of layers read from memory a token", "by the paper's BPT", "peak"]
    report = Report(f"Speed at {at}, best g", [*columns, *more])

    def medians(at: str, stem: str) -> list[float]:
        found = (rows.get(f"{at}/{stem}/{turn}", {}) for turn in range(bench.args.rounds))
        return [statistics.median(c["seconds"] for c in row["cycles"]) for row in found if "cycles" in row]

    # The same on every dial.
    bare = [s for dial in bench.args.dials for s in medians(format_bytes(dial), "plain, nothing pinned")]

    draft, known = inflated_depths(bench.args.target_adapters)

    def small(big: int) -> int:
        """The small model's depth for one of the big one. A low-bit copy verifies at any depth; tokens per
        cycle are then those of the next measured one above, which knows less."""
        return max((depth for at, depth in known.items() if at <= big), default=min(known.values()))

    plain = medians(at, "plain")
    if not plain or not bare:
        return report
    for label, values in (("plain, nothing pinned", bare), ("plain", plain)):
        speed = 1 / statistics.median(values)
        ratios = [f"{speed * statistics.median(other):.2f}" for other in (plain, bare)]
        report.add(label, "", "", "1", spread(values), f"{speed:.3f}", *ratios, "", "", "", "")
    for variant in (*VARIANTS, COPY):
        turns = [rows.get(f"{at}/cycles/{variant}/{turn}", {}) for turn in range(bench.args.rounds)]
        turns = [row for row in turns if "cycles" in row]
        if not turns:
            continue
        big = turns[0]["plan"]["must_pin_layers"]
        depth = small(big)
        best: tuple[float, list[str]] | None = None
        for g in bench.args.g:
            tau = rows.get(length_key(depth, variant, g), {}).get("tau")
            each = [[c for c in row["cycles"] if c["steps"] == g] for row in turns]
            if tau is None or not all(each):
                continue
            cycle = [statistics.median(c["seconds"] for c in part) for part in each]
            read = statistics.mean(c["bytes"] for part in each for c in part) / tau / 1e9
            speed = tau / statistics.median(cycle)
            against = [f"{speed * statistics.median(other):.2f}" for other in (plain, bare)]
            cells = [
                variant,
                f"{depth} ({big})",
                str(g),
                f"{tau:.2f}",
                spread(cycle),
                f"{speed:.3f}",
                *against,
            ]
            drafting = big if "deep" in variant else draft
            bpt = layer_traffic(bench.args.target, drafting, g) / tau / 1e9
            memory = statistics.mean(c["layers"] for part in each for c in part) / tau / 1e9
            cells += [
                f"{read:.2f}",
                f"{memory:.2f}",
                f"{bpt:.2f}",
                format_bytes(max(row["peak_memory"] for row in turns)),
            ]
            if best is None or speed > best[0]:
                best = speed, cells
        if best is not None:
            report.add(*best[1])
    return report


def replies(bench: Bench) -> Report:
    report = Report(
        "Whole replies, the engine's own drafts",
        ["dial", "replies", "tokens", "plain, tokens/s", "cascade, tokens/s", "×", "tokens a cycle", "peak"],
    )
    different = 0
    for dial in bench.args.dials:
        both = [bench.store.rows.get(f"{format_bytes(dial)}/replies/{d}", {}) for d in ("none", "cascade")]
        if not all("replies" in row for row in both):
            continue
        plain, ours = (row["replies"] for row in both)
        different += sum(not r["same"] for r in (*plain, *ours))
        tokens = sum(r["tokens"] for r in ours)
        # The first token of a reply is the prefill's.
        each = [(tokens - len(ours)) / sum(r["decode_seconds"] for r in part) for part in (plain, ours)]
        report.add(
            format_bytes(dial),
            str(len(ours)),
            str(tokens),
            *(f"{speed:.3f}" for speed in each),
            f"{each[1] / each[0]:.2f}",
            f"{tokens / sum(r['passes'] for r in ours):.2f}",
            format_bytes(both[1]["peak_memory"]),
        )
    report.notes.append(f"{different} replies differ from the small model's.")
    return report


def plot(bench: Bench, path: Path) -> None:
    """Tokens per cycle against g, a panel for each L_SV, below the ceiling g + 1."""
    from matplotlib.figure import Figure

    rows, depths = bench.store.rows, bench.args.verify
    figure = Figure(figsize=(4 * len(depths), 4), layout="constrained")
    panels = figure.subplots(1, len(depths), sharey=True, squeeze=False)
    for panel, depth in zip(panels[0], depths, strict=True):
        for variant in (*VARIANTS, COPY):
            found = [rows.get(length_key(depth, variant, g), {}).get("tau") for g in bench.args.g]
            if None not in found:
                panel.plot(bench.args.g, found, marker="o", label=variant)
        panel.plot(bench.args.g, [g + 1 for g in bench.args.g], color="gray", linestyle=":", label="ceiling")
        panel.set(title=f"L_SV = {depth}", xlabel="g, drafted tokens deep", xticks=bench.args.g)
    panels[0][0].set(ylabel="tokens a cycle", ylim=(1, None))
    panels[0][0].legend(fontsize="small")
    figure.savefig(path, dpi=100)
