"""Memory that weights are read into: one circular buffer that chunks share."""

from __future__ import annotations

from collections import deque
from collections.abc import Iterable
from dataclasses import dataclass

import numpy as np

from edgespec.devices.disk import aligned_buffer
from edgespec.offload.chunks import CHUNK_BYTES, PAGE, Chunk

PARTS = 4  # of a ring: chunks that are read or used together fill one. One is held, two are being read


def fits_at_once(chunks: Iterable[Chunk], ring_bytes: int) -> bool:
    """Whether whoever uses these chunks may hold all of them at once: no more than one chunk may have, and
    than leaves the readers their room."""
    return sum(chunk.read_bytes for chunk in chunks) <= min(CHUNK_BYTES, ring_bytes // PARTS)


class Ring:
    """One circular byte buffer; spans are allocated at its head and normally come free at its tail.

    Spans are contiguous and page-aligned, so one that does not fit before the buffer's end starts again at
    0, where there is room. Not thread-safe. The memory is touched here, so that it is really there (or the
    system says no) before anything depends on it.
    """

    def __init__(self, nbytes: int) -> None:
        if nbytes <= 0:
            raise ValueError(f"a ring of {nbytes} bytes")
        self.nbytes = _whole_pages(nbytes)
        self.buffer = aligned_buffer(self.nbytes)
        np.frombuffer(self.buffer, dtype=np.uint8)[::PAGE] = 0
        self._spans: deque[_Span] = deque()  # oldest first
        self._at: dict[int, _Span] = {}  # unreleased, by offset

    def allocate(self, nbytes: int) -> int | None:
        """The offset of a new span that holds `nbytes`, or None while there is no room for it."""
        offset = self._place(nbytes)
        if offset is not None:
            span = _Span(offset, offset + _whole_pages(nbytes))
            self._spans.append(span)
            self._at[offset] = span
        return offset

    def fits(self, nbytes: int) -> bool:
        """Whether `allocate(nbytes)` would find room now."""
        return self._place(nbytes) is not None

    def release(self, offset: int) -> None:
        """Give back the span at `offset`: room again, unless spans on both sides are still out."""
        self._at.pop(offset).released = True
        while self._spans and self._spans[0].released:
            self._spans.popleft()
        while self._spans and self._spans[-1].released:  # read ahead and dropped again
            self._spans.pop()

    def clear(self) -> None:
        """Give back every span, whatever its state."""
        self._spans.clear()
        self._at.clear()

    def view(self, offset: int, nbytes: int) -> memoryview:
        return self.buffer[offset : offset + nbytes]

    def _place(self, nbytes: int) -> int | None:
        if not 0 < nbytes <= self.nbytes:
            raise ValueError(f"a span of {nbytes} bytes in a ring of {self.nbytes}")
        need = _whole_pages(nbytes)
        if not self._spans:
            return 0
        tail, head = self._spans[0].start, self._spans[-1].stop
        if head <= tail:  # wrapped: the free room is what lies between
            return head if head + need <= tail else None
        if head + need <= self.nbytes:
            return head
        return 0 if need <= tail else None


@dataclass(slots=True, eq=False)
class _Span:
    start: int
    stop: int
    released: bool = False


def _whole_pages(nbytes: int) -> int:
    return -(-nbytes // PAGE) * PAGE
