"""Ways to draft, and how they are measured: tokens per cycle of a small model, seconds a cycle of a big one.

The big one is the small one inflated (`models/inflate.py`), so a cycle costs a big model's and is accepted
like the small one's: speed = tokens per cycle (small model, held-out prompts) / seconds a cycle (big model).
Every measurement is kept in the results file as it is made; run a script again to go on, or to print its
tables."""

from __future__ import annotations

import argparse
import statistics
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from functools import cached_property
from pathlib import Path
from typing import Any

from benchmarks.common import Row, arguments, compile_checkout, names, numbers, pack, paths, sizes
from benchmarks.held_out import prompts, repetition, stories, text_prompts
from benchmarks.models.shapes import models_dir
from benchmarks.tables import RESULTS, Store
from benchmarks.worker import Worker
from edgespec.drafters.cascade.variant import VARIANTS
from edgespec.runtimes.formats.trained import trained_kind

SMALL_MEMORY = 2 * 10**9  # dial of the small models, which need a tenth
LONGEST = 160  # tokens of a reply
STORIES = 8  # long replies for timing
CONTEXT = 1024  # positions
OWN: Row = {"kind": "own"}  # a worker's mode: the product's own drafter and controller
LOW_BIT = "cascade+substitute"  # a tree that the int4 copy verifies in place of an adapter

Options = Mapping[str, Any]  # of EngineOptions


@dataclass(frozen=True)
class Arm:
    """One way to draft: options for the small model, and for the big one.

    variant: of a cascade, by the product's name.
    depths: of the shallow verifiers to try on the small model, L_SV; 0 = the arm has none.
    """

    name: str
    drafter: str
    small: Options = field(default_factory=dict)
    big: Options = field(default_factory=dict)
    variant: str | None = None
    depths: Sequence[int] = (0,)

    def steps(self, asked: Sequence[int]) -> Sequence[int]:
        """Numbers of drafting steps; n-grams have none, their drafts are free."""
        return [0] if self.drafter == "ngram" else asked

    def mode(self, *steps: int) -> Row:
        """A worker's: cycle by cycle with the next of these numbers of steps."""
        return {"kind": "fixed", "steps": steps, "variant": self.variant}

    def on_small(self, depth: int) -> Options:
        return {**self.small, "resident_layers": depth} if depth else self.small


class Bench:
    """The arms, what they are asked, and the results file; keys of timings begin with the dial."""

    def __init__(self, parser: argparse.ArgumentParser) -> None:
        """Makes what the arms need. Raises SystemExit."""
        self.args = args = parser.parse_args()
        compile_checkout()
        self.store = Store(args.json or RESULTS / "drafting.json")
        self.arms = [arm_of(name, args) for name in args.arms or known_arms(args)]

    @cached_property
    def prompts(self) -> list[Row]:
        """Held-out prompts and what the small model says to them by itself: [{prompt, reply, repeats}]."""
        small, count, text = self.args.small, self.args.prompts, self.args.text
        return self._recorded("prompts", text_prompts(small, text, count) if text else prompts(small, count))

    @cached_property
    def stories(self) -> list[Row]:
        """The same of requests for stories, whose replies are long."""
        if self.args.text:
            return self.prompts[:STORIES]
        return self._recorded("stories", stories(self.args.small, STORIES))

    def _recorded(self, kind: str, asked: list[list[int]]) -> list[Row]:
        def measure() -> Row:
            with open_worker(self.args.small, SMALL_MEMORY, "none") as worker:
                said = [worker.run(text, LONGEST, OWN)["tokens"] for text in asked]
            pairs = zip(asked, said, strict=True)
            return {"known": [{"prompt": p, "reply": r, "repeats": repetition(p, r)} for p, r in pairs]}

        known: list[Row] = self.store.need(f"plain replies/{kind}", measure)["known"]
        return known

    def cycles(self, worker: Worker, count: int, mode: Row, first: int = 0) -> Row:
        """So many timed cycles of long replies, each with luck of its own."""
        found: list[Row] = []
        peak = 0
        asked = self.stories
        for turn in range(first, first + 8 * len(asked)):
            known = asked[turn % len(asked)]
            left = count - len(found) + 2
            job = {**mode, "reply": known["reply"]}
            try:
                row = worker.run(known["prompt"], len(known["reply"]), job, cycles=left, seed=turn)
            except RuntimeError as error:  # a near tie fell otherwise than on the small model: the next one
                if "was recorded" not in str(error):
                    raise
                continue
            found += whole(row)
            peak = max(peak, row["peak_memory"])
            if len(found) >= count:
                return {"cycles": found, "peak_memory": peak, "plan": worker.loaded["plan"]}
        raise RuntimeError(f"only {len(found)} cycles in {8 * len(asked)} replies")

    def timed(self, dial: int, drafter: str, options: Options, mode: Row, first: int = 0) -> Row:
        """Cycles of the big model, of every number of steps that the mode has in turn."""
        _ = self.stories  # made before this engine holds memory
        count = self.args.cycles * len(mode.get("steps", [0]))
        with open_worker(self.args.target, dial, drafter, **options) as worker:
            return self.cycles(worker, count, mode, first)

    def rounds(self, stem: str) -> list[Row]:
        """The measurements `stem`/0, /1, ... that succeeded."""
        found = (self.store.rows.get(f"{stem}/{turn}", {}) for turn in range(self.args.rounds))
        return [row for row in found if row and "error" not in row]


