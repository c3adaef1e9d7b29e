"""What the benchmarks make of a target whose passes wait for as long as so many nodes take to draft."""

from __future__ import annotations

from pathlib import Path

import pytest

from benchmarks import exits
from benchmarks.exits import Exit, alike, cells, replies
from benchmarks.held_out import stories
from benchmarks.waiting import Exiting
from edgespec.core.acceptance import Outcome
from edgespec.core.trace import Cycle
from tests.covering import covering

DEMO = Path(__file__).parent.parent / "edgespec" / "demo_model"
ADAPTERS = DEMO / "cascade"
WAITS = 100
WIDEST = 32  # nodes of a pass, by which it may be more


@pytest.mark.parametrize(("adapters", "depth"), covering({"bare": None, "adapter": ADAPTERS}, (3, 7)))
def test_the_exit_speaks_behind_its_layer(
    depth: int, adapters: Path | None, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Of 10: so many tenths of the waits lie before it. The model drafts for itself, and says the same."""
    before: list[int] = []
    all_of_it: list[int] = []

    class Told(Exiting):
        def _ask(self) -> bool:
            if self._passing.asking is None:
                assert self._ahead is not None
                before.append(self._ahead.nodes)
            return super()._ask()

        def settle(self, outcome: Outcome) -> Cycle:
            if self._ahead is not None:
                all_of_it.append(self._ahead.nodes)
            return super().settle(outcome)

    monkeypatch.setattr(exits, "Exiting", Told)
    asked = stories(DEMO, 1)
    mirror = replies(DEMO, DEMO, asked, WAITS, 2, "mirror", Exit(depth, 8, adapters))
    assert len(before) > 3
    assert all(WAITS * depth / 10 <= nodes < WAITS * depth / 10 + WIDEST for nodes in before[:-1])
    assert all(WAITS <= nodes < WAITS + WIDEST for nodes in all_of_it[:-1])  # the last has little to say
    serial, ssd = (replies(DEMO, DEMO, asked, WAITS, 2, schedule) for schedule in ("serial", "ssd"))
    assert alike(mirror, serial)
    assert alike(ssd, serial)
    row = cells(mirror, ssd, serial, 0.1)
    assert float(row["Omega"]) > (0.5 if adapters else 0.05)
    assert row["more hits than ssd"]
    assert float(row["× serial"].split()[0]) > 1, "it drafts in the waits"
    assert cells(serial, ssd, serial, 0.1)["fallbacks"] == ""
    ssd["replies"][0]["said"][3] += 1
    assert not alike(ssd, serial)
