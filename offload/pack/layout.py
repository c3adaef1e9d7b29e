"""Where every byte of a packed copy goes: decided from shapes alone, before anything is read.

    file: header padded to whole pages | span | pad | span | pad ...

A *span* begins on a page and is one chunk, or all small tensors, or the whole embedding. It consists of
*units*, which are written and checksummed one at a time. Bytes between spans, and between the pieces of a
chunk, belong to explicit pad tensors, because safetensors allows no gaps.

Names in a weight file are canonical; rows of a matrix that is cut have their first row as a suffix
("X.weight.0", "X.weight.3670"), and a low-bit matrix's scales are "X.weight_scale". int4 and GGUF blocks
are stored as bytes, U8 [rows, bytes of a row].
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field, replace

from edgespec.offload.chunk_store import row_blocks
from edgespec.offload.chunks import (
    CHUNK_BYTES,
    ELEMENT_BYTES,
    PAGE,
    SCALE,
    StreamOrder,
    TensorSource,
    stored_bytes,
)
from edgespec.offload.manifest import (
    TARGET,
    BlockRecord,
    ChunkRecord,
    FileRecord,
    PieceRecord,
    TensorRecord,
    WeightSet,
)
from edgespec.offload.safetensors_header import HeaderEntry, build_header

FILE_BYTES = 32 * 2**30  # a span that would pass this begins a new weight file
_ALIGN = 64  # bytes; pieces of a chunk begin at cache lines
LOW_BIT = {"int8": "I8", "int4": "U8"}


@dataclass(frozen=True, slots=True)
class Part:
    """Rows of one source tensor, to be stored as `encoding`, at `offset` of their unit."""

    source: TensorSource
    row: int
    rows: int
    encoding: str
    offset: int = 0

    @property
    def columns(self) -> int:
        return self.source.shape[1] if len(self.source.shape) == 2 else 1

    @property
    def shape(self) -> tuple[int, ...]:
        return (self.rows, *self.source.shape[1:])

    @property
    def nbytes(self) -> int:
        return stored_bytes(self.encoding, self.shape)

    @property
    def scale_shape(self) -> tuple[int, ...] | None:
        """Of the scales behind a low-bit matrix: one a row."""
        return (self.rows,) if self.encoding in LOW_BIT.values() else None

    def pieces(self) -> Iterator[PieceRecord]:
        """The data, then its scales."""
        name, place = self.source.name, self.offset
        yield PieceRecord(name, self.encoding, list(self.shape), self.row, place, self.nbytes)
        if self.scale_shape is not None:
            nbytes = stored_bytes("F32", self.scale_shape)
            place = _round_up(place + self.nbytes, _ALIGN)
            yield PieceRecord(name + SCALE, "F32", list(self.scale_shape), self.row, place, nbytes)

    @property
    def end(self) -> int:
        """First byte behind, from the unit's first."""
        return max(p.offset + p.nbytes for p in self.pieces())


@dataclass(frozen=True, slots=True)
class Unit:
    """`nbytes` bytes at `offset` of a weight file: what is written, or done again, as a whole."""

    index: int
    file: int
    offset: int
    parts: tuple[Part, ...]
    layer: int | None  # None: not a chunk

    @property
    def nbytes(self) -> int:
        return self.parts[-1].end


@dataclass(frozen=True)
class Layout:
    """A packed copy, fully described."""

    precision: str
    layers: int
    units: tuple[Unit, ...]  # in the order of writing
    headers: tuple[bytes, ...]  # of each weight file
    files: tuple[FileRecord, ...]
    small: tuple[Unit, ...]  # one vector each
    embedding: tuple[Unit, ...]  # consecutive blocks of rows; with a tied head these are its chunks, too
    embedding_name: str

    @property
    def nbytes(self) -> int:
        return sum(file.nbytes for file in self.files)

    def weight_set(self, digests: Sequence[int]) -> WeightSet:
        """The manifest's record, given each unit's checksum."""
        chunks = [
            ChunkRecord(
                layer=u.layer,
                file=u.file,
                offset=u.offset,
                nbytes=u.nbytes,
                xxh3=f"{digests[u.index]:016x}",
                pieces=[piece for part in u.parts for piece in part.pieces()],
            )
            for u in self.units
            if u.layer is not None
        ]
        small = [_tensor_record(u.parts[0].source.name, [u], digests) for u in self.small]
        embedding = _tensor_record(self.embedding_name, self.embedding, digests)
        return WeightSet(self.precision, self.layers, chunks, small, embedding)


