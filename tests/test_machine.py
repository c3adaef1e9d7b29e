"""What a plan goes by: the machine that is given, whatever this process has grown to."""

from __future__ import annotations

import itertools
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest

import edgespec
from edgespec.config import EngineOptions
from edgespec.devices import machine as machines
from edgespec.devices.probe import memory_total, process_memory
from edgespec.engine import Engine
from edgespec.errors import BudgetError, OptionError
from tests.machine import DISK, GIVEN, measure
from tests.test_session import prompt_of, write_model


@pytest.fixture(scope="module")
def model(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return write_model(tmp_path_factory.mktemp("model") / "m")


def test_a_process_larger_than_the_dial_plans_as_a_fresh_one(model: Path) -> None:
    with edgespec.load(model, memory="1GB", context=100) as engine:
        fresh = engine.plan.owners
    ballast = np.zeros(1_500_000_000, np.uint8)
    ballast[::4096] = 1  # real memory now
    assert process_memory().current > 1.5e9
    with edgespec.load(model, memory="1GB", context=100) as engine:
        assert engine.plan.owners == fresh
        assert edgespec.generate(engine, prompt_of(5), max_tokens=2).tokens
    del ballast


def test_a_given_machine_is_all_that_a_plan_asks(model: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def asked(*args: object) -> None:
        raise AssertionError("measured")

    for name in (
        "process_memory",
        "memory_available",
        "memory_total",
        "memory_rate",
        "read_rate",
        "own_rate",
    ):
        monkeypatch.setattr(machines, name, asked)
    monkeypatch.setattr(machines.Machine, "measure", staticmethod(measure))
    with pytest.raises(AssertionError, match="measured"):
        Engine.load(model)
    small = replace(GIVEN, total=3 * 10**9, available=10**9, disk=DISK, memory_gbps=7.0)
    with Engine.load(model, machine=small) as engine:
        assert engine.plan.dial == small.baseline + int(0.9 * small.available)
        assert (engine.plan.rates.read, engine.plan.rates.compute) == (DISK.gbps, 7.0)
    with pytest.raises(OptionError, match=r"but 3\.00 GB is all that this machine"):
        Engine.load(model, EngineOptions(memory=4 * 10**9), machine=small)


def test_a_dial_that_was_named_works_at_other_starts(model: Path) -> None:
    """Where libraries and allocators take a little more, or less."""
    starts = [replace(GIVEN, baseline=GIVEN.baseline + more * 10**6) for more in (-7, -3, 0, 3, 7)]
    named = set()
    for start in starts:
        with pytest.raises(BudgetError, match=r"smallest dial that works here is \d+MB") as caught:
            Engine.load(model, EngineOptions(memory=10**8, context=100), machine=start)
        named.add(caught.value.smallest)
    for dial, start in itertools.product(named, starts):
        with Engine.load(model, EngineOptions(memory=dial, context=100), machine=start) as engine:
            assert engine.plan.ledger.free >= 0


def test_this_machine_is_measured(model: Path) -> None:
    before = process_memory().current
    found = measure(model / "config.json")
    assert before / 2 < found.baseline
    assert found.baseline <= process_memory().peak
    assert 0 < found.available <= found.total == memory_total()
    assert found.cores >= 1
    assert found.memory_gbps > 0
    assert found.disk is None  # too small a file to tell
    assert found.read_gbps is None
