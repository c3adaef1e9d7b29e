"""The shape of the speculation cache: Theorems 12 and 18 of SSD, in whole outcomes."""

from __future__ import annotations

import itertools
import random

import pytest

from edgespec.errors import OptionError
from edgespec.schedules.fan_out import (
    POLICIES,
    CacheShape,
    HitCurves,
    _shares,
    _weights,
    geometric,
    measured,
    uniform,
)

CASES = list(itertools.product([1, 2, 9, 24, 200], [0, 1, 3, 7], [0.0, 0.2, 0.8, 0.99, 1.0], [0.3, 1.0, 3.0]))


def law_curves(depth: int, acceptance: float, power: float, most: int) -> list[list[float]]:
    """Theorem 18's chances where every token is accepted alike and misses are F^-r (Definition 11)."""
    reached = [acceptance**k * (1 - acceptance) for k in range(depth)] + [acceptance**depth]
    return [[chance * (1 - fan_out**-power) for fan_out in range(1, most + 1)] for chance in reached]


def hits(counts: list[int], curves: list[list[float]]) -> float:
    return sum(curve[n - 1] if n else 0.0 for n, curve in zip(counts, curves, strict=True))


def best(budget: int, curves: list[list[float]], least: int) -> float:
    """The most hits of any whole numbers, at least so many everywhere."""
    every = itertools.product(range(least, budget + 1), repeat=len(curves))
    return max(hits(list(counts), curves) for counts in every if sum(counts) == budget)


def test_theorem_12_in_its_closed_form() -> None:
    """B = 24, K = 7, a = 0.8, r = 1: F_k = F_0 0.8^(k/2), F_7 = F_0 0.8^3.5 0.2^-0.5, by hand."""
    shares = _shares(24, _weights(7, 0.8, 1.0))
    assert [round(share, 1) for share in shares] == [3.9, 3.5, 3.1, 2.8, 2.5, 2.2, 2.0, 4.0]
    c = 0.8 ** (1 / 2)  # F_0 as Appendix A.2 has it
    assert shares[0] == pytest.approx(24 / (0.8**3.5 * 0.2**-0.5 + (1 - c**7) / (1 - c)))
    assert geometric(24, 7, 0.8, 1.0) == [4, 3, 3, 3, 3, 2, 2, 4]


@pytest.mark.parametrize(("acceptance", "power"), [(0.5, 0.4), (0.8, 1.0), (0.95, 2.5)])
def test_theorem_12_meets_the_conditions_of_theorem_18(acceptance: float, power: float) -> None:
    """p'(F_k) = a^-k p'(F_0) for k < K and (1 - a) a^-K p'(F_0) behind all of them, p' = r F^-(r + 1)."""
    depth = 4
    shares = _shares(10_000, _weights(depth, acceptance, power))
    slopes = [power * share ** -(power + 1) for share in shares]
    for k in range(depth):
        assert slopes[k] == pytest.approx(acceptance**-k * slopes[0])
    assert slopes[depth] == pytest.approx((1 - acceptance) * acceptance**-depth * slopes[0])
    assert sum(shares) == pytest.approx(10_000)


@pytest.mark.parametrize(("budget", "depth", "acceptance", "power"), CASES)
def test_whole_numbers_sum_to_the_budget(budget: int, depth: int, acceptance: float, power: float) -> None:
    if budget <= depth:
        with pytest.raises(OptionError, match=f"budget of {budget} is below the {depth + 1} outcomes"):
            geometric(budget, depth, acceptance, power)
        return
    counts = geometric(budget, depth, acceptance, power)
    assert len(counts) == depth + 1
    assert sum(counts) == budget
    assert min(counts) >= 1
    assert counts[:-1] == sorted(counts[:-1], reverse=True)  # a geometric series, capped by its last one
    for count, share in zip(counts, _shares(budget, _weights(depth, acceptance, power)), strict=True):
        assert abs(count - share) < 1
    assert sum(uniform(budget, depth)) == budget
    assert max(uniform(budget, depth)) - min(uniform(budget, depth)) <= 1


@pytest.mark.parametrize("acceptance", [0.3, 0.6, 0.8, 0.95])
@pytest.mark.parametrize("power", [0.4, 1.0, 2.0])
def test_rounded_down_to_whole_outcomes_it_is_nearly_the_best_there_is(
    acceptance: float, power: float
) -> None:
    for budget, depth in [(7, 3), (12, 3), (14, 2)]:
        curves = law_curves(depth, acceptance, power, budget)
        most, found = best(budget, curves, least=1), hits(geometric(budget, depth, acceptance, power), curves)
        assert most * 0.99 <= found <= most + 1e-12
        assert found >= hits(uniform(budget, depth), curves) * 0.998


def test_the_ends_of_theorem_12() -> None:
    assert geometric(24, 7, 0.0, 1.0) == [17, 1, 1, 1, 1, 1, 1, 1]  # nothing is ever accepted
    assert geometric(24, 7, 1.0, 1.0) == [1, 1, 1, 1, 1, 1, 1, 17]  # everything is
    assert geometric(9, 0, 0.8, 1.0) == uniform(9, 0) == measured(9, [[0.5, 0.6]]) == [9]  # nothing drafted
    assert geometric(8, 7, 0.8, 1.0) == [1] * 8
    for wrong in [(-0.1, 1.0), (1.1, 1.0), (float("nan"), 1.0), (0.5, 0.0), (0.5, -1.0)]:
        with pytest.raises(ValueError, match="acceptance"):
            geometric(24, 7, *wrong)
    with pytest.raises(ValueError, match="chain of -1"):
        uniform(3, -1)


