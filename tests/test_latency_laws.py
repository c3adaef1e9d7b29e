"""The laws of SSD and Mirror-SD: limits, directions, and a simulated clock that agrees with them."""

from __future__ import annotations

import random
from itertools import pairwise, product
from math import inf, log

import numpy as np
import pytest

from edgespec.control.overlap import (
    NOTHING,
    Drafted,
    Mirrored,
    best_fallback,
    critical_batch,
    deepest_exit,
    hit_rate,
    overlap_mass,
    serial_speedup,
    speedup,
    speedup_bounds,
)

PRIMARY = Drafted(3.4, 0.6)
QUICK = Drafted(2.0, 0.0)
RATES = [0.0, 0.1, 0.5, 0.9, 1.0]


def accepted(rng: random.Random, chance: float, depth: int) -> int:
    """Tokens of a cycle: a capped geometric, and the bonus token."""
    return 1 + next((k for k in range(depth) if rng.random() >= chance), depth)


def mean_accepted(chance: float, depth: int) -> float:
    return sum(chance**k for k in range(depth + 1))


@pytest.mark.parametrize(("draft", "batch"), [(0.4, 1), (1.7, 1), (0.4, 3)])
def test_a_simulated_clock_agrees_with_theorem_7_and_corollary_16(draft: float, batch: int) -> None:
    """Algorithm 1, cycle by cycle: hits depend on what was verified; the batch waits for its misses."""
    rng = random.Random(7)
    after_hit, after_miss, cycles = 0.85, 0.6, 40_000
    hits, tokens, seconds = [True] * batch, 0, 0.0
    for _ in range(cycles):
        hits = [rng.random() < (after_hit if hit else after_miss) for hit in hits]
        tokens += sum(accepted(rng, 0.8 if hit else 0.5, 4) for hit in hits)
        seconds += max(1.0, draft) if all(hits) else 1.0 + 0.3
    rate = hit_rate(after_hit, after_miss)
    assert rate == pytest.approx(0.8)  # 0.6 / (1 + 0.6 - 0.85), by hand
    law = speedup(rate, Drafted(mean_accepted(0.8, 4), draft), Drafted(mean_accepted(0.5, 4), 0.3), batch)
    assert tokens / batch / seconds == pytest.approx(law, rel=0.01)


def test_equation_1_is_where_its_recurrence_settles() -> None:
    for after_hit, after_miss in product(RATES, RATES):
        if after_hit - after_miss == 1:
            with pytest.raises(ValueError, match="depends on the first"):
                hit_rate(after_hit, after_miss)
            continue
        rate = hit_rate(after_hit, after_miss)
        assert 0 <= rate <= 1
        assert rate == pytest.approx(rate * after_hit + (1 - rate) * after_miss)
    assert hit_rate(0.7, 0.7) == pytest.approx(0.7)


def test_the_ends_of_theorem_7() -> None:
    assert speedup(1, PRIMARY, NOTHING) == PRIMARY.tokens  # drafting is hidden whole
    assert speedup(1, Drafted(3.4, 2.0), NOTHING) == 1.7  # two passes' time to draft
    assert speedup(0, PRIMARY, PRIMARY) == serial_speedup(PRIMARY)  # never a hit: serial
    assert speedup(0, PRIMARY, NOTHING) == 1.0  # plain
    for rate in RATES:  # drafting takes no time: nothing to hide
        free = Drafted(3.4, 0.0)
        assert speedup(rate, free, free) == pytest.approx(serial_speedup(free)) == pytest.approx(3.4)


def test_corollary_8_never_below_serial() -> None:
    for rate, seconds in product(RATES, [0.0, 0.2, 1.0, 3.0]):
        draft = Drafted(2.7, seconds)
        gain = speedup(rate, draft, draft) / serial_speedup(draft)
        assert gain > 1 if rate > 0 and seconds > 0 else gain == pytest.approx(1)


def test_corollary_9_holds_theorem_7() -> None:
    for rate, tokens, seconds in product(RATES, [1.0, 2.0, 3.4], [0.0, 0.3, 1.0]):
        serial = Drafted(tokens, seconds)
        low, high = speedup_bounds(rate, PRIMARY, serial)
        gain = speedup(rate, PRIMARY, QUICK) / serial_speedup(serial)
        assert low <= gain * (1 + 1e-12)
        assert gain <= high * (1 + 1e-12)
    assert speedup_bounds(1, PRIMARY, PRIMARY) == (1.6, 1.6)
    assert speedup_bounds(0, PRIMARY, PRIMARY)[0] == 0
    with pytest.raises(ValueError, match="within a pass"):
        speedup_bounds(0.5, Drafted(3.4, 1.1), PRIMARY)


