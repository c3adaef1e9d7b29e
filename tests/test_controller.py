"""The controller on recorded costs: simulated regimes, against the best fixed choice and against plain."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, replace
from functools import lru_cache

import numpy as np
import pytest

from edgespec.control.controller import ALLOWANCE, DOUBT, GRACE, LONGER, REST, SAVED, TOLD, Adaptive
from edgespec.control.costs import FORETOLD
from edgespec.control.curve import Curve, rising
from edgespec.control.estimates import STEPS, Chances, Yield, ranks
from edgespec.control.fixed import Fixed
from edgespec.control.handover import PATIENCE, HandOver
from edgespec.core.acceptance import Outcome
from edgespec.core.schedule import TreeBudget
from edgespec.core.trace import Cycle
from edgespec.core.tree import TokenTree, TreeBuilder
from edgespec.devices.matmuls import ROWS as MATMUL_ROWS
from edgespec.offload.plan.costs import CostModel
from tests.covering import covering

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
    free: int = 0  # levels of the tree that cost no step
    stalls: float = 0.0  # chance that a draft comes to nothing, after
    stall: float = 0.5  # seconds

    def split(self, hit: float) -> np.ndarray:
        """[BRANCH] chances of a node's children."""
        return _split(hit, self.share)

    def tree(self, steps: int) -> TokenTree:
        return _grow(tuple(self.split(self.claim)), max(steps, self.free))

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

    def oracle(self) -> tuple[float, int]:
        """The best rate, and its steps, of always the same choice of steps and nodes, knowing everything."""
        best = (self.plain_rate, 0)
        for steps in [int(s) for s in STEPS if s in self.paid]:
            tokens = np.cumsum(np.sort(self.true_scores(self.tree(steps)))[::-1])
            rates = tokens / (self.verify(np.arange(1, len(tokens) + 1)) + steps * self.step)
            best = max(best, (float(rates.max()), steps))
        return best

    @property
    def plain_rate(self) -> float:
        return float(1 / self.verify(np.array([1]))[0])


@lru_cache
def _split(hit: float, share: float) -> np.ndarray:
    weights = share * (1 - share) ** np.arange(BRANCH)
    return hit * weights / weights.sum()


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
    nodes: list[int]
    came: np.ndarray  # tokens, as they happened to come

    def rate(self, start: int = 0, stop: int | None = None) -> float:
        return float(self.tokens[start:stop].sum() / self.seconds[start:stop].sum())

    def lost(self, world: World, start: int = 0) -> float:
        """Plain cycles that plain decoding was ahead, at most: without the share of the time that may always
        go into drafting."""
        behind = (1 - ALLOWANCE) * self.seconds[start:] * world.plain_rate - self.came[start:]
        return float(np.cumsum(behind).max())


def simulate(
    worlds: list[tuple[int, World]], prior: CostModel | None = None, seed: int = 0, noise: float = 0.0
) -> Run:
    """Cycles of a controller in one world after the other."""
    return converse(worlds, Adaptive(prior), seed, noise)


def converse(worlds: list[tuple[int, World]], controller: Adaptive, seed: int = 0, noise: float = 0.0) -> Run:
    """A conversation with this controller."""
    rng = np.random.default_rng(seed)
    tokens, seconds, chosen, nodes, came = [], [], [], [], []
    for cycles, world in worlds:
        for _ in range(cycles):
            budget = controller.budget(LIMIT, world.paid)
            tree, draft_seconds = TokenTree.root(1), 0.0
            if budget is not None:
                tree = controller.prune(world.tree(budget.passes))
                draft_seconds = budget.passes * world.step
                if world.stalls and rng.random() < world.stalls:
                    tree, draft_seconds = TokenTree.root(1), draft_seconds + world.stall
            verify_seconds = float(world.verify(np.array([len(tree)]))[0])
            outcome = world.outcome(tree, rng)
            steps = None if budget is None else budget.passes
            # The controller sees noisy times, and now and then the machine is elsewhere; the run is judged
            # by the true ones.
            seen = rng.lognormal(0, noise, 2) * (10 if noise and rng.random() < 0.01 else 1)
            cycle = Cycle(steps, tree, outcome, draft_seconds * seen[0], verify_seconds * seen[1])
            controller.record(cycle)
            tokens.append(world.true_scores(tree).sum())  # expected, so that runs need not be long
            seconds.append(draft_seconds + verify_seconds)
            chosen.append(steps)
            nodes.append(len(tree))
            came.append(len(outcome.tokens))
    return Run(np.array(tokens), np.array(seconds), chosen, nodes, np.array(came))