def test_a_budget_below_one_outcome_a_position_is_refused_with_the_numbers() -> None:
    for allocate in (lambda: uniform(7, 7), lambda: measured(7, [[0.5]] * 8)):
        with pytest.raises(OptionError, match=r"budget of 7 is below the 8 .* of 7 .* at least 8, .* most 6"):
            allocate()
    for policy in POLICIES:
        with pytest.raises(OptionError, match="budget of 0 is below the 1 outcomes"):
            CacheShape(policy, 8, 8).allocate(0, 0, hit=True)


def test_theorem_18_finds_the_best_for_any_gains_that_fall() -> None:
    rng = random.Random(5)
    for _ in range(20):
        curves = []
        for _ in range(3):
            gains = sorted((rng.random() for _ in range(9)), reverse=True)
            curves.append(list(itertools.accumulate(gain / 30 for gain in gains)))
        assert hits(measured(9, curves), curves) == pytest.approx(best(9, curves, least=0))


def test_theorem_18_agrees_with_theorem_12_where_its_law_holds() -> None:
    """The law's first guess gains nothing (p_hit(1) = 0), so both are compared above one each."""
    for acceptance, power in [(0.5, 0.5), (0.8, 1.0), (0.9, 2.0)]:
        curves = [[hit - curve[0] + 1.0 for hit in curve] for curve in law_curves(5, acceptance, power, 300)]
        by_law, by_gains = geometric(300, 5, acceptance, power), measured(300, curves)
        assert all(abs(a - b) <= 1 for a, b in zip(by_law, by_gains, strict=True)), (by_law, by_gains)


def test_gains_that_rise_are_levelled_and_what_gains_nothing_waits() -> None:
    assert measured(2, [[0.0, 0.4], [0.1, 0.11]]) == [2, 0]  # 0, then 0.4: 0.2 each
    assert measured(4, [[0.5, 0.6], [0.0, 0.0]]) == [2, 2]  # beyond what was recorded: spread
    assert measured(3, [[0.0], [0.0], [0.0]]) == [1, 1, 1]
    assert measured(5, [[], [0.2, 0.3, 0.35]]) == [2, 3]


def drawn(
    rng: random.Random, depth: int, acceptance: float, power: float, ranks: int
) -> tuple[int, int | None]:
    """An outcome by the laws of Theorem 12: accepted tokens, and the rank of the bonus token."""
    accepted = 0
    while accepted < depth and rng.random() < acceptance:
        accepted += 1
    rank = int((1 - rng.random()) ** (-1 / power))  # P(rank >= F) = F^-r; Definition 11's first is never hit
    return accepted, rank if rank < ranks else None


def test_recorded_curves_come_to_what_happens() -> None:
    rng, curves = random.Random(1), HitCurves(depth=8, ranks=8)
    for _ in range(3000):
        accepted, rank = drawn(rng, 3, 0.8, 1.0, 8)
        curves.add(accepted, 3, rank)
    true = law_curves(3, 0.8, 1.0, 8)
    for mine, law in zip(curves.curves(3), true, strict=True):
        assert mine == sorted(mine)
        assert all(abs(a - b) < 0.15 for a, b in zip(mine, law, strict=True))
    assert sum(curve[-1] for curve in curves.curves(3)) < 1
    assert 0.65 < curves.acceptance() < 0.9
    assert 0.7 < curves.power() < 1.4
    assert measured(12, curves.curves(3))[3] >= 4  # half of all outcomes: 0.8^3


def test_recording_is_bounded_and_forgets() -> None:
    curves = HitCurves(depth=2, ranks=3)
    for _ in range(500):
        curves.add(40, 41, 9)  # deeper and less likely than what is told apart
    sizes = [len(curves._accepted), len(curves._full), *map(len, curves._refused)]
    assert sizes == [2, 4, 4, 4]
    for _ in range(500):
        curves.add(0, 5, 0)
    hits = curves.curves(5)
    assert len(hits) == 6
    assert hits[0][0] > 0.85
    assert measured(12, hits)[0] >= max(measured(12, hits)[1:])


def test_before_anything_is_known_all_policies_allocate() -> None:
    for policy in POLICIES:
        counts = CacheShape(policy, 8, 8).allocate(24, 7, hit=True)
        assert sum(counts) == 24
        assert len(counts) == 8
        assert max(counts) < 17


def test_a_miss_has_an_allocation_of_its_own() -> None:
    """Trees out of the cache are accepted whole; those drafted after a miss are refused at once."""
    for policy in ("geometric", "measured"):
        shape = CacheShape(policy, 4, 8)
        for _ in range(200):
            shape.add(4, 4, 0, hit=True)
            shape.add(0, 4, 2, hit=False)
        after_hit, after_miss = shape.allocate(20, 4, hit=True), shape.allocate(20, 4, hit=False)
        assert after_hit[4] == max(after_hit) > 4
        assert after_miss[0] == max(after_miss) > 4
    even = CacheShape("uniform", 4, 8)
    assert even.allocate(20, 4, hit=True) == even.allocate(20, 4, hit=False) == [4] * 5


def test_an_unknown_policy_is_refused() -> None:
    with pytest.raises(OptionError, match=r"fan-out 'geometry' is unknown.*geometric"):
        CacheShape("geometry", 8, 8)
