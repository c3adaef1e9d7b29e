"""Do whole replies get what their parts promise? The product's controller beside the best fixed depth.

    python -m benchmarks.whole_replies --small edgespec/demo_model --arms model \\
        --draft-small models/demo-draft-run/model --step 0.06 --plain 3.2 --node 0.008 --prompts 24

The small model replies, and its cycles are billed as a big one's: a pass of n nodes at `plain` + n x `node`
seconds, a pass of drafting at `step`, one figure for each arm. So what is compared is what the controller
chose and when, over as many prompts as one likes, and nothing else: schedule serial, the last cycle left out,
since a reply's end cuts it. Three ways to begin: `cold`, as the first process does; `next`, the first reply
of a process after one that has replied; `later`, replies one after the other in one process.
"""

from __future__ import annotations

import argparse
import os
import statistics
import tempfile
from collections.abc import Sequence
from dataclasses import dataclass, replace

import numpy as np

from benchmarks.arms import LONGEST, SMALL_MEMORY, Arm, arm_of, drafting_arguments
from benchmarks.common import Row, names
from benchmarks.held_out import stories
from benchmarks.tables import RESULTS, Report, Store, interval
from edgespec.config import EngineOptions, GenerationOptions
from edgespec.control.controller import Adaptive, Fixed
from edgespec.core.schedule import TreeBudget
from edgespec.core.trace import Cycle, Trace
from edgespec.engine import Engine
from edgespec.offload.plan.costs import CostModel

NODES = 64  # of a tree


@dataclass(frozen=True)
class Bill:
    """Seconds of the big model."""

    plain: float
    node: float
    step: float

    def of(self, cycle: Cycle) -> Cycle:
        nodes = self.plain + self.node * (len(cycle.tree) - 1)
        return replace(cycle, draft_seconds=self.step * (cycle.passes or 0), verify_seconds=nodes)

    @property
    def prior(self) -> CostModel:
        """What a plan would have said of it."""
        return CostModel(io=self.plain, step=self.step)


class Billed(Adaptive):
    """The product's controller, told what the big model's cycles would have taken."""

    def __init__(self, bill: Bill) -> None:
        super().__init__(bill.prior)
        self.bill = bill

    def record(self, cycle: Cycle) -> None:
        super().record(self.bill.of(cycle))

    def successor(self) -> Billed:
        heir = Billed(self.bill)
        vars(heir).update(vars(super().successor()))
        return heir

    def next_process(self) -> Billed:
        heir = Billed(self.bill)
        heir.recall(self.notes())
        return heir


def reply(engine: Engine, prompt: list[int], controller: Billed | Fixed, bill: Bill) -> Row:
    """Tokens and seconds of a reply without its last cycle."""
    cycles: list[Cycle] = []
    with engine.new_session(controller=controller, trace=Trace(cycle=cycles.append)) as session:
        for _ in session.generate(prompt, GenerationOptions(max_tokens=LONGEST)):
            pass
    billed = [bill.of(cycle) for cycle in cycles[:-1]]
    seconds = sum(cycle.draft_seconds + cycle.verify_seconds for cycle in billed)
    return {"tokens": sum(len(cycle.outcome.tokens) for cycle in billed), "seconds": seconds}


def measure(args: argparse.Namespace, arm: Arm, bill: Bill) -> Row:
    """[{tokens, seconds}] by fixed depth and by way to begin, of replies of at least so many tokens."""
    given = {name: str(value) for name, value in arm.on_small(arm.depths[-1]).items()}
    layers = given.pop("resident_layers", None)
    options = EngineOptions(memory=SMALL_MEMORY, schedule="serial", drafter=arm.drafter, **given)
    options = options if layers is None else replace(options, resident_layers=int(layers))
    found: Row = {str(depth): [] for depth in args.steps} | {"cold": [], "next": [], "later": []}
    with Engine.load(args.small, options) as engine:
        going = Billed(bill)
        for prompt in stories(args.small, args.prompts):
            fixed = [Fixed(TreeBudget(NODES, NODES - 1, depth)) for depth in args.steps]
            rows = [reply(engine, prompt, controller, bill) for controller in fixed]
            if rows[0]["tokens"] < args.least:
                continue
            began = bool(found["cold"])  # else there is nothing yet that another process could have learned
            ways = {"cold": Billed(bill), "next": going.next_process() if began else Billed(bill)}
            going = ways["later"] = going.successor() if began else going
            rows += [reply(engine, prompt, controller, bill) for controller in ways.values()]
            for name, row in zip(found, rows, strict=True):
                found[name].append(row)
    return found


def speed(rows: Sequence[Row]) -> float:
    """Tokens a second."""
    return sum(row["tokens"] for row in rows) / sum(row["seconds"] for row in rows)


def against(own: Sequence[Row], best: Sequence[Row]) -> str:
    """The ratio of their speeds, with its 95 % interval over the choice of prompts."""
    tokens, seconds = (
        np.array([[r[name] for r in rows] for rows in (own, best)]) for name in ("tokens", "seconds")
    )

    def ratios(drawn: np.ndarray) -> np.ndarray:
        rates = tokens[:, drawn].sum(axis=2) / seconds[:, drawn].sum(axis=2)  # [2, draws]
        return rates[0] / rates[1]

    low, high = interval(len(own), ratios)
    return f"{speed(own) / speed(best):.3f} ({low:.3f}–{high:.3f})"


def main() -> None:
    parser = drafting_arguments(__doc__, target=False)
    parser.add_argument(
        "--plain", type=float, required=True, help="seconds of the big model's pass over one row"
    )
    parser.add_argument("--node", type=float, default=0.0, help="seconds more for each further row")
    parser.add_argument(
        "--step", type=names, required=True, help="seconds of a pass of drafting, for each arm"
    )
    parser.add_argument("--least", type=int, default=96, help="tokens of a reply")
    args = parser.parse_args()
    if len(args.step) != len(args.arms):
        parser.error(f"--step has {len(args.step)} figures for {len(args.arms)} arms")
    store = Store(args.json or RESULTS / "whole_replies.json")
    title = f"Whole replies, billed {args.plain:g} s a pass and {args.node:g} s a row more"
    report = Report(title, store.rows)
    with tempfile.TemporaryDirectory() as nothing:
        os.environ["EDGESPEC_CACHE"] = nothing  # what is learned from bills is no use to anybody
        for name, step in zip(args.arms, map(float, args.step), strict=True):
            bill = Bill(args.plain, args.node, step)
            found = store.get(
                f"{name}/{bill}/{args.steps}/{args.prompts}", measure, args, arm_of(name, args), bill
            )
            if "error" in found:
                report.failed(name, found["error"])
                continue
            best = max(map(str, args.steps), key=lambda depth: speed(found[depth]))
            lengths = [row["tokens"] for row in found[best]]
            row = {
                "drafter": name,
                "s a step": step,
                "replies": len(lengths),
                "tokens": statistics.median(lengths),
            }
            row |= {"best depth": best, "its × plain": f"{speed(found[best]) * args.plain:.2f}"}
            ways = {f"{way}, × best": against(found[way][1:], found[best][1:]) for way in ("next", "later")}
            report.add(row | {"cold, × best": against(found["cold"], found[best])} | ways)
    report.finish(None)


if __name__ == "__main__":
    main()
