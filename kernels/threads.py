"""How many threads compute: one number for all that one engine does.

torch keeps it for each calling thread (OpenMP), with the latest that was set for threads that are new to it;
the compiled kernels go by torch's. Where sums are torch's, another number of threads may be another order of
sums (docs/exactness.md), so a target computes with the number it was opened with, whichever thread runs the
pass. What sleeps while it waits is said in `edgespec/__init__.py`, before torch is loaded.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import AbstractContextManager, contextmanager

import torch

# What torch had before it was told another number here, and the latest such.
_set: tuple[int, int] | None = None


def use_threads(count: int | None, processors: int | None = None) -> None:
    """Compute with `count` threads in this thread and in those that come.

    None: as many as torch has, which goes by cores, but not more than there are `processors` to use: a
    container that is given the time of two of 64 would mostly wait for its next share. What an engine before
    had computed with is not what torch has.
    """
    global _set
    now = torch.get_num_threads()
    given = _set[0] if _set and _set[1] == now else now
    wanted = count or min(given, processors or given)
    if wanted != now:
        torch.set_num_threads(wanted)
        _set = given, wanted


@contextmanager
def using(count: int) -> Iterator[None]:
    """So many threads, and those of before again."""
    before = torch.get_num_threads()
    try:
        torch.set_num_threads(count)
        yield
    finally:
        torch.set_num_threads(before)


def alone() -> AbstractContextManager[None]:
    """One thread, for what it finishes before another is awake, and whose bits do not depend on threads."""
    return using(1)
