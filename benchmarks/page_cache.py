"""What the page cache holds of given files, and dropping it."""

from __future__ import annotations

import ctypes
import mmap
import os
from collections.abc import Iterable
from pathlib import Path

import numpy as np

from edgespec.devices.disk import drop_pages


def cached_bytes(files: Iterable[Path]) -> int:
    """Bytes of the files that lie in the page cache, by mincore (the caller must own the files)."""
    libc = ctypes.CDLL(None, use_errno=True)
    total = 0
    for path in files:
        size = path.stat().st_size
        if size == 0:
            continue
        mapped = np.memmap(path, np.uint8, "r")
        pages = np.zeros(-(-size // mmap.PAGESIZE), dtype=np.uint8)
        if libc.mincore(*(ctypes.c_void_p(n) for n in (mapped.ctypes.data, size, pages.ctypes.data))) != 0:
            raise OSError(ctypes.get_errno(), os.strerror(ctypes.get_errno()), str(path))
        total += int(np.count_nonzero(pages & 1)) * mmap.PAGESIZE
    return total


def drop_caches(paths: Iterable[Path], everything: bool = False) -> None:
    """Make the next read of these files (or of everything, when root) come from the disk."""
    drop_pages(paths)
    if everything:
        Path("/proc/sys/vm/drop_caches").write_text("1")
