"""CATS beside Kangaroo: tokens per cycle of every variant, and the speed that makes of a big model.

    python -m benchmarks.cascade --small edgespec/demo_model --adapters edgespec/demo_model/cascade
    python -m benchmarks.cascade ... --target models/7b-inflated --target-adapters models/7b-adapters

All variants have the same target, adapters, prompts and pinned layers; drafts are always g steps deep, so
that a cycle gives g + 1 tokens at most. Tokens per cycle are the small model's, for every variant, g and
depth L_SV of the verifier; with an inflated --target, seconds a cycle are timed in turn with plain decoding
at the same dial, and with nothing pinned; and with --replies, whole replies by plain decoding and by the
cascade as the engine itself drives it. Every measurement is kept in the results file as it is made; run again
to go on, or to print the tables.
"""

from __future__ import annotations

import argparse
from collections.abc import Sequence
from functools import cached_property, partial
from pathlib import Path

from benchmarks.cascade_tables import COPY, VARIANTS, length_key, lengths, plot, replies, speeds
from benchmarks.common import Row, arguments, compile_checkout, format_bytes, sizes
from benchmarks.draft_worker import DraftWorker, open_worker, recorded, timed
from benchmarks.drafting_parts import LONGEST, SMALL_MEMORY
from benchmarks.held_out import prompts, text_prompts
from benchmarks.store import Store

CONTEXT = 384  # positions of the big model's cache: room for the longest prompt and reply here


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

    def variants(self, copy: Path | None) -> list[str]:
        return [v for v in self.args.variants if v != COPY or copy is not None]

    # tokens per cycle

    def lengths(self) -> None:
        asked = self.asked
        for depth in self.args.verify:
            for variant in self.variants(self.args.copy):
                keys = {g: length_key(depth, variant, g) for g in self.args.g}
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
        each: list[tuple[int, int]] = []
        same = 0
        for place, known in enumerate(asked):
            mode = {"kind": "fixed", "steps": [g], "variant": name(variant), "fresh": place == 0}
            row = worker.run(known["prompt"], LONGEST, mode)
            # The last cycle of a reply is cut by its end, whoever drafts.
            whole = row["cycles"][:-1]
            each.append((sum(c["tokens"] for c in whole), len(whole)))
            same += row["tokens"] == known["reply"]
        tokens, cycles = (sum(column) for column in zip(*each, strict=True))
        return {"tau": tokens / cycles, "each": each, "same": same, "replies": len(asked)}

    # seconds a cycle

    def cycles(self) -> None:
        for dial in self.args.dials:
            for turn in range(self.args.rounds):
                for pinned in (True, False):
                    options = () if pinned else ("--resident-layers", 0)
                    key = f"{format_bytes(dial)}/{'plain' if pinned else 'plain, nothing pinned'}/{turn}"
                    self.store.get(key, partial(self._plain, dial, options, turn))
                for variant in self.variants(self.args.target_copy):
                    key = f"{format_bytes(dial)}/cycles/{variant}/{turn}"
                    self.store.get(key, partial(self._cycles, dial, variant, turn))

    def replies(self) -> None:
        """Whole replies, by plain decoding and by the cascade that the engine drives by itself."""
        for dial in self.args.dials:
            for drafter in ("none", "cascade"):
                key = f"{format_bytes(dial)}/replies/{drafter}"
                self.store.get(key, partial(self._replies, dial, drafter))

    def _replies(self, dial: int, drafter: str) -> Row:
        options: list[str | Path | int] = ["--context", CONTEXT]
        options += ["--adapters", self.args.target_adapters] if drafter == "cascade" else []
        step = max(1, len(self.asked) // self.args.replies)
        asked, found = self.asked[::step][: self.args.replies], []
        with open_worker(self.args.target, dial, drafter, *options) as worker:
            for known in asked:
                row = worker.run(known["prompt"], LONGEST, {"kind": "own"})
                kept = {k: row[k] for k in ("prefill_seconds", "decode_seconds", "passes", "bytes_per_token")}
                same = row["tokens"] == known["reply"]
                found.append({**kept, "tokens": len(row["tokens"]), "same": same})
        return {"replies": found, "peak_memory": row["peak_memory"], "plan": worker.loaded["plan"]}

    def _plain(self, dial: int, options: Sequence[str | int], turn: int) -> Row:
        with open_worker(self.args.target, dial, "none", "--context", CONTEXT, *options) as worker:
            return self._timed(worker, {"kind": "own"}, self.args.cycles, turn)

    def _cycles(self, dial: int, variant: str, turn: int) -> Row:
        """Every g in turn, cycle by cycle."""
        with self.cascade(self.args.target, dial, variant, self.args.target_adapters) as worker:
            mode = {"kind": "fixed", "steps": self.args.g, "variant": name(variant)}
            return self._timed(worker, mode, self.args.cycles * len(self.args.g), turn)

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


def numbers(text: str) -> list[int]:
    return [int(number) for number in text.split(",")]


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
    parser.add_argument("--g", type=numbers, default=[3, 5, 7, 10], help="drafted tokens deep")
    parser.add_argument("--verify", type=numbers, default=[3, 5, 7], help="the verifier's layers, L_SV")
    parser.add_argument("--variants", type=lambda text: text.split(","), default=[*VARIANTS, COPY])
    parser.add_argument("--prompts", type=int, default=48)
    parser.add_argument("--cycles", type=int, default=6, help="timed cycles a round, variant and g")
    parser.add_argument("--replies", type=int, default=0, help="whole replies to time at each dial")
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
        if args.replies:
            bench.replies()
            print(replies(bench).markdown())
        for dial in args.dials:
            print(speeds(bench, dial).markdown())


if __name__ == "__main__":
    main()
