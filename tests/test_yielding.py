"""What the system says of its memory, and who gives way to it."""

from __future__ import annotations

import queue
import time
from pathlib import Path

import pytest

from edgespec.apps import yielding
from edgespec.apps.yielding import AGAIN, PART, Yielding, giving_way
from edgespec.devices import pressure
from edgespec.devices.pressure import Pressure, memory_pressure
from edgespec.errors import BudgetError, ClosedError, StorageError
from tests.fake_engine import FakeEngine

GB = 10**9
PSI = "some avg10={} avg60=0.00 avg300=0.00 total=55\nfull avg10=99.00 avg60=0.00 avg300=0.00 total=4\n"


def write(path: Path, text: str) -> None:
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(text)


@pytest.fixture
def proc(tmp_path: Path) -> Path:
    """A machine with version 1 for memory and version 2 beside it, as systemd's hybrid has it."""
    mount = "1 1 0:1 / {0} rw - {1} {1} rw{2}\n"
    text = mount.format(tmp_path / "v1", "cgroup", ",memory") + mount.format(tmp_path / "v2", "cgroup2", "")
    write(tmp_path / "proc/self/mountinfo", text)
    write(tmp_path / "proc/self/cgroup", "4:memory:/x\n0::/job/inner\n")
    return tmp_path / "proc"


def test_who_tells_nothing_is_no_pressure(proc: Path, tmp_path: Path) -> None:
    assert memory_pressure(tmp_path / "nothing") is None
    assert memory_pressure(proc) is None


def test_the_worst_of_machine_and_cgroups_counts(proc: Path, tmp_path: Path) -> None:
    write(proc / "pressure/memory", PSI.format("3.50"))
    assert memory_pressure(proc) == Pressure(3.5, None)
    write(tmp_path / "v2/job/memory.pressure", PSI.format("12.00"))
    write(tmp_path / "v2/job/inner/memory.high", "max\n")
    assert memory_pressure(proc) == Pressure(12.0, None)
    write(tmp_path / "v2/job/memory.high", f"{3 * GB}\n")
    write(tmp_path / "v2/memory.high", f"{4 * GB}\n")
    assert memory_pressure(proc) == Pressure(12.0, 3 * GB)
    for damaged in ("", "some", "some avg10=x", "some avg10=", "\0" * 9):
        write(proc / "pressure/memory", damaged)
        assert memory_pressure(proc) == Pressure(12.0, 3 * GB)


def test_this_system_is_read_without_harm() -> None:
    found = memory_pressure()
    if found is None or found.stalled is None:
        pytest.skip("this system does not count how long memory is waited for")
    assert 0 <= found.stalled <= 100


class Machine:
    """What `memory_pressure` tells, and the time."""

    def __init__(self) -> None:
        self.now, self.told = 100.0, Pressure(0.0, None)


@pytest.fixture
def machine(monkeypatch: pytest.MonkeyPatch) -> Machine:
    machine = Machine()
    monkeypatch.setattr(yielding, "memory_pressure", lambda: machine.told)
    return machine


def test_the_dial_goes_down_under_pressure_and_never_up(machine: Machine) -> None:
    engine = FakeEngine()
    way = Yielding(engine, lambda: machine.now)  # type: ignore[arg-type]
    assert way.look() is None
    machine.told = Pressure(50.0, None)
    said = way.look()
    assert said is not None
    assert "50% of the time" in said
    assert engine.plan.dial == PART * 8 * GB
    machine.now += AGAIN / 2
    assert way.look() is None, "what was given back has to show first"
    machine.now += AGAIN / 2
    assert way.look() is not None
    assert engine.plan.dial == PART * PART * 8 * GB
    machine.told = Pressure(0.0, 2 * GB)
    machine.now += 1
    said = way.look()
    assert said is not None
    assert "memory.high is 2 GB" in said
    assert engine.plan.dial == 2 * GB
    machine.told = Pressure(0.0, None)
    machine.now += 100
    assert way.look() is None
    assert engine.plan.dial == 2 * GB


