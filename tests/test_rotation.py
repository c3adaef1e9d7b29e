"""Which chunks one read brings, and in what order they come round; and the stream that reads them so."""

from __future__ import annotations

import os
import random
from itertools import pairwise
from pathlib import Path

import numpy as np
import pytest

from edgespec.errors import CorruptFileError
from edgespec.offload.chunks import PAGE, Chunk, ChunkEvent, aligned_span
from edgespec.offload.reader import DirectFile, ReadSettings
from edgespec.offload.rotation import Rotation
from edgespec.offload.streamer import Streamer
from tests.test_streamer import Store

W = Path("w")


def at(*spans: tuple[int, int], file: Path = W) -> list[Chunk]:
    """Chunks of these (offset, bytes), in order of use."""
    return [Chunk(i, 0, file, offset, nbytes, ()) for i, (offset, nbytes) in enumerate(spans)]


def runs(chunks: list[Chunk], most: int) -> list[int]:
    """Chunks of each read of one round."""
    rotation, found = Rotation(chunks, most), []
    while sum(found) < len(chunks):
        found.append(rotation.run)
        rotation.advance(found[-1])
    assert rotation.next is chunks[0]
    return found


def test_neighbours_are_read_together_in_whatever_order_they_are_used() -> None:
    layer = at((900, 100), (300, 100), (1000, 50), (400, 500), (0, 300))
    assert runs(layer, 2**20) == [5]
    # q and k lie apart, with o between them: before o comes, reading them together would read more.
    assert runs(at((50_000, 9000), (0, 9000), (9000, 41_000)), 2**20) == [3]
    assert runs(at((50_000, 9000), (0, 9000)), 2**20) == [1, 1]


def test_a_read_has_a_limit_and_one_file() -> None:
    row = at(*((i * 10 * PAGE, 10 * PAGE) for i in range(7)))
    assert runs(row, 30 * PAGE) == [3, 3, 1]
    assert runs(row, 29 * PAGE) == [2, 2, 2, 1]
    assert runs(row, PAGE) == [1] * 7  # a larger chunk is read all the same
    other = at((30 * PAGE, 10 * PAGE), file=Path("v"))[0]
    mixed = [*row[:3], Chunk(9, 0, other.file, other.offset, other.nbytes, ()), *row[4:]]
    assert runs(mixed, 2**20) == [3, 1, 3]


def test_what_lies_between_is_read_along_where_that_costs_no_page() -> None:
    """A norm of 512 bytes between two layers' matrices is; an expert's matrix, or a pinned one, is not."""
    assert runs(at((0, 10_000), (10_512, 10_000)), 2**20) == [2]
    assert runs(at((0, 10_000), (10_000 + 2 * PAGE, 10_000)), 2**20) == [1, 1]


@pytest.mark.parametrize("seed", range(20))
def test_no_read_moves_more_than_one_by_one(seed: int) -> None:
    rng = random.Random(seed)
    cuts = np.cumsum([rng.choice([1, 700, PAGE, 3 * PAGE + 5]) for _ in range(40)]).tolist()
    spans = [(low, high - low) for low, high in pairwise(cuts) if rng.random() < 0.8]
    rng.shuffle(spans[5:25])
    chunks, most, first = at(*spans), 16 * PAGE, 0
    for count in runs(chunks, most):
        some = chunks[first : first + count]
        low = min(c.offset for c in some)
        nbytes = aligned_span(low, max(c.offset + c.nbytes for c in some) - low)[1]
        assert count == 1 or nbytes <= min(most, sum(c.read_bytes for c in some))
        first += count


def test_what_is_left_out_leaves_the_order_as_it_was() -> None:
    chunks = at(*((i * PAGE, PAGE) for i in range(4)))
    rotation = Rotation(chunks, PAGE)
    rotation.advance(2)
    assert rotation.without(chunks[0]).next is chunks[2]
    assert rotation.without(chunks[2]).next is chunks[3]
    assert chunks[2] not in rotation.without(chunks[2])
    last = rotation.without(chunks[3])
    last.advance(1)
    assert last.next is chunks[0]
    alone = Rotation(chunks[:1], PAGE).without(chunks[0])
    assert (len(alone), alone.run) == (0, 1)


