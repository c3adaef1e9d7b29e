"""A cascade's parts: its tree, its caches along any accepted path, its files, and what it refuses."""

from __future__ import annotations

import json
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from typing import ClassVar

import numpy as np
import pytest
import torch
from torch import Tensor

import edgespec
from edgespec.config import GenerationOptions
from edgespec.control.handover import without_drafter
from edgespec.core.acceptance import Logits, Outcome
from edgespec.core.batch import Verification
from edgespec.core.sampling import Noise
from edgespec.core.schedule import Context, TreeBudget
from edgespec.core.tree import Computed, TokenTree, merge
from edgespec.drafters.base import Drafting, Root
from edgespec.drafters.cascade.drafter import CascadeDrafter
from edgespec.drafters.cascade.exits import AdapterExit
from edgespec.drafters.cascade.files import Cascade
from edgespec.drafters.cascade.tree import Calibration, RankedTree
from edgespec.drafters.cascade.variant import VARIANTS, Variant
from edgespec.engine import Engine
from edgespec.errors import BudgetError, Cancelled, ModelError, OptionError
from edgespec.offload.plan.costs import Rates
from edgespec.offload.plan.fill import make_plan
from edgespec.offload.plan.needs import Extras, MustPin, Needs, Request
from edgespec.runtimes.rows import Rows
from edgespec.runtimes.torch.adapter_files import MANIFEST
from edgespec.runtimes.torch.kv_cache import TorchKVCache
from edgespec.schedules.serial import Serial
from tests.test_cascade import DRAFT, LAYERS, VERIFY, load, quiet_model, train
from tests.test_plan import MB, table
from tests.test_session import prompt_of, write_model
from tests.tiny import prefill, verify

VOCABULARY = 160
TREE = replace(VARIANTS["tree"], stop=0.0)


@pytest.fixture(scope="module")
def model(tmp_path_factory: pytest.TempPathFactory) -> Path:
    path = quiet_model(tmp_path_factory.mktemp("model") / "m", torch_dtype="bfloat16")
    train(path, "random")
    return path


@pytest.fixture(scope="module")
def engine(model: Path) -> Iterator[Engine]:
    with load(model, "random") as engine:
        yield engine


# --- the ranked tree --------------------------------------------------------------------------------------


def test_a_second_opinion_reranks_and_corrects() -> None:
    tree = RankedTree(7, nodes=4, depth=5)
    tree.propose(0, [1, 2], np.log([0.6, 0.3]).tolist())
    tree.rank()
    assert tree.frontier(1) == [1]
    tree.propose(1, [3], [float(np.log(0.9))])
    tree.rank()
    assert [tree.tokens[node] for node in tree.selection] == [7, 1, 3, 2]
    tree.propose(0, [5, 1, 2], np.log([0.7, 0.1, 0.05]).tolist())  # the verifier: 5, which was not drafted
    tree.rank()
    assert [tree.tokens[node] for node in tree.selection] == [7, 5, 1, 3]
    assert tree.frontier(3) == [4]  # 3 is the least of a full tree: its children cannot join
    assert tree.chance([4, 3]) == pytest.approx(0.7 + 0.09)
    nodes, tokens, parents, logprobs = tree.arrays()
    assert nodes.tolist() == [0, 1, 3, 4]
    assert tokens.tolist() == [7, 1, 3, 5]
    assert parents.tolist() == [-1, 0, 1, 0]
    assert np.exp(logprobs) == pytest.approx([1, 0.1, 0.9, 0.7])


def test_impossible_tokens_stay_out_and_depth_is_kept() -> None:
    tree = RankedTree(7, nodes=8, depth=1)
    tree.propose(0, [1, 2], [-0.1, -np.inf])
    tree.rank()
    assert tree.tokens == [7, 1]
    assert tree.frontier(4) == []
    tree.propose(0, [1], [-np.inf])
    tree.rank()
    assert tree.selection == [0]


def test_calibration_learns_what_claims_are_worth() -> None:
    calibration = Calibration()
    claims = np.log([0.9, 0.1])
    assert np.exp(calibration(claims)) == pytest.approx([0.9, 0.1])
    rng = np.random.default_rng(0)
    for _ in range(600):  # claims 0.9, true in half of the cases; claims 0.1, true in a fifth
        calibration.learn(claims, np.array([rng.random() < 0.5, rng.random() < 0.2]))
    assert np.exp(calibration(claims)) == pytest.approx([0.5, 0.2], abs=0.08)
    assert calibration(np.array([0.0, -np.inf])).max() < 0
    assert np.isneginf(calibration(np.array([-np.inf])))[0]