def conversations(count: int, worlds: list[tuple[int, World]], prior: CostModel) -> list[Run]:
    """One after the other, on one engine."""
    controller, runs = Adaptive(prior), []
    for seed in range(count):
        controller = controller.successor()
        runs.append(converse(worlds, controller, seed))
    return runs


def flash_bound(nodes: np.ndarray) -> np.ndarray:
    return np.maximum(1.0, 0.2 * (1 + nodes / 32))


def compute_bound(nodes: np.ndarray) -> np.ndarray:
    return 0.1 * (1 + (nodes - 1) / 16)


def streamed(seconds: float) -> Callable[[np.ndarray], np.ndarray]:
    """A 7B shape whose pass reads for so long."""
    return lambda nodes: np.maximum(seconds, 0.35 * (1 + (nodes - 1) / 32))


def with_a_jump(nodes: np.ndarray) -> np.ndarray:
    """More than one row needs another kernel."""
    return np.where(nodes > 1, 0.18, 0.1) + nodes * 0.001


def two_rows_free(nodes: np.ndarray) -> np.ndarray:
    """int4 in memory: a second row is hidden behind reading weights, a fourth takes as long again as one."""
    return np.maximum(0.074, 0.0385 * nodes)


FLASH, COMPUTE = CostModel(1.0, 0.2, 0.02), CostModel(0.0, 0.1, 0.02)
# As measured while memory was faster.
LOW_BIT = CostModel(compute=0.059, step=0.0108, by_rows=(0.059, 0.08, 0.14, 0.3, 0.73, 1.43, 7.4))
REGIMES = {
    "flash-bound": (World(0.85, 0.8, flash_bound, 0.02), FLASH),
    "flash-bound, sceptical drafter": (World(0.9, 0.3, flash_bound, 0.02), FLASH),
    "flash-bound, dear drafter": (World(0.8, 0.9, flash_bound, 0.25), CostModel(1.0, 0.2, 0.25)),
    "flash-bound, nothing known": (World(0.85, 0.8, flash_bound, 0.02), CostModel()),
    "compute-bound": (World(0.8, 0.8, compute_bound, 0.01), COMPUTE),
    "compute-bound, boastful drafter": (World(0.6, 0.99, compute_bound, 0.01), COMPUTE),
    "compute-bound, nothing known": (World(0.8, 0.8, compute_bound, 0.01), CostModel()),
    "a jump behind one row": (World(0.9, 0.8, with_a_jump, 0.01), COMPUTE),
    "two rows free": (World(0.78, 0.8, two_rows_free, 0.0105), LOW_BIT),
    "hopeless": (World(0.02, 0.9, compute_bound, 0.05), COMPUTE),
    "hopeless and dear": (World(0.0, 0.9, compute_bound, 0.5), COMPUTE),
    "hopeless when flash-bound": (World(0.0, 0.9, flash_bound, 0.3), FLASH),
    "hardly worth it": (World(0.4, 0.6, compute_bound, 0.03), COMPUTE),
    "free drafts": (World(0.7, 0.5, compute_bound, 0.0, paid=range(1), free=4), COMPUTE),
    "free drafts beside dear ones": (
        World(0.8, 0.8, flash_bound, 0.2, paid=range(17), free=2),
        CostModel(1, 0.2, 0.2),
    ),
}
DEEP = range(1, 33)
SUBSTITUTES = {  # a low-bit copy of the target: nearly always right, dear steps, passes far dearer still
    "right 0.95": (World(0.97, 0.95, streamed(5), 0.1, 0.98, DEEP), CostModel(5, 0.35, 0.1)),
    "right 0.9": (World(0.95, 0.95, streamed(4), 0.15, 0.947, DEEP), CostModel(4, 0.35, 0.15)),
    "right 0.8": (World(0.9, 0.9, streamed(3), 0.2, 0.89, DEEP), CostModel(3, 0.3, 0.2)),
    "sceptical": (World(0.95, 0.6, streamed(4), 0.15, 0.947, DEEP), CostModel(4, 0.35, 0.15)),
    "wrong prior": (World(0.95, 0.95, streamed(4), 0.15, 0.947, DEEP), CostModel(2, 0.6, 0.4)),
    "wide trees": (World(0.95, 0.9, streamed(6), 0.1, 0.6, DEEP), CostModel(6, 0.3, 0.1)),
}


