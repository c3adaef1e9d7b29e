"""The `manifest.json` of a packed directory: what it says, and reading it as hostile input.

    {"edgespec": 2, config, source, source_digest, beside, files, sets: {"target": {precision, chunks, ...}}}

A *set* is one copy of a model's weights; sets name weight files by their place in `files`, so a second copy
in another precision can be added beside the first.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import Annotated, Any

import msgspec

from edgespec.devices.files import read_bounded
from edgespec.errors import CorruptFileError, ModelError, UnsupportedModelError
from edgespec.offload.chunks import (
    CHUNK_BYTES,
    ELEMENT_BYTES,
    SCALE,
    Chunk,
    ChunkTable,
    Piece,
    TensorSource,
    stored_bytes,
)
from edgespec.offload.strict_json import is_file_name

MANIFEST = "manifest.json"
FORMAT = 2
TARGET = "target"  # the set that holds the model itself
_LIMIT = 64 * 2**20  # bytes of a manifest; a 70B model's has 2 MB

Natural = Annotated[int, msgspec.Meta(ge=0, le=2**62)]
Positive = Annotated[int, msgspec.Meta(ge=1, le=2**62)]
Digest = Annotated[str, msgspec.Meta(pattern="^[0-9a-f]{16}$")]  # xxh3_64


class Record(msgspec.Struct, forbid_unknown_fields=True):
    pass


class PieceRecord(Record):
    tensor: str
    encoding: str
    shape: Annotated[list[Positive], msgspec.Meta(min_length=1, max_length=2)]
    row: Natural
    offset: Natural  # from the chunk's first byte
    nbytes: Positive


class ChunkRecord(Record):
    layer: Natural
    file: Natural  # place in Manifest.files
    offset: Natural
    nbytes: Positive
    xxh3: Digest
    pieces: Annotated[list[PieceRecord], msgspec.Meta(min_length=1)]


class BlockRecord(Record):
    """The next `nbytes` bytes of a tensor and their checksum."""

    nbytes: Positive
    xxh3: Digest


class TensorRecord(Record):
    tensor: str
    encoding: str
    shape: Annotated[list[Positive], msgspec.Meta(min_length=1, max_length=2)]
    file: Natural
    offset: Natural
    nbytes: Positive
    blocks: list[BlockRecord]


class WeightSet(Record):
    precision: str
    layers: Annotated[int, msgspec.Meta(ge=1, le=10_000)]
    chunks: list[ChunkRecord]
    small: list[TensorRecord]
    embedding: TensorRecord


class FileRecord(Record):
    name: str
    nbytes: Positive


class Manifest(Record):
    edgespec: int  # format version
    source: str
    source_digest: str
    config: dict[str, Any]
    beside: list[str]  # tokenizer and config files, copied
    files: list[FileRecord]
    sets: dict[str, WeightSet]


class _ManifestVersion(msgspec.Struct):
    edgespec: int


def encode(manifest: Manifest) -> bytes:
    """As readable JSON; the same manifest always gives the same bytes."""
    return msgspec.json.format(msgspec.json.encode(manifest), indent=1) + b"\n"


def read_manifest(directory: Path) -> Manifest:
    """The manifest of a packed directory, with its weight files present and of the right size.

    Raises ModelError when it or a weight file is missing, UnsupportedModelError for another format version,
    CorruptFileError for anything that is not sound.
    """
    path = directory / MANIFEST
    raw = read_bounded(path, _LIMIT)
    try:
        version = msgspec.json.decode(raw, type=_ManifestVersion).edgespec
        if version != FORMAT:
            raise UnsupportedModelError(
                f"{path} has format {version}, this EdgeSpec reads format {FORMAT}; pack the model again"
            )
        manifest = msgspec.json.decode(raw, type=Manifest)
    except (msgspec.MsgspecError, UnicodeDecodeError, RecursionError) as error:
        raise CorruptFileError(f"{path} is not a sound manifest: {error}; pack the model again") from None
    names = [*manifest.beside, *(file.name for file in manifest.files)]
    if bad := [name for name in names if not is_file_name(name) or name == MANIFEST]:
        raise CorruptFileError(f"{path} names {bad[0][:200]!r}, which is not a file of its directory")
    if len(set(names)) != len(names):
        raise CorruptFileError(f"{path} names a file twice")
    for file in manifest.files:
        if not (directory / file.name).is_file():
            raise ModelError(f"{directory / file.name} is missing; pack the model again")
        size = (directory / file.name).stat().st_size
        if size != file.nbytes:
            raise CorruptFileError(
                f"{directory / file.name} has {size} bytes instead of {file.nbytes}; pack the model again"
            )
    return manifest


def table_of(directory: Path, manifest: Manifest, name: str) -> ChunkTable:
    """The chunk table of one set, every byte range and cut checked.

    Raises ModelError when there is no such set, CorruptFileError for a range outside its file, an overlap,
    or matrices whose rows are not complete and in order.
    """
    weights = manifest.sets.get(name)
    if weights is None:
        known = ", ".join(sorted(manifest.sets)) or "none"
        raise ModelError(f"{directory} holds no weights called {name!r} (it has: {known})")
    try:
        sizes = [file.nbytes for file in manifest.files]
        paths = [directory / file.name for file in manifest.files]
        ranges: list[ChunkRecord | TensorRecord] = [*weights.chunks, *weights.small]
        for record in (*ranges, weights.embedding):
            if record.file >= len(sizes) or record.offset + record.nbytes > sizes[record.file]:
                raise ValueError(f"bytes {record.offset}+{record.nbytes} are outside file {record.file}")
        chunks = tuple(_chunk(i, record, paths) for i, record in enumerate(weights.chunks))
        small = tuple(_tensor(record, paths) for record in weights.small)
        _check_overlap(ranges)
        _check_order(chunks, weights.layers)
        if len({t.name for t in small}) != len(small):
            raise ValueError("a small tensor appears twice")
        return ChunkTable(
            chunks,
            small,
            _tensor(weights.embedding, paths),
            weights.layers,
            str(directory),
            weights.precision,
        )
    except ValueError as error:
        raise CorruptFileError(f"{directory / MANIFEST}: {error}; pack the model again") from None


def _tensor(record: TensorRecord, paths: Sequence[Path]) -> TensorSource:
    _check_bytes(record, record.offset)
    if record.encoding in ("I8", "U8"):
        raise ValueError(f"{record.tensor} is {record.encoding} and has no scales")
    if sum(block.nbytes for block in record.blocks) != record.nbytes:
        raise ValueError(f"the checksums of {record.tensor} cover other bytes than the tensor")
    return TensorSource(
        record.tensor, record.encoding, tuple(record.shape), paths[record.file], record.offset, record.nbytes
    )


def _chunk(index: int, record: ChunkRecord, paths: Sequence[Path]) -> Chunk:
    place = 0
    for piece in record.pieces:
        _check_bytes(piece, record.offset + piece.offset)
        if piece.offset < place:
            raise ValueError(f"pieces of chunk {index} overlap at {piece.tensor}")
        place = piece.offset + piece.nbytes
    if place > record.nbytes:
        raise ValueError(f"chunk {index} has {record.nbytes} bytes, its pieces reach to {place}")
    if record.nbytes > CHUNK_BYTES and any(p.shape[0] > 1 for p in record.pieces):
        raise ValueError(f"chunk {index} has {record.nbytes} bytes, more than {CHUNK_BYTES}")
    return Chunk(
        index=index,
        layer=record.layer,
        file=paths[record.file],
        offset=record.offset,
        nbytes=record.nbytes,
        pieces=tuple(
            Piece(p.tensor, p.encoding, tuple(p.shape), p.row, p.offset, p.nbytes) for p in record.pieces
        ),
        digest=int(record.xxh3, 16),
    )


def _check_bytes(record: PieceRecord | TensorRecord, place: int) -> None:
    """The bytes are those of the encoding and shape, at a multiple of the element's size; ValueError."""
    if record.nbytes != stored_bytes(record.encoding, record.shape):
        raise ValueError(
            f"{record.tensor} ({record.encoding} {record.shape}) cannot have {record.nbytes} bytes"
        )
    if place % ELEMENT_BYTES.get(record.encoding, 1):
        raise ValueError(f"{record.tensor} begins inside an element, at byte {place}")


