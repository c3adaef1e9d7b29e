"""SpecFormer: training and use compute the same, drafts are the likeliest paths, text is the target's own."""

from __future__ import annotations

import itertools
import json
from collections.abc import Collection, Iterator
from contextlib import ExitStack, nullcontext
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from msgspec.structs import replace as replace_shape

import edgespec
from edgespec.config import EngineOptions, GenerationOptions
from edgespec.control.fixed import Fixed
from edgespec.core.schedule import TreeBudget
from edgespec.core.tree import TreeBuilder
from edgespec.drafters.base import Root
from edgespec.drafters.specformer.batch import SpecFormerBatch
from edgespec.drafters.specformer.context import SpecFormerContext
from edgespec.drafters.specformer.drafter import SpecFormerDrafter
from edgespec.drafters.specformer.files import SpecFormerResident
from edgespec.drafters.specformer.paths import likeliest_paths
from edgespec.engine import Engine
from edgespec.errors import CorruptFileError, ModelError, OptionError
from edgespec.models.asked import check_options
from edgespec.progress import Progress
from edgespec.runtimes.base import PREFILL_ROWS
from edgespec.runtimes.formats.describe import ModelFiles, describe_model
from edgespec.runtimes.formats.trained import MANIFEST
from edgespec.runtimes.rows import Rows
from edgespec.runtimes.torch import specformer
from edgespec.runtimes.torch.eagle import Eagle
from edgespec.runtimes.torch.specformer import SpecFormer, SpecFormerShape, specformer_shapes
from edgespec.runtimes.torch.trained_files import parameter_bytes
from edgespec.schedules.serial import Serial
from edgespec.session import Session
from tests.covering import covering
from tests.drafted import (
    MOST,
    ONE_TYPE,
    REPLY,
    SAMPLED,
    TYPES,
    Never,
    Resting,
    deaf_positions,
    draft_always,
    interrupt_anywhere,
    load_with,
    say,
    two_turns,
    undrafted,
)
from tests.eagles import write_eagle
from tests.specformers import random_specformer, write_specformer
from tests.test_cascade import quiet_model
from tests.test_session import prompt_of
from tests.tiny import write_checkpoint

BUDGET = TreeBudget(16, 5, 1)
LENGTH = 5


# --- the module -------------------------------------------------------------------------------------------


SHAPE = SpecFormerShape(LENGTH, (0, 2, 3, 4))
SHAPES = {
    "the paper's": SHAPE,
    "causal": replace_shape(SHAPE, causal=True),
    "a bias alone": replace_shape(SHAPE, projected=False),
    "no attention": replace_shape(SHAPE, attention=False),
    "one state, a wider MLP": replace_shape(SHAPE, hooks=(4,), mlp=100),
}


def random_module(files: ModelFiles, shape: SpecFormerShape, dtype: torch.dtype) -> SpecFormer:
    norm = torch.linspace(0.5, 1.5, files.config.hidden_size)
    return random_specformer(SpecFormer(files.config, shape, norm.to(dtype), dtype))


@pytest.mark.parametrize("shape", SHAPES.values(), ids=SHAPES)
@pytest.mark.parametrize(("dtype", "tolerance"), [(torch.float32, 1e-5), (torch.bfloat16, 0.08)])
def test_training_and_inference_agree(
    tmp_path: Path, dtype: torch.dtype, tolerance: float, shape: SpecFormerShape
) -> None:
    files = describe_model(write_checkpoint(tmp_path / "m", num_hidden_layers=4))
    module = random_module(files, shape, dtype)
    states = torch.randn(
        90, len(shape.hooks), files.config.hidden_size, generator=torch.Generator().manual_seed(2)
    ).to(dtype)
    trained = module(states[None], torch.ones(1, 90, dtype=torch.bool))
    cache = module.context.new_cache(100, 10)
    fused = module.fuse(states[:70], exact=False)
    module.context.write(fused, Rows.append(cache, np.arange(-1, 69), prefill=True))
    cache.commit(np.arange(70))
    used = []
    for i in range(70, 90):
        state = module.run(module.fuse(states[i : i + 1], exact=True), Rows.append(cache, [-1]))
        used.append(module.say(state))
        cache.commit([0])
    assert (trained[70:] - torch.cat(used)).abs().max() < tolerance * trained.abs().max()
    shapes = specformer_shapes(files.config, module.shape)
    assert {name: tuple(p.shape) for name, p in module.named_parameters()} == shapes
    assert sum(p.nbytes for p in module.parameters()) == parameter_bytes(shapes, dtype.itemsize)


