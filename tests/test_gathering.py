"""Passes wait a moment for clients who were answered by the one before, where that pays."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import pytest

from edgespec.serving.visitors import GATHERING, TRIAL, Visitors

PASS = 1.0  # seconds


class Passes:
    """A scheduler's loop by a clock of its own, whose clients ask again so many seconds after each answer."""

    def __init__(self, delays: Sequence[float], in_line: int = 0) -> None:
        """in_line: members whose tokens are the server's, in every pass."""
        self.now, self.in_line = 0.0, in_line
        self.members = list[Any]()
        batcher: Any = type("Line", (), {
            "join": lambda _, visitor: self.members.append(visitor), "__len__": lambda _: len(self),
        })()  # fmt: skip
        self.visitors = Visitors(batcher, clock=lambda: self.now)
        self.delays = delays
        self.due = [(0.0, client) for client in range(len(delays))]  # when they ask
        self.waited = 0.0  # in all

    def __len__(self) -> int:
        return self.in_line + len(self.members)

    def arrive(self) -> bool:
        come = sorted(d for d in self.due if d[0] <= self.now)
        self.due = [d for d in self.due if d[0] > self.now]
        joining: Callable[[int], Callable[[], None]] = lambda n: lambda: self.visitors.join(n)  # type: ignore  # noqa: E731
        self.visitors.calls.extend(joining(client) for _, client in come)
        return bool(come)

    def listen(self, seconds: float) -> bool:
        first = min((at for at, _ in self.due), default=float("inf"))
        then = min(first, self.now + seconds)
        self.waited, self.now = self.waited + then - self.now, then
        return self.arrive()

    def run(self) -> int:
        """One pass; returns for how many clients."""
        if not len(self):
            self.now = max(self.now, min(at for at, _ in self.due))
        self.arrive()
        self.visitors.gather(self.listen)
        taken, self.members[:] = list(self.members), []
        self.now += PASS
        for client in taken:
            self.visitors.end(client, None)
            self.due.append((self.now + self.delays[client], client))
        self.visitors.passed(PASS)
        return len(taken)


def test_clients_who_ask_again_at_once_share_every_pass() -> None:
    passes = Passes([0.01 * n for n in range(1, 9)])
    for _ in range(4):  # whoever comes first begins
        passes.run()
    assert [passes.run() for _ in range(5)] == [8] * 5, "half of the clients wait for the others' passes"
    assert passes.waited < 0.1 * passes.now


def test_who_comes_later_than_that_is_soon_waited_for_no_more() -> None:
    passes = Passes([0.6 * PASS] * 4, in_line=4)
    for _ in range(TRIAL):
        passes.run()
    before, began = passes.waited, passes.now
    for _ in range(10 * TRIAL):
        passes.run()
    assert 0 < passes.waited - before <= 11 * GATHERING * PASS, "it tries again now and then, and only then"
    assert passes.waited - before < 0.03 * (passes.now - began)


def test_many_do_not_wait_for_a_few() -> None:
    passes = Passes([0.1], in_line=9)
    assert [passes.run() for _ in range(TRIAL - 2)].count(1) > 4
    assert passes.waited == 0


@pytest.mark.parametrize("delay", [0.2, 0.24])
def test_it_is_waited_for_no_longer_than_for_the_last(delay: float) -> None:
    passes = Passes([delay, delay / 2], in_line=2)
    for _ in range(TRIAL):
        passes.run()
    before, began, count = passes.waited, passes.now, 10
    assert [passes.run() for _ in range(count)] == [2] * count
    assert passes.waited - before == pytest.approx(count * delay)
    assert passes.now - began == pytest.approx(count * (PASS + delay))


def test_what_a_call_puts_off_lets_a_pass_come_first() -> None:
    passes = Passes([], in_line=1)
    done: list[float] = []

    def part() -> None:
        done.append(passes.now)
        if len(done) < 3:
            passes.visitors.later.append(part)

    passes.visitors.calls.append(part)
    for _ in range(4):
        passes.run()
    assert done == [0, PASS, 2 * PASS]
    assert not passes.visitors.called
