"""A low-bit stand-in for rows of weights, so that the whole model can draft from memory.

SubSpec (arXiv 2509.18344): what is pinned serves the drafter as it is, and a low-bit copy takes the place of
what would have to be streamed (or of all, as the plan has it). The copy is a packed directory of the same
model at int8 or int4; of its matrices only the rows that stand for chunks of the target are loaded.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Callable, Collection, Iterable, Sequence
from contextlib import closing

import numpy as np
import torch
from torch import Tensor

from edgespec.errors import OptionError
from edgespec.kernels.matmul import Block, Together, linear, typed
from edgespec.offload.chunks import Blocks, Chunk, ChunkTable, Piece
from edgespec.offload.digest import mismatch
from edgespec.offload.read_ahead import Range, read_ahead
from edgespec.runtimes.base import IntArray
from edgespec.runtimes.target import PassObserver
from edgespec.runtimes.torch.weights import Weights, with_biases


class LowBitCopy:
    """The low-bit table of a model, and what its rows cost.

    Raises OptionError when its matrices are not the target's, or not smaller.
    """

    def __init__(self, table: ChunkTable, target: ChunkTable) -> None:
        self.table = table
        self.blocks = table.blocks()
        if _rows(self.blocks) != _rows(target.blocks()):
            raise OptionError(f"{table.source} does not hold the matrices of {target.source}")
        if table.nbytes >= target.nbytes:
            raise OptionError(
                f"{table.source} ({table.precision}) is not smaller than {target.source} "
                f"({target.precision}), so it cannot stand in for it; pack it as int4"
            )

    def nbytes(self, chunk: Chunk) -> int:
        """Bytes of the rows that stand for one of the target's chunks."""
        return sum(
            _bytes(piece, scale, stop - start)
            for part, _ in chunk.matrices()
            for _, piece, scale, start, stop in self._overlap(part)
        )

    def load(
        self,
        target: Weights,
        copied: Collection[int],
        progress: Callable[[int], None] | None = None,
    ) -> dict[str, dict[int, Block]]:
        """Low-bit rows for the target's chunks `copied`, by tensor and first row.

        `progress` gets the bytes kept. Raises CorruptFileError and StorageError.
        """
        wanted: dict[int, list[tuple[str, int, Piece, Piece | None, int, int]]] = defaultdict(list)
        for name, blocks in target.blocks.items():
            for held, part, _ in blocks:
                if held.index in copied:
                    for chunk, piece, scale, start, stop in self._overlap(part):
                        wanted[chunk.index].append((name, piece.row + start, piece, scale, start, stop))

        def copy(index: int, data: memoryview) -> list[Block]:
            if error := mismatch(self.table.chunks[index], data):
                raise error
            return [
                _copy_rows(data, piece, scale, start, stop)
                for _, _, piece, scale, start, stop in wanted[index]
            ]

        loaded: dict[str, dict[int, Block]] = defaultdict(dict)
        chunks = [self.table.chunks[index] for index in wanted]
        ranges = ((Range(c.file, c.offset, c.nbytes), c.index) for c in chunks)
        with closing(read_ahead(ranges, copy, ahead=0)) as source:  # two chunks in memory, beside their rows
            for slices, found in zip(wanted.values(), source, strict=True):
                for (name, row, piece, scale, start, stop), block in zip(slices, found, strict=True):
                    loaded[name][row] = block
                    if progress is not None:
                        progress(_bytes(piece, scale, stop - start))
        return loaded

    def _overlap(self, part: Piece) -> Iterable[tuple[Chunk, Piece, Piece | None, int, int]]:
        """Which rows [start, stop) of which low-bit pieces, counted from the piece's first, `part` has."""
        for chunk, piece, scale in self.blocks[part.tensor]:
            start = max(part.row - piece.row, 0)
            stop = min(part.row + part.shape[0] - piece.row, piece.shape[0])
            if start < stop:
                yield chunk, piece, scale, start, stop