@pytest.mark.parametrize(
    ("name", "seeds"),
    [
        *((name, [number % 2]) for number, name in enumerate(REGIMES | SUBSTITUTES)),
        *(pytest.param(name, [0, 1], marks=pytest.mark.slow) for name in REGIMES | SUBSTITUTES),
    ],
)
def test_it_finds_the_best_fixed_choice(name: str, seeds: list[int]) -> None:
    """By times that are exact, or noisy; with both, closer on average."""
    world, prior = (REGIMES | SUBSTITUTES)[name]
    runs = [simulate([(400, world)], prior, seed, noise=0.1 * seed) for seed in seeds]
    rates = [run.rate(150) / world.oracle()[0] for run in runs]
    assert min(rates) >= 0.93
    assert len(seeds) == 1 or np.mean(rates) >= 0.96
    for run in runs:
        assert run.rate() >= 0.95 * world.plain_rate
        assert run.rate(100) >= 0.96 * world.plain_rate


@lru_cache
def settled_rate(name: str) -> float:
    world, prior = (REGIMES | SUBSTITUTES)[name]
    return simulate([(200, world)], prior).rate(80)


@pytest.mark.parametrize(
    ("spell", "name"),
    covering([(2, 5), (5, 5), (3, 20)], ("right 0.9", "right 0.8", "flash-bound", "compute-bound")),
)
def test_a_slow_spell_of_the_machine_is_forgotten(spell: tuple[float, int], name: str) -> None:
    """Everything takes so many times as long for some cycles, and is as it was."""
    (world, prior), (times, cycles) = (REGIMES | SUBSTITUTES)[name], spell

    def slow(nodes: np.ndarray) -> np.ndarray:
        return times * world.verify(nodes)

    slower = replace(world, verify=slow, step=world.step * times)
    usual = settled_rate(name)
    rates = [
        simulate([(60, world), (cycles, slower), (100, world)], prior, seed, noise).rate(60 + cycles)
        for seed, noise in [(0, 0.0), (1, 0.0), (0, 0.1), (1, 0.1)]
    ]
    assert np.mean(rates) >= 0.93 * usual
    assert min(rates) >= 0.8 * usual


def test_a_pause_of_the_machine_does_not_end_drafting() -> None:
    """One cycle in a hundred takes ten times as long; short drafts do not pay here, and long ones do."""
    world, prior = REGIMES["a jump behind one row"]
    rates = [simulate([(400, world)], prior, seed, noise=0.1).rate(150) for seed in range(4)]
    assert min(rates) >= 0.87 * world.oracle()[0]


@pytest.mark.parametrize(("every", "seed"), covering((8, 16, 64), (0, 1)))
def test_a_drafter_that_stalls_again_and_again_is_no_pause_of_the_machine(every: int, seed: int) -> None:
    """Each time for as long as a hundred passes: one is forgiven, the next one ends drafting for long."""
    world = replace(quicker(REGIMES["compute-bound"][0], 20), stalls=1 / every)
    prior = CostModel(0.0, 0.005, 0.001)
    run = simulate([(2500, world)], prior, seed)
    once = world.stall * world.plain_rate
    assert run.lost(world) <= 2 * once + SAVED
    after = np.flatnonzero(run.seconds > world.stall)[1] + 1
    assert run.rate(after) >= 0.97 * world.plain_rate


def test_a_single_stall_of_a_drafter_is_forgiven() -> None:
    world, prior = quicker(REGIMES["compute-bound"][0], 20), CostModel(0.0, 0.005, 0.001)
    run = simulate([(60, world), (1, replace(world, stalls=1.0)), (60, world)], prior)
    assert run.seconds.max() > world.stall
    assert run.rate(61) >= 0.92 * world.oracle()[0]


@pytest.mark.parametrize("name", SUBSTITUTES)
def test_a_good_drafter_is_soon_followed_deep(name: str) -> None:
    """A pass takes seconds, so a reply has few cycles: the best depth may not take a hundred to find."""
    world, prior = SUBSTITUTES[name]
    rate, steps = world.oracle()
    assert steps >= 6
    runs = [simulate([(60, world)], prior, seed) for seed in range(3)]
    assert np.mean([run.rate(5) for run in runs]) >= 0.9 * rate
    chosen = np.concatenate([run.steps[10:] for run in runs]).astype(float)
    assert 0.6 * steps <= np.nanmedian(chosen) <= 1.7 * steps
    # Verification of 64 nodes costs what one costs, so whatever has a chance is verified.
    if len(world.tree(steps)) == NODES:
        assert np.median([run.nodes[10:] for run in runs]) == NODES