# --- token trees that are computed inside the target ------------------------------------------------------


def computed_tree(tokens: list[int], parents: list[int], slots: list[int]) -> TokenTree:
    tree = TokenTree(np.array(tokens), np.array(parents), np.where(np.array(parents) < 0, 0.0, -0.5))
    return replace(tree, computed=Computed(np.array(slots), np.array([3, 3, 1, 1]), torch.empty(4, 2)))


def test_selecting_and_merging_keep_slots_with_their_nodes() -> None:
    tree = computed_tree([7, 1, 2, 3], [-1, 0, 0, 2], [0, 2, -1, -1])
    assert tree.starts.tolist() == [3, 1, 0, 0]
    part = tree.select([0, 2])
    assert part.computed is not None
    assert part.computed.slots.tolist() == [0, -1]
    assert tree.best(2).starts.tolist() == [3, 1]
    copies = TokenTree(np.array([7, 2, 9, 1]), np.array([-1, 0, 1, 0]), np.array([0, -0.1, -0.1, -0.1]))
    for order in ([copies, tree], [tree, copies]):
        merged = merge(order)
        starts = {tuple(merged.tokens[merged.path_to(i)].tolist()): s for i, s in enumerate(merged.starts)}
        assert starts == {(7,): 3, (7, 1): 1, (7, 2): 0, (7, 2, 9): 0, (7, 2, 3): 0}
    with pytest.raises(ValueError, match="two trees"):
        merge([tree, tree])
    with pytest.raises(ValueError, match="computed slots"):
        replace(tree, tokens=tree.tokens[:2], parents=tree.parents[:2], logprobs=tree.logprobs[:2]).validate()


# --- commit and rollback ----------------------------------------------------------------------------------


class Script:
    """Accepts what it is told, whatever the target says."""

    name: ClassVar[str] = "script"
    lossless: ClassVar[bool] = False

    def __init__(self, node: int, bonus: int) -> None:
        self.node, self.bonus = node, bonus

    def walk(self, tree: TokenTree, logits: Logits, noise: Noise, position: int) -> Outcome:
        path = tree.path_to(self.node)
        return Outcome(path, (*tree.tokens[path[1:]].tolist(), self.bonus), len(tree) - 1)


class Follower:
    """A conversation below the session: a cache, a cascade that follows it, and the text."""

    def __init__(self, engine: Engine, prompt: list[int], variant: Variant = TREE) -> None:
        (cascade,) = engine.resident
        assert isinstance(cascade, Cascade)
        self.target = engine.target
        self.cache = engine.target.new_cache(300)
        self.drafter = cascade.drafter(self.cache, variant=variant)
        prefill(self.target, self.cache, prompt, self.drafter)
        self.text = list(prompt)
        self.drafter.prefill(Context(prompt))

    def draft(self, root: int, budget: TreeBudget) -> TokenTree:
        drafting = self.drafter.start([Root((root,))], budget)
        while drafting.step():
            pass
        tree = drafting.tree()
        tree.validate(VOCABULARY)
        return tree

    def accept(self, root: int, tree: TokenTree, node: int, bonus: int) -> int:
        part = Verification(self.cache, tree, Script(node, bonus), Noise(0))
        (outcome,) = verify(self.target, [part], self.drafter)
        self.drafter.commit(root, outcome)
        self.text += [root, *outcome.tokens[:-1]]
        return bonus

    def keys(self) -> list[Tensor]:
        """Of the target and of both adapters."""
        self.drafter.catch_up()
        target = [kv for layer in range(LAYERS) for kv in self.cache.view(layer)]
        adapters = [kv for e in self.drafter.exits for kv in e.cache.view(0)]
        assert all(e.length == len(self.text) for e in self.drafter.exits)
        return [kv.clone() for kv in (*target, *adapters)]


