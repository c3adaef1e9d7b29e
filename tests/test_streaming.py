"""Speculative streaming: training and use agree, a step verifies and names, the text is the target's."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

import edgespec
from edgespec.config import EngineOptions, GenerationOptions
from edgespec.control.fixed import Fixed
from edgespec.core.acceptance import Outcome
from edgespec.core.schedule import Context, TreeBudget
from edgespec.core.tree import TokenTree
from edgespec.drafters.base import Root
from edgespec.drafters.beside import Beside
from edgespec.drafters.model import DRAFT_ROWS, ModelDrafter
from edgespec.drafters.streaming.drafter import NAMED_ROWS, StreamingDrafter
from edgespec.drafters.streaming.files import STREAM_ROWS, StreamingResident
from edgespec.drafters.streaming.growth import StreamedAhead, StreamedTree, foreseen, likelihoods
from edgespec.engine import Engine
from edgespec.errors import CorruptFileError, ModelError, OptionError
from edgespec.models.asked import check_options
from edgespec.runtimes.base import TREE_ROWS
from edgespec.runtimes.formats.describe import describe_model
from edgespec.runtimes.formats.needs import first_pass_bytes
from edgespec.runtimes.torch.machine import arithmetic
from edgespec.runtimes.torch.streaming import Streaming, StreamingShape, seen, streaming_shapes
from edgespec.runtimes.torch.streaming_draft import StreamingDraft
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
    draft_always,
    interrupt_anywhere,
    load_with,
    say,
    two_turns,
    undrafted,
)
from tests.machine import GIVEN, worker_bytes
from tests.streamings import SHAPE, random_streaming, run, write_spd, write_streaming
from tests.table_runtime import VOCABULARY, TableRuntime
from tests.test_cascade import quiet_model
from tests.test_session import prompt_of
from tests.test_ssd_engine import waiting
from tests.tiny import open_tiny, write_checkpoint

BUDGET = TreeBudget(16, 6, 2)


# --- the module -------------------------------------------------------------------------------------------


def test_what_each_stream_sees_by_hand() -> None:
    """Two positions, two streams: M0 M1, S01 S11, S02 S12."""
    mask, positions = seen(2, 2)
    assert positions.tolist() == [0, 1, 1, 2, 2, 3]
    assert mask.astype(int).tolist() == [
        [1, 0, 0, 0, 0, 0],
        [1, 1, 0, 0, 0, 0],
        [1, 0, 1, 0, 0, 0],
        [1, 1, 0, 1, 0, 0],
        [1, 0, 1, 0, 1, 0],
        [1, 1, 0, 1, 0, 1],
    ]


@pytest.mark.parametrize(("dtype", "tolerance"), [("float32", 1e-5), ("bfloat16", 0.06)])
@pytest.mark.parametrize("through", [1, 3])
def test_training_and_inference_agree(tmp_path: Path, dtype: str, tolerance: float, through: int) -> None:
    path = write_checkpoint(tmp_path / "m", torch_dtype=dtype)
    files, target = describe_model(path), open_tiny(path)
    shape = StreamingShape(3, 2, through, mlp=40)
    module = random_streaming(Streaming(files.config, shape, target.dtype))
    tokens = prompt_of(90)
    states = module(target.embed(tokens).clone()[None])[0]  # [1 + gamma, t, d]
    trained = target.head(states.flatten(0, 1).detach()).view(3, 90, -1).transpose(0, 1).numpy()
    draft = StreamingDraft(module, target, 100, 40, 8)
    for _ in draft.prefill(tokens[:70]):
        pass
    tree = run(draft, tokens[70:76], [-1, *range(5)])  # a chain in one pass
    draft.commit(range(6), [])
    one = [run(draft, [token], [-1 + i])[0] for i, token in enumerate(tokens[76:80])]
    draft.commit(range(4), [])
    used = np.concatenate([tree, np.stack(one)])
    assert np.abs(trained[70:80] - used).max() < tolerance * np.abs(trained).max()
    assert np.abs(trained[70:80, 0] - trained[70:80, 1]).max() > 0.1 * np.abs(trained).max()
    shapes = streaming_shapes(files.config, shape)
    assert {name: tuple(p.shape) for name, p in module.named_parameters()} == shapes
    assert sum(p.nbytes for p in module.parameters()) == parameter_bytes(shapes, target.dtype.itemsize)


def test_streams_leave_the_main_one_alone(tmp_path: Path) -> None:
    """And nothing of them stays: what is said, and kept, is the same to the bit without any."""
    path = write_checkpoint(tmp_path / "m")
    target = open_tiny(path)
    module = random_streaming(Streaming(target.config, SHAPE, target.dtype))
    said, kept = [], []
    for streams in (SHAPE.streams, 0):
        draft = StreamingDraft(module, target, 100, 40, 8)
        draft.streams = streams
        for _ in draft.prefill(prompt_of(40)):
            pass
        first = run(draft, [3, 4, 5], [-1, 0, 0])
        second = run(draft, [6, 7], [1, 2])
        assert len(draft.cache.parents) == 5
        said.append(np.concatenate([first[:, 0], second[:, 0]]))
        draft.commit([0, 2, 4], [])
        kept.append(draft.cache.view(1)[0].clone())
    assert np.array_equal(*said)
    assert torch.equal(*kept)
    wide = StreamingDraft(module, target, 100, 40, 2)
    assert run(wide, [1, 2, 3], [-1, -1, -1]).shape[1] == 1, "as many streams there is no memory for"


# --- growth -----------------------------------------------------------------------------------------------


class StreamingTable(TableRuntime):
    """Its streams know the greedy continuation; or are `wrong`."""

    streams = most_streams = 3

    def __init__(self, wrong: bool = False) -> None:
        super().__init__()
        self.wrong, self.passes = wrong, 0

    def begin(self, tokens: Any, parents: Any) -> Any:
        first = len(self.slots)
        under_way = super().begin(tokens, parents)
        self.passes += 1
        self.beyond = np.full((len(tokens), self.streams, VOCABULARY), -20.0, np.float32)
        for row in range(len(tokens)):
            path = self.path(first + row)
            for stream in range(-1, self.streams):
                path.append(int(self.table[path[-2], path[-1]].argmax()))
                if stream >= 0:
                    self.beyond[row, stream, (path[-1] + self.wrong) % VOCABULARY] = 0.0
        return under_way

    def path(self, slot: int) -> list[int]:
        found: list[int] = []
        while slot >= 0:
            slot, token = self.slots[slot]
            found.append(token)
        return [*self.text[-2:], *found[::-1]]


def drafter_for(runtime: TableRuntime, sure: float = 10) -> ModelDrafter:
    streaming = isinstance(runtime, StreamingTable)
    runtime.table *= sure
    drafter = StreamingDrafter(runtime, VOCABULARY) if streaming else ModelDrafter(runtime, VOCABULARY)  # type: ignore[arg-type]
    drafter.prefill(Context([1, 2, 3, 4]))
    return drafter


def greedy(tree: TokenTree) -> list[int]:
    """The first child of each node, from the root on."""
    path = [0]
    while len(children := tree.children(path[-1])):
        path.append(int(children[np.argmax(tree.logprobs[children])]))
    return tree.tokens[path].tolist()


def drafted(drafter: ModelDrafter, budget: TreeBudget) -> TokenTree:
    round_ = drafter.start([Root((5,))], budget)
    while round_.step():
        pass
    tree = round_.tree()
    tree.validate(drafter.forest.vocabulary)
    return tree


def test_a_step_verifies_what_the_last_one_named_and_names_more() -> None:
    """With streams that are right, p passes give a chain of p + 3 p tokens, where another draft's is of p."""
    expected = greedy(drafted(drafter_for(TableRuntime()), TreeBudget(64, 12, 16)))
    assert len(expected) == 13
    for passes, depth in ((1, 4), (2, 8), (3, 12)):
        for runtime, deep in ((TableRuntime(), passes), (StreamingTable(), depth)):
            chain = greedy(drafted(drafter_for(runtime), TreeBudget(64, 12, passes)))
            assert chain[: deep + 1] == expected[: deep + 1]
            assert not isinstance(runtime, StreamingTable) or runtime.passes == passes
            assert isinstance(runtime, StreamingTable) or len(chain) == deep + 1