class SubstituteWeights:
    """The target's weights for drafting; see `torch.target.ModelWeights`. Nothing is ever streamed."""

    chains = 0  # it reads no prompt

    def __init__(
        self,
        target: Weights,
        copy: LowBitCopy,
        copied: Collection[int],
        progress: Callable[[int], None] | None = None,
    ) -> None:
        """Loads the low-bit rows; raises as `LowBitCopy.load`."""
        self.target = target
        self.dtype, self.device, self.small = target.dtype, target.device, target.small
        self.copy, self.copied = copy, frozenset[int]()
        self._rows = {  # by tensor and first row
            name: {
                part.row: target.resident[name, part.row] for c, part, _ in blocks if c.index not in copied
            }
            for name, blocks in target.blocks.items()
        }
        self.share(copied, progress)

    def share(self, copied: Collection[int], progress: Callable[[int], None] | None = None) -> None:
        """The chunks `copied` are not the target's to share any more: let them go, and load low-bit rows in
        their place. Raises as `LowBitCopy.load`, and can then only be closed."""
        fresh = frozenset(copied) - self.copied
        for name, blocks in self.target.blocks.items():
            for chunk, part, _ in blocks:
                if chunk.index in fresh:
                    self._rows[name].pop(part.row, None)
        self._join()
        for name, rows in self.copy.load(self.target, fresh, progress).items():
            self._rows[name] |= rows
        self.copied |= fresh
        self._join()

    def _join(self) -> None:
        self.blocks = {name: [rows[row] for row in sorted(rows)] for name, rows in self._rows.items()}
        self.together = Together({name.removesuffix(".weight"): b for name, b in self.blocks.items()})

    @property
    def nbytes(self) -> int:
        """The bytes that one pass of drafting reads from memory."""
        tensors = (t for blocks in self.blocks.values() for b in blocks for t in (b.data, b.scale))
        return sum(t.nbytes for t in tensors if t is not None)

    def linear(
        self,
        names: tuple[str, ...],
        x: Tensor,
        exact: bool,
        observer: PassObserver | None = None,
        apart: Sequence[range] = (),
    ) -> list[Tensor]:
        """x [n, in] @ W^T (+ bias) -> [n, out] for each of `names`."""
        matrices = self.together.call(names, x, exact=False)
        if matrices is not None:
            outs = matrices.times(x, x.dtype)
        else:
            outs = [self._in_turn(name, x) for name in names]
        return with_biases(outs, names, self.small)

    def _in_turn(self, name: str, x: Tensor) -> Tensor:
        parts = [self.times(x, block) for block in self.blocks[name + ".weight"]]
        return parts[0] if len(parts) == 1 else torch.cat(parts, dim=1)

    def times(self, x: Tensor, block: Block) -> Tensor:
        """Drafts need no exact bits, so low-bit rows take the fastest kernel, and the target's own the one
        that reads memory fastest, which is the exact one."""
        return linear(x, block, exact=block.scale is None)

    def embed(self, tokens: Sequence[int] | IntArray) -> Tensor:
        return self.target.embed(tokens)

    def layer_together(self, layer: int, observer: PassObserver | None = None) -> Together | None:
        return None

    def resident_blocks(self, name: str) -> Sequence[Block] | None:
        return self.blocks.get(name + ".weight")

    def release(self) -> None:
        """Nothing is held."""

    def close(self) -> None:
        """Free the low-bit rows."""
        self._rows.clear()
        self.blocks.clear()
        self.together.clear()


def _rows(blocks: Blocks) -> dict[str, int]:
    """How many rows each matrix has."""
    return {name: sum(piece.shape[0] for _, piece, _ in found) for name, found in blocks.items()}


def _copy_rows(data: memoryview, piece: Piece, scale: Piece | None, start: int, stop: int) -> Block:
    """Rows [start, stop) of a chunk's piece, in memory of their own: the chunk they came in is let go."""

    def part(p: Piece) -> Tensor:
        row = p.nbytes // p.shape[0]
        rows = torch.empty((stop - start) * row, dtype=torch.uint8)
        source = np.frombuffer(data, np.uint8)[p.offset + start * row : p.offset + stop * row]
        np.copyto(rows.numpy(), source)  # by this thread alone: torch would share it with threads of its own
        return rows

    scales = None if scale is None else typed(part(scale), scale.encoding, (stop - start,))
    return Block.of_bytes(piece.encoding, part(piece), stop - start, piece.shape[1], scales)


def _bytes(piece: Piece, scale: Piece | None, rows: int) -> int:
    """The bytes of so many rows, as they are kept in memory."""
    return rows * ((piece.nbytes + (scale.nbytes if scale else 0)) // piece.shape[0])
