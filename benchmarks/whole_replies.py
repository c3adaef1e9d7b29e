"""Do whole replies get what their parts promise? The product's controller beside the best fixed depth.

    python -m benchmarks.whole_replies --small edgespec/demo_model --arms model \\
        --draft-small models/demo-draft-run/model --step 0.06 --plain 3.2 --node 0.008 --prompts 24

The small model replies, and its cycles are billed as a big one's: a pass of n nodes at `plain` + n x `node`
seconds, a pass of drafting at `step`, one figure for each arm. So what is compared is what the controller
chose and when, over as many prompts as one likes, and nothing else: the last cycle left out, since a reply's
end cuts it. Three ways to begin: `cold`, as the first process does; `next`, the first reply of a process
after one that has replied; `later`, replies one after the other in one process. All are beside schedule
serial at its best fixed depth and nodes (the first of `--schedules`).

With `--late` there are schedules `ssd` and `mirror`, too: a pass waits as long as its I/O (`--plain`) takes
longer than what it computes (`--compute`, and `--row` for each further row; where that takes longer, the pass
does), spread evenly over its layers, and a pass of drafting in these waits takes `--late` seconds; while the
drafter works there a pass takes `--slower` seconds more. What it prepares, which outcomes hit, what the early
exit says and what is drafted after them is the product's own doing.
"""

from __future__ import annotations

import argparse
import statistics
from collections.abc import Sequence
from dataclasses import replace
from itertools import product

import numpy as np

from benchmarks.arms import LONGEST, SMALL_MEMORY, Arm, arm_of, drafting_arguments
from benchmarks.bills import NODES, Bill, Billed, MirrorWaiting, SsdWaiting
from benchmarks.cgroup import own_cache
from benchmarks.common import Row, names, numbers
from benchmarks.held_out import prompts, stories
from benchmarks.tables import RESULTS, Report, Store, interval
from edgespec.config import EngineOptions, GenerationOptions
from edgespec.control.fixed import Fixed
from edgespec.core.schedule import TreeBudget
from edgespec.core.trace import Cycle, Overlap, Trace
from edgespec.engine import Engine
from edgespec.session import Session

WAYS = ["cold", "next", "later"]
KNOWN = ["serial", "ssd", "mirror", "auto"]  # schedules
COLUMNS = ["hit", "found", "passes", "depth", "nodes", "tokens", "ahead", "draft", "verify"]  # of a cycle
SUMS = "tokens", "draft", "verify"


def session(
    engine: Engine, controller: Billed | Fixed, bill: Bill, trace: Trace, schedule: str, exit_layer: int
) -> Session:
    """Of this schedule, with the bill's waits."""
    if schedule == "serial":
        return engine.new_session(controller=controller, trace=trace)
    cache = engine.verifier.new_seat(engine.plan.context)
    (resident,) = engine.resident
    drafter = resident.drafter(cache, engine.config.vocab_size)
    made: SsdWaiting | MirrorWaiting
    if schedule == "ssd":
        made = SsdWaiting(drafter, controller, NODES)
    else:
        exit = engine.target.early_exit(exit_layer)
        made = MirrorWaiting(drafter, controller, NODES, exit, weighs=schedule == "auto")
    made.bill, made.layers = bill, engine.config.layers
    return Session(engine, cache, made, trace=trace)


def reply(
    engine: Engine,
    prompt: list[int],
    controller: Billed | Fixed,
    bill: Bill,
    schedule: str = "serial",
    exit_layer: int = 1,
) -> Row:
    """A reply without its last cycle: tokens, seconds, and its cycles as `COLUMNS` has them."""
    cycles: list[Cycle] = []
    with session(engine, controller, bill, Trace(cycle=cycles.append), schedule, exit_layer) as talk:
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
    """[reply] by schedule, and by fixed depth and nodes or way to begin, of replies of at least so many
    tokens."""
    given = {name: str(value) for name, value in arm.on_small(arm.depths[-1]).items()}
    layers = given.pop("resident_layers", None)
    options = EngineOptions(memory=SMALL_MEMORY, schedule="serial", drafter=arm.drafter, **given)
    options = options if layers is None else replace(options, resident_layers=int(layers))
    shapes = [*product(args.steps, args.nodes)]
    names = [*(fixed_way(*shape) for shape in shapes), *args.ways]
    found: Row = {way(name, schedule): [] for schedule in args.schedules for name in names}
    ask = stories if args.what == "stories" else prompts
    longest = 0
    with Engine.load(args.small, options) as engine:
        going = {schedule: Billed(bill) for schedule in args.schedules}
        for prompt in ask(args.small, args.prompts):
            fixed = [Fixed(TreeBudget(nodes, nodes - 1, depth)) for depth, nodes in shapes]
            longest = max(longest, length := reply(engine, prompt, fixed[0], bill)["tokens"])
            if length < args.least:
                continue
            began = bool(found[way(names[0], args.schedules[0])])  # else there is nothing yet to know
            for schedule, own in going.items():
                last = own.successor() if began else own
                after = own.next_process() if began else Billed(bill)
                begun = {"cold": Billed(bill), "next": after, "later": last}
                controllers = [*fixed, *(begun[name] for name in args.ways)]
                for name, controller in zip(names, controllers, strict=True):
                    row = reply(engine, prompt, controller, bill, schedule, args.exit_layer)
                    found[way(name, schedule)].append(row)
                going[schedule] = last
    if longest < args.least:
        raise RuntimeError(
            f"no reply has {args.least} tokens, the longest {longest}; ask with a smaller --least"
        )
    return found


