"""The stream of weights: reader threads keep a ring filled with the chunks a pass will need next.

    chunks in cyclic order:  0 1 2 ... n-1 0 1 ...
    in the ring:             [held by the pass][ready][ready][being read ...][room]

Readers share one position in that order (`offload.rotation`). Whenever the ring has room for the next chunk,
or for some that one read brings, they cut it into requests and read them, on past the last chunk into the
next pass, so the disk rests only while the ring is full. The consumer acquires chunks in the same order and
releases them; asking for any other chunk is a *seek*.
"""

from __future__ import annotations

import sys
import threading
from collections import deque
from collections.abc import Callable, Sequence
from pathlib import Path
from time import perf_counter
from types import TracebackType

from edgespec.errors import Cancelled, CorruptFileError
from edgespec.offload.chunks import Chunk, ChunkEvent
from edgespec.offload.digest import mismatch
from edgespec.offload.fetch import Fetch, Slot, span_of
from edgespec.offload.reader import DirectFile, ReadSettings
from edgespec.offload.ring import PARTS, Ring
from edgespec.offload.rotation import Rotation

# Between two requests a reader needs the interpreter for some microseconds. By default a thread busy in
# Python keeps it for 5 ms, longer than a request takes, and the disk would idle while others compute.
_SWITCH = 0.0005  # seconds
_TICK = 1.0  # seconds; a blocked wait looks up this often, so that Ctrl-C is heard on every system


