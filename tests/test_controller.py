"""The controller on recorded costs: simulated regimes, against the best fixed choice and against plain."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from functools import lru_cache

import numpy as np
import pytest

from edgespec.acceptance import Outcome
from edgespec.controller import FIRST, STEPS, Adaptive, Cycle, Fixed
from edgespec.drafters.base import TreeBudget
from edgespec.estimates import Chances, Curve, Prior, ranks, rising
from edgespec.tree import TokenTree, TreeBuilder

NODES, BRANCH, WIDTH = 64, 4, 8
LIMIT = TreeBudget(NODES, 40, 0)


@dataclass(frozen=True)
class World:
    """A drafter and a machine with known behaviour.

    hit: chance that the target's token is among a node's children; `share` of it on the likeliest child, the
    same share of the rest on the next, and so on. `claim`: the drafter's own idea of `hit`.
    """

    hit: float
    claim: float
    verify: Callable[[np.ndarray], np.ndarray]  # seconds by nodes
    step: float  # seconds of drafting one step
    share: float = 0.7
    paid: range = range(1, 17)

    def split(self, hit: float) -> np.ndarray:
        """[BRANCH] chances of a node's children."""
        weights = self.share * (1 - self.share) ** np.arange(BRANCH)
        return hit * weights / weights.sum()

    def tree(self, steps: int) -> TokenTree:
        return _grow(tuple(self.split(self.claim)), steps)

    def true_scores(self, tree: TokenTree) -> np.ndarray:
        """[n] chance of each node to be on the accepted path."""
        chances = self.split(self.hit)[ranks(tree)]
        chances[0] = 1.0
        for node in range(1, len(tree)):
            chances[node] *= chances[tree.parents[node]]
        return chances

    def outcome(self, tree: TokenTree, rng: np.random.Generator) -> Outcome:
        chances, path = self.split(self.hit), [0]
        while True:
            children = tree.children(path[-1])
            drawn = np.searchsorted(np.cumsum(chances), rng.random())
            order = children[np.argsort(-tree.logprobs[children], kind="stable")]
            if drawn >= len(order):
                return Outcome(np.array(path), (*tree.tokens[path[1:]].tolist(), 0))
            path.append(int(order[drawn]))

    def best_fixed_rate(self) -> float:
        """Of an oracle that knows everything and always makes the same choice of steps and nodes."""
        rates = [1 / self.verify(np.array([1]))[0]]
        for steps in [s for s in STEPS if s in self.paid]:
            tokens = np.cumsum(np.sort(self.true_scores(self.tree(int(steps))))[::-1])
            rates += (tokens / (self.verify(np.arange(1, len(tokens) + 1)) + steps * self.step)).tolist()
        return max(rates)


@lru_cache
def _grow(claims: tuple[float, ...], steps: int) -> TokenTree:
    builder = TreeBuilder(1, NODES, 40)
    for _ in range(steps):
        nodes = builder.frontier(WIDTH)
        if not len(nodes):
            break
        # Tokens only have to differ between siblings.
        tokens = np.tile(np.arange(BRANCH), (len(nodes), 1))
        builder.expand(nodes, tokens, np.log(np.tile(claims, (len(nodes), 1))))
    return builder.tree()


@dataclass
class Run:
    tokens: np.ndarray  # [cycles] expected of the trees that were verified
    seconds: np.ndarray
    steps: list[int | None]

    def rate(self, start: int = 0, stop: int | None = None) -> float:
        return float(self.tokens[start:stop].sum() / self.seconds[start:stop].sum())


