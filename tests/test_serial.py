"""The serial schedule: what it asks of drafter and controller, and what goes with what by name."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any, cast

import numpy as np
import pytest

import edgespec
from edgespec.config import EngineOptions, GenerationOptions
from edgespec.control.controller import ALLOWANCE, Adaptive
from edgespec.control.costs import Costs
from edgespec.control.fixed import Fixed
from edgespec.control.handover import speedup, without_drafter
from edgespec.control.partner import Partner
from edgespec.control.shares import Shares
from edgespec.core.acceptance import Outcome, make_acceptance
from edgespec.core.sampling import FloatArray
from edgespec.core.schedule import UNDRAFTED, Context, Offer, TreeBudget
from edgespec.core.trace import Cycle
from edgespec.core.tree import TokenTree
from edgespec.drafters.base import Root
from edgespec.drafters.choice import check_acceptance, choose_drafters
from edgespec.drafters.combined import Combined
from edgespec.drafters.model import ModelDrafter
from edgespec.drafters.ngram import NGram
from edgespec.errors import BudgetError, Cancelled, ModelError, OptionError, TokenizerError
from edgespec.offload.plan.costs import CostModel
from edgespec.schedules.kinds import check_schedule
from edgespec.schedules.serial import Plain, Serial
from tests.test_session import prompt_of, write_model


class Recorder:
    """A drafter that drafts a chain of the root's successors, and notes what it was told."""

    resident = True
    passes = range(1, 9)

    def __init__(self) -> None:
        self.calls: list[object] = []
        self.fails = False

    def prefill(self, context: Context) -> None:
        self.calls.append(("prefill", list(context.tokens)))

    def start(self, roots: Sequence[Root], budget: TreeBudget) -> Recorder:
        self.calls.append(("start", roots[0].path, budget))
        self.chain = [roots[0].token]
        self.left = min(budget.passes, budget.depth)
        return self

    def step(self) -> bool:
        if self.fails:
            raise KeyboardInterrupt
        self.left -= 1
        if self.left >= 0:
            self.chain.append(self.chain[-1] + 1)
        return self.left >= 0

    def tree(self, root: int = 0) -> TokenTree:
        return TokenTree.chain(self.chain)

    def cancel(self) -> None:
        self.calls.append("cancel")

    def commit(self, root: int, outcome: Outcome) -> None:
        self.calls.append(("commit", root, outcome.tokens))


class Notes(Fixed):
    """A controller that keeps what it is told."""

    def __init__(self, budget: TreeBudget) -> None:
        super().__init__(budget)
        self.cycles: list[Cycle] = []

    def record(self, cycle: Cycle) -> None:
        self.cycles.append(cycle)


def test_a_cycle() -> None:
    drafter, controller = Recorder(), Notes(TreeBudget(6, 9, 3))
    times = iter([10.0, 12.0])
    schedule = Serial(drafter, controller, 64, clock=lambda: next(times))
    schedule.begin(Context([1, 2, 3]), 100)
    tree = schedule.next_tree(50)
    assert tree.tokens.tolist() == [50, 51, 52, 53]
    outcome = Outcome(np.array([0, 1]), (51, 99), 3, seconds=5.0)
    schedule.settle(outcome)
    assert drafter.calls == [
        ("prefill", [1, 2, 3]),
        ("start", (50,), TreeBudget(6, 9, 3)),
        ("commit", 50, (51, 99)),
    ]
    (cycle,) = controller.cycles
    assert (cycle.passes, cycle.draft_seconds, cycle.verify_seconds) == (3, 2.0, 5.0)
    assert cycle.tree is tree
    assert cycle.outcome is outcome


def test_the_rest_of_the_reply_bounds_the_depth() -> None:
    drafter = Recorder()
    schedule = Serial(drafter, Fixed(TreeBudget(64, 40, 40)), 64)
    schedule.begin(Context([1]), 8)  # the first token comes from the prompt's pass: 7 are left
    assert len(schedule.next_tree(50)) == 7  # 6 drafted tokens and the bonus
    schedule.settle(Outcome(np.arange(4), (51, 52, 53, 9)))
    assert len(schedule.next_tree(9)) == 3
    schedule.settle(Outcome(np.arange(2), (10, 4)))
    assert len(schedule.next_tree(4)) == 1