@pytest.mark.parametrize("name", SUBSTITUTES)
def test_another_conversation_knows_what_drafting_costs(name: str) -> None:
    """Of a short reply's few cycles none is spent on finding out again."""
    world, prior = SUBSTITUTES[name]
    first, *others = conversations(6, [(6, world)], prior)
    assert all(run.steps[0] is not None for run in others)
    assert np.mean([run.rate() for run in others]) >= max(0.85 * world.oracle()[0], 0.95 * first.rate())


@pytest.mark.parametrize("name", SUBSTITUTES)
def test_a_first_short_reply_drafts_by_the_plan(name: str) -> None:
    """Where flash bounds passes by the plan, no plain cycle is made before some were timed, and the first
    draft is no adventure."""
    world, prior = SUBSTITUTES[name]
    first = simulate([(400, world)], prior)
    timed = first.steps.index(None)  # now one is
    if name == "wrong prior":
        assert timed == 1, "the first pass belies it"
    else:
        speedup = world.oracle()[0] / world.plain_rate
        assert timed == pytest.approx(max(FORETOLD, (speedup - 1) / TOLD), rel=0.5)
    assert first.rate(0, FORETOLD + 2) >= 0.75 * world.oracle()[0]
    assert first.steps[0] * 2 * DOUBT * prior.step <= GRACE * prior.io or first.steps[0] == 1
    unknown = simulate([(2, world)], CostModel())
    assert unknown.steps == [None, 1]
    computing = simulate([(2, world)], replace(prior, io=0.0))
    assert computing.steps[0] is None


@pytest.mark.parametrize("name", SUBSTITUTES)
def test_a_pass_longer_than_the_plan_says_is_followed_by_a_plain_one(name: str) -> None:
    """It may be the disk, or the rows: what rows cost is to be known before more of them are verified."""
    world, prior = SUBSTITUTES[name]
    for times in (2, 0.5):  # or shorter: a plain one may be shorter still
        other = replace(world, verify=lambda nodes, times=times: times * world.verify(nodes))
        if name != "wrong prior" or times == 2:
            run = simulate([(4, other)], prior)
            assert [steps is None for steps in run.steps] == [False, True, False, False]


def test_a_step_far_dearer_than_the_plan_says_costs_no_more_than_the_grace() -> None:
    """The first draft is made before any was timed."""
    for name in ("right 0.95", "right 0.9", "right 0.8"):
        world, prior = SUBSTITUTES[name]
        dear = replace(world, hit=0.0, step=world.step * DOUBT)
        run = simulate([(30, dear)], prior)
        assert run.lost(dear) <= GRACE + 1


