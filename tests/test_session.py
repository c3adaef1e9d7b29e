"""Sessions on a real engine over tiny random models: limits, reuse, cancellation, sharing."""

from __future__ import annotations

import gc
import weakref
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import numpy as np
import pytest
import torch
from safetensors.torch import load_file, save_file
from tokenizers import Tokenizer as Backend
from tokenizers import decoders, models, pre_tokenizers
from torch import Tensor

import edgespec
from edgespec.config import GenerationOptions
from edgespec.control.controller import Adaptive
from edgespec.core.acceptance import make_acceptance
from edgespec.core.batch import Verification
from edgespec.core.sampling import Noise
from edgespec.core.tree import TokenTree
from edgespec.engine import Engine
from edgespec.errors import (
    BudgetError,
    Cancelled,
    ClosedError,
    ContextError,
    DeviceError,
    ModelError,
    OptionError,
)
from edgespec.kernels.matmul import Block, linear
from edgespec.models.packing import pack_model
from edgespec.progress import Progress
from edgespec.runtimes.base import TREE_ROWS
from edgespec.runtimes.rows import Rows
from edgespec.runtimes.torch import weights
from edgespec.schedules.serial import Serial
from tests.packed import pack_checkpoint
from tests.tiny import verify, write_checkpoint

GREEDY = GenerationOptions(max_tokens=30)


def write_model(path: Path, **changes: object) -> Path:
    """A random model with a tokenizer of one token a byte (ids 0-127) and 32 unused rows."""
    write_checkpoint(path, **changes)
    alphabet = sorted(pre_tokenizers.ByteLevel.alphabet())[:128]
    backend = Backend(models.BPE({letter: i for i, letter in enumerate(alphabet)}, []))
    backend.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    backend.decoder = decoders.ByteLevel()
    backend.save(str(path / "tokenizer.json"))
    return path


def packed_with_copy(folder: Path, **changes: object) -> Path:
    """A model `folder`/m, packed with its int4 copy."""
    model = write_model(folder / "m", **changes)
    pack_model(str(model), folder / "packed", substitute="int4")
    return folder / "packed"