def lay_out(order: StreamOrder, precision: str, name: str = TARGET, file_bytes: int = FILE_BYTES) -> Layout:
    """The layout of `order` at precision "source", "bf16", "int8" or "int4"; `name` begins the files' names.

    int8 and int4 are for matrices: vectors keep their encoding, and the embedding, whose rows are read one
    by one, is bf16. At source and bf16 a tied head is the embedding's own bytes, so its chunks need not
    begin on pages; in low bits both are stored.
    """
    matrices = LOW_BIT.get(precision) or ("BF16" if precision == "bf16" else None)
    shared = order.tied and precision not in LOW_BIT
    embedding = order.embedding.encoding if precision == "source" else "BF16"
    tensor = order.head if shared else order.embedding  # the same bytes; chunks carry the head's name
    table = [[part] for part in parts_of(tensor, embedding)]
    # Wide elements first: every vector then begins at a multiple of its element's size.
    vectors = sorted(order.small, key=lambda t: -ELEMENT_BYTES.get(t.encoding, 1))

    builder = _Builder(file_bytes)
    small = builder.span(
        [[Part(t, 0, t.shape[0], "BF16" if precision == "bf16" else t.encoding)] for t in vectors]
    )
    if not shared:
        blocks = builder.span(table, whole=order.embedding.name)
    for layer, tensors in enumerate(order.layers if shared else (*order.layers, (order.head,))):
        for parts in chunked([p for t in tensors for p in parts_of(t, matrices or t.encoding)]):
            builder.span([parts], layer)
    if shared:
        blocks = builder.span(table, len(order.layers), whole=order.embedding.name)

    count = len(builder.files)
    headers = [build_header(file.entries) for file in builder.files]
    units = [replace(u, offset=len(headers[u.file]) + u.offset) for u in builder.units]
    return Layout(
        precision=precision,
        layers=len(order.layers),
        units=tuple(units),
        headers=tuple(headers),
        files=tuple(
            FileRecord(f"{name}-{i + 1:05}-of-{count:05}.safetensors", len(headers[i]) + file.nbytes)
            for i, file in enumerate(builder.files)
        ),
        small=tuple(units[i] for i in small),
        embedding=tuple(units[i] for i in blocks),
        embedding_name=order.embedding.name,
    )


def parts_of(tensor: TensorSource, encoding: str) -> list[Part]:
    """A matrix cut into blocks of rows that fit a chunk with their scales."""
    whole = Part(tensor, 0, tensor.shape[0], encoding)
    row_bytes, limit = replace(whole, rows=1).nbytes, CHUNK_BYTES
    if whole.scale_shape is not None:
        row_bytes += 4
        limit -= _ALIGN  # between numbers and scales
    return [Part(tensor, row, rows, encoding) for row, rows in row_blocks(whole.rows, row_bytes, limit)]


def chunked(parts: Sequence[Part]) -> Iterator[list[Part]]:
    """Neighbours that fit one chunk together, each at its offset."""
    chunk: list[Part] = []
    for part in parts:
        if chunk:
            placed = replace(part, offset=_round_up(chunk[-1].end, _ALIGN))
            if placed.end <= CHUNK_BYTES:
                chunk.append(placed)
                continue
            yield chunk
        chunk = [part]
    yield chunk


@dataclass
class _WeightFile:
    nbytes: int = 0  # of data
    entries: list[HeaderEntry] = field(default_factory=list)

    def add(self, name: str, dtype: str, shape: tuple[int, ...], offset: int, nbytes: int) -> None:
        """One tensor, with a pad tensor before it where it does not follow the last."""
        self.pad(offset)
        self.entries.append(HeaderEntry(name, dtype, shape, offset, nbytes))
        self.nbytes = offset + nbytes

    def pad(self, offset: int) -> None:
        if gap := offset - self.nbytes:
            self.entries.append(HeaderEntry(f"__pad__.{len(self.entries)}", "U8", (gap,), self.nbytes, gap))
            self.nbytes = offset


class _Builder:
    """Places spans in files; offsets are within a file's data until its header is known."""

    def __init__(self, file_bytes: int) -> None:
        self.file_bytes = file_bytes
        self.files = [_WeightFile()]
        self.units: list[Unit] = []

    def span(self, units: Sequence[Sequence[Part]], layer: int | None = None, whole: str = "") -> list[int]:
        """Place units one behind the other, from a page on; returns their indices.

        `whole`: they are all rows of one tensor, and the file is to hold it under this name, uncut.
        """
        nbytes = sum(parts[-1].end for parts in units)
        if self.files[-1].nbytes and self.files[-1].nbytes + nbytes > self.file_bytes:
            self.files.append(_WeightFile())
        file = self.files[-1]
        start = place = file.nbytes
        first = len(self.units)
        for parts in units:
            self.units.append(Unit(len(self.units), len(self.files) - 1, place, tuple(parts), layer))
            if not whole:
                for part in parts:
                    _add_entries(file, place, part)
            place += parts[-1].end
        if whole:
            head = units[0][0]
            dtype, shape = _stored_as(head.encoding, (head.source.shape[0], head.columns))
            file.add(whole, dtype, shape, start, place - start)
        file.pad(_round_up(place, PAGE))
        return list(range(first, len(self.units)))


def _add_entries(file: _WeightFile, place: int, part: Part) -> None:
    suffix = "" if part.rows == part.source.shape[0] else f".{part.row}"
    for piece in part.pieces():
        dtype, shape = _stored_as(piece.encoding, tuple(piece.shape))
        file.add(piece.tensor + suffix, dtype, shape, place + piece.offset, piece.nbytes)


def _stored_as(encoding: str, shape: tuple[int, ...]) -> tuple[str, tuple[int, ...]]:
    """The safetensors dtype and shape of a logical shape's bytes."""
    if encoding in ELEMENT_BYTES or encoding == "I8":
        return encoding, shape
    return "U8", (shape[0], stored_bytes(encoding, (1, *shape[1:])))


def _tensor_record(name: str, units: Sequence[Unit], digests: Sequence[int]) -> TensorRecord:
    first = units[0].parts[0]
    return TensorRecord(
        tensor=name,
        encoding=first.encoding,
        shape=list(first.source.shape),
        file=units[0].file,
        offset=units[0].offset,
        nbytes=sum(u.nbytes for u in units),
        blocks=[BlockRecord(u.nbytes, f"{digests[u.index]:016x}") for u in units],
    )


def _round_up(n: int, multiple: int) -> int:
    return -(-n // multiple) * multiple
