"""CATS beside Kangaroo: tokens per cycle of every variant, and the speed that makes of a big model.

    python benchmarks/cascade.py --small edgespec/demo_model --adapters edgespec/demo_model/cascade
    python benchmarks/cascade.py ... --target models/7b-inflated --target-adapters models/7b-adapters

All variants have the same target, adapters, prompts and pinned layers; drafts are always g steps deep, so
that a cycle gives g + 1 tokens at most. Tokens per cycle are the small model's, for every variant, g and
depth L_SV of the verifier; with an inflated --target, seconds a cycle are timed in turn with plain decoding
at the same dial, and with nothing pinned. Every measurement is kept in the results file as it is made; run
again to go on, or to print the tables.
"""

from __future__ import annotations

import argparse
import json
import statistics
from collections.abc import Sequence
from functools import cached_property, partial
from pathlib import Path

from common import Report, Row, arguments, compile_checkout, format_bytes, sizes, spread
from draft_worker import DraftWorker, open_worker, recorded, timed
from drafting_parts import LONGEST, SMALL_MEMORY
from held_out import described, prompts, text_prompts
from store import Store

GAMMAS = (3, 5, 7, 10)
VARIANTS = ("kangaroo", "chain", "kangaroo-tree", "tree", "deep", "deep-tree")
CONTEXT = 384  # positions of the big model's cache: room for the longest prompt and reply here
PAPER = {"kangaroo": (2.25, 2.49, 2.63, 2.71), "chain": (2.71, 3.05, 3.23, 3.33)}  # Vicuna-7B, Table 5
COPY = "substitute"  # a low-bit copy of the streamed layers verifies in place of an adapter: `tree` with it
WITHOUT = ("kangaroo", "kangaroo-tree", COPY)  # an adapter at L_SV: the same at every depth


def length_key(depth: int, variant: str, g: int) -> str:
    """Of tokens per cycle in the store."""
    return f"lengths/{'any' if variant in WITHOUT else depth}/{variant}/{g}"


class Bench:
    """Keys in the store name what was measured."""

    def __init__(self, store: Store, args: argparse.Namespace) -> None:
        self.store, self.args = store, args

    @cached_property
    def asked(self) -> list[Row]:
        """Held-out prompts, and what the small model says to them."""

        def measure() -> Row:
            if self.args.text:
                asked = text_prompts(self.args.small, self.args.text, self.args.prompts)
            else:
                asked = prompts(self.args.small, self.args.prompts)
            return recorded(self.args.small, SMALL_MEMORY, {"prompts": asked}, LONGEST)

        found: list[Row] = self.store.get("plain replies", measure)["prompts"]
        return found

    # tokens per cycle

    def lengths(self) -> None:
        asked = self.asked
        for depth in self.args.verify:
            for variant in (*VARIANTS, *([COPY] if self.args.copy else [])):
                keys = {g: length_key(depth, variant, g) for g in GAMMAS}
                if all("tau" in self.store.rows.get(stored, {}) for stored in keys.values()):
                    continue
                with self.cascade(
                    self.args.small, SMALL_MEMORY, variant, self.args.adapters, depth
                ) as worker:
                    for g, stored in keys.items():
                        self.store.get(stored, partial(self._lengths, worker, asked, variant, g))

    def cascade(
        self, model: Path, dial: int, variant: str, adapters: Path, depth: int | None = None
    ) -> DraftWorker:
        options: list[str | Path | int] = ["--adapters", adapters]
        options += [] if depth is None else ["--resident-layers", depth]
        if model == self.args.target:
            options += ["--context", CONTEXT]
        if variant != COPY:
            return open_worker(model, dial, "cascade", *options)
        copy = self.args.copy if model == self.args.small else self.args.target_copy
        return open_worker(model, dial, "cascade+substitute", *options, "--draft-model", copy)

    def _lengths(self, worker: DraftWorker, asked: list[Row], variant: str, g: int) -> Row:
        tokens = cycles = same = 0
        for place, known in enumerate(asked):
            mode = {"kind": "fixed", "steps": [g], "variant": name(variant), "fresh": place == 0}
            row = worker.run(known["prompt"], LONGEST, mode)
            # The last cycle of a reply is cut by its end, whoever drafts.
            tokens += sum(c["tokens"] for c in row["cycles"][:-1])
            cycles += len(row["cycles"]) - 1
            same += row["tokens"] == known["reply"]
        return {"tau": tokens / cycles, "cycles": cycles, "same": same, "replies": len(asked)}

    # seconds a cycle

    def cycles(self) -> None:
        for dial in self.args.dials:
            for turn in range(self.args.rounds):
                for pinned in (True, False):
                    options = () if pinned else ("--resident-layers", 0)
                    key = f"{format_bytes(dial)}/{'plain' if pinned else 'plain, nothing pinned'}/{turn}"
                    self.store.get(key, partial(self._plain, dial, options, turn))
                for variant in (*VARIANTS, *([COPY] if self.args.target_copy else [])):
                    key = f"{format_bytes(dial)}/cycles/{variant}/{turn}"
                    self.store.get(key, partial(self._cycles, dial, variant, turn))

    def _plain(self, dial: int, options: Sequence[str | int], turn: int) -> Row:
        with open_worker(self.args.target, dial, "none", "--context", CONTEXT, *options) as worker:
            return self._timed(worker, {"kind": "own"}, self.args.cycles, turn)

    def _cycles(self, dial: int, variant: str, turn: int) -> Row:
        """Every g in turn, cycle by cycle."""
        with self.cascade(self.args.target, dial, variant, self.args.target_adapters) as worker:
            mode = {"kind": "fixed", "steps": list(GAMMAS), "variant": name(variant)}
            return self._timed(worker, mode, self.args.cycles * len(GAMMAS), turn)

    def _timed(self, worker: DraftWorker, mode: Row, count: int, turn: int) -> Row:
        found: list[Row] = []
        longest = sorted(self.asked, key=lambda known: -len(known["reply"]))
        for known in longest[turn:] + longest[:turn]:
            row = worker.run(known["prompt"], LONGEST, mode, cycles=count - len(found) + 2)
            found += timed(row)
            if len(found) >= count:
                break
        return {"cycles": found, "peak_memory": row["peak_memory"], "plan": worker.loaded["plan"]}


