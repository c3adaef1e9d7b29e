"""The C library's allocator, told to give large blocks back."""

from __future__ import annotations

import ctypes
import gc
import sys
from collections.abc import Callable

_M_TRIM_THRESHOLD, _M_MMAP_THRESHOLD = -1, -3  # malloc.h
_LARGE = 4 * 2**20  # bytes; a prompt's activations, not a token's


def return_large_blocks() -> None:
    """Freed blocks above 4 MiB go back to the system at once.

    glibc otherwise raises its threshold to 32 MiB as large blocks come and go, and the holes they leave
    stay in the process: tens of megabytes beyond what the ledger knows. Nothing to do elsewhere.
    """
    if mallopt := _glibc("mallopt"):
        mallopt(_M_MMAP_THRESHOLD, _LARGE)
        mallopt(_M_TRIM_THRESHOLD, _LARGE)


def return_freed_memory() -> None:
    """So do all smaller ones that are free now: before what an owner held is given to another."""
    gc.collect()
    if trim := _glibc("malloc_trim"):
        trim(0)


def _glibc(name: str) -> Callable[..., int] | None:
    """A function of the C library's allocator; None where it is not glibc's."""
    if sys.platform != "linux":
        return None
    try:
        found: Callable[..., int] = getattr(ctypes.CDLL(None), name)
    except (OSError, AttributeError):
        return None
    return found
