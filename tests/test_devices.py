"""Facts about the machine: cgroups of both versions, features, disks, and rates that are remembered."""

from __future__ import annotations

import json
import os
import subprocess
import sys
import threading
from collections.abc import Iterator
from pathlib import Path

import numpy as np
import psutil
import pytest

from edgespec.devices import allocator, cgroup, probe, rates
from edgespec.devices.cgroup import MemoryCgroup, cpu_quota, memory_cgroups
from edgespec.devices.disk import ReadSettings, aligned_buffer
from edgespec.errors import DeviceError

GB = 10**9
MACHINE = psutil.virtual_memory().total


def write(folder: Path, **files: object) -> None:
    folder.mkdir(parents=True, exist_ok=True)
    for name, text in files.items():
        (folder / name.replace("__", ".")).write_text(f"{text}\n")


@pytest.fixture
def v1(tmp_path: Path) -> Path:
    """A process in /user/job of a version 1 hierarchy: /user is limited, /user/job more tightly."""
    point = tmp_path / "sys" / "me mory"
    unlimited = 9223372036854771712
    for place, limit, usage, idle in [("", unlimited, 9 * GB, 0), ("user", 4 * GB, 3 * GB, GB)]:
        write(point / place, memory__limit_in_bytes=limit, memory__usage_in_bytes=usage, memory__failcnt=0)
        write(point / place, memory__stat=f"cache 1\ntotal_inactive_file {idle}")
    write(
        point / "user/job",
        memory__limit_in_bytes=3 * GB,
        memory__usage_in_bytes=GB,
        memory__max_usage_in_bytes=2 * GB,
        memory__failcnt=7,
        memory__stat="inactive_file 5\ntotal_inactive_file 250000000",
    )
    mount = str(point).replace(" ", r"\040")
    write(
        tmp_path / "proc",
        cgroup="5:cpu,cpuacct:/x\n4:memory:/user/job\n0::/",
        mountinfo=f"30 20 0:1 / {tmp_path}/other rw - cgroup2 cgroup2 rw\n"
        f"31 20 0:2 / {mount} rw,relatime shared:9 - cgroup cgroup rw,memory",
    )
    return tmp_path


@pytest.fixture
def v2(tmp_path: Path) -> Path:
    """A container: the mount shows the tree from /docker/abc on, where the process is in /docker/abc/job."""
    point = tmp_path / "cg"
    write(point / "job", memory__max="max", memory__current=GB, memory__stat="inactive_file 0")
    write(
        point,
        memory__max=2 * GB,
        memory__current=GB,
        memory__peak=GB + 5,
        memory__stat="anon 1\ninactive_file 400000000\nactive_file 2",
        memory__events="low 0\nhigh 0\nmax 3\noom 0",
    )
    write(
        tmp_path / "proc",
        cgroup="0::/docker/abc/job",
        mountinfo=f"30 20 0:1 /docker/abc {point} rw - cgroup2 cgroup2 rw,nsdelegate",
    )
    return tmp_path


def test_version_1_groups_from_the_inside_out(v1: Path) -> None:
    groups = memory_cgroups(v1 / "proc")
    assert [g.limit for g in groups] == [3 * GB, 4 * GB, None]
    inner = v1 / "sys/me mory/user/job"
    assert groups[0] == MemoryCgroup(
        inner := v1 / "sys/me mory/user/job",
        3 * GB,
        GB,
        reclaimable=250_000_000,
        limit_hits=7,
        peak_file=inner / "memory.max_usage_in_bytes",
    )
    assert groups[0].peak == 2 * GB
    assert [g.available for g in groups] == [2 * GB + 250_000_000, 2 * GB, None]


def test_version_2_groups_in_a_container(v2: Path) -> None:
    groups = memory_cgroups(v2 / "proc")
    assert [(g.limit, g.peak, g.limit_hits) for g in groups] == [(None, None, 0), (2 * GB, GB + 5, 3)]
    assert groups[1].available == GB + 400_000_000