def _check_overlap(records: Iterable[ChunkRecord | TensorRecord]) -> None:
    end = (0, 0)
    for record in sorted(records, key=lambda r: (r.file, r.offset)):
        if (record.file, record.offset) < end:
            raise ValueError(f"two ranges of file {record.file} overlap at byte {record.offset}")
        end = (record.file, record.offset + record.nbytes)


def _check_order(chunks: Sequence[Chunk], layers: int) -> None:
    """Layers 0..L ascend, each matrix is whole: rows from 0 on, one encoding, scales where they must be."""
    present = [chunk.layer for chunk in chunks]
    if present != sorted(present) or sorted(set(present)) != list(range(layers + 1)):
        raise ValueError(f"chunks do not follow the layers 0 to {layers}")
    matrix: tuple[str, str, int, int] | None = None  # name, encoding, columns, layer
    done: set[str] = set()
    rows = 0
    for chunk in chunks:
        pieces = {(p.tensor, p.row): p for p in chunk.pieces}
        scales = {key for key in pieces if key[0].endswith(SCALE)}
        orphans = set(scales)
        for piece in chunk.pieces:
            if (piece.tensor, piece.row) in scales:
                continue
            if len(piece.shape) != 2:
                raise ValueError(f"{piece.tensor} is not a matrix")
            this = (piece.tensor, piece.encoding, piece.shape[1], chunk.layer)
            if this != matrix:
                if piece.tensor in done:
                    raise ValueError(f"{piece.tensor} is cut in different ways")
                done.add(piece.tensor)
                matrix, rows = this, 0
            if piece.row != rows:
                raise ValueError(f"{piece.tensor} jumps from row {rows} to row {piece.row}")
            rows += piece.shape[0]
            scale = pieces.get((piece.tensor + SCALE, piece.row))
            found = None if scale is None else (scale.encoding, scale.shape)
            if found != _scale_of(piece):
                raise ValueError(f"{piece.tensor} ({piece.encoding}) has the wrong scales: {found}")
            orphans.discard((piece.tensor + SCALE, piece.row))
        if orphans:
            raise ValueError(f"{min(orphans)[0]} belongs to no matrix of its chunk")


def _scale_of(piece: Piece) -> tuple[str, tuple[int, ...]] | None:
    return ("F32", (piece.shape[0],)) if piece.encoding in ("I8", "U8") else None
