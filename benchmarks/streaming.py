"""What do lookahead streams save? Tokens a cycle and a drafter's pass, and speed by schedule.

    python -m benchmarks.streaming --trained ss-0,ar-0 --passes 1,2,3,4 --schedules serial,ssd,mirror

Directories of trained drafters, best an equal-size one without streams (`train streaming --streams 0`) among
them, or of what was exported of one, which drafts in a process of its own. All answer the same held-out
prompts, greedily, and must say what is said without drafts.

    tokens a cycle   in trees of so many nodes, from exactly so many passes of the drafter before each
    accepted a pass  drafted tokens that the target took, over passes of the drafter
    tokens/s         of a target of which so many layers stay in memory, with the product's own controller;
                     over plain: round by round
"""

from __future__ import annotations

import argparse
from collections.abc import Callable, Sequence
from functools import partial
from pathlib import Path
from statistics import median
from time import perf_counter

import edgespec
from benchmarks.common import Row, arguments, compile_checkout, interleave, names, numbers, paths
from benchmarks.held_out import prompts, stories
from benchmarks.tables import Report, ratio
from edgespec.apps.common import demo_model
from edgespec.config import GenerationOptions
from edgespec.control.controller import Fixed
from edgespec.core.schedule import TreeBudget
from edgespec.runtimes.formats.exported import is_exported
from edgespec.runtimes.formats.trained import trained_kind

DEPTH = 16
PLAIN = "plain"


def load(args: argparse.Namespace, directory: Path | None, schedule: str) -> edgespec.Engine:
    options = {"memory": args.memory, "context": args.context, "schedule": schedule}
    if schedule != "serial" or args.resident_layers is not None:
        options["resident_layers"] = args.resident_layers
    if directory is None:
        return edgespec.load(args.model, drafter="none", **options)
    if is_exported(directory):
        return edgespec.load(args.model, drafter="model", draft_model=directory, **options)
    kind = trained_kind(directory)
    return edgespec.load(args.model, drafter=kind or "none", adapters=directory, **options)


def answer(
    engine: edgespec.Engine, asked: Sequence[list[int]], tokens: int, budget: TreeBudget | None
) -> Row:
    """All prompts, one after the other; without a budget as the product's controller has it."""
    said, cycles, passes, accepted, began = list[list[int]](), 0, 0, 0, perf_counter()
    for prompt in asked:
        with engine.new_session(len(prompt) + tokens, Fixed(budget) if budget else None) as session:
            responses = list(session.generate(prompt, GenerationOptions(max_tokens=tokens)))
        said.append([r.token for r in responses if r.token is not None])
        stats = responses[-1].stats
        assert stats is not None
        cycles += stats.cycles
        accepted += stats.accepted
        passes += stats.cycles * (budget.passes if budget else 0)
    seconds, count = perf_counter() - began, sum(map(len, said))
    return {"said": said, "cycles": cycles, "accepted": accepted, "passes": passes, "speed": count / seconds}


def by_passes(args: argparse.Namespace, asked: Sequence[list[int]], plain: Row) -> None:
    report = Report(f"Trees of {args.nodes} nodes beside the root, {len(asked)} held-out prompts")
    for directory in args.trained:
        with load(args, directory, "serial") as engine:
            for passes in args.passes:
                row = answer(engine, asked, args.tokens, TreeBudget(args.nodes + 1, DEPTH, passes))
                check(row, plain, f"{directory.name}, {passes} passes")
                cells = {"drafter": directory.name, "passes": passes}
                cells["tokens a cycle"] = f"{1 + row['accepted'] / row['cycles']:.2f}"
                report.add({**cells, "accepted a pass": f"{row['accepted'] / row['passes']:.2f}"})
    report.finish(args.json)


def by_schedule(args: argparse.Namespace, asked: Sequence[list[int]], plain: Row) -> None:
    report = Report(f"{args.resident_layers} layers in memory, {len(asked)} held-out prompts")
    engines = {PLAIN: load(args, None, "serial")}
    for directory in args.trained:
        for schedule in args.schedules:
            engines[f"{directory.name}, {schedule}"] = load(args, directory, schedule)
    arms: dict[str, Callable[[], Row]] = {
        name: partial(answer, engine, asked, args.tokens, None) for name, engine in engines.items()
    }
    found = interleave(arms, args.rounds)
    for engine in engines.values():
        engine.close()
    for name, rows in found.items():
        for row in rows:
            check(row, plain, name)
        speeds = [row["speed"] for row in rows]
        over = ratio(speeds, [row["speed"] for row in found[PLAIN]])
        report.add({"drafter, schedule": name, "tokens/s": f"{median(speeds):.4g}", "over plain": over})
    report.finish(args.json and args.json.with_stem(f"{args.json.stem}-schedules"))


def check(row: Row, plain: Row, name: str) -> None:
    if row["said"] != plain["said"]:
        raise SystemExit(f"{name} says something else than without drafts")


def main() -> None:
    parser = arguments(__doc__, rounds=3)
    parser.add_argument("--model", type=Path, default=demo_model())
    parser.add_argument("--trained", type=paths, required=True, help="directories of trained drafters")
    parser.add_argument("--passes", type=numbers, default=[], help="of the drafter before each verification")
    parser.add_argument("--nodes", type=int, default=15)
    parser.add_argument("--schedules", type=names, default=[], help="to measure the speed of")
    parser.add_argument("--resident-layers", type=int, help="of the target; default: as planned")
    parser.add_argument("--prompts", type=int, default=24)
    parser.add_argument("--stories", action="store_true", help="requests for stories, whose replies are long")
    parser.add_argument("--tokens", type=int, default=64)
    parser.add_argument("--memory", default="1GB")
    parser.add_argument("--context", type=int, default=512)
    args = parser.parse_args()
    compile_checkout()
    asked = (stories if args.stories else prompts)(args.model, args.prompts)
    with load(args, None, "serial") as engine:
        plain = answer(engine, asked, args.tokens, None)
    if args.passes:
        by_passes(args, asked, plain)
    if args.schedules:
        by_schedule(args, asked, plain)


if __name__ == "__main__":
    main()