def test_not_below_what_is_needed(machine: Machine) -> None:
    engine = FakeEngine()  # needs 1 GB
    way = Yielding(engine, lambda: machine.now)  # type: ignore[arg-type]
    machine.told = Pressure(0.0, GB // 2)
    assert way.look() is not None
    assert engine.plan.dial == GB
    for _ in range(3):
        machine.now += 100
        assert way.look() is None


def test_all_is_needed_or_nothing_can_be_given(machine: Machine, monkeypatch: pytest.MonkeyPatch) -> None:
    for error, words in [
        (BudgetError("no", {}, GB, 9 * GB), "is needed"),
        (StorageError("broken"), "broken"),
    ]:
        engine = FakeEngine()

        def fail(memory: object, error: Exception = error) -> None:
            raise error

        monkeypatch.setattr(engine, "set_memory", fail)
        way = Yielding(engine, lambda: machine.now)  # type: ignore[arg-type]
        machine.told = Pressure(90.0, None)
        said = way.look()
        assert said is not None
        assert words in said
        machine.now += 100
        assert way.look() is None, "said once"


def test_who_counts_nobody_that_waits_tells_what_is_left(proc: Path) -> None:
    """Android keeps apps from /proc/pressure."""
    for left, short in [(600_000, True), (1_000_000, False)]:
        write(proc / "meminfo", f"MemTotal:       16000000 kB\nMemAvailable:   {left} kB\n")
        assert memory_pressure(proc) == Pressure(None, None, short)
    for damaged in (
        "MemTotal: 16 kB\n",
        "MemTotal: 0 kB\nMemAvailable: 0 kB\n",
        "MemTotal: 16\nMemAvailable: 1\n",
    ):
        write(proc / "meminfo", damaged)
        assert memory_pressure(proc) is None
    write(proc / "meminfo", "MemTotal: 16000000 kB\nMemAvailable: 1 kB\n")
    write(proc / "pressure/memory", PSI.format("0.50"))
    assert memory_pressure(proc) == Pressure(0.5, None), "who counts knows better"


def test_macos_has_levels(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(pressure.sys, "platform", "darwin")
    for level, told in [("1\n", False), ("2\n", True), ("4\n", True)]:
        monkeypatch.setattr(pressure, "sysctl", {"kern.memorystatus_vm_pressure_level": level}.__getitem__)
        assert memory_pressure() == Pressure(None, None, told)
    monkeypatch.setattr(pressure, "sysctl", lambda name: "")
    assert memory_pressure() is None


def test_a_system_that_is_short_of_memory(machine: Machine) -> None:
    engine = FakeEngine()
    way = Yielding(engine, lambda: machine.now)  # type: ignore[arg-type]
    machine.told = Pressure(None, None, short=True)
    said = way.look()
    assert said is not None
    assert "the system is short of memory" in said
    assert engine.plan.dial == PART * 8 * GB
    assert way.look() is None, "what was given back has to show first"


def test_it_looks_now_and_beside_whatever_runs(machine: Machine, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(yielding, "LOOK", 0.001)
    engine, said = FakeEngine(), queue.Queue[str]()
    machine.told = Pressure(0.0, 6 * GB)
    with giving_way(engine, said.put):  # type: ignore[arg-type]
        assert "6 GB" in said.get_nowait(), "before anything runs"
        machine.told = Pressure(0.0, 3 * GB)
        assert "3 GB" in said.get(timeout=60)
        assert engine.plan.dial == 3 * GB
    machine.told = Pressure(0.0, 2 * GB)
    time.sleep(0.05)
    assert engine.plan.dial == 3 * GB, "no longer"


def test_a_closed_engine_is_left_alone(machine: Machine, monkeypatch: pytest.MonkeyPatch) -> None:
    engine = FakeEngine()

    def closed(memory: object) -> None:
        raise ClosedError("the engine was closed")

    monkeypatch.setattr(engine, "set_memory", closed)
    machine.told = Pressure(90.0, None)
    assert Yielding(engine, lambda: machine.now).look() is None  # type: ignore[arg-type]


def test_the_module_only_reads() -> None:
    source = Path(pressure.__file__).read_text(encoding="utf-8")
    assert "write" not in source
    assert "open(" not in source
