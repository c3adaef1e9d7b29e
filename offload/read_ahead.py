"""Reading many byte ranges in order, a few of them ahead of whoever uses them."""

from __future__ import annotations

from collections import deque
from collections.abc import Generator, Iterable
from concurrent.futures import Future, ThreadPoolExecutor
from pathlib import Path
from typing import NamedTuple

from edgespec.offload.chunks import aligned_span
from edgespec.offload.reader import DirectFile
from edgespec.offload.ring import aligned_buffer

THREADS = 2
AHEAD = 4  # ranges in memory: one in use, two being read, one ready


class Range(NamedTuple):
    file: Path
    offset: int
    nbytes: int


def read_ahead(ranges: Iterable[Range]) -> Generator[memoryview, None, None]:
    """The bytes of each range; a view is valid until the next one is asked for.

    Holds up to AHEAD times the largest range. Raises CorruptFileError for a missing or truncated file,
    StorageError when a read fails. Close the iterator when leaving early.
    """
    files: dict[Path, DirectFile] = {}
    free = [memoryview(b"") for _ in range(AHEAD)]
    pending: deque[tuple[memoryview, Range, Future[int]]] = deque()
    todo = iter(ranges)

    def start() -> None:
        wanted = next(todo, None)
        if wanted is None:
            return
        if wanted.file not in files:
            files[wanted.file] = DirectFile(wanted.file)
        begin, length = aligned_span(wanted.offset, wanted.nbytes)
        buffer = free.pop()
        if len(buffer) < length:
            buffer = aligned_buffer(length)
        needed = wanted.offset - begin + wanted.nbytes
        future = pool.submit(files[wanted.file].read_into, begin, buffer[:length], needed)
        pending.append((buffer, wanted, future))

    with ThreadPoolExecutor(THREADS, thread_name_prefix="edgespec-read") as pool:
        try:
            for _ in range(AHEAD):
                start()
            while pending:
                buffer, done, future = pending.popleft()
                future.result()
                slack = done.offset - aligned_span(done.offset, done.nbytes)[0]
                yield buffer[slack : slack + done.nbytes]
                free.append(buffer)
                start()
        finally:
            pool.shutdown(cancel_futures=True)
            for file in files.values():
                file.close()
