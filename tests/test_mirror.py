"""The mirror schedule: what the target's early exit says is drafted for; same text, reuse, errors."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import replace
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
from numpy.typing import NDArray

from edgespec.config import EngineOptions, GenerationOptions
from edgespec.control.controller import Adaptive
from edgespec.control.early_exit import OverlapBudget, Trust
from edgespec.control.fixed import Fixed
from edgespec.core.acceptance import Logits
from edgespec.core.schedule import Context, Controller, TreeBudget
from edgespec.core.trace import Cycle, Exited, Law
from edgespec.core.tree import TokenTree
from edgespec.drafters import breadth
from edgespec.drafters.base import Drafter
from edgespec.errors import Cancelled, ModelError, OptionError
from edgespec.runtimes.base import EXIT_ROWS
from edgespec.schedules.mirror import Mirror, Passing
from tests import table_runtime
from tests.covering import covering
from tests.table_runtime import GREEDY, HOT, PROMPT, TABLE, VOCABULARY, plain
from tests.test_ssd import BUDGET, drafter_of, model_of

LAYERS, COUNT = 6, 60


class TableExit:
    """See `runtimes.target.EarlyExit`: what the target will say, with noise by layer; in two parts."""

    def __init__(self, layers: int = 3, noise: float = 0.5, able: bool = True) -> None:
        self.layers, self.noise, self.able = layers, noise, able
        self.coming: Logits = np.zeros((0, VOCABULARY), np.float32)  # of the pass under way
        self.asked: list[list[int]] = []
        self.fails: tuple[str, BaseException] | None = None
        self.left = 0
        self.paths: list[list[int]] = []

    def observe(self, hidden: Any, rows: Any) -> None:
        self._fail("observe")
        assert not rows.prefill
        assert hidden == self.layers - 1, "at its layer, and nowhere else"

    def begin(self, nodes: Sequence[int]) -> TableExit:
        self._fail("begin")
        self.asked.append(list(nodes))
        self.left = 2
        return self

    def advance(self) -> bool:
        self._fail("advance")
        self.left -= 1
        return self.left == 0

    @property
    def logits(self) -> NDArray[np.float32]:
        assert self.left == 0
        rng = np.random.default_rng(int(self.coming.sum() * 1000) % 2**32)
        rows = self.coming[self.asked[-1]]
        found: Logits = (rows + self.noise * rng.standard_normal(rows.shape)).astype(np.float32)
        return found

    def commit(self, path: Sequence[int]) -> None:
        self._fail("commit")
        self.paths.append(list(path))

    def _fail(self, where: str) -> None:
        if self.fails is not None and self.fails[0] == where:
            raise self.fails[1]


def mirror(drafter: Drafter, exit: TableExit, controller: Controller | None = None, **options: Any) -> Mirror:
    return Mirror(drafter, controller or Fixed(BUDGET), 64, exit, **options)


def reply(
    schedule: Mirror,
    waits: Callable[[], int],
    options: GenerationOptions = GREEDY,
    acceptance: str | None = None,
    count: int = COUNT,
) -> tuple[list[int], list[Cycle]]:
    """So many waits a layer, or fewer when nothing is to do."""
    exit = schedule.exit
    assert isinstance(exit, TableExit)

    def verify(tree: TokenTree, logits: Logits) -> float:
        exit.coming = logits
        for layer in range(LAYERS):
            for _ in range(waits()):
                if not schedule.on_wait():
                    break
            rows: Any = SimpleNamespace(prefill=False, n=len(tree))
            schedule.on_layer(layer, layer, rows)  # type: ignore[arg-type]
        return 1.0

    return table_runtime.reply(schedule, verify, options, acceptance, count)


def said_in(cycles: Sequence[Cycle]) -> list[Exited]:
    return [c.overlap.exited for c in cycles if c.overlap is not None and c.overlap.exited is not None]


def misses(cycles: Sequence[Cycle]) -> int:
    return sum(cycle.overlap.hit is False for cycle in cycles if cycle.overlap)


@pytest.mark.parametrize(
    ("options", "name", "noise"),
    covering({"greedy": GREEDY, "hot": HOT}, ("ngram", "model", "ngram+model"), (0.0, 5.0)),
)
def test_the_text_is_the_targets_own_whatever_the_exit_says(
    options: GenerationOptions, name: str, noise: float
) -> None:
    expected, rng = plain(options, COUNT), np.random.default_rng(5)
    amounts = [lambda n=n: n for n in (0, 1, 2, 3, 200)]  # type: ignore[misc]
    amounts.append(lambda: int(rng.integers(0, 12) * rng.integers(0, 2)))
    for waits in amounts:
        for controller in (Fixed(BUDGET), Adaptive()):
            schedule = mirror(drafter_of(name), TableExit(noise=noise), controller)
            assert reply(schedule, waits, options)[0] == expected
    schedule = mirror(drafter_of(name), TableExit(noise=noise))
    spoke = said_in(reply(schedule, lambda: 9, options)[1])
    assert bool(spoke) == (name != "ngram"), "n-grams prepare nothing: nobody is to be told"


def test_what_the_exit_names_is_prepared_for_and_reused() -> None:
    """The drafter has no idea; the exit knows. Each outcome that it names is a hit, and nothing that was
    drafted below it is drafted again."""
    drafter, runtime = model_of(noise=50.0)
    schedule = mirror(drafter, TableExit(noise=0.0), kappa=2)
    said, cycles = reply(schedule, lambda: 60)
    assert said == plain(GREEDY, COUNT)
    exited = said_in(cycles)
    assert len(exited) == len(cycles)
    assert schedule.exit.paths == [c.outcome.path.tolist() for c in cycles]  # type: ignore[attr-defined]
    assert all(e.found == e.tokens > 0 for e in exited)
    assert misses(cycles[:-1]) == 0, "what follows the last token is drafted for no more"
    assert sum(cycle.overlap.hit is True for cycle in cycles if cycle.overlap) > 30
    assert len(runtime.done) == len(set(runtime.done))
    without = reply(mirror(model_of(noise=50.0)[0], TableExit(able=False)), lambda: 60)[1]
    assert misses(without) > 10
    assert not said_in(without)


def test_what_will_be_drawn_is_named_where_it_is_known_with_which_number() -> None:
    """Under `sample`: by the number of each token's own position."""
    _, cycles = reply(mirror(model_of()[0], TableExit(noise=0.0), kappa=1), lambda: 60, HOT)
    exited = said_in(cycles)
    assert sum(e.found for e in exited) > 0.75 * sum(e.tokens for e in exited)