def test_an_interrupted_draft_is_cancelled() -> None:
    drafter = Recorder()
    schedule = Serial(drafter, Fixed(TreeBudget(6, 3, 3)), 64)
    schedule.begin(Context([1]), 50)
    drafter.fails = True
    with pytest.raises(KeyboardInterrupt):
        schedule.next_tree(5)
    assert drafter.calls[-1] == "cancel"


def test_a_plain_cycle_asks_no_drafter() -> None:
    drafter = Recorder()
    schedule = Serial(drafter, Adaptive(), 64)
    schedule.begin(Context([1]), 50)
    assert len(schedule.next_tree(5)) == 1  # the first cycles measure plain decoding
    schedule.settle(Outcome(np.array([0]), (6,)))
    assert drafter.calls[1:] == [("commit", 5, (6,))]


def test_while_the_controller_pauses_it_is_neither_asked_nor_told() -> None:
    class Paused(Notes):
        left = 0
        took = speedup = 1.5

        @property
        def pauses(self) -> bool:
            return self.left > 0

        def rested(self) -> None:
            self.left -= 1

        def budget(self, limit: TreeBudget, passes: range) -> TreeBudget | None:
            assert not self.left
            return super().budget(limit, passes)

        def gains(self, tree: TokenTree) -> FloatArray | None:
            return np.ones(len(tree))

    drafter, controller = Recorder(), Paused(TreeBudget(6, 9, 3))
    schedule = Serial(drafter, controller, 64)
    schedule.begin(Context([1]), 50)
    controller.left, cycles, offered = 3, list[Cycle](), list[Offer | None]()
    for root in range(4):
        schedule.next_tree(root)
        offered.append(schedule.offer)
        cycles.append(schedule.settle(Outcome(np.array([0]), (root + 1,), seconds=2.0)))
    assert [cycle.passes for cycle in cycles] == [None, None, None, 3]
    assert [len(cycle.tree) for cycle in cycles] == [1, 1, 1, 4]
    assert [(cycle.took, cycle.predicted, cycle.verify_seconds) for cycle in cycles] == [(1.5, 1.5, 2.0)] * 4
    assert [offer is UNDRAFTED for offer in offered] == [True, True, True, False]
    assert len(controller.cycles) == 1
    assert [call[1:] for call in drafter.calls if call[0] == "commit"] == [(n, (n + 1,)) for n in range(4)]  # type: ignore[index]
    assert schedule.left == 45


class Listener(Recorder):
    """One that reads the target's states."""

    forgoes = True
    hears = frozenset([1])

    def on_layer(self, index: int, hidden: object, rows: object) -> None:
        self.calls.append(("heard", index))


def test_a_model_that_missed_the_latest_pass_hears_one_before_it_drafts() -> None:
    class Sudden(Notes):
        """Rests, and then would draft without having said so."""

        rests = True

    drafter, controller, heard = Listener(), Sudden(TreeBudget(6, 9, 3)), list[bool]()
    schedule = Serial(drafter, controller, 64)
    schedule.begin(Context([1]), 50)
    for cycle, length in enumerate([4, 1, 4]):
        assert len(schedule.next_tree(cycle)) == length, "of the prompt nothing was missed"
        heard.append(bool(schedule.hears))
        schedule.settle(Outcome(np.array([0]), (cycle + 1,)))
        controller.rests = False
    assert heard == [False, True, True]
    assert [cycle.passes for cycle in controller.cycles] == [3, None, 3]
    schedule.next_tree(3)
    schedule._deaf = True
    schedule.settle(Outcome(np.array([0]), (4,)))
    schedule.begin(Context([1]), 50)
    assert len(schedule.next_tree(5)) == 4, "nor of the next prompt"


@pytest.mark.parametrize("error", [ValueError("a bug"), ModelError("NaN"), MemoryError(), Cancelled("stop")])
def test_an_error_in_what_it_hears_ends_the_drafting_and_not_the_pass(error: Exception) -> None:
    class Failing(Listener):
        def on_layer(self, index: int, hidden: object, rows: object) -> None:
            raise error

    schedule, nothing = Serial(Failing(), Notes(TreeBudget(6, 9, 3)), 64), cast(Any, None)
    schedule.begin(Context([1]), 50)
    assert len(schedule.next_tree(1)) == 4
    if isinstance(error, Cancelled):
        with pytest.raises(Cancelled):
            schedule.on_layer(1, nothing, nothing)
        assert schedule.drafter.resident
        return
    schedule.on_layer(1, nothing, nothing)
    schedule.settle(Outcome(np.array([0]), (2,)))
    assert len(schedule.next_tree(2)) == 1
    assert not schedule.hears
    assert schedule.damaged == isinstance(error, ModelError)
    assert schedule.damaged or type(error).__name__ in str(schedule.undrafted)


