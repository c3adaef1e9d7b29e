"""A model's weights as matrices, multiplied chunk by chunk wherever their bytes are."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import torch
from torch import Tensor

from edgespec.devices.disk import ReadSettings
from edgespec.kernels import compiled
from edgespec.kernels.choice import FEWS
from edgespec.kernels.dispatch import add
from edgespec.kernels.matmul import Block, Together, linear, ragged, typed
from edgespec.offload.chunks import ChunkTable, TensorSource
from edgespec.runtimes.base import IntArray
from edgespec.runtimes.target import PassObserver
from edgespec.runtimes.torch.arriving import Arriving, as_block
from edgespec.runtimes.torch.stored import CPU, StoredChunks

__all__ = ["CPU", "Weights"]


class Weights(StoredChunks):
    """Matrices by canonical name. A pass asks for them in streaming order."""

    def __init__(
        self,
        table: ChunkTable,
        ring_bytes: int,
        dtype: torch.dtype,
        settings: ReadSettings | None = None,
        device: torch.device = CPU,
    ) -> None:
        super().__init__(table, ring_bytes, settings, device)
        self.dtype = dtype  # of activations
        self.blocks = table.blocks()
        self.resident: dict[tuple[str, int], Block] = {}  # by tensor and first row, where matmuls run
        self.together = Together({})  # of the resident ones
        self.arriving: Arriving | None = None
        try:
            self.small = {t.name: self._vector(t) for t in table.small}
        except BaseException:
            self._close_files()
            raise

    @property
    def chains(self) -> int:
        """See `runtimes.torch.target.ModelWeights`."""
        return compiled.chains(self.table.stored, self.dtype) if self.device.type == "cpu" else 0

    def linear(
        self,
        names: tuple[str, ...],
        x: Tensor,
        exact: bool,
        observer: PassObserver | None = None,
        apart: Sequence[range] = (),
    ) -> list[Tensor]:
        """x [n, in] @ W^T (+ bias) -> [n, out] for each of `names`; see `runtimes.torch.target`."""
        one_call = all(len(span) <= FEWS[0] for span in apart)
        matrices = self.together.call(names, x, exact or bool(apart)) if one_call else None
        if matrices is not None:
            if observer is not None:
                observer.on_chunk()  # once: nothing is heard within the call
            outs = matrices.times(x, x.dtype)
        else:
            outs = [self._in_turn(name, x, exact, observer, apart) for name in names]
        return with_biases(outs, names, self.small)

    def _in_turn(
        self, name: str, x: Tensor, exact: bool, observer: PassObserver | None, apart: Sequence[range]
    ) -> Tensor:
        """The product, chunk by chunk as they come."""
        parts = []
        for chunk, piece, scale in self.blocks[name + ".weight"]:
            if observer is not None:
                observer.on_chunk()
            block = self.resident.get((piece.tensor, piece.row))
            if block is None:
                block = as_block(self._bytes(chunk, observer), piece, scale)
            parts.append(ragged(x, block, apart) if apart else linear(x, block, exact))
        return parts[0] if len(parts) == 1 else torch.cat(parts, dim=1)

    def embed(self, tokens: Sequence[int] | IntArray) -> Tensor:
        """Rows of the embedding, [n] -> [n, d]."""
        return self.embedding.rows(tokens, self.dtype).to(self.device)

    def resident_blocks(self, name: str) -> list[Block] | None:
        """See `runtimes.torch.target.ModelWeights`."""
        found = [
            self.resident.get((piece.tensor, piece.row)) for _, piece, _ in self.blocks[name + ".weight"]
        ]
        blocks = [block for block in found if block is not None]
        return blocks if len(blocks) == len(found) else None

    def times(self, x: Tensor, block: Block) -> Tensor:
        """See `runtimes.torch.target.ModelWeights`."""
        return linear(x, block, exact=True)

    def layer_together(self, layer: int, observer: PassObserver | None = None) -> Together | None:
        """See `runtimes.torch.target.ModelWeights`."""
        arriving = self.arriving
        if arriving is None or layer not in arriving.chunks or self.streamer is None:
            return None
        if self._growing:  # what comes to stay is copied, one by one
            return None
        return arriving.together(layer, self._hold(arriving.chunks[layer], observer))

    def _index(self) -> None:
        self.resident = {
            (piece.tensor, piece.row): as_block(data, piece, scale)
            for blocks in self.blocks.values()
            for chunk, piece, scale in blocks
            if (data := self._resident_bytes(chunk)) is not None
        }
        self.together = Together(
            {
                name.removesuffix(".weight"): [self.resident[name, piece.row] for _, piece, _ in found]
                for name, found in self.blocks.items()
                if all((name, piece.row) in self.resident for _, piece, _ in found)
            }
        )
        streamed = {c.index for c in self.table.chunks} - self.pinned.keys() - self.on_device.keys()
        self.arriving = None
        if self.device.type == "cpu" and streamed:
            self.arriving = Arriving(self.table, self.blocks, self.resident, streamed, self.ring_bytes)

    def _vector(self, source: TensorSource) -> Tensor:
        data = torch.frombuffer(self.files[source.file].read(source.offset, source.nbytes), dtype=torch.uint8)
        return typed(data, source.encoding, source.shape).to(self.device, self.dtype)

    def close(self) -> None:
        """Stop reading and let all memory go."""
        self.arriving = None
        super().close()
        self.resident.clear()
        self.together.clear()


def with_biases(outs: Sequence[Tensor], names: Sequence[str], small: Mapping[str, Tensor]) -> list[Tensor]:
    """Products [n, out] of the matrices `names`, each with its bias where there is one."""
    biases = [small.get(name + ".bias") for name in names]
    return [out if bias is None else add(out, bias) for out, bias in zip(outs, biases, strict=True)]