def simulate(
    worlds: list[tuple[int, World]], prior: Prior | None = None, seed: int = 0, noise: float = 0.0
) -> Run:
    """Cycles of a controller in one world after the other."""
    controller, rng = Adaptive(prior), np.random.default_rng(seed)
    tokens, seconds, chosen = [], [], []
    for cycles, world in worlds:
        for _ in range(cycles):
            budget = controller.budget(LIMIT, world.paid)
            tree, draft_seconds = TokenTree.root(1), 0.0
            if budget is not None:
                tree = controller.prune(world.tree(budget.steps))
                draft_seconds = budget.steps * world.step
            verify_seconds = float(world.verify(np.array([len(tree)]))[0])
            outcome = world.outcome(tree, rng)
            steps = None if budget is None else budget.steps
            # The controller sees noisy times, and now and then the machine is elsewhere; the run is judged
            # by the true ones.
            seen = rng.lognormal(0, noise, 2) * (10 if noise and rng.random() < 0.01 else 1)
            cycle = Cycle(steps, tree, outcome, draft_seconds * seen[0], verify_seconds * seen[1])
            controller.record(cycle)
            tokens.append(world.true_scores(tree).sum())  # expected, so that runs need not be long
            seconds.append(draft_seconds + verify_seconds)
            chosen.append(steps)
    return Run(np.array(tokens), np.array(seconds), chosen)


def flash_bound(nodes: np.ndarray) -> np.ndarray:
    return np.maximum(1.0, 0.2 * (1 + nodes / 32))


def compute_bound(nodes: np.ndarray) -> np.ndarray:
    return 0.1 * (1 + (nodes - 1) / 16)


def with_a_jump(nodes: np.ndarray) -> np.ndarray:
    """More than one row needs another kernel."""
    return np.where(nodes > 1, 0.18, 0.1) + nodes * 0.001


FLASH, COMPUTE = Prior(1.0, 0.2, 0.02), Prior(0.0, 0.1, 0.02)
REGIMES = {
    "flash-bound": (World(0.85, 0.8, flash_bound, 0.02), FLASH),
    "flash-bound, sceptical drafter": (World(0.9, 0.3, flash_bound, 0.02), FLASH),
    "flash-bound, dear drafter": (World(0.8, 0.9, flash_bound, 0.25), Prior(1.0, 0.2, 0.25)),
    "flash-bound, nothing known": (World(0.85, 0.8, flash_bound, 0.02), Prior()),
    "compute-bound": (World(0.8, 0.8, compute_bound, 0.01), COMPUTE),
    "compute-bound, boastful drafter": (World(0.6, 0.99, compute_bound, 0.01), COMPUTE),
    "compute-bound, nothing known": (World(0.8, 0.8, compute_bound, 0.01), Prior()),
    "a jump behind one row": (World(0.9, 0.8, with_a_jump, 0.01), COMPUTE),
    "hopeless": (World(0.02, 0.9, compute_bound, 0.05), COMPUTE),
    "hopeless and dear": (World(0.0, 0.9, compute_bound, 0.5), COMPUTE),
    "hopeless when flash-bound": (World(0.0, 0.9, flash_bound, 0.3), FLASH),
    "hardly worth it": (World(0.4, 0.6, compute_bound, 0.03), COMPUTE),
    "free drafts": (World(0.5, 0.5, compute_bound, 0.0, paid=range(1)), COMPUTE),
}


@pytest.mark.parametrize("name", REGIMES)
def test_it_finds_the_best_fixed_choice(name: str) -> None:
    world, prior = REGIMES[name]
    run = simulate([(600, world)], prior)
    assert run.rate(200) >= 0.95 * world.best_fixed_rate()
    plain = 1 / world.verify(np.array([1]))[0]
    assert run.rate() >= 0.95 * plain


@pytest.mark.parametrize("name", ["flash-bound", "compute-bound", "hopeless and dear"])
def test_noisy_timings_do_not_mislead_it(name: str) -> None:
    world, prior = REGIMES[name]
    run = simulate([(600, world)], prior, noise=0.15)
    assert run.rate(200) >= 0.9 * world.best_fixed_rate()
    plain = 1 / world.verify(np.array([1]))[0]
    assert run.rate() >= 0.95 * plain


