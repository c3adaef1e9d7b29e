"""Where a model's chunks are: pinned in memory, or arriving through the ring; and how that changes."""

from __future__ import annotations

from collections.abc import Callable, Collection, Sequence
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import numpy as np
import torch
from torch import Tensor

from edgespec.devices.disk import ReadSettings, aligned_buffer
from edgespec.errors import DeviceError
from edgespec.offload.chunks import Chunk, ChunkEvent, ChunkTable, aligned_span
from edgespec.offload.digest import mismatch
from edgespec.offload.plan.plan import Plan
from edgespec.offload.reader import DirectFile
from edgespec.offload.streamer import Streamer
from edgespec.runtimes.target import PassObserver
from edgespec.runtimes.torch.embedding import Embedding
from edgespec.runtimes.torch.placement import placement_for

CPU = torch.device("cpu")


class StoredChunks:
    """The bytes of chunks, asked for in streaming order; one is held until the next one is asked for.

    `device` is where matmuls run; chunks may be pinned there or in host memory.
    """

    def __init__(
        self,
        table: ChunkTable,
        ring_bytes: int,
        settings: ReadSettings | None = None,
        device: torch.device = CPU,
    ) -> None:
        self.table = table
        self.ring_bytes = ring_bytes
        self.settings = settings or ReadSettings()
        self.device = device
        self.placement = placement_for(device, max(c.nbytes for c in table.chunks))
        self.files: dict[Path, DirectFile] = {}
        try:
            for path in table.files():
                self.files[path] = DirectFile(path)
        except BaseException:
            self._close_files()
            raise
        self.pinned: dict[int, memoryview] = {}  # in host memory, by chunk index
        self.on_device: dict[int, Tensor] = {}  # uint8, by chunk index
        self.embedding = Embedding(table, self.files[table.embedding.file], self.pinned)
        self.streamer: Streamer | None = None
        self._streamed = 0  # bytes, by streams that have ended
        self._growing: set[int] = set()  # chunks that will be pinned when they have streamed by
        self._listener: Callable[[ChunkEvent], None] | None = None
        self._held: tuple[Chunk, Tensor | None] | None = None  # None: being acquired, or given back
        self._along: list[Chunk] = []  # of a layer, held at once

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

    def move(self, plan: Plan) -> None:
        """See `runtimes.target.StoredWeights`."""
        self.release()
        self._growing = set(plan.pinned - self.pinned.keys())
        for index in self.pinned.keys() - plan.pinned:
            del self.pinned[index]
        if plan.ring_bytes not in (0, self.ring_bytes):  # 0: there is a ring until everything is pinned
            self._end_stream()
            self.ring_bytes = plan.ring_bytes
        self._restream()
        self.embedding.keep(plan.pin_embedding)

    def _stay(self, chunk: Chunk, streamed: memoryview) -> memoryview:
        """Memory of its own for a chunk in the ring, which streams no more."""
        start, nbytes = aligned_span(chunk.offset, chunk.nbytes)
        try:
            buffer = aligned_buffer(nbytes)[chunk.offset - start :][: chunk.nbytes]
        except DeviceError:  # it streams as before, and so do the others
            self._growing.clear()
            self._index()
            return streamed
        np.copyto(np.frombuffer(buffer, np.uint8), np.frombuffer(streamed, np.uint8))
        self._keep(chunk, buffer)
        assert self.streamer is not None
        self.streamer.leave_out(chunk)
        self._growing.discard(chunk.index)
        if not self._growing:
            self._index()
            if len(self.pinned) == len(self.table.chunks):
                self._end_stream()
        return buffer

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
        self._index()
        resident = self.pinned.keys() | self.on_device.keys()
        self._growing -= resident
        streamed = [c for c in self.table.chunks if c.index not in resident]
        if not streamed:
            self._end_stream()
        elif self.streamer is not None:
            self.streamer.set_chunks(streamed)
        else:
            self.streamer = Streamer(streamed, self.ring_bytes, self.settings)
            self.streamer.listener = self._listener
            self.placement.register(self.streamer.buffer)

    def _end_stream(self) -> None:
        """Stop reading, and let the ring go."""
        streamer, self.streamer = self.streamer, None
        if streamer is not None:
            streamer.close()
            self._streamed += streamer.bytes_read

    def _index(self) -> None:
        """Other chunks are pinned than before."""

    @property
    def bytes_read(self) -> int:
        """Bytes moved from flash so far: by the stream, by loading, by embedding rows."""
        streamed = self._streamed + (self.streamer.bytes_read if self.streamer else 0)
        return streamed + sum(f.bytes_read for f in self.files.values())

    def listen(self, listener: Callable[[ChunkEvent], None] | None) -> None:
        self._listener = listener
        if self.streamer is not None:
            self.streamer.listener = listener

    def _bytes(self, chunk: Chunk, observer: PassObserver | None) -> Tensor:
        """The chunk as uint8 [nbytes] where matmuls run."""
        if self._held is not None and self._held[0] is chunk and self._held[1] is not None:
            return self._held[1]
        self.release()
        self._held = (chunk, None)  # Ctrl-C may come at any moment, and must not lose its room in the ring
        buffer = self.pinned.get(chunk.index)
        if buffer is None:
            if self.streamer is None:  # `move` was refused a ring, or interrupted
                self._restream()
            assert self.streamer is not None
            buffer = self.streamer.acquire(chunk, observer.on_wait if observer else None)
            if chunk.index in self._growing:
                buffer = self._stay(chunk, buffer)
        placed = self.placement.place(buffer)
        self._held = (chunk, placed)
        return placed

    def _hold(self, chunks: Sequence[Chunk], observer: PassObserver | None) -> list[Tensor]:
        """The bytes of chunks that stream, uint8 [nbytes] each, all at once until `release`; on a CPU."""
        self.release()
        assert self.streamer is not None
        found = []
        for chunk in chunks:
            if observer is not None:
                observer.on_chunk()
            self._along.append(chunk)
            buffer = self.streamer.acquire(chunk, observer.on_wait if observer else None)
            found.append(torch.frombuffer(buffer, dtype=torch.uint8))
        return found

    def _resident_bytes(self, chunk: Chunk) -> Tensor | None:
        """The chunk's bytes if they stay where matmuls run."""
        if self.device.type == "cpu" and chunk.index in self.pinned:
            return torch.frombuffer(self.pinned[chunk.index], dtype=torch.uint8)
        return self.on_device.get(chunk.index)

    def release(self) -> None:
        """What is held has been used: its room goes back to the ring. Called after a pass, too."""
        while self._along:
            if self.streamer is not None:
                self.streamer.release(self._along[-1])  # nothing, where it came no further than asking
            self._along.pop()
        if self._held is None:
            return
        chunk, placed = self._held
        streamer = self.streamer

        def give_back() -> None:
            if streamer is not None:
                streamer.release(chunk)

        self._held = (chunk, None)
        if placed is None:
            give_back()
        else:
            self.placement.finish(give_back)
        self._held = None

    def close(self) -> None:
        """Stop reading and let all memory go."""
        self.release()
        self.placement.drain()
        if self.streamer is not None:
            self.streamer.close()
        self._close_files()
        self.pinned.clear()
        self.embedding.keep(False)
        self.on_device.clear()

    def _close_files(self) -> None:
        for file in self.files.values():
            file.close()
