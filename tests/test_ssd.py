"""Drafting while the target verifies: the same text whenever it happens, nothing twice, and errors."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Generator, Sequence
from typing import Any

import numpy as np
import pytest

from edgespec.config import GenerationOptions
from edgespec.control.controller import Adaptive
from edgespec.control.fixed import Fixed
from edgespec.core.acceptance import Logits, Outcome, make_acceptance
from edgespec.core.sampling import Noise
from edgespec.core.schedule import Context, TreeBudget
from edgespec.core.trace import Cycle
from edgespec.core.tree import TokenTree, merge
from edgespec.drafters import continuations
from edgespec.drafters.base import Drafter, Root
from edgespec.drafters.combined import Combined
from edgespec.drafters.forest import Forest, Node, Read
from edgespec.drafters.model import ModelDrafter
from edgespec.drafters.ngram import NGram
from edgespec.errors import Cancelled, ModelError
from edgespec.schedules.serial import Serial
from edgespec.schedules.ssd import Ssd
from tests import table_runtime
from tests.covering import covering
from tests.table_runtime import GREEDY, HOT, PROMPT, TABLE, VOCABULARY, TablePass, TableRuntime, plain

BUDGET = TreeBudget(12, 4, 4)


class Watched(TableRuntime):
    """Keeps the whole text before each row that was run to the end."""

    def __init__(self, noise: float = 0.5, **options: int) -> None:
        super().__init__(noise=noise, **options)
        self.done: list[tuple[int, ...]] = []
        self.fails: BaseException | None = None

    def begin(self, tokens: Sequence[int], parents: Sequence[int]) -> TablePass:
        return WatchedPass(self, super().begin(tokens, parents))

    def text_of(self, slot: int) -> tuple[int, ...]:
        path = list[int]()
        while slot >= 0:
            slot, token = self.slots[slot]
            path.append(token)
        return (*self.text, *path[::-1])


class WatchedPass(TablePass):
    def __init__(self, runtime: Watched, begun: TablePass) -> None:
        self.runtime, self.left, self.result = runtime, begun.left, begun.result
        self.first = len(runtime.slots) - len(begun.result)

    def advance(self) -> bool:
        assert isinstance(self.runtime, Watched)
        if self.runtime.fails is not None:
            raise self.runtime.fails
        ended = super().advance()
        if ended:
            self.runtime.done += map(self.runtime.text_of, range(self.first, len(self.runtime.slots)))
        return ended


def reply(
    schedule: Serial, waits: Callable[[], int], *how: Any, **options: Any
) -> tuple[list[int], list[Cycle]]:
    """Each pass of the target has so many waits, or fewer when nothing is to do."""

    def verify(tree: TokenTree, logits: Logits) -> float:
        for _ in range(waits()):
            if not schedule.on_wait():
                break
        return 1.0

    return table_runtime.reply(schedule, verify, *how, **options)


def model_of(noise: float = 0.5, **options: int) -> tuple[ModelDrafter, Watched]:
    runtime = Watched(noise, **options)
    return ModelDrafter(runtime, VOCABULARY), runtime


def drafter_of(name: str, noise: float = 0.5) -> Drafter:
    members: list[Drafter] = [NGram()] if "ngram" in name else []
    members += [ModelDrafter(TableRuntime(noise=noise), VOCABULARY)] if "model" in name else []
    return members[0] if len(members) == 1 else Combined(members)


@pytest.mark.parametrize(
    ("options", "name", "fallback"),
    covering({"greedy": GREEDY, "hot": HOT}, ("ngram", "model", "ngram+model"), ("jit", "ngram", "none")),
)
def test_the_text_is_the_targets_own_whenever_drafting_happens(
    options: GenerationOptions, name: str, fallback: str
) -> None:
    """With every number of waits a pass, and at random; by a controller that fixes the budget and by one that
    measures."""
    expected, rng = plain(options), np.random.default_rng(5)
    amounts = [lambda n=n: n for n in (0, 1, 2, 5, 1000)]  # type: ignore[misc]
    amounts.append(lambda: int(rng.integers(0, 30) * rng.integers(0, 2)))
    for waits in amounts:
        for controller in (Fixed(BUDGET), Adaptive()):
            said, cycles = reply(Ssd(drafter_of(name), controller, 64, fallback), waits, options)
            assert said == expected
    assert sum(cycle.outcome.accepted for cycle in cycles) > 0


@pytest.mark.parametrize("waits", [4, 8, 30, 1000])
@pytest.mark.parametrize("name", ["model", "ngram+model"])
def test_nothing_is_drafted_twice(name: str, waits: int) -> None:
    """No row of the draft model is run to its end a second time, whatever was prepared: not what was drafted
    before the pass, nor in its waits, nor what a wait's end interrupted."""
    rng = np.random.default_rng(1)
    for options in (GREEDY, HOT):
        drafter, runtime = model_of()
        both = Combined([NGram(), drafter]) if name == "ngram+model" else drafter
        _, cycles = reply(Ssd(both, Fixed(BUDGET), 64), lambda: int(rng.integers(0, waits + 1)), options)
        again = [text for text, times in Counter(runtime.done).items() if times > 1]
        assert not again
        assert sum(cycle.overlap.nodes for cycle in cycles if cycle.overlap) > 0


