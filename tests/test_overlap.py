"""Drafting while the target verifies: whatever is drafted between two chunks of a pass, the text stays."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import numpy as np
import pytest
import torch

import edgespec
from edgespec.config import GenerationOptions
from edgespec.control.handover import without_drafter
from edgespec.core.acceptance import make_acceptance
from edgespec.core.sampling import Noise
from edgespec.core.schedule import Context, TreeBudget
from edgespec.core.tree import TokenTree
from edgespec.drafters.base import Drafter, Drafting, Root
from edgespec.drafters.draft_model import DraftFiles
from edgespec.drafters.model import ModelDrafter
from edgespec.drafters.substitute import Substitute, SubstituteDrafter
from edgespec.engine import Engine
from edgespec.errors import BusyError, ContextError, ModelError
from edgespec.models.packing import pack_model
from edgespec.runtimes.base import KVCache
from edgespec.runtimes.rows import Rows
from edgespec.runtimes.target import EVERY_LAYER, Layers, Target
from edgespec.runtimes.torch.draft import TorchDraft
from edgespec.runtimes.torch.kv_cache import TorchKVCache
from edgespec.text.tokenizer import Tokenizer
from tests.test_session import prompt_of, write_model
from tests.tiny import fill, run_tree

PROMPT = prompt_of(70)  # the first slots share a block of keys with the prefix
COUNT = 40
BUDGET = TreeBudget(16, 16, 16)  # more passes than the target has chunks


@pytest.fixture(scope="module")
def packed(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("overlap")
    write_model(folder / "m")
    pack_model(str(folder / "m"), folder / "packed", substitute="int4")
    return folder / "packed"


@pytest.fixture(scope="module")
def engine(packed: Path) -> Iterator[Engine]:
    with edgespec.load(packed, memory="4GB", context=300, drafter="substitute", resident_layers=1) as engine:
        yield engine


class EveryChunk:
    """A pass's observer that advances a drafting before every chunk of weights."""

    hears: Layers = EVERY_LAYER

    def __init__(self, drafting: Drafting | None) -> None:
        self.drafting, self.steps = drafting, 0

    def on_chunk(self) -> None:
        self.steps += self.drafting is not None and self.drafting.step()

    def on_layer(self, index: int, hidden: torch.Tensor, rows: Rows) -> None:
        pass

    def on_wait(self) -> bool:
        return False


def reply(target: Target, cache: KVCache, drafter: Drafter | None, guess: list[int]) -> tuple[list[int], int]:
    """Greedy text behind PROMPT, each pass's drafts made during the pass before, below outcomes that are
    guessed (mostly rightly) from `guess`; and the steps of drafting that were made during passes."""
    layers = range(target.config.layers)
    rows = Rows.append(cache, np.arange(-1, len(PROMPT) - 1), prefill=True)
    hidden = target.run(target.embed(PROMPT), rows, layers)
    cache.commit(np.arange(len(PROMPT)))
    text = [int(target.logits(hidden[-1:])[0].argmax())]
    if drafter is not None:
        drafter.prefill(Context(PROMPT))
    acceptance, rng, steps = make_acceptance("greedy", GenerationOptions()), np.random.default_rng(0), 0
    tree = TokenTree.root(text[0])
    while len(text) < COUNT:
        ahead = [guess[len(text) - 1 :][: 1 + n] for n in (1, int(rng.integers(1, 5)))]
        roots = [Root(tuple(path), -0.5) for path in ahead] + [Root((text[-1], 3), -4.0)]
        drafting = drafter.start(roots, BUDGET) if drafter is not None else None
        observer = EveryChunk(drafting)
        rows = Rows.append(cache, tree.parents)
        hidden = target.run(target.embed(tree.tokens), rows, layers, observer)
        logits = target.logits(hidden, observer).numpy()
        outcome = acceptance.walk(tree, logits, Noise(0), cache.length + 1)
        cache.commit(outcome.path)
        steps += observer.steps
        path = (text[-1], *outcome.tokens)
        text += outcome.tokens
        tree = TokenTree.root(text[-1])
        if drafter is not None and drafting is not None:
            drafting.stop()
            tree = next((drafting.tree(i) for i, r in enumerate(roots) if r.path == path), tree)
            drafter.commit(path[0], outcome)
    return text[:COUNT], steps


