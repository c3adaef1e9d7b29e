"""Which matmul is fastest for how many rows? Time, and weights a second beside plain reads of memory.

    python -m benchmarks.kernels [--shapes 4096x4096,11008x4096] [--rows 1,4,16,64] [--device cuda]

Weights are rotated through more memory than the caches hold. On a CPU each encoding is multiplied by the
compiled kernels, and in torch's ways: `unpacked` in tiles of numbers, which any CPU can, and `integers`, the
exact matmul of those with fast int8.

    of the bound    of the larger of 1.3 times one row (if that was asked for) and of what the products take
                    at 0.6 of their instruction's rate out of registers (`peaks.py`); below 1: cheap enough
"""

from __future__ import annotations

import statistics
import time
from collections.abc import Callable, Mapping
from dataclasses import replace
from functools import partial

import torch
from torch import Tensor
from torch.nn import functional as F

from benchmarks.common import Row, arguments, interleave, names, numbers
from benchmarks.peaks import instruction, peak
from benchmarks.raw_rates import MemoryRead
from benchmarks.tables import Report, median_ratio, spread
from edgespec.kernels import compiled, integer
from edgespec.kernels.cpu import matmul_dtype, multiply
from edgespec.kernels.gguf_blocks import BLOCKS, row_bytes
from edgespec.kernels.gguf_torch import dequantize_torch
from edgespec.kernels.matmul import Block, linear, tile_bounds
from edgespec.kernels.quantize import dequantize_int4, dequantize_int8, quantize_int4, quantize_int8

Multiply = Callable[[Tensor, Block], Tensor]

SECONDS = 0.15  # of each measurement
CACHES = 300e6  # bytes that no cache holds
NAMES = {"bf16": "BF16", "fp16": "F16", "int8": "I8", "int4": "U8"}  # others are called as GGUF calls them
PLAIN = {"bf16": torch.bfloat16, "fp16": torch.float16}
ALL = "bf16,fp16,int8,int4,Q8_0,Q4_0,Q4_K,Q5_K,Q6_K"


def main() -> None:
    parser = arguments(__doc__, rounds=5)
    parser.add_argument("--shapes", default="4096x4096,11008x4096", help="[out]x[in], comma-separated")
    parser.add_argument("--rows", type=numbers, default=[1, 4, 16, 64], help="row counts, comma-separated")
    parser.add_argument("--encodings", type=names, default=names(ALL), help=f"of {ALL}")
    parser.add_argument("--device", default="cpu", help="cpu or cuda")
    options = parser.parse_args()

    report = Report(f"Matmuls on {options.device}, {torch.get_num_threads()} threads")
    if why := compiled.unavailable():
        report.notes.append(f"The compiled kernels are not there: {why}.")
    memory = MemoryRead(10**9)
    results: list[Row] = []
    ones: dict[tuple[str, str], float] = {}  # ms of one row
    with torch.inference_mode():
        for shape in options.shapes.split(","):
            m, k = map(int, shape.split("x"))
            wanted = dict.fromkeys(["bf16", *options.encodings])
            made = {name: copies(weights(name, m, k, options.device)) for name in wanted}
            for n in options.rows:
                x = torch.randn(n, k, device=options.device).bfloat16()
                arms: dict[str, Callable[[], Row]] = {}
                for name, blocks in made.items():
                    ways = on_cpu(blocks[0]) if options.device == "cpu" else on_cuda(blocks[0])
                    for way, by in ways.items():
                        arms[f"{name} {way}".strip()] = partial(measure, x, blocks, by)
                used = instructions(made)
                if options.device == "cpu":
                    arms["memory"] = lambda: {"gbps": memory.rate() / 1e9}
                    arms |= {by: partial(rate, by) for by in set(used.values())}
                found = interleave(arms, options.rounds)
                reads = [row["gbps"] for row in found.pop("memory", [])]
                peaks = {by: [row["peak"] for row in found.pop(by)] for by in set(used.values())}
                bf16 = [row["ms"] for row in found["bf16"]]
                for name, rows in found.items():
                    ms, gbps = ([row[key] for row in rows] for key in ("ms", "gbps"))
                    if n == 1:
                        ones[shape, name] = statistics.median(ms)
                    rates = peaks.get(used.get(name, ""), []) if n > 1 else []
                    one = ones.get((shape, name), 0.0)
                    bound = [max(1.3 * one, 1e3 * n * m * k / (0.6 * p)) for p in rates]
                    report.add(
                        {
                            "weights": shape,
                            "rows": n,
                            "kernel": name,
                            "ms": spread(ms),
                            "GB/s of weights": spread(gbps, 1),
                            "of memory reads": f"{median_ratio(gbps, reads):.0%}" if reads else "",
                            "against bf16": f"{median_ratio(bf16, ms):.2f} x",
                            "of the bound": f"{median_ratio(ms, bound):.2f}" if bound else "",
                        }
                    )
                    row = {"shape": shape, "rows": n, "kernel": name, "ms": ms, "gbps": gbps}
                    results.append({**row, "memory_gbps": reads})
    report.raw["measurements"] = results
    report.finish(options.json)


