"""Chains drawn for `ratio` while the target verifies: the text is distributed as the target has it."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable
from dataclasses import replace
from typing import Any

import numpy as np
import pytest

from edgespec.config import EngineOptions, GenerationOptions
from edgespec.control.fixed import Fixed
from edgespec.core.acceptance import Outcome
from edgespec.core.sampling import Distribution, Noise, Sampler, saguaro
from edgespec.core.schedule import Context, Controller, TreeBudget
from edgespec.core.trace import Cycle
from edgespec.core.tree import TokenTree
from edgespec.drafters import drawn, drawn_ahead, forest
from edgespec.drafters.base import Root
from edgespec.drafters.combined import Combined
from edgespec.drafters.drawn_ahead import DrawnAhead
from edgespec.drafters.forest import Room
from edgespec.drafters.model import ModelDrafter
from edgespec.drafters.ngram import NGram
from edgespec.schedules.fan_out import POLICIES
from edgespec.schedules.serial import Serial
from edgespec.schedules.ssd import Ssd, make
from tests.covering import covering
from tests.table_runtime import HOT, PROMPT, TABLE, VOCABULARY, TableRuntime
from tests.test_acceptance import chi_square
from tests.test_ssd import model_of, reply

FEW = GenerationOptions(temperature=1.3, top_k=6, top_p=0.95)
LONG = 2400  # tokens of a reply whose distribution is tested
BUDGET = TreeBudget(64, 50, 3)
LIKELY = 0.37
DRAFTS = TableRuntime(noise=1.0).table


class Picky(Fixed):
    """Goes by the very tokens that were drawn: more of what is unlikely, and often nothing at all."""

    def overlapped(
        self, limit: TreeBudget, passes: range, prepared: TokenTree, width: int
    ) -> tuple[TreeBudget | None, TokenTree]:
        if len(prepared) > 1 and prepared.logprobs[1] < -1.0:
            return None, prepared
        more = 2 if prepared.logprobs[-1] < -1.0 else 0
        return replace(limit, passes=more if len(prepared) > 1 else 3, ahead=True), prepared


@pytest.fixture
def quick(monkeypatch: pytest.MonkeyPatch) -> Callable[[], ModelDrafter]:
    """Drafters with few rows at a time, which foresee few outcomes: so many are missed."""
    monkeypatch.setattr(drawn, "KNOWN", 2)

    def drafter() -> ModelDrafter:
        made = ModelDrafter(TableRuntime(noise=1.0, capacity=10**5, parts=1), VOCABULARY)
        made.ahead_width = 6
        return made

    return drafter


def chance(text: list[int], cycles: list[Cycle], options: GenerationOptions, hit: bool) -> float:
    """The p-value of the tokens of cycles after hits, or of others, and of the first of each: chi-square, by
    whether the drafter of `quick` thinks a token likely, and likelier than the target does."""
    counts, expected = np.zeros((2, 2, 4))
    place, so_far, sampler, every = 1, [*PROMPT, *text], Sampler(options), np.arange(VOCABULARY)
    for cycle in cycles:
        of = cycle.overlap is not None and cycle.overlap.hit is True
        first, place = len(PROMPT) + place, place + len(cycle.outcome.tokens)
        for n in range(first, min(len(PROMPT) + place, len(so_far))) if of == hit else ():
            tables = (table[so_far[n - 2], so_far[n - 1]] for table in (TABLE, DRAFTS))
            p, q = (sampler.distribution(row).at(every) for row in tables)
            assert p[so_far[n]] > 0, "a token that the options forbid"
            cells = 2 * (q > LIKELY) + (q > p)
            for sums, seen in zip(expected[: 1 + (n == first)], counts, strict=False):
                sums += np.bincount(cells, p, minlength=4)
                seen[cells[so_far[n]]] += 1
    assert counts[1].sum() > 200
    return min(chi_square(c, e / e.sum()) for c, e in zip(counts, expected, strict=True))


def random_waits(seed: int = 1) -> Callable[[], int]:
    rng = np.random.default_rng(seed)
    return lambda: int(rng.integers(0, 7))


@pytest.mark.parametrize(
    ("options", "controller"),
    covering({"hot": HOT, "few": FEW}, {"fixed": Fixed(BUDGET), "picky": Picky(BUDGET)}),
)
def test_hits_and_misses_have_the_targets_distribution(
    quick: Callable[[], ModelDrafter], options: GenerationOptions, controller: Controller
) -> None:
    text, cycles = reply(Ssd(quick(), controller, 64), random_waits(), options, "ratio", count=LONG)
    hits = [cycle for cycle in cycles if cycle.overlap and cycle.overlap.hit]
    assert sum(cycle.outcome.accepted for cycle in hits) > 100
    for hit in (True, False):
        assert chance(text, cycles, options, hit) > 1e-3


def test_so_it_is_with_a_shortened_distribution_and_much_of_saguaros(
    quick: Callable[[], ModelDrafter], monkeypatch: pytest.MonkeyPatch
) -> None:
    for module in (drawn, forest):
        monkeypatch.setattr(module, "KEPT", 4)
    monkeypatch.setattr(drawn, "WEIGHT", 0.3)
    monkeypatch.setattr(drawn, "FAN_OUT", 2)
    text, cycles = reply(Ssd(quick(), Fixed(BUDGET), 64), random_waits(), HOT, "ratio", count=LONG)
    assert max(len(q.ids) for c in cycles for q in c.tree.drafts or () if q is not None) == 4
    for hit in (True, False):
        assert chance(text, cycles, HOT, hit) > 1e-3


class Choosing(Ssd):
    """Leaves out what was drawn where that is unlikely."""

    def next_tree(self, root: int) -> TokenTree:
        tree = super().next_tree(root)
        if self.overlap.hit and len(tree) > 1 and tree.logprobs[1] < np.log(LIKELY):
            self.tree = tree = TokenTree.root(root)
        return tree


def test_choosing_among_chains_by_their_tokens_would_show(quick: Callable[[], ModelDrafter]) -> None:
    """As would a distribution that is not the one that was drawn from: the tests above can fail."""
    how: Any = (random_waits(), HOT, "ratio")
    text, cycles = reply(Choosing(quick(), Fixed(BUDGET), 64), *how, count=2 * LONG)
    assert chance(text, cycles, HOT, True) < 1e-6

    class Lying(Ssd):
        def next_tree(self, root: int) -> TokenTree:
            tree = super().next_tree(root)
            if self.overlap.hit and tree.drafts is not None:
                even = [q and replace(q, probs=np.full(len(q.ids), 1 / len(q.ids))) for q in tree.drafts]
                self.tree = tree = replace(tree, drafts=tuple(even))
            return tree

    text, cycles = reply(Lying(quick(), Fixed(BUDGET), 64), *how, count=LONG)
    assert chance(text, cycles, HOT, True) < 1e-6


@pytest.mark.parametrize("waits", [1, 4, 11, 1000, None])
def test_a_chain_below_an_outcome_is_the_one_drawn_after_it(
    monkeypatch: pytest.MonkeyPatch, waits: int | None
) -> None:
    """So with as many tokens the text is that without waits, whatever was prepared and whenever it ended."""
    monkeypatch.setattr(drawn_ahead, "MAX_PASSES", BUDGET.passes)  # else they would be longer
    expected, cycles = reply(Ssd(model_of()[0], Fixed(BUDGET), 64), lambda: 0, HOT, "ratio")
    assert not any(cycle.overlap and cycle.overlap.hit for cycle in cycles)
    amount = random_waits() if waits is None else lambda: waits or 0
    text, cycles = reply(Ssd(model_of()[0], Fixed(BUDGET), 64), amount, HOT, "ratio")
    assert text == expected
    assert waits in (1, 4) or sum(cycle.overlap.hit is True for cycle in cycles if cycle.overlap) > 2


@pytest.mark.parametrize("waits", [5, 30, 1000])
@pytest.mark.parametrize("beside", [False, True])
def test_nothing_is_drafted_twice_nor_behind_the_end(waits: int, beside: bool) -> None:
    """N-grams, which cannot be drawn, stay silent and are no harm."""
    drafter, runtime = model_of()
    count, rng = 50, np.random.default_rng(waits)
    both = Combined([NGram(), drafter]) if beside else drafter
    _, cycles = reply(
        Ssd(both, Fixed(BUDGET), 64), lambda: int(rng.integers(0, waits + 1)), HOT, "ratio", count
    )
    assert max(Counter(runtime.done).values()) == 1
    assert max(map(len, runtime.done)) <= len(PROMPT) + count - 2
    assert sum(cycle.overlap.nodes for cycle in cycles if cycle.overlap) > 0
    assert waits < 30 or sum(cycle.overlap.hit is True for cycle in cycles if cycle.overlap) > 3


def going_ahead(seed: int, fan_out: list[int], chain: list[int]) -> tuple[DrawnAhead, Any]:
    drafter, runtime = model_of()
    drafter.ahead_width = 3
    drafter.prefill(Context(PROMPT, Sampler(HOT), Noise(seed), drawn=True))
    drafting = drafter.start([Root((chain[0],))], replace(BUDGET, passes=0, ahead=True))
    assert not drafting.step()
    drafting.stop()
    verified = TokenTree.chain(chain, [0.0, *[-1.0] * (len(chain) - 1)])
    ahead = drafter.ahead(verified, TreeBudget(64, 9, 0), fan_out)
    assert isinstance(ahead, DrawnAhead)
    return ahead, runtime


@pytest.mark.parametrize("fan_out", [[], [2, 3, 1]])
@pytest.mark.parametrize("steps", [4, 12, 40, 1000])
def test_what_is_drawn_has_no_say_in_what_is_drawn_next(fan_out: list[int], steps: int) -> None:
    """Other luck, the same outcomes, and chains as long: `ratio` would be biased otherwise."""
    shapes, texts = [], []
    for seed in (1, 2, 3):
        ahead, runtime = going_ahead(seed, fan_out, [2, 5, 3])
        for _ in range(steps):
            ahead.step()
        said = [text[len(PROMPT) :] for text in runtime.done]
        outcomes = Counter[tuple[int, ...]]()
        for text in said:
            shared = max(k for k in range(4) if text[:k] == (2, 5, 3)[:k])
            if len(text) > shared:
                outcomes[text[: shared + 1]] += 1
        shapes.append(outcomes)
        texts.append(set(said))
    assert shapes[0] == shapes[1] == shapes[2]
    if steps > 20:
        assert shapes[0]
        assert texts[0] != texts[1], "they are drawn"
    if fan_out and steps == 1000:
        by_accepted = Counter(len(outcome) - 2 for outcome in shapes[0])
        assert [by_accepted[k] for k in range(3)] == [2, 3, 2 - 1]


def test_outcomes_are_the_likeliest_tokens_but_the_refused_one(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(drawn, "KNOWN", 8)  # of 12 tokens
    ahead, runtime = going_ahead(1, [], [2, 5, 3])
    while ahead.step():
        pass
    for accepted, (before, last, refused) in enumerate([(PROMPT[-1], 2, 5), (2, 5, 3), (5, 3, None)]):
        row = Sampler(HOT).distribution(runtime.table[before, last])
        order = [t for t in np.argsort(-row.probs, kind="stable")[:8].tolist() if t != refused]
        guesses = ahead.guesses(accepted)
        assert [token for _, token in guesses] == order
        left = 1 - (0.0 if refused is None else row.of(refused))
        assert [logprob for logprob, _ in guesses] == pytest.approx(
            [float(np.log(row.of(token) / left)) for token in order]
        )
        path = np.arange(accepted + 1)
        assert ahead.rank(Outcome(path, (*[5, 3][:accepted], order[2]))) == 2
        nobody = next(t for t in range(VOCABULARY) if t not in order)
        assert ahead.rank(Outcome(path, (*[5, 3][:accepted], nobody))) == len(order)


def test_a_token_is_drawn_from_saguaros_distribution_where_outcomes_are_prepared(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """And from the model's own where none are: acceptance is not given away for nothing."""
    for module in (drawn, forest):
        monkeypatch.setattr(module, "KEPT", 7)
    for kind in (Serial, Ssd):
        drafter, runtime = model_of()
        schedule = kind(drafter, Fixed(BUDGET), 64)
        schedule.begin(Context(PROMPT, Sampler(HOT), Noise(3), drawn=True), 50)
        tree = schedule.next_tree(2)
        assert len(tree) == 4
        assert tree.drafts is not None
        for node, before in enumerate([PROMPT[-1], *tree.tokens[:2].tolist()]):
            own = Sampler(HOT).distribution(runtime.table[before, tree.tokens[node]])
            found = tree.drafts[node]
            assert found is not None
            if kind is Serial:
                assert np.array_equal(found.probs, own.probs)
                continue
            kept = np.sort(np.argsort(-own.probs, kind="stable")[:7])
            short = replace(own, ids=own.ids[kept], probs=own.probs[kept] / own.probs[kept].sum())
            assert found.ids.tolist() == kept.tolist()
            assert found.probs == pytest.approx(saguaro(short, 4, 0.9).probs)
            assert found.probs[np.argmax(short.probs)] < short.probs.max()