def test_without_a_pass_what_was_missed_is_no_matter() -> None:
    drafter, controller = Listener(), Notes(TreeBudget(6, 9, 0))
    schedule = Serial(drafter, controller, 64)
    schedule.begin(Context([1]), 50)
    for cycle in range(2):
        schedule.next_tree(cycle)
        assert schedule.passes == 0
        schedule._deaf = True
        schedule.settle(Outcome(np.array([0]), (cycle + 1,)))


def test_where_drafts_are_refused_again_and_again_no_pass_is_heard() -> None:
    """Sixteen share passes that are bound by arithmetic: what drafters read of a pass costs all of them."""
    shares = Shares(Costs(CostModel()))
    for rows in [16] * 9 + [17, 20, 32] * 3:
        shares.costs.add_pass(rows, 1e-4 * rows)
    shares.cohort.add(1, 1e-2)
    shares.cohort.add(4, 4e-2)
    members = [Serial(Listener(), Partner(shares), 64) for _ in range(16)]
    for member in members:
        member.begin(Context([1]), 1000)
    shares.trees, heard, weighed = 16, 0, 0
    for _ in range(400):
        trees = [member.next_tree(1) for member in members]
        heard += sum(bool(member.hears) for member in members)
        weighed += sum(not member._idle for member in members)
        offers = [offer for member in members if (offer := member.offer) is not None]
        shares.allot(offers, [64] * 16, 0, 64)
        rows = sum(map(len, trees))
        shares.record(offers, rows, 16, 1e-4 * rows, False)
        for member in members:
            member.settle(Outcome(np.array([0]), (1,), 0, 1e-4 * rows, rows - 1))
    assert weighed >= 16 * 5
    assert weighed <= 16 * 12, "at 0.1 ms each, that is some 2 % of these passes' time"
    assert heard == 0


@pytest.mark.parametrize("drafter", [Recorder(), Listener()], ids=["follows tokens", "reads states"])
def test_in_a_long_pause_the_drafter_is_left_alone(drafter: Recorder) -> None:
    """And told of all of it, in order, when it is asked again or the reply is over."""

    class Paused(Notes):
        left, rests = 0, True

        @property
        def pauses(self) -> bool:
            return self.left > 0

        def rested(self) -> None:
            self.left -= 1

    controller = Paused(TreeBudget(6, 9, 0))
    schedule = Serial(drafter, controller, 64)

    def commits() -> list[object]:
        return [call[1] for call in drafter.calls if isinstance(call, tuple) and call[0] == "commit"]

    schedule.begin(Context([1]), 50)
    drafter.calls.clear()
    controller.left = 4
    for root in range(4):
        schedule.next_tree(root)
        schedule.settle(Outcome(np.array([0]), (root + 1,)))
    assert commits() == [0], "that it was not asked it hears at once, as others may draft for it"
    schedule.next_tree(4)
    assert commits() == [0, 1, 2, 3]
    schedule.settle(Outcome(np.array([0]), (5,)))
    controller.left, controller.rests = 9, False
    for root in range(5, 8):
        schedule.next_tree(root)
        schedule.settle(Outcome(np.array([0]), (root + 1,)))
    heard = isinstance(drafter, Listener)
    assert commits() == [0, 1, 2, 3, 4, 5, *([6, 7] if heard else [])], "a tree that it heard is committed"
    schedule.end()
    assert commits() == list(range(8))


