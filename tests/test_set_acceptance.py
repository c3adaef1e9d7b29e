"""A drafter whose acceptance is set, for benchmarks, accepts as often as it says."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest

if not (Path(__file__).resolve().parents[1] / "benchmarks").is_dir():
    pytest.skip("benchmarks/ is not part of an installed package", allow_module_level=True)

from benchmarks.drafters import SetAcceptance
from benchmarks.set_acceptance import Costs, best_steps, expected_tokens
from edgespec.core.acceptance import Outcome
from edgespec.core.schedule import Context, TreeBudget
from edgespec.core.tree import TokenTree
from edgespec.drafters.base import Drafting, Root


class Steps:
    """A drafter that counts the steps it is asked for."""

    resident = True
    passes = range(1, 17)

    def __init__(self) -> None:
        self.context = Context([])
        self.taken = 0

    def prefill(self, context: Context) -> None:
        self.context = context

    def start(self, roots: list[Root], budget: TreeBudget) -> Drafting:
        self.nodes = 1
        return self  # type: ignore[return-value]

    def step(self) -> bool:
        self.taken += 1
        self.nodes += 1
        return True

    def tree(self, root: int = 0) -> TokenTree:
        return TokenTree.chain([0] * self.nodes)

    def commit(self, root: int, outcome: Outcome) -> None:
        pass


REPLY = [(7 * i) % 50 for i in range(4000)]


def follow(drafter: SetAcceptance, steps: int, count: int = len(REPLY)) -> list[int]:
    """Accepted tokens of each cycle of a target that says REPLY, or `count` tokens of it."""
    accepted = []
    drafter.prefill(Context([1, 2]))
    at = 0
    while at + steps + 1 < count:
        drafting = drafter.start([Root((REPLY[at],))], TreeBudget(64, steps, steps))
        while drafting.step():
            pass
        tree = drafting.tree()
        assert tree.parents.tolist() == list(range(-1, steps))  # a chain
        right = 0
        while right < steps and tree.tokens[right + 1] == REPLY[at + right + 1]:
            right += 1
        accepted.append(right)
        drafter.commit(REPLY[at], Outcome(np.arange(right + 1), tuple(REPLY[at + 1 : at + right + 2]), steps))
        at += right + 1
    return accepted


@pytest.mark.parametrize("p", [0.5, 0.9])
def test_set_acceptance(p: float) -> None:
    inner = Steps()
    accepted = follow(SetAcceptance(inner, REPLY, p, 0, 50), steps=6)
    assert inner.taken == 6 * len(accepted)  # at the real drafter's cost
    assert inner.context.drawn  # and in its way of drafting chains
    tokens = 1 + sum(accepted) / len(accepted)
    spread = 4 * np.std(accepted) / len(accepted) ** 0.5
    assert abs(tokens - expected_tokens(p, 6)) < spread
    again, other = (follow(SetAcceptance(Steps(), REPLY, p, seed, 50), 6, count=800) for seed in (0, 1))
    assert again == accepted[: len(again)]  # seeded
    assert other != accepted[: len(other)]


def test_set_acceptance_at_the_bounds() -> None:
    assert set(follow(SetAcceptance(Steps(), REPLY, 0.0, 0, 50), 3, count=400)) == {0}
    assert set(follow(SetAcceptance(Steps(), REPLY, 1.0, 0, 50), 3, count=400)) == {3}


def test_set_acceptance_notices_another_text() -> None:
    drafter = SetAcceptance(Steps(), REPLY, 0.9, 0, 50)
    drafter.prefill(Context([1]))
    with pytest.raises(ValueError, match="token 0 of the reply is 3; 0 was recorded"):
        drafter.start([Root((3,))], TreeBudget(64, 4, 4))


def test_speed_model() -> None:
    assert expected_tokens(0.5, 2) == 1.75
    cycles = [
        {"steps": n, "nodes": n + 1, "draft": 0.1 + 0.2 * n, "verify": 3.0 + 0.01 * (n + 1)}
        for n in (2, 4, 8)
    ]
    costs = Costs.fit([*cycles, {"steps": 0, "nodes": 1, "draft": 9.0, "verify": 9.0}])
    assert costs.cycle(5) == pytest.approx(0.1 + 0.2 * 5 + 3.0 + 0.01 * 6)
    assert best_steps(costs, 0.1) < best_steps(costs, 0.7) < best_steps(costs, 0.99) == 16
    with pytest.raises(ValueError, match="two points"):
        Costs.fit(cycles[:1])
