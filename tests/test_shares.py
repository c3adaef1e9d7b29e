"""What is verified of many trees in one pass: the best nodes of all, as many as pay; bounded loss."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field, replace
from itertools import combinations

import numpy as np
import pytest

from edgespec.control.controller import ALLOWANCE, GRACE, LONGER, REST, SAVED
from edgespec.control.costs import Costs
from edgespec.control.partner import Partner
from edgespec.control.shares import Shares
from edgespec.core.acceptance import Outcome
from edgespec.core.schedule import UNDRAFTED, Offer, TreeBudget
from edgespec.core.trace import Cycle
from edgespec.core.tree import TokenTree
from edgespec.offload.plan.costs import CostModel
from tests.covering import covering
from tests.test_controller import World

LIMIT = TreeBudget(64, 40, 0)


def trees(rng: np.random.Generator, count: int, most: int = 7) -> list[TokenTree]:
    found = []
    for _ in range(count):
        n = int(rng.integers(1, most))
        parents = np.array([-1, *(int(rng.integers(0, i)) for i in range(1, n))])
        logprobs = np.log(np.append(1.0, rng.uniform(0.05, 0.95, n - 1)))
        found.append(TokenTree(np.arange(n), parents, logprobs))
    return found


def offers_of(some: Sequence[TokenTree], seconds: float = 0.0) -> list[Offer]:
    return [Offer(np.exp(tree.scores), 0, seconds) for tree in some]


def knowing(shape: Callable[[np.ndarray], np.ndarray], rows: Sequence[int]) -> Shares:
    """That has timed passes of so many rows."""
    shares = Shares(Costs(CostModel()))
    for n in rows:
        for _ in range(3):
            shares.costs.add_pass(n, float(shape(np.array(n))))
    return shares


@pytest.mark.parametrize("room", [0, 2, 5, 99])
def test_no_other_nodes_of_all_trees_give_more(room: int) -> None:
    """Against every connected choice of as many nodes."""
    rng = np.random.default_rng(room)
    for _ in range(20):
        some = trees(rng, 3, most=5)
        shares = knowing(lambda rows: 1 + 0 * rows, [3, 9])
        nodes = shares.allot(offers_of(some), [99] * 3, 0, room)
        kept = [tree.select(own) for tree, own in zip(some, nodes, strict=True)]  # raises if not connected
        count = sum(len(own) - 1 for own in nodes)
        assert count == min(room, sum(len(tree) - 1 for tree in some))  # here all of them pay
        got = sum(float(np.exp(tree.scores[1:]).sum()) for tree in kept)
        drafts = [(t, n) for t, tree in enumerate(some) for n in range(1, len(tree))]
        best = 0.0
        for chosen in combinations(drafts, count):
            if all(some[t].parents[n] == 0 or (t, some[t].parents[n]) in chosen for t, n in chosen):
                best = max(best, sum(float(np.exp(some[t].scores[n])) for t, n in chosen))
        assert got == pytest.approx(best)


def test_no_tree_gets_more_nodes_than_its_cache_has_room_for() -> None:
    rng = np.random.default_rng(0)
    some = trees(rng, 8)
    most = [int(n) for n in rng.integers(0, 5, 8)]
    nodes = knowing(lambda rows: 1 + 0 * rows, [8, 24]).allot(offers_of(some), most, 0, 99)
    assert [len(own) for own in nodes] == [
        max(1, min(len(tree), m)) for tree, m in zip(some, most, strict=True)
    ]


def test_as_many_as_pay_by_what_rows_were_measured_to_cost() -> None:
    """Rows cost nothing up to 12 and then much: of four trees, eight drafts; and those of the likeliest."""
    some = [TokenTree.chain(range(9), np.log([1.0] + [p] * 8)) for p in (0.9, 0.5, 0.9, 0.2)]
    shares = knowing(lambda rows: 1 + np.maximum(rows - 12, 0), [4, 6, 8, 10, 12, 14, 16, 20, 24, 32])
    counts = [len(own) - 1 for own in shares.allot(offers_of(some), [99] * 4, 0, 60)]
    assert 6 <= sum(counts) <= 9
    assert min(counts[0], counts[2]) > counts[1] >= counts[3]
    # Where each row costs what it costs alone nothing pays.
    dear = knowing(lambda rows: rows, [4, 6, 8, 10, 12, 14, 16, 20, 24, 32])
    assert [len(own) for own in dear.allot(offers_of(some), [99] * 4, 0, 60)] == [1] * 4
    # Whoever is verified whole is one of those who share: beside sixty rows of theirs the next one is dear.
    assert sum(map(len, shares.allot(offers_of(some), [99] * 4, 8, 60))) == 4


def test_a_pass_without_drafts_shows_now_and_then_what_one_costs() -> None:
    shares = knowing(lambda rows: 1 + 0.01 * rows, [16])
    some = [TokenTree.chain(range(4), np.log([1.0, 0.9, 0.9, 0.9]))] * 4
    plain = 0
    shares.trees = 4
    for _ in range(600):
        plain += shares.stale
        offers = [UNDRAFTED] * 4 if shares.rest else offers_of(some)
        rows = sum(map(len, shares.allot(offers, [9] * 4, 0, 60)))
        assert (rows == 4) == (offers[0] is UNDRAFTED)
        shares.record(offers, rows, 4 + 3 * (rows > 4), 1 + 0.01 * rows, False)
    assert 1 <= plain <= 10


def test_drafts_are_verified_though_others_have_left_meanwhile() -> None:
    """How long a pass over so few trees takes by itself was never timed, but those of more were."""
    shares = knowing(lambda rows: 1 + 0.01 * rows, [16, 16, 64])
    shares.trees = 16
    assert not shares.rest
    some = [TokenTree.chain(range(4), np.log([1.0, 0.9, 0.9, 0.9]))] * 9
    assert sum(map(len, shares.allot(offers_of(some), [9] * 9, 0, 60))) == 36
    assert shares.stale


def test_the_shorter_passes_without_drafts_are_the_fewer_are_learned_from(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    timed = list[int]()
    monkeypatch.setattr(Costs, "add_pass", lambda self, rows, seconds, plain: timed.append(rows))
    cases = (0.0001, False, 1), (0.001, False, 1), (0.024, False, 8), (0.001, True, 40), (0.4, False, 40)
    for seconds, drafted, count in cases:
        shares = knowing(each_dear, [])
        shares.costs.verify.add(4, seconds)  # so it is not stale
        trees = [TokenTree.root(1)] * 3 + [TokenTree.chain([1, 2]) if drafted else TokenTree.root(1)]
        timed.clear()
        for _ in range(40):
            offers = [Offer(np.ones(len(tree)), 1 if len(tree) > 1 else None, 1e-5) for tree in trees]
            shares.trees = 4
            shares.record(offers, sum(map(len, trees)), 4, seconds, False)
        assert len(timed) == count


@pytest.mark.parametrize(("trees", "pause"), [(1, 0), (4, 2), (16, 10), (64, 32)])
def test_the_more_look_in_vain_the_longer_each_pauses(trees: int, pause: int) -> None:
    """A look behind a pass takes 0.1 ms, passes 30: sixty-four that look every 16 cycles would take 1.3 %."""
    shares = knowing(lambda rows: 0.03 + 0.0 * rows, [trees] * 9)
    shares.allot([UNDRAFTED] * trees, [9] * trees, 0, 60)
    shares.record([Offer(np.ones(1), 0, 1e-4)] * trees, trees, trees, 0.03, False)
    assert shares.pause == pause


def test_without_credit_all_rest_until_a_trial_is_paid_for() -> None:
    shares = knowing(lambda rows: 0.1 + 0.0 * rows, [4, 4, 4, 8, 8])
    shares.trees, shares.credit = 4, 1.0
    assert shares.rest == 0
    shares.begin(shares.costs)
    shares.credit = -0.3
    assert shares.rest == REST, "such passes were timed a few times, and may turn out to be longer"
    for credit, rest in (-0.3, 20), (-9.0, REST << LONGER):
        for _ in range(9):
            shares.costs.add_pass(4, 0.1)
        shares.begin(shares.costs)
        shares.credit = credit
        assert shares.rest == rest
    member = Partner(shares)
    assert member.budget(LIMIT, range(1, 3)) is None
    assert member.rests
    assert member.refusal is None


def test_who_is_left_no_credit_by_others_is_held_back() -> None:
    shares = knowing(lambda rows: 0.05 + 0.0 * rows, [4] * 9)
    shares.trees, shares.credit, shares._usual = 4, 1.0, 9.0
    shares.costs.add_draft(1, 0.03)
    members = [Partner(shares) for _ in range(4)]
    for member in members:
        if member.budget(LIMIT, range(1, 2)) is not None:
            member.prune(TokenTree.chain([1, 2], np.log([1.0, 0.9])))
        assert member.refusal is None
    assert (shares._asked, shares._held) == (1, 3)


def test_who_is_held_back_is_counted() -> None:
    """By caution, as few have drafted so far, and by a credit that others use: where nearly all of a draft is
    made once for all, 64 come to draft though two alone would not."""
    world = World(0.8, 0.8, lambda n: 0.05 + 0.0 * n, 0.0, paid=range(1, 2))
    rng, shares = np.random.default_rng(0), knowing(world.verify, [64] * 9)
    shares.trees = 64
    members = [Partner(shares) for _ in range(64)]
    drafted = list[int]()
    for _ in range(12):
        run_pass(shares, members, [world] * 64, rng, first=0.02)
        drafted.append(sum(member._drafted for member in members))
    assert drafted[0] <= 4
    assert drafted == sorted(drafted)
    assert drafted[-1] == 64


def test_a_debt_is_of_time() -> None:
    """Passes that turn out to take ten times as long are fewer; those of a quarter of the trees, more."""
    shares = knowing(lambda rows: 0.1 * (1 + rows / 4), [1, 4, 8])

    def without_drafts(trees: int, seconds: float, drafting: float = 0.0) -> float:
        offers = [UNDRAFTED] * (trees - 1) + [Offer(np.ones(1), 1 if drafting else None, drafting)]
        shares.allot(offers, [9] * trees, 0, 60)
        shares.record(offers, trees, trees, seconds, False)
        return shares.credit * float(shares._passes(trees))  # seconds

    owed = without_drafts(4, 0.2, drafting=2.0)
    assert shares.credit < 0
    assert owed == pytest.approx((GRACE + ALLOWANCE * 11) * 0.2 - 2.0)
    assert without_drafts(1, 0.125) == pytest.approx(owed + ALLOWANCE * 0.125, rel=0.05)
    for _ in range(9):
        now = without_drafts(4, 2.0)
    assert float(shares._passes(4)) > 1.5
    assert owed < now < owed + 10 * ALLOWANCE * 2.5
    assert -0.7 < shares.credit < 0


def test_each_time_that_the_credit_is_spent_less_comes_in() -> None:
    shares = knowing(lambda rows: 0.1 + 0.0 * rows, [1, 4])

    def comes_in(trees: int = 4, drafting: float = 0.0) -> float:
        offers = [UNDRAFTED] * (trees - 1) + [Offer(np.ones(1), 1 if drafting else None, drafting)]
        shares.allot(offers, [9] * trees, 0, 60)
        before = shares.credit
        shares.record(offers, trees, trees, 0.1, False)
        return shares.credit - before

    found = list[float]()
    for _ in range(5):
        shares.credit = 0.001
        comes_in(drafting=0.05)
        found.append(comes_in())
    assert found == pytest.approx([ALLOWANCE / 2, ALLOWANCE / 4, *[ALLOWANCE / 8] * 3])
    assert comes_in(1) == pytest.approx(ALLOWANCE), "what four have found out is not known of one alone"
    assert comes_in() == pytest.approx(ALLOWANCE / 8)
    shares.credit = GRACE
    comes_in()
    assert comes_in() == pytest.approx(ALLOWANCE), "drafts have gained"


def test_short_passes_of_few_pay_back_no_more_than_their_share() -> None:
    shares = knowing(lambda rows: 0.002 + 0.0003 * rows, [1, 64])
    shares.credit, shares._unit = -20.0, float(shares._passes(64))
    owed, spent = shares.credit * shares._unit, 0.0
    for _ in range(40):
        for trees in (*[1] * 9, 64):
            shares.allot([UNDRAFTED] * trees, [9] * trees, 0, 60)
            seconds = float(shares._passes(trees))
            shares.record([UNDRAFTED] * trees, trees, trees, seconds, False)
            spent += seconds
    paid = shares.credit * float(shares._passes(64)) - owed
    assert paid == pytest.approx(ALLOWANCE * spent, rel=0.15)


def test_what_passes_give_is_of_those_that_are_in_them() -> None:
    shares = knowing(lambda rows: 0.1 + 0.0 * rows, [4, 16])
    for trees in (4, 16, 4):
        shares.allot([UNDRAFTED] * trees, [9] * trees, 0, 60)
        assert shares.rate == pytest.approx(trees / 0.1)


def test_a_refusal_stands_as_long_as_weighing_takes_a_share_and_longer_behind_others() -> None:
    for seconds, stands in ((0.001, [8, 16, 32, 64, 119]), (1.0, [0, 0])):
        shares = knowing(lambda rows, s=seconds: s + 0.0 * rows, [4] * 9)  # type: ignore[misc]
        shares.trees = 4
        shares.cohort.add(1, 9 * seconds)
        shares.cohort.add(4, 36 * seconds)
        shares.credit = 99.0
        member, found = Partner(shares), list[int]()
        for _ in stands:
            assert member.budget(LIMIT, range(1, 2)) is None
            assert member.refusal is not None
            assert member.rests == (member._pause > 0)
            found.append(member._pause)
            member._pause = 0
        assert found == stands


# --- simulation --------------------------------------------------------------------------------------------


@dataclass
class Run:
    tokens: np.ndarray  # [passes] expected of what was verified, of all conversations
    came: np.ndarray
    seconds: np.ndarray
    rows: np.ndarray

    def rate(self, start: int = 0) -> float:
        return float(self.tokens[start:].sum() / self.seconds[start:].sum())


def made(world: World, budget: TreeBudget) -> TokenTree:
    """What a drafter makes of a budget; one without passes says itself what would not pay, as n-grams do."""
    tree = world.tree(budget.passes)
    if budget.passes:
        return tree
    likely = np.exp(tree.scores)
    nodes = np.flatnonzero(likely >= budget.least)
    pays = float((likely[nodes[1:]] - budget.least).sum()) >= budget.worth
    return tree.select(nodes) if len(nodes) and pays else TokenTree.root(1)


def simulate(
    worlds: Sequence[World],
    passes: int,
    seed: int = 0,
    prior: CostModel | None = None,
    look: float = 0.0,
    noise: float = 0.0,
    first: float = 0.0,
) -> Run:
    """A conversation in each of these worlds, all in the same passes. look: seconds of asking a drafter.
    noise: by which passes scatter, as log-normal deviation. first: seconds of each step that whoever drafts
    first for a pass takes beside those of its world."""
    rng, shares = np.random.default_rng(seed), Shares(Costs(prior))
    members = [Partner(shares) for _ in worlds]
    found = [run_pass(shares, members, worlds, rng, look, noise, first) for _ in range(passes)]
    return Run(*(np.array(column) for column in zip(*found, strict=True)))


def run_pass(
    shares: Shares,
    members: Sequence[Partner],
    worlds: Sequence[World],
    rng: np.random.Generator,
    look: float = 0.0,
    noise: float = 0.0,
    first: float = 0.0,
    prompts: bool = False,
) -> tuple[float, int, float, int]:
    """As of `simulate`: expected and accepted tokens, seconds, rows."""
    drafted, offers = list[TokenTree](), list[Offer]()
    for world, member in zip(worlds, members, strict=True):
        budget = member.budget(LIMIT, world.paid)
        tree = TokenTree.root(1) if budget is None else member.prune(made(world, budget))
        steps = None if budget is None else budget.passes
        drafted.append(tree)
        forward = first if not any(offer.passes for offer in offers) else 0.0
        seconds = 0.0 if steps is None else look + steps * (forward + world.step)
        offers.append(Offer(member.gains(tree), steps, seconds))
    kept = shares.allot(offers, [64] * len(worlds), 0, 512)
    verified = [tree.select(nodes) for tree, nodes in zip(drafted, kept, strict=True)]
    rows = sum(map(len, verified))
    took = float(worlds[0].verify(np.array([rows]))[0] * np.exp(noise * rng.standard_normal()))
    outcomes = [world.outcome(tree, rng) for world, tree in zip(worlds, verified, strict=True)]
    came = sum(len(outcome.tokens) for outcome in outcomes)
    shares.record(offers, rows, came, took, prompts)
    for member, offer, tree, outcome in zip(members, offers, verified, outcomes, strict=True):
        member.record(Cycle(offer.passes, tree, outcome, offer.seconds, took))
    expected = sum(float(w.true_scores(t).sum()) for w, t in zip(worlds, verified, strict=True))
    return expected, came, took + sum(offer.seconds for offer in offers), rows


@pytest.mark.parametrize("sizes", [(16, 9), (5, 16)])
def test_groups_that_take_turns_all_draft(sizes: tuple[int, int]) -> None:
    """Of the one's number of trees each pass without drafts would be timed between two of the other's."""
    world = World(0.8, 0.8, lambda n: 0.05 + 0.0002 * n, 0.0005, paid=range(1, 2))
    rng, shares = np.random.default_rng(0), Shares(Costs(CostModel()))
    groups = [[Partner(shares) for _ in range(size)] for size in sizes]
    drafted = [0, 0]
    for turn in range(300):
        for which, members in enumerate(groups):
            row = run_pass(shares, members, [world] * len(members), rng, first=0.005)
            drafted[which] += turn >= 150 and row[3] > len(members)
    assert min(drafted) >= 0.8 * 150


def test_beside_prompts_nobody_waits_for_a_pass_that_tells_something() -> None:
    world = World(0.8, 0.8, lambda n: 0.05 + 0.0002 * n, 0.0005, paid=range(1, 2))
    rng, shares = np.random.default_rng(0), Shares(Costs(CostModel()))
    members, rows = [Partner(shares) for _ in range(16)], list[int]()
    for _ in range(100):
        run_pass(shares, members, [world] * 16, rng, first=0.005)
    for _ in range(50):  # others' prompts go on beside six of them
        rows.append(run_pass(shares, members[:6], [world] * 6, rng, first=0.005, prompts=True)[3])
    assert shares.stale
    assert sum(n > 6 for n in rows) >= 40


def test_one_pause_while_drafting_does_not_end_it() -> None:
    """Drafts of sixteen pay, and one of them takes two seconds: it was not the drafter's fault."""
    world = World(0.8, 0.8, lambda n: 0.05 + 0.0002 * n, 0.0005, paid=range(1, 2))
    rng, shares = np.random.default_rng(0), Shares(Costs(CostModel()))
    members = [Partner(shares) for _ in range(16)]
    usual = [run_pass(shares, members, [world] * 16, rng, first=0.012)[3] for _ in range(200)]
    assert float(np.mean(usual[100:])) > 24
    run_pass(shares, members, [world] * 16, rng, first=2.0)
    behind = [run_pass(shares, members, [world] * 16, rng, first=0.012)[3] for _ in range(60)]
    assert float(np.mean(behind)) > 0.8 * float(np.mean(usual[100:]))


