"""The units of a packed copy: read, converted, checksummed and written, each step beside the others.

    source files -> [read ahead and convert, some threads] -> [checksum and write, 1 thread] -> weight files
                                                              [every 128 MiB: sync, then the journal]

Memory: three units and a few tiles, whatever the model's size.
"""

from __future__ import annotations

import contextlib
import os
from collections import deque
from collections.abc import Callable, Iterator
from concurrent.futures import Future, ThreadPoolExecutor
from pathlib import Path

import numpy as np
import xxhash

from edgespec.devices.disk import aligned_buffer
from edgespec.offload.chunks import PAGE, aligned_span
from edgespec.offload.pack.convert import Bytes, convert, one_torch_thread, tiles
from edgespec.offload.pack.journal import Journal
from edgespec.offload.pack.layout import Layout, Unit
from edgespec.offload.pack.weight_writer import WeightWriter
from edgespec.offload.read_ahead import THREADS, read_ahead

SYNC_BYTES = 128 * 2**20  # written between two entries in the journal
_CONVERTERS = 8  # threads at most, and one more that reads meanwhile; each takes some 20 MB
_BUFFERS = 3  # units in memory: one being filled, two on their way to the disk


def write_units(layout: Layout, work: Path, journal: Journal, progress: Callable[[int, int], None]) -> None:
    """Write all units that the journal does not have yet.

    Raises CorruptFileError or StorageError for the source, ModelError for a weight that cannot be quantised,
    OSError for the disk that is written.
    """
    todo = layout.units[len(journal.digests) :]
    total = sum(unit.nbytes for unit in layout.units)
    done = total - sum(unit.nbytes for unit in todo)
    largest = max((unit.nbytes for unit in todo), default=0)
    buffers = [aligned_buffer(aligned_span(PAGE - 1, largest)[1]) for _ in range(min(_BUFFERS, len(todo)))]
    sink = _Sink(layout, work, journal)
    converts = any(part.encoding != part.source.encoding for unit in todo for part in unit.parts)
    source = read_ahead(
        ((tile.source, tile) for unit in todo for part in unit.parts for tile in tiles(part)),
        convert,
        threads=max(THREADS, min(os.cpu_count() or 1, _CONVERTERS) + 1) if converts else THREADS,
    )
    pending: deque[Future[None]] = deque()
    with (
        one_torch_thread() if converts else contextlib.nullcontext(),
        ThreadPoolExecutor(1, thread_name_prefix="edgespec-write") as pool,
    ):
        try:
            for i, unit in enumerate(todo):
                progress(done, total)
                if len(pending) == _BUFFERS - 1:
                    pending.popleft().result()
                buffer = buffers[i % _BUFFERS]
                _fill(buffer[unit.offset % PAGE :], unit, source)
                pending.append(pool.submit(sink.write, unit, buffer))
                done += unit.nbytes
            while pending:
                pending.popleft().result()
            pool.submit(sink.commit).result()
            progress(done, total)
        finally:
            source.close()
            pool.shutdown(cancel_futures=True)
            with contextlib.suppress(OSError):  # interrupted: what is written need not be done again
                sink.commit()
            sink.close()


def _fill(buffer: memoryview, unit: Unit, source: Iterator[tuple[Bytes, Bytes | None]]) -> None:
    """A unit's bytes, from the converted tiles of its parts."""
    place = 0
    target = np.frombuffer(buffer, np.uint8)
    for part in unit.parts:
        pieces = list(part.pieces())
        for piece in pieces:
            target[place : piece.offset] = 0
            place = piece.offset + piece.nbytes
        for tile in tiles(part):
            for piece, stored in zip(pieces, next(source), strict=False):
                assert stored is not None
                first = piece.offset + tile.row * (piece.nbytes // part.rows)
                target[first : first + len(stored)] = stored


class _Sink:
    """Writes units in order and keeps the journal; all calls but `close` are made by one thread at a time."""

    def __init__(self, layout: Layout, work: Path, journal: Journal) -> None:
        self.layout = layout
        self.work = work
        self.journal = journal
        self.writer: WeightWriter | None = None
        self.digests: list[int] = []  # of units written since the last commit
        self.unsynced = 0  # bytes

    def write(self, unit: Unit, buffer: memoryview) -> None:
        """`buffer` holds the unit at its offset within its first page; the rest is scratch."""
        path = self.work / self.layout.files[unit.file].name
        if self.writer is None or self.writer.path != path:
            self.commit()
            self.close()
            self.writer = WeightWriter(path)
            header = aligned_buffer(len(self.layout.headers[unit.file]))
            header[:] = self.layout.headers[unit.file]
            self.writer.write(0, header)
        slack = unit.offset % PAGE
        stop = slack + unit.nbytes
        whole = -(-stop // PAGE) * PAGE
        digest = xxhash.xxh3_64_intdigest(buffer[slack:stop])
        if slack:  # the page's beginning was written with the unit before
            with open(path, "rb", buffering=0) as file:
                file.seek(unit.offset - slack)
                buffer[:slack] = file.read(slack)
        buffer[stop:whole] = bytes(whole - stop)
        self.writer.write(unit.offset - slack, buffer[:whole])
        self.digests.append(digest)
        self.unsynced += whole
        if self.unsynced >= SYNC_BYTES:
            self.commit()

    def commit(self) -> None:
        """What was written is on the disk and in the journal when this returns."""
        if self.writer is not None and self.digests:
            self.writer.sync()
            self.journal.append(self.digests)
        self.digests, self.unsynced = [], 0

    def close(self) -> None:
        if self.writer is not None:
            self.writer.close()
            self.writer = None
