"""What the hardware does by itself: direct reads and writes of the disk, reads of memory.

Deliberately no code of the engine's: these are what it is compared with.

    python -m benchmarks.raw_rates models/7b-bf16
"""

from __future__ import annotations

import itertools
import mmap
import os
import sys
import threading
import time
from collections.abc import Callable, Sequence
from functools import partial
from pathlib import Path

from benchmarks.page_cache import files_under

REQUEST = 4 * 2**20  # bytes of one direct read or write
# Memory that requests rotate through. Weights land in memory, so the reference does, too: into 8 MB, which
# stay in the processor's cache, the same virtual disk gives 3.0-3.3 GB/s where 64 MB and more get 2.2-2.3.
FOOTPRINT = 256 * 2**20


def direct_read_rate(paths: Sequence[Path], nbytes: int, threads: int = 2, start: int = 0) -> float:
    """Bytes a second of O_DIRECT reads of `nbytes` bytes in file order, from request number `start` on."""
    files = [file for path in paths for file in files_under(path) if file.stat().st_size >= REQUEST]
    places = [(file, at) for file in files for at in range(0, file.stat().st_size - REQUEST + 1, REQUEST)]
    if not places:
        raise ValueError("no file of at least 4 MiB to read")
    handles = {file: os.open(file, os.O_RDONLY | os.O_DIRECT) for file in files}
    requests = -(-nbytes // REQUEST)

    def read(i: int, buffer: memoryview) -> None:
        file, at = places[(start + i) % len(places)]
        if os.preadv(handles[file], [buffer], at) != REQUEST:
            raise OSError(f"short read of {file} at {at}")

    try:
        return requests * REQUEST / _parallel(read, requests, threads)
    finally:
        for handle in handles.values():
            os.close(handle)


def direct_write_rate(directory: Path, nbytes: int, threads: int = 2) -> float:
    """Bytes a second of O_DIRECT writes of a new file in `directory`, flushed at the end."""
    path = directory / f".write-rate-{os.getpid()}"
    handle = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_DIRECT, 0o600)
    requests = -(-nbytes // REQUEST)
    noise = os.urandom(REQUEST)

    def write(i: int, buffer: memoryview) -> None:
        if bytes(buffer[:8]) == bytes(8):
            buffer[:] = noise  # some disks are fast with zeros
        if os.pwritev(handle, [buffer], i * REQUEST) != REQUEST:
            raise OSError(f"short write to {path}")

    try:
        return _flushed_rate(write, requests, threads, handle)
    finally:
        os.close(handle)
        path.unlink()


def direct_copy_rate(paths: Sequence[Path], directory: Path, nbytes: int, threads: int = 4) -> float:
    """Bytes a second of copying the largest file's beginning: reads and writes at once share the disk."""
    source = max((file for path in paths for file in files_under(path)), key=lambda file: file.stat().st_size)
    requests = min(nbytes, source.stat().st_size) // REQUEST
    path = directory / f".copy-rate-{os.getpid()}"
    reading = os.open(source, os.O_RDONLY | os.O_DIRECT)
    writing = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_DIRECT, 0o600)

    def copy(i: int, buffer: memoryview) -> None:
        if os.preadv(reading, [buffer], i * REQUEST) != REQUEST:
            raise OSError(f"short read of {source}")
        if os.pwritev(writing, [buffer], i * REQUEST) != REQUEST:
            raise OSError(f"short write to {path}")

    try:
        return _flushed_rate(copy, requests, threads, writing)
    finally:
        os.close(reading)
        os.close(writing)
        path.unlink()


def huge_buffer(nbytes: int) -> mmap.mmap:
    """Page-aligned memory, as direct I/O wants, in huge pages where there are any: a request is then a few
    long segments for the disk, not a thousand short ones (here a third faster)."""
    if not hasattr(mmap, "MADV_HUGEPAGE"):
        return mmap.mmap(-1, nbytes)
    buffer = mmap.mmap(-1, nbytes, flags=mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS)
    buffer.madvise(mmap.MADV_HUGEPAGE)
    for page in range(0, nbytes, mmap.PAGESIZE):
        buffer[page] = 0  # really there before anything is timed
    return buffer


def _flushed_rate(work: Callable[[int, memoryview], None], requests: int, threads: int, handle: int) -> float:
    """Bytes a second of so many requests, until what they wrote to `handle` is on the disk."""
    seconds = _parallel(work, requests, threads)
    began = time.perf_counter()
    os.fsync(handle)
    return requests * REQUEST / (seconds + time.perf_counter() - began)


def _parallel(work: Callable[[int, memoryview], None], count: int, threads: int) -> float:
    """Seconds for work(0) .. work(count - 1), taken in order by `threads` threads."""
    numbers = itertools.count()
    errors: list[OSError] = []

    def loop() -> None:
        area = huge_buffer(FOOTPRINT // threads)
        slots = [memoryview(area)[at : at + REQUEST] for at in range(0, len(area) - REQUEST + 1, REQUEST)]
        ready.wait()
        for turn in itertools.count():
            if (i := next(numbers)) >= count or errors:
                return
            try:
                work(i, slots[turn % len(slots)])
            except OSError as error:
                errors.append(error)

    ready = threading.Barrier(threads + 1)
    workers = [threading.Thread(target=loop) for _ in range(threads)]
    for worker in workers:
        worker.start()
    ready.wait()
    began = time.perf_counter()
    for worker in workers:
        worker.join()
    if errors:
        raise errors[0]
    return time.perf_counter() - began


def best_read_threads(paths: Sequence[Path], nbytes: int = 10**9) -> int:
    """The thread count with the best direct-read rate, of 1, 2 and 4; two tries each."""
    rates = {1: 0.0, 2: 0.0, 4: 0.0}
    for turn, threads in enumerate(2 * list(rates)):
        start = turn * (nbytes // REQUEST)
        rates[threads] = max(rates[threads], direct_read_rate(paths, nbytes, threads, start))
    return max(rates, key=lambda threads: rates[threads])


class MemoryRead:
    """Bytes a second of reading uncached memory on all cores: the better of a sum and a dot product."""

    def __init__(self, nbytes: int = 2 * 10**9) -> None:
        import torch

        numbers = torch.ones(nbytes // 4)
        self.nbytes = nbytes // 4 * 4
        self.kernels: tuple[Callable[[], object], ...] = (numbers.sum, partial(torch.dot, numbers, numbers))

    def rate(self) -> float:
        best = 0.0
        for kernel in self.kernels:
            began = time.perf_counter()
            kernel()
            best = max(best, self.nbytes / (time.perf_counter() - began))
        return best


if __name__ == "__main__":
    target = [Path(argument) for argument in sys.argv[1:]]
    if not target:
        raise SystemExit("name a model directory or file to read")
    for number in (1, 2, 4):
        print(f"direct read, {number} threads: {direct_read_rate(target, 2 * 10**9, number) / 1e9:.2f} GB/s")
    folder = files_under(target[0])[0].parent
    print(f"direct write, 2 threads: {direct_write_rate(folder, 10**9) / 1e9:.2f} GB/s")
    print(f"direct copy, 4 threads: {direct_copy_rate(target, folder, 10**9) / 1e9:.2f} GB/s")
    print(f"memory read: {MemoryRead().rate() / 1e9:.1f} GB/s")
