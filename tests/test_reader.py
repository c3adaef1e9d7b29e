"""Direct reads: any offset, any length, the file's end, refusals and damage."""

from __future__ import annotations

import os
import sys
import threading
from pathlib import Path

import numpy as np
import pytest

from edgespec.devices.disk import aligned_buffer, open_for_reading
from edgespec.errors import CorruptFileError, StorageError
from edgespec.offload.chunks import PAGE, aligned_span
from edgespec.offload.reader import DirectFile, ReadSettings

SIZE = 5 * PAGE + 123  # the last page is not whole


def write(path: Path, nbytes: int = SIZE) -> bytes:
    data = np.random.default_rng(0).integers(0, 256, nbytes, dtype=np.uint8).tobytes()
    path.write_bytes(data)
    return data


@pytest.mark.parametrize("direct", [True, False])
def test_any_range_of_the_file(tmp_path: Path, direct: bool) -> None:
    data = write(tmp_path / "w")
    moved = 0
    with DirectFile(tmp_path / "w", direct) as file:
        for offset, nbytes in [(0, 1), (0, SIZE), (PAGE - 1, 2), (PAGE, PAGE), (17, 3 * PAGE), (SIZE - 1, 1)]:
            assert bytes(file.read(offset, nbytes)) == data[offset : offset + nbytes]
            start, length = aligned_span(offset, nbytes)
            moved += min(length, SIZE - start)
        assert file.bytes_read == moved


def test_a_view_may_reach_past_the_end_but_the_needed_bytes_may_not(tmp_path: Path) -> None:
    data = write(tmp_path / "w")
    with DirectFile(tmp_path / "w") as file:
        buffer = aligned_buffer(8 * PAGE)
        assert file.read_into(4 * PAGE, buffer, PAGE + 123) == PAGE + 123
        assert bytes(buffer[: PAGE + 123]) == data[4 * PAGE :]
        for offset, needed in [(4 * PAGE, PAGE + 124), (8 * PAGE, 1), (0, 8 * PAGE)]:
            with pytest.raises(CorruptFileError, match=f"{file.path}.*ends at.*truncated"):
                file.read_into(offset, buffer, needed)


