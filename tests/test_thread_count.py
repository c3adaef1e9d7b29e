"""The number of threads is raced by a model's own passes, once, and only while nobody else computes."""

from __future__ import annotations

import itertools
from collections.abc import Callable, Iterator
from dataclasses import replace
from math import inf
from pathlib import Path
from time import time
from types import SimpleNamespace
from typing import Any

import numpy as np
import psutil
import pytest
import torch

import edgespec
from edgespec.devices import probe
from edgespec.devices.rates import remember
from edgespec.kernels import compiled
from edgespec.kernels.choice import CHOSEN, TORCH
from edgespec.kernels.trials import by_features
from edgespec.models import loading
from edgespec.offload.plan.plan import Plan
from edgespec.runtimes.torch import thread_count
from edgespec.runtimes.torch.thread_count import forget_threads
from edgespec.tuning import machines
from tests.packed import pack_checkpoint
from tests.test_session import write_model

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
    monkeypatch.setattr(compiled, "own_prompt", lambda encoding, dtype: encoding == "I8")
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
        monkeypatch.setattr(thread_count, "LONGEST", inf)

    return seem


def threads(model: Path, **options: Any) -> int:
    with edgespec.load(model, **{"memory": "2GB", "context": 200, "drafter": "none"} | options) as engine:
        assert engine.target.threads == torch.get_num_threads()
        return engine.target.threads


