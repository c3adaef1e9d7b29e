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

from edgespec.devices.disk import files_under
from edgespec.values import parse_bytes

REQUEST = 4 * 2**20  # bytes of one direct read or write
# Memory that requests rotate through. Weights land in memory, so the reference does, too: into 8 MB, which
# stay in the processor's cache, the same virtual disk gives 3.0-3.3 GB/s where 64 MB and more get 2.2-2.3.
FOOTPRINT = 256 * 2**20


def direct_rate(
    sources: Sequence[Path], target: Path | None, nbytes: int, threads: int, start: int = 0
) -> float:
    """Bytes a second of O_DIRECT requests, each read where there are sources (in file order, from request
    `start` on), and written where there is a target (a new file in that directory, flushed at the end).

    Raises OSError, and ValueError for sources that are too small.
    """
    files = [file for path in sources for file in files_under(path) if file.stat().st_size >= REQUEST]
    places = [(file, at) for file in files for at in range(0, file.stat().st_size - REQUEST + 1, REQUEST)]
    if sources and not places:
        raise ValueError("no file of at least 4 MiB to read")
    requests = -(-nbytes // REQUEST)
    numbers = iter(range(requests))  # which all threads take from
    areas = [huge_buffer(FOOTPRINT // threads) for _ in range(threads)]
    with ExitStack() as stack:
        reading = {file: stack.enter_context(_opened(file, os.O_RDONLY)) for file in files}
        writing = None
        if target is not None:
            path = target / f".write-rate-{os.getpid()}"
            writing = stack.enter_context(_opened(path, os.O_WRONLY | os.O_CREAT | os.O_EXCL))
            noise = os.urandom(REQUEST)  # some disks are fast with zeros
            for area in areas:
                for at in range(0, len(area), REQUEST):
                    area[at : at + REQUEST] = noise

        def loop(area: mmap.mmap) -> None:
            for turn, i in enumerate(numbers):
                at = turn * REQUEST % len(area)
                buffer = memoryview(area)[at : at + REQUEST]
                if places:
                    file, offset = places[(start + i) % len(places)]
                    if os.preadv(reading[file], [buffer], offset) != REQUEST:
                        raise OSError(f"short read of {file} at {offset}")
                if writing is not None and os.pwritev(writing, [buffer], i * REQUEST) != REQUEST:
                    raise OSError(f"short write to {path}")

        with ThreadPoolExecutor(threads) as pool:
            began = time.perf_counter()
            for done in [pool.submit(loop, area) for area in areas]:
                done.result()
            if writing is not None:
                os.fsync(writing)
            return requests * REQUEST / (time.perf_counter() - began)


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


def best_read_threads(paths: Sequence[Path], nbytes: int = 10**9) -> int:
    """The thread count with the best direct-read rate, of 1, 2 and 4; two tries each."""
    rates = {1: 0.0, 2: 0.0, 4: 0.0}
    for turn, threads in enumerate(2 * list(rates)):
        start = turn * (nbytes // REQUEST)
        rates[threads] = max(rates[threads], direct_rate(paths, None, nbytes, threads, start))
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
        print(f"direct read, {threads} threads: {direct_rate(paths, None, nbytes, threads) / 1e9:.2f} GB/s")
    print(f"direct write, 2 threads: {direct_rate([], folder, nbytes // 2, 2) / 1e9:.2f} GB/s")
    # Reads and writes at once share the disk: all that packing can do.
    print(f"direct copy, 4 threads: {direct_rate(paths, folder, nbytes // 2, 4) / 1e9:.2f} GB/s")
    print(f"memory read: {MemoryRead(nbytes).rate() / 1e9:.1f} GB/s")


if __name__ == "__main__":
    main()
