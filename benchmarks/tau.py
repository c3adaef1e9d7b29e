"""How many tokens does a cycle give, by trained drafter? Of several trainings of each, with intervals.

    python -m benchmarks.tau --trained eagle-0,eagle-1,moa-0,... --nodes 8

Directories as of `budgets.py`; those that differ by a number behind the last "-", a seed, are one arm. All
answer the same held-out prompts, greedily, in trees of so many nodes beside the root; their texts must be the
plain ones. An arm's figure is of all its trainings together; the interval is by the choice of prompts (95 %).
"""

from __future__ import annotations

import argparse
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from benchmarks.budgets import answer, load
from benchmarks.common import arguments, compile_checkout, paths
from benchmarks.held_out import prompts
from benchmarks.tables import Report, interval
from edgespec.apps.common import demo_model
from edgespec.core.sampling import FloatArray, IntArray

Counts = NDArray[np.int64]  # [prompts, 2]: tokens and cycles of each reply


def count(
    args: argparse.Namespace, directory: Path | None, asked: Sequence[list[int]]
) -> tuple[Counts, list[Any]]:
    """Of each reply, and what was said."""
    with load(args, 1, directory) as engine:
        rows = [answer(engine, [prompt], 1, args.nodes if directory else 0, args.tokens) for prompt in asked]
    counts = [(round(row["tokens a cycle"] * row["cycles"]), row["cycles"]) for row in rows]
    return np.array(counts), [row["said"] for row in rows]


def tau(counts: Counts) -> str:
    """Tokens a cycle, and how far the choice of prompts moves it."""

    def of(drawn: IntArray) -> FloatArray:
        sums = counts[drawn].sum(1)  # [draws, 2]
        quotient: FloatArray = sums[:, 0] / sums[:, 1]
        return quotient

    low, high = interval(len(counts), of)
    return f"{counts[:, 0].sum() / counts[:, 1].sum():.3f} ({low:.3f}–{high:.3f})"


def arm(name: str) -> str:
    """A directory's name without its seed."""
    stem, _, seed = name.rpartition("-")
    return stem if stem and seed.isdecimal() else name


def main() -> None:
    parser = arguments(__doc__, rounds=1)
    parser.add_argument("--model", type=Path, default=demo_model())
    parser.add_argument("--trained", type=paths, required=True, help="directories of trained drafters")
    parser.add_argument("--nodes", type=int, default=8)
    parser.add_argument("--prompts", type=int, default=64)
    parser.add_argument("--tokens", type=int, default=64)
    parser.add_argument("--memory", default="1GB")
    parser.add_argument("--context", type=int, default=512)
    args = parser.parse_args()
    compile_checkout()
    asked = prompts(args.model, args.prompts)
    _, plain = count(args, None, asked)
    report = Report(f"Tokens a cycle in trees of {args.nodes} nodes, {len(asked)} held-out prompts")
    arms: dict[str, list[Counts]] = {}
    for directory in args.trained:
        counts, said = count(args, directory, asked)
        if said != plain:
            raise SystemExit(f"{directory} says something else than without drafts")
        arms.setdefault(arm(directory.name), []).append(counts)
        report.raw[directory.name] = counts.tolist()
    for name, each in arms.items():
        seeds = ", ".join(f"{c[:, 0].sum() / c[:, 1].sum():.3f}" for c in each)
        report.add({"drafter": name, "tokens a cycle": tau(sum(each[1:], each[0])), "each training": seeds})
    report.finish(args.json)


if __name__ == "__main__":
    main()
