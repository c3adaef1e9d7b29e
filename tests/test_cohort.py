"""What drafts cost that are made together is told apart from what each costs, and from pauses."""

from __future__ import annotations

import numpy as np
import pytest

from edgespec.control.cohort import Cohort


def timed(numbers: list[int], first: float, each: float, noise: float = 0.0) -> Cohort:
    rng, cohort = np.random.default_rng(0), Cohort()
    for number in numbers:
        cohort.fade()
        cohort.add(number, (first + each * number) * float(np.exp(noise * rng.standard_normal())))
    return cohort


@pytest.mark.parametrize(("first", "each"), [(0.007, 0.0005), (0.0, 0.02), (0.3, 0.0)])
def test_numbers_tell_the_two_apart(first: float, each: float) -> None:
    cohort = timed([1, 4, 13, 16, 16, 16], first, each)
    assert cohort.told
    assert cohort.line(0.0) == pytest.approx((first, each), abs=1e-9)
    assert cohort.together(64) == pytest.approx(first + 64 * each)
    rough = timed([1, 4, 13] * 20, first, each, noise=0.05)
    assert rough.together(16) == pytest.approx(first + 16 * each, rel=0.1)


@pytest.mark.parametrize("numbers", [[1], [16] * 9, [16, 15, 16, 17]])
def test_as_long_as_they_do_not_it_is_as_one_asks(numbers: list[int]) -> None:
    cohort = timed(numbers, 0.007, 0.0005)
    whole = cohort.together(1)
    assert not cohort.told
    assert cohort.line(0.0) == (pytest.approx(whole), 0.0)
    first, each = cohort.line(1.0)
    assert first == pytest.approx(0.0, abs=1e-12)
    assert each == pytest.approx(whole / np.average(numbers, weights=0.985 ** np.arange(len(numbers))[::-1]))


def test_nothing_is_negative() -> None:
    """However timings scatter: fewer may have taken longer."""
    cohort = Cohort()
    for number, seconds in [(1, 0.02), (16, 0.001), (4, 0.03), (16, 0.002)]:
        cohort.add(number, seconds)
    first, each = cohort.line(0.0)
    assert (first, each) == (pytest.approx(cohort.together(0)), 0.0)
    assert first > 0
    assert Cohort().line(1.0) == (0.0, 0.0)
    assert not Cohort().known
    assert not Cohort().told


def test_who_drafts_first_pays_its_share_of_all_until_that_is_told_and_of_those_of_late_then() -> None:
    assert timed([1], 0.007, 0.0).share(16) == pytest.approx(0.007 / 16)
    cohort = timed([1, 4, 13], 0.007, 0.0005)
    assert cohort.share(16) == pytest.approx(0.0005 + 0.007 / 13)
    assert cohort.share(8) == pytest.approx(0.0005 + 0.007 / 8)
    assert timed([1] * 16, 0.007, 0.0).share(16) == pytest.approx(0.007 / 16)
    assert timed([1] * 20, 0.007, 0.0).share(16) == pytest.approx(0.007), "nobody joins"
    alone = timed([13, *[1] * 400], 0.007, 0.0005)  # the others stopped long ago
    assert not alone.told
    assert alone.share(16) == pytest.approx(0.0075, rel=0.01)


def test_those_who_were_held_back_would_have_shared() -> None:
    cohort = timed([1, 2], 0.007, 0.0)
    assert cohort.told
    assert cohort.share(64) == pytest.approx(0.007 / 2)
    cohort.add(2, 0.007, held=60)
    assert cohort.share(64) == pytest.approx(0.007 / 62)
    for _ in range(400):
        cohort.fade()
        cohort.add(2, 0.007)
    assert cohort.share(64) == pytest.approx(0.0035), "and when nobody is held back any more, they do not"


def test_who_joins_in_is_never_taken_to_be_free() -> None:
    """By timings that scatter; many numbers tell, and so does one."""
    assert timed([1, 2], 0.003, 0.0).line(1.0)[1] == 0.0
    assert timed([1, 2], 0.003, 0.0).joining == pytest.approx(0.002 / 3, rel=0.01)
    assert timed([4], 0.003, 0.001).joining == pytest.approx(0.007 / 4)
    assert timed([1, 4, 16, 64], 0.003, 0.001).joining == pytest.approx(0.001)
    assert Cohort().joining == 0.0


def test_what_was_not_timed_for_long_is_forgotten() -> None:
    cohort = timed([1, 4, 13], 0.007, 0.0005)
    for _ in range(100):
        cohort.fade()
    assert cohort.together(16) == pytest.approx(0.015)
    assert cohort.told
    for _ in range(200):
        cohort.fade()
    assert not cohort.known
    assert not cohort.told


def test_a_pause_of_the_machine_counts_a_little_and_another_pace_is_learned() -> None:
    cohort = timed([1, 8, 16] * 5, 0.007, 0.0005)
    cohort.add(16, 10.0)
    assert cohort.together(16) < 2 * 0.015
    for _ in range(60):
        for number in (1, 8, 16):
            cohort.fade()
            cohort.add(number, 0.07 + 0.005 * number)
    assert cohort.together(16) == pytest.approx(0.15, rel=0.1)
