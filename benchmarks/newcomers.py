"""A newcomer beside others who are being answered: passes to its first token, and how long these are.

    python -m benchmarks.newcomers --batch 16 --lengths 16,64,256,500
    python -m benchmarks.newcomers --batch 16 --resident-layers 3 --throttle 0.15GB

All places but one are taken by replies without drafts; prompts of these lengths (text that cannot be guessed)
join one after the other, with some passes in between, as the server lets them join (`core/pace.py`).

    passes      to the first token, the one that gives it among them (most of all rounds)
    alone       milliseconds of a pass without a prompt, before it came (median)
    longest     of the passes with the prompt, over that (median of rounds, and the most)
    first       milliseconds to the first token (median)
"""

from __future__ import annotations

import argparse
from dataclasses import dataclass, field
from pathlib import Path
from statistics import median
from time import perf_counter

import numpy as np

import edgespec
from benchmarks.cgroup import require_throttle, throttled
from benchmarks.common import add_placement, arguments, compile_checkout, numbers, placement
from benchmarks.tables import Report
from edgespec.apps.bench_replies import Counted, fixed_length
from edgespec.apps.common import demo_model
from edgespec.apps.terminal import Terminal
from edgespec.core.batcher import Batcher
from edgespec.runtimes.base import PREFILL_ROWS
from edgespec.runtimes.torch.matmuls import matmuls
from edgespec.session import Session

BETWEEN = 12  # passes without a prompt before each newcomer
PROMPT = 16  # tokens, of the others


@dataclass
class Found:
    """Of newcomers with prompts of one length."""

    passes: list[int] = field(default_factory=list)
    alone: list[float] = field(default_factory=list)  # seconds
    longest: list[float] = field(default_factory=list)  # over `alone`
    first: list[float] = field(default_factory=list)  # seconds


class Room:
    """Replies that go on, and a place that is free."""

    def __init__(self, args: argparse.Namespace) -> None:
        self.engine = edgespec.load(args.model, drafter="none", **placement(args, args.batch))
        self.rng, self.positions = np.random.default_rng(0), args.positions
        self.free, *self.others = [self.engine.new_session(args.positions) for _ in range(args.batch)]
        self.replies = list[Counted]()

    def begin(self) -> None:
        """All other places' replies, anew."""
        for reply in self.replies:
            reply.session.end(reply.reply)
        self.batcher = Batcher[Counted](self.engine.verifier, patient=True)
        self.replies = [self.reply(session, PROMPT, self.positions - PROMPT - 8) for session in self.others]
        for reply in self.replies:
            self.batcher.join(reply)

    def reply(self, session: Session, prompt: int, tokens: int) -> Counted:
        session.keep(0)
        return Counted(session, session.new_reply(self.prompt(prompt), fixed_length(tokens)))

    def prompt(self, length: int) -> list[int]:
        return [int(token) for token in self.rng.integers(10, self.engine.config.vocab_size, length)]

    def step(self) -> float:
        """Seconds of a pass."""
        began = perf_counter()
        for _, error in self.batcher.step():
            if error is not None:
                raise error
        return perf_counter() - began

    def come(self, length: int, found: Found) -> None:
        alone = median([self.step() for _ in range(BETWEEN)][BETWEEN // 3 :])
        newcomer = self.reply(self.free, length, 1)
        self.batcher.join(newcomer)
        took = list[float]()
        while not newcomer.said:
            took.append(self.step())
        self.free.end(newcomer.reply)
        found.passes.append(len(took))
        found.alone.append(alone)
        found.longest.append(max(took) / alone)
        found.first.append(sum(took))


def main() -> None:
    parser = arguments(__doc__, rounds=5)
    parser.add_argument("--model", type=Path, default=demo_model())
    parser.add_argument("--batch", type=int, default=16)
    parser.add_argument("--lengths", type=numbers, default=[16, 64, 256, 500], help="of prompts")
    add_placement(parser, positions=512)
    args = parser.parse_args()
    compile_checkout()
    if args.throttle:
        require_throttle(args.model)
    report = Report(f"Prompts that join {args.batch - 1} replies")
    found = {length: Found() for length in args.lengths}
    with throttled(args.model, args.throttle), Terminal():
        matmuls()
        room = Room(args)
        with room.engine:
            room.begin()
            room.come(args.lengths[-1], Found())  # how far prompts may go is found out
            for _ in range(args.rounds):
                room.begin()
                for length in args.lengths:
                    room.come(length, found[length])
    for length, each in found.items():
        report.raw[str(length)] = each.longest
        report.add({
            "prompt": length,
            "blocks": -(-length // PREFILL_ROWS),
            "passes": max(each.passes),
            "alone": f"{1e3 * median(each.alone):.3g}",
            "longest": f"{median(each.longest):.2f}, {max(each.longest):.2f}",
            "first": f"{1e3 * median(each.first):.3g}",
        })  # fmt: skip
    report.finish(args.json)


if __name__ == "__main__":
    main()
