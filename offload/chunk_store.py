"""Chunk tables: over tensors where they lie, and over a packed directory."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from edgespec.errors import Call, ModelError
from edgespec.offload.chunks import (
    CHUNK_BYTES,
    ELEMENT_BYTES,
    Chunk,
    ChunkTable,
    Piece,
    StreamOrder,
    TensorSource,
    rows_per_chunk,
)
from edgespec.offload.manifest import MANIFEST, TARGET, read_manifest, table_of


@dataclass(frozen=True)
class Store:
    """A packed directory."""

    table: ChunkTable
    config: dict[str, Any]  # the model's config as it was given to `pack`
    source: str  # what was packed
    source_digest: str
    directory: Path


def is_store(path: Path) -> bool:
    """Whether `path` looks like a packed directory; `open_store` says whether it is a sound one."""
    try:
        with open(path / MANIFEST, "rb") as file:
            return b'"edgespec"' in file.read(64)
    except OSError:
        return False


def open_store(path: Path, name: str = TARGET) -> Store:
    """The packed directory's set of weights called `name`. Reads no weights.

    Raises ModelError (not a packed directory, a file missing, no such set), UnsupportedModelError (another
    format version), CorruptFileError (a truncated file, a manifest that is not sound).
    """
    path = Path(path)
    if not is_store(path):
        hint = Call("pack_model", {"model": "MODEL", "out": str(path)})
        raise ModelError(f"{path} is not a packed directory; make one", hint=hint)
    manifest = read_manifest(path)
    table = table_of(path, manifest, name)
    return Store(table, manifest.config, manifest.source, manifest.source_digest, path)


def in_place(order: StreamOrder, source: str) -> ChunkTable:
    """The chunk table over tensors where they lie, to be streamed without a second copy on disk.

    Neighbouring blocks share a chunk when they are contiguous in the file, in order of use, and small
    enough together. Raises ModelError for a tensor that begins inside an element.
    """
    for tensor in (order.embedding, order.head, *order.small, *(t for m in order.layers for t in m)):
        if tensor.offset % ELEMENT_BYTES.get(tensor.encoding, 1):
            raise ModelError(
                f"tensor {tensor.name} begins at byte {tensor.offset} of {tensor.file}, inside one of its "
                f"{ELEMENT_BYTES[tensor.encoding]}-byte elements, so it cannot be used in place; "
                "pack it and use DIR",
                hint=Call("pack_model", {"model": source, "out": "DIR"}),
            )
    chunks: list[Chunk] = []
    for layer, matrices in enumerate((*order.layers, (order.head,))):
        run: list[tuple[TensorSource, int, int]] = []  # (tensor, row, rows), contiguous
        length = 0
        for tensor in matrices:
            for row, rows in row_blocks(tensor.shape[0], tensor.row_bytes, CHUNK_BYTES):
                nbytes = rows * tensor.row_bytes
                place = (tensor.file, tensor.offset + row * tensor.row_bytes)
                if run and (place != _end(run) or length + nbytes > CHUNK_BYTES):
                    chunks.append(_chunk(len(chunks), layer, run))
                    run, length = [], 0
                run.append((tensor, row, rows))
                length += nbytes
        chunks.append(_chunk(len(chunks), layer, run))
    return ChunkTable(tuple(chunks), order.small, order.embedding, len(order.layers), source, "source")


def row_blocks(rows: int, row_bytes: int, limit: int) -> Iterator[tuple[int, int]]:
    """(first row, rows) of each block that a [rows, *] matrix is cut into. The same for every store."""
    step = rows_per_chunk(rows, row_bytes, limit)
    for row in range(0, rows, step):
        yield row, min(step, rows - row)


def _end(run: Sequence[tuple[TensorSource, int, int]]) -> tuple[Path, int]:
    tensor, row, rows = run[-1]
    return tensor.file, tensor.offset + (row + rows) * tensor.row_bytes


def _chunk(index: int, layer: int, run: Sequence[tuple[TensorSource, int, int]]) -> Chunk:
    pieces, place = [], 0
    for tensor, row, rows in run:
        nbytes = rows * tensor.row_bytes
        pieces.append(Piece(tensor.name, tensor.encoding, (rows, tensor.shape[1]), row, place, nbytes))
        place += nbytes
    first, row, _ = run[0]
    return Chunk(index, layer, first.file, first.offset + row * first.row_bytes, place, tuple(pieces))
