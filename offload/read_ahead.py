"""Reading many byte ranges in order, a few of them ahead of whoever uses them."""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Generator, Iterable
from concurrent.futures import Future, ThreadPoolExecutor
from pathlib import Path
from typing import NamedTuple, TypeVar

from edgespec.devices.disk import aligned_buffer
from edgespec.offload.chunks import aligned_span
from edgespec.offload.reader import DirectFile

THREADS = 2  # enough to keep a disk busy

Key = TypeVar("Key")
Result = TypeVar("Result")


class Range(NamedTuple):
    file: Path
    offset: int
    nbytes: int


def read_ahead(
    ranges: Iterable[tuple[Range, Key]],
    work: Callable[[Key, memoryview], Result],
    threads: int = THREADS,
    ahead: int = 2,
) -> Generator[Result, None, None]:
    """`work(key, bytes)` of each range, in order; it is called in the reading threads.

    The bytes may be used until the next result is asked for. Holds at most `threads` + `ahead` ranges in
    memory. Raises CorruptFileError for a missing or truncated file, StorageError when a read fails, and what
    `work` raises. Close the generator when leaving early.
    """
    files: dict[Path, DirectFile] = {}
    free = [memoryview(b"") for _ in range(threads + ahead)]
    pending: deque[tuple[memoryview, Future[Result]]] = deque()
    todo = iter(ranges)

    def read(file: DirectFile, wanted: Range, key: Key, buffer: memoryview) -> Result:
        begin, length = aligned_span(wanted.offset, wanted.nbytes)
        slack = wanted.offset - begin
        file.read_into(begin, buffer[:length], slack + wanted.nbytes)
        return work(key, buffer[slack : slack + wanted.nbytes])

    def start() -> None:
        for wanted, key in todo:
            if wanted.file not in files:
                files[wanted.file] = DirectFile(wanted.file)
            buffer = free.pop()
            length = aligned_span(wanted.offset, wanted.nbytes)[1]
            if len(buffer) < length:
                buffer = aligned_buffer(length)
            pending.append((buffer, pool.submit(read, files[wanted.file], wanted, key, buffer)))
            return

    with ThreadPoolExecutor(threads, thread_name_prefix="edgespec-read") as pool:
        try:
            for _ in range(len(free)):
                start()
            while pending:
                buffer, future = pending.popleft()
                yield future.result()
                free.append(buffer)
                start()
        finally:
            pool.shutdown(cancel_futures=True)
            for file in files.values():
                file.close()
