"""How far prompts go beside others' trees: passes hardly longer, and nobody starves. Counted in passes."""

from __future__ import annotations

import pytest

from edgespec.core.batch import PrefillBlock
from edgespec.core.pace import GROWTH, Pace
from tests.table_runtime import TableSeat

LAYERS = 32


def block(rows: int) -> PrefillBlock:
    return PrefillBlock(TableSeat(1000), [1] * rows)


class Machine:
    """Passes over trees take 1; rows times layers that they have of blocks, beyond `hidden`, `cost` each, and
    `own` for having any."""

    def __init__(self, hidden: int, cost: float = 1e-3, own: float = 0.0) -> None:
        self.hidden, self.cost, self.own, self.pace = hidden, cost, own, Pace(LAYERS)
        self.seconds: list[float] = []
        for _ in range(5):
            self.pace.record(1.0, trees=True, blocks=False)

    def run(self, blocks: list[PrefillBlock]) -> list[PrefillBlock]:
        """A pass; those that are through."""
        for each in blocks:
            each.until = None
        taken = self.pace.allot(blocks)
        work = sum(((LAYERS if b.until is None else b.until) - b.at) * len(b) for b in taken)
        self.seconds.append(1 + self.own + max(0, work - self.hidden) * self.cost)
        self.pace.record(self.seconds[-1], trees=True, blocks=True)
        for each in taken:
            each.at = each.until or each.at
        return [each for each in taken if each.until is None]

    def passes(self, one: PrefillBlock) -> int:
        count = 1
        while not self.run([one]):
            count += 1
        return count


@pytest.mark.parametrize("hidden", [0, 3000, 100_000])
def test_passes_are_hardly_longer_once_it_is_known_what_they_hide(hidden: int) -> None:
    machine = Machine(hidden)
    for _ in range(40):
        machine.passes(block(50))
    late = machine.seconds[len(machine.seconds) // 2 :]
    assert sum(late) / len(late) < 1 + 1.5 * GROWTH
    assert max(late) <= 1 + max(2.2 * GROWTH, 50 * machine.cost)  # one layer in any case


@pytest.mark.parametrize("rows", [(16,), (16, 64, 500)])
def test_what_each_pass_with_a_block_takes_is_not_paid_layer_by_layer(rows: tuple[int, ...]) -> None:
    """A small model in memory: one layer of a short prompt makes a pass nearly twice as long, as all do."""
    machine = Machine(hidden=0, cost=1e-4, own=0.8)
    for _ in range(10):
        for n in rows:
            machine.passes(block(n))
    assert machine.passes(block(16)) == 1  # 0.05, for 32 passes that were 1.8 each
    if len(rows) > 1:
        assert machine.passes(block(500)) <= 3  # 1.6
        assert max(machine.seconds[-3:]) < 1 + 3 * machine.own


def test_a_large_block_is_tried_in_larger_parts_now_and_then_alone() -> None:
    """Where a layer of it takes half a pass: a second one would take as much again."""
    machine = Machine(hidden=0)
    for _ in range(6):
        machine.passes(block(500))
    assert set(machine.seconds[1:]) == {1.5, 2.0}
    assert machine.seconds.count(2.0) < len(machine.seconds) / 20


def test_what_a_pass_hides_is_taken_in_one() -> None:
    """A streamed pass has time for a whole prompt: the newcomer's first token comes with it."""
    machine = Machine(hidden=100_000)
    for _ in range(20):
        machine.passes(block(512))
    assert machine.passes(block(512)) == 1
    long = [block(512), block(512)]  # of two prompts
    assert set(map(id, machine.run(long))) == set(map(id, long))


def test_who_is_first_goes_on_and_who_waits_is_next() -> None:
    machine, waiting = Machine(hidden=0, cost=1.0), [block(100) for _ in range(4)]
    done: list[int] = []
    names = {id(each): n for n, each in enumerate(waiting)}
    for _ in range(4 * LAYERS):
        through = machine.run(waiting)
        done += [names[id(each)] for each in through]
        waiting = [each for each in waiting if each not in through]
        if not waiting:
            break
    assert done == [0, 1, 2, 3]