@pytest.fixture(scope="module")
def model(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return write_model(tmp_path_factory.mktemp("model") / "m")


@pytest.fixture(scope="module")
def engine(model: Path) -> Engine:
    return edgespec.load(model, memory="2GB", context=400)


def tokens_of(engine: Engine, prompt: list[int], options: GenerationOptions = GREEDY) -> list[int]:
    return edgespec.generate(engine, prompt, options).tokens


def prompt_of(n: int, seed: int = 0) -> list[int]:
    return np.random.default_rng(seed).integers(0, 128, n).tolist()


def test_streamed_text_equals_resident_text(model: Path, engine: Engine) -> None:
    with edgespec.load(model, memory="2GB", context=400, resident_layers=1) as streamed:
        assert streamed.plan.bytes_per_pass > 0
        for options in (GREEDY, GenerationOptions(max_tokens=30, temperature=0.8, top_p=0.9, seed=5)):
            assert tokens_of(streamed, prompt_of(20), options) == tokens_of(engine, prompt_of(20), options)
        before = streamed.bytes_read
        tokens_of(streamed, prompt_of(20))
        assert streamed.bytes_read - before >= 29 * streamed.plan.streamed_bytes


def test_loading_shows_what_it_does_from_the_start(model: Path) -> None:
    seen: list[Progress] = []
    with edgespec.load(model, memory="2GB", context=400, draft_model=model, progress=seen.append) as engine:
        assert seen[0] == Progress("probe", 0, 1, "steps")
        loads = seen[1:]
        total = 2 * engine.plan.pinned_bytes  # the model and the one that drafts
    assert {(p.stage, p.total) for p in loads} == {("load", total)}
    assert loads[-1].done == total
    assert [p.done for p in loads] == sorted(p.done for p in loads)


@pytest.mark.parametrize("tied", [False, True])
def test_resident_engine_reads_nothing(tmp_path: Path, tied: bool) -> None:
    with edgespec.load(write_model(tmp_path / "m", tie_word_embeddings=tied), memory="2GB") as engine:
        before = engine.bytes_read
        tokens_of(engine, prompt_of(20))
        assert engine.bytes_read == before


def test_long_prompts_are_prefilled_in_blocks(engine: Engine, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("edgespec.core.batch.PREFILL_ROWS", 100)
    session, seen = engine.new_session(), list[Progress]()
    list(session.generate(prompt_of(240), GREEDY, seen.append))
    assert [p.done for p in seen if p.stage == "prefill"] == [100, 200, 240]
    assert [p.done for p in seen if p.stage == "layers"][:3] == [1, 2, 3]
    session.close()


@pytest.mark.parametrize("drafter", ["none", "ngram", "model"])
def test_a_closed_sessions_memory_is_free_though_somebody_holds_its_reply(model: Path, drafter: str) -> None:
    draft = {"draft_model": model} if drafter == "model" else {}
    with edgespec.load(model, memory="2GB", context=400, drafter=drafter, **draft) as engine:
        session = engine.new_session(200)
        running = session.generate(prompt_of(25), GREEDY)
        for _ in range(5):
            next(running)
        held = [weakref.ref(session.cache), weakref.ref(session.schedule)]
        session.close()
        gc.collect()
        assert [one() for one in held] == [None, None]
        assert [response.finish_reason for response in running][-1] == "cancelled"
        with pytest.raises(ClosedError):
            session.generate(prompt_of(25), GREEDY)


def test_a_session_closed_while_others_compute_its_part_answers_no_more(engine: Engine) -> None:
    session = engine.new_session(200)
    reply = session.new_reply(prompt_of(25), GREEDY)
    for _ in range(3):
        part = session.ask(reply)
        engine.verifier.compute([part])
        list(session.answer(reply, part))
    part = session.ask(reply)
    engine.verifier.compute([part])
    session.close()
    with pytest.raises(Cancelled):
        session.answer(reply, part)
    session.end(reply)


def test_next_turn_reuses_what_it_shares(engine: Engine) -> None:
    session = engine.new_session()
    first = list(session.generate(prompt_of(30), GREEDY))
    reply = [r.token for r in first if r.token is not None]
    follow = prompt_of(30) + reply + prompt_of(10, seed=1)
    second = list(session.generate(follow, GREEDY))
    # All but the last reply token, which was never run through the model, and the new tokens.
    assert second[-1].stats.reused_tokens == 30 + len(reply) - 1
    assert second[-1].stats.prompt_tokens == len(follow)
    edited = prompt_of(20) + prompt_of(10, seed=2)
    third = list(session.generate(edited, GREEDY))
    assert third[-1].stats.reused_tokens == 20
    session.close()
    fresh = tokens_of(engine, edited)
    assert [r.token for r in third] == fresh


def test_same_prompt_again_gives_the_same_reply(engine: Engine) -> None:
    session = engine.new_session()
    replies = [[r.token for r in session.generate(prompt_of(25), GREEDY)] for _ in range(3)]
    assert replies[0] == replies[1] == replies[2]
    session.close()


def test_limits_are_refused_up_front_with_both_counts(engine: Engine) -> None:
    session = engine.new_session(100)
    with pytest.raises(ContextError, match=r"90 tokens and the reply may have 20, together 110, but .* 100"):
        session.generate(prompt_of(90), GenerationOptions(max_tokens=20))
    with pytest.raises(ContextError):
        session.generate(prompt_of(100))
    assert [r.finish_reason for r in session.generate(prompt_of(90))][-1] == "length"
    assert len(session.tokens) == 99  # the last token is not run through the model
    with pytest.raises(OptionError, match="empty"):
        session.generate([])
    with pytest.raises(OptionError, match="160"):
        session.generate([160])
    session.close()


def test_sessions_share_the_context_budget(engine: Engine) -> None:
    with pytest.raises(BudgetError, match="401 positions"):
        engine.new_session(401)
    first = engine.new_session(200)
    with pytest.raises(BudgetError, match=f"hold 200, and a further one takes {TREE_ROWS} for its trees"):
        engine.new_session(201 - TREE_ROWS)
    second = engine.new_session(200 - TREE_ROWS)
    assert engine.pool.free == 0  # with the rows of both
    with pytest.raises(BudgetError, match="another session does not fit"):
        engine.new_session()
    first.close()
    assert engine.new_session().context == 200 - TREE_ROWS
    second.close()
    third = engine.new_session()
    assert third.context == 400
    del third  # forgotten sessions give their memory back, too
    assert engine.new_session().context == 400


def test_kv_memory_that_the_system_refuses_is_a_typed_error(engine: Engine) -> None:
    with pytest.raises(DeviceError, match=r"refused \d+ bytes for a KV cache of 1000000000000 positions"):
        engine.target.new_cache(10**12)


def test_cancel_keeps_the_session_usable(engine: Engine) -> None:
    expected = tokens_of(engine, prompt_of(25))
    session = engine.new_session()
    got = []
    for response in session.generate(prompt_of(25), GREEDY):
        got.append(response)
        if len(got) == 7:
            session.cancel()
    assert got[-1].finish_reason == "cancelled"
    assert [r.token for r in got[:7]] == expected[:7]
    assert session.cache.length == len(session.tokens)
    again = [r.token for r in session.generate(prompt_of(25), GREEDY)]
    assert again == expected
    session.close()


@pytest.mark.parametrize("resident", [None, 1])
def test_cancel_is_heard_within_a_chunk(
    model: Path, monkeypatch: pytest.MonkeyPatch, resident: int | None
) -> None:
    """In the middle of a layer, be it pinned or streamed, of a prompt's pass."""
    with edgespec.load(model, memory="2GB", context=400, resident_layers=resident) as engine:
        session, multiplied = engine.new_session(), 0

        def counted(x: Tensor, block: Block, exact: bool) -> Tensor:
            nonlocal multiplied
            multiplied += 1
            if multiplied == 10:  # q, k, v, o, gate, up, down of layer 0, and up to v of layer 1
                session.cancel()
            return linear(x, block, exact)

        monkeypatch.setattr(weights, "linear", counted)
        replies = list(session.generate(prompt_of(25), GREEDY))
        assert [r.finish_reason for r in replies] == ["cancelled"]
        assert multiplied == 10
        monkeypatch.undo()
        assert len([r for r in session.generate(prompt_of(25), GREEDY) if r.token is not None]) == 30


@pytest.mark.parametrize("error", [KeyboardInterrupt, Cancelled])
def test_an_exception_inside_a_pass_leaves_the_cache_committed(
    engine: Engine, error: type[BaseException]
) -> None:
    expected = tokens_of(engine, prompt_of(25))
    session, calls = engine.new_session(), 0

    def interrupt(progress: Progress) -> None:
        nonlocal calls
        calls += 1
        if calls == 20:
            raise error

    replies = session.generate(prompt_of(25), GREEDY, interrupt)
    if error is KeyboardInterrupt:
        with pytest.raises(KeyboardInterrupt):
            list(replies)
    else:
        assert list(replies)[-1].finish_reason == "cancelled"
    assert session.cache.length == len(session.tokens)
    assert len(session.cache.parents) == 0
    assert [r.token for r in session.generate(prompt_of(25), GREEDY)] == expected
    session.close()


def test_two_replies_at_once_on_one_session_are_refused(engine: Engine) -> None:
    session = engine.new_session()
    running = session.generate(prompt_of(10), GREEDY)
    next(running)
    with pytest.raises(OptionError, match="already replying"):
        session.generate(prompt_of(10), GREEDY)
    running.close()
    assert len(list(session.generate(prompt_of(10), GREEDY))) == 30
    session.close()


def test_sessions_of_one_engine_do_not_disturb_each_other(engine: Engine) -> None:
    prompts = [prompt_of(20, seed=3), prompt_of(33, seed=4)]
    expected = [tokens_of(engine, p) for p in prompts]
    sessions = [engine.new_session(100), engine.new_session(100)]
    running = [s.generate(p, GREEDY) for s, p in zip(sessions, prompts, strict=True)]
    turns = [[r.token for r in pair] for pair in zip(*running, strict=True)]
    assert [list(column) for column in zip(*turns, strict=True)] == expected
    for session in sessions:
        session.close()


def test_a_refused_request_leaves_no_session_behind(model: Path) -> None:
    with edgespec.load(model, memory="2GB", context=400) as engine:
        try:
            edgespec.generate(engine, prompt_of(500))
        except ContextError:  # its traceback still holds whatever there was
            assert tokens_of(engine, prompt_of(20))


def test_the_next_session_knows_what_cycles_cost(model: Path) -> None:
    with edgespec.load(model, memory="2GB", context=400, drafter="ngram") as engine:
        tokens_of(engine, prompt_of(20))
        learned = engine.controller
        assert learned.costs.verify.weight(1) > 0
        session = engine.new_session()
        assert isinstance(session.schedule, Serial)
        assert isinstance(session.schedule.controller, Adaptive)
        assert session.schedule.controller.costs is learned.costs
        assert engine.controller is learned  # of the latest session that has replied


def test_sessions_may_reply_in_threads_of_their_own(model: Path) -> None:
    prompts = [prompt_of(20, seed=7), prompt_of(50, seed=8)]
    with edgespec.load(model, memory="2GB", context=400, resident_layers=1) as engine:
        expected = [tokens_of(engine, prompt) for prompt in prompts]
        sessions = [engine.new_session(100), engine.new_session(100)]

        def run(session: edgespec.Session, prompt: list[int]) -> list[int | None]:
            return [response.token for response in session.generate(prompt, GREEDY)]

        with ThreadPoolExecutor(2) as pool:
            assert list(pool.map(run, sessions, prompts)) == expected


def test_several_sessions_verify_in_one_pass(engine: Engine) -> None:
    prompts = [prompt_of(20, seed=5), prompt_of(70, seed=6)]
    expected = [tokens_of(engine, p) for p in prompts]
    greedy = make_acceptance("greedy", GREEDY)
    target, parts, got = engine.target, [], []
    for prompt, text in zip(prompts, expected, strict=True):
        cache = target.new_cache(120)
        rows = Rows.append(cache, np.arange(-1, len(prompt) - 1), prefill=True)
        target.run(target.embed(prompt), rows, range(3))
        cache.commit(np.arange(len(prompt)))
        parts.append(Verification(cache, TokenTree.root(text[0]), greedy, Noise(0)))
        got.append([text[0]])
    for _ in range(29):
        for reply, part, outcome in zip(got, parts, verify(target, parts), strict=True):
            reply += outcome.tokens
            part.tree = TokenTree.root(outcome.tokens[-1])
    assert got == expected


@pytest.mark.parametrize(("sizes", "prefill", "most"), [([40, 25], False, 64), ([300, 213], True, 512)])
def test_a_pass_larger_than_the_plan_is_refused(
    engine: Engine, sizes: list[int], prefill: bool, most: int
) -> None:
    """Rows of several conversations may share a pass, but its temporaries are in the ledger once."""
    caches = [engine.target.new_cache(400) for _ in sizes]
    parts = [Rows.append(c, np.arange(-1, n - 1), prefill) for c, n in zip(caches, sizes, strict=True)]
    rows = Rows.concat(parts)
    with pytest.raises(OptionError, match=f"pass of {sum(sizes)} rows is larger than the {most}"):
        engine.target.run(engine.target.embed([5] * rows.n), rows, range(3))


def test_trees_too_large_together_leave_their_caches_committed(engine: Engine) -> None:
    greedy, trees = make_acceptance("greedy", GREEDY), []
    for n in (40, 25):
        cache = engine.target.new_cache(100)
        tree = TokenTree(np.full(n, 5), np.arange(-1, n - 1), np.zeros(n))
        trees.append(Verification(cache, tree, greedy, Noise(0)))
    with pytest.raises(OptionError, match="65 rows"):
        verify(engine.target, trees)
    assert [len(t.cache.parents) for t in trees] == [0, 0]
    assert len(verify(engine.target, trees[:1])) == 1


@pytest.mark.parametrize("length", [20, 300])  # the second is multiplied as a prompt's block
def test_numbers_beyond_float16_are_an_error_and_bf16_is_the_remedy(tmp_path: Path, length: int) -> None:
    """As in a bfloat16 model that somebody stored as F16: its weights fit, what it computes does not."""
    path = write_model(tmp_path / "m", torch_dtype="float16")
    tensors = load_file(path / "model.safetensors")
    tensors["model.layers.1.mlp.down_proj.weight"] *= 20_000
    save_file(tensors, path / "model.safetensors", metadata={"format": "pt"})
    assert all(bool(torch.isfinite(t).all()) for t in tensors.values())
    with (
        edgespec.load(path, memory="2GB", context=400) as engine,
        pytest.raises(ModelError, match=r"range of float16.*precision='bf16'"),
    ):
        tokens_of(engine, prompt_of(length))
    packed = pack_checkpoint(path, tmp_path / "p", "bf16")
    with edgespec.load(packed, memory="2GB", context=400) as engine:
        assert len(tokens_of(engine, prompt_of(length))) == 30
    tensors["model.layers.1.mlp.down_proj.weight"][3, 3] = torch.nan
    save_file(tensors, path / "model.safetensors", metadata={"format": "pt"})
    packed = pack_checkpoint(path, tmp_path / "damaged", "bf16")
    with (
        edgespec.load(packed, memory="2GB", context=400) as engine,
        pytest.raises(ModelError, match="weights are damaged"),
    ):
        tokens_of(engine, prompt_of(length))


def test_stop_strings_and_eos(engine: Engine) -> None:
    whole = edgespec.generate(engine, prompt_of(25), max_tokens=30)
    assert whole.finish_reason == "length"
    stop = whole.text[10:13]
    stopped = edgespec.generate(engine, prompt_of(25), max_tokens=30, stop=(stop,))
    assert stopped.finish_reason == "stop"
    assert stopped.text == whole.text[: whole.text.index(stop)]


def test_eos_of_the_generation_config_ends_the_reply(tmp_path: Path, engine: Engine) -> None:
    plain = tokens_of(engine, prompt_of(25))
    path = write_model(tmp_path / "m")
    (path / "generation_config.json").write_text(f'{{"eos_token_id": [{plain[5]}]}}')
    with edgespec.load(path, memory="2GB", context=400) as stopping:
        reply = edgespec.generate(stopping, prompt_of(25), max_tokens=30)
    assert reply.finish_reason == "stop"
    assert reply.tokens == plain[: plain.index(plain[5]) + 1]


def test_options_are_checked(model: Path, engine: Engine) -> None:
    with pytest.raises(OptionError, match=r"unknown generation option max_token;.*max_tokens"):
        edgespec.generate(engine, prompt_of(5), max_token=3)
    with pytest.raises(OptionError, match="temperature"):
        edgespec.generate(engine, prompt_of(5), temperature=-1)
    with pytest.raises(DeviceError, match="npu"):
        edgespec.load(model, device="npu")
    with pytest.raises(OptionError, match="device_memory"):
        edgespec.load(model, device="cpu", device_memory="1GB")
    with pytest.raises(
        OptionError, match=r"holds source weights, not int8; .*pack_model\(model=.*, precision='int8'\)"
    ):
        edgespec.load(model, precision="int8")


def test_seeds_change_sampled_text_and_repeat_it(engine: Engine) -> None:
    def sample(seed: int) -> list[int]:
        return tokens_of(engine, prompt_of(9), GenerationOptions(max_tokens=30, temperature=1.0, seed=seed))

    assert sample(1) == sample(1)
    assert sample(1) != sample(2)
