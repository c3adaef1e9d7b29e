"""Small layers that stream: all of a layer's matrices are in the ring at once, and one call multiplies them.

One by one, as they come, a layer of some hundred KB a matrix takes 0.9 ms of Python and torch around 0.1 ms
of products (the demo model's, on an EPYC). Large ones are computed as they come: arithmetic hides it.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence

from torch import Tensor

from edgespec.kernels import compiled
from edgespec.kernels.matmul import Block, Together, typed
from edgespec.offload.chunks import Blocks, ChunkTable, Piece, by_layer
from edgespec.offload.ring import fits_at_once

KEPT = 256  # layers at places of the ring: it comes round to the same ones


class Arriving:
    """Which layers are multiplied so, and with what.

    chunks: of these layers, those that stream, in streaming order.
    """

    def __init__(
        self,
        table: ChunkTable,
        blocks: Blocks,
        resident: Mapping[tuple[str, int], Block],
        streamed: Collection[int],
        ring_bytes: int,
    ) -> None:
        """resident: blocks that stay. streamed: indices of chunks that do not."""
        self._resident = resident
        self._blocks = dict[int, Blocks]()
        self._made = dict[tuple[int, ...], Together]()
        self.chunks = by_layer(c for c in table.chunks if c.index in streamed and c.layer < table.layers)
        for name, found in blocks.items():
            self._blocks.setdefault(found[0][0].layer, {})[name] = found
        for layer, chunks in [*self.chunks.items()]:
            # Those that stay, too.
            pieces = [piece for found in self._blocks[layer].values() for _, piece, _ in found]
            able = all(compiled.available(piece.encoding) for piece in pieces)
            if not able or len(pieces) > compiled.MOST_BLOCKS or not fits_at_once(chunks, ring_bytes):
                del self.chunks[layer]

    def together(self, layer: int, held: Sequence[Tensor]) -> Together:
        """The layer's matrices, the bytes of its chunks being those that are `held`, uint8 each."""
        key = layer, *(data.data_ptr() for data in held)
        if (made := self._made.get(key)) is None:
            if len(self._made) >= KEPT:
                self._made.clear()
            made = self._made[key] = Together(self._matrices(layer, held))
        return made

    def _matrices(self, layer: int, held: Sequence[Tensor]) -> dict[str, list[Block]]:
        data = {chunk.index: one for chunk, one in zip(self.chunks[layer], held, strict=True)}
        return {
            name.removesuffix(".weight"): [
                self._resident.get((piece.tensor, piece.row)) or as_block(data[chunk.index], piece, scale)
                for chunk, piece, scale in found
            ]
            for name, found in self._blocks[layer].items()
        }


def as_block(data: Tensor, piece: Piece, scale: Piece | None) -> Block:
    """A matmul's operand from a chunk's bytes, uint8 [nbytes]."""

    def part(p: Piece) -> Tensor:
        return data[p.offset : p.offset + p.nbytes]

    scales = None if scale is None else typed(part(scale), scale.encoding, scale.shape)
    rows, inner = piece.shape
    return Block.of_bytes(piece.encoding, part(piece), rows, inner, scales)
