"""How many tokens does a cycle give, by trained drafter? By passes of drafting, of several trainings of each.

    python -m benchmarks.tau --trained eagle-0,eagle-1,moa-0,... --nodes 8
    python -m benchmarks.tau --trained ss-0,ar-0 --nodes 15 --depth 15 --passes 1,2,3,4

What was trained for the model says its kind, else a directory is a draft model, exported or not; those that
differ by a number behind the last "-", a seed, are one arm. All answer the same held-out prompts, greedily,
in trees of so many nodes beside the root, whatever they cost; their texts must be the plain ones. An arm's
figure is of all its trainings together; 95 % intervals are by the choice of prompts and of trainings, of
prompts the same for both arms of a quotient.

    accepted a pass  drafted tokens that the target took, over passes of the drafter
    kappa            a l_d / k, SpecFormer's Equation 5, as `edgespec bench` has it (`apps/bench_drafts.py`)
"""

from __future__ import annotations

import argparse
from collections.abc import Sequence
from functools import partial
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

import edgespec
from benchmarks.common import arguments, compile_checkout, numbers, paths
from benchmarks.held_out import prompts, text_prompts
from benchmarks.tables import Report, interval
from edgespec.apps.bench_drafts import Drafts
from edgespec.apps.common import demo_model
from edgespec.config import GenerationOptions
from edgespec.control.fixed import Fixed
from edgespec.core.sampling import FloatArray, IntArray
from edgespec.core.schedule import TreeBudget
from edgespec.core.trace import Cycle, Trace
from edgespec.runtimes.formats.trained import trained_kind

Counts = NDArray[np.int64]  # [prompts, 2]: tokens and cycles of each reply


def load(model: Path, memory: str, context: int, directory: Path | None) -> edgespec.Engine:
    options = {"memory": memory, "context": context, "schedule": "serial"}
    if directory is None:
        return edgespec.load(model, drafter="none", **options)
    if (kind := trained_kind(directory)) is None:
        return edgespec.load(model, drafter="model", draft_model=directory, **options)
    return edgespec.load(model, drafter=kind, adapters=directory, **options)


def answer(
    engine: edgespec.Engine, asked: Sequence[list[int]], tokens: int, budget: TreeBudget | None
) -> tuple[list[list[int]], Counts, Drafts]:
    """What is said to each prompt; a prompt's own pass is no cycle. budget: None = without drafts."""
    said, counts, drafts = list[list[int]](), list[tuple[int, int]](), Drafts()
    for prompt in asked:
        own, controller = Drafts(), None if budget is None else Fixed(budget)
        room = 0 if budget is None else budget.nodes  # for a tree at the end that nobody cuts

        def hear(cycle: Cycle, own: Drafts = own) -> None:
            own.add(cycle)
            drafts.add(cycle)

        with engine.new_session(len(prompt) + tokens + room, controller, Trace(hear)) as session:
            steps = session.generate(prompt, GenerationOptions(max_tokens=tokens))
            said.append([step.token for step in steps if step.token is not None])
        counts.append((own.accepted + own.cycles, own.cycles))
    return said, np.array(counts), drafts


def pooled(each: Sequence[Counts]) -> float:
    """Tokens a cycle of several trainings together."""
    tokens, cycles = sum(each[1:], each[0]).sum(0).tolist()
    return float(tokens / cycles)


def redrawn(each: Sequence[Counts], drawn: IntArray) -> FloatArray:
    """The same by other choices of prompts, [draws, prompts] -> [draws], and as many of the trainings; of
    arms with as many trainings the same ones, which had the same order of data."""
    chosen = np.random.default_rng(0).integers(0, len(each), (len(drawn), len(each)))
    sums = np.stack(each)[chosen[:, :, None], drawn[:, None, :]].sum((1, 2))  # [draws, 2]
    quotient: FloatArray = sums[:, 0] / sums[:, 1]
    return quotient


def over(each: Sequence[Counts], first: Sequence[Counts]) -> str:
    """Quotient of two arms, with its interval."""
    low, high = interval(len(first[0]), lambda drawn: redrawn(each, drawn) / redrawn(first, drawn))
    return f"{pooled(each) / pooled(first):.2f} ({low:.2f}–{high:.2f})"


def arm(name: str) -> str:
    """A directory's name without its seed."""
    stem, _, seed = name.rpartition("-")
    return stem if stem and seed.isdecimal() else name


def measure(args: argparse.Namespace, report: Report) -> dict[tuple[str, int], list[tuple[Counts, Drafts]]]:
    """Of each training, by arm and passes. Raises SystemExit for another text than without drafts."""
    if args.text is None:
        asked = prompts(args.model, args.prompts)
    else:
        asked = text_prompts(args.model, args.text, args.prompts)
    options = args.model, args.memory, args.context
    with load(*options, None) as engine:
        plain, _, _ = answer(engine, asked, args.tokens, None)
    depth = min(args.nodes, args.depth)
    arms: dict[tuple[str, int], list[tuple[Counts, Drafts]]] = {}
    for directory in args.trained:
        with load(*options, directory) as engine:
            for passes in args.passes or [depth]:
                said, *found = answer(engine, asked, args.tokens, TreeBudget(args.nodes + 1, depth, passes))
                if said != plain:
                    raise SystemExit(f"{directory}, {passes} passes: other words than without drafts")
                arms.setdefault((arm(directory.name), passes), []).append((found[0], found[1]))
                report.raw[f"{directory.name}, {passes} passes"] = found[0].tolist()
    return arms


def main() -> None:
    parser = arguments(__doc__, rounds=1)
    parser.add_argument("--model", type=Path, default=demo_model())
    parser.add_argument("--trained", type=paths, required=True, help="directories of drafters")
    parser.add_argument("--nodes", type=int, default=8, help="of a tree, beside its root")
    parser.add_argument("--depth", type=int, default=5, help="of a tree, at most")
    parser.add_argument("--passes", type=numbers, help="before each verification; default: the depth")
    parser.add_argument("--prompts", type=int, default=64)
    parser.add_argument("--text", type=Path, help="passages of it, to go on with, for prompts")
    parser.add_argument("--tokens", type=int, default=64)
    parser.add_argument("--memory", default="1GB")
    parser.add_argument("--context", type=int, default=512)
    args = parser.parse_args()
    compile_checkout()
    report = Report(f"Tokens a cycle in trees of {args.nodes} nodes, {args.prompts} held-out prompts")
    arms = measure(args, report)
    for (name, passes), trainings in arms.items():
        each, drafts = [counts for counts, _ in trainings], [one for _, one in trainings]
        low, high = interval(args.prompts, partial(redrawn, each))
        first = next(iter({n: found for (n, p), found in arms.items() if p == passes}.items()))
        accepted, spent = (sum(getattr(one, key) for one in drafts) for key in ("accepted", "passes"))
        report.add({
            "drafter": name,
            "passes": passes,
            "tokens a cycle": f"{pooled(each):.3f} ({low:.3f}–{high:.3f})",
            "each training": ", ".join(f"{pooled([one]):.3f}" for one in each),
            "accepted a pass": f"{accepted / spent:.2f}" if spent else "",
            "kappa": ", ".join(f"{one.kappa or 0:.2f}" for one in drafts),
            f"over {first[0]}": over(each, [counts for counts, _ in first[1]]),
        })  # fmt: skip
    report.finish(args.json)


if __name__ == "__main__":
    main()
