"""What matmuls with stored weights cost by rows: measured by `runtimes.torch.matmuls`, or given."""

from __future__ import annotations

import os
from collections.abc import Mapping
from dataclasses import dataclass
from time import time
from typing import Any

from edgespec.devices.probe import cpu_count
from edgespec.devices.rates import is_fresh, recall, remember
from edgespec.kernels.gguf_blocks import BLOCKS

# Of few rows many: one is bound by memory, and where arithmetic begins to is what drafts in memory depend on.
ROWS = (1, 2, 4, 8, 32, 64, 512)
MULTIPLIED = 6  # the way of measuring: seconds by another are not comparable
WEIGHTS_PER_BYTE = {name: block.elements / block.nbytes for name, block in BLOCKS.items()}
WEIGHTS_PER_BYTE |= {"I8": 1, "U8": 2}  # int8, int4


@dataclass(frozen=True)
class Matmuls:
    """By encoding, seconds to multiply 10^9 bytes of weights by each number of ROWS."""

    seconds: Mapping[str, tuple[float, ...]]  # [len(ROWS)] each, positive

    @staticmethod
    def of_rates(memory_gbps: float, gflops: float) -> Matmuls:
        """Of a machine known by its rates alone: weights are read, and each row beyond the first takes the
        arithmetic's time."""

        def seconds(weights: float) -> tuple[float, ...]:
            return tuple(1 / memory_gbps + (rows - 1) * 2 * weights / gflops for rows in ROWS)

        return Matmuls({encoding: seconds(weights) for encoding, weights in WEIGHTS_PER_BYTE.items()})


def recall_matmuls(kernels: str | None = None) -> Matmuls | None:
    """What was measured with this number of processors (and with these kernels, if they are named), where
    that is sound and fresh."""
    stored = recall(_key())
    if not isinstance(stored, dict) or not is_fresh(stored.get("when")):
        return None
    seconds = stored.get("seconds")
    if not isinstance(seconds, dict) or not seconds:
        return None
    if kernels not in (None, stored.get("kernels")):
        return None
    if not all(name in WEIGHTS_PER_BYTE and _sound(row) for name, row in seconds.items()):
        return None
    return Matmuls({name: tuple(map(float, row)) for name, row in seconds.items()})


def remember_matmuls(found: Matmuls, kernels: str) -> None:
    """`kernels`: what multiplied, in a word that changes when that does."""
    seconds = {name: list(row) for name, row in found.seconds.items()}
    remember(_key(), {"seconds": seconds, "kernels": kernels, "when": time()})


def _key() -> str:
    """Threads that the user sets beforehand multiply at another rate than all processors do."""
    threads = os.environ.get("OMP_NUM_THREADS", "")[:8]
    return " ".join(filter(None, (f"matmuls {MULTIPLIED} {cpu_count()}", threads)))


def _sound(row: Any) -> bool:
    if not isinstance(row, list) or len(row) != len(ROWS):
        return False
    return all(type(n) in (int, float) and 1e-6 < n < 1e6 for n in row)