def name(variant: str) -> str:
    """As the product calls it."""
    return "tree" if variant == COPY else variant


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
        ["L_SV", "variant", *(f"g = {g} (at most {g + 1})" for g in GAMMAS), "× Kangaroo at g = 5"],
    )
    different = total = 0
    base = rows.get(length_key(0, "kangaroo", 5), {}).get("tau")
    places: list[tuple[int, str]] = [(0, variant) for variant in WITHOUT]
    places += [(depth, v) for depth in bench.args.verify for v in VARIANTS if v not in WITHOUT]
    for depth, variant in places:
        found = [rows.get(length_key(depth, variant, g), {}) for g in GAMMAS]
        if not all("tau" in row for row in found):
            continue
        different += sum(row["replies"] - row["same"] for row in found)
        total += sum(row["replies"] for row in found)
        ratio = f"{found[1]['tau'] / base:.2f}" if base else ""
        report.add(str(depth or ""), variant, *(f"{row['tau']:.2f}" for row in found), ratio)
    for variant, found in PAPER.items():
        ratio = found[1] / PAPER["kangaroo"][1]
        report.add("15 of 32", f"{variant}, CATS paper", *(f"{tau:.2f}" for tau in found), f"{ratio:.2f}")
    report.notes.append(f"{different} of {total} replies differ from plain ones.")
    return report