def test_theorem_7_goes_the_way_it_should() -> None:
    for low, high in pairwise(RATES):
        assert speedup(low, PRIMARY, QUICK) < speedup(high, PRIMARY, QUICK)
        assert speedup(low, PRIMARY, PRIMARY) < speedup(high, PRIMARY, PRIMARY)
    assert speedup(0.8, Drafted(3.4, 0.2), QUICK) == speedup(0.8, Drafted(3.4, 1.0), QUICK)
    assert speedup(0.8, Drafted(3.4, 1.2), QUICK) < speedup(0.8, Drafted(3.4, 1.0), QUICK)
    batches = [speedup(0.8, PRIMARY, PRIMARY, batch) for batch in (1, 2, 4, 8, 200)]
    assert batches == sorted(batches, reverse=True)
    assert batches[-1] == pytest.approx(PRIMARY.tokens / 1.6)  # Corollary 16's limit, E / (1 + T_b)


@pytest.mark.parametrize("hits", [0.3, 0.8, 0.97])
@pytest.mark.parametrize("seconds", [0.1, 0.6, 1.0, 2.5])
@pytest.mark.parametrize("tokens", [1.0, 2.0, 3.3])
def test_theorem_17_is_where_the_speedups_cross(hits: float, seconds: float, tokens: float) -> None:
    primary, quick = Drafted(3.4, seconds), Drafted(tokens, 0.0)
    critical = critical_batch(hits, primary, quick)
    for batch in (1, 2, 3, 5, 9, 30, 300):
        slow, fast = speedup(hits, primary, primary, batch), speedup(hits, primary, quick, batch)
        if abs(batch - critical) > 1e-9:
            assert (slow > fast) == (batch < critical)
        chosen = best_fallback(hits, primary, {"just in time": primary, "n-gram": quick}, batch)
        assert (chosen == "just in time") == (slow > fast)


def test_theorem_17_in_its_closed_form() -> None:
    p, t, hit, miss = 0.9, 0.6, 3.4, 2.0
    by_hand = log(1 + 1 / t - hit / (t * p * hit + t * (1 - p) * miss)) / log(p)
    assert critical_batch(p, Drafted(hit, t), Drafted(miss, 0.0)) == pytest.approx(by_hand)
    assert 0 < by_hand < 3
    assert critical_batch(0.9, PRIMARY, Drafted(3.4, 0.0)) == 0  # as good, and no time: always
    assert critical_batch(0.9, Drafted(3.4, 0.0), QUICK) == inf  # just in time costs nothing: always that
    assert critical_batch(1.0, PRIMARY, QUICK) == 0  # never a miss
    with pytest.raises(ValueError, match="takes no time"):
        critical_batch(0.9, PRIMARY, PRIMARY)


def test_without_hits_the_choice_is_that_of_serial_decoding() -> None:
    for seconds, tokens in product([0.1, 0.6, 2.0], [1.0, 2.0, 3.3]):
        primary, quick = Drafted(3.4, seconds), Drafted(tokens, 0.0)
        serial_is_better = serial_speedup(primary) > serial_speedup(quick)
        assert critical_batch(0.0, primary, quick) == (inf if serial_is_better else 0.0)


def test_a_fallback_that_is_not_worth_its_time_is_none() -> None:
    assert best_fallback(0.5, PRIMARY, {"n-gram": Drafted(1.0, 0.1)}) is None
    assert best_fallback(0.5, PRIMARY, {}) is None
    assert best_fallback(0.5, PRIMARY, {"n-gram": QUICK, "just in time": Drafted(2.0, 0.0)}) == "n-gram"
    assert best_fallback(1.0, PRIMARY, {"n-gram": Drafted(1.0, 9.0)}) is None  # equal: the quicker


def test_mirror_hides_drafting_up_to_its_budget() -> None:
    """Equation 10 and Appendix C, piece by piece."""
    hidden = Mirrored(before=6, behind=4, draft=3, early=0.25, final=0.5)
    assert hidden.step == 10.75  # T_target + T_rv
    late = Mirrored(before=6, behind=4, draft=7, early=0.25, final=0.5)
    assert late.step == 6 + 0.25 + 7 + 0.5
    for case in (hidden, late):
        assert case.serial == case.before + case.behind + case.draft
        assert case.saved == min(case.behind, case.draft) - 0.75
    assert Mirrored(6, 4, 0).step == Mirrored(6, 4, 0).serial == 10  # nothing drafted, nothing gained
    assert Mirrored(6, 4, 0.5, 0.5, 0.5).saved < 0 < Mirrored(6, 4, 1.5, 0.5, 0.5).saved
    steps = [Mirrored(6, 4, draft).step for draft in (0, 2, 4, 5, 9)]
    assert steps == [10, 10, 10, 11, 15]
    with pytest.raises(ValueError, match="less than no time"):
        Mirrored(6, -1, 0)


