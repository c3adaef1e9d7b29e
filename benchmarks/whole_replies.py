"""Do whole replies get what their parts promise? The product's controller beside the best fixed depth.

    python -m benchmarks.whole_replies --small edgespec/demo_model --arms model \\
        --draft-small models/demo-draft-run/model --step 0.06 --plain 3.2 --node 0.008 --prompts 24

The small model replies, and its cycles are billed as a big one's: a pass of n nodes at `plain` + n x `node`
seconds, a pass of drafting at `step`, one figure for each arm. So what is compared is what the controller
chose and when, over as many prompts as one likes, and nothing else: the last cycle left out, since a reply's
end cuts it. Three ways to begin: `cold`, as the first process does; `next`, the first reply of a process
after one that has replied; `later`, replies one after the other in one process. All are beside schedule
serial at its best fixed depth.

With `--waits N` there is schedule `ssd`, too: the waits of a pass have room for N passes of drafting, as they
were counted on the big model, and while the drafter works there a pass takes `--slower` seconds more. What
it prepares, which outcomes hit, and what is drafted after them is the product's own doing.
"""

from __future__ import annotations

import argparse
import statistics
from collections.abc import Sequence
from dataclasses import dataclass, replace

import numpy as np
from torch import Tensor

from benchmarks.arms import LONGEST, SMALL_MEMORY, Arm, arm_of, drafting_arguments
from benchmarks.cgroup import own_cache
from benchmarks.common import Row, names
from benchmarks.held_out import prompts, stories
from benchmarks.tables import RESULTS, Report, Store, interval
from edgespec.config import EngineOptions, GenerationOptions
from edgespec.control.controller import Adaptive, Fixed
from edgespec.core.schedule import Controller, TreeBudget
from edgespec.core.trace import Cycle, Overlap, Trace
from edgespec.drafters.base import Drafter
from edgespec.engine import Engine
from edgespec.offload.plan.costs import CostModel
from edgespec.runtimes.rows import Rows
from edgespec.schedules.ssd import Ssd
from edgespec.session import Session

NODES = 64  # of a tree
WAYS = ["cold", "next", "later"]
COLUMNS = ["hit", "found", "passes", "depth", "nodes", "tokens", "ahead", "draft", "verify"]  # of a cycle
SUMS = "tokens", "draft", "verify"


@dataclass(frozen=True)
class Bill:
    """Seconds of the big model; waits: of one of its passes, in passes of drafting."""

    plain: float
    node: float
    step: float
    waits: int = 0
    slower: float = 0.0

    def of(self, cycle: Cycle) -> Cycle:
        beside = self.slower if cycle.overlap and cycle.overlap.passes else 0.0
        nodes = self.plain + self.node * (len(cycle.tree) - 1)
        return replace(cycle, draft_seconds=self.step * (cycle.passes or 0), verify_seconds=nodes + beside)

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


class InWaits(Ssd):
    """Schedule ssd beside a target that waits for as long as the bill says."""

    def __init__(self, drafter: Drafter, controller: Controller, bill: Bill) -> None:
        super().__init__(drafter, controller, NODES)
        self.waits = bill.waits

    def on_layer(self, index: int, hidden: Tensor, rows: Rows) -> None:
        super().on_layer(index, hidden, rows)
        while self._ahead is not None and self._ahead.passes < self.waits and self.on_wait():
            pass


def session(engine: Engine, controller: Billed | Fixed, bill: Bill | None, trace: Trace) -> Session:
    """Of schedule serial, or of ssd with a bill's waits."""
    if bill is None:
        return engine.new_session(controller=controller, trace=trace)
    cache = engine.verifier.new_seat(engine.plan.context)
    (resident,) = engine.resident
    drafter = resident.drafter(cache, engine.config.vocab_size)
    return Session(engine, cache, InWaits(drafter, controller, bill), trace=trace)


def reply(
    engine: Engine, prompt: list[int], controller: Billed | Fixed, bill: Bill, ahead: bool = False
) -> Row:
    """A reply without its last cycle: tokens, seconds, and its cycles as `COLUMNS` has them."""
    cycles: list[Cycle] = []
    with session(engine, controller, bill if ahead else None, Trace(cycle=cycles.append)) as talk:
        for _ in talk.generate(prompt, GenerationOptions(max_tokens=LONGEST)):
            pass
    rows = []
    for cycle in map(bill.of, cycles[:-1]):
        over, depth = cycle.overlap or Overlap(), int(cycle.tree.depths.max())
        times = cycle.draft_seconds, cycle.verify_seconds
        counts = over.found, cycle.passes or 0, depth, len(cycle.tree), len(cycle.outcome.tokens), over.nodes
        rows.append([over.hit, *counts, *times])
    tokens, draft, verify = (sum(row[COLUMNS.index(name)] for row in rows) for name in SUMS)
    return {"tokens": tokens, "seconds": draft + verify, "cycles": rows}