def lost(run: Run, worlds: Sequence[World]) -> float:
    """Passes that plain decoding of the same conversations was ahead, at most."""
    plain = float(worlds[0].verify(np.array([len(worlds)]))[0])
    behind = (1 - ALLOWANCE) * run.seconds / plain - run.came / len(worlds)
    return float(np.cumsum(behind).max())


def flat_to(rows: float) -> Callable[[np.ndarray], np.ndarray]:
    """Seconds of passes that arithmetic bounds from so many rows on."""
    return lambda n: 0.1 * np.maximum(1.0, n / rows)


@pytest.mark.parametrize("count", [1, 4, 16, 64])
def test_while_rows_are_free_a_batch_drafts_and_beyond_it_does_not(count: int) -> None:
    """The machine's rows are 64 before arithmetic bounds them (SpecFormer's redundancy ratio)."""
    worlds = [World(0.7, 0.7, flat_to(64), 0.0, paid=range(1), free=6)] * count
    run = simulate(worlds, 150 if count < 64 else 80)
    plain = count / float(worlds[0].verify(np.array([count]))[0])
    if count < 64:
        assert run.rate(50) > {1: 2.2, 4: 2.1, 16: 1.6}[count] * plain
        assert run.rows[50:].mean() <= 68
    else:
        assert run.rate(50) > 0.985 * plain
        assert run.rows[50:].mean() < 65
    assert lost(run, worlds) <= GRACE + 1