def known_arms(args: argparse.Namespace) -> list[str]:
    """All that there are files for."""
    found = ["substitute int4", "ngram"]
    found += ["model"] if args.draft_small else []
    found += [path.name for path in args.trained]
    return found + ([*VARIANTS, LOW_BIT] if args.adapters else [])


def arm_of(name: str, args: argparse.Namespace) -> Arm:
    """Low-bit copies are packed now where they are missing. Raises SystemExit for files that it lacks."""
    drafter, _, precision = name.partition(" ")
    small: Options
    big: Options
    if name == "ngram":
        return Arm(name, name)
    if drafter == "substitute":
        # On the small model every layer is drafted with its copy; the big one pins some as they are.
        small = {**low_bit(args.small, precision), "resident_layers": 0}
        return Arm(name, drafter, small, low_bit(args.target, precision))
    if name == "model":
        small = {"draft_model": given(args, "draft_small")}
        return Arm(name, name, small, {"draft_model": args.target and given(args, "draft")})
    for path in args.trained:
        if path.name == name:  # its directory says what kind of drafter it is
            return Arm(name, trained_kind(path) or name, {"adapters": path})
    if name not in VARIANTS and name != LOW_BIT:
        raise SystemExit(f"unknown arm {name!r}; known are {', '.join(known_arms(args))}, substitute int8")
    small = {"adapters": given(args, "adapters"), "resident_layers": min(args.verify)}
    big = {"adapters": args.target and given(args, "target_adapters")}
    if name == LOW_BIT:
        return Arm(name, name, {**small, **low_bit(args.small)}, {**big, **low_bit(args.target)}, "tree")
    verified = not name.startswith("kangaroo")  # by the adapter at L_SV
    return Arm(name, "cascade", small, big, name, args.verify if verified else (0,))


def low_bit(model: Path | None, precision: str = "int4") -> Options:
    copy = model and pack(model, models_dir() / f"{model.name}-{precision}", "--precision", precision)
    return {"draft_model": copy}


def given(args: argparse.Namespace, name: str) -> Path:
    found: Path | None = getattr(args, name)
    if found is None:
        raise SystemExit(f"--{name.replace('_', '-')} is needed; or leave out its arms with --arms")
    return found


def drafting_arguments(doc: str | None, target: bool = True) -> argparse.ArgumentParser:
    """What all scripts of drafting take; they share a results file. `target`: a big model is needed."""
    parser = arguments(doc, rounds=3)
    parser.add_argument("--small", type=Path, required=True, help="the target, not inflated")
    parser.add_argument("--target", type=Path, required=target, help="the same, inflated")
    parser.add_argument("--draft-small", type=Path, help="for arm `model`: the draft model, not inflated")
    parser.add_argument("--draft", type=Path, help="the same, inflated")
    parser.add_argument("--trained", type=paths, default=[], help="other drafters of the small target")
    parser.add_argument("--adapters", type=Path, help="for cascades: the small target's, several deep")
    parser.add_argument("--target-adapters", type=Path, help="the same, inflated")
    parser.add_argument("--verify", type=numbers, default=[3, 5, 7], help="the verifier's layers, L_SV")
    parser.add_argument("--dials", type=sizes, default=sizes("8GB,4GB"))
    parser.add_argument("--arms", type=names, help="default: all that there are files for")
    parser.add_argument("--steps", type=numbers, default=[3, 5, 8, 12], help="of drafting")
    parser.add_argument("--cycles", type=int, default=12, help="timed a round, arm and number of steps")
    parser.add_argument("--prompts", type=int, default=48, help="held-out prompts")
    parser.add_argument("--text", type=Path, help="held-out text to take prompts from; default: the demo's")
    return parser


def open_worker(model: Path, dial: int, drafter: str, **options: Any) -> Worker:
    return Worker(model, dial, drafter, **{"context": CONTEXT, **options})


def whole(reply: Row) -> list[Row]:
    """The cycles whose time and tokens count: not the first (a full ring awaits it), nor the last (cut)."""
    cycles: list[Row] = reply["cycles"][1:-1]
    return cycles


def seconds(cycles: Sequence[Row]) -> float:
    """Median of a cycle."""
    return float(statistics.median(cycle["seconds"] for cycle in cycles))


def middle(rounds: Sequence[Row]) -> float | None:
    """The median round's seconds a cycle; None without rounds."""
    return statistics.median(seconds(row["cycles"]) for row in rounds) if rounds else None