class Streamer:
    """Streams `chunks` (of one table, each index once) in cyclic order through a ring of `ring_bytes`.

    One thread consumes: `acquire` and `release` chunk after chunk. Reading starts at once. A reader's
    error reaches the consumer in `acquire`; the streamer can be used on after it, and after a
    KeyboardInterrupt anywhere. Lowers the process's `sys.setswitchinterval` to 0.5 ms.

    Counters, only ever growing: `bytes_read` as moved by reads (whole pages), `wait_seconds` that
    `acquire` was blocked with no other work, `seeks`. `listener` hears of reads, in the readers' threads, and
    of waits; it must be quick and raise nothing.
    """

    def __init__(
        self, chunks: Sequence[Chunk], ring_bytes: int, settings: ReadSettings | None = None
    ) -> None:
        self.settings = settings or ReadSettings()
        self.bytes_read = 0
        self.wait_seconds = 0.0
        self.seeks = 0
        self.listener: Callable[[ChunkEvent], None] | None = None
        self._ring = Ring(ring_bytes)
        self._files: dict[Path, DirectFile] = {}
        self._verified: set[int] = set()  # indices of chunks whose digest has been checked
        self._rotation = self._rotation_of(())  # its next chunk is the one that gets ring space next
        self._ahead: deque[Slot] = deque()  # in the ring, not acquired yet; in cyclic order
        self._held: deque[Slot] = deque()  # acquired, not released yet
        self._flying = 0  # requests being read now
        self._torn = False  # the consumer is at work on the above, or was interrupted in it (Ctrl-C)
        self._closed = False
        self._lock = threading.Lock()  # guards everything above
        self._room = threading.Condition(self._lock)  # readers: there may be something to read
        self._ready = threading.Condition(self._lock)  # consumer: a chunk may be ready
        self._threads: list[threading.Thread] = []
        sys.setswitchinterval(min(_SWITCH, sys.getswitchinterval()))
        try:
            self.set_chunks(chunks)
        except BaseException:
            self.close()
            raise
        for i in range(self.settings.threads):
            thread = threading.Thread(target=self._work, name=f"edgespec-reader-{i}", daemon=True)
            self._threads.append(thread)
            thread.start()

    @property
    def buffer(self) -> memoryview:
        """The ring's memory, for registering it with a device."""
        return self._ring.buffer

    def set_chunks(self, chunks: Sequence[Chunk]) -> None:
        """Stream these chunks from now on, starting with the first. Held chunks stay valid until released.

        Raises ValueError when one is larger than the ring, CorruptFileError when a file is missing.
        """
        for chunk in chunks:
            if chunk.read_bytes > self._ring.nbytes:
                raise ValueError(
                    f"chunk {chunk.index} of layer {chunk.layer} needs {chunk.read_bytes} bytes, "
                    f"the ring has {self._ring.nbytes}"
                )
        rotation = self._rotation_of(chunks)
        for path in {chunk.file for chunk in chunks} - self._files.keys():
            self._files[path] = DirectFile(path, self.settings.direct)
        with self._lock:
            self._mend()
            self._torn = True
            while self._ahead:
                self._drop(self._ahead.popleft())
            self._rotation = rotation
            self._room.notify_all()
            self._torn = False

    def leave_out(self, chunk: Chunk) -> None:
        """Stream this chunk no more; it may be held now. What was read ahead of the others stays."""
        with self._lock:
            self._mend()
            if chunk not in self._rotation:
                return
            left = self._rotation.without(chunk)
            self._torn = True
            for slot in [slot for slot in self._ahead if slot.chunk.index == chunk.index]:
                self._ahead.remove(slot)
                self._drop(slot)
            self._rotation = left
            self._room.notify_all()
            self._torn = False

    def _rotation_of(self, chunks: Sequence[Chunk]) -> Rotation:
        return Rotation(chunks, min(self.settings.request_bytes, self._ring.nbytes // PARTS))

    # The consumer's side.

    def acquire(self, chunk: Chunk, on_wait: Callable[[], bool] | None = None) -> memoryview:
        """The chunk's bytes [chunk.nbytes], in the ring, valid until `release(chunk)`.

        While the chunk is not ready, calls `on_wait` for as long as that returns True, then blocks.

        Raises CorruptFileError (truncated file, wrong digest) or StorageError from the reader, Cancelled
        when the streamer is closed, and whatever `on_wait` raises; the chunk is not held then.
        """
        blocked = self.wait_seconds
        try:
            return self._acquire(chunk, on_wait)
        finally:
            blocked = self.wait_seconds - blocked  # at the end of it: other work comes first
            if blocked and (listener := self.listener):
                now = perf_counter()
                listener(ChunkEvent("wait", chunk, now - blocked, now))

    def _acquire(self, chunk: Chunk, on_wait: Callable[[], bool] | None) -> memoryview:
        while True:
            with self._lock:
                self._mend()
                if self._closed:
                    raise Cancelled("the weight stream is closed")
                self._seek(chunk)
                slot = self._ahead[0] if self._ahead else None
                if slot is not None and slot.ready:
                    if slot.fetch.error is not None and len(slot.fetch.chunks) > 1:
                        self._part(slot.fetch)
                        continue
                    return self._take(slot)
                if slot is None and self._flying == 0 and not self._ring.fits(chunk.read_bytes):
                    raise ValueError(
                        f"chunk {chunk.index} cannot be read: {len(self._held)} chunks are held and leave no "
                        f"room for {chunk.read_bytes} bytes in a ring of {self._ring.nbytes}"
                    )
                if on_wait is None:
                    began = perf_counter()
                    self._ready.wait(_TICK)
                    self.wait_seconds += perf_counter() - began
            if on_wait is not None and not on_wait():
                on_wait = None

    def release(self, chunk: Chunk) -> None:
        """Give the chunk's room back to the ring; its memoryview must not be used any more.

        Does nothing when the chunk is not held: who was interrupted in `acquire` cannot know.
        """
        with self._lock:
            self._mend()
            for slot in self._held:
                if slot.chunk.index == chunk.index:
                    self._torn = True
                    self._held.remove(slot)
                    self._drop(slot)
                    self._torn = False
                    return

    def _seek(self, chunk: Chunk) -> None:
        """Make `chunk` the next in line: what was read for others is dropped, unless it comes after."""
        if chunk not in self._rotation:
            raise ValueError(f"chunk {chunk.index} is not in this stream")
        following = self._ahead[0].chunk if self._ahead else self._rotation.next
        if following.index == chunk.index:
            return
        self.seeks += 1
        self._torn = True
        while self._ahead and self._ahead[0].chunk.index != chunk.index:
            self._drop(self._ahead.popleft())
        if not self._ahead:
            self._rotation.go_to(chunk)
        self._room.notify_all()
        self._torn = False

    def _take(self, slot: Slot) -> memoryview:
        self._torn = True
        self._ahead.popleft()
        if slot.error is None:
            self._held.append(slot)
        else:
            self._drop(slot)  # asking again reads again
        if len(self._ahead) + self._rotation.run == len(self._rotation):
            self._room.notify_all()  # a whole pass was in the ring: readers may go on
        self._torn = False
        if slot.error is not None:
            raise slot.error
        return slot.weights

    def _part(self, fetch: Fetch) -> None:
        """A read of several chunks failed: one by one it shows which of them are whole."""
        self._torn = True
        self._rotation.part(fetch.chunks)
        self._rotation.go_to(self._ahead[0].chunk)
        while self._ahead:
            self._drop(self._ahead.popleft())
        self._room.notify_all()
        self._torn = False

    def _mend(self) -> None:
        """After an interrupt between two steps nobody knows what is in use: empty the ring and read again."""
        if self._torn:
            self._ahead.clear()
            self._held.clear()
            while self._flying:
                self._ready.wait(_TICK)
            self._ring.clear()
            self._room.notify_all()
            self._torn = False

    def _drop(self, slot: Slot) -> None:
        """Forget a slot; reads under way into it end first, harmlessly, as its room is still its own. That
        comes back with the last slot of one fetch."""
        slot.fetch.users -= 1
        self._reuse(slot.fetch)

    def _reuse(self, fetch: Fetch) -> None:
        if fetch.over:
            self._ring.release(fetch.offset)
            self._room.notify_all()

    # The readers' side.

    def _work(self) -> None:
        while (request := self._next_request()) is not None:
            fetch, start, stop = request
            moved, error = self._read(fetch, start, stop)
            with self._lock:
                self.bytes_read += moved
                fetch.left -= stop - start
                fetch.error = fetch.error or error
                whole = not fetch.left and not fetch.error and fetch.users > 0
                fresh = [slot for slot in fetch.slots if slot.chunk.index not in self._verified]
            if whole:
                for slot in fresh:
                    slot.wrong = mismatch(slot.chunk, slot.weights)
            with self._lock:
                self._flying -= 1
                fetch.flying -= 1
                if whole:
                    self._verified.update(slot.chunk.index for slot in fresh if slot.wrong is None)
                self._reuse(fetch)
                if fetch.ready or not self._flying:
                    self._ready.notify_all()
            brought = [slot.chunk for slot in fetch.slots if whole and slot.wrong is None]
            if brought and (listener := self.listener):
                listener(ChunkEvent("read", brought[0], fetch.began, perf_counter(), (*brought[1:],)))

    def _next_request(self) -> tuple[Fetch, int, int] | None:
        """(fetch, start, stop) of the next bytes to read; blocks while there are none; None = closed."""
        with self._lock:
            while not self._closed:
                fetch = self._ahead[-1].fetch if self._ahead else None
                if fetch is None or fetch.cut == len(fetch.span):
                    fetch = self._open()
                if fetch is not None:
                    self._flying += 1
                    return fetch, *fetch.request(self.settings.request_bytes)
                self._room.wait()
        return None

    def _open(self) -> Fetch | None:
        """Ring space for the next chunks in order, unless the ring, or a whole pass ahead, is full."""
        if self._torn or len(self._ahead) + self._rotation.run > len(self._rotation):
            return None
        fetch = self._place(self._rotation.run)
        if fetch is None and not self._ahead:  # beside what is held there may be room for one
            fetch = self._place(1)
        if fetch is not None:
            self._rotation.advance(len(fetch.chunks))
            self._ahead.extend(fetch.slots)
        return fetch

    def _place(self, count: int) -> Fetch | None:
        chunks = self._rotation.some(count)
        start, nbytes = span_of(chunks)
        offset = self._ring.allocate(nbytes)
        return None if offset is None else Fetch(chunks, start, offset, self._ring.view(offset, nbytes))

    def _read(self, fetch: Fetch, start: int, stop: int) -> tuple[int, Exception | None]:
        first = fetch.chunks[0]
        try:
            file, needed = self._files[fetch.file], fetch.needed(start, stop)
            return file.read_into(fetch.start + start, fetch.span[start:stop], needed), None
        except CorruptFileError as error:
            return 0, CorruptFileError(f"chunk {first.index} of layer {first.layer}: {error}")
        except Exception as error:  # whatever it is, the consumer must hear of it
            return 0, error

    def close(self) -> None:
        """Stop reading, join the readers, close the files. Blocked consumers get Cancelled. Idempotent."""
        with self._lock:
            self._closed = True
            self._room.notify_all()
            self._ready.notify_all()
        for thread in self._threads:
            thread.join()
        for file in self._files.values():
            file.close()

    def __enter__(self) -> Streamer:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()
