"""The benchmarks' cgroups, throttled disks and dropped pages are what they are said to be."""

from __future__ import annotations

import os
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

if not (Path(__file__).resolve().parents[1] / "benchmarks").is_dir():
    pytest.skip("benchmarks/ is not part of an installed package", allow_module_level=True)

from benchmarks import cgroup, common, measure, page_cache, raw_rates
from edgespec.devices.disk import drop_pages, files_under


def test_cgroup_v2_files(tmp_path: Path) -> None:
    (tmp_path / "memory.swap.max").write_text("max")
    (tmp_path / "memory.peak").write_text("123456\n")
    (tmp_path / "memory.events").write_text("low 0\nhigh 0\nmax 7\noom 1\noom_kill 2\noom_group_kill 0\n")
    group = cgroup.Cgroup(tmp_path, None, cgroup.V2)
    group.limit_memory(5000)
    assert (tmp_path / "memory.max").read_text() == "5000"
    assert (tmp_path / "memory.swap.max").read_text() == "0"
    assert (group.peak(), group.limit_hits(), group.oom_kills()) == (123456, 7, 2)
    with pytest.raises(cgroup.CgroupUnavailable, match="throttled"):
        group.limit_reads(tmp_path, 1000)


def test_no_cgroup_says_why(tmp_path: Path) -> None:
    with pytest.raises(cgroup.CgroupUnavailable, match="root or a delegated subtree"):
        cgroup.make_child([tmp_path / "missing" / "a", tmp_path / "missing"], None, "x")


@pytest.mark.parametrize(
    ("hits", "peak", "met"),
    [(0, 999_999_999, False), (3, 10, True), (None, 900_000_000, False), (None, 999_000_000, True)],
)
def test_meeting_the_limit(hits: int | None, peak: int, met: bool) -> None:
    usage = measure.Usage(["x"], 10**9, peak=peak, limit_hits=hits)
    assert usage.met_limit is met
    assert measure.Usage(["x"], None, peak=peak, limit_hits=hits).met_limit is False


def test_run_in_a_cgroup() -> None:
    code = "import sys; sys.stdout.write('out'); x = bytearray(60_000_000); x[::4096] = b'1' * len(x[::4096])"
    try:
        free = measure.run([sys.executable, "-c", code])
        tight = measure.run([sys.executable, "-c", code], memory=40_000_000)
    except cgroup.CgroupUnavailable as error:
        pytest.skip(str(error))
    assert free.exit_code == 0
    assert free.stdout == "out"
    assert free.peak > 60_000_000
    assert not free.met_limit
    assert tight.oom_kills
    assert tight.met_limit
    assert "out of memory" in tight.failure()


def test_throttled_reads(tmp_path: Path) -> None:
    """Direct reads by this process, at the rate that is asked for; and what is remembered is not ours."""
    file = tmp_path / "file"
    file.write_bytes(bytes(2 * raw_rates.REQUEST))
    asked = 80 * 10**6
    try:
        cgroup.require_throttle(file)
        with cgroup.throttled(file, asked):
            remembered = os.environ["EDGESPEC_CACHE"]
            assert common.environment()["EDGESPEC_CACHE"] == remembered
            rate = raw_rates.direct_rate([file], None, 32 * 2**20, 1)
    except (cgroup.CgroupUnavailable, OSError) as error:
        pytest.skip(str(error))
    assert rate < 3 * asked  # the kernel lets the first tenth of a second through; the disk gives much more
    assert os.environ.get("EDGESPEC_CACHE") != remembered
    assert not Path(remembered).exists()


def test_no_throttle_says_why(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    @contextmanager
    def without(memory: int | None = None) -> Iterator[cgroup.Cgroup]:
        yield cgroup.Cgroup(tmp_path, None, cgroup.V1)

    monkeypatch.setattr(cgroup, "fresh_cgroup", without)
    with pytest.raises(cgroup.CgroupUnavailable, match="skipped: no blkio"):
        cgroup.require_throttle(tmp_path)
    monkeypatch.setattr(cgroup.Cgroup, "limit_reads", lambda *_: os.stat(tmp_path / "missing"))
    with pytest.raises(cgroup.CgroupUnavailable, match="skipped: reads cannot be throttled"):
        cgroup.require_throttle(tmp_path)


def test_dropped_pages_are_read_again(tmp_path: Path) -> None:
    """Also what was written just now; other files keep theirs."""
    folder, other = tmp_path / "model" / "inside", tmp_path / "other"
    folder.mkdir(parents=True)
    for file in (folder / "weights", other):
        file.write_bytes(bytes(10**6))
    page_cache.drop_caches([other])
    if page_cache.cached_bytes([other]):
        pytest.skip("this filesystem is memory")
    other.write_bytes(bytes(10**6))
    assert page_cache.cached_bytes(files_under(tmp_path)) >= 2 * 10**6
    drop_pages([tmp_path / "model"])
    assert page_cache.cached_bytes(files_under(tmp_path / "model")) == 0
    assert page_cache.cached_bytes([other]) >= 10**6
