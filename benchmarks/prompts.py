"""How long does a prompt take that attends as a tree's rows do, and by torch?

    python -m benchmarks.prompts models/1b-int4 [--rows 8,32,128] [--behind 100] [--level AVX2]

A model in memory reads so many tokens behind some others, in one pass. As trees': by the compiled kernel, and
with layers in one call where that has room for all rows (64). By torch: function by function.
"""

from __future__ import annotations

import time
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np

from benchmarks.common import Row, arguments, interleave, numbers
from benchmarks.tables import Report, ratio, spread
from edgespec.core.batch import blocks, run_pass
from edgespec.kernels import compiled
from edgespec.kernels.choice import LEVELS
from edgespec.runtimes.base import PREFILL_ROWS, TREE_ROWS
from edgespec.runtimes.formats.describe import describe_model
from edgespec.runtimes.torch.choices import settle
from edgespec.runtimes.torch.draft import open_draft
from edgespec.runtimes.torch.target import TorchTarget
from edgespec.runtimes.torch.weights import Weights


class ByTorch:
    """The same weights, whose prompts are not to attend as trees'."""

    chains = 0

    def __init__(self, weights: Weights) -> None:
        self._weights = weights

    def __getattr__(self, name: str) -> Any:
        return getattr(self._weights, name)


def reader(model: Path, behind: int) -> Callable[[int, bool], Row]:
    """Reads so many rows, as trees' or not."""
    files = describe_model(model)
    settle(files.table)
    target = open_draft(files, TREE_ROWS)
    if not target.weights.chains:
        raise SystemExit("torch attends to all prompts of this model here; there is nothing to compare")
    by_torch: TorchTarget[Any] = TorchTarget(files.config, ByTorch(target.weights), TREE_ROWS)
    cache = target.new_cache(behind + PREFILL_ROWS, TREE_ROWS)
    rng, vocabulary = np.random.default_rng(0), files.config.vocab_size

    def read(rows: int, as_trees: bool) -> Row:
        began = time.perf_counter()
        for block in blocks(cache, rng.integers(0, vocabulary, rows).tolist()):
            run_pass(target if as_trees else by_torch, [block])
            block.raise_error()
        took = time.perf_counter() - began
        cache.truncate(behind)
        return {"ms": 1e3 * took}

    if behind:
        read(behind, True)
    return read


def main() -> None:
    parser = arguments(__doc__, rounds=5)
    parser.add_argument("model", type=Path)
    parser.add_argument("--rows", type=numbers, default=[1, 4, 8, 16, 32, 64, 128, 256])
    parser.add_argument("--behind", type=int, default=100)
    parser.add_argument("--level", type=LEVELS.index, default=compiled.level(), help=f"of {LEVELS}")
    options = parser.parse_args()
    compiled.level(options.level)
    read = reader(options.model, options.behind)
    arms = {
        f"{rows} {how}": partial(read, rows, how == "as trees'")
        for rows in options.rows
        for how in ("as trees'", "by torch")
    }
    found = interleave(arms, options.rounds)
    report = Report(f"Prompts of {options.model.name} behind {options.behind} tokens", raw=dict(found))
    for rows in options.rows:
        ours, theirs = ([row["ms"] for row in found[f"{rows} {how}"]] for how in ("as trees'", "by torch"))
        cells = {"rows": rows, "as trees', ms": spread(ours, 3), "by torch, ms": spread(theirs, 3)}
        report.add(cells | {"torch takes ×": ratio(theirs, ours)})
    report.finish(options.json)


if __name__ == "__main__":
    main()