def test_a_path_outside_the_mount_means_the_mount_itself(v2: Path) -> None:
    for path in ("/elsewhere", "/../other", "/docker/abcdef"):
        (v2 / "proc/cgroup").write_text(f"0::{path}\n")
        assert [g.path for g in memory_cgroups(v2 / "proc")] == [v2 / "cg"]


def test_no_cgroups(tmp_path: Path) -> None:
    assert memory_cgroups(tmp_path) == []
    write(tmp_path, cgroup="0::/", mountinfo="1 1 0:1 / / rw - ext4 /dev/sda rw")
    assert memory_cgroups(tmp_path) == []


def test_processors_are_the_least_that_a_cgroup_allows(v2: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    proc = v2 / "proc"
    assert cpu_quota(proc) is None  # no cpu.max: the controller is off
    write(v2 / "cg/job", cpu__max="max 100000")
    assert cpu_quota(proc) is None
    write(v2 / "cg", cpu__max="250000 100000")
    assert cpu_quota(proc) == 2.5
    write(v2 / "cg/job", cpu__max="50000 100000")
    assert cpu_quota(proc) == 0.5
    for damaged in ("", "0 100000", "50000 0", "50000", "1 2 3", "x y"):
        write(v2 / "cg/job", cpu__max=damaged)
        assert cpu_quota(proc) == 2.5
    free = probe.cpu_count()
    for quota, count in ((0.5, 1), (1.0, 1), (free + 0.5, free), (None, free)):
        monkeypatch.setattr(probe, "cpu_quota", lambda quota=quota: quota)
        assert probe.cpu_count() == count or sys.platform != "linux"


def test_processors_of_version_1(v1: Path) -> None:
    point = v1 / "cpu"
    write(point / "x", cpu__cfs_quota_us=-1, cpu__cfs_period_us=100000)
    with (v1 / "proc/mountinfo").open("a") as mounts:
        mounts.write(f"32 20 0:3 / {point} rw - cgroup cgroup rw,cpu,cpuacct\n")
    assert cpu_quota(v1 / "proc") is None
    write(point, cpu__cfs_quota_us=150000, cpu__cfs_period_us=100000)
    assert cpu_quota(v1 / "proc") == 1.5


def test_memory_is_the_least_of_machine_and_cgroups(v1: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    assert 0 < probe.memory_available() <= probe.memory_total() <= MACHINE
    groups = memory_cgroups(v1 / "proc")
    monkeypatch.setattr(probe, "memory_cgroups", lambda: groups)
    assert probe.memory_total() == min(MACHINE, 3 * GB)
    assert probe.memory_available() <= 2 * GB  # the outer group is nearer its limit
    monkeypatch.setattr(probe, "memory_cgroups", lambda: groups[2:])
    assert probe.memory_total() == MACHINE
    monkeypatch.setattr(probe, "memory_cgroups", lambda: [MemoryCgroup(v1, GB, 2 * GB, 0, 0, v1)])
    assert probe.memory_available() == 0  # over its limit, never negative


@pytest.fixture
def look_again() -> Iterator[None]:
    """Forget which cgroup this process is in, before and after."""
    probe._own_cgroup.cache_clear()
    yield
    probe._own_cgroup.cache_clear()


@pytest.mark.usefixtures("look_again")
@pytest.mark.parametrize(
    ("processes", "limit", "counts"),
    [("{me}", 3 * GB, True), ("{me}\n1", 3 * GB, False), ("{me}", "max", False)],
)
def test_the_peak_is_that_of_a_limited_cgroup_of_ones_own(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, processes: str, limit: object, counts: bool
) -> None:
    write(
        tmp_path,
        memory__max=limit,
        memory__current=GB,
        memory__peak=900 * GB,
        cgroup__procs=processes.format(me=os.getpid()),
    )
    group = cgroup._read_v2(tmp_path)
    assert group is not None
    monkeypatch.setattr(probe, "memory_cgroups", lambda: [group])
    assert (probe.peak_memory() == 900 * GB) is counts
    assert counts or 0 < probe.peak_memory() < MACHINE
    if counts:  # read anew each time, and never less than the process alone
        (tmp_path / "memory.peak").write_text("950000000000")
        assert probe.peak_memory() == 950 * GB
        (tmp_path / "memory.peak").write_text("5")
        assert 5 < probe.peak_memory() < MACHINE


@pytest.mark.skipif(sys.platform != "linux", reason="/proc")
def test_a_peak_is_read_only_where_it_may_have_risen(monkeypatch: pytest.MonkeyPatch) -> None:
    """And read where the system's other number is of the time before exec, or before it was forgotten."""
    highest = probe._high_water(2**60)
    assert probe._high_water(2**60) >= highest > 2**20
    with monkeypatch.context() as patch:
        patch.setattr(probe, "Path", None)  # nothing is read
        assert probe._high_water(probe._highest) == probe._highest
    grown = np.ones(2**25 + highest // 8)
    assert probe.peak_memory() >= highest + 2**20
    assert len(grown)


def test_peak_memory_outlives_the_memory() -> None:
    script = (
        "from edgespec.devices.probe import process_memory\n"
        "before = process_memory()\n"
        "bytes_ = bytearray(64 * 2**20)\n"
        "during = process_memory().current\n"
        "del bytes_\n"
        "after = process_memory()\n"
        "print(during - before.current, after.peak - before.current, after.current - before.current)\n"
    )
    out = subprocess.run(
        [sys.executable, "-c", script],
        capture_output=True,
        text=True,
        check=True,
        cwd=Path(__file__).parent.parent,
    ).stdout
    during, peak, after = (int(n) for n in out.split())
    assert during > 60 * 2**20
    assert peak > 60 * 2**20
    assert after < 16 * 2**20


def test_processor_features_by_linux_names() -> None:
    x86 = "processor\t: 0\nflags\t\t: fpu avx2 amx_bf16\nbugs\t: x\n\nprocessor\t: 1\nflags\t: fpu\n"
    arm = "BogoMIPS\t: 50\nFeatures\t: fp asimd bf16 i8mm\nCPU part\t: 0xd4f\n"
    mac = "hw.optional.floatingpoint: 1\nhw.optional.arm.FEAT_BF16: 1\nhw.optional.arm.FEAT_SME: 0\n"
    assert probe.parse_features(x86) == {"fpu", "avx2", "amx_bf16"}
    assert probe.parse_features(arm) == {"fp", "asimd", "bf16", "i8mm"}
    assert probe.parse_features(mac + "hw.optional.avx2_0: 1\n") == {"floatingpoint", "bf16", "avx2"}
    assert probe.parse_features("") == frozenset()


def test_this_machine_answers() -> None:
    assert probe.cpu_name()
    assert probe.cpu_count() >= 1
    assert isinstance(probe.unified_memory(), bool)
    if sys.platform == "linux":
        assert probe.cpu_features()


def test_the_disk_of_a_file(tmp_path: Path) -> None:
    disk = probe.disk_of(tmp_path)
    number = tmp_path.stat().st_dev
    if sys.platform == "linux":
        assert disk.device == f"{os.major(number)}:{os.minor(number)}"
        assert (disk.name is None) == (disk.rotational is None) == (disk.nbytes is None)
    with pytest.raises(OSError):
        probe.disk_of(tmp_path / "gone")


# Rates.


@pytest.fixture
def cache(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """The cache file, in a folder that does not exist yet."""
    monkeypatch.setenv("EDGESPEC_CACHE", str(tmp_path / "cache" / "deep"))
    return tmp_path / "cache" / "deep" / "rates.json"


@pytest.fixture
def big(tmp_path: Path) -> Path:
    """Large enough to be measured; a hole, which costs no disk."""
    path = tmp_path / "big"
    with path.open("wb") as handle:
        handle.truncate(rates.SMALLEST_FILE)
    return path


def test_a_read_rate_is_measured_once(cache: Path, big: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    first = rates.read_rate(big)
    assert first is not None
    assert first.gbps > 0
    assert first.settings in rates.CANDIDATES
    assert json.loads(cache.read_text())["version"] == rates.VERSION
    assert [p.name for p in cache.parent.iterdir()] == ["rates.json"]  # nothing temporary is left

    def again(path: Path) -> rates.ReadRate:
        return rates.ReadRate(1.5, ReadSettings(3, 2**20))

    monkeypatch.setattr(rates, "measure_reads", again)
    assert rates.read_rate(big) == first
    assert rates.read_rate(big, fresh=True) == again(big)
    assert rates.read_rate(big) == again(big)
    small = big.with_name("small")
    small.write_bytes(b"x")
    assert rates.read_rate(small) == again(big)  # same disk


def test_reads_go_into_memory_as_the_ring_has_it(
    cache: Path, big: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """All of it in turn, each thread its own part; nothing of `measure_reads` is remembered."""
    seen: list[tuple[int, int, int]] = []  # threads, addresses and lengths
    made: list[memoryview] = []
    read, buffer = rates.read_at, rates.aligned_buffer

    def reads(descriptor: int, view: memoryview, offset: int) -> int:
        seen.append((threading.get_ident(), np.frombuffer(view, np.uint8).ctypes.data, len(view)))
        return read(descriptor, view, offset)

    def remade(nbytes: int) -> memoryview:
        made.append(buffer(nbytes))
        return made[-1]

    monkeypatch.setattr(rates, "SECONDS", 1e9)
    monkeypatch.setattr(rates, "ROUNDS", 1)
    monkeypatch.setattr(rates, "CANDIDATES", (ReadSettings(2, 4 * 2**20),))
    monkeypatch.setattr(rates, "TRIALS", 1)
    monkeypatch.setattr(rates, "read_at", reads)
    monkeypatch.setattr(rates, "aligned_buffer", remade)
    found = rates.measure_reads(big)
    assert found is not None
    assert found.gbps > 0
    assert not cache.exists()
    (memory,) = made
    assert len(memory) == rates.MEMORY
    start = np.frombuffer(memory, np.uint8).ctypes.data
    assert {length for *_, length in seen} == {4 * 2**20}
    assert {address for _, address, _ in seen} <= {start + at for at in range(0, rates.MEMORY, 4 * 2**20)}
    for thread in {one for one, *_ in seen}:
        places = [address for one, address, _ in seen if one == thread]
        assert len(set(places)) == min(len(places), rates.MEMORY // (2 * 4 * 2**20))
        assert max(places) - min(places) < rates.MEMORY // 2
    assert rates.measure_reads(big.with_name("gone")) is None


def test_rates_by_another_way_of_measuring_are_not_taken(
    cache: Path, big: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def two(path: Path) -> rates.ReadRate:
        return rates.ReadRate(2.0, ReadSettings())

    with monkeypatch.context() as then:
        then.setattr(rates, "measure_reads", two)
        then.setattr(rates, "READS", rates.READS - 1)
        assert rates.read_rate(big) == two(big)
    monkeypatch.setattr(rates, "measure_reads", lambda path: rates.ReadRate(3.0, ReadSettings()))
    assert rates.read_rate(big) == rates.ReadRate(3.0, ReadSettings())


def test_a_disk_is_unknown_where_the_system_has_no_memory_to_measure_with(
    cache: Path, big: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def refused(nbytes: int) -> memoryview:
        raise DeviceError("none left")

    monkeypatch.setattr(rates, "aligned_buffer", refused)
    assert rates.read_rate(big) is None
    assert rates.read_table(big) is None
    assert not cache.exists()


def test_unknown_is_none_not_nonsense(cache: Path, tmp_path: Path) -> None:
    (tmp_path / "small").write_bytes(bytes(10**6))
    assert rates.read_rate(tmp_path / "small") is None
    assert rates.read_rate(tmp_path / "gone") is None
    assert not cache.exists()


def test_the_probe_reads_disjoint_parts_within_its_budget(big: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    seen: list[tuple[ReadSettings, int, int]] = []

    def trial(
        fd: int, direct: bool, settings: ReadSettings, start: int, nbytes: int, memory: memoryview
    ) -> tuple[int, float]:
        seen.append((settings, start, nbytes))
        return nbytes, {0: 1.0, 1: 0.9, 2: 2.0, 3: 0.8, 4: 2.0}[rates.CANDIDATES.index(settings)]

    monkeypatch.setattr(rates, "read_part", trial)
    best = rates.measure_reads(big)
    assert best is not None
    assert best.settings == rates.CANDIDATES[3]  # 1.25 times the default's rate
    part = rates.SMALLEST_FILE // rates.TRIALS
    assert best.gbps == pytest.approx(part / 0.8 / 1e9)
    assert [start for _, start, _ in seen] == [i * part for i in range(rates.TRIALS)]
    assert all(nbytes <= part for *_, nbytes in seen)
    assert sum(nbytes for *_, nbytes in seen) <= rates.BYTES


def test_the_default_wins_ties(big: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def trial(
        fd: int, direct: bool, settings: ReadSettings, start: int, nbytes: int, memory: memoryview
    ) -> tuple[int, float]:
        return nbytes, 1.0 if settings == rates.CANDIDATES[0] else 0.9

    monkeypatch.setattr(rates, "read_part", trial)
    best = rates.measure_reads(big)
    assert best is not None
    assert best.settings == ReadSettings()


def test_a_trial_reads_each_request_once(big: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    offsets: list[int] = []
    real = os.preadv

    def preadv(descriptor: int, buffers: list[object], offset: int) -> int:
        offsets.append(offset)
        return real(descriptor, buffers, offset)

    monkeypatch.setattr(os, "preadv", preadv)
    monkeypatch.setattr(rates, "SECONDS", 1e9)
    with big.open("rb") as handle:
        moved, seconds = rates.read_part(
            handle.fileno(),
            False,
            ReadSettings(3, 2**20),
            5 * 2**20 + 7,
            9 * 2**20 + 5,
            aligned_buffer(2**22),
        )
    assert sorted(offsets) == [i * 2**20 for i in range(5, 14)]
    assert moved == 9 * 2**20
    assert seconds > 0


def test_memory_rate_is_remembered(cache: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    first = rates.memory_rate()
    assert 0.1 < first < 10_000
    monkeypatch.setattr(rates, "measure_memory", lambda: 42.0)
    assert rates.memory_rate() == first
    assert rates.memory_rate(fresh=True) == 42.0
    assert rates.memory_rate() == 42.0


BAD_FILES = [
    b"",
    b"{",
    b"\xff\xfe",
    b"[]",
    b"null",
    b'{"version": 2, "rates": {"KEY": 7.0}}',
    b'{"version": 1, "rates": []}',
    b'{"version": 1}',
    b"[" * 100_000,
    b'{"version": 1, "rates": {"KEY": 7.0}, "pad": "' + b"x" * 2**20 + b'"}',
]
BAD_RATES = ["NaN", "Infinity", "-1", "0", "1e9", "true", '"7"', "null", "[7]", "{}"]


BAD_FILES += [b'{"version": 1, "rates": {"KEY": %s}}' % rate.encode() for rate in BAD_RATES]


@pytest.mark.parametrize("text", BAD_FILES, ids=range(len(BAD_FILES)))
def test_a_damaged_cache_is_measured_again(cache: Path, text: bytes, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(rates, "measure_memory", lambda: 42.0)
    rates.memory_rate()
    key = next(iter(json.loads(cache.read_text())["rates"]))
    cache.write_bytes(text.replace(b"KEY", key.encode()))
    monkeypatch.setattr(rates, "measure_memory", lambda: 43.0)
    assert rates.memory_rate() == 43.0
    monkeypatch.setattr(rates, "measure_memory", lambda: 44.0)
    assert rates.memory_rate() == 43.0  # and it is remembered again


@pytest.mark.parametrize(
    "change",
    [
        {"gbps": 0},
        {"gbps": "2"},
        {"threads": 0},
        {"threads": 10**6},
        {"threads": 2.0},
        {"threads": True},
        {"request_bytes": 4097},
        {"request_bytes": 2**40},
        {"request_bytes": None},
        {"direct": 1},
        {"more": 1},
    ],
)
def test_absurd_read_rates_are_not_believed(
    cache: Path, big: Path, change: dict[str, object], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(rates, "measure_reads", lambda path: rates.ReadRate(2.0, ReadSettings()))
    rates.read_rate(big)
    table = json.loads(cache.read_text())
    (key,) = table["rates"]
    table["rates"][key] |= change
    cache.write_text(json.dumps(table))
    monkeypatch.setattr(rates, "measure_reads", lambda path: rates.ReadRate(3.0, ReadSettings()))
    assert rates.read_rate(big) == rates.ReadRate(3.0, ReadSettings())


def test_a_cache_that_cannot_be_written_is_done_without(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "file").write_text("in the way")
    monkeypatch.setenv("EDGESPEC_CACHE", str(tmp_path / "file" / "cache"))
    monkeypatch.setattr(rates, "measure_memory", lambda: 42.0)
    assert rates.memory_rate() == 42.0


def test_the_cache_folder_of_each_system(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.delenv("EDGESPEC_CACHE", raising=False)
    monkeypatch.setenv("HOME", str(tmp_path))
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "xdg"))
    monkeypatch.setenv("LOCALAPPDATA", str(tmp_path / "local"))
    for system, folder in [("linux", "xdg"), ("darwin", "Library/Caches"), ("win32", "local")]:
        monkeypatch.setattr(rates.sys, "platform", system)
        assert rates.cache_folder() == tmp_path / folder / "edgespec"
    monkeypatch.setattr(rates.sys, "platform", "linux")
    monkeypatch.setenv("XDG_CACHE_HOME", "relative")  # the standard says: ignore it
    assert rates.cache_folder() == tmp_path / ".cache" / "edgespec"


def test_no_torch_is_imported() -> None:
    modules = "edgespec.devices.probe, edgespec.devices.rates, edgespec.offload.streamer"
    script = f"import sys, {modules}\nprint([m for m in ('torch', 'transformers') if m in sys.modules])"
    out = subprocess.run(
        [sys.executable, "-c", script],
        capture_output=True,
        text=True,
        check=True,
        cwd=Path(__file__).parent.parent,
    ).stdout
    assert out.strip() == "[]"


def test_cgroup_files_that_are_not_numbers_are_no_limit(tmp_path: Path) -> None:
    write(tmp_path, memory__max="garbage", memory__current=5)
    group = cgroup._read_v2(tmp_path)
    assert group is not None
    assert group.limit is None


def test_holes_are_given_back_once_for_each_growth(monkeypatch: pytest.MonkeyPatch) -> None:
    mb, resident, trims = 2**20, [100 * 2**20], []

    def trim(pad: int) -> int:
        trims.append(resident[0])
        resident[0] -= 4 * mb
        return 1

    monkeypatch.setattr(allocator, "_glibc", {"malloc_trim": trim}.get)
    monkeypatch.setattr(allocator, "_resident", lambda: resident[0])
    holes = allocator.Holes()
    for now in (100, 108, 109, 113, 90, 99, 99):
        resident[0] = now * mb
        holes.look()
    assert trims == [109 * mb, 99 * mb]  # each time beyond what was left, or less that was in use since

    monkeypatch.setattr(allocator, "_glibc", lambda name: None)
    elsewhere = allocator.Holes()
    resident[0] = 10**12
    elsewhere.look()
    assert len(trims) == 2


GROWS = """
import os
from edgespec.devices import allocator
before = allocator._resident()
held = bytearray(64 * 2**20)
for place in range(0, len(held), 4096):
    held[place] = 1
assert allocator._resident() > before + 60 * 2**20
parent = allocator._resident()
if (child := os.fork()) == 0:
    more = bytearray(b"1") * (64 * 2**20)
    os._exit(allocator._resident() < parent + 60 * 2**20)
assert os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == 0
"""


@pytest.mark.skipif(sys.platform != "linux", reason="glibc's allocator, and Linux's /proc")
def test_a_process_knows_what_it_holds_and_so_does_one_forked_from_it() -> None:
    subprocess.run([sys.executable, "-c", GROWS], check=True, timeout=60)