def each_dear(rows: np.ndarray) -> np.ndarray:
    """Seconds of passes of a small model in memory: every row takes nearly what it takes in a plain pass."""
    return 0.003 + 0.0003 * rows


@pytest.mark.parametrize("hit", [0.3, pytest.param(0.6, marks=pytest.mark.slow), 0.9])
def test_sixty_four_lose_nothing_where_each_row_is_dear(hit: float) -> None:
    """Whatever their drafts are worth: no row pays that is accepted with less than 0.86, and looks for drafts
    take time, too. By the second half of the replies hardly a row is spent on others."""
    worlds = [World(hit, 0.95, each_dear, 0.0, paid=range(1), free=8, share=0.99)] * 64
    run = simulate(worlds, 160, look=0.0001, noise=0.03)
    plain = 64 / float(each_dear(np.array(64)))
    assert run.rate() > 0.97 * plain
    assert run.rows.max() <= 256, "a trial of drafts is of few rows at first"
    if hit < 0.86:
        assert run.rows[80:].mean() < 1.05 * 64


def test_a_row_with_which_another_block_begins_is_as_dear_as_it_is() -> None:
    """The 65th takes as long as eight others. Few drafts of 64 trees, however good, do not pay for it."""
    stepped = lambda rows: 0.01 + 0.0003 * rows + 0.0024 * (rows > 64)  # noqa: E731
    shares = knowing(each_dear, [])
    for rows in [64] * 9 + [65, 66, 68] * 3 + [64] * 9:
        shares.costs.add_pass(rows, float(stepped(np.array(rows))), plain=64)
    some = [TokenTree.root(1)] * 60 + [TokenTree.chain([1, 2], np.log([1.0, 0.98]))] * 4
    assert sum(map(len, shares.allot(offers_of(some), [9] * 64, 0, 256))) == 64
    assert float(shares._passes(66) - shares._passes(64)) == pytest.approx(0.003, rel=0.15)
    assert float(shares._passes(60)) == pytest.approx(float(stepped(np.array(64)))), "no less is known"
    many = [TokenTree.chain([1, 2, 3, 4], np.log([1.0, 0.98, 0.98, 0.98]))] * 64
    assert sum(map(len, shares.allot(offers_of(many), [9] * 64, 0, 256))) >= 64 + 64
    shares.allot([UNDRAFTED] * 70, [9] * 70, 0, 256)  # others have come: of 66 rows were drafts, of 70 not
    shares.record([UNDRAFTED] * 70, 70, 70, float(stepped(np.array(70))), False)
    assert (np.diff(shares._passes(np.arange(40, 130))) >= 0).all()


