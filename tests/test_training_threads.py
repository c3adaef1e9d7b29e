"""Training beside other programs: how many threads it takes, on machines whose speeds are given."""

from __future__ import annotations

from pathlib import Path

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
    assert used[:4] == [
        2,
        2,
        1,
        2,
    ]  # the first says nothing; the third, what one thread does
    assert set(used[3:]) == {2}


def test_fewer_beside_another_program_and_all_when_it_is_gone() -> None:
    threads = Threads(2)
    steps(threads, QUIET, 10)
    _, left = steps(threads, BESIDE_ONE, 100)
    assert 0.48 < left < 0.56  # with the steps that asked whether it is still there
    used, _ = steps(threads, QUIET, LATE + 20)
    assert set(used[LATE + 2 :]) == {2}


def test_another_program_that_was_there_first() -> None:
    used, _ = steps(Threads(2), BESIDE_ONE, 3 + SOON)
    assert used[2:] == [1] * (SOON + 1)


def test_a_second_one() -> None:
    """The others' share of eight cores: one thread less for each."""
    threads = Threads(8)
    speeds = {n: n / 8 if n <= 6 else 0.3 for n in range(1, 9)}
    steps(threads, {n: n / 8 for n in range(1, 9)}, 10)
    used, left = steps(threads, {n: n / 8 if n <= 7 else 0.3 for n in range(1, 9)}, 100)
    assert used[-1] in (7, 8)
    assert left > 0.7  # trials cost
    used, left = steps(threads, speeds, 200)
    assert used.count(6) > 150
    assert left > 0.6


def test_what_more_threads_do_not_speed_up_keeps_those_that_there_are() -> None:
    """A drafter on an accelerator: nothing is chosen by a noise of a few percent."""
    used, _ = steps(Threads(4), dict.fromkeys((3, 4), 1.0), 100)
    assert set(used[3:]) == {4}


@pytest.mark.parametrize(("most", "seconds"), [(1, 1.0), (2, SHORT / 10)])
def test_nothing_is_tried_with_one_thread_or_in_short_steps(most: int, seconds: float) -> None:
    used, _ = steps(Threads(most), BESIDE_ONE, 50, seconds)
    assert set(used) == {most}


def test_the_trainer_computes_with_them(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    clock, used = [0.0], []

    def loss(model: nn.Module, batch: Batch) -> Loss:
        used.append(torch.get_num_threads())
        clock[0] += 1 / BESIDE_ONE[used[-1]]
        return loss_of(model, batch)

    monkeypatch.setattr(module, "perf_counter", lambda: clock[0])
    with using(2):
        Trainer(make_model(), Data(cut=1), loss, Settings(8, 0.1), tmp_path).run(ignore)
        assert torch.get_num_threads() == 2
    assert used == [2, 2, 1, 1, 1, 1, 1, 2]
