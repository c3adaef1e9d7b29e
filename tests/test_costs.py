"""The cost model: what passes cost by rows, what the ring hides, and the machine that is remembered."""

from __future__ import annotations

import json
import math
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest

from edgespec.devices import machine as machines
from edgespec.devices.arithmetic import Arithmetic
from edgespec.devices.machine import BASELINE, Machine, remember_process
from edgespec.devices.matmuls import ROWS, Matmuls, remember_matmuls
from edgespec.devices.rates import STALE, cache_folder
from edgespec.offload.plan.costs import BESIDE_ROWS, FREE_ROWS, CostModel, Rates
from edgespec.offload.plan.fill import make_plan
from edgespec.offload.plan.needs import Request
from tests.machine import GIVEN
from tests.test_plan import needs, table

GB = 10**9
MEASURED = Matmuls(
    {
        "BF16": (0.1, 0.1, 0.1, 0.1, 0.2, 0.3, 4.0),
        "U8": (0.05, 0.05, 0.1, 0.4, 1.0, 2.0, 9.0),
    }
)


def test_weights_are_multiplied_as_measured_by_encoding_and_rows() -> None:
    rates = Rates(1.0, 10.0, MEASURED)
    assert rates.multiply({"BF16": 2 * GB, "U8": GB}) == pytest.approx((0.25, 0.25, 0.3, 0.6, 1.4, 2.6, 17.0))
    # What was not measured goes by the rate of memory.
    assert rates.multiply({"F32": GB})[0] == pytest.approx(0.1)
    assert rates.multiply({"F32": GB})[-1] == pytest.approx(0.1 * (1 + 511 / FREE_ROWS))
    assert rates.multiply({}) == (0.0,) * len(ROWS)


def test_where_nothing_was_measured_more_rows_cost_what_cores_took_in_a_race() -> None:
    """One row is bound by memory, and so are others until cores take longer."""
    raced = Matmuls({"U8": (0.05, 0.08, 0.12, 0.3, 1.0, 2.0, 9.0), "F32": (9.0,) * len(ROWS)})
    rates = Rates(1.0, 10.0, Matmuls({"F32": (0.2,) * len(ROWS)}), raced)
    assert rates.multiply({"U8": 2 * GB}) == pytest.approx((0.2, 0.2, 0.24, 0.6, 2.0, 4.0, 18.0))
    assert rates.multiply({"F32": GB}) == pytest.approx((0.2,) * len(ROWS)), "measured from memory"
    slow = (0.3, 0.3, 0.3, 0.3, 1.0, 2.0, 9.0)
    assert Rates(1.0, 10.0, None, Matmuls({"U8": slow})).multiply({"U8": GB}) == pytest.approx(slow)


def test_more_rows_never_cost_less_than_fewer() -> None:
    noisy = Rates(None, 10.0, Matmuls({"BF16": (0.3, 0.1, 0.2, 0.1, 0.2, 0.1, 0.4)}))
    assert noisy.multiply({"BF16": GB}) == pytest.approx((*[0.3] * 6, 0.4))


def test_rows_at_which_arithmetic_takes_as_long_as_reading() -> None:
    """Of what is in memory the pass of one row reads that; what streams hides many more rows."""
    matmuls = (1.0, 1.0, 1.1, 1.1, 1.2, 1.3, 12.5)  # seconds of ROWS: 0.025 for each beyond 64
    assert CostModel(compute=1.0, by_rows=matmuls).redundancy == pytest.approx(40)
    assert CostModel(io=5.0, compute=1.0, by_rows=matmuls).redundancy == pytest.approx(200)
    assert CostModel(compute=0.1).redundancy == pytest.approx(FREE_ROWS), (
        "supposed, where nothing was measured"
    )
    assert CostModel().redundancy is None


def test_between_and_beyond_what_was_measured_are_lines() -> None:
    costs = CostModel(io=0.15, compute=0.1, by_rows=(0.1, 0.1, 0.1, 0.1, 0.2, 0.3, 4.0))
    rows = np.array([1.0, 8.0, 20.0, 32.0, 64.0, 512.0, 1024.0])
    slope = 3.7 / (512 - 64)
    expected = [0.1, 0.1, 0.15, 0.2, 0.3, 4.0, 4.0 + 512 * slope]
    assert costs.computing(rows) == pytest.approx(np.array(expected))
    assert costs.passes(rows) == pytest.approx(np.maximum(0.15, expected))
    plain = CostModel(io=0.15, compute=0.1)
    assert plain.computing(rows) == pytest.approx(0.1 * (1 + (rows - 1) / FREE_ROWS))


