"""EAGLE: training and use compute the same, entries follow the target, text does not depend on it."""

from __future__ import annotations

from collections.abc import Collection, Iterator
from contextlib import ExitStack
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

import edgespec
from edgespec.config import EngineOptions, GenerationOptions
from edgespec.control.fixed import Fixed
from edgespec.core.schedule import TreeBudget
from edgespec.core.tree import TokenTree
from edgespec.drafters.base import Root
from edgespec.drafters.eagle.drafter import EagleDrafter
from edgespec.drafters.eagle.files import EAGLE_ROWS, EagleResident
from edgespec.engine import Engine
from edgespec.errors import Cancelled, ModelError, OptionError
from edgespec.models.asked import check_options
from edgespec.runtimes.base import PREFILL_ROWS, TREE_ROWS
from edgespec.runtimes.formats.describe import ModelFiles, describe_model
from edgespec.runtimes.rows import Rows
from edgespec.runtimes.torch.eagle import Eagle, EagleShape, eagle_shapes
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
    VARIED,
    Never,
    Resting,
    deaf_positions,
    interrupt_anywhere,
    load_with,
    say,
    two_turns,
    undrafted,
)
from tests.eagles import write_eagle
from tests.machine import GIVEN
from tests.test_cascade import quiet_model, train
from tests.test_session import prompt_of
from tests.test_ssd_engine import waiting
from tests.tiny import write_checkpoint

BUDGET = TreeBudget(16, 5, 5)


# --- the module -------------------------------------------------------------------------------------------


def random_eagle(files: ModelFiles, dtype: torch.dtype) -> Eagle:
    generator = torch.Generator().manual_seed(1)
    norm = torch.linspace(0.5, 1.5, files.config.hidden_size)
    module = Eagle(files.config, EagleShape(), norm.to(dtype), dtype)
    with torch.no_grad():
        for parameter in module.parameters():
            noise = torch.randn(parameter.shape, generator=generator)
            parameter.copy_(noise / noise.shape[-1] ** 0.5 if noise.dim() == 2 else 1 + noise / 4)
    return module


@pytest.mark.parametrize(("dtype", "tolerance"), [(torch.float32, 1e-5), (torch.bfloat16, 0.06)])
def test_training_and_inference_agree(tmp_path: Path, dtype: torch.dtype, tolerance: float) -> None:
    files = describe_model(write_checkpoint(tmp_path / "m"))
    module = random_eagle(files, dtype)
    features, embedded = torch.randn(2, 90, files.config.hidden_size).to(dtype)
    trained = module(features[None], embedded[None])[0]
    cache = module.attention.new_cache(100, 10)
    rows = Rows.append(cache, np.arange(-1, 69), prefill=True)
    module.write(features[:70], embedded[:70], rows)  # of committed tokens nothing but K and V
    cache.commit(np.arange(70))
    used = []
    for i in range(70, 90):
        used.append(module.run(features[i : i + 1], embedded[i : i + 1], Rows.append(cache, [-1])))
        cache.commit([0])
    assert (trained[70:] - torch.cat(used)).abs().max() < tolerance * trained.abs().max()
    assert all(p.dtype == dtype for p in module.parameters())
    shapes = eagle_shapes(files.config, EagleShape())
    assert {name: tuple(p.shape) for name, p in module.named_parameters()} == shapes
    assert sum(p.nbytes for p in module.parameters()) == parameter_bytes(shapes, dtype.itemsize)


# --- in use -----------------------------------------------------------------------------------------------