def weights(name: str, m: int, k: int, device: str) -> Block:
    """One matrix [m, k] of random numbers. Of GGUF's types all bytes are random but for the fp16 scales."""
    encoding = NAMES.get(name, name)
    if name in NAMES:
        w = (torch.randn(m, k) * 0.02).to(device)
        if name in PLAIN:
            return Block(encoding, w.to(PLAIN[name]), None, m, k)
        return Block(encoding, *(quantize_int8 if name == "int8" else quantize_int4)(w), m, k)
    size = BLOCKS[encoding].nbytes
    raw = torch.randint(0, 256, (m * row_bytes(encoding, k) // size, size), dtype=torch.uint8)
    for at in {"Q4_K": (0, 2), "Q5_K": (0, 2), "Q6_K": (208,)}.get(encoding, (0,)):
        raw[:, at : at + 2] = torch.full((len(raw), 1), 0.01, dtype=torch.float16).view(torch.uint8)
    return Block.of_bytes(encoding, raw.to(device), m, k)


def on_cpu(block: Block) -> dict[str, Multiply]:
    """The ways to multiply with such weights, by name."""
    if block.encoding == "BF16":
        by_torch: dict[str, Multiply] = {"torch": lambda x, b: multiply(x, b.data)}
        return {"": partial(linear, exact=True), "of a prompt": partial(linear, exact=False)} | by_torch
    if block.encoding == "F16":
        half: dict[str, Multiply] = {"torch": lambda x, b: multiply(x.half(), b.data)}
        if compiled.available("F16"):
            half["compiled"] = in_fp16(exact=True)
        return half | {"of a prompt": in_fp16(exact=False)}
    ways: dict[str, Multiply] = {"unpacked": unpacked}
    if block.scale is not None and integer.available():
        ways["integers"] = in_integers
    if compiled.available(block.encoding):
        ways["compiled"] = lambda x, b: compiled.linear(x, b.encoding, b.data, b.scale)
        ways["of a prompt"] = partial(linear, exact=False)  # more rows of it: unpacked
    return ways


def instructions(made: Mapping[str, list[Block]]) -> dict[str, str]:
    """What multiplies a tree's rows, by the names of the kernels of this runtime."""
    found = {}
    for name, blocks in made.items():
        way = "" if name == "bf16" else " compiled"
        if blocks[0].data.device.type == "cpu" and (by := instruction(blocks[0].encoding)):
            found[name + way] = by
    return found


def rate(by: str) -> Row:
    return {"peak": peak(by)}


def in_fp16(exact: bool) -> Multiply:
    return lambda x, b: linear(x.half(), b, exact)


def on_cuda(block: Block) -> dict[str, Multiply]:
    exact = {} if block.encoding == "BF16" else {"exact": partial(linear, exact=True)}
    return {"": partial(linear, exact=False), **exact}


def unpacked(x: Tensor, block: Block) -> Tensor:
    dtype = matmul_dtype(x.dtype)
    tiles = tile_bounds(block.rows, block.inner * dtype.itemsize)
    return torch.cat([F.linear(x.to(dtype), dense(block, *tile, dtype)) for tile in tiles], dim=1)


def dense(block: Block, start: int, stop: int, dtype: torch.dtype) -> Tensor:
    """Rows [start, stop) as numbers, by torch's operations."""
    data = block.data[start:stop]
    if block.scale is None:
        return dequantize_torch(block.encoding, data, block.inner, dtype, None)
    if block.encoding == "I8":
        return dequantize_int8(data, block.scale[start:stop], dtype, None)
    return dequantize_int4(data, block.scale[start:stop], dtype, block.inner, None)


def in_integers(x: Tensor, block: Block) -> Tensor:
    assert block.scale is not None
    digits = integer.split(x)
    parts = [
        integer.multiply(digits, block.numbers(start, stop), block.scale[start:stop], x.dtype)
        for start, stop in tile_bounds(block.rows, 12 * len(x) + block.inner)
    ]
    return torch.cat(parts, dim=1)


def copies(block: Block) -> list[Block]:
    """The block, as often as the caches' size asks for."""
    return [replace(block, data=block.data.clone()) for _ in range(int(CACHES / block.data.nbytes) + 1)]


def measure(x: Tensor, blocks: list[Block], by: Multiply) -> Row:
    """The quickest of many calls: others on the machine only ever add."""
    block_bytes = sum(t.nbytes for t in (blocks[0].data, blocks[0].scale) if t is not None)
    synchronize: Callable[[], object] = torch.cuda.synchronize if x.is_cuda else lambda: None
    by(x, blocks[0])
    times: list[float] = []
    end = time.perf_counter() + SECONDS
    while len(times) < 5 or time.perf_counter() < end:
        block = blocks[len(times) % len(blocks)]
        synchronize()
        began = time.perf_counter()
        by(x, block)
        synchronize()
        times.append(time.perf_counter() - began)
    return {"ms": min(times) * 1e3, "gbps": block_bytes / min(times) / 1e9}


if __name__ == "__main__":
    main()
