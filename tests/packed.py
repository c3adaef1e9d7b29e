"""Packed copies of small models, and reading weights back through a chunk table."""

from __future__ import annotations

from collections import defaultdict
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from edgespec.offload.chunks import ChunkTable, TensorSource
from edgespec.offload.pack.pack import pack
from edgespec.runtimes.formats.checkpoint import read_checkpoint

Bytes = NDArray[np.uint8]


def pack_checkpoint(path: Path, out: Path, precision: str = "source", **options: Any) -> Path:
    """Pack a Hugging Face directory as `edgespec pack` does."""
    checkpoint = read_checkpoint(path)
    pack(
        checkpoint.order,
        out,
        precision=precision,
        config=checkpoint.config.to_dict(),
        source=str(path),
        source_digest=checkpoint.digest,
        beside=checkpoint.companions(),
        **options,
    )
    return out


def read_range(file: Path, offset: int, nbytes: int) -> Bytes:
    with open(file, "rb") as handle:
        handle.seek(offset)
        return np.frombuffer(handle.read(nbytes), np.uint8)


def read_source(tensor: TensorSource) -> Bytes:
    return read_range(tensor.file, tensor.offset, tensor.nbytes)


def read_matrices(table: ChunkTable) -> dict[str, Bytes]:
    """Bytes of each matrix (and of its scales), its pieces joined in row order."""
    parts: dict[str, list[Bytes]] = defaultdict(list)
    rows: dict[str, int] = defaultdict(int)
    for chunk in table.chunks:
        data = read_range(chunk.file, chunk.offset, chunk.nbytes)
        for piece in chunk.pieces:
            assert piece.row == rows[piece.tensor]
            rows[piece.tensor] += piece.shape[0]
            parts[piece.tensor].append(data[piece.offset : piece.offset + piece.nbytes])
    return {name: np.concatenate(pieces) for name, pieces in parts.items()}


def cuts(table: ChunkTable) -> dict[str, list[tuple[int, int]]]:
    """(first row, rows) of each block of each matrix."""
    found: dict[str, list[tuple[int, int]]] = defaultdict(list)
    for chunk in table.chunks:
        for piece in chunk.pieces:
            found[piece.tensor].append((piece.row, piece.shape[0]))
    return found