def test_the_ring_fills_while_somebody_works_between_passes() -> None:
    costs = CostModel(io=3.0, compute=0.5, step=0.2, overhead=0.1, ahead=0.5)
    assert costs.cycle() == 3.0
    assert costs.cycle(2) == pytest.approx(3.0 - 0.4 + 0.4)
    assert costs.cycle(10) == pytest.approx(3.0 - 0.5 + 2.0)  # no more than there is room for
    assert replace(costs, ahead=0.0).cycle(10) == pytest.approx(5.0)
    assert replace(costs, io=0.3).cycle(10) == pytest.approx(0.6 + 2.0)  # computing is not hidden
    assert costs.cycle(nodes=1 + 32 * 9) == pytest.approx(5.0 + 0.1 * (1 + 32 * 9 / BESIDE_ROWS))


def test_a_plan_knows_measured_matmuls() -> None:
    chunks = table()
    request = Request(10**12)
    before = make_plan(chunks, needs(), Rates(1.0, 10.0), request)
    after = make_plan(chunks, needs(), Rates(1.0, 10.0, Matmuls({"F32": (1.0,) * len(ROWS)})), request)
    assert sum(chunks.stored.values()) == chunks.nbytes
    assert set(chunks.stored) == {"F32"}
    assert before.costs().compute == pytest.approx(chunks.nbytes / 1e10)
    assert after.costs().compute == pytest.approx(chunks.nbytes / 1e9)
    assert after.costs().by_rows == pytest.approx((chunks.nbytes / 1e9,) * len(ROWS))


# The machine that is remembered.


@pytest.fixture
def weights(tmp_path: Path) -> Path:
    path = tmp_path / "weights"
    path.write_bytes(b"x")
    return path


def test_what_a_process_has_found_is_remembered(weights: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    now = 1e9
    monkeypatch.setattr(machines, "time", lambda: now)
    monkeypatch.setattr("edgespec.devices.rates.time", lambda: now)
    assert Machine.remembered(weights).baseline == BASELINE
    how = Arithmetic(frozenset({"bfloat16"}), False, frozenset({"Q4_K", "BF16"}), machines.cpu_count(), True)
    remember_process(replace(GIVEN, baseline=400 * 10**6, arithmetic=how))
    found = Machine.remembered(weights)
    assert found.baseline == 400 * 10**6
    assert found.arithmetic == how
    assert found.matmuls is None
    assert found.baseline + found.available <= found.total
    remember_process(replace(GIVEN, baseline=9 * GB, arithmetic=how))  # a service that has loaded much else
    assert Machine.remembered(weights).baseline == 400 * 10**6
    remember_process(replace(GIVEN, baseline=390 * 10**6))
    assert Machine.remembered(weights).baseline == 390 * 10**6
    other = replace(GIVEN.arithmetic, compiled=True, prompts=frozenset({"BF16"}))
    remember_process(replace(GIVEN, baseline=395 * 10**6, arithmetic=other))  # after an upgrade
    assert Machine.remembered(weights).baseline == 395 * 10**6
    assert Machine.remembered(weights).arithmetic.prompts == {"BF16"}
    now += STALE + 1
    assert Machine.remembered(weights).baseline == BASELINE
    remember_process(replace(GIVEN, baseline=500 * 10**6))
    assert Machine.remembered(weights).baseline == 500 * 10**6


@pytest.mark.parametrize(
    "damage",
    [
        {"baseline": -1},
        {"baseline": 1e30},
        {"baseline": True},
        {"baseline": math.nan},
        {"converts": "bfloat16"},
        {"converts": ["int8"]},
        {"converts": None},
        {"prompts": ["F32"]},
        {"compiled": 1},
        {"arranged": None},
        {"when": "now"},
        {"when": 10**400},
        {"more": 1},
    ],
)
def test_what_cannot_be_is_assumed_instead(weights: Path, damage: dict[str, object]) -> None:
    remember_process(replace(GIVEN, baseline=400 * 10**6))
    file = cache_folder() / "rates.json"
    stored = json.loads(file.read_text())
    (key,) = stored["rates"]
    stored["rates"][key] |= damage
    file.write_text(json.dumps(stored))
    assert Machine.remembered(weights).baseline == BASELINE


def test_loading_a_model_remembers_its_process(monkeypatch: pytest.MonkeyPatch, weights: Path) -> None:
    from edgespec.runtimes.torch import machine as measured
    from edgespec.runtimes.torch.choices import kernels_at_work

    monkeypatch.setattr(measured, "warm_up", lambda table, dtype: None)
    monkeypatch.setattr(measured, "matmul_dtype", lambda dtype: measured.torch.float32)
    files: Any = SimpleNamespace(table=SimpleNamespace(files=lambda: iter([weights]), chunks=[]), dtype=None)
    found = measured.measure_machine(files)
    assert found.arithmetic.converts == {"bfloat16", "float16"}
    assert Machine.remembered(weights).arithmetic.converts == found.arithmetic.converts
    assert Machine.remembered(weights).baseline == found.baseline == GIVEN.baseline
    times = Matmuls({"BF16": (0.1,) * len(ROWS)})
    for kernels, seen in (("others", None), (kernels_at_work(), times)):
        remember_matmuls(times, kernels)
        assert measured.measure_machine(files).matmuls == seen, "what other kernels took is no measure"
