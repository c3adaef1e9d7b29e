"""Matmuls of a tree's rows with bf16, int8 and int4 weights: time, and gigabytes of weights a second.

    python -m benchmarks.kernels [--shapes 4096x4096,11008x4096] [--rows 1,8,64,256] [--device cuda]

Weights are rotated through more memory than the caches hold. On a CPU `unpacked` is what machines without an
exact int8 matmul do: tiles of dequantised weights; `for drafting` is int4 as the substitute keeps it.
"""

from __future__ import annotations

import time
from collections.abc import Callable
from dataclasses import replace
from functools import partial

import torch
from torch import Tensor
from torch.nn import functional as F

from benchmarks.common import Report, Row, arguments, interleave, median_ratio, spread
from edgespec.kernels.cpu import matmul_dtype, multiply
from edgespec.kernels.matmul import Block, linear
from edgespec.kernels.quantize import quantize_int4, quantize_int8

Multiply = Callable[[Tensor, Block], Tensor]

SECONDS = 0.15  # of each measurement
CACHES = 300e6  # bytes that no cache holds


def main() -> None:
    parser = arguments(__doc__, rounds=5)
    parser.add_argument("--shapes", default="4096x4096,11008x4096", help="[out]x[in], comma-separated")
    parser.add_argument("--rows", default="1,8,64,256", help="row counts, comma-separated")
    parser.add_argument("--device", default="cpu", help="cpu or cuda")
    options = parser.parse_args()

    columns = ("weights", "rows", "kernel", "ms", "GB/s of weights", "against bf16")
    report = Report(f"Matmuls on {options.device}, {torch.get_num_threads()} threads", columns)
    results: list[Row] = []
    with torch.inference_mode():
        for shape in options.shapes.split(","):
            m, k = map(int, shape.split("x"))
            weights = make_weights(m, k, options.device)
            for n in map(int, options.rows.split(",")):
                x = torch.randn(n, k, device=options.device).bfloat16()
                arms = {name: partial(measure, x, *of) for name, of in weights.items()}
                found = interleave(arms, options.rounds)
                bf16 = [row["ms"] for row in found["bf16"]]
                for name, rows in found.items():
                    ms, rate = ([row[key] for row in rows] for key in ("ms", "gbps"))
                    ratio = median_ratio(bf16, ms)
                    report.add(shape, str(n), name, spread(ms), spread(rate, 1), f"{ratio:.2f} x")
                    results.append({"shape": shape, "rows": n, "kernel": name, "ms": ms, "gbps": rate})
    report.raw["measurements"] = results
    report.finish(options.json)


def make_weights(m: int, k: int, device: str) -> dict[str, tuple[list[Block], Multiply]]:
    """By kernel: copies of one matrix, and the function that multiplies x with one of them."""
    w = (torch.randn(m, k) * 0.02).to(device)
    blocks = {
        "bf16": Block("BF16", w.bfloat16(), None, m, k),
        "int8": Block("I8", *quantize_int8(w), m, k),
        "int4": Block("U8", *quantize_int4(w), m, k),
    }
    exact = partial(linear, exact=True)
    if device == "cpu":
        arms = {"bf16": (blocks["bf16"], lambda x, b: multiply(x, b.data))}
        arms |= {name: (blocks[name], exact) for name in ("int8", "int4")}
        arms |= {f"{name} unpacked": (blocks[name], unpacked) for name in ("int8", "int4")}
        arms["int4 for drafting"] = (blocks["int4"].for_drafting(), partial(linear, exact=False))
    else:
        arms = {name: (block, partial(linear, exact=False)) for name, block in blocks.items()}
        arms |= {f"{name} exact": (blocks[name], exact) for name in ("int8", "int4")}
    return {name: (copies(block), multiply) for name, (block, multiply) in arms.items()}


def unpacked(x: Tensor, block: Block) -> Tensor:
    dtype = matmul_dtype(x.dtype)
    return torch.cat([F.linear(x.to(dtype), tile) for tile in block.tiles(dtype)], dim=1)


def copies(block: Block) -> list[Block]:
    """The block, as often as the caches' size asks for."""
    return [replace(block, data=block.data.clone()) for _ in range(int(CACHES / block.data.nbytes) + 1)]


def measure(x: Tensor, blocks: list[Block], multiply: Multiply) -> Row:
    """The quickest of many calls: others on the machine only ever add."""
    block_bytes = sum(t.nbytes for t in (blocks[0].data, blocks[0].scale) if t is not None)
    synchronize = torch.cuda.synchronize if x.is_cuda else lambda: None
    multiply(x, blocks[0])
    times: list[float] = []
    end = time.perf_counter() + SECONDS
    while len(times) < 5 or time.perf_counter() < end:
        block = blocks[len(times) % len(blocks)]
        synchronize()
        began = time.perf_counter()
        multiply(x, block)
        synchronize()
        times.append(time.perf_counter() - began)
    return {"ms": min(times) * 1e3, "gbps": block_bytes / min(times) / 1e9}


if __name__ == "__main__":
    main()