@pytest.mark.parametrize("name", list(VARIANTS))
def test_caches_follow_any_path_bit_for_bit(engine: Engine, name: str) -> None:
    """Against a conversation that decodes the same tokens one by one."""
    rng = np.random.default_rng(0)
    variant = replace(VARIANTS[name], stop=0.0)
    ours, theirs = (Follower(engine, prompt_of(60), variant) for _ in range(2))
    root = 3
    for cycle in range(16):
        if cycle % 5 == 4:
            tree = TokenTree.root(root)  # a plain cycle
        else:
            tree = ours.draft(root, TreeBudget(int(rng.integers(2, 40)), 8, int(rng.integers(1, 9))))
        if cycle % 3 == 1:  # somebody else's branches, and only a part is verified
            wild = TokenTree(rng.integers(0, 160, 9), np.maximum(np.arange(-1, 8) // 2, -1), np.full(9, -1.0))
            wild.tokens[0], wild.logprobs[0] = root, 0.0
            tree = merge([wild, tree])
            tree = tree.best(min(len(tree), 30))
        root = ours.accept(root, tree, int(rng.integers(len(tree))), int(rng.integers(VOCABULARY)))
    assert len(ours.text) > 60 + 16 + 10, "hardly anything was accepted"
    for token in ours.text[60:]:
        theirs.accept(token, TokenTree.root(token), 0, 0)
    for mine, other in zip(ours.keys(), theirs.keys(), strict=True):
        assert torch.equal(mine, other)


def test_what_was_not_watched_is_computed_again(engine: Engine) -> None:
    ours = Follower(engine, prompt_of(80))
    root = 5
    for _ in range(4):
        tree = ours.draft(root, TreeBudget(20, 4, 4))
        root = ours.accept(root, tree, len(tree) - 1, 9)
    expected = ours.keys()
    fresh = engine.resident[0].drafter(ours.cache, VOCABULARY)
    assert isinstance(fresh, CascadeDrafter)
    fresh.prefill(Context(ours.text))
    before = [kv.clone() for layer in range(LAYERS) for kv in ours.cache.view(layer)]
    ours.drafter = fresh
    found = ours.keys()
    after = [kv for layer in range(LAYERS) for kv in ours.cache.view(layer)]
    assert all(torch.equal(a, b) for a, b in zip(before, after, strict=True)), "the target's own bits changed"
    for mine, other in zip(expected, found, strict=True):
        assert torch.allclose(mine.float(), other.float(), atol=0.05, rtol=0.05)


def test_a_prompt_that_is_watched_is_not_computed_again(
    engine: Engine, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("edgespec.core.batch.PREFILL_ROWS", 32)
    ours = Follower(engine, prompt_of(75))
    monkeypatch.setattr(ours.drafter, "_recompute", None)
    tree = ours.draft(4, TreeBudget(12, 4, 4))
    ours.accept(4, tree, 3, 8)
    ours.cache.truncate(50)  # an edited conversation
    prefill(ours.target, ours.cache, prompt_of(20, 7), ours.drafter)
    ours.text = [*prompt_of(75)[:50], *prompt_of(20, 7)]
    ours.drafter.prefill(Context(ours.text))
    found = ours.keys()
    again = Follower(engine, ours.text[:1])
    again.cache.truncate(0)
    prefill(again.target, again.cache, ours.text, again.drafter)
    again.text = ours.text
    again.drafter.prefill(Context(ours.text))
    for mine, other in zip(found, again.keys(), strict=True):
        assert torch.allclose(mine.float(), other.float(), atol=0.05, rtol=0.05)


def test_text_that_changed_unseen_is_noticed(engine: Engine) -> None:
    ours = Follower(engine, prompt_of(60))
    ours.cache.truncate(30)
    prefill(ours.target, ours.cache, prompt_of(40, 3))  # another schedule's reply, say
    ours.text = [*prompt_of(60)[:30], *prompt_of(40, 3)]
    ours.drafter.prefill(Context(ours.text))
    assert max(e.length for e in ours.drafter.exits) == 30
    again = Follower(engine, ours.text)
    for mine, other in zip(ours.keys(), again.keys(), strict=True):
        assert torch.allclose(mine.float(), other.float(), atol=0.05, rtol=0.05)


def test_computing_again_can_be_cancelled(engine: Engine) -> None:
    ours = Follower(engine, prompt_of(60))
    fresh = engine.resident[0].drafter(ours.cache, VOCABULARY)

    def check() -> None:
        raise Cancelled("the reply was cancelled")

    before = ours.keys()
    fresh.prefill(Context(ours.text, check=check))
    drafting = fresh.start([Root((3,))], TreeBudget(9, 4, 4))
    with pytest.raises(Cancelled):
        drafting.step()
    drafting.cancel()
    assert all(torch.equal(a, b) for a, b in zip(before, ours.keys(), strict=True))


def test_plain_cycles_wait_in_bounded_memory(engine: Engine) -> None:
    ours = Follower(engine, prompt_of(20))
    for token in prompt_of(100, 2):
        ours.accept(token, TokenTree.root(token), 0, 0)
        for e in ours.drafter.exits:
            assert len(e.pending) < 64
            assert all(state._base is None or state._base.nbytes <= 2 * state.nbytes for state in e.pending)
    assert len(ours.keys()[0][0]) == 120


# --- rounds -----------------------------------------------------------------------------------------------


class Opinion:
    """An exit that always says the same: the next tokens and their probabilities."""

    def __init__(self, depth: int, chances: dict[int, float]) -> None:
        self.depth = depth
        rest = (1 - sum(chances.values())) / (VOCABULARY - len(chances))
        self.row = torch.full((VOCABULARY,), float(np.log(max(rest, 1e-9))))
        for token, chance in chances.items():
            self.row[token] = float(np.log(chance))
        self.seen: list[int] = []

    def logits(self, hidden: Tensor, rows: Rows) -> Tensor:
        self.seen.append(rows.n)
        return self.row.expand(rows.n, -1)


def rounds(engine: Engine, draft: Opinion, verify: Opinion | None, variant: Variant, steps: int) -> Drafting:
    cache = engine.target.new_cache(100)
    drafter = CascadeDrafter(engine.target, cache, draft, verify, variant)
    drafter.prefill(Context([]))
    drafting = drafter.start([Root((1,))], TreeBudget(40, 16, steps))
    while drafting.step():
        pass
    return drafting


def test_a_chain_and_its_corrections_are_algorithm_1(engine: Engine) -> None:
    draft, shallow = Opinion(DRAFT, {5: 0.8}), Opinion(VERIFY, {9: 0.7, 5: 0.2})
    tree = rounds(engine, draft, shallow, VARIANTS["chain"], 4).tree()
    assert draft.seen == [1, 1, 1, 1]
    assert shallow.seen == [4]
    chain = [0, *[i for i in range(1, len(tree)) if tree.tokens[i] == 5]]
    assert tree.parents[chain].tolist() == [-1, *chain[:-1]]
    corrections = [i for i in range(len(tree)) if tree.tokens[i] == 9]
    assert tree.parents[corrections].tolist() == chain[:-1]  # of the draft's prefix, also behind a mismatch
    assert np.exp(tree.logprobs[1:]) == pytest.approx(np.where(tree.tokens[1:] == 9, 0.7, 0.2), abs=0.01)
    assert tree.starts[chain].tolist() == [VERIFY] * 4 + [0]
    assert (tree.starts[corrections] == 0).all()


def test_corrections_are_drafted_on_from_and_looked_through(engine: Engine) -> None:
    draft, shallow = Opinion(DRAFT, {5: 0.8}), Opinion(VERIFY, {9: 0.9, 5: 0.05})
    variant = Variant(branch=2, width=2, round=3, after=1, stop=0.0)
    tree = rounds(engine, draft, shallow, variant, 6).tree()
    assert len(shallow.seen) == 2
    assert len(draft.seen) == 7
    path, node = [], 0
    while len(children := tree.children(node)):
        node = int(children[np.argmax(tree.logprobs[children])])
        path.append(int(tree.tokens[node]))
    assert path[:2] == [9, 9]  # the likeliest path are corrections
    behind = [n for n in range(len(tree)) if tree.tokens[n] == 9 and len(tree.children(n))]
    assert behind, "no correction was drafted on from"
    assert set(tree.starts.tolist()) == {0, DRAFT, VERIFY}


def test_it_stops_where_it_is_not_sure(engine: Engine) -> None:
    unsure = Opinion(DRAFT, {5: 0.4, 6: 0.3, 7: 0.3})
    chain = Variant(branch=1, width=1, round=0, after=0, stop=0.1)
    tree = rounds(engine, unsure, None, chain, 16).tree()
    assert len(unsure.seen) == 3  # 0.4^3 < 0.1: no fourth step
    assert len(tree) == 4
    rounds(engine, sure := Opinion(DRAFT, {5: 0.97}), None, chain, 16)
    assert len(sure.seen) == 16
    assert len(rounds(engine, sure, None, chain, 0).tree()) == 1


@pytest.mark.parametrize("value", [torch.nan, torch.inf])
def test_damaged_adapters_are_found_out(engine: Engine, value: float) -> None:
    sound, damaged = Opinion(DRAFT, {}), Opinion(DRAFT, {})
    damaged.row[1] = value
    for first, second in ((damaged, sound), (sound, damaged)):
        with pytest.raises(ModelError, match="not finite"):
            rounds(engine, first, second, TREE, 6)


def test_one_root_at_a_time(engine: Engine) -> None:
    drafter = engine.resident[0].drafter(engine.target.new_cache(64), VOCABULARY)
    for roots in ([Root((1,)), Root((2,))], [Root((1, 2))]):
        with pytest.raises(ValueError, match="one root"):
            drafter.start(roots, TreeBudget(8, 4, 4))


# --- files, plan, refusals --------------------------------------------------------------------------------


def test_the_deepest_verifier_that_fits_is_taken(model: Path, engine: Engine) -> None:
    assert engine.plan.depth == VERIFY
    with load(model, "random", resident_layers=2) as shallower:
        (cascade,) = shallower.resident
        assert isinstance(cascade, Cascade)
        assert cascade.verify is not None
        assert (shallower.plan.depth, cascade.verify.depth) == (2, 2)
        pinned = {c.layer for c in shallower.plan.table.chunks if c.index in shallower.plan.pinned}
        assert pinned == {0, 1, LAYERS}
    with load(model, "random", resident_layers=None) as whole:
        assert whole.plan.depth == VERIFY
        assert not whole.plan.streamed


def needs_of_a_cascade() -> Needs:
    extras = Extras({"drafter": lambda n: 9 * MB}, MustPin("the cascade", "drafts in", (3, 5, 7)))
    return Needs(40 * MB, MB, 5 * MB, lambda n: n * 1000, 2048, extras)


@pytest.mark.parametrize("dial", range(225, 400, 25))
def test_the_plan_pins_the_head_and_the_first_layers(dial: int) -> None:
    model = table()  # 8 layers of 25 MB, a head of 12.6 MB
    needs = needs_of_a_cascade()
    rates = Rates(read=2.0, compute=10.0)
    made = make_plan(model, needs, rates, Request(dial * MB, context=512))
    assert made.ledger.used <= dial * MB
    held = {c.index for c in model.chunks if c.layer < made.depth or c.layer == 8}
    assert held <= made.pinned
    deeper = [d for d in needs.extras.depths if d > made.depth]
    if deeper:
        more = sum(c.read_bytes for c in model.chunks if c.layer < deeper[0] or c.layer == 8)
        least_ring = 3 * model.chunks[0].read_bytes
        others = made.ledger.used - made.owners["pinned weights"] - made.owners["ring"]
        assert others + more + least_ring > dial * MB, "a deeper verifier would have fitted"


def test_a_dial_too_small_says_what_would_do() -> None:
    needs = needs_of_a_cascade()
    rates = Rates(read=2.0, compute=10.0)
    with pytest.raises(BudgetError, match="3 layers and the head pinned for the cascade") as refused:
        make_plan(table(), needs, rates, Request(180 * MB, context=512))
    assert refused.value.owners["drafter"] == 9 * MB
    assert refused.value.owners["pinned weights"] > 80 * MB
    assert "drafter" in str(refused.value)
    smallest = refused.value.smallest
    assert make_plan(table(), needs, rates, Request(smallest, context=512)).depth == 3
    with pytest.raises(BudgetError):
        make_plan(table(), needs, rates, Request(smallest - 2 * MB, context=512))


def test_its_bytes_are_in_the_ledger(engine: Engine) -> None:
    (cascade,) = engine.resident
    assert isinstance(cascade, Cascade)
    drafter = cascade.drafter(engine.target.new_cache(engine.plan.context))
    assert cascade.verify is not None
    held = cascade.draft.nbytes + cascade.verify.nbytes + sum(e.cache.nbytes for e in drafter.exits)
    assert held <= engine.plan.owners["drafter"] <= held + 10**6
    assert cascade.nbytes < engine.plan.table.nbytes


def test_refusals(model: Path, tmp_path: Path) -> None:
    adapters = model / "random"
    with pytest.raises(OptionError, match="adapters="):
        edgespec.load(model, memory="2GB", drafter="cascade")
    with pytest.raises(OptionError, match="does not use the adapters"):
        edgespec.load(model, memory="2GB", drafter="ngram", adapters=adapters)
    with pytest.raises(OptionError, match="choose one of them"):
        edgespec.load(model, memory="2GB", drafter="cascade+model", adapters=adapters, draft_model=model)
    with pytest.raises(OptionError, match="would both draft"):
        edgespec.load(model, memory="2GB", adapters=adapters, draft_model=model)
    with pytest.raises(OptionError, match="drafts in 2 pinned"):
        load(model, "random", resident_layers=1)
    with pytest.raises(ModelError, match=r"train_cascade\(model="):
        edgespec.load(model, memory="2GB", drafter="cascade", adapters=tmp_path)
    other = write_model(tmp_path / "other", seed=5, num_hidden_layers=LAYERS)
    with pytest.raises(ModelError, match="trained for"):
        edgespec.load(other, memory="2GB", drafter="cascade", adapters=adapters)
    with pytest.raises(OptionError, match="no low-bit copy"):
        edgespec.load(model, memory="2GB", drafter="cascade+substitute", adapters=adapters)
    with pytest.raises(BudgetError, match="drafter"):
        edgespec.load(model, memory=10**6, drafter="cascade", adapters=adapters)


@pytest.mark.parametrize(("depths", "message"), [((2, 2), "not deeper"), ((1,), "no verify adapter")])
def test_a_pair_that_is_none_is_refused(tmp_path: Path, depths: tuple[int, ...], message: str) -> None:
    path = quiet_model(tmp_path / "m")
    train(path, "random", (2, 3))
    manifest = json.loads((path / "random" / MANIFEST).read_text())
    if len(depths) == 1:
        del manifest["adapters"][1]
    else:
        manifest["adapters"][1]["depth"] = 2
    (path / "random" / MANIFEST).write_text(json.dumps(manifest))
    with pytest.raises(ModelError, match=message):
        load(path, "random")


def test_auto_does_without_where_it_does_not_fit(model: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    from edgespec.drafters.cascade.files import CascadeFiles

    monkeypatch.setattr(CascadeFiles, "nbytes", lambda self, context: 3 * 10**9)
    with load(model, "random", resident_layers=None, drafter="auto") as engine:
        assert engine.drafters == ("ngram",)
        assert "no room to draft with the cascade" in engine.plan.reasons
    with pytest.raises(BudgetError):
        load(model, "random", resident_layers=None)


def test_a_losing_cascade_makes_room_for_layers(model: Path) -> None:
    options = GenerationOptions(max_tokens=40)
    with load(model, drafter="none") as engine:
        expected = edgespec.generate(engine, prompt_of(20), options).tokens
    with load(model, "random") as engine:
        after = without_drafter(replace(engine.plan, ledger=replace(engine.plan.ledger, dial=10**10)))
        assert after is not None
        engine.holdings.without_drafter = after  # as if the layers had not been pinned by hand
        (cascade,) = engine.resident
        assert isinstance(cascade, Cascade)
        session = engine.new_session()
        assert isinstance(session.schedule, Serial)
        handover = engine.holdings.handover
        handover.record = lambda tokens, took: len(session.tokens) > 40  # type: ignore[method-assign]
        assert [r.token for r in session.generate(prompt_of(20), options)] == expected
        assert engine.resident == []
        assert cascade.draft.nbytes == 0
        assert "drafter" not in engine.plan.owners
        assert set(engine.target.weights.pinned) == engine.plan.pinned


def test_an_exit_drops_a_row_that_it_has_not_seen(engine: Engine) -> None:
    """An outcome nobody watched leaves a gap, not a wrong entry."""
    cascade = engine.resident[0]
    assert isinstance(cascade, Cascade)
    cache = TorchKVCache(engine.config, 64, 64, engine.target.dtype, engine.target.device)
    own = AdapterExit(engine.target, cascade.draft, cache.capacity)
    own.commit(0, [], [0])
    assert own.length == 0
    own.observe(torch.zeros(2, 64, dtype=torch.bfloat16), np.array([0, 3]), 0, prefill=False)
    own.commit(0, [], [0, 3, 5])
    assert own.length == 2
    own.commit(7, [], [0])  # the target is further: what lies between was not seen
    assert own.length == 2
