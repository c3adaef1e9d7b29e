"""What do CATS and its variants bring over Kangaroo? Tokens per cycle of every variant, and a plot.

    python -m benchmarks.cascade --small edgespec/demo_model --adapters edgespec/demo_model/cascade

All variants have the same target, adapters, prompts and pinned layers; drafts are always g steps deep, so
that a cycle gives g + 1 tokens at most. Every measurement is kept in the results file as it is made; run
again to go on, or to print the table. `cascade_speed.py` goes on with an inflated model."""

from __future__ import annotations

import argparse
from functools import cached_property, partial
from pathlib import Path

import numpy as np

from benchmarks.bench import LONGEST, SMALL_MEMORY, described, open_worker, recorded
from benchmarks.common import Row, arguments, compile_checkout, names, numbers
from benchmarks.held_out import prompts, text_prompts
from benchmarks.tables import RESULTS, Report, Store
from benchmarks.worker import Worker

VARIANTS = ("kangaroo", "chain", "kangaroo-tree", "tree", "deep", "deep-tree")
COPY = "substitute"  # a low-bit copy of the streamed layers verifies in place of an adapter: `tree` with it
WITHOUT = ("kangaroo", "kangaroo-tree", COPY)  # an adapter at L_SV: the same at every depth
PAPER = {  # Vicuna-7B, Table 5
    "kangaroo": {3: 2.25, 5: 2.49, 7: 2.63, 10: 2.71},
    "chain": {3: 2.71, 5: 3.05, 7: 3.23, 10: 3.33},
}


class Cascades:
    """Keys in the store name what was measured."""

    def __init__(self, args: argparse.Namespace) -> None:
        self.args = args
        self.store = Store(args.json or RESULTS / "cascade.json")

    @cached_property
    def asked(self) -> list[Row]:
        """Held-out prompts, and what the small model says to them."""
        small, text, count = self.args.small, self.args.text, self.args.prompts

        def measure() -> Row:
            asked = text_prompts(small, text, count) if text else prompts(small, count)
            return recorded(small, {"prompts": asked})

        found: list[Row] = self.store.get("plain replies", measure)["prompts"]
        return found

    def lengths(self) -> Report:
        """Tokens per cycle by variant, g and depth of the verifier."""
        for depth in self.args.verify:
            for variant in self.args.variants:
                keys = {g: length_key(depth, variant, g) for g in self.args.g}
                made = all("tau" in self.store.rows.get(key, {}) for key in keys.values())
                if made or (variant == COPY and self.args.copy is None):
                    continue
                options = ("--adapters", self.args.adapters, "--resident-layers", depth)
                with open_cascade(self.args.small, SMALL_MEMORY, variant, self.args.copy, *options) as worker:
                    for g, key in keys.items():
                        self.store.get(key, partial(self._lengths, worker, variant, g))
        return self._table()

    def _lengths(self, worker: Worker, variant: str, g: int) -> Row:
        each: list[tuple[int, int]] = []
        same = 0
        for place, known in enumerate(self.asked):
            mode = {**driven(variant, [g]), "fresh": place == 0}
            row = worker.run(known["prompt"], LONGEST, mode)
            # The last cycle of a reply is cut by its end, whoever drafts.
            whole = row["cycles"][:-1]
            each.append((sum(c["tokens"] for c in whole), len(whole)))
            same += row["tokens"] == known["reply"]
        tokens, cycles = (sum(column) for column in zip(*each, strict=True))
        return {"tau": tokens / cycles, "each": each, "same": same, "replies": len(each)}

    def length(self, depth: int, variant: str, g: int) -> Row:
        """What was measured; empty when it was not."""
        row: Row = self.store.rows.get(length_key(depth, variant, g), {})
        return row if "tau" in row else {}

    def _table(self) -> Report:
        columns = [
            "L_SV",
            "variant",
            *(f"g = {g} (at most {g + 1})" for g in self.args.g),
            "× Kangaroo at g = 5",
        ]
        report = Report(f"Tokens per cycle, {described(self.asked)}", columns)
        different = total = 0
        base = self.length(0, "kangaroo", 5)
        places: list[tuple[int, str]] = [(0, variant) for variant in WITHOUT]
        places += [(depth, v) for depth in self.args.verify for v in VARIANTS if v not in WITHOUT]
        for depth, variant in places:
            found = [self.length(depth, variant, g) for g in self.args.g]
            if not all(found):
                continue
            different += sum(row["replies"] - row["same"] for row in found)
            total += sum(row["replies"] for row in found)
            ratio = compared(self.length(depth, variant, 5), base)
            report.add(str(depth or ""), variant, *(f"{row['tau']:.2f}" for row in found), ratio)
        for variant, known in PAPER.items():
            cells = (f"{known[g]:.2f}" if g in known else "" for g in self.args.g)
            ratio = f"{known[5] / PAPER['kangaroo'][5]:.2f}"
            report.add("15 of 32", f"{variant}, CATS paper", *cells, ratio)
        report.notes.append(f"{different} of {total} replies differ from plain ones.")
        report.notes.append("In brackets: 95 % of 2000 draws of as many prompts.")
        return report

    def plot(self, path: Path) -> None:
        """Tokens per cycle against g, a panel for each L_SV, below the ceiling g + 1."""
        from matplotlib.figure import Figure

        depths, gs = self.args.verify, self.args.g
        figure = Figure(figsize=(4 * len(depths), 4), layout="constrained")
        panels = figure.subplots(1, len(depths), sharey=True, squeeze=False)
        for panel, depth in zip(panels[0], depths, strict=True):
            for variant in (*VARIANTS, COPY):
                found = [self.length(depth, variant, g).get("tau") for g in gs]
                if None not in found:
                    panel.plot(gs, found, marker="o", label=variant)
            panel.plot(gs, [g + 1 for g in gs], color="gray", linestyle=":", label="ceiling")
            panel.set(title=f"L_SV = {depth}", xlabel="g, drafted tokens deep", xticks=gs)
        panels[0][0].set(ylabel="tokens a cycle", ylim=(1, None))
        panels[0][0].legend(fontsize="small")
        figure.savefig(path, dpi=100)