@pytest.mark.parametrize("hit", [0.6, pytest.param(0.9, marks=pytest.mark.slow)])
def test_sixty_four_lose_nothing_where_the_next_row_begins_another_block(hit: float) -> None:
    stepped = lambda rows: 0.01 + 0.0003 * rows + 0.0035 * (rows > 64)  # noqa: E731
    worlds = [World(hit, 0.95, stepped, 0.0, paid=range(1), free=3, share=0.99)] * 64
    run = simulate(worlds, 120, look=0.00005, noise=0.03)
    plain = 64 / float(stepped(np.array(64)))
    assert run.rate(60) > 0.98 * plain
    assert ((run.rows[60:] > 64) & (run.rows[60:] < 72)).sum() <= 6


def test_what_a_row_costs_is_not_hidden_by_counts_that_are_timed_together() -> None:
    """64 rows and a few more are one point of the curve; on it all of them would cost the same."""
    shares = knowing(each_dear, [64, 64, 66, 70, 72, 90, 128])
    shares.allot(offers_of([TokenTree.root(1)] * 64), [9] * 64, 0, 256)
    row = 0.0003 * 64 / float(each_dear(np.array(64)))  # tokens that all make in the time of one
    assert shares.least == pytest.approx(row, rel=0.2)


@pytest.mark.parametrize(("step", "count"), covering((0.0, 0.02, 0.3), (16, 1)))
def test_drafts_that_never_come_true_lose_no_more_than_the_credit(count: int, step: float) -> None:
    """For any number of conversations the same few passes, and a share of the time."""
    paid = range(1, 17) if step else range(1)
    worlds = [World(0.0, 0.9, flat_to(16), step, paid=paid, free=4)] * count
    run = simulate(worlds, 250)
    assert lost(run, worlds) <= GRACE + 1
    assert run.rate(100) > 0.98 * count / float(worlds[0].verify(np.array([count]))[0])