@pytest.fixture
def layers(tmp_path: Path) -> Store:
    """Four layers of four matrices, used in another order than they lie in."""
    sizes = [20_000, 3000, 3000, 40_000]
    store = Store(tmp_path / "w", [0, *np.cumsum(sizes * 4).tolist()])
    order = [4 * layer + i for layer in range(4) for i in (3, 1, 2, 0)]
    store.chunks = [
        Chunk(index, index // 4, c.file, c.offset, c.nbytes, (), c.digest)
        for index, c in enumerate(store.chunks[i] for i in order)
    ]
    return store


def test_a_stream_reads_a_layer_at_once(layers: Store, monkeypatch: pytest.MonkeyPatch) -> None:
    reads, real = [], DirectFile.read_into

    def read_into(file: DirectFile, offset: int, view: memoryview, needed: int | None = None) -> int:
        reads.append(len(view))
        return real(file, offset, view, needed)

    monkeypatch.setattr(DirectFile, "read_into", read_into)
    heard: list[ChunkEvent] = []
    with Streamer(layers.chunks, 4 * 70_000, ReadSettings(2, 2**20)) as streamer:
        streamer.listener = heard.append
        for _ in range(6):
            for chunk in layers.chunks:
                layers.check(streamer, chunk)
        assert streamer.seeks == 0
        for chunk in layers.chunks[5:8]:  # from the middle of a read on
            layers.check(streamer, chunk)
        assert streamer.seeks == 1
        layers.check(streamer, layers.chunks[2])
    assert len(reads) <= 4 * 8 + 4
    assert max(reads) <= 70_000
    told = [[event.chunk, *event.others] for event in heard if event.kind == "read"]
    assert layers.chunks[4:8] in told


@pytest.mark.parametrize("seed", range(8))
def test_any_order_of_use_gives_the_right_bytes(layers: Store, seed: int) -> None:
    rng = random.Random(seed)
    with Streamer(layers.chunks, rng.choice([3, 6, 20]) * 70_000, ReadSettings(2, 2**20)) as streamer:
        place = 0
        for _ in range(300):
            place = (place + 1) % 16 if rng.random() < 0.9 else rng.randrange(16)
            layers.check(streamer, layers.chunks[place])


def test_room_comes_back_when_all_of_a_read_is_given_back(layers: Store) -> None:
    """Of a ring that is full, and held chunks of which keep whole reads."""
    with Streamer(layers.chunks, 4 * 70_000, ReadSettings(2, 2**20)) as streamer:
        for _ in range(5):
            for first in range(0, 16, 4):
                views = [streamer.acquire(chunk) for chunk in layers.chunks[first : first + 4]]
                for chunk, view in zip(layers.chunks[first:], views, strict=False):
                    assert bytes(view) == layers.bytes_of(chunk)
                    streamer.release(chunk)


def test_one_of_a_read_streams_no_more(layers: Store) -> None:
    with Streamer(layers.chunks, 4 * 70_000, ReadSettings(2, 2**20)) as streamer:
        left = list(layers.chunks)
        for gone in (5, 6, 4, 15):
            layers.check(streamer, left[0])
            streamer.leave_out(layers.chunks[gone])
            left.remove(layers.chunks[gone])
            for chunk in left[1:]:
                layers.check(streamer, chunk)
        assert streamer.seeks == 0


def test_a_read_that_fails_shows_which_chunks_are_whole(layers: Store) -> None:
    damaged = bytearray(layers.data)
    damaged[layers.chunks[6].offset] ^= 1
    layers.path.write_bytes(damaged)
    os.truncate(layers.path, layers.chunks[14].offset + 100)  # within the last layer's third
    good = [c for c in layers.chunks if c.index != 6 and c.offset + c.nbytes <= layers.chunks[14].offset]
    with Streamer(layers.chunks, 4 * 70_000, ReadSettings(2, 2**20)) as streamer:
        for _ in range(2):
            for chunk in layers.chunks:
                if chunk in good:
                    layers.check(streamer, chunk)
                elif chunk.index == 6:
                    with pytest.raises(CorruptFileError, match=r"chunk 6 of layer 1 in .*checksum"):
                        streamer.acquire(chunk)
                else:
                    with pytest.raises(CorruptFileError, match=rf"chunk {chunk.index} of layer 3: .*trunc"):
                        streamer.acquire(chunk)
        layers.path.write_bytes(layers.data)
        streamer.set_chunks(layers.chunks)  # forgets what was read ahead
        for chunk in layers.chunks:
            layers.check(streamer, chunk)