def test_the_start_is_not_slower_either() -> None:
    """Within the first hundred cycles, too, a hopeless drafter costs no more than the grace and 5 %."""
    world, prior = REGIMES["hopeless and dear"]
    run = simulate([(100, world)], prior)
    assert (
        run.seconds.sum() <= 100 * 0.1 * 1.05 + (2 + 16 * 0.5 / 0.1) * 0.1
    )  # one probe may be all its steps


def test_it_follows_a_drifting_acceptance() -> None:
    good, bad = World(0.85, 0.8, compute_bound, 0.01), World(0.03, 0.8, compute_bound, 0.05)
    run = simulate([(600, good), (600, bad), (900, good)], COMPUTE)
    for start, stop, world in [(200, 600, good), (800, 1200, bad), (1700, 2100, good)]:
        assert run.rate(start, stop) >= 0.93 * world.best_fixed_rate()


def test_depth_0_is_chosen_when_a_draft_is_not_worth_it() -> None:
    run = simulate([(400, REGIMES["hopeless"][0])], COMPUTE)
    assert run.steps[:FIRST] == [None] * FIRST
    assert sum(steps is None for steps in run.steps[100:]) > 0.95 * 300


def test_the_same_records_lead_to_the_same_decisions() -> None:
    world, prior = REGIMES["compute-bound"]
    runs = [simulate([(300, world)], prior, seed=7, noise=0.1) for _ in range(2)]
    assert runs[0].steps == runs[1].steps
    assert np.array_equal(runs[0].tokens, runs[1].tokens)


def test_nothing_is_drafted_beyond_the_limit() -> None:
    controller = Adaptive(FLASH)
    tree = TokenTree.root(1)
    for _ in range(5):
        controller.record(Cycle(None, tree, Outcome(np.array([0]), (1,)), 0.0, 1.0))
    assert controller.budget(TreeBudget(64, 0, 0), range(1, 17)) is None
    assert controller.budget(TreeBudget(1, 9, 0), range(1, 17)) is None
    budget = controller.budget(TreeBudget(64, 3, 0), range(1, 17))
    assert budget is not None
    assert budget.steps <= 3
    assert (budget.nodes, budget.depth) == (64, 3)
    free = controller.budget(TreeBudget(64, 3, 0), range(1))
    assert free is not None
    assert free.steps == 0


def test_a_sampled_tree_stays_whole() -> None:
    from edgespec.sampling import Distribution

    drafts = [Distribution(np.array([4, 5]), np.array([0.999, 0.001]))] * 3
    tree = TokenTree.chain([1, 5, 5, 5], np.log([1, 1e-3, 1e-3, 1e-3]), drafts)
    controller = Adaptive(COMPUTE)
    assert controller.prune(tree) is tree
    assert len(controller.prune(TokenTree.chain(tree.tokens, tree.logprobs))) < 4 or controller._rate == 0


def test_pruning_keeps_what_pays_and_stays_connected() -> None:
    world, prior = REGIMES["compute-bound"]
    controller = Adaptive(prior)
    rng = np.random.default_rng(0)
    for _ in range(200):
        budget = controller.budget(LIMIT, world.paid)
        tree = TokenTree.root(1) if budget is None else controller.prune(world.tree(budget.steps))
        tree.validate()
        seconds = float(compute_bound(np.array([len(tree)]))[0])
        steps = None if budget is None else budget.steps
        controller.record(Cycle(steps, tree, world.outcome(tree, rng), (steps or 0) * world.step, seconds))
    whole = world.tree(8)
    kept = controller.prune(whole)
    assert 1 < len(kept) < len(whole)
    assert kept.scores.min() >= np.sort(whole.scores)[-len(kept) - 3]