@pytest.fixture(scope="module", params=TYPES)
def model(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Path:
    path = quiet_model(tmp_path_factory.mktemp("model") / "m", torch_dtype=request.param)
    write_eagle(path, "random")
    write_eagle(path, "exits")
    return path


def load(model: Path, kind: str = "exits", drafter: str = "eagle", **options: Any) -> Engine:
    return load_with(model, drafter, options.pop("adapters", model / f"eagle-{kind}"), **options)


@pytest.fixture(scope="module")
def plain(model: Path) -> dict[float, list[int]]:
    return undrafted(model)


def drafter_of(session: Session) -> EagleDrafter:
    assert isinstance(session.schedule, Serial)
    drafter = session.schedule.drafter
    assert isinstance(drafter, EagleDrafter)
    return drafter


def check_entries(engine: Engine, session: Session, missed: Collection[int] = ()) -> None:
    """All exact entries are those of the conversation's own tokens and features, computed afresh. (Not those
    of the tokens whose features or own embeddings were `missed`.)"""
    drafter, target = drafter_of(session), engine.target
    runtime, tokens = drafter.runtime, drafter.tokens  # what was accepted beyond the reply's end among them
    assert runtime.exact > 10
    cache, hidden = target.new_cache(400), []
    for start in range(0, len(tokens), PREFILL_ROWS):
        block = tokens[start : start + PREFILL_ROWS]
        rows = Rows.append(cache, np.arange(-1, len(block) - 1), prefill=True)
        hidden.append(target.run(target.embed(block), rows, range(target.config.layers)))
        cache.commit(np.arange(len(block)))
    features, embedded = runtime.module.feature(torch.cat(hidden)), target.embed(tokens)
    entered = [p for p in range(1, len(tokens)) if p - 1 not in missed and p not in missed][: runtime.exact]
    assert runtime.exact == len(entered) == runtime.cache.length
    assert all({p - 1, p} & {*missed} for p in range(entered[-1] + 1, runtime.length))
    assert runtime.length > entered[-1]
    own = runtime.module.attention.new_cache(400, 0)
    rows = Rows.append(own, np.arange(-1, len(entered) - 1), prefill=True)
    runtime.module.write(features[[p - 1 for p in entered]], embedded[entered], rows)
    own.commit(np.arange(len(entered)))
    tolerance = 1e-3 if target.dtype == torch.float32 else 0.3
    for found, wanted in zip(runtime.cache.view(0), own.view(0), strict=True):
        assert torch.allclose(found.float(), wanted.float(), atol=tolerance)


@VARIED
def test_it_changes_the_speed_and_not_the_text(
    model: Path, plain: dict[float, list[int]], kind: str, options: GenerationOptions
) -> None:
    with load(model, kind) as engine:
        for budget in (BUDGET, TreeBudget(64, 12, 12)):
            with engine.new_session(300, Fixed(budget)) as session:
                tokens, stats = two_turns(session, options)
                assert tokens == plain[options.temperature]
                assert sum(s.drafted for s in stats) > len(tokens)
                if kind == "exits" and options is REPLY:
                    assert sum(s.accepted for s in stats) > 5
                check_entries(engine, session)


@pytest.mark.parametrize(
    ("model", "options"),
    covering(("float32", "bfloat16"), {"greedy": REPLY, "sampled": SAMPLED}),
    indirect=["model"],
    scope="module",
)
def test_waits_are_drafted_in(
    model: Path, plain: dict[float, list[int]], monkeypatch: pytest.MonkeyPatch, options: GenerationOptions
) -> None:
    """What was prepared is the next tree, and what it hangs on is made exact before it goes on."""
    with (
        load(model, schedule="ssd") as engine,
        waiting(monkeypatch, lambda: 6),
        engine.new_session(300, Fixed(BUDGET)) as session,
    ):
        tokens, stats = two_turns(session, options)
        assert tokens == plain[options.temperature]
        assert sum(s.drafted_while_verifying for s in stats) > 20
        assert sum(s.cache_hits for s in stats) > 0
        runtime = drafter_of(session).runtime
        drafter_of(session).forest.forget()
        runtime.follow()
        check_entries(engine, session)


@pytest.mark.parametrize("schedule", ["serial", "ssd"])
@ONE_TYPE
def test_ratio_takes_its_drawn_chains(model: Path, monkeypatch: pytest.MonkeyPatch, schedule: str) -> None:
    options = GenerationOptions(max_tokens=20, temperature=0.8, acceptance="ratio", ignore_eos=True)
    with load(model, schedule=schedule) as engine, waiting(monkeypatch, lambda: 4):
        session = engine.new_session(300, Fixed(BUDGET))
        tokens, stats = two_turns(session, options)
        assert len(tokens) == 40
        assert sum(s.accepted for s in stats) > 3


@ONE_TYPE
def test_what_it_drafts_is_its_own_chain(model: Path) -> None:
    """Level by level, and in one pass over a path whose features are not known yet."""
    with load(model, "random") as engine, engine.new_session(300, Fixed(BUDGET)) as session:
        say(session, prompt_of(50), REPLY)
        runtime = drafter_of(session).runtime
        drafter_of(session).forest.forget()
        runtime.follow()
        pieces = []
        for steps in ([[7], [8], [9]], [[7, 8, 9]]):
            done = 0
            for tokens in steps:
                under_way = runtime.begin(tokens, list(range(done - 1, done - 1 + len(tokens))))
                while not under_way.advance():
                    pass
                done += len(tokens)
            pieces.append(runtime.drafted[:3].clone())
            runtime.truncate(runtime.length)
        assert torch.allclose(*(p.float() for p in pieces), atol=1e-4)
        assert not torch.allclose(pieces[0][0].float(), pieces[0][1].float(), atol=1e-2)


@ONE_TYPE
def test_interrupted_anywhere_it_goes_on(model: Path, plain: dict[float, list[int]]) -> None:
    with load(model) as engine, engine.new_session(300, Fixed(BUDGET)) as session:
        interrupt_anywhere(engine, session, 7)
        assert two_turns(session, REPLY)[0] == plain[0]
        check_entries(engine, session)


def test_while_a_refusal_stands_no_layer_is_heard(model: Path, plain: dict[float, list[int]]) -> None:
    """And positions of these passes are left out."""
    with load(model, schedule="serial") as engine, engine.new_session(300, Resting(BUDGET)) as session:
        deaf = deaf_positions(engine, session, plain[0])
        assert len(deaf) >= MOST
        check_entries(engine, session, deaf)
        assert min(deaf) > 45
        before = [*session.tokens[:45], *prompt_of(9, 3)]
        say(session, before, GenerationOptions(max_tokens=1, ignore_eos=True))
        runtime = drafter_of(session).runtime
        assert runtime.end == len(before)
        runtime.follow()
        assert runtime.exact == len(before) - 2, "but of 0, and 45, whose feature was dropped, it has all"


def test_a_prompt_waits_until_a_draft_is_asked_for(
    model: Path, plain: dict[float, list[int]], monkeypatch: pytest.MonkeyPatch
) -> None:
    """Where drafts do not pay, no entry is made for a reply; what waits has a bound."""
    controller = Never(BUDGET)
    with load(model) as engine, engine.new_session(300, controller) as session:
        runtime, written = drafter_of(session).runtime, list[int]()
        write = runtime.module.write

        def counted(features: torch.Tensor, embedded: torch.Tensor, rows: Rows) -> None:
            written.append(len(features))
            write(features, embedded, rows)

        monkeypatch.setattr(runtime.module, "write", counted)
        few = GenerationOptions(max_tokens=9, ignore_eos=True)
        for seed in range(3):
            say(session, prompt_of(40, seed), few)
            assert written == []
            assert runtime.end == len(session.tokens)
        prompt = prompt_of(100, 7)
        say(session, prompt, few)
        assert written == [len(prompt) - 1]
        assert len(runtime.seen) == 1 + 8
        written.clear()
        controller.drafts = True
        tokens, stats = two_turns(session, REPLY)
        assert tokens == plain[0]
        assert sum(s.accepted for s in stats) > 3
        assert written, "a prompt of so many is followed before it is drafted behind"
        check_entries(engine, session)


@ONE_TYPE
def test_positions_that_it_missed_are_left_out(model: Path, plain: dict[float, list[int]]) -> None:
    """As if another had computed them: it drafts on behind the gap, and after a cut in it."""
    with load(model) as engine, engine.new_session(300, Fixed(BUDGET)) as session:
        drafter = drafter_of(session)
        deaf = drafter.on_layer
        drafter.on_layer = lambda *args: None  # type: ignore[method-assign]
        first, stats = say(session, prompt_of(50), REPLY)
        assert first == plain[0][:MOST]
        assert stats.accepted == 0
        drafter.on_layer = deaf  # type: ignore[method-assign]
        seen = len(session.tokens)
        second, stats = say(session, [*prompt_of(50), *first, *prompt_of(9, 1)], REPLY)
        assert second == plain[0][MOST:]
        assert stats.accepted > 3
        check_entries(engine, session, missed=range(seen))
        shorter = [*prompt_of(50), *first[:5], *prompt_of(30, 2)]
        with load_with(model, "none", None) as other, other.new_session(300) as undrafted:
            two_turns(undrafted, REPLY)  # a prompt's bits depend on where it goes on
            assert say(session, shorter, REPLY)[0] == say(undrafted, shorter, REPLY)[0]


@ONE_TYPE
def test_sessions_have_their_own(model: Path, plain: dict[float, list[int]]) -> None:
    with load(model, context=500) as engine:
        sessions = [engine.new_session(110, Fixed(BUDGET)) for _ in range(2)]
        streams: list[Iterator[Any]] = [s.generate(prompt_of(50), REPLY) for s in sessions]
        said = [[r.token for r in row] for row in zip(*streams, strict=True)]
        assert [row[0] for row in said if row[0] is not None] == plain[0][:MOST]
        assert all(a == b for a, b in said)
        (resident,) = engine.resident
        assert 0 < resident.rows < EAGLE_ROWS


@ONE_TYPE
def test_nan_ends_its_drafting_and_is_told(model: Path, plain: dict[float, list[int]]) -> None:
    with load(model) as engine, engine.new_session(300, Fixed(BUDGET)) as session:
        (resident,) = engine.resident
        assert isinstance(resident, EagleResident)
        resident.module.mlp.down_proj.data[:] = torch.nan
        tokens, stats = say(session, prompt_of(50), REPLY)
        assert tokens == plain[0][:MOST]
        assert stats.drafter_damaged


# --- beside others ----------------------------------------------------------------------------------------


class Three:
    """Conversations that have each drafted, and been answered."""

    def __init__(self, drafters: list[EagleDrafter]) -> None:
        self.drafters = drafters
        self.roots = [drafter.next for drafter in drafters]
        self.again()

    def again(self, *, asked: bool = True) -> None:
        """As if the same had been committed anew."""
        for drafter, root in zip(self.drafters, self.roots, strict=True):
            drafter.next, drafter.round, drafter.asked = root, None, BUDGET if asked else None

    def drafted(self, place: int, budget: TreeBudget = BUDGET) -> TokenTree:
        root = self.roots[place]
        assert root is not None
        drafting = self.drafters[place].start([Root((root,))], budget)
        while drafting.step():
            pass
        return drafting.tree()


@pytest.fixture
def three(model: Path) -> Iterator[Three]:
    with load(model, batch=3, context=200) as engine, ExitStack() as stack:
        sessions = [stack.enter_context(engine.new_session(200, Fixed(BUDGET))) for _ in range(3)]
        for n, session in zip((20, 33, 7), sessions, strict=True):
            say(session, prompt_of(n, n), GenerationOptions(max_tokens=8, ignore_eos=True))
        yield Three([drafter_of(session) for session in sessions])


def test_sessions_beyond_those_planned_have_room_for_what_is_drafted(model: Path) -> None:
    with load(model, batch=3, context=512) as engine, ExitStack() as stack:
        rows = TREE_ROWS + engine.resident[0].rows
        held = list[int]()
        while engine.pool.of(64) <= engine.pool.free:
            session = stack.enter_context(engine.new_session(64))
            held.append(engine.pool.share(session.number))
        with pytest.raises(edgespec.BudgetError, match=f"and a further one takes {rows} for its trees"):
            engine.new_session(64)
        assert held[:3] == [64, 64, 64]
        assert set(held[3:]) == {64 + rows}
        sessions = [session for session in engine._open_sessions() if not session.closed]
        runtimes = [drafter_of(session).runtime for session in sessions]
        own = sum(runtime.cache.nbytes + runtime.drafted.nbytes for runtime in runtimes)
        assert len(sessions) > 3
        own += sum(parameter.nbytes for parameter in runtimes[0].module.parameters())
        kv = sum(session.cache.nbytes for session in sessions)
        planned = engine.config.kv_bytes(engine.pool.positions, engine.target.dtype.itemsize)
        assert own + kv <= planned + engine.plan.owners["drafter"]


def forwards(monkeypatch: pytest.MonkeyPatch) -> list[int]:
    """Caches of each forward from now on."""
    found, usual = list[int](), Eagle.run

    def run(self: Eagle, features: torch.Tensor, embedded: torch.Tensor, rows: Rows) -> torch.Tensor:
        found.append(len(rows.caches))
        return usual(self, features, embedded, rows)

    monkeypatch.setattr(Eagle, "run", run)
    return found


def test_levels_of_all_who_draft_are_one_forward(three: Three, monkeypatch: pytest.MonkeyPatch) -> None:
    """Each says what it says alone. Who asks for something else begins anew, by itself where the others have
    been asked; and who was not asked is not taken along again."""
    found = forwards(monkeypatch)
    together = [three.drafted(place) for place in range(3)]
    assert found[0] == 3
    assert len(found) <= BUDGET.passes + 1
    del found[:]
    assert len(three.drafted(1, TreeBudget(5, 2, 2))) == 5
    assert set(found) == {1}
    three.again(asked=False)
    for place, tree in enumerate(together):
        alone = three.drafted(place)
        assert np.array_equal(np.sort(alone.tokens), np.sort(tree.tokens))
        assert np.allclose(np.sort(alone.scores), np.sort(tree.scores), atol=0.05)
    assert set(found) == {1}
    three.again()
    three.drafted(0)
    three.drafters[0].next = three.roots[0]
    assert found[-1] > 1
    three.drafted(0)
    assert found[-1] == 1


def test_what_goes_wrong_with_one_is_raised_when_it_asks(three: Three) -> None:
    _, damaged, left = three.drafters
    damaged.runtime.seen[:] = torch.nan

    def cancelled() -> None:
        raise Cancelled("stop")

    left.context = replace(left.context, check=cancelled)
    assert len(three.drafted(0)) > 1
    with pytest.raises(ModelError, match="finite"):
        three.drafted(1)
    with pytest.raises(Cancelled):
        three.drafted(2)
    assert len(three.drafted(0)) > 1


# --- chosen, planned, refused -----------------------------------------------------------------------------


@ONE_TYPE
def test_the_directory_says_what_it_is(model: Path, plain: dict[float, list[int]]) -> None:
    adapters = str(model / "eagle-exits")
    with load(model, drafter="auto") as engine:
        assert engine.drafters == ("ngram", "eagle")
        assert engine.schedule == "ssd"
        with engine.new_session() as session:
            assert two_turns(session, REPLY)[0] == plain[0]
    check_options(EngineOptions(adapters=adapters, schedule="ssd"))
    with pytest.raises(OptionError, match="the cascade and the EAGLE drafter would both draft"):
        check_options(EngineOptions(drafter="eagle+cascade", adapters=adapters))
    with pytest.raises(ModelError, match=r"of drafter eagle, not cascade; use drafter=eagle"):
        load(model, drafter="cascade")
    exits = train(model, "exits")
    with pytest.raises(ModelError, match=r"of drafter cascade, not eagle; use drafter=cascade"):
        load(model, adapters=exits)
    with pytest.raises(OptionError, match=r"drafter eagle needs what was trained.*train_eagle\(model="):
        check_options(EngineOptions(drafter="eagle"))


@ONE_TYPE
def test_under_mirror_the_exit_is_the_targets_own(model: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    with load(model, schedule="mirror") as engine, waiting(monkeypatch, lambda: 6):
        _, stats = say(engine.new_session(300, Fixed(BUDGET)), prompt_of(50), REPLY)
        assert stats.schedule == "mirror"


@ONE_TYPE
def test_its_memory_is_in_the_plan(model: Path) -> None:
    with load(model) as engine:
        assert engine.plan.depth == 0
        assert engine.target.weights.resident_blocks("lm_head") is not None
        (resident,) = engine.resident
        assert isinstance(resident, EagleResident)
        session = engine.new_session(300)
        runtime = drafter_of(session).runtime
        held = sum(p.nbytes for p in resident.module.parameters()) + runtime.cache.nbytes
        assert engine.plan.owners["drafter"] > held + runtime.drafted.nbytes
        assert engine.plan.owners["drawn drafts"] > 0
    smallest = GIVEN.baseline + 10**6
    with pytest.raises(edgespec.BudgetError, match="drafter"):
        load(model, memory=smallest, resident_layers=None)
