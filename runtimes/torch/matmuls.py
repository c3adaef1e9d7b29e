"""How long matmuls with stored weights take on this machine's processors, by encoding and number of rows."""

from __future__ import annotations

from collections.abc import Callable
from math import prod
from statistics import median
from time import perf_counter

import torch

from edgespec.devices.disk import aligned_buffer
from edgespec.devices.matmuls import ROWS, WEIGHTS_PER_BYTE, Matmuls, recall_matmuls, remember_matmuls
from edgespec.devices.probe import cpu_count, memory_available
from edgespec.kernels.matmul import FEW, Block, linear
from edgespec.kernels.threads import use_threads
from edgespec.offload.chunks import stored_bytes
from edgespec.runtimes.torch.choices import kernels_at_work, settle

OUT = INNER = 4096  # a matrix of a 7B model
# Bytes of matrices multiplied in turn with few rows, more than a cache keeps of them: where many share one of
# 480 MiB, 10^9 bytes of bf16 took 31 ms in turn with 128 MiB, 36 with 256 and 38 with 512 and 1024.
CYCLED = 512 * 2**20
PART = 4  # of the memory that is free: no more is taken
TRIES = 3  # the middle one counts: the best is 5 to 15 % quicker than what passes get on a shared machine
# Bytes of the weights: small normal numbers in each float type, and no NaN as a block's scale. They differ,
# as activations do, because processors are quicker with ones: 10^9 bytes of bf16 by 16 rows of them took
# 0.063 s, and 0.081 with normal numbers, as in passes (an EPYC).
FILLED = 0x10, 0x20


def matmuls(fresh: bool = False, progress: Callable[[int, int], None] = lambda done, total: None) -> Matmuls:
    """Of an engine with as many threads as processors, that has settled what multiplies: remembered, or (also
    when `fresh`) measured: seconds of work, up to 600 MB of memory."""
    use_threads(None, cpu_count())
    kernels = kernels_at_work()
    known = None if fresh else recall_matmuls(kernels)
    if known is None:
        settle()
        seconds = {}
        for done, encoding in enumerate(WEIGHTS_PER_BYTE):
            progress(done, len(WEIGHTS_PER_BYTE))
            seconds[encoding] = measure(encoding)
        known = Matmuls(seconds)
        remember_matmuls(known, kernels)
    return known


@torch.inference_mode()
def measure(encoding: str) -> tuple[float, ...]:
    """[len(ROWS)] seconds for 10^9 bytes of weights."""
    nbytes = stored_bytes(encoding, (OUT, INNER))
    scale = torch.full((OUT,), 1e-3) if encoding in ("I8", "U8") else None
    noise = torch.Generator().manual_seed(0)
    cycled = min(CYCLED, memory_available() // PART)
    # In huge pages, as weights lie there: by one row and by 8, 10^9 bytes of bf16 took 49 and 79 ms without
    # them, 44 and 64 with them.
    shape = max(1, cycled // nbytes), nbytes
    data = torch.frombuffer(aligned_buffer(prod(shape)), dtype=torch.uint8).view(shape)
    data.copy_(torch.empty(nbytes, dtype=torch.uint8).random_(*FILLED, generator=noise))
    blocks = [Block.of_bytes(encoding, one, OUT, INNER, scale) for one in data]
    dtype = {"F32": torch.float32, "F16": torch.float16}.get(encoding, torch.bfloat16)
    found = []
    for rows in ROWS:
        x = torch.randn(rows, INNER, generator=noise).to(dtype)
        used = blocks if rows <= 8 else blocks[:1]
        linear(x, used[0], exact=rows <= FEW)  # what is made once
        usual = median(_seconds(x, used) for _ in range(TRIES))
        found.append(usual / (len(used) * nbytes) * 1e9)
    return tuple(found)


def _seconds(x: torch.Tensor, blocks: list[Block]) -> float:
    began = perf_counter()
    for block in blocks:
        linear(x, block, exact=len(x) <= FEW)
    return perf_counter() - began