@pytest.mark.parametrize("prior", [None, CostModel(io=0.056, step=0.007)], ids=["no plan", "a plan"])
def test_one_forward_for_all_is_found_out_though_it_would_not_pay_one(prior: CostModel | None) -> None:
    """16 conversations make two tokens in the time of a draft, which gives each of them 0.6: by themselves
    none would draft, and all together are 1.26 times as fast."""
    worlds = [World(0.6, 0.6, lambda n: 0.056 * np.maximum(1.0, n / 300), 0.0005, paid=range(2), free=0)] * 16
    together, plain = simulate(worlds, 120, prior=prior, first=0.007), 16 / 0.056
    assert together.rate(60) > 1.25 * plain
    assert together.rate() > 1.15 * plain
    dear = [replace(world, step=0.0075) for world in worlds]
    apart = simulate(dear, 200, prior=prior)
    assert lost(apart, dear) <= GRACE + 1
    assert apart.rate(100) > 0.97 * plain


def test_drafts_that_had_paid_and_do_no_more_lose_what_was_saved() -> None:
    good = [World(0.8, 0.8, flat_to(40), 0.001, free=4)] * 6
    bad = [World(0.0, 0.8, flat_to(40), 0.001, free=4)] * 6
    both = list(zip(good, bad, strict=True))

    class Turning(World):
        """The first hundred passes of each."""

        def __init__(self, place: int) -> None:
            object.__setattr__(self, "place", place)
            object.__setattr__(self, "passed", 0)
            for name, value in vars(both[place][0]).items():
                object.__setattr__(self, name, value)

        def outcome(self, tree: TokenTree, rng: np.random.Generator):  # type: ignore[no-untyped-def]
            object.__setattr__(self, "passed", self.passed + 1)  # type: ignore[attr-defined]
            return both[self.place][self.passed > 100].outcome(tree, rng)  # type: ignore[attr-defined]

    run = simulate([Turning(place) for place in range(6)], 300)
    late = Run(run.tokens[100:], run.came[100:], run.seconds[100:], run.rows[100:])
    assert run.rate() > 1.2 * 6 / 0.1 / 3
    assert lost(late, bad) <= SAVED + 1


