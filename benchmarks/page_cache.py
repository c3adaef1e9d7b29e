"""What the page cache holds of given files, and dropping it."""

from __future__ import annotations

import ctypes
import mmap
import os
from collections.abc import Iterable, Iterator
from contextlib import contextmanager
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


@contextmanager
def usual_read_ahead(path: Path) -> Iterator[None]:
    """Reads of mapped files on this path's disk bring in 128 KB more, Linux's default. Some virtual machines
    set 8 MB, by which a cold start fills whatever container it is in with pages of
    libraries that nobody asked for. Needs root."""
    device = path.stat().st_dev
    file = Path(f"/sys/class/bdi/{os.major(device)}:{os.minor(device)}/read_ahead_kb")
    before = file.read_text()
    file.write_text("128")
    try:
        yield
    finally:
        file.write_text(before)


def drop_caches(paths: Iterable[Path], everything: bool = False) -> None:
    """Make the next read of these files (or of everything, when root) come from the disk."""
    drop_pages(paths)
    if everything:
        Path("/proc/sys/vm/drop_caches").write_text("1")
