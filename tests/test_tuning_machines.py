"""What is known of a machine: filesystems, calibrated disks, matmuls, presets, and `edgespec devices`."""

from __future__ import annotations

import json
import math
import os
import re
from collections.abc import Callable
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import psutil
import pytest

from edgespec.apps import main
from edgespec.devices import matmuls, presets, rates
from edgespec.devices.disk import ReadSettings
from edgespec.devices.filesystem import Filesystem, filesystem_of, largest_file
from edgespec.devices.matmuls import ROWS, WEIGHTS_PER_BYTE, Matmuls, recall_matmuls, remember_matmuls
from edgespec.devices.presets import PRESETS
from edgespec.devices.rates import GRID, STALE, ReadRate
from edgespec.errors import ModelError, OptionError
from edgespec.kernels import choice
from edgespec.tuning import machines


@pytest.fixture
def big(tmp_path: Path) -> Path:
    """Large enough to be measured; a hole, which costs no disk."""
    path = tmp_path / "disk" / "big"
    path.parent.mkdir()
    with path.open("wb") as handle:
        handle.truncate(rates.SMALLEST_FILE)
    return path


@pytest.fixture
def quick(monkeypatch: pytest.MonkeyPatch) -> list[ReadSettings]:
    """Trials take no time: 4 MiB requests of two threads read at 2 GB/s, others at 1. Gets what was tried."""
    tried: list[ReadSettings] = []

    def trial(
        fd: int, direct: bool, settings: ReadSettings, start: int, nbytes: int, memory: memoryview
    ) -> tuple[int, float]:
        tried.append(settings)
        return nbytes, nbytes / (2e9 if settings == ReadSettings(2, 4 * 2**20) else 1e9)

    monkeypatch.setattr(rates, "read_part", trial)
    return tried


def mounted(*parts: tuple[str, str, str]) -> Callable[..., list[Any]]:
    return lambda all: [SimpleNamespace(mountpoint=m, fstype=f, opts=o) for m, f, o in parts]