@pytest.mark.parametrize("shares", [False, True])
def test_to_rest_is_as_to_be_asked_and_told(shares: bool) -> None:
    """A controller that pauses comes to the same by `rested` as by budgets and records."""

    def knowing() -> Adaptive:
        prior = CostModel(compute=1e-3, step=1e-2)
        controller = Partner(Shares(Costs(prior))) if shares else Adaptive(prior)
        controller._stand(20)
        controller.credit = 1.0
        return controller

    limit, outcome = TreeBudget(64, 40, 0), Outcome(np.array([0]), (1,), seconds=1e-3)
    asked, rested = knowing(), knowing()
    for _ in range(15):
        assert asked.pauses
        assert asked.budget(limit, range(1, 4)) is None
        asked.record(Cycle(None, TokenTree.root(1), outcome, 0.0, 1e-3))
        rested.rested()
    for each in (asked, rested):
        each.record(Cycle(None, TokenTree.root(1), outcome, 0.0, 1e-3))
        assert each._pause == 4
        assert each._rested == (0 if shares else 16)
        assert each.credit == pytest.approx(1 + 16 * ALLOWANCE * (not shares))  # theirs is of all together
        assert (each.took, each.speedup, each.rests) == (1.0, 1.0, True)
    assert asked.beliefs.notes() == rested.beliefs.notes()


def test_when_the_only_model_is_damaged_decoding_is_plain() -> None:
    class Damaged(Recorder):
        def step(self) -> bool:
            raise ModelError("not finite")

    schedule = Serial(Damaged(), Fixed(TreeBudget(64, 4, 4)), 64)
    schedule.begin(Context([1]), 50)
    for root in (5, 6):
        assert len(schedule.next_tree(root)) == 1
        schedule.settle(Outcome(np.array([0]), (root + 1,)))
    assert schedule.damaged


def chosen(drafter: str, draft_model: str | None = None) -> tuple[str, ...]:
    return choose_drafters(EngineOptions(drafter=drafter, draft_model=draft_model))


def test_names() -> None:
    assert chosen("none") == ()
    assert chosen("auto") == ("ngram", "substitute")
    assert chosen("auto", "m") == ("ngram", "model", "substitute")
    assert chosen("ngram+substitute") == ("ngram", "substitute")
    assert chosen("model", "m") == ("model",)
    assert chosen("ngram+model", "m") == ("ngram", "model")
    with pytest.raises(OptionError, match=r"'falcon' is unknown; choose from none, auto, ngram, model"):
        chosen("falcon")
    with pytest.raises(OptionError, match="names ngram twice"):
        chosen("ngram+ngram")
    with pytest.raises(OptionError, match="draft_model="):
        chosen("model")
    with pytest.raises(OptionError, match="does not use the draft model"):
        chosen("ngram", "m")
    with pytest.raises(OptionError, match=r"schedule 'magic' is unknown; choose from auto, serial"):
        check_schedule("magic", chosen("auto"))


def test_ratio_needs_drawn_drafts() -> None:
    ratio = make_acceptance("ratio", GenerationOptions(temperature=1.0))
    check_acceptance(ratio, "model", ("model",))
    check_acceptance(ratio, "none", ())
    check_acceptance(ratio, "auto", ("ngram", "model"))  # n-grams stay silent
    with pytest.raises(OptionError, match="drafter=auto, model or none"):
        check_acceptance(ratio, "ngram+model", ("ngram", "model"))
    with pytest.raises(OptionError, match="drafter=auto has only n-grams"):
        check_acceptance(ratio, "auto", ("ngram",))


