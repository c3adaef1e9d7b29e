"""What speed does a cascade give a big model? Seconds a cycle of an inflated target, and whole replies.

    python -m benchmarks.cascade_speed --small edgespec/demo_model --adapters edgespec/demo_model/cascade \\
        --target models/7b-inflated --target-adapters models/7b-adapters --g 5,10

Tokens per cycle are those of `cascade.py`, whose results file this goes on with; seconds are timed in turn
with plain decoding at the same dial, and with nothing pinned. With --replies, whole replies by plain decoding
and by the cascade as the engine itself drives it.
"""

from __future__ import annotations

import argparse
import json
import statistics
from functools import partial
from pathlib import Path

from benchmarks.bench import LONGEST, OWN, Options, open_worker, seconds, timed
from benchmarks.cascade import COPY, VARIANTS, Cascades, cascade_arguments, driven, open_cascade
from benchmarks.common import Row, compile_checkout, sizes
from benchmarks.tables import Report, spread
from benchmarks.worker import Worker
from edgespec.runtimes.formats.describe import describe_model
from edgespec.values import format_bytes

ROOM = ("--context", 384)  # positions of the big model's cache: for the longest prompt and reply here


class Speeds:
    """Seconds a cycle of the big model; keys in the store begin with the dial."""

    def __init__(self, cascades: Cascades) -> None:
        self.cascades, self.args, self.store = cascades, cascades.args, cascades.store

    def measure(self) -> None:
        for dial in self.args.dials:
            for turn in range(self.args.rounds):
                stem = format_bytes(dial)
                bare = ("--resident-layers", 0)
                self.store.get(f"{stem}/plain/{turn}", partial(self._plain, dial, (), turn))
                self.store.get(f"{stem}/plain, nothing pinned/{turn}", partial(self._plain, dial, bare, turn))
                for variant in self.args.variants:
                    if variant != COPY or self.args.target_copy is not None:
                        measure = partial(self._cycles, dial, variant, turn)
                        self.store.get(f"{stem}/cycles/{variant}/{turn}", measure)

    def _plain(self, dial: int, options: Options, turn: int) -> Row:
        with open_worker(self.args.target, dial, "none", *ROOM, *options) as worker:
            return self._timed(worker, OWN, self.args.cycles, turn)

    def _cycles(self, dial: int, variant: str, turn: int) -> Row:
        """Every g in turn, cycle by cycle."""
        args, options = self.args, ("--adapters", self.args.target_adapters, *ROOM)
        with open_cascade(args.target, dial, variant, args.target_copy, *options) as worker:
            return self._timed(worker, driven(variant, args.g), args.cycles * len(args.g), turn)

    def _timed(self, worker: Worker, mode: Row, count: int, turn: int) -> Row:
        found: list[Row] = []
        longest = sorted(self.cascades.asked, key=lambda known: -len(known["reply"]))
        for known in longest[turn:] + longest[:turn]:
            row = worker.run(known["prompt"], LONGEST, mode, cycles=count - len(found) + 2)
            found += timed(row)
            if len(found) >= count:
                break
        return {"cycles": found, "peak_memory": row["peak_memory"], "plan": worker.loaded["plan"]}

    def rounds(self, dial: int, stem: str) -> list[Row]:
        keys = (f"{format_bytes(dial)}/{stem}/{turn}" for turn in range(self.args.rounds))
        return [row for key in keys if "cycles" in (row := self.store.rows.get(key, {}))]

    def table(self, dial: int) -> Report:
        """Tokens per cycle of the small model at the depth that the dial allows / seconds of the big one."""
        columns = ["variant", "L_SV", "g", "tokens a cycle", "cycle, s", "tokens/s", "× plain"]
        columns += ["× nothing pinned", "GB streamed a token", "GB of layers read from memory a token"]
        report = Report(f"Speed at {format_bytes(dial)}, best g", [*columns, "by the paper's BPT", "peak"])
        # The same on every dial.
        bare = [seconds(r) for at in self.args.dials for r in self.rounds(at, "plain, nothing pinned")]
        plain = [seconds(row) for row in self.rounds(dial, "plain")]
        if not plain or not bare:
            return report
        draft, known = inflated_depths(self.args.target_adapters)

        def against(speed: float) -> list[str]:
            return [f"{speed * statistics.median(other):.2f}" for other in (plain, bare)]

        for label, values in (("plain, nothing pinned", bare), ("plain", plain)):
            speed = 1 / statistics.median(values)
            report.add(label, "", "", "1", spread(values), f"{speed:.3f}", *against(speed), "", "", "", "")
        for variant in (*VARIANTS, COPY):
            turns = self.rounds(dial, f"cycles/{variant}")
            if not turns:
                continue
            big = turns[0]["plan"]["must_pin_layers"]
            # A low-bit copy verifies at any depth; tokens per cycle are then those of the next measured depth
            # above, which knows less.
            depth = max((small for at, small in known.items() if at <= big), default=min(known.values()))
            best: tuple[float, list[str]] = (0.0, [])
            for g in self.args.g:
                tau = self.cascades.length(depth, variant, g).get("tau")
                each = [[c for c in row["cycles"] if c["steps"] == g] for row in turns]
                if tau is None or not all(each):
                    continue
                cycle = [statistics.median(c["seconds"] for c in part) for part in each]
                speed = tau / statistics.median(cycle)
                per = {k: statistics.mean(c[k] for p in each for c in p) / tau for k in ("bytes", "layers")}
                drafting = big if "deep" in variant else draft
                bpt = layer_traffic(self.args.target, drafting, g) / tau
                cells = [variant, f"{depth} ({big})", str(g), f"{tau:.2f}", spread(cycle), f"{speed:.3f}"]
                cells += [*against(speed), *(f"{n / 1e9:.2f}" for n in (*per.values(), bpt))]
                peak = format_bytes(max(row["peak_memory"] for row in turns))
                best = max(best, (speed, [*cells, peak]))
            if best[1]:
                report.add(*best[1])
        return report

    # whole replies

    def replies(self) -> Report:
        """By plain decoding, and by the cascade that the engine drives by itself."""
        columns = ["dial", "replies", "tokens", "plain, tokens/s", "cascade, tokens/s", "×"]
        report = Report("Whole replies, the engine's own drafts", [*columns, "tokens a cycle", "peak"])
        different = 0
        for dial in self.args.dials:
            ways = {"none": (), "cascade": ("--adapters", self.args.target_adapters)}
            both = [
                self.store.get(
                    f"{format_bytes(dial)}/replies/{way}", partial(self._replies, dial, way, options)
                )
                for way, options in ways.items()
            ]
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

    def _replies(self, dial: int, drafter: str, options: Options) -> Row:
        step = max(1, len(self.cascades.asked) // self.args.replies)
        found = []
        with open_worker(self.args.target, dial, drafter, *ROOM, *options) as worker:
            for known in self.cascades.asked[::step][: self.args.replies]:
                row = worker.run(known["prompt"], LONGEST, OWN)
                kept = {k: row[k] for k in ("prefill_seconds", "decode_seconds", "passes")}
                same = row["tokens"] == known["reply"]
                found.append({**kept, "tokens": len(row["tokens"]), "same": same})
        return {"replies": found, "peak_memory": row["peak_memory"], "plan": worker.loaded["plan"]}


def inflated_depths(adapters: Path) -> tuple[int, dict[int, int]]:
    """Of inflated adapters, the draft's depth; and by depth of a verifier, that of the small one
    (`models/inflate.py` writes it down)."""
    found = json.loads((adapters / "adapter.json").read_text())["adapters"]
    (draft,) = (a["depth"] for a in found if a["role"] == "draft")
    return draft, {a["depth"]: a["training"]["inflated from depth"] for a in found if a["role"] == "verify"}


def layer_traffic(target: Path, drafting: int, g: int) -> float:
    """Bytes of layers that a cycle reads from memory: those of the first `drafting` in each of g steps, the
    others once. That is the numerator of the paper's BPT, Eq. 3 and 4, for two stages and for three; its
    Table 5 counts 10 draft layers for Kangaroo, which has 3."""
    table = describe_model(target).table
    layers = [sum(c.nbytes for c in table.chunks if c.layer == layer) for layer in range(table.layers)]
    return g * sum(layers[:drafting]) + sum(layers[drafting:])


def parsed() -> argparse.Namespace:
    parser = cascade_arguments(__doc__)
    parser.add_argument("--target", type=Path, required=True, help="the model inflated")
    parser.add_argument("--target-adapters", type=Path, required=True, help="the adapters inflated")
    parser.add_argument("--target-copy", type=Path, help="the inflated model's low-bit copy")
    parser.add_argument("--dials", type=sizes, default=sizes("8GB,6GB,4GB"))
    parser.add_argument("--cycles", type=int, default=6, help="timed cycles a round, variant and g")
    parser.add_argument("--replies", type=int, default=0, help="whole replies to time at each dial")
    return parser.parse_args()


def main() -> None:
    args = parsed()
    compile_checkout()
    cascades = Cascades(args)
    print(cascades.lengths().markdown(), flush=True)
    speeds = Speeds(cascades)
    speeds.measure()
    if args.replies:
        print(speeds.replies().markdown())
    for dial in args.dials:
        print(speeds.table(dial).markdown())


if __name__ == "__main__":
    main()
