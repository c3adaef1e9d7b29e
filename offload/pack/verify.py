"""Checking every byte of a packed directory against its checksums."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import xxhash

from edgespec.errors import CorruptFileError, ModelError
from edgespec.offload.chunk_store import is_store
from edgespec.offload.manifest import Manifest, WeightSet, read_manifest, table_of
from edgespec.offload.pack.convert import READ_BYTES
from edgespec.offload.read_ahead import Range, read_ahead


def verify(path: Path, progress: Callable[[int, int], None] | None = None) -> int:
    """Read every chunk and tensor of a packed directory; returns the bytes that were checked.

    `progress` is called with (bytes done, bytes in all). Raises CorruptFileError naming the file and chunk
    that differ from what was packed, and like `open_store`.
    """
    path = Path(path)
    if not is_store(path):
        raise ModelError(f"{path} is not a packed directory")
    manifest = read_manifest(path)
    wanted: dict[Range, tuple[str, str]] = {}  # what it is called, its checksum
    for name, weights in manifest.sets.items():
        table_of(path, manifest, name)  # every range lies in its file
        wanted |= _ranges(path, manifest, weights)
    ordered = sorted(wanted, key=lambda r: (r.file.name, r.offset))
    parts = (
        (Range(r.file, r.offset + done, min(READ_BYTES, r.nbytes - done)), None)
        for r in ordered
        for done in range(0, r.nbytes, READ_BYTES)
    )
    total = sum(r.nbytes for r in ordered)
    checked = 0
    source = read_ahead(parts, lambda _, data: data)
    try:
        for range_ in ordered:
            digest = xxhash.xxh3_64()
            for _ in range(0, range_.nbytes, READ_BYTES):
                data = next(source)
                digest.update(data)
                checked += len(data)
                if progress is not None:
                    progress(checked, total)
            what, expected = wanted[range_]
            if digest.hexdigest() != expected:
                raise CorruptFileError(
                    f"{what} in {range_.file} at byte {range_.offset} ({range_.nbytes} bytes) has checksum "
                    f"{digest.hexdigest()}, not {expected}; the file is damaged: pack the model again"
                )
    finally:
        source.close()
    return checked


def _ranges(path: Path, manifest: Manifest, weights: WeightSet) -> dict[Range, tuple[str, str]]:
    found: dict[Range, tuple[str, str]] = {}
    files = [path / file.name for file in manifest.files]
    for tensor in (*weights.small, weights.embedding):
        offset = tensor.offset
        for block in tensor.blocks:
            found[Range(files[tensor.file], offset, block.nbytes)] = f"tensor {tensor.tensor}", block.xxh3
            offset += block.nbytes
    for index, chunk in enumerate(weights.chunks):  # a tied head's are also the embedding's blocks
        what = f"chunk {index} of layer {chunk.layer} ({chunk.pieces[0].tensor})"
        found[Range(files[chunk.file], chunk.offset, chunk.nbytes)] = what, chunk.xxh3
    return found
