"""Small files read whole, within a bound, and files of any size written whole or not at all."""

from __future__ import annotations

import os
import sys
import threading
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path

from edgespec.errors import CorruptFileError, ModelError, StorageError


def read_bounded(path: Path, limit: int) -> bytes:
    """The whole of a file of at most `limit` bytes.

    Raises ModelError when it is missing or no file, CorruptFileError when it is larger, StorageError when it
    cannot be read.
    """
    if not path.is_file():  # nor a pipe that would never end
        what = "is a folder" if path.is_dir() else "is no regular file" if path.exists() else "is missing"
        raise ModelError(f"{path} {what}")
    try:
        with open(path, "rb") as file:
            raw = file.read(limit + 1)
    except OSError as error:
        raise StorageError(f"{path} cannot be read: {error.strerror}") from None
    if len(raw) > limit:
        raise CorruptFileError(f"{path} is larger than {limit} bytes, more than such a file can need")
    return raw


@contextmanager
def replacing(path: Path, private: bool = False, shared: bool = False) -> Iterator[Path]:
    """A path to write to, in the same directory, which then takes the place of `path`: after a kill or a
    power cut there is the old file, or all of the new one. When the body fails there is nothing new.

    private: only the owner may read it. shared: other processes may be replacing the same file; else what a
    killed one left behind is written over. Raises OSError.
    """
    own = f".{os.getpid()}-{threading.get_ident()}" if shared else ""
    temporary = path.with_name(f"{path.name}{own}.tmp")
    try:
        flags = os.O_WRONLY | os.O_CREAT | os.O_TRUNC
        os.close(os.open(temporary, flags, 0o600 if private else 0o666))
        yield temporary
        sync_path(temporary)
        os.replace(temporary, path)
        sync_path(path.parent)
    except BaseException:
        with suppress(OSError):
            temporary.unlink()
        raise


def sync_path(path: Path) -> None:
    """A file's content, or a directory's entries, are on the disk when this returns."""
    if sys.platform == "win32" and path.is_dir():
        return  # no such call there
    descriptor = os.open(path, os.O_RDONLY if path.is_dir() else os.O_RDWR)  # Windows asks for it
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)


@contextmanager
def held(path: Path) -> Iterator[None]:
    """Only one process at a time. Raises BlockingIOError when another holds the path, OSError."""
    if sys.platform == "win32":  # which cannot lock a directory: a file beside it
        import msvcrt

        beside = path.with_name(path.name + ".lock")
        descriptor = os.open(beside, os.O_RDWR | os.O_CREAT)
        try:
            try:
                msvcrt.locking(descriptor, msvcrt.LK_NBLCK, 1)
            except OSError as error:
                raise BlockingIOError(error.errno, error.strerror, str(beside)) from None
            yield
            msvcrt.locking(descriptor, msvcrt.LK_UNLCK, 1)
        finally:
            os.close(descriptor)
            with suppress(OSError):  # who waits for it has it open
                beside.unlink()
    else:
        import fcntl

        descriptor = os.open(path, os.O_RDONLY)
        try:
            fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
            yield
        finally:
            os.close(descriptor)
