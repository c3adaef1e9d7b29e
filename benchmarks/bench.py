"""What the benchmarks of drafting share: held-out texts as a small model says them, and cycles of a big one.

The target is a small model inflated (`models/inflate.py`), so a cycle costs a big model's and is accepted
like the small one's: speed = tokens per cycle (small model, held-out prompts) / seconds a cycle (big model).
Every measurement is kept in the results file as it is made; run a script again to go on, or to print its
tables."""

from __future__ import annotations

import argparse
import statistics
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property, partial
from pathlib import Path

from benchmarks.common import Row, arguments, compile_checkout, names, pack, sizes
from benchmarks.held_out import prompts, repetition, stories
from benchmarks.models.shapes import models_dir
from benchmarks.tables import RESULTS, Store
from benchmarks.worker import Worker
from edgespec.values import format_bytes

SMALL_MEMORY = 2 * 10**9  # dial of the small models, which need a tenth
LONGEST = 160  # tokens of a reply
STORIES = 8  # long replies for timing
OWN: Row = {"kind": "own"}  # a worker's mode: the product's own drafter and controller
Options = Sequence[str | Path | int]


@dataclass(frozen=True)
class Arm:
    """One way to draft: options for the big model, and for the small one."""

    name: str
    drafter: str
    big: Options = ()
    small: Options = ()


class Bench:
    """Keys in the store begin with the dial where it matters."""

    def __init__(self, args: argparse.Namespace) -> None:
        self.args = args
        self.store = Store(args.json or RESULTS / "drafting.json")
        self.arms = arms(args)

    @cached_property
    def plain_replies(self) -> Row:
        """What the small model says: to the held-out prompts, and to requests for stories."""
        small = self.args.small

        def measure() -> Row:
            asked = {"prompts": prompts(small, self.args.prompts), "stories": stories(small, STORIES)}
            return recorded(small, asked)

        return self.store.get("plain replies", measure)

    def long_replies(self, worker: Worker, count: int, mode: Row, first: int = 0) -> Row:
        """Replies until `count` cycles are timed; each has luck of its own."""
        cycles: list[Row] = []
        peak = 0
        asked = self.plain_replies["stories"]
        for turn in range(first, first + 8 * len(asked)):
            known = asked[turn % len(asked)]
            own = {**mode, "reply": known["reply"]} if mode["kind"] == "set" else mode
            left = count - len(cycles) + 2
            try:
                row = worker.run(known["prompt"], len(known["reply"]), own, cycles=left, seed=turn)
            except RuntimeError as error:  # a near tie fell otherwise than on the small model: the next one
                if "was recorded" not in str(error):
                    raise
                continue
            cycles += timed(row)
            peak = max(peak, row["peak_memory"])
            if len(cycles) >= count:
                return {"cycles": cycles, "peak_memory": peak, "plan": worker.loaded["plan"]}
        raise RuntimeError(f"only {len(cycles)} cycles in {8 * len(asked)} replies")

    def timed(self, dial: int, drafter: str, options: Options, mode: Row, first: int = 0) -> Row:
        """Cycles of every number of steps that the mode has, in turn."""
        _ = self.plain_replies  # made before this engine holds memory
        count = self.args.cycles * (len(mode["steps"]) if mode["kind"] == "set" else 1)
        with open_worker(self.args.target, dial, drafter, *options) as worker:
            return self.long_replies(worker, count, mode, first)

    def plain(self, dial: int, turn: int, pinned: bool = True) -> Row:
        """Plain decoding, as the plan has it or streaming all."""
        name = f"{format_bytes(dial)}/{'plain' if pinned else 'plain, nothing pinned'}/{turn}"
        options: Options = () if pinned else ("--resident-layers", 0)
        return self.store.get(name, partial(self.timed, dial, "none", options, OWN, turn))

    def rounds(self, stem: str) -> list[Row]:
        """The measurements `stem`/0, /1, ... that succeeded."""
        found = (self.store.rows.get(f"{stem}/{turn}", {}) for turn in range(self.args.rounds))
        return [row for row in found if row and "error" not in row]


