"""The controller where drafting goes on while the target verifies, on simulated machines: against plain
decoding, serial drafting, and what could be had."""

from __future__ import annotations

from dataclasses import dataclass, field, replace
from functools import lru_cache

import numpy as np
import pytest

from edgespec.control.controller import GRACE, Adaptive
from edgespec.control.costs import AGAIN
from edgespec.control.fixed import Fixed
from edgespec.control.hits import Hits
from edgespec.core.acceptance import Outcome
from edgespec.core.schedule import TreeBudget
from edgespec.core.trace import Cycle, Overlap
from edgespec.core.tree import TokenTree
from edgespec.offload.plan.costs import CostModel
from tests.covering import covering
from tests.test_controller import LIMIT, NODES, REGIMES, SUBSTITUTES, WIDTH, Run, World, converse, simulate

WORLDS = REGIMES | SUBSTITUTES


@dataclass
class Exit:
    """An early exit of the target: asked, an outcome has been prepared for with chance `hits`, as far as
    `prepared` passes go, and the pass is longer by `drag` of it."""

    hits: float
    prepared: int
    drag: float = 0.0
    asked: list[bool] = field(default_factory=list)  # in each pass with drafting in its waits

    def share(self, start: int) -> float:
        return float(np.mean(self.asked[start:]))


def overlapped(
    world: World,
    prior: CostModel | None,
    hits: float,
    prepared: int,
    drag: float = 0.0,
    cycles: int = 250,
    seed: int = 0,
    controller: Adaptive | None = None,
    exit: Exit | None = None,
    noise: float = 0.0,
) -> Run:
    """Cycles in which an outcome has been prepared for with chance `hits`, as far as `prepared` passes go;
    drafting in the waits makes a pass longer by `drag` of it."""
    controller, rng = controller or Adaptive(prior), np.random.default_rng(seed)
    tokens, seconds, chosen, nodes, came = [], [], list[int | None](), list[int](), []
    ahead = asked = False
    for _ in range(cycles):
        chance, depth = (exit.hits, exit.prepared) if exit and asked else (hits, prepared)
        hit = rng.random() < chance if ahead else None
        found = world.tree(depth) if hit else TokenTree.root(1)
        budget, kept = controller.overlapped(LIMIT, world.paid, found, WIDTH)
        tree, draft_seconds, overlap = TokenTree.root(1), 0.0, Overlap(hit)
        if budget is not None:
            late = budget.passes > 0
            tree = world.tree(budget.passes + budget.found) if late or not hit else found
            if len(tree) < len(found):
                tree = found
            if not (late or hit) and world.paid.start:
                tree = TokenTree.root(1)
            tree = kept if tree is found else controller.prune(tree)
            draft_seconds = budget.passes * world.step
            overlap = replace(overlap, found=budget.found, fallback=late, steps=int(budget.ahead))
        ahead = budget is not None and budget.ahead
        asked = exit is not None and ahead and controller.asks()
        overlap, longer = replace(overlap, asked=asked), drag * ahead
        if exit is not None and ahead:
            exit.asked.append(asked)
            longer += exit.drag * asked
        verify_seconds = float(world.verify(np.array([len(tree)]))[0]) * (1 + longer)
        if noise:
            verify_seconds *= rng.lognormal(0, noise)
        outcome = world.outcome(tree, rng)
        passes = None if budget is None else budget.passes
        controller.record(Cycle(passes, tree, outcome, draft_seconds, verify_seconds, None, overlap))
        tokens.append(world.true_scores(tree).sum())
        seconds.append(draft_seconds + verify_seconds)
        chosen.append(passes)
        nodes.append(len(tree))
        came.append(len(outcome.tokens))
    return Run(np.array(tokens), np.array(seconds), chosen, nodes, np.array(came))


@lru_cache
def serial_rate(name: str) -> float:
    """Of serial drafting, once it has settled."""
    world, prior = WORLDS[name]
    return simulate([(250, world)], prior).rate(120)