@pytest.mark.parametrize("options", [GREEDY, HOT, replace(HOT, seed=7)])
def test_more_names_mean_no_more_fallbacks(
    options: GenerationOptions, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(breadth, "WIDTHS", (8,))  # from the first pass on
    found = []
    for kappa in (1, 2, 4, 8, VOCABULARY):
        schedule = mirror(model_of(noise=50.0)[0], TableExit(noise=2.5), kappa=kappa)
        found.append(misses(reply(schedule, lambda: 200, options)[1]))
    assert found == sorted(found, reverse=True)
    assert found[0] > found[-1]


def test_an_exit_that_errs_is_found_out() -> None:
    """What counts is what came: the drafter's own guesses are not displaced for long."""
    wrong = mirror(model_of()[0], TableExit(noise=100.0))
    right = mirror(model_of(noise=50.0)[0], TableExit(noise=0.0))
    cycles = reply(wrong, lambda: 6, count=150)[1]
    reply(right, lambda: 6, count=150)
    assert wrong.trust.share < 0.3
    assert right.trust.share > 0.7
    alone = reply(mirror(model_of()[0], TableExit(able=False)), lambda: 6, count=150)[1]
    assert misses(cycles) <= misses(alone) + 5


def test_trust_is_the_weight_of_a_mixture() -> None:
    """Expectation maximisation: of tokens that the exit gave 0.9 and the drafter 0.1, it is nearly all the
    exit's word; where both say the same nothing is learned; 0 and 0 says nothing."""
    for told, drafted, low, high in ((0.9, 0.1, 0.9, 1.0), (0.1, 0.9, 0.0, 0.1), (0.3, 0.3, 0.49, 0.51)):
        trust = Trust()
        assert trust.share == 0.5
        for _ in range(200):
            trust.learn(told, drafted)
        assert low <= trust.share <= high
        share = trust.share
        trust.learn(0.0, 0.0)
        assert trust.share == share


@pytest.mark.parametrize("where", ["observe", "begin", "advance", "commit"])
@pytest.mark.parametrize("name", ["model", "ngram+model"])
@pytest.mark.parametrize("error", [ValueError("a bug"), ModelError("NaN"), MemoryError()])
def test_an_error_in_the_exit_ends_the_drafting_and_not_the_pass(
    where: str, name: str, error: Exception
) -> None:
    exit = TableExit()
    schedule = mirror(drafter_of(name), exit)
    passes = 0

    def waits() -> int:
        nonlocal passes
        passes += 1
        if passes == 4 * LAYERS:
            exit.fails = where, error
        return 5

    said, cycles = reply(schedule, waits)
    assert said == plain(GREEDY, COUNT)
    assert said_in(cycles[:3])
    assert not said_in(cycles[-5:])
    assert not schedule.drafter.resident
    assert schedule.damaged == isinstance(error, ModelError)
    assert schedule.damaged or type(error).__name__ in str(schedule.undrafted)
    assert (sum(c.outcome.drafted for c in cycles[-5:]) > 0) == (name == "ngram+model")


def test_cancelling_passes_through_the_exit() -> None:
    exit = TableExit()
    schedule = mirror(model_of()[0], exit)
    for error in (Cancelled("enough"), KeyboardInterrupt()):
        exit.fails = "advance", error
        with pytest.raises(type(error)):
            reply(schedule, lambda: 5)
        assert not schedule.damaged
        assert schedule.undrafted is None
    exit.fails = None
    assert reply(schedule, lambda: 5)[0] == plain(GREEDY, COUNT)


def test_damaged_states_name_nothing() -> None:
    """The pass itself will say that they are."""
    exit = TableExit(noise=float("nan"))
    said, cycles = reply(mirror(model_of()[0], exit), lambda: 9)
    assert said == plain(GREEDY, COUNT)
    assert sum(e.tokens for e in said_in(cycles)) > 0 == sum(e.found for e in said_in(cycles))


def test_a_head_that_streams_leaves_the_drafter_alone_and_says_so() -> None:
    exit = TableExit(able=False)
    schedule = mirror(model_of()[0], exit)
    said, cycles = reply(schedule, lambda: 9)
    assert said == plain(GREEDY, COUNT)
    assert not exit.asked
    assert sum(c.overlap.nodes for c in cycles if c.overlap) > 100, "all the room is the drafter's"
    assert "the LM head is read from flash" in str(schedule.undrafted)
    assert mirror(model_of()[0], TableExit()).undrafted is None
    assert mirror(drafter_of("ngram"), exit).undrafted is None, "it makes no difference"


def test_a_head_that_has_left_by_the_pass_is_not_asked() -> None:
    """Since the exit was to speak: and no worse comes of it. When it is there again, it speaks again."""
    exit, layers = TableExit(), 0
    schedule = mirror(model_of()[0], exit)

    def waits() -> int:
        nonlocal layers
        cycle, layer = divmod(layers, LAYERS)
        layers += 1
        exit.able = cycle != 4 or layer == LAYERS - 1
        exit.fails = None if exit.able else ("begin", AssertionError())
        return 5

    said, cycles = reply(schedule, waits)
    assert said == plain(GREEDY, COUNT)
    spoke = [cycle.overlap is not None and cycle.overlap.exited is not None for cycle in cycles]
    assert [at for at, spoken in enumerate(spoke) if not spoken] == [4]
    assert schedule.undrafted is None
    assert schedule.drafter.resident


def test_room_is_left_for_what_the_exit_will_say() -> None:
    """Half of it, however much time there is before: and all of it afterwards."""
    drafter, runtime = model_of(noise=0.5)
    exit = TableExit()
    schedule = mirror(drafter, exit)
    schedule.begin(Context(PROMPT), 200)
    tree = schedule.next_tree(2)
    used = len(runtime.slots)
    while schedule.on_wait():
        pass
    assert len(runtime.slots) == used + (runtime.rows - used + 1) // 2
    before = [PROMPT[-1] if parent < 0 else tree.tokens[parent] for parent in tree.parents]
    exit.coming = TABLE[before, tree.tokens]
    rows: Any = SimpleNamespace(prefill=False, n=len(tree))
    for layer in range(exit.layers):
        schedule.on_layer(layer, layer, rows)  # type: ignore[arg-type]
    assert schedule.on_wait(), "what had nothing left to do goes on"
    while schedule.on_wait():
        pass
    assert len(runtime.slots) == runtime.rows
    assert len(exit.asked[0]) == min(len(tree), EXIT_ROWS)
    named = {
        (2, *tree.tokens[tree.path_to(node)][1:].tolist(), token)
        for node, tokens in (schedule._passing.said or {}).items()
        for token, logprob in tokens.items()
        if tree.depths[node] < 3 and logprob > -1
    }
    ran = {text[len(PROMPT) :] for text in runtime.done}
    assert named <= ran
    assert len(named) > 3


def test_what_is_told_of_a_cycle() -> None:
    """By a clock of its own: the first layer counts as the mean of the others."""
    seconds = iter(np.arange(0, 1e6).tolist())
    clock = lambda: next(seconds)  # noqa: E731
    schedule = mirror(model_of()[0], TableExit(noise=1.0), Known(BUDGET, 6.0), kappa=3, clock=clock)
    _, cycles = reply(schedule, lambda: 30)
    exited = said_in(cycles)
    assert {(e.layers, e.kappa) for e in exited} == {(3, 3)}
    assert all(0 <= e.found <= e.tokens for e in exited)
    assert sum(e.tokens for e in exited) >= 0.8 * sum(len(c.outcome.tokens) for c in cycles)
    assert all(e.law is not None and e.law.predicted > 0 and e.law.took > 0 for e in exited)


class Known(Fixed):
    """Knows what passes take by themselves."""

    def __init__(self, budget: TreeBudget, seconds: float) -> None:
        super().__init__(budget)
        self.seconds = seconds

    def alone(self, nodes: int) -> float:
        return self.seconds


class Streaming:
    """A target that reads a layer a second and computes it in a fifth, and one thread for all: in simulated
    seconds. `overlaps`: flash goes on while something is done in a wait. `step`, `part`: of drafting, and of
    asking the exit."""

    alone = LAYERS + 0.2

    def __init__(self, step: float, part: float, overlaps: bool = True) -> None:
        self.now, self.overlaps, self.worked = 0.0, overlaps, list[float]()
        drafter, runtime = model_of(noise=0.5)
        exit = TableExit()
        self._timed(runtime, "begin", step)
        self._timed(exit, "begin", part)
        known = Known(BUDGET, self.alone)
        self.schedule = mirror(drafter, exit, known, clock=lambda: self.now)

    def _timed(self, owner: Any, name: str, seconds: float) -> None:
        begin = getattr(owner, name)

        def timed(*arguments: Any) -> Any:
            begun = begin(*arguments)
            advance = type(begun).advance

            def advanced() -> bool:
                self.now += seconds
                return advance(begun)

            begun.advance = advanced
            return begun

        setattr(owner, name, timed)

    def verify(self, tree: TokenTree, logits: Logits) -> float:
        exit, began, there = self.schedule.exit, self.now, self.now
        assert isinstance(exit, TableExit)
        exit.coming = logits
        self.worked.append(0.0)
        for layer in range(LAYERS):
            there += 1.0
            while self.now < there:
                before = self.now
                if not self.schedule.on_wait():
                    self.now = there
                    continue
                self.worked[-1] += self.now - before
                there += 0.0 if self.overlaps else self.now - before
            self.now += 0.2
            rows: Any = SimpleNamespace(prefill=False, n=len(tree))
            self.schedule.on_layer(layer, layer, rows)  # type: ignore[arg-type]
        return self.now - began

    def cycles(self) -> list[tuple[Law, Cycle]]:
        _, cycles = table_runtime.reply(self.schedule, self.verify, count=COUNT)
        return [
            (c.overlap.exited.law, c)
            for c in cycles
            if c.overlap and c.overlap.exited and c.overlap.exited.law
        ]


@pytest.mark.parametrize(("step", "part"), [(0.05, 0.05), (0.3, 0.05), (0.05, 0.3)])
def test_the_latency_law_says_what_cycles_take(step: float, part: float) -> None:
    """Two clocks that know nothing of one another: what a machine does, and the law by what was measured. A
    law that put the drafting, or the exit, behind the pass, or forgot what is drafted after a miss, would be
    off by more."""
    machine = Streaming(step, part)
    found = machine.cycles()
    assert len(found) > 10
    late = 0
    for law, cycle in found:
        assert law.before + law.behind == pytest.approx(machine.alone)
        assert law.took == pytest.approx(cycle.draft_seconds + cycle.verify_seconds)
        assert law.predicted == pytest.approx(law.late + machine.alone)
        assert abs(law.took - law.predicted) <= max(step, part) + 1e-9  # the last wait's
        late += law.late > step
    assert 0 < late < len(found)
    assert sum(law.early + law.draft for law, _ in found) / len(found) > 2 * max(step, part)


def test_a_pass_that_waits_for_drafting_is_not_what_the_law_says() -> None:
    """Where flash rests meanwhile, or the same device computes, nothing is hidden: that shows."""
    machine = Streaming(0.1, 0.1, overlaps=False)
    found = machine.cycles()
    assert len(found) == len(machine.worked) > 10
    for (law, _), worked in zip(found, machine.worked, strict=True):
        assert law.took - law.predicted == pytest.approx(worked, abs=0.1)
        assert worked >= law.early + law.draft - 1e-9 > 0
    assert sum(machine.worked) / len(found) > 1.0, "it would be nothing to speak of"


def test_each_term_of_the_law_is_measured_apart() -> None:
    """What is hidden moves nothing; the rest, by as much as it is."""

    def law(layers: int = 3, early: float = 0.5, draft: float = 1.0, **named: float) -> Law:
        passing = Passing()
        passing.layers, passing.early, passing.draft = [1.0, 2.0, 3.0, 4.0, 5.0, 6.0], early, draft
        return passing.law(layers, **{"seconds": 8.0, "alone": 8.0, "late": 0.0, "final": 0.0, **named})

    assert (law().before, law().behind, law().predicted) == (3.0, 5.0, 8.0)
    assert law(late=0.7).predicted == pytest.approx(8.7)
    assert law(final=0.2).predicted == pytest.approx(8.2)
    assert law(alone=9.6).predicted == pytest.approx(9.6)  # before and behind
    assert law(draft=4.5).predicted == 8.0  # up to what comes behind the exit
    assert law(draft=6.0).predicted == pytest.approx(9.5)
    assert law(early=5.5).predicted == pytest.approx(9.5)
    assert law(draft=6.0, layers=4).predicted == pytest.approx(10.5)  # before
    assert law(draft=6.0, alone=9.6).predicted == pytest.approx(3.6 + 6.5)
    for slower in (8.0, 9.0, 12.0):  # the pass itself is no term
        assert law(seconds=slower).predicted == 8.0
        assert law(seconds=slower).took == slower


def test_without_a_pass_by_itself_there_is_no_law() -> None:
    assert all(e.law is None for e in said_in(reply(mirror(model_of()[0], TableExit()), lambda: 30)[1]))
    adaptive = Adaptive()
    assert adaptive.alone(9) is None
    adaptive.costs.add(1, 2.0, None, 0.0)
    adaptive.costs.add(1, 5.0, 3, 1.0, overlapped=True)
    assert adaptive.alone(1) == pytest.approx(2.0)


def test_the_exit_moves_to_where_drafting_is_just_hidden() -> None:
    budget = OverlapBudget(4)
    assert budget.layers(10) is None, "nobody knows"
    budget.add([1.0, 1.0, 1.0, 1.0], nodes=20, draft=2.0)
    assert [budget.layers(n) for n in (5, 10, 11, 20, 21, 30, 100)] == [3, 3, 2, 2, 1, 1, 1]
    for _ in range(500):
        budget.add([1.0, 1.0, 2.0, 2.0], nodes=20, draft=2.0)
    assert [budget.layers(n) for n in (19, 21, 39, 41)] == [3, 2, 2, 1]
    seconds = iter(np.arange(0, 1e6).tolist())
    schedule = mirror(model_of()[0], TableExit(layers=2), moves=LAYERS, clock=lambda: next(seconds))
    said, cycles = reply(schedule, lambda: 12)
    assert said == plain(GREEDY, COUNT)
    assert len({e.layers for e in said_in(cycles)}) > 1
    assert all(1 <= e.layers < LAYERS for e in said_in(cycles))


def test_the_exit_has_no_say_in_drawn_chains() -> None:
    exit = TableExit()
    _, cycles = reply(mirror(model_of()[0], exit), lambda: 30, HOT, "ratio")
    assert not exit.asked
    assert sum(c.outcome.accepted for c in cycles) > 0


def test_options_that_cannot_be_are_refused() -> None:
    for wrong, words in (
        ({"kappa": 0}, "kappa is 0; it must be from 1 to 256"),
        ({"kappa": 257}, "kappa is 257; it must be from 1 to 256"),
        ({"exit_layer": -1}, "exit_layer is -1; it must be at least 0"),
        ({"exit_layer": 1.5}, "exit_layer is 1.5; it must be a whole number"),
    ):
        with pytest.raises(OptionError, match=words):
            EngineOptions(**wrong)  # type: ignore[arg-type]
