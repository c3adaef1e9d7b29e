"""What multiplies weights of an encoding fastest here: a short race, with matrices that lie in a cache.

What computes faster than weights come from memory is as fast as memory, whichever it is, so what a core does
in its cache decides. On one thread, for cores share nothing but memory: so the choice, and the bits, are the
same for every number of threads.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from functools import partial
from time import get_clock_info, perf_counter, thread_time

import torch
from torch import Tensor
from torch.nn import functional as F

from edgespec.kernels import compiled
from edgespec.kernels.choice import (
    AMX,
    AVX2,
    AVX512,
    AVX512_BF16,
    AVX_VNNI,
    FEWS,
    PLAIN,
    RARE,
    ROWS,
    TORCH,
    Choice,
    order_words,
    way_words,
)
from edgespec.kernels.cpu import matmul_dtype, multiply
from edgespec.kernels.low_bit import stored_row_bytes
from edgespec.kernels.matmul import PROMPT_TILE_BYTES, Block, linear
from edgespec.kernels.threads import alone

# With fewer rows of weights what is done once for x counts too much: of 256 eight rows of x were multiplied
# side by side, which takes int8 1.5 times as long from memory.
OUT, INNER = 1024, 2048
TRIES = 5  # of each, in turn; the best counts: others' work is not the machine's
# So much faster something must be than what features say: less is noise. Where bits are others, more.
LEAD, OTHER_BITS = 1.05, 1.3
PROMPTS = (64, 256)  # rows: may few be unpacked for, and which order is for many
SHARED = (1, 16, PROMPTS[0])  # of bf16 by bf16, of which all but a prompt's have one order
REGISTERS = {AVX2: 6, AVX_VNNI: 6, AVX512: 16}  # (NEON: 6) rows that weights are used for as they are decoded
NO_TILES = 4  # rows that features say no AMX for: native.h's FEW
FILLED = 0x11  # every byte of the weights: a small normal number in each float type, and no NaN as a scale

Call = Callable[[], object]


# What others do meanwhile does not count: beside three busy programs torch was four times as fast at prompts,
# by a clock on the wall, as what is a tenth slower. Windows counts a thread's time too coarsely.
_now = thread_time if get_clock_info("thread_time").resolution <= 1e-6 else perf_counter


def seconds(call: Call) -> float:
    """Of one call, of this thread."""
    began = _now()
    call()
    return _now() - began


def elapsed(call: Call) -> float:
    """Of one call, whoever computes."""
    began = perf_counter()
    call()
    return perf_counter() - began


def by_features(encoding: str) -> Choice:
    """What is used where nothing was measured."""
    ways = tuple(_ways(encoding, rows)[0] for rows in ROWS)
    return Choice(ways, compiled.usual_order(encoding), compiled.usual_few(encoding))


@torch.inference_mode()
def measure(encoding: str, clock: Callable[[Call], float] = seconds) -> Choice:
    """The fastest for weights so stored: some 80 ms."""
    block, usual = _block(encoding), by_features(encoding)
    tried: dict[str, list[float]] = {}

    def race(calls: Mapping[int, Call], name: Callable[[int], str]) -> dict[int, float]:
        best = _best(calls, clock)
        for key, took in best.items():
            tried.setdefault(name(key), []).append(round(took * 1e6, 1))
        return best

    def in_orders(rows: int, orders: Sequence[int], prompt: bool = True) -> dict[int, float]:
        x = _inputs(rows, torch.float16 if encoding == "F16" else torch.bfloat16)
        calls = {order: partial(_in_order, x, block, order, prompt=prompt) for order in orders}
        return race(calls, lambda order: f"{'prompts' if prompt else 'all rows'}: {order_words(order)}")

    with alone():
        ways, took = [], dict[int, float]()
        for rows in ROWS:
            x = _inputs(rows, torch.float16 if encoding in PLAIN else torch.bfloat16)
            took = race({way: partial(_by, x, block, way) for way in _ways(encoding, rows)}, way_words)
            ways.append(_winner(took, LEAD))
        orders = _orders(encoding)
        if encoding == "BF16":
            shared = [in_orders(rows, orders, prompt=False) for rows in SHARED]
            means = {order: math.prod(times[order] for times in shared) for order in orders}
            order = _winner(means, OTHER_BITS ** len(SHARED))
            as_trees = as_prompts = shared[-1][order]
            if order >= AVX512_BF16:
                as_prompts = in_orders(PROMPTS[0], [order])[order]
        else:
            some, many = (in_orders(rows, orders) for rows in PROMPTS)
            order = _winner(many, OTHER_BITS)
            as_trees, as_prompts = min(took.values()), some[order]
        few = _few(usual, order, as_trees, as_prompts)
    return Choice(tuple(ways), order, few, {name: tuple(times) for name, times in tried.items()})


def core_seconds(encoding: str, choice: Choice) -> dict[int, float]:
    """What a core takes to multiply 10^9 bytes of such weights, in its cache and as chosen, by numbers of
    rows: as far as the race has shown it."""
    found = dict[int, float]()
    if encoding == "BF16" and not AVX2 <= choice.order <= AVX512:
        times = choice.tried.get(f"all rows: {order_words(choice.order)}", ())
        found.update(zip(SHARED, times, strict=False))
    else:
        for place, (rows, way) in enumerate(zip(ROWS, choice.ways, strict=True)):
            times = choice.tried.get(way_words(way), ())
            at = sum(way in _ways(encoding, fewer) for fewer in ROWS[:place])
            if at < len(times):
                found[rows] = times[at]
    gigabytes = OUT * stored_row_bytes(encoding, INNER) / 1e9
    return {rows: microseconds / 1e6 / gigabytes for rows, microseconds in found.items()}


@torch.inference_mode()
def by_torch(encoding: str) -> dict[int, float]:
    """The same by torch and all threads, where no kernels of ours are there: some 50 ms."""
    block = _block(encoding)
    calls = {rows: partial(linear, _inputs(rows, torch.bfloat16), block, exact=True) for rows in SHARED}
    return {rows: took / block.data.nbytes * 1e9 for rows, took in _best(calls, elapsed).items()}


def _best(calls: Mapping[int, Call], clock: Callable[[Call], float]) -> dict[int, float]:
    """Of each, tried in turn."""
    best = dict.fromkeys(calls, math.inf)
    for _ in range(TRIES):
        best = {key: min(best[key], clock(call)) for key, call in calls.items()}
    return best


def _winner(took: Mapping[int, float], lead: float) -> int:
    """The fastest; the first, unless it is beaten by `lead`."""
    first = next(iter(took))
    best = min(took, key=took.__getitem__)
    return best if took[best] * lead < took[first] else first


def _few(usual: Choice, order: int, as_trees: float, as_prompts: float) -> int:
    """Up to which row a prompt's are multiplied as a tree's, by what PROMPTS[0] of them took."""
    if order == TORCH or compiled.as_trees(order):
        return FEWS[1]
    took = {FEWS[0]: as_prompts, FEWS[1]: as_trees}
    return _winner({usual.few: took[usual.few]} | took, OTHER_BITS)


def _ways(encoding: str, rows: int) -> list[int]:
    """Those that so many rows may be multiplied in, that of features first."""
    best = compiled.best_level(encoding)
    if best < AVX2:
        return [0]
    if encoding in PLAIN:
        return [2 * level for level in (AVX512, AVX2) if level <= best]
    second = AVX_VNNI if AVX_VNNI in compiled.levels() else AVX2
    levels = [level for level in (AVX512, second) if level <= best]
    ways = [2 * level + out for level in levels for out in (1, 0) if not out or rows <= REGISTERS[level]]
    if best < AMX:
        return ways
    return [*ways, 2 * AMX] if rows <= NO_TILES else [2 * AMX, *ways]


def _orders(encoding: str) -> list[int]:
    """Those that a prompt's rows, or all of bf16, may be summed in, that of features first."""
    best, usual = compiled.best_level(encoding), compiled.usual_order(encoding)
    own = [level for level in ((AMX,) if encoding == "F16" else (AMX, AVX512_BF16)) if level <= best]
    if encoding in PLAIN or encoding in RARE:
        own.append(min(best, AVX512))  # a tree's rows of fp16, and of rare types, have this order
    return [usual, *(order for order in (*own, TORCH) if order != usual)]


def _block(encoding: str) -> Block:
    scale = torch.full((OUT,), 1e-3) if encoding in ("I8", "U8") else None
    data = torch.full((OUT, stored_row_bytes(encoding, INNER)), FILLED, dtype=torch.uint8)
    return Block.of_bytes(encoding, data, OUT, INNER, scale)


def _inputs(rows: int, dtype: torch.dtype) -> Tensor:
    return torch.ones(rows, INNER, dtype=dtype)


def _by(x: Tensor, block: Block, way: int) -> Tensor:
    return compiled.linear(x, block.encoding, block.data, block.scale, x.dtype, tried=way)


def _in_order(x: Tensor, block: Block, order: int, prompt: bool) -> Tensor:
    if order != TORCH:
        return compiled.linear(x, block.encoding, block.data, block.scale, x.dtype, prompt, tried=2 * order)
    dtype = matmul_dtype(x.dtype)
    by = F.linear if prompt else multiply  # as `matmul.linear` does
    tiles = block.tiles(dtype, PROMPT_TILE_BYTES)
    return torch.cat([by(x.to(dtype), tile) for tile in tiles], dim=1).to(x.dtype)
