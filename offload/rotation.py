"""The order in which chunks stream, round and round, and how many of them one read brings.

A small model's matrices are some hundred KB each. Reads of that size do not reach a disk's rate: what every
read takes beside its bytes is milliseconds on some. Side by side in their file, in whatever order, they are
read together.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from itertools import islice

from edgespec.offload.chunks import Chunk, aligned_span


class Rotation:
    """Chunks of one table, each index once, and which of them is read next.

    most: bytes that one read may bring of several chunks. Raises ValueError for an index that appears twice.
    """

    def __init__(self, chunks: Sequence[Chunk], most: int) -> None:
        self.chunks, self._most = tuple(chunks), most
        self._places = {chunk.index: place for place, chunk in enumerate(self.chunks)}
        if len(self._places) != len(self.chunks):
            raise ValueError("a chunk index appears twice in one stream")
        self._runs = dict[int, int]()  # by place, as far as they were asked for
        self._alone = set[int]()  # indices of chunks that are read one by one
        self._next = 0  # place

    def __len__(self) -> int:
        return len(self.chunks)

    def __contains__(self, chunk: Chunk) -> bool:
        return chunk.index in self._places

    @property
    def next(self) -> Chunk:
        return self.chunks[self._next]

    @property
    def run(self) -> int:
        """Chunks that the next read brings; 1 where there are none."""
        if not self.chunks:
            return 1
        if self.next.index in self._alone:
            return 1
        if self._next not in self._runs:
            self._runs[self._next] = run_of(self.chunks, self._next, self._most)
        return self._runs[self._next]

    def some(self, count: int) -> tuple[Chunk, ...]:
        """So many, at most a run, from the next on."""
        return self.chunks[self._next : self._next + count]

    def advance(self, count: int) -> None:
        self._next = (self._next + count) % len(self.chunks)

    def go_to(self, chunk: Chunk) -> None:
        self._next = self._places[chunk.index]

    def part(self, chunks: Iterable[Chunk]) -> None:
        """From now on these are read one by one."""
        self._alone.update(chunk.index for chunk in chunks)

    def without(self, chunk: Chunk) -> Rotation:
        """All others, with the same one, or the one behind it, to be read next."""
        place = self._places[chunk.index]
        left = Rotation(self.chunks[:place] + self.chunks[place + 1 :], self._most)
        left._alone = self._alone
        left._next = (self._next - (place < self._next)) % max(1, len(left))
        return left


def run_of(chunks: Sequence[Chunk], place: int, most: int) -> int:
    """Chunks, from the one at `place` on, that one read brings: as many as lie side by side in one file, so
    that it moves at most `most` bytes, and no more than reads of each would."""
    low, high, apart, found = chunks[place].offset, 0, 0, 1
    for count, chunk in enumerate(islice(chunks, place, None), 1):
        low, high = min(low, chunk.offset), max(high, chunk.offset + chunk.nbytes)
        apart += chunk.read_bytes
        together = aligned_span(low, high - low)[1]
        if chunk.file != chunks[place].file or together > most:
            break
        if together <= apart:
            found = count
    return found
