"""Milliseconds of a draft pass by engine: one model by torch and by what was exported of it, in turn.

    python benchmarks/engines.py MODEL EXPORTED... [--rows 1,2,4,8] [--threads 1] [--context 256]

Each engine runs in this process, one pass of each after the other, so that they meet the same machine. Give a
packed MODEL to compare low precisions.
"""

from __future__ import annotations

import argparse
import statistics
import time
from collections.abc import Callable
from pathlib import Path

from edgespec.drafters.channel import Load
from edgespec.drafters.onnx_model import onnx_model
from edgespec.drafters.worker import torch_model
from edgespec.runtimes.base import DraftRuntime


def one_pass(runtime: DraftRuntime, rows: int, length: int) -> float:
    """Seconds of a pass over `rows` branches behind the same token."""
    runtime.truncate(length)
    began = time.perf_counter()
    under_way = runtime.begin([5] * (rows + 1), [-1] + [0] * rows)
    while not under_way.advance():
        pass
    assert under_way.logits.shape[0] == rows + 1
    return time.perf_counter() - began


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("model")
    parser.add_argument("exported", nargs="+")
    parser.add_argument("--rows", default="1,2,4,8")
    parser.add_argument("--threads", type=int, default=1)
    parser.add_argument("--context", type=int, default=256)
    parser.add_argument("--repeat", type=int, default=15)
    asked = parser.parse_args()
    opened: dict[str, DraftRuntime] = {}
    for place, path in enumerate([asked.model, *asked.exported]):
        openers: Callable[..., object] = onnx_model if place else torch_model
        made = openers(Load(str(Path(path).resolve()), asked.threads, "cpu"), lambda nbytes: None)
        opened[path] = made.runtime(asked.context + 8)  # type: ignore[attr-defined]
        for _ in opened[path].prefill([3 + i % 200 for i in range(asked.context)]):
            pass
    for rows in map(int, asked.rows.split(",")):
        seconds: dict[str, list[float]] = {path: [] for path in opened}
        for turn in range(asked.repeat + 2):
            for path, runtime in opened.items():
                took = one_pass(runtime, rows - 1, asked.context)
                if turn > 1:
                    seconds[path].append(took)
        times = "  ".join(
            f"{Path(path).name} {1e3 * statistics.median(s):.2f} ({1e3 * min(s):.2f})"
            for path, s in seconds.items()
        )
        print(f"{rows:3} rows, ms, median (least): {times}", flush=True)


if __name__ == "__main__":
    main()