@dataclass(frozen=True)
class Repeating(World):
    """Its text repeats itself from the hundredth token on; before, there is nothing to copy."""

    said: list[int] = field(default_factory=list)

    def tree(self, steps: int) -> TokenTree:
        return super().tree(steps) if len(self.said) > 100 else TokenTree.root(1)

    def outcome(self, tree: TokenTree, rng: np.random.Generator) -> Outcome:
        outcome = super().outcome(tree, rng)
        self.said.extend(outcome.tokens)
        return outcome


def test_what_is_looked_for_in_vain_costs_next_to_nothing_and_is_found_when_it_is_there() -> None:
    """Looks of all together would take a sixth of a pass."""
    worlds = [Repeating(0.95, 0.95, flat_to(64), 0.0, paid=range(1), free=6) for _ in range(16)]
    run = simulate(worlds, 170, look=0.001)
    assert run.came[:99].sum() == 16 * 99
    assert run.seconds[:99].sum() < 1.02 * 0.1 * 99, "a look for every token"
    assert run.rate(125) > 1.5 * 16 / 0.1, "nobody looks any more"


def test_a_machine_that_scatters_is_not_the_fault_of_drafts() -> None:
    """Passes of a third more or less time: drafts that pay go on."""
    worlds = [World(0.7, 0.7, flat_to(64), 0.0, paid=range(1), free=6)] * 8
    quiet, noisy = (simulate(worlds, 200, noise=noise).rate(50) for noise in (0.0, 0.3))
    assert noisy > 0.85 * quiet


