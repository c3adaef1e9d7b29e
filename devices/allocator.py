"""The C library's allocator, told to give large blocks back."""

from __future__ import annotations

import ctypes
import sys

_M_TRIM_THRESHOLD, _M_MMAP_THRESHOLD = -1, -3  # malloc.h
_LARGE = 4 * 2**20  # bytes; a prompt's activations, not a token's


def return_large_blocks() -> None:
    """Freed blocks above 4 MiB go back to the system at once.

    glibc otherwise raises its threshold to 32 MiB as large blocks come and go, and the holes they leave
    stay in the process: tens of megabytes beyond what the ledger knows. Nothing to do elsewhere.
    """
    if sys.platform != "linux":
        return
    try:
        mallopt = ctypes.CDLL(None).mallopt
    except (OSError, AttributeError):  # not glibc
        return
    mallopt(_M_MMAP_THRESHOLD, _LARGE)
    mallopt(_M_TRIM_THRESHOLD, _LARGE)