@pytest.mark.parametrize("acceptance", ["sample", "ratio"])
def test_a_step_looks_through_a_few_rows_at_most(monkeypatch: pytest.MonkeyPatch, acceptance: str) -> None:
    """As many as fit into a wait; a pass that ends between two of them is dropped, and nothing of it is left.
    What is said does not depend on it."""
    rows, looked, at_once, run = 3, 0, list[int](), Forest.run
    monkeypatch.setattr(continuations, "AT_ONCE", rows * VOCABULARY + 1)

    def counted(self: Forest, nodes: Sequence[Node], read: Read) -> Generator[None, None, None]:
        def counting(slots: range, logits: Logits, positions: list[int]) -> None:
            nonlocal looked
            looked += len(slots)
            read(slots, logits, positions)

        return run(self, nodes, counting)

    class Waiting(Ssd):
        def on_wait(self) -> bool:
            before = looked
            worked = super().on_wait()
            at_once.append(looked - before)
            return worked

        def settle(self, outcome: Outcome) -> Cycle:
            if self._ahead is not None:
                self._ahead.stop()
                assert len(forest.slots) == len(runtime.slots)
                assert {*forest.said, *forest.drawn} <= set(forest.slots.values())
            return super().settle(outcome)

    monkeypatch.setattr(Forest, "run", counted)
    drafter, runtime = model_of()
    forest, rng = drafter.forest, np.random.default_rng(2)
    waits = lambda: int(rng.integers(0, 40))  # noqa: E731
    said, cycles = reply(Waiting(drafter, Fixed(BUDGET), 64), waits, HOT, acceptance, count=200)
    assert max(at_once) == rows
    if acceptance == "sample":
        assert said == plain(HOT, count=200)
    assert sum(cycle.overlap.hit is True for cycle in cycles if cycle.overlap) > 3


@pytest.mark.parametrize(("name", "width"), [("ngram", 1), ("model", 8), ("model", 3), ("ngram+model", 3)])
def test_the_controller_is_told_how_wide_a_pass_is(
    monkeypatch: pytest.MonkeyPatch, name: str, width: int
) -> None:
    heard = set[int]()

    class Told(Fixed):
        def overlapped(self, limit: TreeBudget, passes: range, prepared: TokenTree, width: int) -> Any:
            heard.add(width)
            return super().overlapped(limit, passes, prepared, width)

    monkeypatch.setattr(ModelDrafter, "width", width)
    reply(Ssd(drafter_of(name), Told(BUDGET), 64), lambda: 9, GREEDY)
    assert heard == {width}


def test_a_hit_goes_on_where_the_waits_ended() -> None:
    """Its tree is there without a pass; deeper than what was prepared only what is missing is run."""
    shallow = TreeBudget(12, 2, 2)
    drafter, runtime = model_of(noise=0.0, rows=256)  # it knows what comes
    schedule = Ssd(drafter, Fixed(shallow), 64)
    schedule.begin(Context(PROMPT), 100)
    tree, ran = schedule.next_tree(2), runtime.ran
    while schedule.on_wait():
        pass
    assert runtime.ran > ran
    before = [PROMPT[-1] if parent < 0 else tree.tokens[parent] for parent in tree.parents]
    outcome = make_acceptance(None, GREEDY).walk(tree, TABLE[before, tree.tokens], Noise(0), 6)
    cycle = schedule.settle(outcome)
    assert cycle.overlap is not None
    assert cycle.overlap.nodes == len(runtime.done) - ran > 20
    ran = runtime.ran
    following = schedule.next_tree(outcome.bonus)
    assert runtime.ran == ran
    assert schedule.overlap.hit is True
    assert following.depths.max() == 2
    fresh = ModelDrafter(TableRuntime(noise=0.0), VOCABULARY)
    fresh.prefill(Context([*PROMPT, 2, *outcome.tokens[:-1]]))
    same = Serial(fresh, Fixed(shallow), 64)
    same.begin(Context([*PROMPT, 2, *outcome.tokens[:-1]]), 100)
    expected = same.next_tree(outcome.bonus)
    assert np.exp(following.scores).sum() >= 0.999 * np.exp(expected.scores).sum()