def test_a_path_belongs_to_its_innermost_and_latest_mount(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    inner = tmp_path / "inner"
    (inner / "deep").mkdir(parents=True)
    (tmp_path / "inner-twin").mkdir()
    parts = [("/", "ext4", "rw"), (str(inner), "nfs4", "rw"), (str(inner), "tmpfs", "rw")]
    monkeypatch.setattr(psutil, "disk_partitions", mounted(*parts, (str(tmp_path), "XFS", "rw")))
    assert filesystem_of(inner / "deep") == Filesystem("tmpfs", inner)
    assert filesystem_of(tmp_path / "inner-twin").kind == "xfs"  # a name that begins alike is not inside
    (tmp_path / "link").symlink_to(inner)
    assert filesystem_of(tmp_path / "link").kind == "tmpfs"
    with pytest.raises(OSError):
        filesystem_of(tmp_path / "gone")
    monkeypatch.setattr(psutil, "disk_partitions", mounted())
    assert filesystem_of(tmp_path).place == "disk"


@pytest.mark.parametrize(
    ("kind", "remote", "place"),
    [("ext4", False, "disk"), ("tmpfs", False, "memory"), ("nfs4", False, "network"), ("", True, "network")],
)
def test_where_files_are(kind: str, remote: bool, place: str) -> None:
    assert Filesystem(kind, Path("/"), remote).place == place


def test_the_largest_file_is_found_through_links_and_within_bounds(tmp_path: Path) -> None:
    assert largest_file(tmp_path) is None
    (tmp_path / "a" / "b").mkdir(parents=True)
    (tmp_path / "small").write_bytes(b"12")
    (tmp_path / "a" / "b" / "large").write_bytes(b"12345")
    (tmp_path / "dangling").symlink_to(tmp_path / "gone")
    assert largest_file(tmp_path) == tmp_path / "a" / "b" / "large"
    assert largest_file(tmp_path, entries=0) == tmp_path / "small"
    (tmp_path / "0").symlink_to(tmp_path / "a" / "b" / "large")  # as in the hub's cache
    assert largest_file(tmp_path) == tmp_path / "0"


def test_what_cannot_be_read_is_passed_over(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """As /proc/1/cwd is, whose name can be listed and not asked."""
    for name in ("locked", "open", "round"):
        (tmp_path / name).write_bytes(b"x")
    (tmp_path / "round").unlink()
    (tmp_path / "round").symlink_to(tmp_path / "round")
    real = Path.stat

    def stat(self: Path, *, follow_symlinks: bool = True) -> os.stat_result:
        if self.name == "locked":
            raise PermissionError(13, "Permission denied")
        return real(self, follow_symlinks=follow_symlinks)

    monkeypatch.setattr(Path, "stat", stat)
    assert largest_file(tmp_path) == tmp_path / "open"
    assert largest_file(tmp_path / "gone") is None


def test_other_file_systems_are_not_entered(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Nor are links to their files followed: they may lie on another disk."""
    here, mount = tmp_path / "here", tmp_path / "here" / "mount"
    mount.mkdir(parents=True)
    (here / "small").write_bytes(b"x")
    (mount / "large").write_bytes(b"12345")
    (mount / "deep").mkdir()
    (mount / "deep" / "larger").write_bytes(b"123456")
    (here / "link").symlink_to(mount / "large")
    (here / "hole").touch()
    os.truncate(here / "hole", 2**20)
    real = Path.stat

    def stat(self: Path, *, follow_symlinks: bool = True) -> os.stat_result:
        found = [*real(self, follow_symlinks=follow_symlinks)]
        found[2] = 7 if self.is_relative_to(mount) else 5
        return os.stat_result(found, {"st_blocks": 0 if self.name == "hole" else 8})

    monkeypatch.setattr(Path, "stat", stat)
    assert largest_file(here) == here / "small"
    assert largest_file(mount) == mount / "deep" / "larger"


def test_a_stale_disk_is_measured_again(big: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    now = 1e9

    def measures(gbps: float) -> None:
        def measured(path: Path) -> ReadRate | None:
            return ReadRate(gbps, ReadSettings()) if path.is_file() else None

        monkeypatch.setattr(rates, "measure_reads", measured)

    monkeypatch.setattr(rates, "time", lambda: now)
    measures(2.0)
    assert rates.read_rate(big) == ReadRate(2.0, ReadSettings())
    measures(3.0)
    now += STALE - 1
    assert rates.read_rate(big) == ReadRate(2.0, ReadSettings())
    now += 2
    assert rates.read_rate(big.parent) == ReadRate(2.0, ReadSettings())  # no file to measure with
    assert rates.read_rate(big) == ReadRate(3.0, ReadSettings())
    now -= 10 * STALE  # a clock that was wrong then, or is now
    measures(4.0)
    assert rates.read_rate(big) == ReadRate(4.0, ReadSettings())


def test_a_calibration_tries_the_grid_once_and_sets_the_disk_s_rate(
    big: Path, quick: list[ReadSettings]
) -> None:
    table = rates.read_table(big)
    assert table is not None
    tried = list(GRID)
    assert [rate.settings for rate in table] == tried
    assert quick == tried + [ReadSettings(2, 4 * 2**20)] * rates.ROUNDS, "the quickest twice more"
    assert len(set(GRID)) == len(rates.SIZES) * len(rates.DEPTHS)
    assert rates.read_table(big) == table
    assert rates.read_table(big.parent) == table  # the same disk
    best = rates.read_rate(big)
    assert best is not None
    assert best.settings == ReadSettings(2, 4 * 2**20)
    assert best.gbps == pytest.approx(2.0)
    assert len(quick) == len(GRID) + rates.ROUNDS
    rates.read_table(big, fresh=True)
    assert len(quick) == 2 * (len(GRID) + rates.ROUNDS)


@pytest.mark.parametrize(
    "damage",
    [
        {"gbps": [1.0] * (len(GRID) - 1)},
        {"gbps": [1.0] * (len(GRID) + 1)},
        {"gbps": [1.0] * (len(GRID) - 1) + [math.nan]},
        {"gbps": [0] * len(GRID)},
        {"gbps": "1"},
        {"when": None},
        {"when": 0},
        {"when": 1e30},
        {"when": 10**400},
    ],
)
def test_a_damaged_calibration_is_done_again(
    big: Path, quick: list[ReadSettings], damage: dict[str, object]
) -> None:
    rates.read_table(big)
    file = rates.cache_folder() / "rates.json"
    stored = json.loads(file.read_text())
    (key,) = (key for key in stored["rates"] if key.startswith("reads "))
    stored["rates"][key] |= damage
    file.write_text(json.dumps(stored))
    quick.clear()
    assert rates.read_table(big) is not None
    assert len(quick) == len(GRID) + rates.ROUNDS


# Matmuls.


def some_matmuls() -> Matmuls:
    return Matmuls({"BF16": (*[0.1] * 5, 0.2, 1.5), "U8": (*[0.05] * 3, 0.1, 0.3, 0.6, 2.0)})


def test_matmuls_are_remembered_for_these_kernels_and_processors(monkeypatch: pytest.MonkeyPatch) -> None:
    assert recall_matmuls() is None
    remember_matmuls(some_matmuls(), "torch 1")
    assert recall_matmuls() == recall_matmuls("torch 1") == some_matmuls()
    assert recall_matmuls("torch 2") is None
    monkeypatch.setattr(matmuls, "cpu_count", lambda: 12345)
    assert recall_matmuls() is None


@pytest.mark.parametrize(
    "seconds",
    [
        {},
        [],
        {"BF16": [0.1] * (len(ROWS) - 1)},
        *({"BF16": [0.1] * (len(ROWS) - 1) + [wrong]} for wrong in (-1, math.nan, True, "1", 10**400)),
        {"BF16": "1234567"},
        {"NEW": [0.1] * len(ROWS)},
    ],
    ids=lambda seconds: f"{seconds!s:.60}",
)
def test_absurd_matmuls_are_not_believed(seconds: object) -> None:
    remember_matmuls(some_matmuls(), "k")
    file = rates.cache_folder() / "rates.json"
    stored = json.loads(file.read_text())
    (key,) = stored["rates"]
    for value, found in (({"BF16": [0.1] * len(ROWS)}, True), (seconds, False)):
        stored["rates"][key]["seconds"] = value
        file.write_text(json.dumps(stored))
        assert (recall_matmuls() is not None) == found


def test_matmuls_of_no_time_are_not_believed() -> None:
    remember_matmuls(some_matmuls(), "k")
    file = rates.cache_folder() / "rates.json"
    stored = json.loads(file.read_text())
    (key,) = stored["rates"]
    for when in (10**400, -(10**400), math.nan, True, "now", None):
        stored["rates"][key]["when"] = when
        file.write_text(json.dumps(stored))
        assert recall_matmuls() is None


def test_matmuls_of_rates_read_the_weights_and_then_compute() -> None:
    found = Matmuls.of_rates(memory_gbps=20.0, gflops=100.0)
    assert set(found.seconds) == set(WEIGHTS_PER_BYTE)
    for encoding, seconds in found.seconds.items():
        assert seconds[0] == pytest.approx(1 / 20)
        # 10^9 bytes are so many billions of weights, two operations each for every row.
        assert seconds[-1] == pytest.approx(1 / 20 + 511 * 2 * WEIGHTS_PER_BYTE[encoding] / 100)
    assert WEIGHTS_PER_BYTE["BF16"] == 0.5
    assert WEIGHTS_PER_BYTE["U8"] == 2


def test_every_encoding_is_measured(monkeypatch: pytest.MonkeyPatch) -> None:
    from edgespec.runtimes.torch import matmuls as measured

    for name, value in (("OUT", 32), ("INNER", 256), ("CYCLED", 2**16), ("TRIES", 1)):
        monkeypatch.setattr(measured, name, value)
    settled = list[bool]()
    monkeypatch.setattr(measured, "settle", lambda: settled.append(True))
    found = measured.matmuls()
    assert settled, "else other kernels are measured than engines have"
    assert set(found.seconds) == set(WEIGHTS_PER_BYTE)
    assert all(len(row) == len(ROWS) and min(row) > 0 for row in found.seconds.values())

    def again(encoding: str) -> tuple[float, ...]:
        return (1.0,) * len(ROWS)

    monkeypatch.setattr(measured, "measure", again)
    assert measured.matmuls() == found
    assert measured.matmuls(fresh=True).seconds["F32"] == again("F32")
    monkeypatch.setattr(measured, "kernels_at_work", lambda: "others")
    monkeypatch.setattr(measured, "measure", lambda encoding: (2.0,) * len(ROWS))
    assert measured.matmuls().seconds["F32"] == (2.0,) * len(ROWS)


# Presets.


@pytest.mark.parametrize("preset", PRESETS, ids=lambda preset: preset.name)
def test_a_preset_is_a_machine_whose_figures_have_sources(preset: presets.Preset) -> None:
    for figure in (preset.memory, preset.bandwidth, preset.flash, preset.cores, preset.gflops):
        assert figure.value > 0
        assert len(figure.source) > 4
    machine = preset.machine()
    assert machine.baseline + machine.available < machine.total
    assert machine.memory_gbps < preset.bandwidth.value
    assert machine.read_gbps is not None
    assert machine.read_gbps < preset.flash.value < machine.memory_gbps
    assert machine.matmuls is not None


def test_an_unknown_preset_names_the_near_ones() -> None:
    assert len({preset.name for preset in PRESETS}) == len(PRESETS)
    assert machines.find_preset("raspberry-pi-5").cores.value == 4
    with pytest.raises(OptionError, match=r"mean raspberry-pi-5\?") as caught:
        machines.find_preset("rasberry-pi5")
    assert caught.value.option == "preset"
    with pytest.raises(OptionError, match="mac-m1-8gb or mac-m2-8gb or mac-m4-16gb"):
        machines.find_preset("MAC")
    with pytest.raises(OptionError, match="known are"):
        machines.find_preset("x" * 10_000)
    with pytest.raises(OptionError):
        machines.find_preset("")


# Disks behind a path.


def test_a_path_in_memory_or_on_another_machine_is_said_and_measured(
    big: Path, quick: list[ReadSettings], monkeypatch: pytest.MonkeyPatch
) -> None:
    for kind, said in (("tmpfs", "lie in memory"), ("nfs4", "another machine"), ("ext4", "")):
        monkeypatch.setattr(psutil, "disk_partitions", mounted(("/", kind, "")))
        facts = machines.measure_disk(big)
        assert said in " ".join(facts.notes)
        assert len(facts.notes) == bool(said)
        assert len(facts.rates) == len(GRID)
        assert facts.best is not None


def test_refused_direct_reads_are_said(
    big: Path, quick: list[ReadSettings], monkeypatch: pytest.MonkeyPatch
) -> None:
    real = machines.open_for_reading
    monkeypatch.setattr(machines, "open_for_reading", lambda path: real(path, direct=False))
    facts = machines.measure_disk(big)
    assert facts.direct is False
    assert "direct reads are refused" in facts.notes[-1]


def test_a_directory_without_a_large_file_gets_one_once(
    tmp_path: Path, quick: list[ReadSettings], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(rates, "SMALLEST_FILE", 2**20)
    monkeypatch.setattr(machines, "SMALLEST_FILE", 2**20)
    monkeypatch.setattr(machines, "WRITTEN", 2 * 4 * 2**20)
    folder = tmp_path / "empty"
    folder.mkdir()
    facts = machines.measure_disk(folder)
    assert "written for that" in facts.notes[0]
    assert len(facts.rates) == len(quick) - rates.ROUNDS == len(GRID)
    assert not list(folder.iterdir())
    again = machines.measure_disk(folder)
    assert again.rates == facts.rates
    assert not again.notes  # nothing was written for it
    assert len(quick) == len(GRID) + rates.ROUNDS


def test_what_cannot_be_measured_says_why(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    small = tmp_path / "small"
    small.write_bytes(b"x")
    facts = machines.measure_disk(small)
    assert facts.best is None
    assert facts.rates == ()
    assert "too little to tell" in facts.notes[0]
    monkeypatch.setattr(machines.os, "access", lambda path, mode: False)
    assert "none can be written" in machines.measure_disk(tmp_path).notes[0]
    with pytest.raises(ModelError, match="is not there"):
        machines.measure_disk(tmp_path / "gone")


# The command.


def test_devices_shows_what_was_measured(
    big: Path,
    quick: list[ReadSettings],
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    from edgespec.runtimes.torch import matmuls as measured

    monkeypatch.setattr(measured, "measure", lambda encoding: (*[0.1] * 5, 0.2, 1.0))
    monkeypatch.setattr(psutil, "disk_partitions", mounted(("/", "tmpfs", "")))
    assert main.run(["devices", str(big), "--json"]) == 0
    found = json.loads(capsys.readouterr().out)
    assert found["disk"]["place"] == "memory"
    assert len(found["disk"]["rates"]) == len(GRID)
    assert found["matmuls"]["rows"] == list(ROWS)
    assert found["matmuls"]["seconds_per_gb"]["BF16"] == [*[0.1] * 5, 0.2, 1.0]
    assert main.run(["devices", str(big)]) == 0
    shown = capsys.readouterr()
    assert re.search(r"BF16( +10){5} +5 +1\n", shown.out)
    assert "reads at 2 GB/s: 4096 KiB each, 2 at a time" in shown.out
    if found["choices"]:
        assert len(found["choices"]["Q4_K"]["ways"]) == len(choice.ROWS)
        assert re.search(r"  Q4_K +1.* rows ", shown.out)
    assert "lie in memory" in shown.err
    # The disk's rate, measured later by itself, differs from the table's: that is said.
    monkeypatch.setattr(rates, "read_part", lambda fd, direct, s, start, n, memory: (n, n / 3e9))
    rates.read_rate(big, fresh=True)
    assert main.run(["devices", str(big)]) == 0
    words = " ".join(capsys.readouterr().out.split())
    assert "reads at 3 GB/s: 4096 KiB each, 2 at a time tries, GB/s" in words
    assert "4096 KiB 1 2 1 1 8192" in words
    assert "plans go by the rate above, which was measured apart, and by 4096 KiB each, 2 at a time" in words
    assert all(len(line) <= 80 for line in shown.out.split("\n")), shown.out
    assert main.run(["devices", str(big.parent / "gone")]) == 1
    assert "is not there" in capsys.readouterr().err


def test_more_rows_are_not_shown_to_be_faster(
    big: Path,
    quick: list[ReadSettings],
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    """Of many rows one matrix is multiplied again and again, which a cache keeps."""
    from edgespec.runtimes.torch import matmuls as measured

    monkeypatch.setattr(measured, "measure", lambda encoding: (0.2, 0.2, 0.05, 0.1, 1.0))
    assert main.run(["devices", str(big)]) == 0
    assert re.search(r"BF16( +5){4} +1\n", capsys.readouterr().out)


def test_devices_shows_presets(capsys: pytest.CaptureFixture[str]) -> None:
    assert main.run(["devices", "--preset", "list"]) == 0
    shown = capsys.readouterr().out
    assert all(preset.name in shown for preset in PRESETS)
    assert main.run(["tune", "m", "--preset", "list"]) == 0
    assert capsys.readouterr().out == shown
    assert main.run(["devices", "--preset", "list", "--json"]) == 0
    assert json.loads(capsys.readouterr().out)[0]["bandwidth"]["source"] == PRESETS[0].bandwidth.source
    assert main.run(["devices", "--preset", "rasp"]) == 2
    assert "--preset 'rasp' is unknown; did you mean raspberry-pi-5?" in capsys.readouterr().err
