"""Checksums of chunks, where a store has them, and of whole files."""

from __future__ import annotations

from pathlib import Path

import xxhash

from edgespec.errors import Call, CorruptFileError
from edgespec.offload.chunks import Chunk
from edgespec.offload.reader import DirectFile

_PART = 2**22  # bytes read at a time


def mismatch(chunk: Chunk, data: memoryview) -> CorruptFileError | None:
    """The error to raise when `data` [chunk.nbytes] is not what was packed; None when it is (or unknown)."""
    if chunk.digest is None:
        return None
    digest = xxhash.xxh3_64_intdigest(data)
    if digest == chunk.digest:
        return None
    return CorruptFileError(
        f"chunk {chunk.index} of layer {chunk.layer} in {chunk.file} at byte {chunk.offset} has checksum "
        f"{digest:016x}, not {chunk.digest:016x}; the file is damaged: fetch or pack the model again"
    )


def check_file(path: Path, known: str, instead: str, hint: Call | None = None) -> None:
    """Reads a file. Raises CorruptFileError where its checksum is not `known`, and as `file_digest`. instead:
    what to do if it cannot be fetched again, in words, and as a call."""
    if (found := file_digest(path)) != known:
        raise CorruptFileError(
            f"{path} has checksum {found}, not {known}; the file is damaged: fetch it again, or {instead}",
            hint=hint,
        )


def file_digest(path: Path) -> str:
    """XXH3-128 of a file, read past the page cache. Raises CorruptFileError where there is none, and
    StorageError."""
    digest, file = xxhash.xxh3_128(), DirectFile(path)
    try:
        size = path.stat().st_size
        for start in range(0, size, _PART):
            digest.update(file.read(start, min(_PART, size - start)))
    finally:
        file.close()
    return digest.hexdigest()
