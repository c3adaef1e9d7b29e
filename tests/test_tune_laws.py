"""What is predicted: trees, schedules, and speeds with their intervals."""

from __future__ import annotations

import math
from dataclasses import replace

import numpy as np
import pytest

from edgespec.config import EngineOptions
from edgespec.control.overlap import Drafted, speedup
from edgespec.offload.plan.costs import CostModel
from edgespec.tuning import laws
from edgespec.tuning.acceptance import MOST_NODES, PRIORS, expected_hits, tree_tokens
from edgespec.tuning.predict import Interval
from edgespec.tuning.tune import tune_model
from tests.tuned import seven

__all__ = ["seven"]  # fixtures
pytestmark = pytest.mark.usefixtures("tuned_machine")


# Acceptance.


def test_a_chain_is_the_geometric_sum() -> None:
    for chance in (0.1, 0.5, 0.9):
        expected = sum(chance**i for i in range(9))
        assert tree_tokens(chance, 8, MOST_NODES, branches=False) == pytest.approx(expected)
        assert tree_tokens(chance, 3, 2) == pytest.approx(1 + chance)
        assert tree_tokens(chance, 0, 64) == 1


@pytest.mark.parametrize("chance", [0.0, 0.3, 0.62, 0.95, 1.0])
def test_more_of_anything_never_gives_fewer_tokens(chance: float) -> None:
    for depth in (1, 2, 5, 32):
        by_nodes = [tree_tokens(chance, depth, nodes) for nodes in range(1, 70)]
        assert by_nodes == sorted(by_nodes)
        assert by_nodes[-1] <= depth + 1 + 1e-9
        assert by_nodes[-1] >= tree_tokens(chance, depth, 64, branches=False) - 1e-9
        assert tree_tokens(chance, depth + 1, 64) >= by_nodes[-1] - 1e-9
    assert tree_tokens(1.0, 32, 16) == pytest.approx(16)


def test_a_tree_takes_the_likeliest_nodes_there_are() -> None:
    """Against all trees of four nodes, of a drafter with the power law's chances."""
    p = 0.4
    rank = [p, 0.6 * (1 - 2**-0.58), 0.6 * (2**-0.58 - 3**-0.58)]
    shapes = [
        p + p * p + p**3,
        p + rank[1] + p * p,
        p + rank[1] + rank[1] * p,
        p + rank[1] + rank[2],
        p + p * p + p * rank[1],
    ]
    assert tree_tokens(p, 8, 4) == pytest.approx(1 + max(shapes))


def test_ten_guesses_hold_what_the_curve_was_drawn_through() -> None:
    assert tree_tokens(0.62, 1, 11) - 1 == pytest.approx(0.9, abs=0.01)
    assert [expected_hits(n) for n in (0, 1, 12)] == sorted(expected_hits(n) for n in (0, 1, 12))
    assert expected_hits(0) == 0
    assert all(0 < p.low < p.middle < p.high < 1 and p.source for p in PRIORS.values())


# Laws.


def tokens(depth: int, nodes: int) -> float:
    return tree_tokens(0.7, depth, nodes)


@pytest.mark.parametrize("step", [0.0, 0.01, 0.2, 5.0])
@pytest.mark.parametrize("io", [0.0, 0.4, 3.0])
def test_no_schedule_is_slower_than_drafting_in_time(io: float, step: float) -> None:
    costs = CostModel(io=io, compute=0.3, step=step, overhead=0.02, ahead=0.1)
    serial = laws.rate_of("serial", costs, tokens, 32, 6)
    assert serial.tokens == tokens(6, 32)
    assert serial.seconds == pytest.approx(costs.cycle(6 if step else 0, 32))
    for schedule in ("ssd", "mirror"):
        assert laws.rate_of(schedule, costs, tokens, 32, 6).speed >= serial.speed


def test_ssd_is_theorem_7_where_there_are_waits() -> None:
    costs = CostModel(io=3.0, compute=0.3, step=0.2, waiting_step=0.5)
    hits, found = expected_hits(int((3.0 - 0.3 * (1 + 31 / 32)) / 0.5)), 2
    primary, fallback = (
        Drafted(tokens(6, 32), 1 + 0.2 * (6 - found) / 3.0),
        Drafted(tokens(6, 32), 0.2 * 6 / 3.0),
    )
    law = laws._ssd(costs, tokens, 32, 6)
    assert law.speed == pytest.approx(speedup(hits, primary, fallback) / 3.0)
    shallow = laws._ssd(replace(costs, waiting_step=0.2), tokens, 32, 3)  # what is there is deeper: 6 levels
    hits = expected_hits(12)
    assert shallow.tokens == pytest.approx(hits * tokens(6, 32) + (1 - hits) * tokens(3, 32))
    assert shallow.seconds == pytest.approx(3.0 + (1 - hits) * 0.2 * 3)
    late = laws._ssd(replace(costs, io=0.1), tokens, 32, 6)  # nothing waits: every outcome is missed
    assert late.tokens == pytest.approx(tokens(6, 32))


def test_plain_speed_is_the_plan_s(seven: str) -> None:
    found = tune_model(seven, EngineOptions(drafter="none"), ["4GB", "40GB"], preset="jetson-agx-orin")
    for row in found.rows:
        assert row.plain is not None
        assert row.plain is row.best
        assert row.plain.speed.middle == pytest.approx(row.plain.plan.predicted_tokens_per_second)
        assert row.plain.bytes_per_token == row.plain.plan.bytes_per_pass
    assert found.rows[0].plain is not None
    assert found.rows[0].plain.bound == "flash"


def test_intervals_hold_their_middle_and_never_promise_less_than_plain_decoding(seven: str) -> None:
    for row in tune_model(seven, memory=["2GB", "8GB"]).rows:
        plain = {s.precision: s.speed for s in row.settings if s.drafter == "none"}
        for s in row.settings:
            assert 0 < s.speed.low <= s.speed.middle <= s.speed.high < math.inf
            assert s.first_token.low < s.first_token.middle < s.first_token.high
            # A drafter may take memory from layers, but n-grams take none.
            if s.drafter == "ngram" and s.speed.middle > plain[s.precision].middle:
                assert s.speed.low >= 0.98 * plain[s.precision].low
    assert Interval.around(2.0, 0.0, 0.0) == Interval(2.0, 2.0, 2.0)


def test_numbers_of_rows_are_numbers(seven: str) -> None:
    found = tune_model(seven, memory=["4GB"])
    figures = [s.cycle_seconds for row in found.rows for s in row.settings]
    assert np.isfinite(figures).all()
