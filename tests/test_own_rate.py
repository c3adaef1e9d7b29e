"""A file that is too small to tell of its disk is measured as it streams: by itself, again and again."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from edgespec.devices import machine, own_rate, rates
from edgespec.devices.own_rate import LEAST
from edgespec.devices.rates import ReadRate
from tests.machine import measure


@pytest.fixture
def file(tmp_path: Path) -> Path:
    path = tmp_path / "model"
    path.write_bytes(os.urandom(LEAST + 12_345))
    return path


def test_it_is_the_files_own(file: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    paces = iter([9.0, 1.0, 2.0, 4.0, 2.0])  # GB/s of each round; the first brings it into a cache perhaps
    seen = []

    def part(descriptor: int, direct: bool, reads: object, start: int, nbytes: int, *rest: object) -> object:
        seen.append((start, nbytes))
        return nbytes, nbytes / next(paces) / 1e9

    monkeypatch.setattr(own_rate, "read_part", part)
    assert own_rate.own_rate(file) == ReadRate(pytest.approx(2.0), own_rate.SETTINGS)
    assert seen == [(0, file.stat().st_size)] * own_rate.ROUNDS


def test_a_slow_disk_is_seen_to_be_slow(file: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Two at once, of 2 MiB, each 50 ms beside its bytes: not more than 0.09 GB/s."""
    from time import sleep

    real = rates.read_at

    def slow(descriptor: int, view: memoryview, offset: int) -> int:
        sleep(0.05)
        return real(descriptor, view, offset)

    monkeypatch.setattr(rates, "read_at", slow)
    found = own_rate.own_rate(file)
    assert found is not None
    assert 0.02 < found.gbps < 2 * own_rate.REQUEST / 0.05 / 1e9


def test_other_files_are_not_measured_so(file: Path, tmp_path: Path) -> None:
    assert own_rate.own_rate(tmp_path / "gone") is None
    os.truncate(file, LEAST - 1)
    assert own_rate.own_rate(file) is None
    os.truncate(file, rates.SMALLEST_FILE)  # that tells of its disk
    assert own_rate.own_rate(file) is None


def test_machines_go_by_it(file: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """What is remembered of the disk is of large reads."""
    own = ReadRate(0.4, own_rate.SETTINGS)
    monkeypatch.setattr(machine, "own_rate", lambda path: own if path == file else None)
    monkeypatch.setattr(machine, "read_rate", lambda path: ReadRate(3.0, own_rate.SETTINGS))
    monkeypatch.setattr(machine, "memory_rate", lambda: 10.0)
    assert measure(file).read_gbps == machine.Machine.remembered(file).read_gbps == 0.4
    assert machine.Machine.remembered(file.parent).read_gbps == 3.0