def attainable(world: World, hits: float, prepared: int) -> float:
    """The best rate of always the same: plain, serial, or ssd with some passes after a miss (Theorem 7)."""

    def cost(tree: TokenTree) -> float:
        return float(world.verify(np.array([len(tree)]))[0])

    best, hit = world.oracle()[0], world.tree(prepared)
    for steps in (0, *[s for s in world.paid if s <= 16]):
        miss = world.tree(steps) if steps else TokenTree.root(1)
        given = hits * world.true_scores(hit).sum() + (1 - hits) * world.true_scores(miss).sum()
        taken = hits * cost(hit) + (1 - hits) * (cost(miss) + steps * world.step)
        best = max(best, float(given / taken))
    return best


@pytest.mark.parametrize(
    ("name", "known"),
    covering([name for name in WORLDS if WORLDS[name][0].paid.start], [(0.8, 6), (0.5, 2), (0.0, 0)]),
)
def test_it_finds_what_can_be_had(name: str, known: tuple[float, int]) -> None:
    (world, prior), (hits, prepared) = WORLDS[name], known
    run = overlapped(world, prior, hits, prepared)
    assert run.rate() >= 0.94 * world.plain_rate
    assert run.rate(100) >= 0.95 * world.plain_rate
    assert run.rate(120) >= 0.95 * serial_rate(name)
    assert run.rate(120) >= 0.9 * attainable(world, hits, prepared)


@pytest.mark.parametrize(
    ("drag", "name", "hits"),
    covering((0.3, 5.0), ("flash-bound", "right 0.9", "compute-bound", "hopeless"), (0.0, 0.3)),
)
def test_where_drafting_slows_the_pass_down_it_is_left(name: str, drag: float, hits: float) -> None:
    """Then it is serial drafting, or plain decoding."""
    world, prior = WORLDS[name]
    run = overlapped(world, prior, hits, 2, drag)
    assert run.rate(100) >= 0.93 * world.plain_rate
    assert run.rate(120) >= 0.88 * serial_rate(name)


def test_a_drafter_too_dear_to_wait_for_pays_in_the_waits() -> None:
    """A serial draft takes longer than it saves; prepared, it is free."""
    world, prior = replace(WORLDS["flash-bound"][0], hit=0.3, claim=0.3, step=0.4), CostModel(1.0, 0.2, 0.4)
    run = overlapped(world, prior, hits=0.9, prepared=1)
    assert run.rate(100) >= 1.15 * world.plain_rate
    assert np.mean([(steps or 0) > 0 for steps in run.steps[100:]]) < 0.1
    assert simulate([(400, world)], prior).rate(100) <= 1.01 * world.plain_rate


def test_a_first_reply_is_hardly_slower_than_plain() -> None:
    """What serial drafting may lose at the start and later (tests/test_controller.py), and no more."""
    for name in ("hopeless", "hopeless and dear", "hopeless when flash-bound", "hardly worth it"):
        world, prior = WORLDS[name]
        serial = simulate([(100, world)], prior)
        for hits in (0.0, 0.9):
            run = overlapped(world, prior, hits, 3, cycles=100)
            assert run.rate() >= min(0.94 * world.plain_rate, 0.99 * serial.rate())