def test_beliefs_are_all_conversations_own_and_what_becomes_of_them_is_for_all() -> None:
    """Drafters that promise twice what comes true: after few passes nobody's promises are worth more."""
    shares = knowing(lambda rows: 1 + 0.01 * rows, [16, 32])
    shares.trees = 16
    for _ in range(20):
        some = [TokenTree.chain(range(3), np.log([1.0, 0.8, 0.8]))] * 16
        kept = shares.allot(offers_of(some), [9] * 16, 0, 60)
        rows = sum(map(len, kept))
        shares.record(offers_of(some), rows, 16 + (rows - 16) // 3, 1 + 0.01 * rows, False)
    assert 0.4 < shares.kept < 0.6


def test_who_drafts_well_gets_the_rows_of_who_does_not() -> None:
    worlds = [World(0.9, 0.7, flat_to(32), 0.0, paid=range(1), free=8)] * 4
    worlds += [World(0.05, 0.7, flat_to(32), 0.0, paid=range(1), free=8)] * 12
    all_good = simulate(worlds[:4] * 4, 100)
    run = simulate(worlds, 120)
    assert all_good.rate(50) > 1.5 * 16 / 0.1
    assert run.rate(50) > 1.2 * 16 / 0.1
    assert run.rows[50:].mean() <= 36


def test_a_dear_drafter_is_asked_as_little_as_it_pays_among_many() -> None:
    """A pass of the draft model delays everybody: what pays alone does not pay beside 23 others."""
    cheap = [World(0.8, 0.8, flat_to(256), 0.002, paid=range(1, 17))] * 24
    dear = [World(0.8, 0.8, flat_to(256), 0.02, paid=range(1, 17))] * 24
    alone = simulate(dear[:1], 200)
    assert alone.rate(50) > 1.3 / 0.1
    assert simulate(cheap, 60).rate(30) > 1.05 * 24 / 0.1
    run = simulate(dear, 120)
    assert run.rate(60) > 0.98 * 24 / 0.1
    assert lost(run, dear) <= GRACE + 1