def test_what_was_prepared_is_asked_for_where_something_can_be(monkeypatch: pytest.MonkeyPatch) -> None:
    """Not in a plain cycle that follows another: and no hit is lost by that."""
    drafter, _ = model_of()
    asked = found = spared = 0

    class Some(Fixed):
        cycle = 0

        def budget(self, limit: TreeBudget, passes: range) -> TreeBudget | None:
            self.cycle += 1
            return super().budget(limit, passes) if self.cycle % 8 in (0, 1) else None

    def prepared() -> bool:
        nonlocal asked, found
        asked, found = asked + 1, found + drafter.forest.kept
        return drafter.forest.kept

    class Looked(Ssd):
        def next_tree(self, root: int) -> TokenTree:
            nonlocal spared
            before, kept = asked, drafter.forest.kept
            tree = super().next_tree(root)
            assert asked > before or not kept
            spared += asked == before
            return tree

    monkeypatch.setattr(drafter, "prepared", prepared)
    said, cycles = reply(Looked(drafter, Some(BUDGET), 64), lambda: 30, count=200)
    assert said == plain(GREEDY, 200)
    hits = sum(cycle.overlap.hit is True for cycle in cycles if cycle.overlap)
    assert found > hits > 5, "some of them two cycles later"
    assert spared > len(cycles) // 3


def test_of_a_prepared_tree_is_verified_what_the_controller_has_left_of_it() -> None:
    """Weighing it leaves out what does not pay: that is not done again."""
    pruned = list[int]()

    class Leaving(Fixed):
        def overlapped(self, limit: TreeBudget, passes: range, prepared: TokenTree, width: int) -> Any:
            budget, whole = super().overlapped(limit, passes, prepared, width)
            return budget, whole.select(range(min(2, len(whole))))

        def prune(self, tree: TokenTree) -> TokenTree:
            pruned.append(len(tree))
            return tree

    drafter, _ = model_of(noise=0.0, rows=256)
    schedule = Ssd(drafter, Leaving(TreeBudget(64, 99, 2)), 64)
    schedule.begin(Context(PROMPT), 100)
    tree = schedule.next_tree(2)
    assert pruned == [len(tree)]
    while schedule.on_wait():
        pass
    before = [PROMPT[-1] if parent < 0 else tree.tokens[parent] for parent in tree.parents]
    outcome = make_acceptance(None, GREEDY).walk(tree, TABLE[before, tree.tokens], Noise(0), 6)
    schedule.settle(outcome)
    following = schedule.next_tree(outcome.bonus)
    assert schedule.overlap.hit is True
    assert (len(following), len(pruned)) == (2, 1)


def test_drafting_ahead_is_best_first_over_all_outcomes() -> None:
    """Of all nodes that might have been run, those that were are the likeliest, however early it ends."""
    drafter, runtime = model_of()
    drafter.prefill(Context(PROMPT))
    drafter.width = drafter.ahead_width = 1
    drafting = drafter.start([Root((2,))], BUDGET)
    while drafting.step():
        pass
    drafting.stop()
    verified = drafting.tree().best(6)
    ahead = drafter.ahead(verified, TreeBudget(64, 50, 0))
    table = TableRuntime(noise=0.5).table
    logs = table - np.log(np.exp(table).sum(axis=2, keepdims=True))

    def score(text: tuple[int, ...]) -> float:
        path = (PROMPT[-1], *text[len(PROMPT) :])
        return sum(float(logs[path[i - 2], path[i - 1], path[i]]) for i in range(2, len(path)))

    for _ in range(40):
        before = set(runtime.done)
        while set(runtime.done) == before:
            assert ahead.step()
        (new,) = set(runtime.done) - before
        assert new[:-1] in before, "its parent was run before it"
        open_scores = [
            score((*text, token))
            for text in before
            for token in range(VOCABULARY)
            if len(text) > len(PROMPT)
            if (*text, token) not in before
            and token in np.argsort(-logs[text[-2], text[-1]], kind="stable")[:8]
        ]
        assert score(new) >= max(open_scores) - 1e-5
    assert ahead.nodes == 40


