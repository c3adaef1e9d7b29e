"""The number of threads is raced by a model's own passes, once, and only while nobody else computes."""

from __future__ import annotations

import itertools
from collections.abc import Callable, Iterator
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import psutil
import pytest
import torch

import edgespec
from edgespec.devices import probe
from edgespec.devices.rates import recall, remember
from edgespec.kernels import compiled
from edgespec.models import loading
from edgespec.runtimes.torch import thread_count
from edgespec.runtimes.torch.thread_count import forget_threads
from edgespec.tuning import machines
from tests.packed import pack_checkpoint
from tests.test_session import write_model

PROMPT = [int(token) for token in np.random.default_rng(0).integers(0, 128, 30)]
pytestmark = pytest.mark.skipif(bool(compiled.unavailable()), reason="there are no compiled kernels here")
Seconds = Callable[[int, int], float]  # of a pass, by threads and rows


@pytest.fixture(scope="module")
def model(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("model")
    shape = {"hidden_size": 256, "intermediate_size": 688, "num_hidden_layers": 2, "vocab_size": 1000}
    return pack_checkpoint(write_model(folder / "m", **shape), folder / "packed", "int8")


@pytest.fixture
def races(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> Iterator[list[int]]:
    """By which numbers of threads passes ran, on a quiet machine of four processors."""
    monkeypatch.setenv("EDGESPEC_CACHE", str(tmp_path / "cache"))
    monkeypatch.setattr(thread_count, "SMALLEST", 0)
    monkeypatch.setattr(thread_count, "seconds_of_others", lambda: 0.0)
    for module in (thread_count, loading):
        monkeypatch.setattr(module, "cpu_count", lambda: 4)
    before = torch.get_num_threads()
    torch.set_num_threads(4)
    yield []
    torch.set_num_threads(before)


@pytest.fixture
def passes(monkeypatch: pytest.MonkeyPatch, races: list[int]) -> Callable[[Seconds], None]:
    """Sets how long passes seem to take; they run all the same."""
    run = thread_count._seconds

    def seem(seconds: Seconds) -> None:
        def pretended(target: Any, rows: Any) -> float:
            run(target, rows)
            races.append(target.threads)
            return seconds(target.threads, rows.n)

        monkeypatch.setattr(thread_count, "_seconds", pretended)
        monkeypatch.setattr(thread_count, "SECONDS", 0.0)

    return seem


def threads(model: Path, **options: Any) -> int:
    with edgespec.load(model, **{"memory": "2GB", "context": 200, "drafter": "none"} | options) as engine:
        assert engine.target.threads == torch.get_num_threads()
        return engine.target.threads


def test_the_fastest_wins_and_is_remembered(
    model: Path, races: list[int], passes: Callable[[Seconds], None]
) -> None:
    passes(lambda threads, rows: {1: 3.0, 2: 1.0, 4: 2.0}[threads] * rows)
    assert threads(model) == 2
    assert set(races) == {1, 2, 4}
    races.clear()
    assert threads(model) == 2
    assert not races, "it was known"
    forget_threads()
    passes(lambda threads, rows: 1.0 / threads)
    assert threads(model) == 4
    assert set(races) == {1, 2, 4}


@pytest.mark.parametrize(("small", "usual"), [(0, 4), (2**30, 1)])
@pytest.mark.parametrize(("faster", "wins"), [(1.1, False), (1.2, True)])
def test_another_number_than_by_size_must_be_faster_by_some(
    model: Path,
    races: list[int],
    passes: Callable[[Seconds], None],
    monkeypatch: pytest.MonkeyPatch,
    small: int,
    usual: int,
    faster: float,
    wins: bool,
) -> None:
    monkeypatch.setattr(thread_count, "SMALL", small)
    passes(lambda threads, rows: 1.0 if threads == 2 else faster)
    assert threads(model) == (2 if wins else usual)


def test_a_tree_counts_as_much_as_a_plain_pass(
    model: Path, races: list[int], passes: Callable[[Seconds], None]
) -> None:
    passes(lambda threads, rows: 1.0 if (threads == 1) == (rows == 1) else 1.5)
    assert threads(model) == 1, "by size"


def test_beside_others_nothing_is_decided(
    model: Path, races: list[int], passes: Callable[[Seconds], None], monkeypatch: pytest.MonkeyPatch
) -> None:
    passes(lambda threads, rows: 1.0 / threads)
    clock = itertools.count()
    monkeypatch.setattr(thread_count, "seconds_of_others", lambda: 10.0 * next(clock))
    for _ in range(2):
        races.clear()
        assert threads(model) == 1, "by size"
        assert races, "the next start tries again"
    monkeypatch.setattr(thread_count, "seconds_of_others", lambda: 0.0)
    assert threads(model) == 4


def test_who_is_told_does_not_race(model: Path, races: list[int], passes: Callable[[Seconds], None]) -> None:
    passes(lambda threads, rows: 1.0 / threads)
    assert threads(model, threads=3) == 3
    assert not races


def test_what_streams_goes_by_size(model: Path, races: list[int], passes: Callable[[Seconds], None]) -> None:
    passes(lambda threads, rows: 1.0 / threads)
    with edgespec.load(model, memory="2GB", context=200, threads=2) as engine:
        thread_count.settle_threads(engine.target, engine.plan.table, resident=False)
        assert engine.target.threads == 1
    assert not races


@pytest.mark.parametrize("least", [0, 2**30])
def test_where_nothing_hangs_on_it_nobody_races(
    model: Path,
    races: list[int],
    passes: Callable[[Seconds], None],
    monkeypatch: pytest.MonkeyPatch,
    least: int,
) -> None:
    monkeypatch.setattr(thread_count, "SMALLEST", least)
    monkeypatch.setattr(thread_count, "LARGEST", least)
    passes(lambda threads, rows: 1.0 / threads)
    assert threads(model) == 1
    assert not races


def test_what_has_several_orders_of_sums_goes_by_size(
    races: list[int], passes: Callable[[Seconds], None], tmp_path: Path
) -> None:
    passes(lambda threads, rows: 1.0 / threads)
    assert threads(write_model(tmp_path / "m", hidden_size=128)) == 1, "fp32"
    assert not races


@pytest.mark.parametrize("fresh", [False, True])
def test_whoever_measures_a_machine_anew_has_models_race_again(
    fresh: bool,
    model: Path,
    races: list[int],
    passes: Callable[[Seconds], None],
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    passes(lambda threads, rows: 1.0 / threads)
    assert threads(model) == 4
    races.clear()
    monkeypatch.setattr(machines, "measure_disk", lambda *asked: None)
    monkeypatch.setattr(machines, "memory_rate", lambda fresh: 10.0)
    monkeypatch.setattr("edgespec.runtimes.torch.choices.choices", lambda fresh: {})
    monkeypatch.setattr("edgespec.runtimes.torch.matmuls.matmuls", lambda fresh, progress: None)
    machines.measure_machine_facts(model, fresh)
    assert threads(model) == 4
    assert bool(races) == fresh


@pytest.mark.parametrize("kept", [0, -1, 5, 10**400, True, "2", 2.0, None, [2], {"2": 2}])
def test_what_is_remembered_is_not_trusted(
    model: Path,
    races: list[int],
    passes: Callable[[Seconds], None],
    monkeypatch: pytest.MonkeyPatch,
    kept: object,
) -> None:
    passes(lambda threads, rows: 1.0 / threads)
    keys = []
    spied = thread_count.recall
    monkeypatch.setattr(thread_count, "recall", lambda key: (keys.append(key), spied(key))[1])
    assert threads(model) == 4
    (key,) = {key for key in keys if key != thread_count._TIMES}
    assert recall(key) == 4
    remember(key, kept)
    races.clear()
    assert threads(model) == 4
    assert races
    assert recall(key) == 4


def test_a_real_race_changes_no_text(model: Path, races: list[int]) -> None:
    with edgespec.load(model, memory="2GB", context=200, threads=1) as engine:
        expected = edgespec.generate(engine, PROMPT, max_tokens=20).tokens
    for _ in range(2):
        with edgespec.load(model, memory="2GB", context=200) as engine:
            assert engine.target.threads in {1, 2, 4}
            assert edgespec.generate(engine, PROMPT, max_tokens=20).tokens == expected


def test_idle_and_own_time_are_not_others(monkeypatch: pytest.MonkeyPatch) -> None:
    class Times(SimpleNamespace):
        def __iter__(self) -> Iterator[float]:
            return iter(vars(self).values())

    times = Times(user=40.0, system=3.0, idle=1000.0, iowait=50.0, steal=2.0, guest=5.0)
    monkeypatch.setattr(psutil, "cpu_times", lambda: times)
    monkeypatch.setattr(probe.time, "process_time", lambda: 10.0)
    assert probe.seconds_of_others() == pytest.approx(40 + 3 + 2 - 10)
    times.user += 7
    assert probe.seconds_of_others() == pytest.approx(42)