def length_key(depth: int, variant: str, g: int) -> str:
    """Of tokens per cycle in the store."""
    return f"lengths/{'any' if variant in WITHOUT else depth}/{variant}/{g}"


def driven(variant: str, steps: list[int]) -> Row:
    """A worker's mode: the variant, by the product's name, with the next of these g each cycle."""
    return {"kind": "fixed", "steps": steps, "variant": "tree" if variant == COPY else variant}


def open_cascade(
    model: Path, dial: int, variant: str, copy: Path | None, *options: str | Path | int
) -> Worker:
    if variant != COPY:
        return open_worker(model, dial, "cascade", *options)
    assert copy is not None
    return open_worker(model, dial, "cascade+substitute", *options, "--draft-model", copy)


def compared(ours: Row, base: Row) -> str:
    """The ratio of tokens per cycle, and how far the choice of prompts moves it."""
    if not ours or not base:
        return ""
    ratio = f"{ours['tau'] / base['tau']:.2f}"
    if ours is base:
        return ratio
    pairs = np.stack([ours["each"], base["each"]])  # [2, prompts, 2]: tokens, cycles
    drawn = np.random.default_rng(0).integers(0, pairs.shape[1], (2000, pairs.shape[1]))
    sums = pairs[:, drawn].sum(2)  # [2, draws, 2]
    tau = sums[..., 0] / sums[..., 1]
    low, high = np.percentile(tau[0] / tau[1], [2.5, 97.5])
    return f"{ratio} ({low:.2f}–{high:.2f})"


def cascade_arguments(doc: str | None) -> argparse.ArgumentParser:
    parser = arguments(doc, rounds=2)
    parser.add_argument("--small", type=Path, required=True, help="the target, not inflated")
    parser.add_argument("--adapters", type=Path, required=True, help="its adapters, several verifiers deep")
    parser.add_argument("--copy", type=Path, help="its packed low-bit copy")
    parser.add_argument("--text", type=Path, help="held-out text to take prompts from; default: the demo's")
    parser.add_argument("--g", type=numbers, default=[3, 5, 7, 10], help="drafted tokens deep")
    parser.add_argument("--verify", type=numbers, default=[3, 5, 7], help="the verifier's layers, L_SV")
    parser.add_argument("--variants", type=names, default=[*VARIANTS, COPY])
    parser.add_argument("--prompts", type=int, default=48)
    return parser


def main() -> None:
    parser = cascade_arguments(__doc__)
    parser.add_argument("--plot", type=Path, help="a PNG of tokens per cycle to draw")
    args = parser.parse_args()
    compile_checkout()
    cascades = Cascades(args)
    print(cascades.lengths().markdown())
    if args.plot:
        cascades.plot(args.plot)


if __name__ == "__main__":
    main()