def test_what_is_kept_is_bounded(monkeypatch: pytest.MonkeyPatch) -> None:
    """By rows of the draft model and `KEPT`, at any moment; and it ends where the rows do."""
    for module in (drawn, forest):
        monkeypatch.setattr(module, "KEPT", 5)
    drafter, runtime = model_of(rows=24)
    most = 0

    class Counting(Ssd):
        def on_wait(self) -> bool:
            nonlocal most
            worked = super().on_wait()
            own = [q for q, _ in drafter.forest.drawn.values()]
            most = max(most, sum(q.ids.nbytes + q.probs.nbytes for q in own))
            assert most <= forest.kept_bytes(runtime.rows, VOCABULARY) == 24 * 5 * 16
            return worked

    text, _ = reply(Counting(drafter, Fixed(BUDGET), 64), lambda: 1000, HOT, "ratio")
    assert len(text) == 50
    assert most > forest.kept_bytes(18, VOCABULARY)


def test_room_is_left_by_how_many_are_drawn_whatever_they_are_drawn_from() -> None:
    """Behind some tokens few others may stand: what other chains drew must not decide what is drawn."""
    room = Room(forest.kept_bytes(3, 2000))
    drafter = ModelDrafter(TableRuntime(96), 2000, room)
    for count in (1, 7, forest.KEPT):
        drafter.forest.drawn[0] = Distribution(np.arange(count), np.full(count, 1 / count)), 0
        assert room.left == forest.kept_bytes(2, 2000)
    drafter.forest.drawn[1] = Distribution(np.arange(2000), np.full(2000, 1 / 2000)), 0
    assert room.left == forest.kept_bytes(2, 2000) - 2000 * 16