def test_its_attention_looks_both_ways_or_back(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Over one draft's positions, and of no other; in chunks of any size."""
    files = describe_model(write_checkpoint(tmp_path / "m", num_hidden_layers=4))
    for causal in (False, True):
        attention = random_module(files, replace_shape(SHAPE, causal=causal), torch.float32).draft
        assert attention is not None
        drafts = torch.randn(7, LENGTH, files.config.hidden_size)
        whole = attention(drafts)
        changed = drafts.clone()
        changed[3, 2] += 1
        moved = (attention(changed) - whole).abs().amax(-1) > 1e-6
        expected = torch.zeros(7, LENGTH, dtype=torch.bool)
        expected[3, 2 if causal else 0 :] = True
        assert torch.equal(moved, expected)
        monkeypatch.setattr(specformer, "CHUNK", 3)
        assert torch.allclose(attention(drafts), whole, atol=1e-6)
        monkeypatch.undo()


# --- in use -----------------------------------------------------------------------------------------------


@pytest.fixture(scope="module", params=TYPES)
def model(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Path:
    path = quiet_model(tmp_path_factory.mktemp("model") / "m", torch_dtype=request.param)
    write_specformer(path, LENGTH)
    return path


def load(model: Path, drafter: str = "specformer", **options: Any) -> Engine:
    return load_with(model, drafter, options.pop("adapters", model / "specformer"), **options)


@pytest.fixture(scope="module")
def plain(model: Path) -> dict[float, list[int]]:
    return undrafted(model)


def drafter_of(session: Session) -> SpecFormerDrafter:
    assert isinstance(session.schedule, Serial)
    drafter = session.schedule.drafter
    assert isinstance(drafter, SpecFormerDrafter)
    return drafter


def afresh(engine: Engine, module: SpecFormer, tokens: list[int], missed: Collection[int] = ()) -> np.ndarray:
    """[l_d, V] logits of the draft behind these tokens and the one that is said next."""
    cache, parts, target = engine.target.new_cache(400), [], engine.target
    for start in range(0, len(tokens), PREFILL_ROWS):
        block = tokens[start : start + PREFILL_ROWS]
        rows = Rows.append(cache, np.arange(-1, len(block) - 1), prefill=True)
        states = [target.embed(block)]
        for layer in range(target.config.layers):
            states.append(target.run(states[-1], rows, range(layer, layer + 1)))
        cache.commit(np.arange(len(block)))
        parts.append(torch.stack([states[hook] for hook in module.shape.hooks], 1))
    seen = [place for place in range(len(tokens)) if place not in missed]
    fused = module.fuse(torch.cat(parts)[seen], exact=False)
    own = module.context.new_cache(400, 0)
    state = module.run(fused, Rows.append(own, np.arange(-1, len(seen) - 1), prefill=True))[-1:]
    head = target.head_pass(module.say(state).flatten(0, 1))
    while not head.advance():
        pass
    return head.logits


def check_draft(engine: Engine, session: Session, tokens: list[int], missed: Collection[int] = ()) -> None:
    """What it says now is what it says of the same text afresh."""
    seen = drafter_of(session).seen
    assert seen.end == len(tokens)
    logits = said_by(drafter_of(session).batch, seen)
    expected = afresh(engine, seen.module, tokens, missed)
    tolerance = 2e-3 if engine.target.dtype == torch.float32 else 0.5
    assert np.abs(logits - expected).max() < tolerance * np.abs(expected).max()


def said_by(batch: SpecFormerBatch, seen: SpecFormerContext) -> np.ndarray:
    """[l_d, V]"""
    saying = batch.say(seen)
    while not saying.advance():
        pass
    return saying.logits


@pytest.mark.parametrize(
    ("model", "options"),
    covering(("float32", "bfloat16"), {"greedy": REPLY, "sampled": SAMPLED}),
    indirect=["model"],
    scope="module",
)
def test_it_changes_the_speed_and_not_the_text(
    model: Path, plain: dict[float, list[int]], options: GenerationOptions
) -> None:
    with load(model) as engine:
        for budget in (BUDGET, TreeBudget(64, 12, 12)):
            with engine.new_session(300, Fixed(budget)) as session:
                tokens, stats = two_turns(session, options)
                assert tokens == plain[options.temperature]
                assert sum(s.drafted for s in stats) > len(tokens)
                said = [*prompt_of(50), *tokens[:MOST], *prompt_of(9, 1), *tokens[MOST:]]
                seen = drafter_of(session).seen
                seen.forget(len(said) - 1)
                if seen.end == len(said) - 1:
                    check_draft(engine, session, said[:-1])


def test_a_tree_is_the_likeliest_paths_through_all_positions(model: Path) -> None:
    with load(model) as engine, engine.new_session(300, Fixed(BUDGET)) as session:
        hear(engine, session, prompt_of(50))
        drafter = drafter_of(session)
        logits = afresh(engine, drafter.seen.module, prompt_of(50)).astype(np.float64)
        said = logits - np.log(np.exp(logits - logits.max(1, keepdims=True)).sum(1, keepdims=True))
        said -= logits.max(1, keepdims=True)
        best = [np.argsort(-row, kind="stable")[:8].tolist() for row in said]
        paths = [p for depth in range(1, 4) for p in itertools.product(*best[:depth])]
        score = {p: sum(said[j, token] for j, token in enumerate(p)) for p in paths}
        wanted = sorted(score.values(), reverse=True)[:7]
        drafting = drafter.start([Root((9,))], TreeBudget(8, 3, 1))
        steps = 0
        while drafting.step():
            steps += 1
        tree = drafting.tree()
        tree.validate(engine.config.vocab_size)
        assert steps >= 2
        assert len(tree) == 8
        assert int(tree.depths.max()) <= 3
        found = sorted((float(s) for s in tree.scores[1:]), reverse=True)
        assert found == pytest.approx(wanted, abs=0.02 if engine.target.dtype == torch.float32 else 0.6)
        with pytest.raises(ValueError, match="behind one root"):
            drafter.start([Root((9,)), Root((8,))], BUDGET)


def test_paths_are_those_of_growing_best_first() -> None:
    """But found without looking at all that hangs below a node; impossible tokens are left out."""
    generator = np.random.default_rng(5)
    for nodes, depth in itertools.product((1, 2, 5, 17, 64), (1, 3, 5)):
        logprobs = -np.sort(generator.exponential(size=(depth, 8)), axis=1)
        logprobs[:, 6:] = -np.inf
        tokens = np.array([generator.permutation(50)[:8] for _ in range(depth)])
        tree = likeliest_paths(9, list(zip(tokens, logprobs, strict=True)), nodes)
        tree.validate(50)
        builder = TreeBuilder(9, nodes, depth)
        for level in range(depth):
            front = builder.frontier(nodes)
            front = front[builder.depths[front] == level]
            shape = len(front), 8
            if len(front):
                said = np.broadcast_to(tokens[level], shape), np.broadcast_to(logprobs[level], shape)
                builder.expand(front, *said)
        assert np.allclose(np.sort(tree.scores), np.sort(builder.tree().scores))
        assert len(tree) == len(builder.tree())
        assert int(tree.depths.max(initial=0)) <= depth
    assert len(likeliest_paths(9, [], 5)) == 1


def test_paths_that_cannot_pay_are_not_followed() -> None:
    """Of the tree that it would be without a bound, those that are likelier than it."""
    rng = np.random.default_rng(0)
    for _ in range(20):
        said = []
        for _ in range(5):
            chances = np.sort(rng.dirichlet(np.full(6, 0.5)))[::-1]
            said.append((rng.permutation(99)[:6], np.log(chances + 1e-12)))
        whole, some = likeliest_paths(7, said, 64), likeliest_paths(7, said, 64, 0.02)
        nodes = np.flatnonzero(np.exp(whole.scores) > 0.02)
        assert len(nodes) < len(whole) == 64
        assert some.tokens.tolist() == whole.tokens[nodes].tolist()
        assert some.parents.tolist() == whole.parents[nodes].tolist()


@ONE_TYPE
def test_ratio_draws_each_position_by_itself(model: Path) -> None:
    options = GenerationOptions(max_tokens=20, temperature=0.8, acceptance="ratio", ignore_eos=True)
    with load(model) as engine, engine.new_session(300, Fixed(BUDGET)) as session:
        tokens, stats = two_turns(session, options)
        assert len(tokens) == 40
        assert sum(s.drafted for s in stats) > 30
        drafter = drafter_of(session)
        drafting = drafter.start([Root((9,))], BUDGET)
        while drafting.step():
            pass
        tree = drafting.tree()
        assert tree.drafts is not None
        assert len(tree) == LENGTH + 1
        assert all(
            q is not None and q.of(int(t)) > 0 for q, t in zip(tree.drafts, tree.tokens[1:], strict=False)
        )


@ONE_TYPE
def test_interrupted_anywhere_it_goes_on(model: Path, plain: dict[float, list[int]]) -> None:
    with load(model) as engine, engine.new_session(300, Fixed(BUDGET)) as session:
        interrupt_anywhere(engine, session, 13)
        assert two_turns(session, REPLY)[0] == plain[0]


def test_while_a_refusal_stands_no_layer_is_heard(model: Path, plain: dict[float, list[int]]) -> None:
    """And positions of these passes are left out."""
    with load(model) as engine, engine.new_session(300, Resting(BUDGET)) as session:
        deaf = deaf_positions(engine, session, plain[0])
        assert len(deaf) >= MOST
        tokens = session.tokens[: session.cache.length]
        prompt = [*tokens, *prompt_of(9, 2)]
        say(session, prompt, GenerationOptions(max_tokens=1, ignore_eos=True))
        check_draft(engine, session, prompt, deaf)
        assert min(deaf) > 45
        before = [*tokens[:45], *prompt_of(9, 3)]  # of what was heard nothing is lost
        say(session, before, GenerationOptions(max_tokens=1, ignore_eos=True))
        check_draft(engine, session, before)


def test_two_ctrl_c_leave_no_session_deaf(model: Path) -> None:
    """One in a pass that told of no layer, and one before anybody was told that the reply is over."""
    with load(model) as engine, engine.new_session(300, Resting(BUDGET)) as session:

        def interrupt(progress: Progress) -> None:
            if progress.stage == "layers" and session.schedule._deaf:  # type: ignore[attr-defined]
                raise KeyboardInterrupt

        def again(reply: object) -> None:
            raise KeyboardInterrupt

        session._end = again  # type: ignore[method-assign]
        with pytest.raises(KeyboardInterrupt):
            list(session.generate(prompt_of(50), REPLY, interrupt))
        del session._end
        assert session.schedule._deaf  # type: ignore[attr-defined]
        prompt = prompt_of(60, 5)
        say(session, prompt, GenerationOptions(max_tokens=1, ignore_eos=True))
        check_draft(engine, session, prompt)


def test_positions_that_it_missed_are_left_out(model: Path, plain: dict[float, list[int]]) -> None:
    with load(model) as engine, engine.new_session(300, Fixed(BUDGET)) as session:
        drafter = drafter_of(session)
        hears = drafter.on_layer
        drafter.on_layer = lambda *args: None  # type: ignore[method-assign]
        first, stats = say(session, prompt_of(50), REPLY)
        assert first == plain[0][:MOST]
        assert stats.drafted == 0
        drafter.on_layer = hears  # type: ignore[method-assign]
        seen = len(session.tokens)
        prompt = [*prompt_of(50), *first, *prompt_of(9, 1)]
        second, stats = say(session, prompt, GenerationOptions(max_tokens=1, ignore_eos=True))
        check_draft(engine, session, prompt, missed=range(seen))
        assert say(session, prompt, REPLY)[0] == plain[0][MOST:]
        assert second == plain[0][MOST : MOST + 1]


def test_a_prompt_waits_until_a_draft_is_asked_for(model: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Where drafts do not pay, a reply costs the drafter nothing; what waits has a bound."""
    with load(model) as engine, engine.new_session(300, Never(BUDGET)) as session:
        seen, fused = drafter_of(session).seen, list[int]()
        fuse = seen.module.fuse

        def counted(states: torch.Tensor, exact: bool) -> torch.Tensor:
            fused.append(len(states))
            return fuse(states, exact)

        monkeypatch.setattr(seen.module, "fuse", counted)
        few = GenerationOptions(max_tokens=9, ignore_eos=True)
        for seed in range(3):
            say(session, prompt_of(40, seed), few)
            assert fused == []
            assert seen.entries == len(session.tokens)
        check_draft(engine, session, session.tokens)
        assert fused[:2] == [len(session.tokens) - 1, 1], "and then but for the last it is K and V alone"
        fused.clear()
        prompt = prompt_of(100, 7)
        say(session, prompt, few)
        assert fused == [len(prompt) - 1]
        assert len(seen.waiting) == 1 + 8
        check_draft(engine, session, session.tokens)


@ONE_TYPE
def test_one_forward_says_the_drafts_of_many(model: Path) -> None:
    """Of several conversations, as of each alone."""
    with load(model) as engine:
        (resident,) = engine.resident
        assert isinstance(resident, SpecFormerResident)
        states = torch.randn(3, engine.config.hidden_size).to(engine.target.dtype)
        alone = [resident.module.say(states[i : i + 1]) for i in range(3)]
        together = resident.module.say(states)
        assert together.shape == (3, LENGTH, engine.config.hidden_size)
        assert torch.allclose(together.float(), torch.cat(alone).float(), atol=1e-2)


@dataclass
class Four:
    """Conversations behind prompts of their own, that share a module."""

    engine: Engine
    batch: SpecFormerBatch
    seen: list[SpecFormerContext]

    def say(self, place: int) -> np.ndarray:
        return said_by(self.batch, self.seen[place])

    def again(self, asked: bool | None = None) -> None:
        """As if the same had been committed anew; all or none of them `asked` before."""
        for each in self.seen:
            each.saying, each.fresh = None, True
            each.asked = each.asked if asked is None else asked

    @property
    def tolerance(self) -> float:
        return 1e-5 if self.engine.target.dtype == torch.float32 else 0.05


def hear(engine: Engine, session: Session, prompt: list[int]) -> None:
    """The drafter does; one token is said."""
    reply = session.new_reply(prompt, GenerationOptions(max_tokens=1, ignore_eos=True))
    engine.verifier.compute([part := session.ask(reply)])
    assert len([*session.answer(reply, part)]) == 1
    session.end(reply)


@pytest.fixture
def four(model: Path) -> Iterator[Four]:
    with load(model, batch=4, context=200) as engine, ExitStack() as stack:
        sessions = [stack.enter_context(engine.new_session(200, Fixed(BUDGET))) for _ in range(4)]
        for n, session in zip((20, 33, 7, 50), sessions, strict=True):
            hear(engine, session, prompt_of(n, n))
        drafters = [drafter_of(session) for session in sessions]
        yield Four(engine, drafters[0].batch, [drafter.seen for drafter in drafters])


def test_who_drafted_before_is_said_beside_who_asks(four: Four, monkeypatch: pytest.MonkeyPatch) -> None:
    """By one forward, those who begin among them. What each says is what it says alone."""
    module, forwards = four.batch.module, list[int]()
    usual = module.say

    def say_counted(states: torch.Tensor) -> torch.Tensor:
        forwards.append(len(states))
        return usual(states)

    monkeypatch.setattr(module, "say", say_counted)
    begin = [four.say(place).copy() for place in range(4)]
    assert forwards == [4], "their prompts came with the same pass"
    forwards.clear()
    four.again(asked=False)
    alone = [four.say(place).copy() for place in range(4)]
    assert forwards == [1] * 4
    states = [each.state for each in four.seen]
    four.again()
    together = [four.say(place) for place in range(4)]
    assert forwards[4:] == [4]
    for one, other in zip(alone * 2, begin + together, strict=True):
        assert np.abs(one - other).max() <= four.tolerance * np.abs(one).max()
    four.again()
    four.say(2)
    four.again()
    four.say(2)
    assert forwards[5:] == [4, 1], "who was taken along and did not ask is not taken along again"
    assert all(mine.state is state for mine, state in zip(four.seen, states, strict=True))
    kept = {id(each.saying.forward) for each in four.seen if each.saying is not None}
    assert len(kept) == 1, "forwards before the latest are let go"


def test_what_waits_of_several_is_entered_together_as_of_each_alone(four: Four) -> None:
    hooks = len(four.batch.module.shape.hooks)
    states = torch.randn(9, hooks, four.engine.config.hidden_size).to(four.engine.target.dtype)
    parts = [states[:2], states[2:3], states[3:7], states[7:]]
    lengths, alone = [each.cache.length for each in four.seen], list[np.ndarray]()
    four.again(asked=False)

    def commit(place: int) -> None:
        each = four.seen[place]
        each.cache.truncate(lengths[place])
        each.waiting, each.state = parts[place].clone(), None

    for place in range(4):
        commit(place)
        alone.append(four.say(place).copy())
        assert four.seen[place].cache.length == lengths[place] + len(parts[place])
    for place in range(4):
        commit(place)
    four.again(asked=True)
    for place, expected in enumerate(alone):
        assert np.abs(four.say(place) - expected).max() <= four.tolerance * np.abs(expected).max()


def test_nan_of_one_is_no_matter_to_those_said_beside_it(four: Four) -> None:
    for place in range(4):
        four.say(place)
    four.again(asked=True)
    state = four.seen[1].state
    assert state is not None
    four.seen[1].state = torch.full_like(state, torch.nan)
    for place in range(4):
        with pytest.raises(ModelError, match="finite") if place == 1 else nullcontext():
            assert np.isfinite(four.say(place)).all()


@pytest.mark.parametrize("kind", ["eagle", "specformer"])
def test_in_a_batch_each_reads_its_own_states(
    model: Path, monkeypatch: pytest.MonkeyPatch, kind: str
) -> None:
    """Both drafters that read states: replies that share passes, and draft in each."""

    def say_counted(self: SpecFormer, states: torch.Tensor) -> torch.Tensor:
        forwards.append(len(states))
        return usual(self, states)

    def run_counted(self: Eagle, features: torch.Tensor, embedded: torch.Tensor, rows: Rows) -> torch.Tensor:
        forwards.append(len(rows.caches))
        return run(self, features, embedded, rows)

    forwards, usual, run = list[int](), SpecFormer.say, Eagle.run
    monkeypatch.setattr(SpecFormer, "say", say_counted)
    monkeypatch.setattr(Eagle, "run", run_counted)
    draft_always(monkeypatch)
    adapters = write_eagle(model, "exits") if kind == "eagle" else model / "specformer"
    prompts = [prompt_of(n, n) for n in (20, 33, 7, 50)]
    with load_with(model, "none", None) as engine:
        expected = [edgespec.generate(engine, prompt, REPLY).tokens for prompt in prompts]
    with load(model, drafter=kind, adapters=adapters, context=200, batch=4) as engine:
        for place, said in edgespec.generate_batch(engine, prompts, REPLY):
            assert said.tokens == expected[place]
            assert said.stats.drafted > 12
    assert sum(forwards) > 2 * len(forwards), "but for the first draft, one forward is for all who are there"


@ONE_TYPE
def test_a_pass_has_room_for_eight_drafts_of_each(model: Path) -> None:
    """Sixteen trees of nine rows are verified in one pass: where weights stream, half of them would cost
    as much."""
    options = GenerationOptions(max_tokens=24, ignore_eos=True)
    with load(model, batch=16, context=64) as engine, ExitStack() as stack:
        asking = []
        for seed in range(16):
            session = stack.enter_context(engine.new_session(64, Fixed(TreeBudget(9, 5, 1))))
            asking.append((session, session.new_reply(prompt_of(5, seed), options)))
        for rows in (5, 9):
            parts = [session.ask(reply) for session, reply in asking]
            assert list(map(len, parts)) == [rows] * 16
            assert len(engine.verifier.compute(parts)) == 16
            for (session, reply), part in zip(asking, parts, strict=True):
                session.answer(reply, part)
        for session, reply in asking:
            session.end(reply)


@ONE_TYPE
def test_nan_ends_its_drafting_and_is_told(model: Path, plain: dict[float, list[int]]) -> None:
    with load(model) as engine, engine.new_session(300, Fixed(BUDGET)) as session:
        (resident,) = engine.resident
        assert isinstance(resident, SpecFormerResident)
        resident.module.position_bias.data[:] = torch.nan
        tokens, stats = say(session, prompt_of(50), REPLY)
        assert tokens == plain[0][:MOST]
        assert stats.drafter_damaged


# --- chosen, planned, refused -----------------------------------------------------------------------------


@ONE_TYPE
def test_the_directory_says_what_it_is(model: Path, plain: dict[float, list[int]]) -> None:
    adapters = str(model / "specformer")
    with load(model, drafter="auto") as engine:
        assert engine.drafters == ("ngram", "specformer")
        assert engine.schedule == "serial"  # it needs the target's states of what was said
        assert engine.plan.owners["drafter"] > 0
        with engine.new_session() as session:
            assert two_turns(session, REPLY)[0] == plain[0]
    with pytest.raises(OptionError, match=r"schedule ssd drafts behind several roots at once, and the SpecF"):
        check_options(EngineOptions(drafter="specformer", adapters=adapters, schedule="ssd"))


@pytest.mark.parametrize(
    ("change", "told"),
    [
        ({"hooks": [0, 2, 4, 6]}, "hooks .* of a target of 5 layers"),
        ({"hooks": [0, 2, 2, 5]}, "hooks"),
        ({"hooks": [0, 2, 5]}, "hook_norm is"),
        ({"hooks": []}, "not a sound manifest"),
        ({"hooks": [0, 1, 2, 3, 5]}, "not a sound manifest"),
        ({"projected": False}, "does not hold what"),
        ({"attention": False}, "does not hold what"),
        ({"mlp": 2**21}, "not a sound manifest"),
        ({"mlp": 8}, "gate_proj is"),
        ({"length": 17}, "not a sound manifest"),
        ({"length": 4}, "position_proj is"),
    ],
)
@ONE_TYPE
def test_hooks_and_lengths_that_cannot_be_are_refused(
    model: Path, tmp_path: Path, change: dict[str, Any], told: str
) -> None:
    directory = write_specformer(model, LENGTH, out=tmp_path / "s")
    manifest = json.loads((directory / MANIFEST).read_text())
    manifest["shape"] |= change
    (directory / MANIFEST).write_text(json.dumps(manifest))
    with pytest.raises(CorruptFileError, match=told):
        load(model, adapters=directory)