def test_a_drafter_is_given_up_for_its_memory() -> None:
    prior = FLASH
    controller = Adaptive(prior)
    root = TokenTree.root(1)
    for _ in range(250):
        controller.record(Cycle(None, root, Outcome(np.array([0]), (1,)), 0.0, 1.0))
    assert controller.loses(1.3)
    assert not controller.loses(1.01)  # hardly any gain: not worth the trouble
    good = Adaptive(prior)
    rng = np.random.default_rng(0)
    useful = REGIMES["flash-bound"][0]
    for _ in range(250):
        budget = good.budget(LIMIT, useful.paid)
        steps = None if budget is None else budget.steps
        tree = root if budget is None else good.prune(useful.tree(budget.steps))
        seconds = float(flash_bound(np.array([len(tree)]))[0])
        good.record(Cycle(steps, tree, useful.outcome(tree, rng), (steps or 0) * 0.02, seconds))
    assert not good.loses(1.3)
    assert not Adaptive(prior).loses(10.0)  # too early to tell


def test_fixed_is_fixed() -> None:
    fixed = Fixed(TreeBudget(9, 4, 3))
    assert fixed.budget(TreeBudget(64, 40, 0), range(1)) == TreeBudget(9, 4, 3)
    assert fixed.budget(TreeBudget(5, 2, 0), range(1)) == TreeBudget(5, 2, 3)


def test_a_curve_interpolates_and_extrapolates() -> None:
    curve = Curve(lambda x: 2.0 * x)
    assert curve.at(3.0) == 6.0
    curve.add(1, 5.0)
    assert curve.at(4.0) == 5.0 + 6.0  # the prior's shape behind the last point
    for _ in range(200):
        curve.add(9, 13.0)
    assert curve.at(np.array([1, 5, 9])) == pytest.approx([5.0, 9.0, 13.0], rel=0.01)
    for _ in range(200):
        curve.add(19, 18.0)
    assert curve.at(29.0) == pytest.approx(23.0, rel=0.01)  # the line so far is flatter
    curve.add(40, 5.0)
    assert np.diff(curve.at(np.arange(1, 65))).min() >= 0  # more never costs less


def test_a_curve_may_start_at_a_known_value() -> None:
    curve = Curve(lambda x: 0.5 * x, start=0.0)
    curve.add(8, 4.0)
    assert curve.at(np.array([0, 2, 8])).tolist() == [0.0, 1.0, 4.0]


def test_what_is_long_past_counts_for_little() -> None:
    """One unlucky timing of a count that is then avoided must not be believed for ever."""
    curve = Curve(np.ones_like)
    for _ in range(10):
        curve.add(1, 1.0)
    curve.add(40, 9.0)
    assert curve.at(40.0) > 6
    for _ in range(300):
        curve.fade()
        curve.add(1, 1.0)
    assert curve.at(40.0) < 1.5


def test_rising_pools_what_falls() -> None:
    assert rising([1, 2, 3], [1, 1, 1]) == [1, 2, 3]
    assert rising([1, 4, 2, 3], [1, 1, 1, 1]) == [1, 3, 3, 3]
    assert rising([3, 0], [1, 3]) == [0.75, 0.75]


def test_pauses_of_the_machine_do_not_change_a_cost() -> None:
    curve = Curve(lambda x: x)
    for seconds in (1.0, 1000.0, 1.0, 1.1, 500.0, 0.9):
        curve.add(1, seconds)
    assert curve.at(1.0) <= 1.1


def test_chances_correct_what_a_drafter_claims() -> None:
    chances = Chances()
    tree = TokenTree.chain([1, 2, 3], np.log([1.0, 0.9, 0.9]))
    for _ in range(300):
        chances.fade()
        chances.add(tree, np.array([0, 1]))  # depth 1 always, depth 2 never
    scores = np.exp(chances.scores(tree))
    assert scores[1] > 0.95
    assert scores[2] < 0.1
    assert chances.by_depth[1] > 0.95
    assert chances.by_depth[2] < 0.1


def test_ranks() -> None:
    tree = TokenTree(np.arange(6), np.array([-1, 0, 0, 1, 1, 1]), np.log([1.0, 0.2, 0.5, 0.1, 0.3, 0.2]))
    assert ranks(tree).tolist() == [0, 1, 0, 2, 0, 1]
