"""Milliseconds of a draft pass by engine: one model by torch, by what was exported of it, and by llama.cpp.

    python -m benchmarks.engines MODEL OTHER... [--rows 1,2,4,8] [--threads 1] [--context 256]
    python -m benchmarks.engines MODEL OTHER... --text README.md

With a text: how often each names MODEL's own next token, of 2,048 positions, in place of milliseconds.

OTHER: an exported directory, or a .gguf file, which llama.cpp runs. Each engine runs in this process, one
pass of each after the other, so that they meet the same machine. Give a packed MODEL to compare low
precisions.
"""

from __future__ import annotations

import argparse
import statistics
import time
from collections.abc import Sequence
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from edgespec.drafters.channel import Load
from edgespec.drafters.llama_cpp_model import llama_cpp_model
from edgespec.drafters.onnx_model import onnx_model
from edgespec.drafters.opened import OpenModel
from edgespec.drafters.worker import torch_model
from edgespec.runtimes.base import DraftRuntime
from edgespec.runtimes.formats.describe import describe_model
from edgespec.text.tokenizer import load_tokenizer

OPENERS: dict[str, OpenModel] = {"torch": torch_model, "onnx": onnx_model, "llama_cpp": llama_cpp_model}


def one_pass(runtime: DraftRuntime, rows: int, length: int) -> float:
    """Seconds of a pass over `rows` branches behind the same token."""
    runtime.truncate(length)
    began = time.perf_counter()
    under_way = runtime.begin([5] * (rows + 1), [-1] + [0] * rows)
    while not under_way.advance():
        pass
    assert under_way.logits.shape[0] == rows + 1
    return time.perf_counter() - began


def likeliest(runtime: DraftRuntime, tokens: Sequence[int], rows: int = 8) -> NDArray[np.intp]:
    """The next token behind each of these, which are the conversation, [n]."""
    found = []
    for start in range(0, len(tokens), rows):
        block = tokens[start : start + rows]
        under_way = runtime.begin(block, range(-1, len(block) - 1))
        while not under_way.advance():
            pass
        found.append(under_way.logits.argmax(axis=1))
        runtime.commit(range(len(block)), [])
    return np.concatenate(found)


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("model")
    parser.add_argument("others", nargs="+")
    parser.add_argument("--rows", default="1,2,4,8")
    parser.add_argument("--threads", type=int, default=1)
    parser.add_argument("--context", type=int, default=256)
    parser.add_argument("--repeat", type=int, default=15)
    parser.add_argument("--text", help="a file; its first 2,048 tokens are gone through")
    asked = parser.parse_args()
    tokens: Sequence[int] = []
    if asked.text:
        tokenizer = load_tokenizer(describe_model(Path(asked.model)), Path(asked.model))
        tokens = tokenizer.encode(Path(asked.text).read_text("utf-8"))[:2048]
    opened: dict[str, DraftRuntime] = {}
    for place, path in enumerate([asked.model, *asked.others]):
        engine = ("llama_cpp" if path.endswith(".gguf") else "onnx") if place else "torch"
        made = OPENERS[engine](Load(str(Path(path).resolve()), asked.threads, "cpu"), lambda nbytes: None)
        runtime = opened[f"{engine} {Path(path).name}"] = made.runtime(max(asked.context, len(tokens)) + 8)
        if asked.text:
            continue
        for _ in runtime.prefill([3 + i % 200 for i in range(asked.context)]):
            pass
    if asked.text:
        said = {name: likeliest(runtime, tokens) for name, runtime in opened.items()}
        first = next(iter(said.values()))
        for name, theirs in said.items():
            print(f"{name}: {(theirs == first).mean():.1%} of {len(tokens)} next tokens are the first's")
        return
    for rows in map(int, asked.rows.split(",")):
        seconds: dict[str, list[float]] = {name: [] for name in opened}
        for turn in range(asked.repeat + 2):
            for name, runtime in opened.items():
                took = one_pass(runtime, rows - 1, asked.context)
                if turn > 1:
                    seconds[name].append(took)
        times = "  ".join(
            f"{name} {1e3 * statistics.median(s):.2f} ({1e3 * min(s):.2f})" for name, s in seconds.items()
        )
        print(f"{rows:3} rows, ms, median (least): {times}", flush=True)


if __name__ == "__main__":
    main()
