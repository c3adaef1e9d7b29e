"""Which chunks to pin, and how large a ring.

All matrices are used once a pass, so every pinned byte saves one byte of reading. The LM head goes first,
because a prompt's blocks skip it and the stream then runs through the layers alone. The chunks of the layers
are pinned evenly through the depth, not from the front: the reader then always has room to read ahead.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping

from edgespec.devices.disk import ReadSettings
from edgespec.offload.chunks import Chunk, ChunkTable
from edgespec.offload.plan.needs import MustPin
from edgespec.offload.ring import PARTS

RING_CHUNKS = 8  # of the largest size: the reader works ahead while a pass computes
MIN_RING_CHUNKS = 3  # one in use, two being read
# Bytes of reads that reach a disk's rate (`devices.disk.ReadSettings`), which some small chunks are together
# (`offload.rotation`), and how many of them are a ring. Cold data, laid out as a layer of 1.1 MB is: 27 ms
# for five in reads of a chunk each, 10 in reads of a layer, 6 in reads of three.
READ, READS = ReadSettings().request_bytes, PARTS


def pages(chunks: Iterable[Chunk]) -> int:
    """Bytes of memory that these chunks take when pinned."""
    return sum(c.read_bytes for c in chunks)


def must_stay(table: ChunkTable, must: MustPin | None, depth: int) -> list[Chunk]:
    """The chunks of the first `depth` layers and of the head (and the last before it), if somebody needs them
    in memory."""
    return [c for c in table.chunks if must and (c.layer < depth or c.layer >= table.layers - must.last)]


def choose_ring(largest: int, left: Callable[[int], int], streamed: int = 0) -> int:
    """Bytes of the largest ring, a whole number of `largest` chunks, with which `left` is not negative.

    streamed: bytes of a pass, where nobody else would have the memory: however small chunks are, the ring
    then has room for reads of many.
    """
    sizes = range(RING_CHUNKS, MIN_RING_CHUNKS, -1)
    ring = next((n * largest for n in sizes if left(n * largest) >= 0), MIN_RING_CHUNKS * largest)
    ample = min(READS * READ, streamed + 2 * READ) if streamed else 0  # a pass ahead, and what is held
    return ample if ample > ring and left(ample) >= 0 else ring


def choose_pinned(table: ChunkTable, budget: int, saved: Mapping[int, int] | None = None) -> list[Chunk]:
    """Chunks to pin within `budget` bytes: the head if it fits, then chunks evenly through the layers.

    `saved`: by chunk index, the bytes of a stand-in that a pinned chunk makes superfluous.
    """
    saved = saved or {}
    cost = {c.index: c.read_bytes - saved.get(c.index, 0) for c in table.chunks}
    head = [c for c in table.chunks if c.layer == table.layers]
    chosen: list[Chunk] = []
    if sum(cost[c.index] for c in head) <= budget:
        chosen += head
        budget -= sum(cost[c.index] for c in head)
    held = {c.index for c in chosen}
    candidates = [c for c in table.chunks if c.index not in held]
    total = sum(cost[c.index] for c in candidates)
    if not total:
        return chosen
    share, credit = budget / total, 0.0
    left = []
    for chunk in candidates:  # error diffusion: each chunk adds its share, and is pinned when that covers it
        credit += share * cost[chunk.index]
        if credit >= cost[chunk.index] / 2 and cost[chunk.index] <= budget:
            chosen.append(chunk)
            credit -= cost[chunk.index]
            budget -= cost[chunk.index]
        else:
            left.append(chunk)
    for chunk in left:  # what remains of the budget takes whatever still fits
        if cost[chunk.index] <= budget:
            chosen.append(chunk)
            budget -= cost[chunk.index]
    return chosen
