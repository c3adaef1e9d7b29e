"""Files read within a bound, and written whole or not at all."""

from __future__ import annotations

import os
import stat
import sys
import threading
from pathlib import Path

import pytest

from edgespec.devices import files
from edgespec.devices.files import held, read_bounded, replacing
from edgespec.errors import CorruptFileError, ModelError, StorageError


def test_read_bounded(tmp_path: Path) -> None:
    path = tmp_path / "a"
    with pytest.raises(ModelError, match="is missing"):
        read_bounded(path, 10)
    path.write_bytes(b"0123456789")
    assert read_bounded(path, 10) == b"0123456789"
    with pytest.raises(CorruptFileError, match="larger than 9 bytes"):
        read_bounded(path, 9)


@pytest.mark.skipif(sys.platform == "win32", reason="needs a FIFO")
def test_what_never_ends_is_not_read(tmp_path: Path) -> None:
    os.mkfifo(tmp_path / "pipe")
    for path in (tmp_path / "pipe", Path("/dev/zero")):
        with pytest.raises(ModelError, match="is no regular file"):
            read_bounded(path, 10)
    with pytest.raises(ModelError, match="is a folder"):
        read_bounded(tmp_path, 10)


def test_a_file_that_cannot_be_read(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "a").write_bytes(b"x")

    def denied(*arguments: object) -> None:
        raise PermissionError(13, "Permission denied")

    monkeypatch.setattr("builtins.open", denied)
    with pytest.raises(StorageError, match="cannot be read: Permission denied"):
        read_bounded(tmp_path / "a", 10)


def test_a_file_is_replaced_when_it_is_on_the_disk(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    path, synced = tmp_path / "a", []
    sync = files.sync_path
    monkeypatch.setattr(files, "sync_path", lambda p: (synced.append(p.name), sync(p)))
    for text in ("one", "two"):
        with replacing(path) as temporary:
            temporary.write_text(text)
            assert not path.exists() or path.read_text() == "one"
        assert path.read_text() == text
    assert synced == ["a.tmp", tmp_path.name] * 2
    assert os.listdir(tmp_path) == ["a"]


@pytest.mark.parametrize("error", [ValueError, KeyboardInterrupt])
def test_what_fails_halfway_changes_nothing(tmp_path: Path, error: type[BaseException]) -> None:
    path = tmp_path / "a"
    path.write_text("old")

    def fail() -> None:
        with replacing(path) as temporary:
            temporary.write_text("half")
            raise error

    with pytest.raises(error):
        fail()
    assert (path.read_text(), os.listdir(tmp_path)) == ("old", ["a"])


def test_what_a_killed_process_left_is_written_over(tmp_path: Path) -> None:
    (tmp_path / "a.tmp").write_text("half of something long")
    with replacing(tmp_path / "a") as temporary:
        temporary.write_text("new")
    assert (tmp_path / "a").read_text() == "new"


def test_the_error_of_the_disk_is_the_callers(tmp_path: Path) -> None:
    with pytest.raises(OSError, match="No such file"), replacing(tmp_path / "no" / "a"):
        pass


@pytest.mark.skipif(sys.platform == "win32", reason="modes are Unix's")
def test_modes(tmp_path: Path) -> None:
    (tmp_path / "own").write_text("open to all")
    os.chmod(tmp_path / "own", 0o644)
    for name, private in (("own", True), ("open", False)):
        with replacing(tmp_path / name, private=private) as temporary:
            temporary.write_text("x")
    mask = os.umask(0)
    os.umask(mask)
    assert stat.S_IMODE((tmp_path / "own").stat().st_mode) == 0o600
    assert stat.S_IMODE((tmp_path / "open").stat().st_mode) == 0o666 & ~mask


def test_threads_that_share_a_file_leave_one_of_theirs(tmp_path: Path) -> None:
    path, failed = tmp_path / "shared", []

    def write(n: int) -> None:
        try:
            for _ in range(20):
                with replacing(path, shared=True) as temporary:
                    temporary.write_text(f"{n}" * 1000)
        except BaseException as error:
            failed.append(error)

    threads = [threading.Thread(target=write, args=(n,)) for n in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert not failed
    assert path.read_text() in {f"{n}" * 1000 for n in range(4)}
    assert os.listdir(tmp_path) == ["shared"]


@pytest.mark.skipif(sys.platform == "win32", reason="needs flock")
def test_a_directory_is_held_once(tmp_path: Path) -> None:
    with held(tmp_path), pytest.raises(BlockingIOError), held(tmp_path):
        pass
    with held(tmp_path):
        assert os.listdir(tmp_path) == []


class FakeLocks:
    """msvcrt.locking, as Windows documents it: a region is locked once, by whatever descriptor."""

    LK_NBLCK, LK_UNLCK = 2, 0

    def __init__(self) -> None:
        self.locked: set[int] = set()  # inodes

    def locking(self, descriptor: int, mode: int, nbytes: int) -> None:
        inode = os.fstat(descriptor).st_ino
        if mode == self.LK_UNLCK:
            self.locked.remove(inode)
        elif inode in self.locked:
            raise PermissionError(13, "Permission denied")
        else:
            self.locked.add(inode)


def test_on_windows_a_file_beside_the_directory_is_held(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    fake, work = FakeLocks(), tmp_path / "work"
    work.mkdir()
    monkeypatch.setitem(sys.modules, "msvcrt", fake)
    monkeypatch.setattr(sys, "platform", "win32")
    with held(work):
        assert os.listdir(work) == [], "what is in it is the pack's"
        os.link(tmp_path / "work.lock", tmp_path / "open")  # Windows refuses to remove what is open
        with pytest.raises(BlockingIOError), held(work):
            pass
        os.rename(tmp_path / "open", tmp_path / "work.lock")
        assert fake.locked
    assert not fake.locked
    with held(work):
        pass
    assert os.listdir(tmp_path) == ["work"]