def measure(args: argparse.Namespace, arm: Arm, bill: Bill) -> Row:
    """[reply] by fixed depth and by way to begin, of replies of at least so many tokens."""
    given = {name: str(value) for name, value in arm.on_small(arm.depths[-1]).items()}
    layers = given.pop("resident_layers", None)
    options = EngineOptions(memory=SMALL_MEMORY, schedule="serial", drafter=arm.drafter, **given)
    options = options if layers is None else replace(options, resident_layers=int(layers))
    schedules = [False, True] if bill.waits else [False]
    names = [*map(str, args.steps), *WAYS]
    found: Row = {way(name, ahead): [] for ahead in schedules for name in names}
    ask = stories if args.what == "stories" else prompts
    longest = 0
    with Engine.load(args.small, options) as engine:
        going = {ahead: Billed(bill) for ahead in schedules}
        for prompt in ask(args.small, args.prompts):
            fixed = [Fixed(TreeBudget(NODES, NODES - 1, depth)) for depth in args.steps]
            longest = max(longest, length := reply(engine, prompt, fixed[0], bill)["tokens"])
            if length < args.least:
                continue
            began = bool(found[WAYS[0]])  # else there is nothing yet that another process could have learned
            for ahead, own in going.items():
                last = own.successor() if began else own
                begun = [Billed(bill), own.next_process() if began else Billed(bill), last]
                for name, controller in zip(names, [*fixed, *begun], strict=True):
                    found[way(name, ahead)].append(reply(engine, prompt, controller, bill, ahead))
                going[ahead] = last
    if longest < args.least:
        raise RuntimeError(
            f"no reply has {args.least} tokens, the longest {longest}; ask with a smaller --least"
        )
    return found


def way(name: str, ahead: bool) -> str:
    return f"ssd, {name}" if ahead else name


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


def parts(name: str, schedule: str, replies: Sequence[Row]) -> list[Row]:
    """Of what its cycles are made: all, and those after a hit, a miss, and neither."""
    cycles = [dict(zip(COLUMNS, cycle, strict=True)) for row in replies for cycle in row["cycles"]]
    kinds = {"all": cycles} | {
        kind: [cycle for cycle in cycles if cycle["hit"] is hit]
        for kind, hit in (("a hit", True), ("a miss", False), ("nothing ahead", None))
    }
    if not kinds["a hit"]:
        kinds = {"all": cycles}
    found = []
    for kind, some in kinds.items():
        row: Row = {"drafter": name, "schedule": schedule, "after": kind}
        row["cycles"] = f"{len(some) / len(cycles):.0%}"
        for column in COLUMNS[1:]:
            row[column] = f"{np.mean([cycle[column] for cycle in some]):.2f}" if some else ""
        found.append(row)
    return found


def main() -> None:
    parser = drafting_arguments(__doc__, target=False)
    parser.add_argument(
        "--plain", type=float, required=True, help="seconds of the big model's pass over one row"
    )
    parser.add_argument("--node", type=float, default=0.0, help="seconds more for each further row")
    parser.add_argument(
        "--step", type=names, required=True, help="seconds of a pass of drafting, for each arm"
    )
    parser.add_argument("--waits", type=int, default=0, help="of a pass, in passes of drafting: ssd too")
    parser.add_argument("--slower", type=float, default=0.0, help="seconds that a pass takes longer so")
    parser.add_argument("--least", type=int, default=96, help="tokens of a reply")
    parser.add_argument("--what", choices=["stories", "mixture"], default="stories", help="to ask for")
    args = parser.parse_args()
    if len(args.step) != len(args.arms):
        parser.error(f"--step has {len(args.step)} figures for {len(args.arms)} arms")
    store = Store(args.json or RESULTS / "whole_replies.json")
    title = f"Whole replies, billed {args.plain:g} s a pass and {args.node:g} s a row more"
    report, inside = Report(title, store.rows), Report("Of what their cycles are made", {})
    with own_cache():  # what is learned from bills is no use to anybody
        for name, step in zip(args.arms, map(float, args.step), strict=True):
            bill = Bill(args.plain, args.node, step, args.waits, args.slower)
            key = f"{name}/{bill}/{args.steps}/{args.what}/{args.prompts}/{args.least}"
            found = store.get(key, measure, args, arm_of(name, args), bill)
            if "error" in found:
                report.failed(name, found["error"])
                continue
            best = max(map(str, args.steps), key=lambda depth: speed(found[depth]))
            lengths = [row["tokens"] for row in found[best]]
            for ahead in (False, True) if args.waits else (False,):
                schedule = "ssd" if ahead else "serial"
                depth = max(map(str, args.steps), key=lambda depth: speed(found[way(depth, ahead)]))
                fixed = found[way(depth, ahead)]
                row = {"drafter": name, "schedule": schedule, "s a step": step, "replies": len(lengths)}
                row |= {"tokens": statistics.median(lengths), "best depth": depth}
                row["its × plain"] = f"{speed(fixed) * args.plain:.2f}"
                row["× best"] = against(fixed, found[best])
                inside.rows.extend(parts(name, f"{schedule}, {depth} passes", fixed))
                for begun in WAYS:
                    own = found[way(begun, ahead)]
                    kept = slice(None) if begun == "cold" else slice(1, None)  # the first one is cold
                    row[f"{begun}, × best"] = against(own[kept], found[best][kept])
                    inside.rows.extend(parts(name, f"{schedule}, {begun}", own[kept]))
                report.add(row)
    print(inside.markdown())
    report.finish(None)


if __name__ == "__main__":
    main()
