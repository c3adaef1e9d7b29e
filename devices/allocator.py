"""The C library's allocator, told to give large blocks back."""

from __future__ import annotations

import ctypes
import gc
import mmap
import os
import sys
from collections.abc import Callable
from functools import cache

_M_TRIM_THRESHOLD, _M_MMAP_THRESHOLD = -1, -3  # malloc.h
LARGE = 2**20  # bytes; a prompt's activations, not a token's
SLACK = 8 * 2**20  # bytes of holes that may lie in the process: what the plan's headroom is for


def return_large_blocks() -> None:
    """Freed blocks above 1 MiB go back to the system at once.

    glibc otherwise raises its threshold to 32 MiB as large blocks come and go, and the holes they leave
    stay in the process: tens of megabytes beyond what the ledger knows (1b shape, Q8_0, prompts of 512
    tokens: 65 to 88 MB with a threshold of 4 MiB, 44 to 61 with this one). New pages cost time: a prompt of
    512 tokens takes 3.8 s instead of 3.5 (1b shape, bf16, 2 cores), trees no longer. Nothing to do elsewhere.
    """
    if mallopt := _glibc("mallopt"):
        mallopt(_M_MMAP_THRESHOLD, LARGE)
        mallopt(_M_TRIM_THRESHOLD, LARGE)


def return_freed_memory() -> None:
    """So do all smaller ones that are free now: before what an owner held is given to another."""
    gc.collect()
    if trim := _glibc("malloc_trim"):
        trim(0)


class Holes:
    """Gives back what freed small blocks leave between those in use, before it is more than `SLACK`.

    Blocks below 1 MiB share a heap. Some, such as compiled matmuls, stay for a while, and what was free
    between them stayed in the process for ever: 50 MB after 100 replies of random lengths (measured), and
    growing. Nothing to do elsewhere.
    """

    def __init__(self) -> None:
        self._trim = _glibc("malloc_trim")
        self._resident = _resident() if self._trim else 0  # bytes, without holes

    def look(self) -> None:
        """Call it again and again: some microseconds, and milliseconds for every `SLACK` of growth."""
        if self._trim is None:
            return
        now = _resident()
        if now > self._resident + SLACK:
            self._trim(0)
            now = self._resident = _resident()
        self._resident = min(self._resident, now)


def _resident() -> int:
    """Bytes of this process in memory; Linux."""
    return int(os.pread(_statm(os.getpid()), 128, 0).split()[1]) * mmap.PAGESIZE


@cache
def _statm(process: int) -> int:
    """The file of this `process` that says so, opened once in each: that takes 0.1 ms after a pass, which
    has emptied the caches."""
    return os.open("/proc/self/statm", os.O_RDONLY)


def _glibc(name: str) -> Callable[..., int] | None:
    """A function of the C library's allocator; None where it is not glibc's."""
    if sys.platform != "linux":
        return None
    try:
        found: Callable[..., int] = getattr(ctypes.CDLL(None), name)
    except (OSError, AttributeError):
        return None
    return found