def layer_traffic(target: Path, drafting: int, g: int) -> float:
    """Bytes of layers that a cycle reads from memory: those of the first `drafting` in each of g steps, the
    others once. That is the numerator of the paper's BPT, Eq. 3 and 4, for two stages and for three; its
    Table 5 counts 10 draft layers for Kangaroo, which has 3."""
    from edgespec.runtimes.torch.open import describe_model

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
    report = Report(f"Speed at {at}, best g", [*columns, "GB read a token", "BPT, GB", "peak"])

    def medians(stem: str) -> list[float]:
        found = (rows.get(f"{at}/{stem}/{turn}", {}) for turn in range(bench.args.rounds))
        return [statistics.median(c["seconds"] for c in row["cycles"]) for row in found if "cycles" in row]

    draft, known = inflated_depths(bench.args.target_adapters)

    def small(big: int) -> int:
        """The small model's depth for one of the big one. A low-bit copy verifies at any depth; tokens per
        cycle are then those of the next measured one above, which knows less."""
        return max((depth for at, depth in known.items() if at <= big), default=min(known.values()))

    plain, bare = medians("plain"), medians("plain, nothing pinned")
    if not plain or not bare:
        return report
    for label, values in (("plain, nothing pinned", bare), ("plain", plain)):
        speed = 1 / statistics.median(values)
        ratios = [f"{speed * statistics.median(other):.2f}" for other in (plain, bare)]
        report.add(label, "", "", "1", spread(values), f"{speed:.3f}", *ratios, "", "", "")
    for variant in (*VARIANTS, COPY):
        turns = [rows.get(f"{at}/cycles/{variant}/{turn}", {}) for turn in range(bench.args.rounds)]
        turns = [row for row in turns if "cycles" in row]
        if not turns:
            continue
        big = turns[0]["plan"]["cascade_layers"]
        depth = small(big)
        best: tuple[float, list[str]] | None = None
        for g in GAMMAS:
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
            cells += [f"{read:.2f}", f"{bpt:.2f}", format_bytes(max(row["peak_memory"] for row in turns))]
            if best is None or speed > best[0]:
                best = speed, cells
        if best is not None:
            report.add(*best[1])
    return report


def plot(bench: Bench, path: Path) -> None:
    """Tokens per cycle against g, a panel for each L_SV, below the ceiling g + 1."""
    from matplotlib.figure import Figure

    rows, depths = bench.store.rows, bench.args.verify
    figure = Figure(figsize=(4 * len(depths), 4), layout="constrained")
    panels = figure.subplots(1, len(depths), sharey=True, squeeze=False)
    for panel, depth in zip(panels[0], depths, strict=True):
        for variant in (*VARIANTS, COPY):
            found = [rows.get(length_key(depth, variant, g), {}).get("tau") for g in GAMMAS]
            if None not in found:
                panel.plot(GAMMAS, found, marker="o", label=variant)
        panel.plot(GAMMAS, [g + 1 for g in GAMMAS], color="gray", linestyle=":", label="ceiling")
        panel.set(title=f"L_SV = {depth}", xlabel="g, drafted tokens deep", xticks=GAMMAS)
    panels[0][0].set(ylabel="tokens a cycle", ylim=(1, None))
    panels[0][0].legend(fontsize="small")
    figure.savefig(path, dpi=100)


def main() -> None:
    parser = arguments(__doc__, rounds=2)
    parser.add_argument("--small", type=Path, required=True, help="the target, not inflated")
    parser.add_argument("--adapters", type=Path, required=True, help="its adapters, several verifiers deep")
    parser.add_argument("--copy", type=Path, help="its packed low-bit copy")
    parser.add_argument("--text", type=Path, help="held-out text to take prompts from; default: the demo's")
    parser.add_argument("--target", type=Path, help="the model inflated; with it, speeds are measured")
    parser.add_argument("--target-adapters", type=Path, help="the adapters inflated")
    parser.add_argument("--target-copy", type=Path, help="the inflated model's low-bit copy")
    parser.add_argument("--dials", type=sizes, default=sizes("8GB,6GB,4GB"))
    parser.add_argument("--verify", type=lambda text: [int(d) for d in text.split(",")], default=[3, 5, 7])
    parser.add_argument("--prompts", type=int, default=48)
    parser.add_argument("--cycles", type=int, default=6, help="timed cycles a round, variant and g")
    parser.add_argument("--plot", type=Path, help="a PNG of tokens per cycle to draw")
    args = parser.parse_args()
    compile_checkout()
    bench = Bench(Store(args.json or Path(__file__).parent / "results" / "cascade.json"), args)
    bench.lengths()
    print(lengths(bench).markdown())
    if args.plot:
        plot(bench, args.plot)
    if args.target:
        bench.cycles()
        for dial in args.dials:
            print(speeds(bench, dial).markdown())


if __name__ == "__main__":
    main()
