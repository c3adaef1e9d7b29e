"""Which way of reading a file is fastest, and what does it leave in the page cache?

Every arm reads the same bytes cold, in order: mapped, with ordinary positioned reads, the same with their
pages dropped behind them, direct reads with 1, 2 and 4 threads, and EdgeSpec's weight stream, consumed by
one thread that sums a byte of every page.

    python benchmarks/read_rates.py models/7b-bf16/model-00001.safetensors
"""

from __future__ import annotations

import itertools
import mmap
import os
import time
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from functools import partial
from pathlib import Path

import numpy as np
from common import Report, Row, arguments, format_bytes, interleave, median_ratio, parse_bytes, spread
from page_cache import cached_bytes, drop_caches

from edgespec.devices.disk import forget, open_for_reading
from edgespec.offload.chunks import CHUNK_BYTES, PAGE, Chunk
from edgespec.offload.streamer import Streamer

REQUEST = 4 * 2**20  # bytes of one read
Cost = tuple[float, float]  # seconds by the clock, seconds of processor time


def clock() -> Cost:
    return time.perf_counter(), time.process_time()


def since(began: Cost) -> Cost:
    now = clock()
    return now[0] - began[0], now[1] - began[1]


def read_mapped(path: Path, nbytes: int) -> Cost:
    began = clock()
    with path.open("rb") as file, mmap.mmap(file.fileno(), nbytes, access=mmap.ACCESS_READ) as area:
        view = np.frombuffer(area, dtype=np.uint8)
        view[::PAGE].sum()
        del view
    return since(began)


def read_requests(path: Path, nbytes: int, threads: int, direct: bool, drop: bool = False) -> Cost:
    """Positioned reads of REQUEST bytes, taken in file order by `threads` threads."""
    if direct:
        descriptor, direct = open_for_reading(path)
        if not direct:
            os.close(descriptor)
            raise SystemExit(f"the filesystem of {path} refuses direct reads")
    else:
        descriptor = os.open(path, os.O_RDONLY)
    if drop:
        os.posix_fadvise(descriptor, 0, 0, os.POSIX_FADV_RANDOM)
    numbers = itertools.count()
    began = clock()

    def work(buffer: mmap.mmap) -> None:
        while (offset := next(numbers) * REQUEST) < nbytes:
            os.preadv(descriptor, [buffer], offset)
            if drop:
                forget(descriptor, offset, REQUEST)

    with ThreadPoolExecutor(threads) as pool:
        list(pool.map(work, [mmap.mmap(-1, REQUEST) for _ in range(threads)]))
    os.close(descriptor)
    return since(began)


def read_streamed(path: Path, nbytes: int) -> Cost:
    chunks = [Chunk(i, 0, path, i * CHUNK_BYTES, CHUNK_BYTES, ()) for i in range(nbytes // CHUNK_BYTES)]
    with Streamer(chunks, 8 * CHUNK_BYTES) as streamer:
        began = clock()  # the ring's memory is there, the first requests are under way
        for chunk in chunks:
            np.frombuffer(streamer.acquire(chunk), dtype=np.uint8)[::PAGE].sum()
            streamer.release(chunk)
        return since(began)


def measured(path: Path, nbytes: int, read: Callable[[Path, int], Cost]) -> Row:
    drop_caches([path])
    before = cached_bytes([path])
    seconds, cpu_seconds = read(path, nbytes)
    return {
        "rate": nbytes / seconds,
        "cpu_seconds_per_gb": cpu_seconds / (nbytes / 1e9),
        "cached": cached_bytes([path]) - before,
    }


def main() -> None:
    parser = arguments(__doc__, rounds=5)
    parser.add_argument("file", type=Path, help="a large file on the disk in question")
    parser.add_argument("--bytes", type=parse_bytes, default="2GB", help="read so much of it (default 2GB)")
    args = parser.parse_args()
    if not args.file.is_file():
        raise SystemExit(f"{args.file} is not a file")
    nbytes = min(args.bytes, args.file.stat().st_size) // CHUNK_BYTES * CHUNK_BYTES
    if nbytes < 4 * CHUNK_BYTES:
        raise SystemExit(f"{args.file} is too small: name a file of at least {format_bytes(4 * CHUNK_BYTES)}")

    reads: dict[str, Callable[[Path, int], Cost]] = {
        "mmap": read_mapped,
        "buffered, 2 threads": partial(read_requests, threads=2, direct=False),
        "buffered and dropped, 2 threads": partial(read_requests, threads=2, direct=False, drop=True),
        "direct, 1 thread": partial(read_requests, threads=1, direct=True),
        "direct, 2 threads": partial(read_requests, threads=2, direct=True),
        "direct, 4 threads": partial(read_requests, threads=4, direct=True),
        "weight stream": read_streamed,
    }
    arms = {name: partial(measured, args.file, nbytes, read) for name, read in reads.items()}
    results = interleave(arms, args.rounds)
    reference = [row["rate"] for row in results["direct, 2 threads"]]
    report = Report(
        f"Reading {format_bytes(nbytes)} of one file cold, {args.rounds} rounds",
        ["way", "GB/s", "of direct, 2 threads", "CPU s/GB", "page cache left"],
        raw=results,
    )
    for name, rows in results.items():
        rates = [row["rate"] for row in rows]
        report.add(
            name,
            spread([rate / 1e9 for rate in rates]),
            f"{median_ratio(rates, reference):.0%}",
            spread([row["cpu_seconds_per_gb"] for row in rows]),
            format_bytes(max(row["cached"] for row in rows)),
        )
    report.finish(args.json)


if __name__ == "__main__":
    main()
