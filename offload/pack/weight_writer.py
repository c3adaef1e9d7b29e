"""Writing large files past the page cache, where the system can."""

from __future__ import annotations

import contextlib
import errno
import os
import sys
from pathlib import Path

from edgespec.offload.chunks import PAGE

if sys.platform != "win32":
    import fcntl


class WeightWriter:
    """One file, written in whole pages from page-aligned memory. Raises OSError.

    Not direct where the filesystem refuses: then `sync` also drops the written pages from the page cache.
    """

    def __init__(self, path: Path) -> None:
        self.path = path
        self._descriptor, self._direct = self._open(direct=True)

    def _open(self, direct: bool) -> tuple[int, bool]:
        flags = os.O_RDWR | os.O_CREAT | getattr(os, "O_BINARY", 0) | getattr(os, "O_CLOEXEC", 0)
        if direct and sys.platform == "linux":
            with contextlib.suppress(OSError):
                return os.open(self.path, flags | os.O_DIRECT, 0o644), True
        descriptor = os.open(self.path, flags, 0o644)
        if direct and sys.platform == "darwin":
            fcntl.fcntl(descriptor, fcntl.F_NOCACHE, 1)
        return descriptor, False

    def write(self, offset: int, data: memoryview) -> None:
        """Write whole pages at a page."""
        assert offset % PAGE == 0
        assert len(data) % PAGE == 0
        done = 0
        while done < len(data):
            try:
                done += self._write(offset + done, data[done:])
            except OSError as error:
                if error.errno != errno.EINVAL or not self._direct:
                    raise
                self.close()  # the flag was accepted, but not the write
                self._descriptor, self._direct = self._open(direct=False)

    def sync(self) -> None:
        """Everything written so far is on the disk when this returns."""
        if sys.platform == "darwin":
            fcntl.fcntl(self._descriptor, fcntl.F_FULLFSYNC)
        elif hasattr(os, "fdatasync"):
            os.fdatasync(self._descriptor)
        else:
            os.fsync(self._descriptor)
        if not self._direct and hasattr(os, "posix_fadvise"):
            os.posix_fadvise(self._descriptor, 0, 0, os.POSIX_FADV_DONTNEED)

    def close(self) -> None:
        descriptor, self._descriptor = self._descriptor, -1
        if descriptor >= 0:
            os.close(descriptor)

    if sys.platform == "win32":

        def _write(self, offset: int, data: memoryview) -> int:
            os.lseek(self._descriptor, offset, os.SEEK_SET)
            return os.write(self._descriptor, data)

    else:

        def _write(self, offset: int, data: memoryview) -> int:
            return os.pwrite(self._descriptor, data, offset)
