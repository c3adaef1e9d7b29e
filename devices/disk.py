"""How this system reads a file without filling its page cache, into what memory, and how many reads it wants
at once."""

from __future__ import annotations

import contextlib
import mmap
import os
import sys
from collections.abc import Iterable
from dataclasses import dataclass
from pathlib import Path

from edgespec.errors import DeviceError

PAGE = 4096  # direct reads: offsets, lengths and addresses are multiples of this on every disk we know


@dataclass(frozen=True, slots=True)
class ReadSettings:
    """How to read a disk at its full rate. The best values differ by disk: `devices.rates` finds them."""

    threads: int = 2
    request_bytes: int = 4 * 2**20
    direct: bool = True  # past the page cache, where the filesystem can

    def __post_init__(self) -> None:
        if not 1 <= self.threads <= 64:
            raise ValueError(f"threads is {self.threads}; expected 1 to 64")
        if not PAGE <= self.request_bytes <= 2**30 or self.request_bytes % PAGE:
            raise ValueError(
                f"request_bytes is {self.request_bytes}; expected a multiple of {PAGE} up to 2^30"
            )


def open_for_reading(path: Path, direct: bool = True) -> tuple[int, bool]:
    """Open `path` and return (descriptor, reads are direct).

    Linux: O_DIRECT, proved by reading a page, because some filesystems accept the flag and refuse the
    read; where either is refused the file is opened ordinarily. macOS: F_NOCACHE, which keeps alignment
    free. Elsewhere: an ordinary handle. Raises OSError.
    """
    flags = os.O_RDONLY | getattr(os, "O_BINARY", 0) | getattr(os, "O_CLOEXEC", 0)
    if direct and sys.platform == "linux":
        with contextlib.suppress(OSError):
            descriptor = os.open(path, flags | os.O_DIRECT)
            try:
                read_at(descriptor, memoryview(mmap.mmap(-1, PAGE)), 0)
            except OSError:
                os.close(descriptor)
            else:
                return descriptor, True
    descriptor = os.open(path, flags)
    if direct and sys.platform == "darwin":
        import fcntl

        fcntl.fcntl(descriptor, fcntl.F_NOCACHE, 1)
        return descriptor, True
    if sys.platform == "linux":
        # No reading ahead: that fills large folios, and one that is partly outside the range to `forget`
        # stays. Measured in a cgroup of 300 MB: 280 MB of page cache left behind with it, none without.
        with contextlib.suppress(OSError):
            os.posix_fadvise(descriptor, 0, 0, os.POSIX_FADV_RANDOM)
    return descriptor, False


def aligned_buffer(nbytes: int) -> memoryview:
    """`nbytes` bytes of zeroed, page-aligned anonymous memory, in huge pages where there are any.

    The memory lives as long as the view, its slices or arrays made from them. Pages become real when first
    written. Raises DeviceError when the system refuses.
    """
    try:
        if sys.platform == "win32":
            area = mmap.mmap(-1, nbytes)
        else:
            # Python's default is MAP_SHARED: shared memory, which is charged as page cache.
            area = mmap.mmap(-1, nbytes, flags=mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS)
    except OSError as error:
        raise DeviceError(f"the system refused {nbytes} bytes of memory: {error}; lower memory=") from None
    if sys.platform == "linux":
        with contextlib.suppress(OSError):  # a kernel without transparent huge pages
            area.madvise(mmap.MADV_HUGEPAGE)
    return memoryview(area)


def read_at(descriptor: int, view: memoryview, offset: int) -> int:
    """Fill `view` from `offset` on, or as far as the file goes; the bytes read. Any number of threads may at
    once. Raises OSError. Not on Windows, which has no such call."""
    if hasattr(os, "preadv"):
        return os.preadv(descriptor, [view], offset)
    data = os.pread(descriptor, len(view), offset)  # macOS before 11: by way of memory of its own
    view[: len(data)] = data
    return len(data)


def forget(descriptor: int, offset: int, nbytes: int) -> None:
    """Drop the range's clean pages from the page cache, where the system has a call for that."""
    if sys.platform == "linux":
        with contextlib.suppress(OSError):
            os.posix_fadvise(descriptor, offset, nbytes, os.POSIX_FADV_DONTNEED)


def files_under(path: Path) -> list[Path]:
    """`path` itself, or every file below it."""
    return sorted(file for file in path.rglob("*") if file.is_file()) if path.is_dir() else [path]


def drop_pages(paths: Iterable[Path]) -> None:
    """Have the next reads of these files, or of all below these folders, come from the disk, where the system
    has a call for that. Raises OSError."""
    for file in (file for path in paths for file in files_under(path)):
        with file.open("rb") as opened:
            if sys.platform == "linux":
                os.fdatasync(opened.fileno())  # what is not written yet is not dropped
            forget(opened.fileno(), 0, file.stat().st_size)