@pytest.mark.parametrize("kind", [Serial, Ssd])
def test_all_conversations_together_keep_no_more_than_one_may(
    monkeypatch: pytest.MonkeyPatch, kind: type[Serial]
) -> None:
    """Chains are drawn ahead as far as there is room; and drawn from fewer tokens where all find none."""
    for module in (drawn, forest):
        monkeypatch.setattr(module, "KEPT", 5)
    room = Room(forest.kept_bytes(20, VOCABULARY))
    drafters = [ModelDrafter(TableRuntime(96, noise=0.5), VOCABULARY, room) for _ in range(3)]
    schedules = [kind(drafter, Fixed(TreeBudget(64, 12, 12)), 64) for drafter in drafters]
    most, whole = 0, 0
    for number, schedule in enumerate(schedules):
        options = GenerationOptions(temperature=0.8, seed=number)
        schedule.begin(Context(PROMPT, Sampler(options), Noise(number), drawn=True), 50)
    for cycle in range(8):
        verified = 0
        for schedule in schedules:
            tree = schedule.next_tree(2 + cycle)
            assert tree.drafts is not None
            assert len(tree) > 1, "what is verified is drawn all the same"
            whole += sum(q is not None and len(q.ids) == VOCABULARY for q in tree.drafts)
            for _ in range(1000):
                schedule.on_wait()
            kept = sum(q.ids.nbytes + q.probs.nbytes for d in drafters for q, _ in d.forest.drawn.values())
            verified += len(tree) - 1
            assert kept <= room.nbytes + forest.kept_bytes(verified, VOCABULARY)
            most = max(most, kept)
        for schedule in schedules:
            schedule.settle(Outcome(np.array([0]), (3 + cycle,), seconds=1.0))
    assert most > room.nbytes / 2
    assert (whole > 0) == (kind is Serial)
    assert room.left > 0