def fixed_way(depth: int, nodes: int) -> str:
    return f"{depth} passes, {nodes} nodes"


def way(name: str, schedule: str) -> str:
    return f"{schedule}, {name}"


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
    parser.add_argument("--compute", type=float, default=0.0, help="of them, that one row computes")
    parser.add_argument("--row", type=float, default=0.0, help="seconds that each further row computes")
    parser.add_argument("--late", type=float, default=0.0, help="seconds of a pass of drafting in waits")
    parser.add_argument("--slower", type=float, default=0.0, help="seconds that a pass takes longer so")
    parser.add_argument("--schedules", type=names, default=["serial"], help=f"of {', '.join(KNOWN)}")
    parser.add_argument("--exit-layer", type=int, default=5, help="of the small model, for mirror and auto")
    parser.add_argument("--nodes", type=numbers, default=[NODES], help="of trees of a fixed depth")
    parser.add_argument("--ways", type=names, default=WAYS, help="to begin")
    parser.add_argument("--least", type=int, default=96, help="tokens of a reply")
    parser.add_argument("--what", choices=["stories", "mixture"], default="stories", help="to ask for")
    args = parser.parse_args()
    if len(args.step) != len(args.arms):
        parser.error(f"--step has {len(args.step)} figures for {len(args.arms)} arms")
    if unknown := {*args.schedules} - {*KNOWN} or {*args.ways} - {*WAYS}:
        parser.error(f"unknown: {', '.join(sorted(unknown))}")
    if not args.late and args.schedules != ["serial"]:
        parser.error("without --late nobody drafts in waits: leave --schedules out")
    store = Store(args.json or RESULTS / "whole_replies.json")
    title = f"Whole replies, billed {args.plain:g} s a pass and {args.node + args.row:g} s a row more"
    report, inside = Report(title, store.rows), Report("Of what their cycles are made", {})
    shapes = [fixed_way(*shape) for shape in product(args.steps, args.nodes)]
    with own_cache():  # what is learned from bills is no use to anybody
        for name, step in zip(args.arms, map(float, args.step), strict=True):
            bill = Bill(args.plain, args.node, step, args.compute, args.row, args.late, args.slower)
            asked = args.steps, args.nodes, args.schedules, args.ways, args.exit_layer
            key = f"{name}/{bill}/{asked}/{args.what}/{args.prompts}/{args.least}"
            found = store.get(key, measure, args, arm_of(name, args), bill)
            if "error" in found:
                report.failed(name, found["error"])
                continue
            base = found[best(found, shapes, args.schedules[0])]
            lengths = [row["tokens"] for row in base]
            for schedule in args.schedules:
                shape = best(found, shapes, schedule)
                row = {"drafter": name, "schedule": schedule, "s a step": step, "replies": len(lengths)}
                row |= {"tokens": statistics.median(lengths), "best": shape.partition(", ")[2]}
                row["its × plain"] = f"{speed(found[shape]) * args.plain:.2f}"
                row["× best"] = against(found[shape], base)
                inside.rows.extend(parts(name, shape, found[shape]))
                for begun in args.ways:
                    own = found[way(begun, schedule)]
                    kept = slice(None) if begun == "cold" else slice(1, None)  # the first one is cold
                    row[f"{begun}, × best"] = against(own[kept], base[kept])
                    inside.rows.extend(parts(name, way(begun, schedule), own[kept]))
                report.add(row)
    print(inside.markdown())
    report.finish(store.table)


def best(found: Row, shapes: Sequence[str], schedule: str) -> str:
    """The way of this schedule's that is fastest, of fixed depths and nodes."""
    return max((way(shape, schedule) for shape in shapes), key=lambda name: speed(found[name]))


if __name__ == "__main__":
    main()
