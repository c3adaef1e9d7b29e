"""What weights are made of: tensors in files, cut into chunks in the order a pass needs them.

A *chunk* is the unit of everything that happens to weights: it is read in one go, lies in one span of the
ring, and has one tier. Chunks are bounded (`CHUNK_BYTES`), because a layer of a 70B shape is 1.7 GB.
A large matrix is cut into blocks of whole rows; the cut depends only on its shape and encoding, never on
where it lies or on the dial, so that a matmul has the same shape (and so the same bits) everywhere.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from math import prod
from pathlib import Path

from edgespec.kernels.low_bit import stored_row_bytes

CHUNK_BYTES = 32 * 2**20  # upper bound of a chunk; 16 ms at 2 GB/s
PAGE = 4096  # O_DIRECT: offsets, lengths and addresses are multiples of this
SCALE = "_scale"  # suffix of a low-bit matrix's scales
ELEMENT_BYTES = {"F32": 4, "F16": 2, "BF16": 2}  # these must lie at multiples of their size


@dataclass(frozen=True, slots=True)
class TensorSource:
    """One stored tensor: `nbytes` bytes at `offset` of `file`.

    `encoding` is how the bytes are to be read: a safetensors dtype name ("F32", "F16", "BF16", "I8"), "U8"
    for int4 as `kernels.quantize` packs it, or a GGUF block type (`kernels.gguf_blocks`).
    `shape` is the logical shape in elements, so for int4 and block types nbytes is less than the product.
    Rows (dim 0) are contiguous in every encoding.
    """

    name: str  # canonical (Hugging Face) name, e.g. "model.layers.3.mlp.up_proj.weight"
    encoding: str
    shape: tuple[int, ...]
    file: Path
    offset: int
    nbytes: int

    @property
    def row_bytes(self) -> int:
        return self.nbytes // self.shape[0]


@dataclass(frozen=True)
class StreamOrder:
    """The tensors of one model as a pass needs them, wherever they are stored.

    `layers[i]` are the matrices of layer i in the order of their use. With a tied head, `head` has the
    head's name and the embedding's file, offset and bytes.
    """

    layers: tuple[tuple[TensorSource, ...], ...]
    head: TensorSource
    embedding: TensorSource
    small: tuple[TensorSource, ...]  # vectors: norms, biases

    @property
    def tied(self) -> bool:
        return (self.head.file, self.head.offset) == (self.embedding.file, self.embedding.offset)


@dataclass(frozen=True, slots=True)
class Piece:
    """Rows [row, row + shape[0]) of one tensor, `nbytes` bytes at `offset` from the chunk's first byte.

    A low-bit matrix "X.weight" has, in the same chunk, a second piece "X.weight_scale" for the same rows.
    """

    tensor: str
    encoding: str
    shape: tuple[int, ...]
    row: int
    offset: int
    nbytes: int


@dataclass(frozen=True, slots=True)
class Chunk:
    """One contiguous range of a file. `layer` is the layer it belongs to; the LM head counts as layer L."""

    index: int  # place in streaming order
    layer: int
    file: Path
    offset: int
    nbytes: int
    pieces: tuple[Piece, ...]
    digest: int | None = None  # xxh3_64 of the nbytes, when the store has one

    @property
    def read_bytes(self) -> int:
        """Bytes that a direct read moves: the range widened to whole pages."""
        return aligned_span(self.offset, self.nbytes)[1]

    def matrices(self) -> Iterator[tuple[Piece, Piece | None]]:
        """Its rows of matrices, each with the scales of these rows where it is a low-bit one."""
        pieces = {(p.tensor, p.row): p for p in self.pieces}
        for (name, row), piece in pieces.items():
            if not name.endswith(SCALE):
                yield piece, pieces.get((name + SCALE, row))


@dataclass(frozen=True, slots=True)
class ChunkEvent:
    """What a chunk took: a "read" from flash, which may have brought `others`, too, or a "wait", when the
    pass was blocked until it was there."""

    kind: str
    chunk: Chunk
    began: float  # seconds, as of time.perf_counter
    ended: float
    others: tuple[Chunk, ...] = ()


@dataclass(frozen=True, slots=True)
class Cut:
    """How a matrix is cut, without the layer that it is of: `part` as in "q_proj"; `rows` of each block, of
    `inner` columns. together: rows of all matrices that the same activations are multiplied with."""

    part: str
    encoding: str
    inner: int
    row_bytes: int
    rows: tuple[int, ...]
    together: int


# Matrices of a layer that the same activations are multiplied with.
TOGETHER = ("q_proj", "k_proj", "v_proj"), ("gate_proj", "up_proj")

Blocks = dict[str, list[tuple[Chunk, Piece, Piece | None]]]  # by matrix: where its rows lie, and their scales


def aligned_span(offset: int, nbytes: int) -> tuple[int, int]:
    """The page-aligned (offset, length) that covers `nbytes` bytes at `offset`."""
    start = offset // PAGE * PAGE
    stop = -(-(offset + nbytes) // PAGE) * PAGE
    return start, stop - start


def by_layer(chunks: Iterable[Chunk]) -> dict[int, list[Chunk]]:
    found = dict[int, list[Chunk]]()
    for chunk in chunks:
        found.setdefault(chunk.layer, []).append(chunk)
    return found


def by_encoding(chunks: Iterable[Chunk]) -> dict[str, int]:
    """Bytes of chunks by encoding; scales are left out."""
    found = dict[str, int]()
    for chunk in chunks:
        for piece, _ in chunk.matrices():
            found[piece.encoding] = found.get(piece.encoding, 0) + piece.nbytes
    return found


@dataclass(frozen=True)
class ChunkTable:
    """All weights of one model.

    `chunks` are the matrices of layers 0..L-1 and then of the head, in streaming order. `small` are the
    vectors (norms, biases): always in memory. `embedding` is read by row from flash unless it is pinned.
    With a tied head, the head's chunks are cut from the embedding's own bytes.
    """

    chunks: tuple[Chunk, ...]
    small: tuple[TensorSource, ...]
    embedding: TensorSource
    layers: int  # L; chunks with layer == L are the head
    source: str  # what a user would call it: the path it came from
    precision: str  # "source", "bf16", "int8" or "int4"

    def files(self) -> Iterator[Path]:
        seen = dict.fromkeys(c.file for c in self.chunks)
        seen.update(dict.fromkeys(t.file for t in self.small))
        seen[self.embedding.file] = None
        return iter(seen)

    @property
    def nbytes(self) -> int:
        return sum(c.nbytes for c in self.chunks)

    @cached_property
    def stored(self) -> Mapping[str, int]:
        """Bytes of all chunks by encoding; scales are left out."""
        return by_encoding(self.chunks)

    def end(self, layers: int = 0) -> list[Chunk]:
        """The head's chunks, and those of so many of the last layers."""
        return [chunk for chunk in self.chunks if chunk.layer >= self.layers - layers]

    def blocks(self) -> Blocks:
        """By matrix, in streaming order: where its rows lie, and their scales."""
        found: Blocks = {}
        for chunk in self.chunks:
            for piece, scale in chunk.matrices():
                found.setdefault(piece.tensor, []).append((chunk, piece, scale))
        return found

    @cached_property
    def cuts(self) -> frozenset[Cut]:
        """Of all layers and the head; few differ."""
        blocks = {
            name.removesuffix(".weight"): [piece for _, piece, _ in found]
            for name, found in self.blocks().items()
        }
        rows = {name: tuple(piece.shape[0] for piece in pieces) for name, pieces in blocks.items()}
        cuts = set[Cut]()
        for name, pieces in blocks.items():
            at, _, part = name.rpartition(".")
            beside = next((parts for parts in TOGETHER if part in parts), (part,))
            named = [f"{at}.{other}" if at else other for other in beside]
            together = sum(sum(rows[other]) for other in named if other in rows)
            first = pieces[0]
            row_bytes = first.nbytes // first.shape[0]
            cuts.add(Cut(part, first.encoding, first.shape[1], row_bytes, rows[name], together))
        return frozenset(cuts)

    @property
    def tied(self) -> bool:
        """Whether the head's chunks are the embedding's bytes."""
        head = next((c for c in self.chunks if c.layer == self.layers), None)
        own = (self.embedding.file, self.embedding.offset)
        return head is not None and (head.file, head.offset) == own


def stored_bytes(encoding: str, shape: Sequence[int]) -> int:
    """Bytes of a tensor of this logical shape. Raises ValueError for an unknown encoding or broken blocks."""
    return shape[0] * stored_row_bytes(encoding, prod(shape[1:]))


def rows_per_chunk(rows: int, row_bytes: int, limit: int = CHUNK_BYTES) -> int:
    """Rows of each block when a [rows, *] tensor is cut into equal blocks of at most `limit` bytes.

    The last block may be shorter. A function of the shape and encoding alone. Blocks have a multiple of 16
    rows where they can, which is what matmul kernels like. A row that is larger than `limit` is a block.
    """
    most = max(1, limit // row_bytes)
    if most >= rows:
        return rows
    unit = 16 if most >= 16 else 1
    most -= most % unit
    blocks = -(-rows // most)
    return -(-rows // (blocks * unit)) * unit
