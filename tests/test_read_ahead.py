"""Reading ranges ahead: their order, what is held in memory, errors, leaving early."""

from __future__ import annotations

import threading
from pathlib import Path

import pytest

from edgespec.errors import CorruptFileError
from edgespec.offload.read_ahead import Range, read_ahead


@pytest.fixture
def file(tmp_path: Path) -> Path:
    path = tmp_path / "f"
    path.write_bytes(bytes(i * 7 % 251 for i in range(100_000)))
    return path


def cut(file: Path, step: int) -> list[tuple[Range, int]]:
    """The whole file in ranges, the last one shorter, each with its number."""
    size = file.stat().st_size
    starts = range(0, size, step)
    return [(Range(file, at, min(step, size - at)), i) for i, at in enumerate(starts)]


@pytest.mark.parametrize("step", [1000, 4096, 5001])
@pytest.mark.parametrize(("threads", "ahead"), [(1, 0), (2, 0), (2, 2), (5, 1)])
def test_every_range_comes_in_order(file: Path, step: int, threads: int, ahead: int) -> None:
    found = list(read_ahead(cut(file, step), lambda key, data: (key, bytes(data)), threads, ahead))
    assert [key for key, _ in found] == list(range(len(found)))
    assert b"".join(data for _, data in found) == file.read_bytes()


@pytest.mark.parametrize(("threads", "ahead"), [(1, 0), (2, 0), (3, 2)])
def test_no_more_is_held_than_it_says(file: Path, threads: int, ahead: int) -> None:
    """Ranges that were read and whose results are not used up yet."""
    held: set[int] = set()
    most = 0
    lock = threading.Lock()

    def work(key: int, data: memoryview) -> int:
        nonlocal most
        with lock:
            held.add(key)
            most = max(most, len(held))
        return key

    for key in read_ahead(cut(file, 4096), work, threads, ahead):
        with lock:
            held.remove(key)
    assert most <= threads + ahead


def test_the_bytes_stay_until_the_next_is_asked_for(file: Path) -> None:
    content = file.read_bytes()
    for at, data in read_ahead(cut(file, 4096), lambda key, data: (key * 4096, data), 3, 0):
        assert data == content[at : at + 4096]


def test_an_error_ends_it_and_others_are_not_begun(file: Path) -> None:
    begun: list[int] = []

    def work(key: int, data: memoryview) -> int:
        begun.append(key)
        if key == 3:
            raise ValueError("this one")
        return key

    source = read_ahead(cut(file, 1000), work, 2, 0)
    with pytest.raises(ValueError, match="this one"):
        list(source)
    assert max(begun) <= 4
    with pytest.raises(CorruptFileError, match="truncated"):
        list(read_ahead([(Range(file, 99_000, 5000), 0)], work))
    with pytest.raises(CorruptFileError, match="missing"):
        list(read_ahead([(Range(file.with_name("g"), 0, 10), 0)], work))


def test_leaving_early_leaves_no_thread(file: Path) -> None:
    before = threading.active_count()
    source = read_ahead(cut(file, 1000), lambda key, data: key)
    assert next(source) == 0
    assert threading.active_count() > before
    source.close()
    assert threading.active_count() == before
