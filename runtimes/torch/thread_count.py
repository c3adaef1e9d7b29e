"""How many threads a model computes with: where all its weights are in memory, its own passes race at the
first start, and the winner is remembered.

Only where compiled kernels multiply a tree's rows and a prompt's, whose bits are the same for any number:
elsewhere another number may be another order of sums, and who else computed at the first start would decide
about a text. It is not raced either where nothing hangs on it. Then it goes by the matrices' size.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from math import inf, prod
from time import perf_counter, time
from typing import Any

import torch

from edgespec.devices.probe import cpu_count, seconds_of_others
from edgespec.devices.rates import is_fresh, keep_first, recall, remember
from edgespec.kernels import compiled
from edgespec.kernels.threads import use_threads
from edgespec.offload.chunks import ChunkTable
from edgespec.runtimes.rows import Rows
from edgespec.runtimes.torch.choices import kernels_name, stored_encodings
from edgespec.runtimes.torch.target import TorchTarget
from edgespec.runtimes.torch.weights import Weights

# Bytes of a matrix, on average. Below SMALL a second thread mostly brings less than waiting for it costs: the
# demo model (170 KB) makes 650 tokens/s with one and 690 with two, at 4 bits 890 and 830. Shares of less than
# the smallest are done before another thread is awake, whatever the machine; the largest are worth them all.
SMALL, SMALLEST, LARGEST = 2**20, 2**17, 2**23
LEAD = 1.25  # so much faster than what goes by size another number must be
ROWS = (1, 8)  # of a pass: plain, and a tree
SECONDS, TRIES = 0.2, 3  # of a race, at least
LONGEST = 2.0  # seconds, after which it is not worth its time
QUIET = 0.1  # of our processors' time: with more for others it is no race
_SINCE = "threads are to be raced since"


def planned_threads(table: ChunkTable, dtype: torch.dtype | None) -> int | None:
    """As many as were found best for activations of `dtype` (None: another device's), or go by size; None:
    all."""
    known = _known(table, _most()) if dtype is not None and _equal_bits(table, dtype) else None
    return known or _by_size(table)


def settle_threads(target: TorchTarget[Weights], table: ChunkTable) -> None:
    """Have a target whose weights are all in memory race, unless it is known how many threads are best: some
    tenths of a second, and a small cache. What wins is remembered, and if it is fewer threads than its memory
    was planned for, counts at once."""
    planned, most = target.threads, _most()
    if most > 1 and _equal_bits(table, target.dtype) and _known(table, most) is None:
        usual = _by_size(table) or most
        found = _race(target, [usual, *(n for n in _fewer(most) if n != usual)])
        if found is not None:
            value = {"threads": _winner(found), "when": time()}
            kept = keep_first(_key(table, most), value, lambda kept: _sound(kept, most) is not None)
            target.threads = min(planned, _sound(kept, most) or _winner(found))
        else:
            target.threads = planned
    use_threads(target.threads)


def forget_threads() -> None:
    """Every model's next start races again."""
    remember(_SINCE, time())


def _most() -> int:
    """As many as an engine may have; this thread has them then."""
    use_threads(None, cpu_count())
    return torch.get_num_threads()


def _fewer(most: int) -> list[int]:
    """All, half of them, ... one."""
    return [most, *_fewer(most // 2)] if most else []


def _race(target: TorchTarget[Weights], counts: Sequence[int]) -> dict[int, float] | None:
    """By number of threads, what passes over `ROWS` rows take: the best of each, multiplied. Where that takes
    too long, of the first number alone; None: others computed, too, or nobody knows."""
    cache = target.new_cache(max(ROWS), max(ROWS))
    best = {(count, rows): inf for count in counts for rows in ROWS}
    others, began, tries, took = seconds_of_others(), perf_counter(), 0, 0.0
    while tries < TRIES or took < SECONDS:
        for count, rows in best:
            target.threads = count
            best[count, rows] = min(best[count, rows], _seconds(target, Rows.append(cache, [-1] * rows)))
            cache.truncate(0)
        tries, took = tries + 1, perf_counter() - began
        now = seconds_of_others()
        if others is None or now is None:
            return None
        if took >= SECONDS and now - others > QUIET * cpu_count() * took:  # sooner its steps would show
            return None
        if took > LONGEST and tries < TRIES:
            return {counts[0]: took}
    return {count: prod(best[count, rows] for rows in ROWS) for count in counts}


def _seconds(target: TorchTarget[Weights], rows: Rows) -> float:
    began = perf_counter()
    tokens = [row % target.config.vocab_size for row in range(rows.n)]
    target.head(target.run(target.embed(tokens), rows, range(target.config.layers)))
    return perf_counter() - began


def _winner(took: Mapping[int, float]) -> int:
    """The first, unless another is faster by `LEAD`."""
    first, best = next(iter(took)), min(took, key=took.__getitem__)
    return best if took[best] * LEAD ** len(ROWS) < took[first] else first


def _equal_bits(table: ChunkTable, dtype: torch.dtype) -> bool:
    """Whether something hangs on the number of threads, but no bits."""
    if not SMALLEST <= _matrix_bytes(table) < LARGEST or compiled.unavailable() or compiled.level() == 0:
        return False
    return all(compiled.available(e) and compiled.own_prompt(e, dtype) for e in stored_encodings(table))


def _by_size(table: ChunkTable) -> int | None:
    """None: all."""
    return 1 if _matrix_bytes(table) < SMALL else None


def _matrix_bytes(table: ChunkTable) -> float:
    return table.nbytes / _matrices(table)


def _matrices(table: ChunkTable) -> int:
    return sum(1 for chunk in table.chunks for _ in chunk.matrices())


def _known(table: ChunkTable, most: int) -> int | None:
    return _sound(recall(_key(table, most)), most)


def _sound(kept: Any, most: int) -> int | None:
    """A remembered number, if it is one, and younger than `forget_threads`."""
    if not isinstance(kept, dict) or set(kept) != {"threads", "when"} or not is_fresh(kept["when"]):
        return None
    since = recall(_SINCE)
    if is_fresh(since) and kept["when"] < since:
        return None
    threads = kept["threads"]
    return threads if type(threads) is int and 1 <= threads <= most else None


def _key(table: ChunkTable, most: int) -> str:
    which = f"{table.nbytes} bytes of {_matrices(table)} matrices"
    return f"threads, of {most}, for {which} by {kernels_name()}"
