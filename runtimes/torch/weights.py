"""A model's weights as tensors, wherever their bytes are: pinned in memory, or arriving through the ring."""

from __future__ import annotations

from collections.abc import Callable, Collection, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import torch
from torch import Tensor

from edgespec.devices.disk import ReadSettings
from edgespec.kernels.matmul import Block, Together, linear, typed
from edgespec.offload.chunks import Chunk, ChunkEvent, ChunkTable, Piece, TensorSource
from edgespec.offload.digest import mismatch
from edgespec.offload.reader import DirectFile
from edgespec.offload.streamer import Streamer
from edgespec.runtimes.base import IntArray, PassObserver
from edgespec.runtimes.torch.embedding import Embedding
from edgespec.runtimes.torch.placement import placement_for

CPU = torch.device("cpu")


class Weights:
    """Matrices by canonical name, multiplied chunk by chunk as the chunks arrive.

    A pass asks for matrices in streaming order; a chunk is held until the next one is asked for. `device` is
    where matmuls run; chunks may be pinned there or in host memory.
    """

    def __init__(
        self,
        table: ChunkTable,
        ring_bytes: int,
        dtype: torch.dtype,
        settings: ReadSettings | None = None,
        device: torch.device = CPU,
    ) -> None:
        self.table = table
        self.ring_bytes = ring_bytes
        self.dtype = dtype  # of activations
        self.settings = settings or ReadSettings()
        self.device = device
        self.placement = placement_for(device, max(c.nbytes for c in table.chunks))
        self.files: dict[Path, DirectFile] = {}
        try:
            for path in table.files():
                self.files[path] = DirectFile(path)
            self.small = {t.name: self._vector(t) for t in table.small}
        except BaseException:
            self._close_files()
            raise
        self.pinned: dict[int, memoryview] = {}  # in host memory, by chunk index
        self.on_device: dict[int, Tensor] = {}  # uint8, by chunk index
        self.embedding = Embedding(table, self.files[table.embedding.file], self.pinned)
        self.blocks = table.blocks()
        self.resident: dict[tuple[str, int], Block] = {}  # by tensor and first row, where matmuls run
        self.together = Together({})  # of the resident ones
        self.streamer: Streamer | None = None
        self._listener: Callable[[ChunkEvent], None] | None = None
        self._held: tuple[Chunk, Tensor | None] | None = None  # None: being acquired, or given back

    def pin(
        self,
        chunks: Collection[int],
        on_device: Collection[int] = (),
        progress: Callable[[int], None] | None = None,
    ) -> None:
        """Read chunks into host memory, and others into the device's, to stay; the rest will be streamed.
        Numbers are the table's; what is there already is not read again.

        Raises CorruptFileError when a checksum differs, StorageError, and whatever `progress` raises. Weights
        that streamed before then stream what has not been read; others can only be closed.
        """
        try:
            # What goes to the device must not pile up in host memory on its way.
            self._read(on_device, self._keep_on_device, progress, at_once=2 * self.settings.threads)
            self._read(chunks, self._keep, progress)
        except BaseException:
            if self.streamer is not None:
                self._restream()
            raise
        self._restream()

    def _keep(self, chunk: Chunk, buffer: memoryview) -> None:
        self.placement.register(buffer)
        self.pinned[chunk.index] = buffer

    def _keep_on_device(self, chunk: Chunk, buffer: memoryview) -> None:
        data = torch.frombuffer(buffer, dtype=torch.uint8)
        self.on_device[chunk.index] = data.to(self.device, copy=True)

    def _read(
        self,
        chunks: Collection[int],
        keep: Callable[[Chunk, memoryview], None],
        progress: Callable[[int], None] | None,
        at_once: int | None = None,
    ) -> None:
        """Several threads read the chunks, at most `at_once` ahead of `keep`, which gets them in order."""

        def read(chunk: Chunk) -> memoryview:
            buffer = self.files[chunk.file].read(chunk.offset, chunk.nbytes)
            if error := mismatch(chunk, buffer):
                raise error
            return buffer

        held = self.pinned.keys() | self.on_device.keys()
        wanted = [c for c in self.table.chunks if c.index in chunks and c.index not in held]
        step = at_once or max(1, len(wanted))
        pool = ThreadPoolExecutor(self.settings.threads)
        try:
            for start in range(0, len(wanted), step):
                part = wanted[start : start + step]
                for chunk, buffer in zip(part, pool.map(read, part), strict=True):
                    keep(chunk, buffer)
                    if progress is not None:
                        progress(chunk.nbytes)
        finally:
            pool.shutdown(cancel_futures=True)  # an error, or Ctrl-C, need not wait for gigabytes

    def _restream(self) -> None:
        self.release()
        resident = self.pinned.keys() | self.on_device.keys()
        streamed = [c for c in self.table.chunks if c.index not in resident]
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
        if self.streamer is not None:
            self.streamer.set_chunks(streamed)
        elif streamed:
            self.streamer = Streamer(streamed, self.ring_bytes, self.settings)
            self.streamer.listener = self._listener
            self.placement.register(self.streamer.buffer)

    @property
    def bytes_read(self) -> int:
        """Bytes moved from flash so far: by the stream, by loading, by embedding rows."""
        streamed = self.streamer.bytes_read if self.streamer else 0
        return streamed + sum(f.bytes_read for f in self.files.values())

    def listen(self, listener: Callable[[ChunkEvent], None] | None) -> None:
        self._listener = listener
        if self.streamer is not None:
            self.streamer.listener = listener

    def linear(
        self,
        names: tuple[str, ...],
        x: Tensor,
        exact: bool,
        observer: PassObserver | None = None,
        apart: Sequence[range] = (),
    ) -> list[Tensor]:
        """x [n, in] @ W^T (+ bias) -> [n, out] for each of `names`; see `runtimes.torch.target`."""
        matrices = None if apart else self.together.call(names, x, exact)
        if matrices is not None:
            if observer is not None:
                for _ in matrices.described:
                    observer.on_chunk()
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
            if apart:
                parts.append(torch.cat([linear(x[s.start : s.stop], block, exact) for s in apart]))
            else:
                parts.append(linear(x, block, exact))
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

    def _bytes(self, chunk: Chunk, observer: PassObserver | None) -> Tensor:
        """The chunk as uint8 [nbytes] where matmuls run."""
        if self._held is not None and self._held[0] is chunk and self._held[1] is not None:
            return self._held[1]
        self.release()
        self._held = (chunk, None)  # Ctrl-C may come at any moment, and must not lose its room in the ring
        buffer = self.pinned.get(chunk.index)
        if buffer is None:
            assert self.streamer is not None
            buffer = self.streamer.acquire(chunk, observer.on_wait if observer else None)
        placed = self.placement.place(buffer)
        self._held = (chunk, placed)
        return placed

    def _resident_bytes(self, chunk: Chunk) -> Tensor | None:
        """The chunk's bytes if they stay where matmuls run."""
        if self.device.type == "cpu" and chunk.index in self.pinned:
            return torch.frombuffer(self.pinned[chunk.index], dtype=torch.uint8)
        return self.on_device.get(chunk.index)

    def release(self) -> None:
        """The held chunk has been used: its room goes back to the ring. Called after a pass, too."""
        if self._held is None:
            return
        chunk, placed = self._held
        streamer = None if chunk.index in self.pinned else self.streamer

        def give_back() -> None:
            if streamer is not None:
                streamer.release(chunk)

        self._held = (chunk, None)
        if placed is None:
            give_back()
        else:
            self.placement.finish(give_back)
        self._held = None

    def _vector(self, source: TensorSource) -> Tensor:
        data = torch.frombuffer(self.files[source.file].read(source.offset, source.nbytes), dtype=torch.uint8)
        return typed(data, source.encoding, source.shape).to(self.device, self.dtype)

    def close(self) -> None:
        """Stop reading and let all memory go."""
        self.release()
        self.placement.drain()
        if self.streamer is not None:
            self.streamer.close()
        self._close_files()
        self.pinned.clear()
        self.embedding.whole = None
        self.on_device.clear()
        self.resident.clear()
        self.together.clear()

    def _close_files(self) -> None:
        for file in self.files.values():
            file.close()


def with_biases(outs: Sequence[Tensor], names: Sequence[str], small: Mapping[str, Tensor]) -> list[Tensor]:
    """Products [n, out] of the matrices `names`, each with its bias where there is one."""
    biases = [small.get(name + ".bias") for name in names]
    return [out if bias is None else out + bias for out, bias in zip(outs, biases, strict=True)]


def as_block(data: Tensor, piece: Piece, scale: Piece | None) -> Block:
    """A matmul's operand from a chunk's bytes, uint8 [nbytes]."""

    def part(p: Piece) -> Tensor:
        return data[p.offset : p.offset + p.nbytes]

    scales = None if scale is None else typed(part(scale), scale.encoding, scale.shape)
    rows, inner = piece.shape
    return Block.of_bytes(piece.encoding, part(piece), rows, inner, scales)