def test_no_outcome_is_prepared_for_beyond_the_next_tree() -> None:
    """Whichever comes, the next tree is the same as where everything likely was run, and that at a fraction
    of the rows."""

    def prepared(nodes: int) -> tuple[dict[tuple[int, ...], Any], int]:
        drafter, _ = model_of(rows=20_000, parts=1)
        drafter.prefill(Context(PROMPT))
        drafting = drafter.start([Root((2,))], BUDGET)
        while drafting.step():
            pass
        drafting.stop()
        verified = drafting.tree().best(6)
        ahead = drafter.ahead(verified, TreeBudget(nodes, 50, 0))
        while ahead.step():
            pass
        ahead.stop()
        trees = dict[tuple[int, ...], Any]()
        for node in range(len(verified)):
            path = verified.tokens[verified.path_to(node)].tolist()
            for bonus in range(VOCABULARY):
                then = drafter.start([Root((*path, bonus))], TreeBudget(9, 50, 0))
                while then.step():
                    pass
                tree = then.tree()
                trees[(*path, bonus)] = tree.tokens.tolist(), tree.parents.tolist()
                then.stop()
        return trees, ahead.nodes

    (few, rows), (all_of_them, most) = prepared(9), prepared(10**6)
    assert few == all_of_them
    assert sum(len(tokens) == 9 for tokens, _ in few.values()) > 30
    assert rows < most / 3


def test_what_a_wait_interrupts_is_not_waited_for() -> None:
    """After the outcome nothing is run: what was half done is dropped, and what was done is kept."""
    for waits in range(1, 25):
        drafter, runtime = model_of(noise=0.0)
        drafter.ahead_width = 2
        schedule = Ssd(drafter, Fixed(TreeBudget(12, 2, 2)), 64)
        schedule.begin(Context(PROMPT), 100)
        tree = schedule.next_tree(2)
        ran, done = runtime.ran, len(runtime.done)
        assert all(schedule.on_wait() for _ in range(waits))
        begun, ended = runtime.ran - ran, len(runtime.done) - done
        assert (begun > ended) == (waits % runtime.parts != 0)
        before = [PROMPT[-1] if parent < 0 else tree.tokens[parent] for parent in tree.parents]
        outcome = make_acceptance(None, GREEDY).walk(tree, TABLE[before, tree.tokens], Noise(0), 6)
        cycle = schedule.settle(outcome)
        assert runtime.ran == ran + begun
        assert cycle.overlap is not None
        assert (cycle.overlap.steps, cycle.overlap.nodes) == (waits, ended)
        assert not schedule.on_wait(), "no pass is under way"


def test_the_reply_ends_where_it_ends() -> None:
    """Nothing is drafted behind its last token, and nothing where there is no room."""
    for capacity, count in ((400, 6), (12, 30)):
        drafter, runtime = model_of(capacity=capacity)
        said, _ = reply(Ssd(drafter, Fixed(BUDGET), 64), lambda: 1000, count=count)
        assert said == plain(GREEDY, count)
        longest = max(map(len, runtime.done))
        assert longest <= min(len(PROMPT) + count - 2, capacity)
        assert longest >= min(len(PROMPT) + count - 3, capacity - 2)


@pytest.mark.parametrize("name", ["model", "ngram+model"])
@pytest.mark.parametrize("when", [0, 1, 2, 7, 20])
@pytest.mark.parametrize("error", [ModelError("NaN"), ValueError("a bug"), MemoryError()])
def test_an_error_in_a_wait_ends_the_drafting_and_not_the_pass(
    name: str, when: int, error: Exception
) -> None:
    drafter, runtime = model_of()
    schedule = Ssd(Combined([NGram(), drafter]) if "ngram" in name else drafter, Fixed(BUDGET), 64)
    left, step = when, schedule.on_wait

    def on_wait() -> bool:
        nonlocal left
        left -= 1
        if left == 0:
            runtime.fails = error
        return step()

    schedule.on_wait = on_wait  # type: ignore[method-assign]
    said, cycles = reply(schedule, lambda: 5)
    assert said == plain(GREEDY)
    if when:
        assert schedule.damaged == isinstance(error, ModelError)
        assert (schedule.undrafted is None) == schedule.damaged
        assert schedule.undrafted is None or type(error).__name__ in schedule.undrafted
        assert not schedule.drafter.resident
        assert not any(cycle.overlap.nodes for cycle in cycles[-10:] if cycle.overlap)
        assert (sum(cycle.outcome.drafted for cycle in cycles[-10:]) > 0) == (name == "ngram+model")


