"""Positioned reads of a file into the caller's memory, past the page cache."""

from __future__ import annotations

import errno
import os
import threading
from pathlib import Path
from types import TracebackType

from edgespec.devices.disk import ReadSettings, aligned_buffer, forget, open_for_reading, read_at
from edgespec.errors import CorruptFileError, StorageError
from edgespec.offload.chunks import PAGE, aligned_span

__all__ = ["DirectFile", "ReadSettings"]


class DirectFile:
    """One open file; `read_into` may be called from several threads at once.

    `direct` says how it is read. Where the filesystem refuses direct reads (tmpfs, some network ones),
    reads are ordinary and their pages are dropped from the page cache behind them.

    Raises CorruptFileError when the file is missing, StorageError when it cannot be opened.
    """

    def __init__(self, path: Path, direct: bool = True) -> None:
        self.path = Path(path)
        self.bytes_read = 0  # moved by reads so far, alignment included
        self._lock = threading.Lock()
        self._spare: list[int] = []  # handles that nobody reads with just now, where reading means seeking
        try:
            self._descriptor, self.direct = open_for_reading(self.path, direct)
        except FileNotFoundError:
            raise CorruptFileError(f"{path} is missing; fetch or pack the model again") from None
        except OSError as error:
            raise StorageError(f"{path} cannot be opened: {error.strerror}; check its permissions") from None

    def read_into(self, offset: int, view: memoryview, needed: int | None = None) -> int:
        """Fill `view` with the file's bytes from `offset` on; returns the bytes moved.

        For a direct file, `offset`, the view's address and its length are multiples of PAGE. The file must
        hold `needed` bytes (default: all of the view) at `offset`; the view may reach past its end.

        Raises CorruptFileError when the file ends before that, StorageError when the disk fails.
        """
        needed = len(view) if needed is None else needed
        done = moved = 0
        while done < needed:
            try:
                got = self._pread(view[done:], offset + done)
            except OSError as error:
                raise StorageError(
                    f"reading {len(view) - done} bytes at {offset + done} of {self.path} failed: "
                    f"{error.strerror}; check the disk"
                ) from error
            moved += got
            if done + got < needed:
                # A short read of less than a page is the file's end. After any other, go on at a whole
                # page: a direct read cannot start elsewhere.
                if got < PAGE:
                    raise CorruptFileError(
                        f"{self.path} ends at byte {offset + done + got}, but {needed} bytes were expected "
                        f"at {offset}; it is truncated: fetch or pack the model again"
                    )
                got -= (done + got) % PAGE
            done += got
        if not self.direct:
            forget(self._descriptor, offset, len(view))
        with self._lock:
            self.bytes_read += moved
        return moved

    def read(self, offset: int, nbytes: int) -> memoryview:
        """Exactly `nbytes` bytes at any `offset`, in new memory of their own. Raises like `read_into`."""
        start, length = aligned_span(offset, nbytes)
        buffer = aligned_buffer(length)
        slack = offset - start
        self.read_into(start, buffer, slack + nbytes)
        return buffer[slack : slack + nbytes]

    def _pread(self, view: memoryview, offset: int) -> int:
        if hasattr(os, "pread"):
            return read_at(self._descriptor, view, offset)
        if self._descriptor < 0:
            raise OSError(errno.EBADF, "the file is closed")
        try:  # Windows has no positioned read: whoever reads seeks in a handle that nobody else has
            handle = self._spare.pop()
        except IndexError:
            handle = open_for_reading(self.path, self.direct)[0]
        try:
            os.lseek(handle, offset, os.SEEK_SET)
            with open(handle, "rb", buffering=0, closefd=False) as file:
                return file.readinto(view) or 0
        finally:
            self._spare.append(handle)

    def close(self) -> None:
        """Close the file. Reads under way in other threads must have ended. May be called again."""
        descriptor, self._descriptor = self._descriptor, -1
        spare, self._spare = self._spare, []
        for handle in [descriptor] * (descriptor >= 0) + spare:
            os.close(handle)

    def __enter__(self) -> DirectFile:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()
