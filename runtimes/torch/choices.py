"""Which kernels multiply on this machine: measured at the first start, and remembered.

Kernels whose bits are equal may be chosen anew at any time. One with another order of sums makes other bits,
and where two tokens are nearly tied, another text; so that choice holds for this machine until its processor,
torch or the kernels change, and where nothing can be kept it goes by the processor's features.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from typing import Any

import numpy as np
import torch

from edgespec.devices.matmuls import ROWS, Matmuls
from edgespec.devices.probe import cpu_count
from edgespec.devices.rates import keep_first, recall, remember
from edgespec.kernels import trials
from edgespec.kernels.choice import ARM, CHOSEN, LEVELS, LOW_BIT, NAMES, Choice, as_json, of_json
from edgespec.kernels.compiled import FORMATS, VERSION, choose, level, unavailable
from edgespec.offload.chunks import ChunkTable

SLOWEST = 20.0  # seconds for 10^9 bytes by one row: a figure beyond that is no processor's


def settle(table: ChunkTable | None = None) -> None:
    """Have a model's matrices (None: all) multiplied by what is fastest, as long as this process lives."""
    for encoding in _encodings(table) - CHOSEN.keys():
        choose(encoding, choice(encoding))


def reasons(table: ChunkTable) -> list[str]:
    """What multiplies a model's matrices, in words."""
    known = [f"{NAMES.get(e, e)}: {CHOSEN[e].describe(e)}" for e in sorted(_encodings(table) & CHOSEN.keys())]
    return [*filter(None, [slow(table)]), *known]


def slow(table: ChunkTable) -> str:
    """Why a model's low-bit weights are slow here, and what helps; "" where they are not."""
    encodings = ", ".join(sorted(NAMES.get(e, e) for e in _low_bit(table)))
    why = unavailable()
    if not encodings or not (why or level() == 0):
        return ""
    if not why:
        least = LEVELS[1] if ARM else f"{LEVELS[1]} or more"
        return f"{encodings}: multiplied by plain C, several times slower than on a processor with {least}"
    return (
        f"{encodings}: unpacked in each pass and multiplied by torch, tens of times slower than "
        f"by compiled kernels ({why}); without them bf16 is faster, where it fits into memory"
    )


def raced(table: ChunkTable) -> Matmuls | None:
    """How long a model's matrices take by rows, by all threads, while weights come as fast as they are
    multiplied: as the races have shown it, and where nothing races, torch."""
    found = {}
    if unavailable():
        found = {encoding: _by_rows(trials.by_torch(encoding)) for encoding in _low_bit(table)}
    threads = min(torch.get_num_threads(), cpu_count())
    for encoding in _encodings(table) & CHOSEN.keys():
        took = trials.core_seconds(encoding, CHOSEN[encoding])
        if 1 in took and len(took) > 1 and took[1] < SLOWEST:
            found[encoding] = _by_rows({rows: seconds / threads for rows, seconds in took.items()})
    return Matmuls(found) if found else None


def _by_rows(took: Mapping[int, float]) -> tuple[float, ...]:
    """[len(ROWS)] seconds: lines between and beyond what was tried, never less for more rows, and no more
    than one by one, whatever a race has met or a file says."""
    rows = np.array([*took])
    seconds = np.minimum(np.maximum.accumulate([*took.values()]), rows * took[1])
    slope = (seconds[-1] - seconds[-2]) / (rows[-1] - rows[-2])
    beyond = slope * np.maximum(np.array(ROWS) - rows[-1], 0)
    return tuple((np.interp(ROWS, rows, seconds) + beyond).tolist())


def _low_bit(table: ChunkTable) -> set[str]:
    return stored_encodings(table) & set(LOW_BIT)


def _encodings(table: ChunkTable | None) -> set[str]:
    there = set() if unavailable() else set(FORMATS)
    return there if table is None else stored_encodings(table) & there


def stored_encodings(table: ChunkTable) -> set[str]:
    """Of a model's matrices."""
    return {piece.encoding for chunk in table.chunks for piece, _ in chunk.matrices()}


def choices(fresh: bool = False) -> dict[str, Choice]:
    """For every encoding that compiled kernels multiply: remembered, or (also when `fresh`) measured."""
    return {} if unavailable() else {encoding: choice(encoding, fresh) for encoding in FORMATS}


def choice(encoding: str, fresh: bool = False) -> Choice:
    """Remembered, in a millisecond; or (also when `fresh`) measured, in about 20."""
    key = f"kernels {encoding} by {kernels_name()}"  # installations with others may share the folder

    def sound(kept: Any) -> Choice | None:
        return of_json(kept, level())

    if not fresh and (known := sound(recall(key))) is not None:
        return known
    found = trials.measure(encoding)
    value = as_json(found)
    if fresh:
        remember(key, value)
        return found
    kept = sound(keep_first(key, value, lambda kept: sound(kept) is not None))
    if kept is None:
        usual = trials.by_features(encoding)
        return replace(found, order=usual.order, few=usual.few)
    return kept


def kernels_at_work() -> str:
    """What multiplies, and in how many threads of this one's: what seconds go by."""
    return f"{kernels_name()}, {torch.get_num_threads()} threads"


def kernels_name() -> str:
    """What multiplies here: torch, and the instructions of the compiled kernels, if they are there."""
    by = f"torch {torch.__version__} with {torch.backends.cpu.get_cpu_capability()}"
    return by if unavailable() else f"{by}, compiled kernels {VERSION} with {LEVELS[level()]}"
