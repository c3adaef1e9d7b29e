"""Checksums of chunks, where a store has them."""

from __future__ import annotations

import xxhash

from edgespec.errors import CorruptFileError
from edgespec.offload.chunks import Chunk


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