@pytest.fixture(scope="module")
def model(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return write_model(tmp_path_factory.mktemp("serial") / "m")


def test_bad_options_fail_before_anything_is_read(model: Path, tmp_path: Path) -> None:
    with pytest.raises(OptionError, match="unknown"):
        edgespec.load(model, drafter="medusa")
    with pytest.raises(OptionError, match=r"tree_nodes is 65.*at most 64"):
        edgespec.load(model, tree_nodes=65)
    with pytest.raises(OptionError, match="tree_nodes is 0"):
        EngineOptions(tree_nodes=0)
    other = write_model(tmp_path / "other")
    text = (other / "tokenizer.json").read_text().replace('"!":', '"!!":')
    (other / "tokenizer.json").write_text(text)
    with pytest.raises(TokenizerError, match="another tokenizer"):
        edgespec.load(model, memory="2GB", draft_model=other)


def test_acceptance_is_checked_before_work(model: Path) -> None:
    with edgespec.load(model, memory="2GB", context=100) as engine:
        session = engine.new_session()
        with pytest.raises(OptionError, match="unknown"):
            session.generate([1], GenerationOptions(acceptance="hopeful"))
        with pytest.raises(OptionError, match="only n-grams, which are copied"):
            session.generate([1], GenerationOptions(acceptance="ratio", temperature=1.0))
        with pytest.raises(OptionError, match="temperature"):
            session.generate([1], GenerationOptions(acceptance="greedy", temperature=1.0))


def test_engines_make_the_schedule_that_was_asked_for(model: Path) -> None:
    with edgespec.load(model, memory="2GB", context=100, drafter="none") as engine:
        assert type(engine.new_session().schedule) is Plain
    with edgespec.load(model, memory="2GB", context=100, tree_nodes=1) as engine:
        assert type(engine.new_session().schedule) is Plain
    with edgespec.load(model, memory="2GB", context=100) as engine:
        schedule = engine.new_session().schedule
        assert isinstance(schedule, Serial)
        assert isinstance(schedule.drafter, NGram)
    with edgespec.load(model, memory="2GB", context=100, draft_model=model, tree_nodes=20) as engine:
        schedule = engine.new_session().schedule
        assert isinstance(schedule, Serial)
        assert schedule.nodes == 20
        assert isinstance(schedule.drafter, Combined)
        assert [type(m) for m in schedule.drafter.members] == [NGram, ModelDrafter]


def test_a_draft_model_is_in_the_ledger(model: Path) -> None:
    with edgespec.load(model, memory="2GB", context=100, draft_model=model) as engine:
        assert engine.plan.owners["drafter"] > engine.plan.table.nbytes
        baseline = engine.plan.owners["interpreter and libraries"]
    with pytest.raises(BudgetError, match="drafter") as refused:
        edgespec.load(model, memory=baseline, context=100, draft_model=model)
    assert refused.value.owners["drafter"] > 0


def test_a_losing_draft_model_makes_room_for_layers(model: Path) -> None:
    """Between cycles, in the middle of a reply, without a trace in the text."""
    options = GenerationOptions(max_tokens=60)
    with edgespec.load(model, memory="2GB", context=200, drafter="none") as engine:
        engine.eos = frozenset()
        expected = edgespec.generate(engine, prompt_of(20), options).tokens
    with edgespec.load(model, memory="2GB", context=200, draft_model=model) as engine:
        engine.eos = frozenset()
        # As if the dial had left no room for the layers behind the first.
        kept = frozenset(c.index for c in engine.plan.table.chunks if c.layer < 1)
        dropped = [c for c in engine.plan.table.chunks if c.index not in kept]
        weights = engine.target.weights
        weights.ring_bytes = 3 * max(c.read_bytes for c in dropped)
        for chunk in dropped:
            del weights.pinned[chunk.index]
        weights.pin([])  # the others are streamed from now on
        plan = replace(engine.plan, pinned=kept)
        after = without_drafter(plan)
        assert after is not None
        assert after.pinned > kept
        assert "drafter" not in after.owners
        assert after.ledger.used <= plan.ledger.used
        assert speedup(plan, after) >= 1
        engine.holdings.plan, engine.holdings.without_drafter = plan, after
        session = engine.new_session()
        schedule = session.schedule
        assert isinstance(schedule, Serial)
        handover = engine.holdings.handover
        handover.record = lambda tokens, took: len(session.tokens) > 40  # type: ignore[method-assign]
        tokens = [r.token for r in session.generate(prompt_of(20), options)]
        assert tokens == expected
        assert engine.resident == []
        assert engine.plan is after
        assert set(engine.target.weights.pinned) >= after.pinned
        assert isinstance(schedule.drafter, Combined)
        assert [type(m) for m in schedule.drafter.members] == [NGram]
        assert [r.token for r in session.generate(prompt_of(20), options)] == expected


def test_the_first_token_is_said_before_drafters_read_the_prompt(model: Path) -> None:
    engine, drafter = edgespec.load(model, memory="2GB", context=400, drafter="none"), Recorder()
    session = engine.new_session()
    session.schedule = Serial(cast(Any, drafter), Fixed(TreeBudget(6, 9, 3)), 8)
    assert len([*session.generate(prompt_of(9), GenerationOptions(1, ignore_eos=True))]) == 1
    assert not drafter.calls
    replying = session.generate(prompt_of(9), GenerationOptions(4, ignore_eos=True))
    first = next(replying)
    assert first.token is not None
    assert not drafter.calls
    before = first.stats.prefill_seconds
    assert len([*replying]) == 3
    assert drafter.calls[0] == ("prefill", prompt_of(9))
    assert first.stats.prefill_seconds > before, "their reading is no token's time"
