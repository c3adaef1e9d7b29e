"""What other systems lack, or do otherwise, with stand-ins for them."""

from __future__ import annotations

import os
import sys
import threading
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest

import edgespec
from edgespec.apps.main import run
from edgespec.devices import rates
from edgespec.devices.disk import ReadSettings, aligned_buffer, open_for_reading
from edgespec.devices.names import NOT_YET
from edgespec.errors import CorruptFileError, DeviceError, StorageError
from edgespec.offload import reader
from edgespec.offload.reader import DirectFile
from tests.tiny import write_checkpoint

PAGES = 64
SYSTEMS = {"macOS before 11": ["preadv"], "Windows": ["preadv", "pread"]}


@pytest.fixture(params=SYSTEMS)
def system(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> str:
    for name in SYSTEMS[request.param]:
        monkeypatch.delattr(os, name, raising=False)
    # Neither has O_DIRECT.
    monkeypatch.setattr(reader, "open_for_reading", lambda path, direct=True: open_for_reading(path, False))
    return str(request.param)


@pytest.fixture
def content(tmp_path: Path) -> bytes:
    data = os.urandom(PAGES * 4096 + 100)
    (tmp_path / "file").write_bytes(data)
    return data


def test_reads_are_those_of_linux(system: str, content: bytes, tmp_path: Path) -> None:
    with DirectFile(tmp_path / "file") as file:
        for offset, nbytes in ((0, 10), (4096, 8192), (5, 4096 * 3), (PAGES * 4096, 100), (0, len(content))):
            assert bytes(file.read(offset, nbytes)) == content[offset : offset + nbytes]
        with pytest.raises(CorruptFileError, match="it is truncated"):
            file.read(PAGES * 4096, 101)


def test_many_threads_read_at_once(system: str, content: bytes, tmp_path: Path) -> None:
    """Each its own part, at the same time: no lock around the read, no handle that two seek in."""
    threads = 8
    together = threading.Barrier(threads, timeout=30)
    with DirectFile(tmp_path / "file", direct=False) as file:

        def read(n: int) -> bool:
            together.wait()
            pages = [(n * 7 + i) % PAGES * 4096 for i in range(50)]
            return all(bytes(file.read(page, 4096)) == content[page : page + 4096] for page in pages)

        with ThreadPoolExecutor(threads) as pool:
            assert all(pool.map(read, range(threads)))


def test_windows_reads_are_under_way_together(
    content: bytes, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Two threads are both inside a read; each has a handle, and all are closed in the end."""
    for name in SYSTEMS["Windows"]:
        monkeypatch.delattr(os, name)
    seek, inside = os.lseek, threading.Barrier(2, timeout=30)
    opened: list[int] = []

    def counted(path: Path, direct: bool = True) -> tuple[int, bool]:
        found = open_for_reading(path, direct)
        opened.append(found[0])
        return found

    def slow(descriptor: int, offset: int, whence: int) -> int:
        inside.wait()
        return seek(descriptor, offset, whence)

    monkeypatch.setattr(reader, "open_for_reading", counted)
    monkeypatch.setattr(os, "lseek", slow)
    file = DirectFile(tmp_path / "file", direct=False)
    for _ in range(3):
        with ThreadPoolExecutor(2) as pool:
            assert [bytes(b) for b in pool.map(lambda i: file.read(i, 10), (0, 4096))] == [
                content[:10],
                content[4096:4106],
            ]
    assert len(opened) == 3, "one for the file, one a thread; kept for the next"
    file.close()
    for descriptor in opened:
        with pytest.raises(OSError, match="Bad file"):
            os.fstat(descriptor)
    with pytest.raises(StorageError, match="closed"):
        file.read(0, 10)


def test_a_disk_is_measured_without_preadv(
    content: bytes, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.delattr(os, "preadv")
    monkeypatch.setattr(rates, "SECONDS", 1e9)
    with (tmp_path / "file").open("rb") as file:
        moved, _ = rates.read_part(
            file.fileno(), False, ReadSettings(2, 4096, False), 0, PAGES * 4096, aligned_buffer(2 * 4096)
        )
    assert moved == PAGES * 4096


@pytest.mark.skipif(sys.platform == "win32", reason="removes what Windows does not have")
def test_a_streamed_model_says_the_same(system: str, tmp_path: Path) -> None:
    from tests.tiny import open_tiny, run_tree

    path = write_checkpoint(tmp_path / "m", num_hidden_layers=2)
    targets = [open_tiny(path, pinned=lambda chunk, all_of=all_of: all_of) for all_of in (True, False)]
    resident, streamed = (run_tree(t, t.new_cache(40), [7, 8], [-1, 0]) for t in targets)
    assert resident.equal(streamed)
    for target in targets:
        target.weights.close()


def test_metal_is_refused_and_says_why(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    path = write_checkpoint(tmp_path / "m", num_hidden_layers=1)
    with pytest.raises(DeviceError, match=r"mps.*not supported yet: torch computes on Metal only.*use cpu"):
        edgespec.load(path, device="mps")
    assert NOT_YET.keys() == {"mps"}
    assert run(["generate", str(path), "-p", "a", "--device", "mps"]) == 1
    assert "not supported yet" in capsys.readouterr().err