def test_two_threads_of_simulated_time_agree_with_equation_10() -> None:
    """The target and the drafter as two workers, each with a clock of its own that waits for messages."""
    rng = random.Random(3)
    for _ in range(200):
        layers = [rng.random() for _ in range(12)]
        leaves, draft, early, final = rng.randrange(1, 12), 8 * rng.random(), rng.random(), rng.random()
        target = sum(layers[:leaves]) + early
        drafter = target + draft
        for layer in layers[leaves:]:
            target += layer
        step = max(target, drafter) + final
        case = Mirrored(sum(layers[:leaves]), sum(layers[leaves:]), draft, early, final)
        assert case.step == pytest.approx(step)


def test_the_deepest_exit_that_hides_a_draft() -> None:
    assert deepest_exit([1, 1, 1, 1], 0) == 3  # a layer is left behind it
    assert deepest_exit([1, 1, 1, 1], 1) == 3
    assert deepest_exit([1, 1, 1, 1], 1.5) == 2
    assert deepest_exit([1, 1, 1, 1], 3) == 1
    assert deepest_exit([1, 1, 1, 1], 3.1) is None
    assert deepest_exit([1, 1, 1, 5], 3.1) == 3
    assert deepest_exit([1], 0) is None  # a layer before it and one behind it
    rng = random.Random(0)
    layers = [rng.random() for _ in range(10)]
    for draft in (0.1, 1.0, 3.0):
        exit_layer = deepest_exit(layers, draft)
        assert exit_layer is not None
        assert sum(layers[exit_layer:]) >= draft
        assert exit_layer == 9 or sum(layers[exit_layer + 1 :]) < draft


def test_overlap_mass_grows_to_one() -> None:
    rng = np.random.default_rng(2)
    for _ in range(20):
        early, final = rng.dirichlet(np.full(30, 0.3), 2)
        masses = [overlap_mass(early, final, count) for count in range(1, 31)]
        assert masses == sorted(masses)
        assert masses[-1] == pytest.approx(1)
        assert overlap_mass(final, final, 8) == pytest.approx(np.sort(final)[-8:].sum())  # q(S*)
        assert overlap_mass(early, final, 8) <= overlap_mass(final, final, 8) + 1e-12  # Proposition 2
    assert overlap_mass(np.array([0.3, 0.3, 0.4]), np.array([0.1, 0.2, 0.7]), 2) == pytest.approx(0.8)
    greedy = np.array([0.0, 1.0, 0.0])
    assert overlap_mass(np.array([0.6, 0.1, 0.3]), greedy, 2) == 0.0
    with pytest.raises(ValueError, match="0 likeliest"):
        overlap_mass(greedy, greedy, 0)


def test_fallbacks_are_at_least_what_the_mass_leaves_out() -> None:
    """Each root of the exit's tokens has one continuation. Appendix E's bound has the sign turned round: with
    all the mass on the roots, fallbacks still happen deeper down."""
    rng, draws = np.random.default_rng(4), 20_000
    early, final = rng.dirichlet(np.full(12, 0.5), 2)
    for count in (2, 4, 12):
        roots = set(np.argsort(-early, kind="stable")[:count].tolist())
        first = rng.choice(12, draws, p=final)
        accepts = rng.random(draws) < 0.6  # the drafted first token is what the target says
        goes_on = rng.random(draws) < 0.7  # and the second is what was prepared behind that
        reused = np.array([token in roots for token in first]) & (goes_on | ~accepts)
        left_out = 1 - overlap_mass(early, final, count)
        assert 1 - reused.mean() > left_out - 0.01
    assert left_out == pytest.approx(0)
    assert 1 - reused.mean() > 0.15


@pytest.mark.parametrize("wrong", [-0.1, 1.1, float("nan")])
def test_what_is_no_chance_and_no_time_is_refused(wrong: float) -> None:
    for call in (
        lambda: hit_rate(wrong, 0.5),
        lambda: hit_rate(0.5, wrong),
        lambda: speedup(wrong, PRIMARY, QUICK),
        lambda: speedup_bounds(wrong, PRIMARY, QUICK),
        lambda: critical_batch(wrong, PRIMARY, QUICK),
    ):
        with pytest.raises(ValueError, match="not a chance"):
            call()
    for tokens, seconds in [(0.5, 0.0), (float("nan"), 0.0), (2.0, -1.0), (2.0, float("nan"))]:
        with pytest.raises(ValueError, match="at least 1 token"):
            Drafted(tokens, seconds)
    with pytest.raises(ValueError, match="batch of 0"):
        speedup(0.5, PRIMARY, QUICK, 0)
