"""How many tokens does a cycle give, by trained drafter? Of several trainings of each, with intervals.

    python -m benchmarks.tau --trained eagle-0,eagle-1,moa-0,... --nodes 8

Directories as of `budgets.py`; those that differ by a number behind the last "-", a seed, are one arm. All
answer the same held-out prompts, greedily, in trees of so many nodes beside the root; their texts must be the
plain ones. An arm's figure is of all its trainings together; 95 % intervals are by the choice of prompts and
of trainings, of prompts the same for both arms of a quotient. With --known, a results file of this script,
what that has of these prompts is not asked again.
"""

from __future__ import annotations

import argparse
import json
from collections.abc import Sequence
from functools import partial
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


def main() -> None:
    parser = arguments(__doc__, rounds=1)
    parser.add_argument("--model", type=Path, default=demo_model())
    parser.add_argument("--trained", type=paths, required=True, help="directories of trained drafters")
    parser.add_argument("--nodes", type=int, default=8)
    parser.add_argument("--prompts", type=int, default=64)
    parser.add_argument("--tokens", type=int, default=64)
    parser.add_argument("--memory", default="1GB")
    parser.add_argument("--context", type=int, default=512)
    parser.add_argument("--known", type=Path, help="results of this script for the same prompts and trees")
    parser.set_defaults(resident_layers=None)
    args = parser.parse_args()
    compile_checkout()
    asked = prompts(args.model, args.prompts)
    _, plain = count(args, None, asked)
    report = Report(f"Tokens a cycle in trees of {args.nodes} nodes, {len(asked)} held-out prompts")
    arms: dict[str, list[Counts]] = {}
    known = json.loads(args.known.read_text())["raw"] if args.known else {}
    for directory in args.trained:
        if directory.name in known:
            found = np.array(known[directory.name])[: len(asked)]
        else:
            found, said = count(args, directory, asked)
            if said != plain:
                raise SystemExit(f"{directory} says something else than without drafts")
        arms.setdefault(arm(directory.name), []).append(found)
        report.raw[directory.name] = found.tolist()
    (name_of_first, first), *_ = arms.items()
    for name, each in arms.items():
        low, high = interval(len(asked), partial(redrawn, each))
        cells = {"drafter": name, "tokens a cycle": f"{pooled(each):.3f} ({low:.3f}–{high:.3f})"}
        cells["each training"] = ", ".join(f"{pooled([one]):.3f}" for one in each)
        report.add({**cells, f"over {name_of_first}": over(each, first)})
    report.finish(args.json)


if __name__ == "__main__":
    main()