def test_the_fastest_wins_and_is_remembered(
    model: Path, races: list[int], passes: Callable[[Seconds], None], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(thread_count, "SMALL", 0)
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


def test_more_threads_than_memory_was_planned_for_come_with_the_next_start(
    model: Path, races: list[int], passes: Callable[[Seconds], None]
) -> None:
    passes(lambda threads, rows: 1.0 / threads)
    assert [threads(model) for _ in range(2)] == [1, 4]


@pytest.mark.parametrize(("small", "usual"), [(0, 4), (2**30, 1)])
@pytest.mark.parametrize(("faster", "wins"), [(1.2, False), (1.3, True)])
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
    threads(model)
    assert threads(model) == (2 if wins else usual)


def test_a_tree_counts_as_much_as_a_plain_pass(
    model: Path, races: list[int], passes: Callable[[Seconds], None]
) -> None:
    passes(lambda threads, rows: 1.0 if (threads == 1) == (rows == 1) else 1.5)
    assert [threads(model) for _ in range(2)] == [1, 1], "by size"


@pytest.mark.parametrize("others", [None, lambda: None], ids=["busy", "unknown"])
def test_beside_others_nothing_is_decided(
    model: Path,
    races: list[int],
    passes: Callable[[Seconds], None],
    monkeypatch: pytest.MonkeyPatch,
    others: Any,
) -> None:
    passes(lambda threads, rows: 1.0 / threads)
    clock = itertools.count()
    monkeypatch.setattr(thread_count, "seconds_of_others", others or (lambda: 10.0 * next(clock)))
    for _ in range(2):
        races.clear()
        assert threads(model) == 1, "by size"
        assert len(races) == 3 * len(thread_count.ROWS), "the next start tries again, and ends as soon"
    monkeypatch.setattr(thread_count, "seconds_of_others", lambda: 0.0)
    assert [threads(model) for _ in range(2)] == [1, 4]


def test_who_takes_long_is_not_waited_for_and_goes_by_size(
    model: Path, races: list[int], passes: Callable[[Seconds], None], monkeypatch: pytest.MonkeyPatch
) -> None:
    passes(lambda threads, rows: 1.0 / threads)
    monkeypatch.setattr(thread_count, "LONGEST", 0.0)
    assert threads(model) == 1
    assert len(races) == 3 * len(thread_count.ROWS)
    races.clear()
    assert threads(model) == 1
    assert not races


def test_who_is_told_does_not_race(model: Path, races: list[int], passes: Callable[[Seconds], None]) -> None:
    passes(lambda threads, rows: 1.0 / threads)
    assert threads(model, threads=3) == 3
    assert not races


@pytest.mark.parametrize("streams", [False, True])
def test_what_streams_does_not_race(
    model: Path,
    races: list[int],
    passes: Callable[[Seconds], None],
    monkeypatch: pytest.MonkeyPatch,
    streams: bool,
) -> None:
    passes(lambda threads, rows: 1.0 / threads)
    monkeypatch.setattr(Plan, "streamed", property(lambda plan: plan.table.chunks[:1] if streams else []))
    assert threads(model) == 1
    assert bool(races) != streams


@pytest.mark.parametrize("dtype", [torch.bfloat16, None])
def test_another_device_goes_by_size(
    model: Path, races: list[int], passes: Callable[[Seconds], None], dtype: torch.dtype | None
) -> None:
    passes(lambda threads, rows: 1.0 / threads)
    with edgespec.load(model, memory="2GB", context=200) as engine:
        table = engine.plan.table
    assert thread_count.planned_threads(table, dtype) == (4 if dtype else 1)


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


@pytest.mark.parametrize("lacks", ["own_prompt", "available"])
def test_what_has_several_orders_of_sums_goes_by_size(
    model: Path,
    races: list[int],
    passes: Callable[[Seconds], None],
    monkeypatch: pytest.MonkeyPatch,
    lacks: str,
) -> None:
    """A tree's rows or a prompt's."""
    passes(lambda threads, rows: 1.0 / threads)
    monkeypatch.setattr(compiled, lacks, lambda *asked: False)
    assert [threads(model) for _ in range(2)] == [1, 1]
    assert not races


@pytest.mark.usefixtures("best_level")
def test_plain_c_goes_by_size(model: Path, races: list[int], passes: Callable[[Seconds], None]) -> None:
    passes(lambda threads, rows: 1.0 / threads)
    compiled.level(0)
    assert [threads(model) for _ in range(2)] == [1, 1]
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
    assert [threads(model) for _ in range(2)] == [1, 4]
    races.clear()
    monkeypatch.setattr(machines, "measure_disk", lambda *asked: None)
    monkeypatch.setattr(machines, "memory_rate", lambda fresh: 10.0)
    monkeypatch.setattr("edgespec.runtimes.torch.choices.choices", lambda fresh: {})
    monkeypatch.setattr("edgespec.runtimes.torch.matmuls.matmuls", lambda fresh, progress: None)
    machines.measure_machine_facts(model, fresh)
    assert threads(model) == (1 if fresh else 4)
    assert bool(races) == fresh


NUMBERS = [0, -1, 5, 10**400, True, "2", 2.0, None, [2], {"2": 2}]


@pytest.mark.parametrize("number", range(len(NUMBERS)))
@pytest.mark.parametrize("when", [0, "now", None, True, 1e300])
def test_what_is_remembered_is_not_trusted(
    model: Path, races: list[int], passes: Callable[[Seconds], None], number: int, when: object
) -> None:
    passes(lambda threads, rows: 1.0 / threads)
    with edgespec.load(model, memory="2GB", context=200, drafter="none") as engine:
        table = engine.plan.table
    assert thread_count.planned_threads(table, torch.bfloat16) == 4
    key = thread_count._key(table, 4)
    for kept in (
        {"threads": NUMBERS[number], "when": time()},
        {"threads": 4, "when": when},
        {"threads": 4},
        NUMBERS[number],
    ):
        remember(key, kept)
        assert thread_count.planned_threads(table, torch.bfloat16) == 1, "by size"
    remember(key, {"threads": 2, "when": time()})
    remember(thread_count._SINCE, when)
    assert thread_count.planned_threads(table, torch.bfloat16) == 2


@pytest.mark.parametrize("order", [None, TORCH])
def test_a_real_race_changes_no_text(
    model: Path, races: list[int], monkeypatch: pytest.MonkeyPatch, order: int | None
) -> None:
    """Nor has a prompt other bits, of which torch may multiply a large block."""
    monkeypatch.undo()  # what is pretended of prompts, above all
    monkeypatch.setattr(thread_count, "SMALLEST", 0)
    if order is not None:
        monkeypatch.setitem(CHOSEN, "I8", replace(by_features("I8"), order=order))
    prompt = [int(token) for token in np.random.default_rng(1).integers(0, 128, 300)]
    found = []
    for asked in (1, None, None, 2):
        with edgespec.load(model, memory="2GB", context=400, threads=asked) as engine:
            found.append(edgespec.generate(engine, prompt, max_tokens=20).tokens)
            if order is not None and asked is None:
                assert engine.target.threads == 1, "by size"
    assert found[0] == found[1] == found[2]
    assert order is not None or found[3] == found[0]


class Times(SimpleNamespace):
    """psutil's."""

    def __iter__(self) -> Iterator[float]:
        return iter(vars(self).values())


def test_idle_and_own_time_are_not_others(monkeypatch: pytest.MonkeyPatch) -> None:
    ours = [
        Times(user=40.0, system=3.0, idle=1000.0, iowait=50.0, steal=2.0, guest=5.0),
        Times(user=1.0, idle=7.0),
    ]
    theirs = Times(user=500.0, idle=3.0)
    monkeypatch.setattr(psutil, "cpu_times", lambda percpu: [ours[0], theirs, ours[1]])
    monkeypatch.setattr(probe, "cpu_count", lambda: 2)
    monkeypatch.setattr(probe.sys, "platform", "linux")
    monkeypatch.setattr(probe.os, "sched_getaffinity", lambda process: {0, 2}, raising=False)
    monkeypatch.setattr(probe.time, "process_time", lambda: 10.0)
    assert probe.seconds_of_others() == pytest.approx(40 + 3 + 2 + 1 - 10)
    ours[1].user += 7
    theirs.user += 100
    assert probe.seconds_of_others() == pytest.approx(43)


@pytest.mark.parametrize("error", [PermissionError(13, "/proc/stat"), RuntimeError("no such line")])
def test_where_nobody_tells_of_others(monkeypatch: pytest.MonkeyPatch, error: Exception) -> None:
    def refused(percpu: bool) -> None:
        raise error

    monkeypatch.setattr(psutil, "cpu_times", refused)
    assert probe.seconds_of_others() is None


def test_of_a_share_of_the_processors_nobody_knows_who_has_the_rest(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(probe, "cpu_count", lambda: 0)
    assert probe.seconds_of_others() is None