@pytest.mark.parametrize(("cycles", "least"), [(3, 0.91), (8, 0.93), (15, 0.94), (40, 0.945)])
def test_many_short_conversations_with_a_hopeless_drafter(cycles: int, least: float) -> None:
    """What one has found out, and what it has cost, counts for the next."""
    for name in ("hopeless", "hopeless and dear", "hopeless when flash-bound"):
        world, prior = REGIMES[name]
        runs = conversations(200 // cycles, [(cycles, world)], prior)
        tokens, seconds = (sum(getattr(run, part).sum() for run in runs) for part in ("tokens", "seconds"))
        assert tokens / seconds >= least * world.plain_rate


def test_a_good_drafter_is_found_again_in_the_next_conversation() -> None:
    good, prior = SUBSTITUTES["right 0.9"]
    bad = World(0.0, 0.95, good.verify, good.step, 0.9, DEEP)
    first = converse([(30, bad)], before := Adaptive(prior))
    second = converse([(30, good)], before.successor())
    assert first.rate() >= 0.9 * bad.plain_rate
    assert second.rate() >= 0.8 * good.oracle()[0]


@pytest.mark.parametrize("name", ["flash-bound", "compute-bound", "hopeless and dear"])
def test_noisy_timings_do_not_mislead_it(name: str) -> None:
    world, prior = REGIMES[name]
    run = simulate([(600, world)], prior, noise=0.15)
    assert run.rate(200) >= 0.92 * world.oracle()[0]
    assert run.rate() >= 0.95 * world.plain_rate


def test_the_start_is_not_slower_either() -> None:
    """A drafter whose steps cost 25 times what the prior says is found out with two single steps, worth five
    plain cycles each; an honestly hopeless one within the grace."""
    world, prior = REGIMES["hopeless and dear"]
    run = simulate([(100, world)], prior)
    assert run.seconds.sum() <= 100 * 0.1 + 2 * 0.52
    world, prior = REGIMES["hopeless"]
    assert simulate([(100, world)], prior).rate() >= 0.94 * world.plain_rate


def test_one_step_is_tried_where_more_than_two_rows_are_dear() -> None:
    """In a first reply: trees of a step are as narrow as pays, and a slower machine hides the second row."""
    world, prior = REGIMES["two rows free"]
    for seed in range(8):
        run = simulate([(60, world)], prior, seed)
        assert run.rate() >= 1.1 * world.plain_rate, seed


def quicker(world: World, times: float) -> World:
    return replace(world, verify=lambda nodes: world.verify(nodes) / times, step=world.step / times)


@pytest.mark.parametrize(("times", "stands"), [(1, 1), (12, 3), (1000, REST << LONGER)])
def test_a_refusal_stands_for_some_short_cycles(
    times: float, stands: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Plain cycles of 0.1 s, 8 ms and 0.1 ms."""
    weighed = 0
    expect = Yield.expect

    def counted(self: Yield, by_depth: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
        nonlocal weighed
        weighed += 1
        return expect(self, by_depth)

    monkeypatch.setattr(Yield, "expect", counted)
    controller = Adaptive()
    hopeless, good = (quicker(REGIMES[name][0], times) for name in ("hopeless", "compute-bound"))
    converse([(200, hopeless)], controller)
    weighed = 0
    run = converse([(240, hopeless)], controller)
    tried = sum(steps is not None for steps in run.steps)
    assert 240 / stands - 1 <= weighed <= 240 / stands + tried * stands + 1
    assert run.rate() >= 0.95 * hopeless.plain_rate
    controller._pause, weighed = 2, 0
    assert controller.overlapped(LIMIT, hopeless.paid, TokenTree.root(1), WIDTH)[0] is None
    assert not weighed
    assert converse([(1600, good)], controller).rate(1300) >= 0.92 * good.oracle()[0]


def test_it_follows_a_drifting_acceptance() -> None:
    good, bad = World(0.85, 0.8, compute_bound, 0.01), World(0.03, 0.8, compute_bound, 0.05)
    run = simulate([(400, good), (400, bad), (700, good)], COMPUTE)
    for start, stop, world in [(150, 400, good), (500, 800, bad), (1100, 1500, good)]:
        assert run.rate(start, stop) >= 0.94 * world.oracle()[0]
    # While it fell, little more was lost than had been saved before.
    assert run.rate(400, 800) >= 0.95 * bad.plain_rate


def test_it_follows_a_substitute_out_of_its_depth_and_back() -> None:
    good, prior = SUBSTITUTES["right 0.9"]
    bad = World(0.3, 0.95, streamed(4), 0.15, 0.9, DEEP)
    run = simulate([(150, good), (150, bad), (150, good)], prior)
    for start, stop in [(50, 150), (350, 450)]:
        assert run.rate(start, stop) >= 0.95 * good.oracle()[0]
    assert run.rate(150, 300) >= 0.94 * bad.plain_rate  # the worst change there is, and all its cost


@pytest.mark.parametrize(("name", "most"), [("right 0.9", 12), ("right 0.8", 12), ("compute-bound", 10)])
def test_another_text_is_noticed_within_a_few_cycles(name: str, most: float) -> None:
    world, prior = (REGIMES | SUBSTITUTES)[name]
    never, half = replace(world, hit=0.0), replace(world, hit=world.hit / 2)
    runs = [simulate([(60, world), (60, never)], prior, seed) for seed in range(3)]
    lost = [run.seconds[60:].sum() * never.plain_rate - run.tokens[60:].sum() for run in runs]
    assert np.mean(lost) <= most  # plain cycles
    runs = [simulate([(60, world), (60, half)], prior, seed) for seed in range(3)]
    assert np.mean([run.rate(60) for run in runs]) >= 0.87 * half.oracle()[0]


@pytest.mark.parametrize(
    ("name", "seed"),
    covering(("right 0.9", "right 0.8", "wide trees", "flash-bound", "compute-bound"), range(3)),
)
def test_false_hope_has_a_bound(name: str, seed: int) -> None:
    """Costs are what was learned, and the drafter is never right any more, or hardly ever: in the next
    process, and in the middle of a conversation that had saved all that may be saved."""
    world, prior = (REGIMES | SUBSTITUTES)[name]
    converse([(80, world)], taught := Adaptive(prior))
    for hit in (0.0, 0.05, 0.2):
        other = replace(world, hit=hit)
        (new := Adaptive(prior)).recall(taught.notes())
        assert converse([(60, other)], new, seed).lost(other) <= GRACE + 0.1  # costs are nearly known
        run = simulate([(60, world), (60, other)], prior, seed)
        assert run.lost(other, 60) <= SAVED + 0.1


@pytest.mark.parametrize("name", ["compute-bound", "right 0.8", "flash-bound, dear drafter"])
def test_bad_luck_does_not_end_what_pays(name: str) -> None:
    world, prior = (REGIMES | SUBSTITUTES)[name]
    for seed in range(8):
        run = simulate([(100, world)], prior, seed)
        assert np.mean([steps is None for steps in run.steps[30:]]) <= 0.15


def test_depth_0_is_chosen_when_a_draft_is_not_worth_it() -> None:
    run = simulate([(400, REGIMES["hopeless"][0])], COMPUTE)
    assert run.steps[0] is None  # what a plain cycle costs has to be known
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
    assert budget.passes <= 3
    assert (budget.nodes, budget.depth) == (64, 3)
    free = controller.budget(TreeBudget(64, 3, 0), range(1))
    assert free is not None
    assert free.passes == 0


def test_drafters_are_told_what_time_costs() -> None:
    """As many tokens a second as are expected, by promises of which some are kept."""
    world, prior = REGIMES["flash-bound"]
    converse([(60, world)], controller := Adaptive(prior))
    budget = controller.budget(LIMIT, world.paid)
    assert budget is not None
    assert budget.price * controller.beliefs.gives.kept == pytest.approx(world.oracle()[0], rel=0.15)
    assert type(budget.price) is float, "it is sent to workers"


def test_a_sampled_tree_stays_whole() -> None:
    from edgespec.core.sampling import Distribution

    drafts = [Distribution(np.array([4, 5]), np.array([0.999, 0.001]))] * 3
    tree = TokenTree.chain([1, 5, 5, 5], np.log([1, 1e-3, 1e-3, 1e-3]), drafts)
    controller = Adaptive(COMPUTE)
    controller._rate = 20.0
    assert controller.prune(tree) is tree
    assert len(controller.prune(TokenTree.chain(tree.tokens, tree.logprobs))) == 1


def test_pruning_keeps_what_pays_and_stays_connected() -> None:
    world, prior = REGIMES["compute-bound"]
    controller = Adaptive(prior)
    rng = np.random.default_rng(0)
    for _ in range(200):
        budget = controller.budget(LIMIT, world.paid)
        tree = TokenTree.root(1) if budget is None else controller.prune(world.tree(budget.passes))
        tree.validate()
        seconds = float(compute_bound(np.array([len(tree)]))[0])
        steps = None if budget is None else budget.passes
        controller.record(Cycle(steps, tree, world.outcome(tree, rng), (steps or 0) * world.step, seconds))
    whole = world.tree(8)
    kept = controller.prune(whole)
    assert 1 < len(kept) < len(whole)
    assert kept.scores.min() >= np.sort(whole.scores)[-len(kept) - 3]


@pytest.mark.parametrize("steps", [0, 1])
def test_a_tree_is_cut_to_what_credit_bears(steps: int) -> None:
    """A drafter that was right in short drafts, and claims to be in a long one."""
    prior = CostModel(compute=0.1, step=0.05, by_rows=tuple(0.07 + 0.03 * np.array(MATMUL_ROWS)))
    controller, far = Adaptive(prior), TokenTree.chain(np.arange(50), np.append(0.0, np.full(49, -1e-3)))
    near = far.select(np.arange(2 + steps))
    for _ in range(20):
        outcome = Outcome(np.arange(len(near)), tuple(range(len(near))))
        controller.record(Cycle(steps, near, outcome, 0.05 * steps, 0.07 + 0.03 * len(near)))
        controller.record(Cycle(None, TokenTree.root(1), Outcome(np.arange(1), (1,)), 0.0, 0.1))
    for credit in (10.0, 4.0, 1.5):
        controller.credit = credit
        assert controller.budget(LIMIT, range(steps, steps + 1)) is not None
        kept = controller.prune(far)
        seconds = 0.05 * steps + controller.costs.passes(np.array([len(kept), len(kept) + 1]), False)
        lost, more = seconds * controller.plain_rate - 1
        assert 2 <= len(kept) < 50
        assert lost <= credit + 1 < more + 0.01


def test_what_is_prepared_is_cut_to_what_credit_bears_and_not_lost() -> None:
    prior = CostModel(compute=0.1, step=0.05, by_rows=tuple(0.07 + 0.03 * np.array(MATMUL_ROWS)))
    controller, far = Adaptive(prior), TokenTree.chain(np.arange(50), np.append(0.0, np.full(49, -1e-3)))
    for _ in range(20):
        controller.record(Cycle(0, far.select(np.arange(2)), Outcome(np.arange(2), (1, 2)), 0.0, 0.13))
        controller.record(Cycle(None, TokenTree.root(1), Outcome(np.arange(1), (1,)), 0.0, 0.1))
    for credit in (6.0, 2.5):
        controller.credit = credit
        budget, kept = controller.overlapped(LIMIT, range(1), far, 1)
        assert budget is not None
        lost = float(controller.costs.passes(len(kept), budget.ahead)) * controller.plain_rate - 1
        assert 2 <= len(kept) < 50
        assert credit - 1 < lost <= credit


def given_up(world: World | None, speedup: float, cycles: int, seed: int = 0) -> int | None:
    """The cycle after which a drafter's memory goes to pinned layers; `world` None drafts nothing useful."""
    controller, handover, rng = Adaptive(FLASH), HandOver(speedup), np.random.default_rng(seed)
    for cycle in range(cycles):
        budget = controller.budget(LIMIT, world.paid) if world else None
        tree = TokenTree.root(1)
        if world and budget is not None:
            tree = controller.prune(world.tree(budget.passes))
        outcome = world.outcome(tree, rng) if world else Outcome(np.array([0]), (1,))
        steps = None if budget is None else budget.passes
        seconds = float(flash_bound(np.array([len(tree)]))[0])
        controller.record(Cycle(steps, tree, outcome, (steps or 0) * 0.02, seconds))
        if handover.record(len(outcome.tokens), controller.took):
            return cycle + 1
    return None


def test_a_drafter_is_given_up_for_its_memory() -> None:
    """The sooner the more its memory is worth, not for hardly any gain, and not while it helps."""
    soon, later = given_up(None, 1.5, 300), given_up(None, 1.2, 300)
    assert soon is not None
    assert later is not None
    assert PATIENCE < soon < later < 100
    assert given_up(None, 1.01, 300) is None
    useful = REGIMES["flash-bound"][0]
    assert all(given_up(useful, 1.5, 300, seed) is None for seed in range(5))


def test_old_gains_do_not_pay_for_a_drafter_that_loses_now() -> None:
    handover = HandOver(1.5)
    assert not any(handover.record(6, 2.0) for _ in range(500))
    lost = [handover.record(1, 1.1) for _ in range(50)]
    assert lost.index(True) < 20


def test_fixed_is_fixed() -> None:
    fixed = Fixed(TreeBudget(9, 4, 3))
    assert fixed.budget(TreeBudget(64, 40, 0), range(1)) == TreeBudget(9, 4, 3)
    assert fixed.budget(TreeBudget(5, 2, 0), range(1)) == TreeBudget(5, 2, 3)


def test_a_curve_interpolates_and_extrapolates() -> None:
    curve = Curve(lambda x: 2.0 * x)
    assert curve.at(3.0) == 6.0
    curve.add(1, 5.0)
    assert curve.at(4.0) == 5.0 + 6.0  # the prior's shape behind the last point
    for took, waited in ((2.5, 0.0), (3.5, 0.5), (50.0, 1.0)):  # 2 of it known, and 1 beside that
        waiting = Curve(lambda x: 2.0 * x, beside=1.0)
        waiting.add(1, took)
        assert waiting.at(4.0) == pytest.approx(took + 6.0 - waited)
    for _ in range(200):
        curve.add(9, 13.0)
    assert curve.at(np.array([1, 5, 9])) == pytest.approx([5.0, 9.0, 13.0], rel=0.01)
    for _ in range(200):
        curve.add(19, 18.0)
    assert curve.at(29.0) == pytest.approx(23.0, rel=0.01)  # the line so far is flatter
    curve.add(40, 5.0)
    assert np.diff(curve.at(np.arange(1, 65))).min() >= 0  # more never costs less


def test_counts_below_the_first_point_that_are_timed_with_it_cost_less() -> None:
    """A batch gets smaller: what 57 rows take is not what 64 did. Of much fewer nothing is known."""
    curve = Curve(lambda counts: 0 * counts)
    for count in (64, 64, 66, 90, 128):
        curve.add(count, 0.003 + 0.0003 * count)
    for count in (57, 64):
        assert float(curve.at(count)) == pytest.approx(0.003 + 0.0003 * count, rel=0.03)
    assert 0.9 * float(curve.at(50)) < float(curve.at(20)) == float(curve.at(1)) <= float(curve.at(50))
    flat = Curve(lambda counts: 0 * counts)
    for count in (64, 90):
        flat.add(count, 0.1)
    assert float(flat.at(57)) == float(flat.at(1)) == 0.1


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
    assert 2 < curve.at(40.0) < 3, "one timing so far off may be a pause"
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


def test_one_timing_does_not_end_what_another_process_found() -> None:
    """The first draft of a process reads cold memory. A second such timing is another machine."""
    taught, curve = Curve(np.ones_like), Curve(np.ones_like)
    for count, seconds in ((1, 3.0), (8, 5.0), (32, 9.0)):
        taught.add(count, seconds)
    curve.recall(taught.notes())
    wanted = np.array([1, 8, 32])
    known = curve.at(wanted)
    curve.add(8, 25.0)
    assert np.array_equal(curve.at(wanted), known)
    curve.add(1, 3.1)
    assert curve.at(32.0) == pytest.approx(known[2], rel=0.05)
    curve.add(8, 26.0)
    assert curve.at(8.0) > 5
    assert curve.at(32.0) == curve.at(8.0), "what the other process found of 32 is gone"


def test_a_machine_that_is_slower_throughout_is_noticed() -> None:
    taught, curve = Curve(np.ones_like), Curve(np.ones_like)
    taught.add(1, 3.0)
    curve.recall(taught.notes())
    for _ in range(2):
        curve.add(1, 9.0)
    assert curve.at(1.0) > 8


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


def test_a_depth_that_was_never_reached_is_believed_like_the_one_before() -> None:
    chances = Chances()
    short, long = TokenTree.chain([1, 2], np.log([1, 0.3])), TokenTree.chain([1] * 7, np.log([1] + [0.3] * 6))
    for _ in range(100):
        chances.fade()
        chances.add(short, np.array([0, 1]))  # claims 0.3, and is always right
    assert np.exp(chances.scores(long))[-1] > 0.5


def test_what_steps_give_is_expected_then_corrected() -> None:
    gives, tree = Yield(), TokenTree.chain([1] * 5, np.log([1, 0.5, 0.5, 0.5, 0.5]))
    by_depth = np.full(33, 0.5)
    for cycle in range(300):  # the tree promises 0.94 tokens and gives twice that
        gives.fade()
        gives.add(4, tree, tree.scores, accepted=2 * (cycle % 16 != 0))
    tokens, nodes = gives.expect(by_depth)
    place = {int(steps): i for i, steps in enumerate(STEPS)}
    assert tokens[place[4]] == pytest.approx(1 + 2 * 15 / 16, rel=0.1)
    assert tokens[place[2]] == pytest.approx(1 + 2 * 0.75, rel=0.1)  # known from the deeper trees
    assert tokens[place[5]] == pytest.approx(1 + 2 * 31 / 32, rel=0.1)  # half of the depth before
    assert nodes[place[4]] == pytest.approx(5, abs=0.5)
    assert np.diff(tokens[1:]).min() > 0


def test_chains_are_weighed_by_their_likeliest_children() -> None:
    """A node for each step, one of none; of what is accepted, what the likeliest child has of it."""
    chances, gives = Chances(), Yield()
    assert (chances.along[1:] < chances.by_depth[1:]).all(), "others are accepted, too"
    tokens, nodes = gives.chains(np.array([1.0, 0.8, 0.5] + [0.1] * (len(chances.by_depth) - 3)))
    gained = (tokens - 1) / gives.kept
    assert nodes[:4].tolist() == [2, 2, 3, 4]
    assert gained[:4].tolist() == pytest.approx([0.8, 0.8, 0.8 + 0.4, 0.8 + 0.4 + 0.04])
    tree = REGIMES["flash-bound"][0].tree(6)
    first = [0]
    while ranked := [c for c in tree.children(first[-1]).tolist() if ranks(tree)[c] == 0]:
        first.append(ranked[0])
    before = float((chances.along / chances.by_depth)[1])
    for _ in range(20):
        chances.add(tree, np.array(first))
    assert before < 0.9 < 0.95 < float((chances.along / chances.by_depth)[1]), "no other one was right"


def test_ranks() -> None:
    tree = TokenTree(np.arange(6), np.array([-1, 0, 0, 1, 1, 1]), np.log([1.0, 0.2, 0.5, 0.1, 0.3, 0.2]))
    assert ranks(tree).tolist() == [0, 1, 0, 2, 0, 1]