@pytest.mark.parametrize("policy", POLICIES)
@pytest.mark.parametrize("outcomes", [2, 9, 24])
def test_with_fan_outs_of_the_paper(policy: str, outcomes: int) -> None:
    place: Any = None
    drafter, _ = model_of()
    options = EngineOptions(fan_out=policy, fan_out_budget=outcomes, tree_nodes=outcomes)
    schedule = make(drafter, Fixed(BUDGET), options, place)
    text, cycles = reply(schedule, lambda: 1000, HOT, "ratio", 80)
    assert len(text) == 80
    assert all(cycle.tree.depths.max() < outcomes for cycle in cycles)
    assert sum(cycle.overlap.hit is True for cycle in cycles if cycle.overlap) > 2
    assert schedule.shape is not None
    assert schedule.shape.after_hit.acceptance() != schedule.shape.after_miss.acceptance()


@pytest.mark.parametrize("when", [1, 4, 9])
def test_an_error_in_a_wait_ends_the_drafting_and_not_the_pass(when: int) -> None:
    drafter, runtime = model_of()
    schedule = Ssd(drafter, Fixed(BUDGET), 64)
    left, step = when, schedule.on_wait

    def on_wait() -> bool:
        nonlocal left
        left -= 1
        if left == 0:
            runtime.fails = ValueError("a bug")
        return step()

    schedule.on_wait = on_wait  # type: ignore[method-assign]
    text, cycles = reply(schedule, lambda: 5, HOT, "ratio")
    assert len(text) == 50
    assert schedule.undrafted is not None
    assert not any(cycle.overlap.nodes for cycle in cycles[-10:] if cycle.overlap)


@pytest.mark.parametrize("fallback", ["jit", "ngram", "none"])
def test_after_a_miss_the_fallback_draws(fallback: str) -> None:
    _, cycles = reply(Ssd(model_of(1.5)[0], Fixed(BUDGET), 64, fallback), lambda: 6, HOT, "ratio")
    missed = [cycle for cycle in cycles if cycle.overlap and cycle.overlap.hit is False]
    assert missed
    drafted = [len(cycle.tree) > 1 for cycle in missed[:-1]]
    assert all(drafted) if fallback == "jit" else not any(drafted)