@pytest.fixture(scope="module")
def plain(engine: Engine) -> list[int]:
    return reply(engine.target, engine.target.new_cache(200), None, [0] * (COUNT + 8))[0]


def substitute(engine: Engine, cache: KVCache) -> SubstituteDrafter:
    (opened,) = engine.resident
    assert isinstance(opened, Substitute)
    return opened.drafter(cache, engine.config.vocab_size)  # type: ignore[arg-type]


@pytest.mark.parametrize("kind", ["substitute", "model"])
def test_drafting_at_every_chunk_of_a_pass_leaves_the_text(
    engine: Engine, packed: Path, plain: list[int], kind: str
) -> None:
    cache = engine.target.new_cache(200)
    if kind == "substitute":
        drafter: Drafter = substitute(engine, cache)
    else:
        model = DraftFiles(packed.parent / "m", Tokenizer.from_directory(packed.parent / "m")).open()
        drafter = ModelDrafter(TorchDraft.alone(model, 200), engine.config.vocab_size)
    text, steps = reply(engine.target, cache, drafter, [*plain, *[0] * 8])
    assert steps > COUNT
    assert text == plain


def kv_of(cache: KVCache, slots: int) -> list[torch.Tensor]:
    """Copies of all keys and values, the prefix's and the first `slots` slots'."""
    assert isinstance(cache, TorchKVCache)
    return [kv[:, :, : cache.length + slots].clone() for kv in (cache.k, cache.v)]


@pytest.mark.parametrize("damaged", [False, True])
def test_drafts_leave_the_slots_of_a_pass_under_way(packed: Path, damaged: bool) -> None:
    """Also those of a low-bit copy that computes NaN, and of the wiping that follows."""
    with edgespec.load(packed, memory="4GB", context=300, drafter="substitute", resident_layers=1) as engine:
        target, cache = engine.target, engine.target.new_cache(200)
        drafter = substitute(engine, cache)
        fill(target, cache, PROMPT)
        drafter.prefill(Context(PROMPT))
        if damaged:
            for block in (b for blocks in drafter.runtime.model.weights.blocks.values() for b in blocks):
                if block.scale is not None:
                    block.scale.fill_(torch.nan)
        run_tree(target, cache, [5, 6, 7, 8], [-1, 0, 0, 2])
        before = kv_of(cache, 4)
        drafting = drafter.start([Root((5,)), Root((5, 9))], TreeBudget(20, 6, 6))
        try:
            while drafting.step():
                pass
        except ModelError:
            assert damaged
        else:
            assert not damaged
        assert all(torch.equal(a, b) for a, b in zip(before, kv_of(cache, 4), strict=True))
        assert len(cache.parents) == 4
        cache.commit([0, 2, 3])
        over = drafter.runtime.cache  # type: ignore[attr-defined]
        assert all(torch.isfinite(kv).all() for kv in (over.k, over.v))


@pytest.mark.parametrize("length", [0, 1, 63, 64, 70])
def test_an_overlay_sees_the_prefix_and_says_the_same(engine: Engine, length: int) -> None:
    """A tree in an overlay gets the logits that it would get in the cache itself, whatever lies there now."""
    target, cache = engine.target, engine.target.new_cache(200)
    if length:
        fill(target, cache, PROMPT[:length])
    tokens, parents = [5, 6, 7, 8, 9], [-1, 0, 0, 2, 1]
    expected = run_tree(target, cache, tokens, parents)
    run_tree(target, cache, [11] * 6, [4, 5, 6, 7, 8, 9])  # a pass under way
    over = cache.overlay(8)
    assert torch.equal(run_tree(target, over, tokens, parents), expected)  # type: ignore[arg-type]
    assert over.owner is over
    with pytest.raises(ContextError, match="places"):
        over.append([-1] * 70)