def test_what_the_main_stream_does_not_say_is_dropped() -> None:
    """Wrong streams cost rows; the drafted tree has the same chain, one token a pass, and what they name last
    behind it."""
    budget = TreeBudget(24, 9, 5)
    own = drafted(drafter_for(TableRuntime()), budget)
    runtime = StreamingTable(wrong=True)
    tree = drafted(drafter_for(runtime), budget)
    assert runtime.passes == 5
    assert greedy(tree)[:6] == greedy(own)[:6]
    assert runtime.ran <= 1 + 4 * (ModelDrafter.width + NAMED_ROWS)


def test_a_tree_says_what_was_run_and_what_is_named_alone() -> None:
    runtime = StreamingTable()
    tree = drafted(drafter_for(runtime), TreeBudget(64, 12, 1))
    assert not tree.open[0], "the root was run,"
    path = tree.path_to(int(np.argmax(tree.depths)))
    assert len(path) == 1 + 1 + runtime.streams
    assert tree.open[path[1:]].all(), "and what streams name behind it has children all the same"
    plain = drafted(drafter_for(TableRuntime()), TreeBudget(64, 12, 3))
    assert plain.run is None
    assert plain.open.tolist() == [not len(plain.children(node)) for node in range(len(plain))]


def test_nodes_that_are_foreseen_hang_on_what_is_run() -> None:
    drafter = drafter_for(StreamingTable(), sure=1)
    drafted(drafter, TreeBudget(8, 4, 1))
    forest = drafter.forest
    said = [int(t) for t in forest.said[0][0][:2]]
    nodes = [(0, token) for token in said]
    first = len(forest.slots)
    likely = likelihoods(forest, nodes, {})
    scored = foreseen(forest, nodes, 5, likely)
    found = list(scored)
    assert len(found) == 5
    assert [*scored.values()] == sorted(scored.values(), reverse=True)
    assert found[0] == (first, int(forest.beyond[0][0][0][0])), "the likeliest stands behind the likeliest"
    for slot, (parent, _) in enumerate(found, first + len(nodes)):
        assert first <= parent < slot
    assert foreseen(forest, nodes, 0, likely) == {}
    alone = [(-1, 3)]
    assert foreseen(forest, alone, 5, likelihoods(forest, alone, {})) == {}, "nobody spoke before the root"
    sure = likelihoods(forest, nodes, {0: 0.0, first: -1.0})
    assert sure(first) == -1.0, "what is known goes before what was said"
    assert sure(first + 1) == likely(first + 1) - likely(0)