def test_cancelling_passes_through() -> None:
    """And the next reply begins anew."""
    drafter, _ = model_of()
    schedule = Ssd(drafter, Fixed(BUDGET), 64)

    def check() -> None:
        if cancelled:
            raise Cancelled("enough")

    cancelled = False
    schedule.begin(Context(PROMPT, check=check), 50)
    schedule.next_tree(2)
    assert schedule.on_wait()
    cancelled = True
    with pytest.raises(Cancelled):
        schedule.on_wait()
    assert not schedule.damaged
    said, _ = reply(schedule, lambda: 9)
    assert said == plain(GREEDY)
    drafter.runtime.fails = KeyboardInterrupt()  # type: ignore[attr-defined]
    with pytest.raises(KeyboardInterrupt):
        reply(schedule, lambda: 9)
    drafter.runtime.fails = None  # type: ignore[attr-defined]
    assert reply(schedule, lambda: 9)[0] == said


def test_drawn_chains_without_waits_are_as_long_as_those_of_the_serial_schedule() -> None:
    """What is prepared for `ratio`: tests/test_drawn.py."""
    for kind in (Serial, Ssd):
        _, cycles = reply(kind(model_of()[0], Fixed(BUDGET), 64), lambda: 0, HOT, "ratio")
        assert sum(cycle.outcome.accepted for cycle in cycles) > 0
        assert {len(cycle.tree) for cycle in cycles[:-4]} == {5}


@pytest.mark.parametrize(("kind", "waits"), [(Serial, 0), (Ssd, 0), (Ssd, 40)])
def test_what_a_cycle_should_give_is_told_beside_what_it_gave(kind: type[Serial], waits: int) -> None:
    """By a clock of its own: 0.05 plain cycles a step of drafting before a pass."""
    drafter, runtime = model_of(capacity=1000)
    clock: Callable[[], float] = lambda: runtime.ran * 0.05 / drafter.width  # noqa: E731
    _, cycles = reply(kind(drafter, Adaptive(), 64, clock=clock), lambda: waits, count=500)
    late = cycles[-len(cycles) // 2 :]
    took = np.array([cycle.took for cycle in late], dtype=float)
    predicted = np.array([cycle.predicted for cycle in late], dtype=float)
    gave = sum(len(cycle.outcome.tokens) for cycle in late)
    assert (predicted * took).sum() == pytest.approx(gave, rel=0.15)
    assert gave > 1.2 * took.sum()


def test_typical_acceptance_is_drafted_for_ahead() -> None:
    _, cycles = reply(Ssd(model_of()[0], Fixed(BUDGET), 64), lambda: 30, HOT, "typical")
    assert sum(cycle.overlap.hit is True for cycle in cycles if cycle.overlap) > 5


def test_a_branch_of_another_drafter_is_followed_in_few_passes() -> None:
    """Its tokens are known, so that a node need not wait for what its parent says; likeliest first."""
    drafter, runtime = model_of()
    drafter.prefill(Context(PROMPT))
    drafting = drafter.start([Root((2,))], TreeBudget(12, 1, 1))
    while drafting.step():
        pass
    drafting.stop()
    strange = TokenTree.chain([2, *range(6), *range(6)], [0.0, *[-0.01] * 12])
    tree = merge([drafting.tree(), strange])
    done = len(runtime.done)
    ahead = drafter.ahead(tree, TreeBudget(64, 50, 0))
    for _ in range(2 * runtime.parts):
        assert ahead.step()
    assert set(runtime.done[done:]) >= {(*PROMPT, 2, *[*range(6), *range(6)][: n + 1]) for n in range(12)}
    ahead.stop()
    path = np.array(
        [int(np.flatnonzero(tree.depths == d)[tree.scores[tree.depths == d].argmax()]) for d in range(13)]
    )
    drafter.commit(2, Outcome(path, (*tree.tokens[path[1:]].tolist(), 0)))
    assert len(runtime.text) == len(PROMPT) + 13, "whoever wrote the branch, it need not be run again"
