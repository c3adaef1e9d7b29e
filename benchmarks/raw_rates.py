"""What the hardware does by itself: direct reads and writes of the disk, reads of memory.

Deliberately no code of the engine's: these are what it is compared with.

    python -m benchmarks.raw_rates models/7b-bf16
"""

from __future__ import annotations

import argparse
import mmap
import os
import time
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack, contextmanager
from functools import partial
from pathlib import Path

from benchmarks.page_cache import files_under
from edgespec.values import parse_bytes

Work = Callable[[int, memoryview], None]  # of a request: its number, and where its bytes are or go

REQUEST = 4 * 2**20  # bytes of one direct read or write
# Memory that requests rotate through. Weights land in memory, so the reference does, too: into 8 MB, which
# stay in the processor's cache, the same virtual disk gives 3.0-3.3 GB/s where 64 MB and more get 2.2-2.3.
FOOTPRINT = 256 * 2**20
NEW = os.O_WRONLY | os.O_CREAT | os.O_EXCL


def direct_read_rate(paths: Sequence[Path], nbytes: int, threads: int = 2, start: int = 0) -> float:
    """Bytes a second of O_DIRECT reads of `nbytes` bytes in file order, from request number `start` on."""
    files = [file for path in paths for file in files_under(path) if file.stat().st_size >= REQUEST]
    places = [(file, at) for file in files for at in range(0, file.stat().st_size - REQUEST + 1, REQUEST)]
    if not places:
        raise ValueError("no file of at least 4 MiB to read")
    requests = -(-nbytes // REQUEST)
    with ExitStack() as stack:
        handles = {file: stack.enter_context(_opened(file, os.O_RDONLY)) for file in files}

        def read(i: int, buffer: memoryview) -> None:
            file, at = places[(start + i) % len(places)]
            if os.preadv(handles[file], [buffer], at) != REQUEST:
                raise OSError(f"short read of {file} at {at}")

        return requests * REQUEST / _parallel(read, requests, threads)


def direct_write_rate(directory: Path, nbytes: int, threads: int = 2) -> float:
    """Bytes a second of O_DIRECT writes of a new file in `directory`, flushed at the end."""
    path = directory / f".write-rate-{os.getpid()}"
    noise = os.urandom(REQUEST)
    with _opened(path, NEW) as handle:

        def write(i: int, buffer: memoryview) -> None:
            if bytes(buffer[:8]) == bytes(8):
                buffer[:] = noise  # some disks are fast with zeros
            if os.pwritev(handle, [buffer], i * REQUEST) != REQUEST:
                raise OSError(f"short write to {path}")

        return _flushed_rate(write, -(-nbytes // REQUEST), threads, handle)


def direct_copy_rate(paths: Sequence[Path], directory: Path, nbytes: int, threads: int = 4) -> float:
    """Bytes a second of copying the largest file's beginning: reads and writes at once share the disk."""
    source = max((file for path in paths for file in files_under(path)), key=lambda file: file.stat().st_size)
    path = directory / f".copy-rate-{os.getpid()}"
    with _opened(source, os.O_RDONLY) as reading, _opened(path, NEW) as writing:

        def copy(i: int, buffer: memoryview) -> None:
            if os.preadv(reading, [buffer], i * REQUEST) != REQUEST:
                raise OSError(f"short read of {source}")
            if os.pwritev(writing, [buffer], i * REQUEST) != REQUEST:
                raise OSError(f"short write to {path}")

        return _flushed_rate(copy, min(nbytes, source.stat().st_size) // REQUEST, threads, writing)


@contextmanager
def _opened(path: Path, flags: int) -> Iterator[int]:
    """A descriptor for direct I/O; a new file is removed at the end."""
    handle = os.open(path, flags | os.O_DIRECT, 0o600)
    try:
        yield handle
    finally:
        os.close(handle)
        if flags & os.O_CREAT:
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


def _flushed_rate(work: Work, requests: int, threads: int, handle: int) -> float:
    """Bytes a second of so many requests, until what they wrote to `handle` is on the disk."""
    seconds = _parallel(work, requests, threads)
    began = time.perf_counter()
    os.fsync(handle)
    return requests * REQUEST / (seconds + time.perf_counter() - began)


def _parallel(work: Work, count: int, threads: int) -> float:
    """Seconds for work(0) .. work(count - 1), taken in order by `threads` threads. Raises OSError."""
    numbers = iter(range(count))  # which all threads take from
    areas = [huge_buffer(FOOTPRINT // threads) for _ in range(threads)]

    def loop(area: mmap.mmap) -> None:
        for turn, i in enumerate(numbers):
            at = turn * REQUEST % len(area)
            work(i, memoryview(area)[at : at + REQUEST])

    with ThreadPoolExecutor(threads) as pool:
        began = time.perf_counter()
        for done in [pool.submit(loop, area) for area in areas]:
            done.result()
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


def main() -> None:
    parser = argparse.ArgumentParser(description=(__doc__ or "").split("\n")[0])
    parser.add_argument("paths", type=Path, nargs="+", help="model directories or files to read")
    parser.add_argument("--bytes", type=parse_bytes, default="2GB", help="of each read; half, of each write")
    args = parser.parse_args()
    paths, nbytes = args.paths, args.bytes
    folder = files_under(paths[0])[0].parent
    for threads in (1, 2, 4):
        rate = direct_read_rate(paths, nbytes, threads) / 1e9
        print(f"direct read, {threads} threads: {rate:.2f} GB/s")
    print(f"direct write, 2 threads: {direct_write_rate(folder, nbytes // 2) / 1e9:.2f} GB/s")
    print(f"direct copy, 4 threads: {direct_copy_rate(paths, folder, nbytes // 2) / 1e9:.2f} GB/s")
    print(f"memory read: {MemoryRead(nbytes).rate() / 1e9:.1f} GB/s")


if __name__ == "__main__":
    main()
