"""How wide passes of drafting ahead are: as wide as pays, by what they took."""

from __future__ import annotations

from collections.abc import Callable

import pytest

from edgespec.drafters import breadth
from edgespec.drafters.breadth import Breadth


def widths(seconds: Callable[[int], float], count: int, most: int = 32) -> list[int]:
    made, found = Breadth(), list[int]()
    for _ in range(count):
        found.append(made.width(most))
        made.learn(found[-1], seconds(found[-1]))
    return found


@pytest.mark.parametrize(
    ("took", "width"),
    [
        ({4: 30, 8: 30, 16: 31, 32: 32}, 32),  # AMX
        ({4: 44, 8: 61, 16: 116, 32: 225}, 8),  # bf16 on one core with AVX-512
        ({4: 45, 8: 99, 16: 152, 32: 246}, 4),  # int4 there
    ],
)
def test_passes_get_wider_while_it_pays(took: dict[int, float], width: int) -> None:
    found = widths(took.__getitem__, breadth.AGAIN - 1)
    assert found[:2] == [4, 8], "nothing is known at first"
    assert set(found[5:]) == {width}


def test_what_did_not_pay_is_tried_again() -> None:
    """A pause of the machine is not for ever; what still does not pay costs one pass in AGAIN."""
    paused = iter([1.0, 9.0])
    found = widths(lambda rows: next(paused, 1.0), 4 * breadth.AGAIN)
    assert found[2:10] == [4] * 8
    assert found[-1] == 32
    never = widths(float, 4 * breadth.AGAIN)
    assert never.count(8) == 1 + 3
    assert set(never) == {4, 8}


def test_what_a_drafter_bears_is_kept_to() -> None:
    assert set(widths(lambda rows: 1.0, 20, most=3)) == {3}
    assert max(widths(lambda rows: 1.0, 20, most=16)) == 16
    made = Breadth()
    for rows, seconds in ((4, 1.0), (8, 1.0), (5, 100.0), (64, 100.0)):  # a pass of 5 of 8; a prompt's
        made.learn(rows, seconds)
    assert made.width(8) == 4, "one of 5 rows counts as one of 8"
