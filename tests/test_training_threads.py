"""Training beside other programs: how many threads it takes, on machines whose speeds are given."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest
import torch
from torch import nn

from edgespec.kernels.threads import using
from edgespec.training import trainer as module
from edgespec.training.threads import LATE, SHORT, SOON, Threads
from edgespec.training.trainer import Loss, Settings, Trainer
from tests.test_training_trainer import Batch, Data, ignore, loss_of, make_model

TOKENS = 4000.0
QUIET = {1: 0.56, 2: 1.0}  # of the best speed, by threads: measured (EPYC, the demo's recipe)
BESIDE_ONE = {1: 0.56, 2: 0.24}


def steps(
    threads: Threads, speeds: dict[int, float], count: int, seconds: float = 1.0
) -> tuple[list[int], float]:
    """Threads of each step, and the whole speed; with all threads a quiet step takes `seconds`."""
    used, took = [], 0.0
    for _ in range(count):
        used.append(threads.count)
        time = seconds / speeds[threads.count]
        took += time
        threads.took(time, TOKENS)
    return used, count * seconds / took


def test_all_threads_where_nobody_else_computes() -> None:
    used, _ = steps(Threads(2), QUIET, 200)
    assert set(used) == {2}


def test_fewer_beside_another_program_and_all_when_it_is_gone() -> None:
    threads = Threads(2)
    steps(threads, QUIET, 10)
    _, left = steps(threads, BESIDE_ONE, 200)
    assert 0.48 < left < 0.56  # with the steps that asked whether it is still there
    used, _ = steps(threads, QUIET, LATE + 20)
    assert set(used[LATE + 2 :]) == {2}


def test_another_program_that_was_there_first() -> None:
    used, _ = steps(Threads(2, beside=True), BESIDE_ONE, 4 + SOON)
    assert used == [2, 2, 1, 2, *[1] * SOON]


@pytest.mark.parametrize("most", [8, 32])
def test_a_second_one_and_both_are_gone(most: int) -> None:
    """The others' share of many cores: one thread less for each."""
    threads, quiet = Threads(most), {n: n / most for n in range(1, most + 1)}
    steps(threads, quiet, 10)
    used, left = steps(threads, {n: n / most if n < most else 0.3 for n in quiet}, 200)
    assert used.count(most - 1) > 150
    assert left > 0.7  # trials cost
    used, left = steps(threads, {n: n / most if n < most - 1 else 0.3 for n in quiet}, 200)
    assert used.count(most - 2) > 150
    assert left > 0.6
    used, _ = steps(threads, quiet, 100)
    assert used[-1] == most


def test_a_machine_whose_steps_vary_keeps_its_threads() -> None:
    rng = np.random.default_rng(0)
    threads, used = Threads(8), []
    for _ in range(1000):
        used.append(threads.count)
        threads.took(rng.lognormal(0.0, 0.15) * 8 / threads.count, TOKENS)
    assert np.mean(used) > 7.5


def test_what_more_threads_do_not_speed_up_keeps_those_that_there_are() -> None:
    """A drafter on an accelerator."""
    used, _ = steps(Threads(4, beside=True), dict.fromkeys((3, 4), 1.0), 100)
    assert set(used[3:]) == {4}


@pytest.mark.parametrize(("most", "seconds"), [(1, 1.0), (2, SHORT / 10)])
def test_nothing_is_tried_with_one_thread_or_in_short_steps(most: int, seconds: float) -> None:
    used, _ = steps(Threads(most, beside=True), BESIDE_ONE, 50, seconds)
    assert set(used) == {most}


def test_the_trainer_computes_with_them(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    clock, used = [0.0], []

    def loss(model: nn.Module, batch: Batch) -> Loss:
        used.append(torch.get_num_threads())
        clock[0] += 1 / BESIDE_ONE[used[-1]]
        return loss_of(model, batch)

    monkeypatch.setattr(module, "perf_counter", lambda: clock[0])
    monkeypatch.setattr(module, "busy", lambda: True)
    with using(2):
        Trainer(make_model(), Data(cut=1), loss, Settings(8, 0.1), tmp_path).run(ignore)
        assert torch.get_num_threads() == 2
    assert used == [2, 2, 1, 2, 1, 1, 1, 1]
