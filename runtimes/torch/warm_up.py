"""Work of the first pass that is better done before the plan measures the process."""

from __future__ import annotations

import os
from typing import Any

import torch

from edgespec.devices.allocator import return_freed_memory, return_large_blocks
from edgespec.devices.rates import recall, remember
from edgespec.kernels.cpu import matmul_dtype
from edgespec.kernels.dispatch import attend
from edgespec.kernels.matmul import one_class, tile_bounds
from edgespec.kernels.row_class import COUNTS, KNOWN, RowClass, row_class
from edgespec.offload.chunks import ChunkTable, Piece
from edgespec.runtimes.torch.choices import settle

STORED_AS = {"F32": torch.float32, "F16": torch.float16, "BF16": torch.bfloat16}


@torch.inference_mode()
def warm_up(table: ChunkTable, dtype: torch.dtype) -> None:
    """Choose (or recall) the kernels of all matmuls and learn the row classes of those that have some, and
    load the kernels' code into the process.

    Classes are remembered per machine, torch version, thread count and instruction set.
    """
    return_large_blocks()
    settle(table)
    arithmetic = matmul_dtype(dtype)
    shapes = sorted({s for c in table.chunks for p, _ in c.matrices() for s in _matmuls(p, arithmetic)})
    threads = torch.get_num_threads()
    key = f"row classes {torch.__version__} {threads} {torch.backends.cpu.get_cpu_capability()}"
    key += os.environ.get("ONEDNN_MAX_CPU_ISA", "")[:32]
    known = recall(key)
    known = dict(known) if isinstance(known, dict) else {}
    fresh = False
    for out, inner in shapes:
        name = f"{out}x{inner} {arithmetic}"
        remembered = _as_class(known.get(name))
        if remembered is None:
            remembered = row_class(out, inner, arithmetic)
            known[name] = [remembered.pad, remembered.block]
            fresh = True
        KNOWN[out, inner, arithmetic, threads] = remembered
    if fresh:
        remember(key, known)
    x = torch.zeros(1, 1, 8, 64, dtype=dtype)
    attend(x, x, x, None, 1.0)
    torch.nn.functional.linear(x[0, 0].to(arithmetic), torch.zeros(512, 64, dtype=arithmetic))
    if fresh:
        return_freed_memory()  # what measuring has left: the plan counts this process as it is


def _matmuls(piece: Piece, arithmetic: torch.dtype) -> list[tuple[int, int]]:
    """[out, in] of the matmuls with row classes that a piece of a matrix is used in."""
    if one_class(piece.encoding, piece.shape[1]):
        return []
    rows, inner = piece.shape
    if STORED_AS.get(piece.encoding) == arithmetic:
        return [(rows, inner)]
    return [(stop - start, inner) for start, stop in tile_bounds(rows, inner * arithmetic.itemsize)]


def _as_class(value: Any) -> RowClass | None:
    """A remembered class, if it is a sound one."""
    if not isinstance(value, list) or len(value) != 2:
        return None
    if not all(type(v) is int and v in COUNTS for v in value):
        return None
    pad, block = value
    return RowClass(pad, block) if pad <= block else None
