"""Chunks on their way from a file into the ring."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path
from time import perf_counter

from edgespec.offload.chunks import Chunk, aligned_span


def span_of(chunks: Sequence[Chunk]) -> tuple[int, int]:
    """The page-aligned (offset, length) in their file that covers all of them."""
    low = min(chunk.offset for chunk in chunks)
    return aligned_span(low, max(chunk.offset + chunk.nbytes for chunk in chunks) - low)


@dataclass(slots=True, eq=False)
class Fetch:
    """One read of chunks that lie side by side, into one span of the ring."""

    chunks: tuple[Chunk, ...]
    start: int  # file offset of the span's first byte
    offset: int  # of the span in the ring
    span: memoryview
    slots: list[Slot] = field(init=False)  # of the chunks
    users: int = field(init=False)  # slots that nobody has given back
    left: int = field(init=False)  # bytes not read yet
    began: float = field(default_factory=perf_counter)
    cut: int = 0  # bytes handed out as requests
    flying: int = 0  # requests being read now
    error: Exception | None = None

    def __post_init__(self) -> None:
        self.slots = [Slot(chunk, self) for chunk in self.chunks]
        self.users, self.left = len(self.slots), len(self.span)

    @property
    def file(self) -> Path:
        return self.chunks[0].file

    @property
    def ready(self) -> bool:
        """Nothing more will happen to it: all bytes are there, or reading failed."""
        return not self.flying and (not self.left or self.error is not None)

    @property
    def over(self) -> bool:
        """Nobody uses its span, and nothing is being read into it."""
        return not self.users and not self.flying

    def request(self, most: int) -> tuple[int, int]:
        """(start, stop) of the span's next bytes to read, at most so many; it flies now."""
        start, self.cut = self.cut, min(self.cut + most, len(self.span))
        self.flying += 1
        return start, self.cut

    def needed(self, start: int, stop: int) -> int:
        """Bytes of a request that the file must have: the span's last page may pass the file's end."""
        end = max(chunk.offset + chunk.nbytes for chunk in self.chunks) - self.start
        return min(stop, end) - start


@dataclass(slots=True, eq=False)
class Slot:
    """One chunk of a fetch."""

    chunk: Chunk
    fetch: Fetch
    wrong: Exception | None = None  # its digest

    @property
    def ready(self) -> bool:
        return self.fetch.ready

    @property
    def error(self) -> Exception | None:
        return self.fetch.error or self.wrong

    @property
    def weights(self) -> memoryview:
        """[chunk.nbytes]: without what a direct read has to move around it."""
        slack = self.chunk.offset - self.fetch.start
        return self.fetch.span[slack : slack + self.chunk.nbytes]