def test_what_a_prepared_tree_is_worth() -> None:
    """As many passes as give as much; only more is drafted."""
    world, prior = WORLDS["right 0.9"]
    controller = Adaptive(prior)
    overlapped(world, prior, 0.7, 6, controller=controller)
    root, _ = controller.overlapped(LIMIT, world.paid, TokenTree.root(1), WIDTH)
    assert root is not None
    assert root.found == 0
    for steps in (3, 6, 12):
        budget, _ = controller.overlapped(LIMIT, world.paid, world.tree(steps), WIDTH)
        assert budget is not None
        assert abs(budget.found - steps) <= max(2, steps // 3)
        assert budget.ahead
    deep, _ = controller.overlapped(LIMIT, world.paid, world.tree(24), WIDTH)
    assert deep is not None
    assert deep.passes <= root.passes


def test_of_a_prepared_tree_only_what_is_verified_has_a_price() -> None:
    """Of int4 in memory 64 rows take as long as 30 plain cycles; three or four of them earn that."""
    world, prior = WORLDS["two rows free"]
    controller = Adaptive(prior)
    overlapped(world, prior, 0.8, 6, controller=controller)
    chain, others = world.tree(6), 56
    wide = TokenTree(
        np.append(chain.tokens, np.arange(others) + 1000),
        np.append(chain.parents, np.zeros(others, dtype=np.int64)),
        np.append(chain.logprobs, np.full(others, -6.0)),
    )
    controller.credit = 2.0
    budget, kept = controller.overlapped(LIMIT, world.paid, wide, WIDTH)
    assert budget is not None, controller.refusal
    assert 1 < len(kept) <= len(chain)
    assert kept.tokens.tolist() == controller.prune(wide).tokens.tolist()


def test_plain_cycles_stay_what_they_are() -> None:
    """What a pass costs with drafting in its waits is no news of what it costs without."""
    controller, tree = Adaptive(CostModel(1.0, 0.1, 0.1)), TokenTree.root(1)
    outcome = Outcome(np.array([0]), (5,))
    controller.record(Cycle(None, tree, outcome, 0.0, 1.0))
    rate = controller.plain_rate
    for _ in range(20):
        controller.record(Cycle(0, tree, outcome, 0.0, 1.5, None, Overlap(False, steps=9, nodes=3)))
        assert controller.took == pytest.approx(1.5)
    assert controller.plain_rate == rate
    for _ in range(9):
        controller.record(Cycle(0, tree, outcome, 0.0, 1.2, None, Overlap(False)))  # no wait came
    assert controller.plain_rate < rate


def test_what_is_drafted_in_waits_is_no_measure_of_a_draft() -> None:
    """Its passes have more rows, and are made between other work."""
    controller, tree = Adaptive(CostModel(1.0, 0.1, 0.1)), TokenTree.chain([1, 2])
    outcome, ahead = Outcome(np.array([0]), (5,)), Overlap(True, steps=99, passes=16, nodes=300)
    controller.record(Cycle(1, tree, outcome, 0.1, 1.0))
    cost = float(controller.costs.draft.at(8))
    for _ in range(9):
        controller.record(Cycle(1, tree, outcome, 0.1, 1.0, None, ahead))
    assert float(controller.costs.draft.at(8)) == pytest.approx(cost, rel=0.01)
    assert controller.costs.longest == 16
    new = Adaptive(CostModel(1.0, 0.1, 0.1))
    new.record(Cycle(None, tree, outcome, 0.0, 1.0, None, ahead))
    assert new.costs.longest == 0  # nobody knows what one of them costs


def test_fixed_counts_levels() -> None:
    tree = TokenTree.chain([1, 2, 3])
    found, _ = Fixed(TreeBudget(9, 5, 4)).overlapped(LIMIT, range(1, 9), tree, 8)
    assert found == TreeBudget(9, 5, 2, found=2, ahead=True)
    found, _ = Fixed(TreeBudget(9, 5, 1)).overlapped(LIMIT, range(1, 9), tree, 8)
    assert found == TreeBudget(9, 5, 0, found=1, ahead=True)


def test_hit_rates() -> None:
    hits = Hits()
    assert hits.rate == pytest.approx(0.7)
    for i in range(400):
        hits.fade()
        hits.add(i % 4 == 0, 2.0)
    assert hits.rate == pytest.approx(0.25, abs=0.03)
    tokens, passes, drafts = np.array([1.0, 3.0, 5.0]), np.array([1.0, 1.0, 1.5]), np.array([0.0, 2.0, 4.0])
    # After a hit two seconds of drafting are there; after a miss it is best to draft as long (or not at all).
    choices = [(3.0, 1.0, t, p + d) for t, p, d in zip(tokens, passes, drafts, strict=True)]
    choices += [(5.0, 3.5, t, p + d) for t, p, d in zip(tokens, passes, drafts, strict=True)]
    best = max((0.25 * a + 0.75 * c) / (0.25 * b + 0.75 * d) for a, b, c, d in choices)
    assert hits.tokens_per_second(tokens, passes, drafts) == pytest.approx(best, rel=0.06)
    new = Hits()  # half a pass is hoped to be saved, and never more than there is
    assert new.tokens_per_second(tokens[:2], passes[:2], drafts[:2]) == pytest.approx(
        (0.7 * 3 + 0.3) / (0.7 * 2.5 + 0.3)
    )
    assert new.tokens_per_second(tokens[:1], passes[:1], drafts[:1]) == 1.0
    hits.fade(2000)
    assert hits.rate == pytest.approx(0.7)


def test_a_hit_saves_the_drafting_and_not_the_asking() -> None:
    """Of a worker, or over a network, a draft of no passes takes its time as well."""
    controller, tree, asking = Adaptive(CostModel(1.0, 0.1, 0.1)), TokenTree.chain([1, 2]), 0.5
    outcome = Outcome(np.array([0]), (5,))
    for passes in (4, 0) * 9:
        controller.record(Cycle(passes, tree, outcome, asking + 0.1 * passes, 1.0))
    controller.record(Cycle(0, tree, outcome, asking, 1.0, None, Overlap(True, found=4, steps=9)))
    _, count, saved = controller.hits.notes()["sums"]
    assert saved / count == pytest.approx(0.4, rel=0.02)
    hits = Hits()
    for _ in range(200):
        hits.add(True, 0.4)
    tokens, drafts = np.array([1.0, 3.0]), np.array([asking, asking + 0.4])
    rate = hits.tokens_per_second(tokens, np.ones(2), drafts)
    assert rate == pytest.approx(3 / (1 + asking), rel=0.01)
    assert hits.tokens_per_second(tokens[:1], np.ones(1), drafts[:1]) == pytest.approx(1 / (1 + asking))


def test_short_replies_do_not_hope_for_waits_again_and_again() -> None:
    """Where nothing is ever prepared, they draft as deep as the serial schedule does."""
    world, prior = WORLDS["right 0.9"]
    alone, beside = Adaptive(prior), Adaptive(prior)
    steps: list[list[float]] = [[], []]
    for turn in range(60):
        alone, beside = alone.successor(), beside.successor()
        steps[0] += [n or 0 for n in converse([(2, world)], alone, turn).steps]
        steps[1] += [
            n or 0 for n in overlapped(world, prior, 0.0, 0, cycles=2, seed=turn, controller=beside).steps
        ]
    assert beside.hits.rate < 0.1
    assert np.mean(steps[1][40:]) == pytest.approx(np.mean(steps[0][40:]), rel=0.1)


@pytest.mark.parametrize("width", [1, 8])
def test_another_pass_gains_by_as_many_ends_as_it_goes_on_from(width: int) -> None:
    """Eight likely ends: whoever expands eight in a pass has much to gain by one more; by one, hardly."""
    world, prior = WORLDS["right 0.9"]
    controller = Adaptive(prior)
    overlapped(world, prior, 0.7, 6, controller=controller)
    tree = TokenTree(np.arange(9), np.array([-1] + [0] * 8), np.log(np.array([1.0] + [0.12] * 8)))
    budget, _ = controller.overlapped(LIMIT, world.paid, tree, width)
    assert budget is not None
    assert (budget.passes > 0) == (width == 8)


def test_another_pass_gains_by_nodes_that_are_named_and_were_not_run() -> None:
    """A likely chain with a faint end: run, it has little more to give; named, a pass says what follows
    each of its nodes."""
    world, prior = WORLDS["right 0.9"]
    controller = Adaptive(prior)
    overlapped(world, prior, 0.7, 6, controller=controller)
    chain = TokenTree.chain(np.arange(4), np.log([1.0, 0.5, 0.1, 0.1]))
    budgets = [
        controller.overlapped(LIMIT, world.paid, replace(chain, run=ran), 8)[0]
        for ran in (None, np.array([True, False, False, False]))
    ]
    ran, named = (budget.passes for budget in budgets if budget is not None)
    assert named > ran


def test_what_was_prepared_stands_for_no_more_passes_than_it_is_deep() -> None:
    """However much it promises: what they would have saved is what a hit is worth."""
    world, prior = WORLDS["right 0.9"]
    controller = Adaptive(prior)
    overlapped(world, prior, 0.7, 6, controller=controller)
    sure = TokenTree.chain(np.arange(3), np.log([1.0, 0.999, 0.999]))
    wide = TokenTree(
        np.arange(40), np.array([-1, *[0] * 20, *range(1, 20)]), np.log(np.array([1.0, *[0.9] * 39]))
    )
    for tree in (sure, wide):
        budget, _ = controller.overlapped(LIMIT, world.paid, tree, 8)
        assert budget is not None
        assert 0 < budget.found <= tree.depths.max()


def test_one_slow_pass_does_not_end_drafting_ahead() -> None:
    """The first pass in whose waits somebody drafts may be slow for other reasons."""
    world, prior = WORLDS["right 0.9"]
    controller = Adaptive(prior)
    overlapped(world, prior, 0.8, 6, drag=0.7, cycles=2, controller=controller)
    run = overlapped(world, prior, 0.8, 6, cycles=500, controller=controller)
    assert run.rate(200) >= 0.97 * overlapped(world, prior, 0.8, 6, cycles=500).rate(200)


@pytest.mark.parametrize(
    ("drag", "name"), covering((0.0, 0.3, 5.0), ("right 0.9", "flash-bound", "compute-bound", "hopeless"))
)
def test_what_is_lost_has_a_bound_here_too(name: str, drag: float) -> None:
    """Passes that drafting in their waits makes slow are paid for like drafts that give nothing; what nobody
    knew of a cycle, its own time bounds."""
    world, prior = WORLDS[name]
    for seed in range(3):
        run = overlapped(world, prior, 0.3, 2, drag, cycles=150, seed=seed, exit=Exit(0.4, 2, drag=0.2))
        dearest = float(run.seconds.max()) * world.plain_rate - 1
        assert run.lost(world) <= GRACE + dearest


@pytest.mark.parametrize("times", [1.5, 1.7])
def test_slow_overlapped_passes_are_soon_tried_again(times: float) -> None:
    """Ten of each of several sizes: then they rest for as long as a pass may cost."""
    world, prior = WORLDS["right 0.9"]
    for seed in range(2):
        controller = Adaptive(prior)
        overlapped(world, prior, 0.8, 6, cycles=60, seed=seed, controller=controller)
        for nodes in (NODES // 4, NODES // 2, NODES) * 10:
            controller.costs.add(
                nodes, times * float(world.verify(np.array([nodes]))[0]), 4, 4 * world.step, True
            )
        exit = Exit(0.8, 6)  # tells which passes were overlapped
        cycles = round(1 / AGAIN) + 15  # and some until the others are known again
        overlapped(world, prior, 0.8, 6, cycles=cycles, seed=seed, controller=controller, exit=exit)
        assert 0 < len(exit.asked) < cycles
        run = overlapped(world, prior, 0.8, 6, cycles=100, seed=seed, controller=controller)
        assert run.rate() >= 0.9 * overlapped(world, prior, 0.8, 6, cycles=160, seed=seed).rate(60)


def test_trying_slow_overlapped_passes_again_is_bounded() -> None:
    """Where they stay slow."""
    world, prior = WORLDS["right 0.9"]
    for drag in (0.3, 1.0, 5.0):
        runs = [overlapped(world, prior, 0.8, 6, drag, cycles=250, seed=seed) for seed in range(2)]
        assert np.mean([run.rate(100) for run in runs]) >= 0.93 * serial_rate("right 0.9")