def test_short_reads_go_on_at_a_whole_page(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    data = write(tmp_path / "w")
    file = DirectFile(tmp_path / "w")
    real, offsets = DirectFile._pread, []

    def short(self: DirectFile, view: memoryview, offset: int) -> int:
        offsets.append(offset)
        real(self, view, offset)
        return min(len(view), PAGE + 700)  # as if interrupted in the middle of a page

    monkeypatch.setattr(DirectFile, "_pread", short)
    buffer = aligned_buffer(5 * PAGE)
    file.read_into(0, buffer)
    assert bytes(buffer) == data[: 5 * PAGE]
    assert offsets == [PAGE * i for i in range(4)] + [4 * PAGE]
    file.close()


def test_missing_unreadable_and_failing_files(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    with pytest.raises(CorruptFileError, match=r"gone.*missing"):
        DirectFile(tmp_path / "gone")
    write(tmp_path / "w")

    def refuse(path: Path, direct: bool) -> tuple[int, bool]:
        raise PermissionError(13, "Permission denied")

    with monkeypatch.context() as patch:
        patch.setattr("edgespec.offload.reader.open_for_reading", refuse)
        with pytest.raises(StorageError, match="Permission denied"):
            DirectFile(tmp_path / "w")
    file = DirectFile(tmp_path / "w")

    def fail(self: DirectFile, view: memoryview, offset: int) -> int:
        raise OSError(5, "Input/output error")

    with monkeypatch.context() as patch:
        patch.setattr(DirectFile, "_pread", fail)
        with pytest.raises(StorageError, match=r"at 4096 of .*Input/output error"):
            file.read_into(PAGE, aligned_buffer(PAGE))
    file.close()
    file.close()
    with pytest.raises(StorageError):
        file.read(0, 1)


@pytest.mark.skipif(sys.platform != "linux", reason="O_DIRECT")
def test_a_filesystem_that_refuses_direct_reads_is_read_ordinarily(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    data = write(tmp_path / "w")
    real_open, real_read = os.open, os.preadv

    def refuse_open(path: Path, flags: int) -> int:
        if flags & os.O_DIRECT:
            raise OSError(22, "Invalid argument")
        return real_open(path, flags)

    def refuse_read(descriptor: int, *rest: object) -> int:
        raise OSError(22, "Invalid argument")

    for name, refusal in (("open", refuse_open), ("preadv", refuse_read)):
        before = set(os.listdir("/proc/self/fd"))
        with monkeypatch.context() as patch:
            patch.setattr(os, name, refusal)
            descriptor, direct = open_for_reading(tmp_path / "w")
        assert not direct
        assert real_read(descriptor, [bytearray(10)], 1) == 10
        os.close(descriptor)
        assert set(os.listdir("/proc/self/fd")) == before  # no descriptor leaks
    with monkeypatch.context() as patch:
        patch.setattr(os, "open", refuse_open)
        file = DirectFile(tmp_path / "w")
    with file:
        assert not file.direct
        assert bytes(file.read(3, SIZE - 3)) == data[3:]


@pytest.mark.skipif(not Path("/dev/shm").is_dir(), reason="no tmpfs here")
def test_a_file_in_memory_is_readable(tmp_path: Path) -> None:
    path = Path(f"/dev/shm/edgespec-test-{os.getpid()}")
    try:
        data = write(path)
        with DirectFile(path) as file:
            assert bytes(file.read(1, SIZE - 1)) == data[1:]
    finally:
        path.unlink()


@pytest.mark.skipif(sys.platform != "linux", reason="mincore and fadvise")
def test_reads_leave_nothing_in_the_page_cache(tmp_path: Path) -> None:
    nbytes = 4096 * PAGE  # enough for the kernel to read ahead, were it let
    path = tmp_path / "w"
    write(path, nbytes)
    for direct in (True, False):
        path.read_bytes()
        assert cached_pages(path, nbytes)
        descriptor = os.open(path, os.O_RDONLY)
        os.fsync(descriptor)
        os.posix_fadvise(descriptor, 0, 0, os.POSIX_FADV_DONTNEED)
        os.close(descriptor)
        if cached_pages(path, nbytes):
            pytest.skip("this filesystem keeps its pages whatever it is told")
        with DirectFile(path, direct) as file:
            for page in range(0, 4000, 37):
                file.read(page * PAGE, 37 * PAGE)
        assert cached_pages(path, nbytes) == 0


def cached_pages(path: Path, nbytes: int) -> int:
    import ctypes
    import mmap

    with path.open("rb") as handle:
        area = mmap.mmap(handle.fileno(), nbytes, access=mmap.ACCESS_COPY)
        array = np.frombuffer(area, dtype=np.uint8)
        flags = (ctypes.c_ubyte * (nbytes // mmap.PAGESIZE))()
        libc = ctypes.CDLL(None, use_errno=True)
        address = ctypes.c_void_p(array.ctypes.data)
        assert libc.mincore(address, ctypes.c_size_t(nbytes), flags) == 0
        return sum(f & 1 for f in flags)


def test_threads_share_one_file(tmp_path: Path) -> None:
    data = write(tmp_path / "w", 64 * PAGE)
    with DirectFile(tmp_path / "w") as file:
        wrong: list[int] = []

        def work(seed: int) -> None:
            for offset in np.random.default_rng(seed).integers(0, 60 * PAGE, 50).tolist():
                if bytes(file.read(offset, 4 * PAGE)) != data[offset : offset + 4 * PAGE]:
                    wrong.append(offset)

        threads = [threading.Thread(target=work, args=(seed,)) for seed in range(4)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
        assert not wrong


def test_settings_are_checked() -> None:
    assert ReadSettings() == ReadSettings(threads=2, request_bytes=4 * 2**20, direct=True)
    for bad in ({"threads": 0}, {"threads": 65}, {"request_bytes": 0}, {"request_bytes": PAGE + 1}):
        with pytest.raises(ValueError):
            ReadSettings(**bad)
