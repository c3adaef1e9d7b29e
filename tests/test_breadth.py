"""How wide a draft model's passes are: as wide as pays, by what they took."""

from __future__ import annotations

from collections.abc import Callable, Sequence

import pytest

from edgespec.core.schedule import Context, TreeBudget
from edgespec.core.tree import TokenTree
from edgespec.drafters import breadth
from edgespec.drafters.base import Root
from edgespec.drafters.breadth import Breadth
from edgespec.drafters.model import ModelDrafter
from tests.table_runtime import PROMPT, VOCABULARY, TablePass, TableRuntime


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


def test_a_pass_stands_for_one_of_about_its_width() -> None:
    made = Breadth()
    for nodes, seconds in ((4, 1.0), (8, 1.0), (5, 100.0), (33, 100.0)):
        made.learn(nodes, seconds)
    assert made.width(32) == 16, "neither half a pass of 8 nor a prompt's is one of 8"
    made.learn(6, 100.0)
    assert made.width(32) == 4


class Slow(TableRuntime):
    """A step of a pass takes a second a row, in `time`."""

    time = 0.0

    def begin(self, tokens: Sequence[int], parents: Sequence[int]) -> TablePass:
        return SlowPass(self, super().begin(tokens, parents))


class SlowPass(TablePass):
    def __init__(self, runtime: Slow, begun: TablePass) -> None:
        self.runtime, self.left, self.result = runtime, begun.left, begun.result

    def advance(self) -> bool:
        assert isinstance(self.runtime, Slow)
        self.runtime.time += len(self.result)
        return super().advance()


def long_if_wide(under_way: SlowPass) -> bool:
    """As `TablePass.advance`; of more than 8 nodes it does not end in any wait."""
    runtime = under_way.runtime
    assert isinstance(runtime, Slow)
    runtime.time += 1
    return len(under_way.result) <= 8 and TablePass.advance(under_way)


def test_what_the_target_does_meanwhile_counts_for_nothing(monkeypatch: pytest.MonkeyPatch) -> None:
    runtime = Slow(rows=400, parts=3)
    monkeypatch.setattr("edgespec.drafters.forest.perf_counter", lambda: runtime.time)
    drafter = ModelDrafter(runtime, VOCABULARY)
    drafter.prefill(Context(PROMPT))
    ahead = drafter.ahead(TokenTree.root(2), TreeBudget(64, 50, 0))
    took = set[float]()
    while ahead.step():
        runtime.time += 1000.0
        took.add(drafter.forest.seconds)
    assert took == {0.0, 3.0, 12.0, 24.0}, "three steps; of a root, of 4 nodes, and once of 8"
    assert drafter.forest.breadth.width(32) == 4


def test_a_width_that_the_waits_are_too_short_for_is_left() -> None:
    made, found = Breadth(), list[int]()
    for _ in range(4 * breadth.AGAIN):
        found.append(width := made.width(32))
        if width > 8:
            made.dropped(width)
        else:
            made.learn(width, 1.0)
    assert found[:5] == [4, 8, 16, 16, 8], "one that was left in the middle may be chance"
    assert found.count(16) == 2 * 4, "tried again with all others, and left again"
    assert 32 not in found
    for _ in range(9):
        made.dropped(4)
        made.dropped(33)
    assert made.width(32) >= 4
    made = Breadth()
    made.learn(4, 1.0)
    made.dropped(8)
    made.learn(8, 1.0)
    for _ in range(9):
        made.dropped(8)
    assert made.width(8) == 8, "what came to its end once is as long as that took"


def test_short_waits_are_no_waste(monkeypatch: pytest.MonkeyPatch) -> None:
    """Passes of up to 8 nodes take three steps, wider ones more than there is time for."""
    runtime = Slow(rows=400, parts=3)
    monkeypatch.setattr("edgespec.drafters.forest.perf_counter", lambda: runtime.time)
    drafter = ModelDrafter(runtime, VOCABULARY)
    drafter.prefill(Context(PROMPT))
    monkeypatch.setattr(SlowPass, "advance", long_if_wide)
    prepared = []
    for _ in range(12):
        ahead = drafter.ahead(TokenTree.root(2), TreeBudget(64, 50, 0))
        for _ in range(12):
            ahead.step()
        prepared.append(ahead.nodes)
        drafter.forest.forget()
    assert min(prepared[3:]) > 4 + 8


def test_before_verification_nodes_must_be_worth_their_time() -> None:
    likely, faint = [0.5] * 8, [0.5] * 4 + [0.2] * 4
    made = Breadth()
    assert made.worth(likely, 9.0) == 4, "nothing is known at first"
    made.learn(4, 1.0)
    assert made.worth(likely, 9.0) == 8, "and one is tried"
    made.learn(8, 2.0)
    assert made.worth(likely, 0.9) == 8, "four nodes promise two tokens, one of them now, and take a second"
    assert made.worth(likely, 1.1) == 4
    assert made.worth(faint, 0.35) == 8
    assert made.worth(faint, 0.45) == 4
    assert made.worth([0.5, 0.1], 9.0) == 2, "no more than there are"


def test_a_width_that_does_not_pay_may_lie_before_one_that_does() -> None:
    """Two rows of some kernels take what two passes of one do, and four hardly more."""
    made, took, found = Breadth(breadth.BEFORE), {1: 72e-3, 2: 131e-3, 4: 162e-3, 8: 0.35}, list[int]()
    for _ in range(20):
        found.append(made.worth([0.5, 0.4, 0.4, 0.4, *[0.01] * 4], 5.0))
        made.learn(found[-1], took[found[-1]])
    assert found[:3] == [1, 2, 4]
    assert set(found[4:]) == {4}


@pytest.mark.parametrize("paused", [4, 8])
def test_a_pause_is_not_believed_for_ever(paused: int) -> None:
    made, found = Breadth(), list[int]()
    likely = [0.5] * 8
    for _ in range(2 * breadth.AGAIN):
        found.append(made.worth(likely, 1.0))
        first = found.count(found[-1]) == 1
        # Passes of 8 take three seconds more, and are not worth them, or no longer, and are.
        took = {4: 1.0, 8: 4.0 if paused == 4 else 1.0}[found[-1]]
        made.learn(found[-1], 50.0 if first and found[-1] == paused else took)
    assert set(found[8:60]) == ({8} if paused == 4 else {4}), "misled"
    assert set(found[-20:]) == ({4} if paused == 4 else {8})


@pytest.mark.parametrize(("price", "wide"), [(0.0, 8), (1e-6, 8), (10.0, 1)])
def test_a_trees_passes_are_as_wide_as_pays(price: float, wide: int, monkeypatch: pytest.MonkeyPatch) -> None:
    """0: nobody says what time costs."""
    runtime, rows = Slow(rows=400, parts=3), list[int]()
    monkeypatch.setattr("edgespec.drafters.forest.perf_counter", lambda: runtime.time)
    drafter = ModelDrafter(runtime, VOCABULARY)
    drafter.prefill(Context(PROMPT))
    begin = runtime.begin

    def counted(tokens: Sequence[int], above: Sequence[int]) -> TablePass:
        rows.append(len(tokens))
        return begin(tokens, above)

    monkeypatch.setattr(runtime, "begin", counted)
    for _ in range(2):
        drafting = drafter.start([Root((2,))], TreeBudget(64, 50, 8, price=price))
        while drafting.step():
            pass
        drafter.forest.forget()
    assert rows[0] == 1, "the root"
    assert rows[1] == (2 if price else 8), "the root has told what a row takes"
    assert set(rows[4:8]) == {wide}
    assert (2 in rows) == bool(price), "which was tried"
