"""How many threads a model computes with: its own passes race at the first start, and the winner is
remembered.

Only where compiled kernels multiply, whose bits are the same for any number: elsewhere another number may be
another order of sums, and who else computed at the first start would decide about a text. It is not raced
either where nothing hangs on it. Then it goes by the matrices' size.
"""

from __future__ import annotations

import os
from collections.abc import Mapping, Sequence
from math import inf, prod
from time import perf_counter

import torch

from edgespec.devices.probe import cpu_count, seconds_of_others
from edgespec.devices.rates import keep_first, recall, remember
from edgespec.kernels import compiled
from edgespec.kernels.threads import use_threads
from edgespec.offload.chunks import ChunkTable
from edgespec.runtimes.rows import Rows
from edgespec.runtimes.torch.choices import kernels_name
from edgespec.runtimes.torch.target import TorchTarget
from edgespec.runtimes.torch.weights import Weights

# Bytes of a matrix, on average. Below SMALL a second thread mostly brings less than waiting for it costs: the
# demo model (170 KB) makes 650 tokens/s with one and 690 with two, at 4 bits 890 and 830. Shares of less than
# the smallest are done before another thread is awake, whatever the machine; the largest are worth them all.
SMALL, SMALLEST, LARGEST = 2**20, 2**17, 2**23
LEAD = 1.15  # so much faster than what goes by size another number must be
ROWS = (1, 8)  # of a pass: plain, and a tree
SECONDS, TRIES = 0.2, 3  # of a race, at least
QUIET = 0.05  # of the processors' time: with more for others it is no race
_TIMES = "races of threads were forgotten so often"


def planned_threads(table: ChunkTable) -> int | None:
    """The number that is known, or the most that `settle_threads` may find; None: all."""
    if not _raced(table):
        return _by_size(table)
    return _known(table)


def forget_threads() -> None:
    """Every model's next start races again."""
    remember(_TIMES, _times() + 1)


def settle_threads(target: TorchTarget[Weights], table: ChunkTable, resident: bool) -> None:
    """From now on have a target compute with as many threads as are fastest. Where that is not known yet and
    all its weights are in memory, a race takes some tenths of a second, and a small cache."""
    if not _raced(table):
        return
    usual, most = _by_size(table) or _most(), _most()
    chosen = _known(table)
    if chosen is None and resident and most > 1:
        others, began = seconds_of_others(), perf_counter()
        found = _winner(_race(target, [usual, *(n for n in _fewer(most) if n != usual)]))
        busy = (seconds_of_others() - others) / (perf_counter() - began)
        if busy < QUIET * (os.cpu_count() or 1):
            kept = keep_first(_key(table), found, lambda kept: _sound(kept, most))
            chosen = found if kept is None else kept
    target.threads = chosen or usual
    use_threads(target.threads)


def _most() -> int:
    """As many as an engine may have."""
    use_threads(None, cpu_count())
    return torch.get_num_threads()


def _fewer(most: int) -> list[int]:
    """All, half of them, ... one."""
    return [most, *_fewer(most // 2)] if most else []


def _race(target: TorchTarget[Weights], counts: Sequence[int]) -> dict[int, float]:
    """By number of threads, what passes over `ROWS` rows take: the best of each, multiplied."""
    cache = target.new_cache(max(ROWS), max(ROWS))
    best = {(count, rows): inf for count in counts for rows in ROWS}
    tries, began = 0, perf_counter()
    while tries < TRIES or perf_counter() - began < SECONDS:
        for count, rows in best:
            target.threads = count
            best[count, rows] = min(best[count, rows], _seconds(target, Rows.append(cache, [-1] * rows)))
            cache.truncate(0)
        tries += 1
    return {count: prod(best[count, rows] for rows in ROWS) for count in counts}


def _seconds(target: TorchTarget[Weights], rows: Rows) -> float:
    began = perf_counter()
    target.head(target.run(target.embed([0] * rows.n), rows, range(target.config.layers)))
    return perf_counter() - began


def _winner(took: Mapping[int, float]) -> int:
    """The first, unless another is faster by `LEAD`."""
    first, best = next(iter(took)), min(took, key=took.__getitem__)
    return best if took[best] * LEAD ** len(ROWS) < took[first] else first


def _raced(table: ChunkTable) -> bool:
    stored = {piece.encoding for chunk in table.chunks for piece, _ in chunk.matrices()}
    return SMALLEST <= _matrix_bytes(table) < LARGEST and all(map(compiled.available, stored))


def _by_size(table: ChunkTable) -> int | None:
    """None: all."""
    return 1 if _matrix_bytes(table) < SMALL else None


def _matrix_bytes(table: ChunkTable) -> float:
    return table.nbytes / sum(1 for chunk in table.chunks for _ in chunk.matrices())


def _known(table: ChunkTable) -> int | None:
    known = recall(_key(table))
    return known if _sound(known, _most()) else None


def _sound(known: object, most: int) -> bool:
    return type(known) is int and 1 <= known <= most


def _key(table: ChunkTable) -> str:
    matrices = sum(1 for chunk in table.chunks for _ in chunk.matrices())
    which = f"{table.nbytes} bytes of {matrices} matrices by {kernels_name()}"
    return f"threads, race {_times()}, of {_most()} for {which}"


def _times() -> int:
    times = recall(_TIMES)
    return times if type(times) is int and 0 <= times < 10**9 else 0
