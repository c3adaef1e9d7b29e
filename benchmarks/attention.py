"""How long does attention over what was said before take a tree's rows, and how near is it to reading memory?

    python -m benchmarks.attention [--shapes 32/32x128,32/8x64] [--positions 1000] [--rows 1,4] [--level AVX2]

A pass over 16 layers, each with keys and values of its own, in bf16; a shape is query heads / heads of keys x
numbers of a head. With --level the compiled kernels compute as if the CPU had those instructions at most.
"""

from __future__ import annotations

import statistics
import time
from functools import partial

import numpy as np
import torch

from benchmarks.common import Row, arguments, interleave, names, numbers
from benchmarks.raw_rates import MemoryRead
from benchmarks.tables import Report, median_ratio, spread
from edgespec.kernels import compiled
from edgespec.kernels.choice import LEVELS
from edgespec.kernels.tree_attention import BLOCK, Past, TreeAttention

LAYERS = 16
AGAIN = 3  # passes of a measurement


def passes(shape: str, positions: int, rows: int) -> Row:
    """The median pass in ms, and GB/s of keys and values."""
    heads, kv_heads, e = map(int, shape.replace("x", "/").split("/"))
    shared, own = positions // BLOCK * BLOCK, BLOCK + rows
    prefix, tail = (torch.randn(2, LAYERS, kv_heads, count, e).bfloat16() for count in (shared, own))
    place = np.tile(np.arange(positions - shared + 1, dtype=np.int32), (rows, 1))
    place[:, -1] = BLOCK + np.arange(rows)  # each row is a leaf of its own
    at = np.full(rows, positions, dtype=np.int64)
    past = Past((prefix[0], prefix[1]), (tail[0], tail[1]), range(own), shared, place, at)
    attend = TreeAttention([past])
    q, k, v = (torch.randn(rows, count, e).bfloat16() for count in (heads, kv_heads, kv_heads))
    seconds = []
    for _ in range(1 + AGAIN):
        began = time.perf_counter()
        for layer in range(LAYERS):
            attend(layer, q, k, v, None)
        seconds.append(time.perf_counter() - began)
    took = statistics.median(seconds[1:])
    return {"ms": 1e3 * took, "gbps": 4 * LAYERS * kv_heads * positions * e / took / 1e9}


def main() -> None:
    parser = arguments(__doc__, rounds=5)
    parser.add_argument("--shapes", type=names, default=["32/32x128", "32/8x128", "32/8x64"])
    parser.add_argument("--positions", type=int, default=1000)
    parser.add_argument("--rows", type=numbers, default=[1, 4, 8, 16, 64])
    parser.add_argument("--level", type=LEVELS.index, default=compiled.level(), help=f"of {LEVELS}")
    options = parser.parse_args()
    compiled.level(options.level)
    memory = MemoryRead(10**9)
    threads, level = torch.get_num_threads(), LEVELS[options.level]
    report = Report(f"Attention over {options.positions} positions, {threads} threads, {level}")
    for shape in options.shapes:
        arms = {str(rows): partial(passes, shape, options.positions, rows) for rows in options.rows}
        with torch.inference_mode():
            found = interleave(arms | {"memory": lambda: {"gbps": memory.rate() / 1e9}}, options.rounds)
        reads = [row["gbps"] for row in found.pop("memory")]
        for rows, measured in found.items():
            gbps = [row["gbps"] for row in measured]
            cells = {"shape": shape, "rows": rows, "ms": spread([row["ms"] for row in measured])}
            of_reads = f"{median_ratio(gbps, reads):.0%}"
            report.add(cells | {"GB/s": spread(gbps, 1), "of memory reads": of_reads})
        report.raw[shape] = found
    report.finish(options.json)


if __name__ == "__main__":
    main()
