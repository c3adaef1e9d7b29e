"""Which positions a drafter has entries of, where it missed some."""

from __future__ import annotations

import numpy as np
import pytest

from edgespec.drafters.watch import Runs


@pytest.mark.parametrize("seed", range(20))
def test_runs_know_the_position_of_each_entry(seed: int) -> None:
    """Beside a list of them: grown, with gaps, and cut anywhere, within a gap as well."""
    rng, start = np.random.default_rng(seed), seed % 2
    runs, held = Runs(start), list[int]()
    for _ in range(200):
        following = runs.offset + len(held)
        if rng.random() < 0.3:
            position = int(rng.integers(0, following + 3))
            kept = runs.cut(len(held), position)
            held = [p for p in held if p < position]
            assert kept == len(held)
        elif rng.random() < 0.5:
            position = following + int(rng.integers(0, 9))
            runs.skip(len(held), position)
            held.append(position)
        else:
            held += range(following, following + int(rng.integers(1, 6)))
        assert not held or held[-1] < runs.offset + len(held)
    assert runs.cut(len(held), start) == 0


def test_the_next_entry_may_be_moved_before_it_is_made() -> None:
    runs = Runs(0)
    runs.skip(3, 7)
    runs.skip(3, 9)
    assert runs.offset == 6
    assert runs.cut(5, 10) == 4  # 0, 1, 2, 9
    runs.skip(0, 4)
    assert runs.cut(2, 6) == 2