@pytest.mark.parametrize(("price", "along"), [(0.0, NAMED_ROWS), (1e-6, NAMED_ROWS), (10.0, 0)])
def test_rows_that_are_taken_along_are_worth_their_time(
    price: float, along: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A row takes a second. 0: nobody says what time costs."""
    runtime, passes = StreamingTable(), list[int]()
    monkeypatch.setattr("edgespec.drafters.forest.perf_counter", lambda: float(runtime.ran))
    drafter = drafter_for(runtime, sure=1)
    for _ in range(12):  # their widths are tried
        before = runtime.ran
        drafting = drafter.start([Root((5,))], TreeBudget(24, 9, 3, price=price))
        passes.clear()
        while drafting.step():
            if runtime.ran > before:
                passes.append(runtime.ran - before)
            before = runtime.ran
    widest = 1 if along == 0 else ModelDrafter.width
    assert passes[0] == 1, "nobody has spoken before the root"
    assert passes[1:] == [widest + along] * 2


def test_rows_that_an_early_exit_may_want_stay_free() -> None:
    drafter = drafter_for(StreamingTable())
    tree = drafted(drafter, TreeBudget(6, 4, 2))
    ahead = drafter.ahead(tree, TreeBudget(64, 12, 0))
    assert isinstance(ahead, StreamedAhead)
    ahead.expect()
    kept = drafter.forest.free_rows // 2
    while ahead.step():
        pass
    assert drafter.forest.free_rows >= kept
    assert ahead.passes > 0
    path = tree.path_to(int(tree.children(0)[0]))
    bonus = int(drafter.forest.said[drafter.forest.path(tree.tokens[path].tolist())[-1]][0][0])
    outcome = Outcome(path, np.array([int(tree.tokens[path[1]]), bonus]), 0.0)
    ahead.stop()
    drafter.commit(5, outcome)
    assert drafter.prepared()
    assert drafter.forest.beyond.keys() <= set(drafter.forest.slots.values())


# --- in use -----------------------------------------------------------------------------------------------


@pytest.fixture(scope="module", params=TYPES)
def model(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Path:
    path = quiet_model(tmp_path_factory.mktemp("model") / "m", torch_dtype=request.param)
    write_streaming(path, "random")
    write_streaming(path, "exits")
    return path


def load(model: Path, kind: str = "exits", drafter: str = "streaming", **options: Any) -> Engine:
    return load_with(model, drafter, options.pop("adapters", model / f"streaming-{kind}"), **options)


@pytest.fixture(scope="module")
def plain(model: Path) -> dict[float, list[int]]:
    return undrafted(model)


def drafter_of(session: Session) -> StreamingDrafter:
    assert isinstance(session.schedule, Serial)
    drafter = session.schedule.drafter
    assert isinstance(drafter, StreamingDrafter)
    return drafter


@VARIED
def test_it_changes_the_speed_and_not_the_text(
    model: Path, plain: dict[float, list[int]], kind: str, options: GenerationOptions
) -> None:
    with load(model, kind) as engine, engine.new_session(300, Fixed(BUDGET)) as session:
        tokens, stats = two_turns(session, options)
        assert tokens == plain[options.temperature]
        assert sum(s.drafted for s in stats) > len(tokens)
        if kind == "exits" and options is REPLY:
            assert sum(s.accepted for s in stats) > 5


@pytest.mark.parametrize(
    ("options", "drafter"), covering({"greedy": REPLY, "sampled": SAMPLED}, ("streaming", "spd"))
)
@ONE_TYPE
def test_in_a_batch_each_drafts_by_itself(
    model: Path, monkeypatch: pytest.MonkeyPatch, drafter: str, options: GenerationOptions
) -> None:
    """In few slots of its own, which are in the plan, and to the text that it has alone."""
    adapters = model / "streaming-exits" if drafter == "streaming" else write_spd(model)
    prompts = [prompt_of(n, n) for n in (20, 33, 7, 50)]
    with load_with(model, "none", None) as engine:
        expected = [edgespec.generate(engine, prompt, options).tokens for prompt in prompts]
    draft_always(monkeypatch)
    with load(model, drafter=drafter, adapters=adapters, context=200, batch=4) as engine:
        for place, said in edgespec.generate_batch(engine, prompts, options):
            assert said.tokens == expected[place]
            assert said.stats.drafted > 12
        (resident,) = engine.resident
        assert isinstance(resident, StreamingResident)
        sessions = [engine.new_session(200) for _ in prompts]
        drafts = [drafter_of(session).streaming for session in sessions]
        assert {draft.rows for draft in drafts} == {TREE_ROWS}
        held = sum(draft.cache.nbytes for draft in drafts)  # type: ignore[attr-defined]
        held += sum(p.nbytes for p in resident.module.parameters())
        assert held < engine.plan.owners["drafter"]
        for session in sessions:
            session.close()


@ONE_TYPE
def test_waits_are_drafted_in_and_the_exit_is_heard(
    model: Path, plain: dict[float, list[int]], monkeypatch: pytest.MonkeyPatch
) -> None:
    with (
        load(model, schedule="mirror") as engine,
        waiting(monkeypatch, lambda: 3),
        engine.new_session(300, Fixed(BUDGET)) as session,
    ):
        tokens, stats = two_turns(session, REPLY)
        assert tokens == plain[0]
        assert stats[0].schedule == "mirror"
        assert sum(s.drafted_while_verifying for s in stats) > 20
        assert sum(s.cache_hits for s in stats) > 0
        assert sum(s.early_exit.cycles for s in stats) > 0


@pytest.mark.parametrize(("schedule", "drafter"), [("serial", "streaming"), ("ssd", "spd")])
@ONE_TYPE
def test_it_drafts_in_a_process_of_its_own(
    model: Path, plain: dict[float, list[int]], schedule: str, drafter: str
) -> None:
    """With copies of the target's head and embedding, which are in the plan."""
    adapters = {"streaming": write_streaming, "spd": write_spd}[drafter](model)
    options: dict[str, Any] = {"schedule": schedule, "drafter": drafter, "adapters": adapters}
    with load(model, **options) as engine:
        beside = engine.plan.owners["drafter"]
    with load(model, draft_worker=1, **options) as engine:
        assert engine.drafters == (drafter,)
        copies = 2 * engine.plan.table.embedding.nbytes
        assert engine.plan.owners["drafter"] - beside == copies + first_pass_bytes(engine.files, arithmetic())
        (worker,) = engine.resident
        assert isinstance(worker, Beside)
        assert 0 < worker.outside < 1.1 * (engine.plan.owners["drafter"] + worker_bytes())
        with engine.new_session(300, Fixed(BUDGET)) as session:
            tokens, stats = two_turns(session, REPLY)
    assert tokens == plain[0]
    assert stats[0].undrafted is None
    assert sum(s.accepted for s in stats) > 5


@ONE_TYPE
def test_a_damaged_file_is_told_by_the_worker(model: Path, tmp_path: Path) -> None:
    made = write_streaming(model, out=tmp_path / "made")
    path = made / "streaming.safetensors"
    path.write_bytes(path.read_bytes()[:-1] + b"\1")
    with pytest.raises(CorruptFileError, match="the file is damaged"):
        load(model, adapters=made, draft_worker=1)


@pytest.mark.parametrize("schedule", ["serial", "ssd"])
@ONE_TYPE
def test_ratio_takes_its_drawn_chains(model: Path, monkeypatch: pytest.MonkeyPatch, schedule: str) -> None:
    options = GenerationOptions(max_tokens=20, temperature=0.8, acceptance="ratio", ignore_eos=True)
    with load(model, schedule=schedule) as engine, waiting(monkeypatch, lambda: 4):
        session = engine.new_session(300, Fixed(BUDGET))
        tokens, stats = two_turns(session, options)
        assert len(tokens) == 40
        assert sum(s.accepted for s in stats) > 3
        assert drafter_of(session).streaming.streams == 0


@ONE_TYPE
def test_interrupted_anywhere_it_goes_on(model: Path, plain: dict[float, list[int]]) -> None:
    with load(model) as engine, engine.new_session(300, Fixed(BUDGET)) as session:
        interrupt_anywhere(engine, session, 11)
        assert two_turns(session, REPLY)[0] == plain[0]


@ONE_TYPE
def test_a_round_that_is_left_leaves_nothing(model: Path) -> None:
    """In any part of its passes: no stream's slot, and what is drafted then is what a new drafter drafts."""
    with load(model, "random") as engine, engine.new_session(300, Fixed(BUDGET)) as session:
        say(session, prompt_of(50), REPLY)
        drafter = drafter_of(session)
        whole = drafted(drafter, BUDGET)
        for parts in range(1, 12):
            drafter.forest.forget()
            round_ = drafter.start([Root((5,))], BUDGET)
            for _ in range(parts):
                round_.step()
            round_.cancel()
            assert len(drafter.streaming.cache.parents) == 0
            assert not drafter.forest.beyond
            assert np.array_equal(drafted(drafter, BUDGET).tokens, whole.tokens)


@ONE_TYPE
def test_nan_ends_its_drafting_and_is_told(model: Path, plain: dict[float, list[int]]) -> None:
    with load(model) as engine, engine.new_session(300, Fixed(BUDGET)) as session:
        (resident,) = engine.resident
        assert isinstance(resident, StreamingResident)
        resident.module.norm.data[:] = torch.nan
        tokens, stats = say(session, prompt_of(50), REPLY)
        assert tokens == plain[0][:MOST]
        assert stats.drafter_damaged


# --- chosen, planned, refused -----------------------------------------------------------------------------


@ONE_TYPE
def test_the_directory_says_what_it_is(model: Path, plain: dict[float, list[int]], tmp_path: Path) -> None:
    adapters = str(model / "streaming-exits")
    with load(model, drafter="auto") as engine:
        assert engine.drafters == ("ngram", "streaming")
        assert engine.schedule == "ssd"
        with engine.new_session() as session:
            assert two_turns(session, REPLY)[0] == plain[0]
    check_options(EngineOptions(adapters=adapters, schedule="mirror", drafter="streaming"))
    check_options(EngineOptions(drafter="streaming", adapters=adapters, draft_worker=1))
    check_options(EngineOptions(drafter="streaming", adapters=adapters, batch=4))
    with pytest.raises(OptionError, match="batch is 4, and a draft worker drafts for one conversation"):
        check_options(EngineOptions(drafter="streaming", adapters=adapters, batch=4, draft_worker=1))
    with pytest.raises(OptionError, match=r"needs what was trained.*train_streaming\(model="):
        check_options(EngineOptions(drafter="streaming"))
    with pytest.raises(ModelError, match="of drafter streaming, not eagle; use drafter=streaming"):
        load(model, drafter="eagle")
    other = quiet_model(tmp_path / "other", torch_dtype="bfloat16", seed=9)
    with pytest.raises(ModelError, match="the adapters were trained for"):
        load(other, adapters=adapters)


@pytest.mark.parametrize(
    "shape",
    [{"stream_layers": 3}, {"streams": 9}, {"layers": 0}, {"more": 1}, {"layers": 10**9}, {"streams": 1}],
)
@ONE_TYPE
def test_an_unsound_manifest_is_refused(model: Path, tmp_path: Path, shape: dict[str, int]) -> None:
    made = write_streaming(model, out=tmp_path / "made")
    manifest = json.loads((made / "adapter.json").read_text())
    manifest["shape"] |= shape
    (made / "adapter.json").write_text(json.dumps(manifest))
    with pytest.raises(CorruptFileError):
        load(model, adapters=made)


@ONE_TYPE
def test_its_memory_is_in_the_plan(model: Path) -> None:
    with load(model, context=500) as engine:
        assert engine.plan.depth == 0
        assert engine.target.weights.resident_blocks("lm_head") is not None
        (resident,) = engine.resident
        assert isinstance(resident, StreamingResident)
        with engine.new_session(300) as session:
            draft = drafter_of(session).streaming
            held = sum(p.nbytes for p in resident.module.parameters()) + draft.cache.nbytes
            logits = STREAM_ROWS * (1 + SHAPE.streams) * 4 * engine.target.config.vocab_size
            assert engine.plan.owners["drafter"] > held + logits
            assert 0 < resident.rows < DRAFT_ROWS + STREAM_ROWS * SHAPE.streams
            assert isinstance(drafter_of(session).start([Root((5,))], BUDGET), StreamedTree)
        assert engine.plan.owners["drawn drafts"] > 0
    with pytest.raises(edgespec.BudgetError, match="drafter"):
        load(model, memory=GIVEN.baseline + 10**6, resident_layers=None)
