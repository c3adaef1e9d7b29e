"""The weight stream: the right bytes in every order of use, and valid after everything that goes wrong."""

from __future__ import annotations

import os
import random
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterator
from itertools import pairwise
from pathlib import Path

import numpy as np
import pytest
import xxhash

from edgespec.errors import Cancelled, CorruptFileError, StorageError
from edgespec.offload.chunks import PAGE, Chunk, aligned_span
from edgespec.offload.reader import DirectFile, ReadSettings
from edgespec.offload.streamer import Streamer

SMALL = ReadSettings(threads=2, request_bytes=PAGE)


class Store:
    """A file of random bytes, cut into chunks at the given boundaries."""

    def __init__(self, path: Path, cuts: list[int], digests: bool = True) -> None:
        self.path = path
        self.data = np.random.default_rng(len(cuts)).integers(0, 256, cuts[-1], dtype=np.uint8).tobytes()
        path.write_bytes(self.data)
        self.chunks = [
            Chunk(i, i // 3, path, start, stop - start, (), self.digest(start, stop) if digests else None)
            for i, (start, stop) in enumerate(pairwise(cuts))
        ]

    def digest(self, start: int, stop: int) -> int:
        return xxhash.xxh3_64_intdigest(self.data[start:stop])

    def bytes_of(self, chunk: Chunk) -> bytes:
        return self.data[chunk.offset : chunk.offset + chunk.nbytes]

    def check(self, streamer: Streamer, chunk: Chunk, on_wait: Callable[[], bool] | None = None) -> None:
        """Acquire, compare every byte, release."""
        view = streamer.acquire(chunk, on_wait)
        same = bytes(view) == self.bytes_of(chunk)
        streamer.release(chunk)
        assert same, f"chunk {chunk.index} has other bytes"

    @property
    def ring(self) -> int:
        """Ring bytes for the largest chunk."""
        return max(c.read_bytes for c in self.chunks)


@pytest.fixture
def store(tmp_path: Path) -> Store:
    return Store(tmp_path / "w", [5, 9000, 9100, 30_000, 45_056, 45_057, 70_000, 82_345])


class Gate:
    """Holds up reads until it is opened."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch) -> None:
        self._open = threading.Event()
        self.waiting = threading.Semaphore(0)  # one permit for each read that has arrived
        real = DirectFile.read_into

        def read_into(file: DirectFile, offset: int, view: memoryview, needed: int | None = None) -> int:
            self.waiting.release()
            assert self._open.wait(20)
            return real(file, offset, view, needed)

        monkeypatch.setattr(DirectFile, "read_into", read_into)

    def open(self) -> None:
        self._open.set()

    def close(self) -> None:
        self._open.clear()


@pytest.fixture
def gate(monkeypatch: pytest.MonkeyPatch) -> Iterator[Gate]:
    gate = Gate(monkeypatch)
    yield gate
    gate.open()


@pytest.mark.parametrize("seed", range(12))
def test_cycles_over_random_tables(tmp_path: Path, seed: int) -> None:
    rng = random.Random(seed)
    sizes = [
        rng.choice([1, 100, PAGE, PAGE + 1, rng.randint(1, 20 * PAGE)]) for _ in range(rng.randint(1, 12))
    ]
    cuts = [rng.randint(0, 3 * PAGE)]
    for size in sizes:
        cuts.append(cuts[-1] + size)
    store = Store(tmp_path / "w", cuts)
    settings = ReadSettings(rng.randint(1, 4), rng.choice([1, 3, 64]) * PAGE, rng.random() < 0.8)
    whole = sum(c.read_bytes for c in store.chunks)
    ring = rng.choice([store.ring, 2 * store.ring, whole, 5 * whole])
    with Streamer(store.chunks, ring, settings) as streamer:
        for _ in range(5):
            for chunk in store.chunks:
                store.check(streamer, chunk)
        assert streamer.seeks == 0
        # Every pass is read again, nothing beyond one pass ahead, and no page more often than one by one.
        end = len(store.data)
        spans = [aligned_span(c.offset, c.nbytes) for c in store.chunks]
        moved = sum(min(start + length, end) - start for start, length in spans)
        assert 5 * (end - cuts[0]) <= streamer.bytes_read <= 6 * moved


@pytest.mark.parametrize("seed", range(12))
def test_any_order_of_use_gives_the_right_bytes(tmp_path: Path, seed: int) -> None:
    """Seeks back and forth, held chunks, several at a time, released in any order."""
    rng = random.Random(seed)
    cuts = [7]
    for _ in range(8):
        cuts.append(cuts[-1] + rng.randint(1, 6 * PAGE))
    store = Store(tmp_path / "w", cuts)
    # Room comes back at the ring's ends only. Between two held chunks there may lie a whole pass that was
    # read ahead and skipped by a seek (8 chunks): three held ones and two gaps take 19, wrapping some more.
    with Streamer(store.chunks, 24 * store.ring, ReadSettings(3, PAGE)) as streamer:
        held: dict[int, memoryview] = {}
        at = 0
        for _ in range(300):
            at = (at + 1) % 8 if rng.random() < 0.8 else rng.randrange(8)
            if at not in held:
                held[at] = streamer.acquire(store.chunks[at])
            if len(held) == 3 or rng.random() < 0.5:
                assert all(bytes(view) == store.bytes_of(store.chunks[i]) for i, view in held.items())
                for index in rng.sample(list(held), len(held)):
                    streamer.release(store.chunks[index])
                held.clear()


def test_seeks_are_counted_and_keep_what_comes_later(store: Store) -> None:
    c = store.chunks
    with Streamer(c, 2 * len(store.data), SMALL) as streamer:
        for chunk in c[:4]:
            store.check(streamer, chunk)
        assert streamer.seeks == 0
        store.check(streamer, c[0])  # a cancelled pass starts again
        assert streamer.seeks == 1
        for chunk in c[1:5]:
            store.check(streamer, chunk)
        store.check(streamer, c[0])  # the head is skipped
        assert streamer.seeks == 2
        for _ in range(3):  # a pass over the middle only
            for chunk in c[2:5]:
                store.check(streamer, chunk)
        assert streamer.seeks == 5
        with pytest.raises(ValueError, match="not in this stream"):
            streamer.acquire(Chunk(99, 0, store.path, 0, 10, ()))
        store.check(streamer, c[5])
        assert streamer.seeks == 5


def test_a_seek_lets_reads_under_way_end_in_their_own_room(store: Store, gate: Gate) -> None:
    c = store.chunks
    with Streamer(c, store.ring, SMALL) as streamer:
        gate.waiting.acquire(timeout=20)  # chunk 0 is being read and fills most of the ring
        waits = iter([True])

        def on_wait() -> bool:
            gate.open()  # only now, after the seek, may the old reads end
            return next(waits, False)

        store.check(streamer, c[3], on_wait)
        assert streamer.seeks == 1
        for chunk in c[4:]:
            store.check(streamer, chunk)


def test_on_wait_works_until_the_chunk_is_ready(store: Store, gate: Gate) -> None:
    calls = []

    def on_wait() -> bool:
        calls.append(1)
        if len(calls) == 5:
            gate.open()
        return True

    with Streamer(store.chunks, len(store.data), SMALL) as streamer:
        store.check(streamer, store.chunks[0], on_wait)
        assert len(calls) >= 5
        assert streamer.wait_seconds == 0  # it was never idle
        drain(streamer, store.chunks[1])
        calls.clear()
        store.check(streamer, store.chunks[1], on_wait)  # ready: no need to wait
        assert not calls


def drain(streamer: Streamer, chunk: Chunk) -> None:
    """Wait until `chunk`, next in line, is ready, without acquiring it."""
    eventually(
        lambda: bool(streamer._ahead) and streamer._ahead[0].chunk is chunk and streamer._ahead[0].ready
    )


def eventually(condition: Callable[[], bool]) -> None:
    for _ in range(20_000):
        if condition():
            return
        time.sleep(0.001)
    raise AssertionError("did not happen within 20 s")


def test_on_wait_that_has_nothing_to_do_is_asked_once(store: Store, gate: Gate) -> None:
    calls = []

    def on_wait() -> bool:
        calls.append(1)
        threading.Timer(0.05, gate.open).start()
        return False

    with Streamer(store.chunks, len(store.data), SMALL) as streamer:
        store.check(streamer, store.chunks[0], on_wait)
        assert len(calls) == 1
        assert streamer.wait_seconds > 0


def test_an_exception_in_on_wait_leaves_a_valid_stream(store: Store, gate: Gate) -> None:
    def on_wait() -> bool:
        raise Cancelled("stop")

    with Streamer(store.chunks, 2 * store.ring, SMALL) as streamer:
        with pytest.raises(Cancelled, match="stop"):
            streamer.acquire(store.chunks[0], on_wait)
        streamer.release(store.chunks[0])  # which is not held
        gate.open()
        for chunk in store.chunks:
            store.check(streamer, chunk)
        gate.close()
        with pytest.raises(Cancelled, match="stop"):
            streamer.acquire(store.chunks[3], on_wait)  # raised in the middle of a seek
        gate.open()
        for chunk in store.chunks:
            store.check(streamer, chunk)


def test_a_truncated_file_names_file_chunk_and_layer(store: Store) -> None:
    c = store.chunks
    with Streamer(c, store.ring, SMALL) as streamer:
        store.check(streamer, c[0])
        os.truncate(store.path, c[5].offset + 10_000)
        for chunk in c[1:5]:
            store.check(streamer, chunk)
        for _ in range(2):  # asking again reads again
            with pytest.raises(CorruptFileError, match=rf"chunk 5 of layer 1: {store.path} .*truncated"):
                streamer.acquire(c[5])
        with pytest.raises(CorruptFileError, match="chunk 6 of layer 2"):
            streamer.acquire(c[6])
        store.path.write_bytes(store.data)
        for chunk in c[5:] + c:
            store.check(streamer, chunk)


def test_a_wrong_digest_names_file_chunk_and_layer(store: Store, monkeypatch: pytest.MonkeyPatch) -> None:
    real = xxhash.xxh3_64_intdigest

    def slow(data: memoryview) -> int:
        time.sleep(0.02)
        return int(real(data))

    monkeypatch.setattr("edgespec.offload.digest.xxhash.xxh3_64_intdigest", slow)
    damaged = bytearray(store.data)
    damaged[store.chunks[4].offset] ^= 1
    store.path.write_bytes(damaged)
    with Streamer(store.chunks, 2 * store.ring, SMALL) as streamer:
        for chunk in store.chunks[:4]:
            store.check(streamer, chunk)
        for _ in range(2):  # asked again and again, and looked at all the time, it is never handed out
            with pytest.raises(
                CorruptFileError, match=rf"chunk 4 of layer 1 in {store.path} .*checksum.*damaged"
            ):
                streamer.acquire(store.chunks[4], lambda: True)
        for chunk in store.chunks[5:]:
            store.check(streamer, chunk)


def test_only_the_first_good_read_is_verified(store: Store, monkeypatch: pytest.MonkeyPatch) -> None:
    seen: list[int] = []
    real = xxhash.xxh3_64_intdigest

    def digest(data: memoryview) -> int:
        seen.append(len(data))
        return int(real(data))

    monkeypatch.setattr("edgespec.offload.digest.xxhash.xxh3_64_intdigest", digest)
    with Streamer(store.chunks, store.ring, SMALL) as streamer:
        for _ in range(3):
            for chunk in store.chunks:
                store.check(streamer, chunk)
    assert sorted(seen) == sorted(c.nbytes for c in store.chunks)


def test_a_failing_disk_is_reported_and_survived(store: Store, monkeypatch: pytest.MonkeyPatch) -> None:
    broken = threading.Event()
    real = DirectFile.read_into

    def read_into(file: DirectFile, offset: int, view: memoryview, needed: int | None = None) -> int:
        if broken.is_set():
            raise StorageError("Input/output error")
        return real(file, offset, view, needed)

    monkeypatch.setattr(DirectFile, "read_into", read_into)
    with Streamer(store.chunks, store.ring, SMALL) as streamer:
        store.check(streamer, store.chunks[0])
        broken.set()
        with pytest.raises(StorageError, match="Input/output error"):
            consume(streamer, store, passes=2)
        broken.clear()
        streamer.set_chunks(store.chunks)  # forgets what failed ahead
        consume(streamer, store, passes=2)


def consume(streamer: Streamer, store: Store, passes: int) -> None:
    for _ in range(passes):
        for chunk in store.chunks:
            store.check(streamer, chunk)


def test_a_seek_while_a_chunk_is_held_reuses_the_room_behind_it(store: Store) -> None:
    c = store.chunks
    with Streamer(c, 3 * store.ring, SMALL) as streamer:
        for target in (c[5], c[2], c[6], c[0]):
            held = streamer.acquire(c[3])
            eventually(lambda: not streamer._flying)  # the ring is full of what comes after it
            store.check(streamer, target)
            assert bytes(held) == store.bytes_of(c[3])
            streamer.release(c[3])


def test_a_seek_to_a_chunk_that_fits_where_the_next_does_not(store: Store) -> None:
    c = store.chunks
    with Streamer(c, store.ring + PAGE, SMALL) as streamer:
        held = streamer.acquire(c[5])
        eventually(lambda: len(streamer._room._waiters) == 2)  # no room for chunk 6: the readers rest
        store.check(streamer, c[1])
        assert bytes(held) == store.bytes_of(c[5])
        streamer.release(c[5])


def test_a_ring_full_of_held_chunks_is_an_error_not_a_hang(store: Store) -> None:
    c = store.chunks
    with Streamer(c, store.ring, SMALL) as streamer:
        view = streamer.acquire(c[5])
        with pytest.raises(ValueError, match="1 chunks are held"):
            streamer.acquire(c[6])
        assert bytes(view) == store.bytes_of(c[5])
        streamer.release(c[5])
        store.check(streamer, c[6])


def test_impossible_streams_are_refused(store: Store, tmp_path: Path) -> None:
    with pytest.raises(ValueError, match="chunk 5 of layer 1 needs 28672 bytes"):
        Streamer(store.chunks, store.ring - PAGE)
    with pytest.raises(ValueError, match="twice"):
        Streamer([store.chunks[0]] * 2, store.ring)
    before = set(os.listdir("/proc/self/fd")) if sys.platform == "linux" else set()
    with pytest.raises(CorruptFileError, match="missing"):
        Streamer([store.chunks[0], Chunk(1, 0, tmp_path / "gone", 0, 10, ())], store.ring)
    if sys.platform == "linux":
        assert set(os.listdir("/proc/self/fd")) == before


def test_chunks_of_several_files(tmp_path: Path) -> None:
    stores = [Store(tmp_path / str(i), [11 * i, 5000 + i, 20_000 + i]) for i in range(4)]
    owners, chunks = [], []
    for store in stores:
        for c in store.chunks:
            owners.append(store)
            chunks.append(Chunk(len(chunks), c.layer, c.file, c.offset, c.nbytes, (), c.digest))
    with Streamer(chunks, 64 * 1024, SMALL) as streamer:
        for _ in range(3):
            for store, chunk in zip(owners, chunks, strict=True):
                store.check(streamer, chunk)


def test_replanning_between_passes(store: Store) -> None:
    c = store.chunks
    with Streamer(c, 3 * store.ring, SMALL) as streamer:
        for chunk in c[:4]:
            store.check(streamer, chunk)
        held = streamer.acquire(c[4])
        streamer.set_chunks(c[::2])
        assert bytes(held) == store.bytes_of(c[4])
        streamer.release(c[4])
        for _ in range(3):
            for chunk in c[::2]:
                store.check(streamer, chunk)
        assert streamer.seeks == 0
        with pytest.raises(ValueError, match="not in this stream"):
            streamer.acquire(c[1])
        streamer.set_chunks([])  # everything is pinned now
        with pytest.raises(ValueError, match="not in this stream"):
            streamer.acquire(c[0])
        streamer.set_chunks(c)
        for chunk in c:
            store.check(streamer, chunk)


def test_one_chunk_is_read_ahead_while_it_is_held(store: Store) -> None:
    chunk = store.chunks[2]
    with Streamer([chunk], 2 * chunk.read_bytes, SMALL) as streamer:
        for _ in range(4):
            streamer.acquire(chunk)
            drain(streamer, chunk)  # the next pass's copy, while this one is held
            streamer.release(chunk)


def test_closing_ends_a_blocked_acquire_and_all_threads(store: Store, gate: Gate) -> None:
    streamer = Streamer(store.chunks, store.ring, SMALL)
    raised: list[BaseException] = []

    def consume() -> None:
        try:
            streamer.acquire(store.chunks[0])
        except BaseException as error:
            raised.append(error)

    consumer = threading.Thread(target=consume)
    consumer.start()
    gate.waiting.acquire(timeout=20)
    closer = threading.Thread(target=streamer.close)
    closer.start()
    consumer.join(20)  # before the read that blocks a reader has ended
    assert len(raised) == 1
    assert isinstance(raised[0], Cancelled)
    gate.open()
    closer.join(20)
    assert not closer.is_alive()
    assert not any(thread.is_alive() for thread in streamer._threads)
    streamer.close()
    with pytest.raises(Cancelled, match="closed"):
        streamer.acquire(store.chunks[0])


def test_releasing_after_close_is_harmless(store: Store) -> None:
    with Streamer(store.chunks, store.ring, SMALL) as streamer:
        view = streamer.acquire(store.chunks[0])
    assert bytes(view) == store.bytes_of(store.chunks[0])  # the memory is still there
    streamer.release(store.chunks[0])


SCRIPT = """
import os, signal, sys, threading, time
from pathlib import Path
from edgespec.offload.chunks import Chunk
from edgespec.offload.reader import DirectFile
from edgespec.offload.streamer import Streamer

path = Path(sys.argv[1])
chunks = [Chunk(i, 0, path, i * 8192, 8192, ()) for i in range(8)]
"""
INTERRUPTED = """
go = threading.Event()
real = DirectFile.read_into
def read_into(self, *rest):
    go.wait()
    return real(self, *rest)
DirectFile.read_into = read_into
def interrupt():
    while not streamer._ready._waiters:
        time.sleep(0.01)
    os.kill(os.getpid(), signal.SIGINT)
streamer = Streamer(chunks, 16384)
threading.Thread(target=interrupt, daemon=True).start()
try:
    streamer.acquire(chunks[0])
except KeyboardInterrupt:
    go.set()
    for chunk in chunks:
        assert len(streamer.acquire(chunk)) == 8192
        streamer.release(chunk)
    streamer.close()
    print("interrupted, then used on")
"""
NEVER_CLOSED = """
streamer = Streamer(chunks, 16384)
streamer.acquire(chunks[0])
print("leaving")
"""


@pytest.mark.parametrize(
    ("body", "says"), [(INTERRUPTED, "interrupted, then used on"), (NEVER_CLOSED, "leaving")]
)
def test_the_process_can_always_be_left(tmp_path: Path, body: str, says: str) -> None:
    (tmp_path / "w").write_bytes(bytes(8 * 8192))
    done = subprocess.run(
        [sys.executable, "-c", SCRIPT + body, str(tmp_path / "w")],
        capture_output=True,
        text=True,
        timeout=60,
        cwd=Path(__file__).parent.parent,
        check=False,
    )
    assert (done.returncode, done.stdout.strip(), done.stderr) == (0, says, "")