def test_what_an_overlay_keeps_says_what_it_said(engine: Engine) -> None:
    """Committing part of a tree keeps the rest's keys and values where their positions are, across a block's
    bound: what is run behind them finds them."""
    target, cache = engine.target, engine.target.new_cache(200)
    fill(target, cache, PROMPT[:62])
    over = cache.overlay(16)
    tokens, parents = [5, 6, 7, 8, 9, 10], [-1, 0, 1, 1, 3, 4]  # 5 6 [7 | 8 9 10]
    run_tree(target, over, tokens, parents)  # type: ignore[arg-type]
    run_tree(target, cache, [5, 6], [-1, 0])
    cache.commit([0, 1])
    over.commit([0, 1], keep=[3, 4, 5])
    assert over.length == cache.length == 64
    assert over.parents.tolist() == [-1, 0, 1]
    logits = run_tree(target, over, [11], [2])  # type: ignore[arg-type]
    assert torch.equal(logits, run_tree(target, cache, [8, 9, 10, 11], [-1, 0, 1, 2])[-1:])


def test_what_a_cache_keeps_says_what_it_said(engine: Engine) -> None:
    target, cache, fresh = engine.target, engine.target.new_cache(200), engine.target.new_cache(200)
    for c in (cache, fresh):
        fill(target, c, PROMPT[:62])
    run_tree(target, cache, [5, 3, 6, 7, 8, 9, 10], [-1, -1, 0, 2, 2, 4, 5])
    cache.commit([0, 2], keep=[4, 5, 6])
    logits = run_tree(target, cache, [11], [2])
    assert torch.equal(logits, run_tree(target, fresh, [5, 6, 8, 9, 10, 11], [-1, 0, 1, 2, 3, 4])[-1:])
    with pytest.raises(ValueError, match=r"slot 1 .*cannot be kept"):
        cache.commit([], keep=[1])
    with pytest.raises(ValueError, match=r"cannot be kept"):
        cache.commit([0], keep=[1, 3, 2])
    with pytest.raises(ValueError, match=r"does not continue"):
        cache.commit([1])
    cache.commit([0], keep=[1])
    assert cache.parents.tolist() == [-1]


def test_drafting_inside_is_refused_while_a_pass_is_under_way(engine: Engine) -> None:
    target, cache = engine.target, engine.target.new_cache(200)
    fill(target, cache, PROMPT)
    early = cache.inside()
    rows = Rows.append(early, [-1])
    assert early.owner is cache
    cache.append([-1, 0])
    before = kv_of(cache, 2)
    with pytest.raises(BusyError, match="over 2 slots behind 70 positions"):
        cache.inside()
    with pytest.raises(BusyError), cache.rewound(3, 9, 1):
        pass
    with pytest.raises(BusyError):
        early.append([-1])
    with pytest.raises(BusyError):
        early.wipe()
    with pytest.raises(BusyError):  # opened before the pass, written during it
        target.run(target.embed([5]), rows, range(1))
    assert all(torch.equal(a, b) for a, b in zip(before, kv_of(cache, 2), strict=True))
    cache.commit([0])
    with pytest.raises(BusyError, match="from 70 to 71"):  # where it would write is committed by now
        early.append([-1])
    cache.inside().append([-1])


def test_the_ledger_has_the_overlay(packed: Path) -> None:
    with edgespec.load(packed, memory="4GB", context=300, drafter="substitute", resident_layers=1) as engine:
        session = engine.new_session()
        over = session.schedule.drafter.runtime.cache  # type: ignore[attr-defined]
        assert engine.plan.owners["draft overlay"] == over.nbytes > 0
        assert "draft overlay" not in without_drafter(engine.plan).owners  # type: ignore[union-attr]
    with edgespec.load(packed, memory="4GB", context=300, drafter="substitute") as engine:
        assert engine.plan.owners["draft overlay"] == 0  # nothing streams, so nothing drafts