def arms(args: argparse.Namespace) -> list[Arm]:
    """All that are asked for; low-bit copies are packed now where they are missing."""
    found = []
    for precision in ("int4", "int8"):
        if f"substitute {precision}" in args.arms:
            big, small = (
                pack(model, models_dir() / f"{model.name}-{precision}", "--precision", precision)
                for model in (args.target, args.small)
            )
            # On the small model every layer is drafted with its copy; the big one pins some as they are.
            every = ("--draft-model", small, "--resident-layers", 0)
            found.append(Arm(f"substitute {precision}", "substitute", ("--draft-model", big), every))
    if "model" in args.arms:
        drafts = (("--draft-model", path) for path in (args.draft, args.draft_small))
        found.append(Arm("model", "model", *drafts))
    if "ngram" in args.arms:
        found.append(Arm("ngram", "ngram"))
    return found


def bench_of(parser: argparse.ArgumentParser) -> Bench:
    """Parse the command line, and make what the arms need. Raises SystemExit."""
    args = parser.parse_args()
    if "model" in args.arms and (args.draft is None or args.draft_small is None):
        raise SystemExit("arm model needs --draft and --draft-small; or leave it out of --arms")
    compile_checkout()
    return Bench(args)


def drafting_arguments(doc: str | None) -> argparse.ArgumentParser:
    """What all of these scripts take; they share a results file."""
    parser = arguments(doc, rounds=3)
    parser.add_argument("--small", type=Path, required=True, help="the target, not inflated")
    parser.add_argument("--target", type=Path, required=True, help="the same, inflated")
    parser.add_argument("--draft-small", type=Path, help="for arm `model`: the draft model, not inflated")
    parser.add_argument("--draft", type=Path, help="the same, inflated")
    parser.add_argument("--dials", type=sizes, default=sizes("8GB,4GB"))
    known = "substitute int4,substitute int8,model,ngram"
    parser.add_argument("--arms", type=names, default=names(known), help=f"of {known}")
    parser.add_argument("--cycles", type=int, default=12, help="timed cycles a round and arm")
    parser.add_argument("--prompts", type=int, default=48, help="held-out prompts")
    return parser


def open_worker(model: Path, dial: int, drafter: str, *options: str | Path | int) -> Worker:
    """With room for 1024 positions unless the options say otherwise."""
    return Worker(model, dial, drafter, "--context", 1024, *options)


def recorded(model: Path, kinds: Mapping[str, Sequence[list[int]]]) -> Row:
    """By kind of prompt, what a small model says by itself: [{prompt, reply, repeats}]."""
    row: Row = {}
    with open_worker(model, SMALL_MEMORY, "none") as worker:
        for kind, texts in kinds.items():
            row[kind] = []
            for text in texts:
                said = worker.run(text, LONGEST, OWN)["tokens"]
                row[kind].append({"prompt": text, "reply": said, "repeats": repetition(text, said)})
    return row


def described(known: Sequence[Mapping[str, float]]) -> str:
    """Recorded replies, for a table's title."""
    length = statistics.mean(len(row["reply"]) for row in known)  # type: ignore[arg-type]
    repeats = statistics.mean(row["repeats"] for row in known)
    return (
        f"{len(known)} held-out prompts, replies of {length:.0f} tokens on average, {repeats:.0%} of their "
        "4-grams seen before"
    )


def timed(reply: Row) -> list[Row]:
    """The cycles whose time and tokens count: not the first (a full ring awaits it), nor the last (cut)."""
    cycles: list[Row] = reply["cycles"][1:-1]
    return cycles


def seconds(row: Row) -> float:
    """Median seconds a cycle."""
    return float(statistics.median(cycle["seconds"] for cycle in row["cycles"]))


def middle(rows: Iterable[Row]) -> float | None:
    """The median round's seconds a cycle; None without rounds."""
    return statistics.median(found) if (found := [seconds(row) for row in rows]) else None
