"""SpecFormer's Table 1: tokens a second and kappa of each drafter, by batch and by nodes of a tree.

    python -m benchmarks.budgets --trained DIR,... --nodes 4,6,8 --batch 1,4,16

Drafters of the demo model are arms by their directories' names: what was trained for it says its kind, else
it is a small model. `none` goes first. Every reply's trees have so many nodes beside their root, whatever
that costs: the controller decides nothing here. All arms answer the same held-out prompts, greedily; when a
reply ends the next prompt has its place. Their texts must be those of `none`. Prompts count in the time, and
most replies are short: `--stories` asks for long ones.

    tokens a cycle   that a tree gives, its own among them
    kappa            a l_d / k (Equation 5): accepted of a tree, its depth, its nodes beside the root
    rows, pass       of a pass of the whole batch, and milliseconds that one takes (mean)
    over none        tokens a second over those of the same batch without drafts, round by round

The model is in memory; `--resident-layers N` streams all but N of its layers, `--throttle` from a disk of
that rate. Below the table: rho, the rows from which on matmuls, by their times as measured here, take longer
than reading the weights in this placement.
"""

from __future__ import annotations

import argparse
from collections import deque
from collections.abc import Callable, Sequence
from dataclasses import replace
from functools import partial
from pathlib import Path
from statistics import fmean, median
from time import perf_counter
from typing import Any

import edgespec
from benchmarks.batches import Answer, Seen
from benchmarks.cgroup import require_throttle, throttled
from benchmarks.common import Row, arguments, compile_checkout, interleave, numbers, paths
from benchmarks.held_out import prompts, stories
from benchmarks.tables import Report, ratio
from edgespec.apps.common import demo_model
from edgespec.config import GenerationOptions
from edgespec.control.controller import Fixed
from edgespec.core.batcher import Batcher
from edgespec.core.schedule import TreeBudget
from edgespec.errors import OptionError
from edgespec.runtimes.formats.trained import trained_kind
from edgespec.runtimes.torch.matmuls import matmuls
from edgespec.values import format_bytes, parse_bytes

DEPTH = 5  # of trees, at most
PLAIN = "none"


def load(args: argparse.Namespace, batch: int, directory: Path | None) -> edgespec.Engine:
    """Raises OptionError where this drafter drafts for no such batch."""
    options: dict[str, Any] = {"memory": args.memory, "context": args.context, "batch": batch}
    if args.resident_layers is not None:
        options["resident_layers"] = args.resident_layers
    if directory is not None:
        kind = trained_kind(directory)
        files = {"adapters": directory} if kind else {"draft_model": directory}
        options |= {"drafter": kind or "model", **files}
    return edgespec.load(args.model, **{"drafter": PLAIN, "schedule": "serial", **options})


def answer(engine: edgespec.Engine, asked: Sequence[list[int]], batch: int, nodes: int, tokens: int) -> Row:
    """All prompts, so many at a time."""
    options, seen, depth = GenerationOptions(max_tokens=tokens), Seen(), min(nodes, DEPTH)
    waiting, members, batcher = deque(asked), list[Answer](), Batcher[Answer](engine.verifier)
    began = perf_counter()
    while waiting or len(batcher):
        while waiting and len(batcher) < batch:
            budget = Fixed(TreeBudget(nodes + 1, depth, depth))
            members.append(Answer(engine, waiting.popleft(), options, seen, budget, nodes))
            batcher.join(members[-1])
        for _, error in batcher.step():
            if error is not None:
                raise error
    seconds, said = perf_counter() - began, [member.tokens for member in members]
    drafts = seen.drafts()
    figures = {"tokens a cycle": drafts.a + 1, "kappa": drafts.kappa or 0.0}
    passes = [cycle.verify_seconds for cycle in seen.cycles if not cycle.outcome.prompts]
    figures["pass"] = fmean(passes) if passes else 0.0
    return {"tokens/s": sum(map(len, said)) / seconds, "cycles": len(seen.cycles), "said": said, **figures}


def add(report: Report, args: argparse.Namespace, batch: int, asked: Sequence[list[int]]) -> None:
    """The rows of one batch."""
    engines = {PLAIN: load(args, batch, None)}
    for directory in args.trained:
        try:
            engines[directory.name] = load(args, batch, directory)
        except OptionError as error:
            report.failed(f"batch {batch}, {directory.name}", error.message)
    arms: dict[str, Callable[[], Row]] = {}
    for name, engine in engines.items():
        for nodes in [0] if name == PLAIN else args.nodes:
            arms[f"{name}/{nodes}"] = partial(answer, engine, asked, batch, nodes, args.tokens)
            answer(engine, asked[:batch], batch, nodes, 4)  # what is measured at the first use
    found = interleave(arms, args.rounds)
    for engine in engines.values():
        engine.close()
    plan = engines[PLAIN].plan
    costs = plan.costs()
    if args.throttle:
        costs = replace(costs, io=plan.bytes_per_pass / args.throttle)
    read = format_bytes(plan.bytes_per_pass)
    report.notes.append(f"batch {batch}: rho is {costs.redundancy or 0:.1f} rows; a pass reads {read}")
    plain, *_ = found.values()
    for arm, rows in found.items():
        if any(row.pop("said") != plain[0]["said"] for row in rows if row is not plain[0]):
            raise SystemExit(f"batch {batch}: {arm} says something else than without drafts")
        name, _, nodes = arm.partition("/")
        speeds = [row["tokens/s"] for row in rows]
        took = fmean(row["pass"] for row in rows) * 1e3
        cells = {"batch": batch, "drafter": name, "nodes": nodes, "rows": batch * (int(nodes) + 1)}
        cells |= {"pass": f"{took:.3g}", "tokens/s": f"{median(speeds):.4g}"}
        cells |= {column: f"{rows[0][column]:.2f}" for column in ("tokens a cycle", "kappa")}
        report.add({**cells, "over none": ratio(speeds, [row["tokens/s"] for row in plain])})
    report.raw[str(batch)] = {arm: [row["tokens/s"] for row in rows] for arm, rows in found.items()}


def main() -> None:
    parser = arguments(__doc__, rounds=3)
    parser.add_argument("--model", type=Path, default=demo_model())
    parser.add_argument("--trained", type=paths, required=True, help="directories of trained drafters")
    parser.add_argument("--nodes", type=numbers, default=[4, 6, 8])
    parser.add_argument("--batch", type=numbers, default=[1, 4, 16])
    parser.add_argument("--prompts", type=int, default=24)
    parser.add_argument("--stories", action="store_true", help="requests for stories, whose replies are long")
    parser.add_argument("--tokens", type=int, default=64)
    parser.add_argument("--memory", default="1GB")
    parser.add_argument("--context", type=int, default=512)
    parser.add_argument("--resident-layers", type=int, help="stream all but so many; default: by the plan")
    parser.add_argument("--throttle", type=parse_bytes, help="read rate of an emulated slower disk; root")
    args = parser.parse_args()
    compile_checkout()
    if args.throttle:
        require_throttle(args.model)
    asked = (stories if args.stories else prompts)(args.model, args.prompts)
    report = Report(f"Drafters by batch and nodes of a tree, {len(asked)} held-out prompts")
    with throttled(args.model, args.throttle):
        matmuls()  # else rho would be supposed
        for batch in args.batch:
            add(report, args, batch, asked)
    report.finish(args.json)


if __name__ == "__main__":
    main()
