"""A small model as a drafter: what it proposes, how its cache follows the target, what it refuses."""

from __future__ import annotations

import itertools
from pathlib import Path

import numpy as np
import pytest
import torch

from edgespec.config import GenerationOptions
from edgespec.core.acceptance import Outcome
from edgespec.core.sampling import Noise, Sampler
from edgespec.core.schedule import Context, TreeBudget
from edgespec.core.tree import TokenTree
from edgespec.drafters.base import Drafting, Root
from edgespec.drafters.combined import Combined
from edgespec.drafters.continuations import likeliest
from edgespec.drafters.draft_model import DraftFiles
from edgespec.drafters.growth import BRANCH
from edgespec.drafters.model import LONG_TAIL, ModelDrafter
from edgespec.drafters.ngram import NGram
from edgespec.drafters.vocabulary import check_vocabulary
from edgespec.errors import Cancelled, TokenizerError
from edgespec.kernels.matmul import Block
from edgespec.runtimes.torch.draft import TorchDraft
from edgespec.runtimes.torch.kv_cache import TorchKVCache
from edgespec.runtimes.torch.target import TorchTarget
from edgespec.text.tokenizer import Tokenizer
from tests.test_session import write_model
from tests.tiny import SHAPE, fill, open_tiny, run_tree, write_checkpoint

VOCABULARY = 160
PROMPT = np.random.default_rng(0).integers(0, VOCABULARY, 30).tolist()


@pytest.fixture(scope="module")
def model(tmp_path_factory: pytest.TempPathFactory) -> TorchTarget:
    return open_tiny(write_checkpoint(tmp_path_factory.mktemp("draft")))


def drafter_of(model: TorchTarget, context: int = 200) -> ModelDrafter:
    drafter = ModelDrafter(TorchDraft.alone(model, context), VOCABULARY)
    drafter.prefill(Context(PROMPT))
    return drafter


def cache_of(drafter: ModelDrafter) -> TorchKVCache:
    cache = drafter.runtime.cache  # type: ignore[attr-defined]
    assert isinstance(cache, TorchKVCache)
    return cache


def one_pass(drafting: Drafting) -> bool:
    """The steps of one pass: a layer each, and the head."""
    return sum(drafting.step() for _ in range(SHAPE["num_hidden_layers"] + 1)) > 0


def draft(drafter: ModelDrafter, root: int, budget: TreeBudget) -> TokenTree:
    drafting = drafter.start([Root((root,))], budget)
    while drafting.step():
        pass
    tree = drafting.tree()
    tree.validate(VOCABULARY)
    return tree


def logprobs(model: TorchTarget, tokens: list[int]) -> np.ndarray:
    """[V] log-probabilities of what follows `tokens`, computed afresh."""
    cache = model.new_cache(300)
    fill(model, cache, tokens[:-1])
    return torch.log_softmax(run_tree(model, cache, tokens[-1:], [-1])[0].double(), 0).numpy()


def check_tree(model: TorchTarget, committed: list[int], tree: TokenTree) -> None:
    """Every node's log-probability is the model's, given the committed tokens and the node's path."""
    for node in range(1, len(tree)):
        path = tree.tokens[tree.path_to(int(tree.parents[node]))].tolist()
        expected = logprobs(model, committed + path)[tree.tokens[node]]
        assert tree.logprobs[node] == pytest.approx(expected, abs=2e-3)


def cut(block: Block, rows: int) -> list[Block]:
    """A block as several of so many rows."""
    starts = range(0, block.rows, rows)
    parts = [block.data[start : start + rows] for start in starts]
    return [Block(block.encoding, part, None, len(part), block.inner) for part in parts]


def test_a_step_is_a_layer_or_a_block_of_the_head(
    model: TorchTarget, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Also where its blocks are cut in two meanwhile, as pinned memory goes over to a low-bit copy."""
    (whole,) = model.weights.resident_blocks("lm_head")
    blocks, times, multiplied = cut(whole, 40), model.weights.times, list[int]()
    monkeypatch.setattr(model.weights, "resident_blocks", lambda name: blocks)
    monkeypatch.setattr(
        model.weights, "times", lambda x, block: (multiplied.append(block.rows), times(x, block))[1]
    )
    drafter = drafter_of(model)
    assert not multiplied, "nobody asks what follows the prompt"
    drafting = drafter.start([Root((7,))], TreeBudget(24, 5, 1))
    for _ in range(SHAPE["num_hidden_layers"]):
        assert drafting.step()
    assert not multiplied
    for step in range(1, 4):
        assert drafting.step()
        assert multiplied == step * [40]
    blocks = [*blocks[:3], *cut(blocks[3], 30)]
    assert drafting.step()
    assert multiplied == [40, 40, 40, 30]
    assert len(drafting.tree()) == 1
    while drafting.step():
        pass
    assert multiplied == [40, 40, 40, 30, 10]
    assert len(drafting.tree()) > 1
    monkeypatch.undo()
    check_tree(model, PROMPT, drafting.tree())


def test_a_tree_is_the_models_own_best_first(model: TorchTarget) -> None:
    tree = draft(drafter_of(model), 7, TreeBudget(24, 5, 5))
    assert len(tree) == 24
    check_tree(model, PROMPT, tree)
    first = tree.tokens[tree.children(0)].tolist()
    best = np.argsort(-logprobs(model, [*PROMPT, 7]))[: len(first)].tolist()
    assert first == best


def test_the_tree_is_the_best_of_all_trees(tmp_path: Path) -> None:
    """Against every path of a small vocabulary; and when steps run out, nearly."""
    small = open_tiny(write_checkpoint(tmp_path, vocab_size=6))
    drafter = ModelDrafter(TorchDraft.alone(small, 60), 6)
    prompt, root, depth = [1, 5, 2, 2], 3, 3
    drafter.prefill(Context(prompt))
    scores: dict[tuple[int, ...], float] = {(): 0.0}
    for path in (p for d in range(depth) for p in itertools.product(range(6), repeat=d)):
        following = logprobs(small, [*prompt, root, *path])
        scores |= {(*path, token): scores[path] + following[token] for token in range(6)}
    best = sorted(scores, key=scores.__getitem__, reverse=True)
    for nodes in (5, 16, 40):
        tree = draft(drafter, root, TreeBudget(nodes, depth, 16))
        found = {tuple(tree.tokens[tree.path_to(node)[1:]].tolist()) for node in range(nodes)}
        assert found == set(best[:nodes])
        quick = draft(drafter, root, TreeBudget(nodes, depth, depth))  # a step a level, the least there is
        optimum = sum(np.exp(scores[path]) for path in best[:nodes])
        assert np.exp(quick.scores).sum() > 0.95 * optimum


def test_steps_and_budget_hold(model: TorchTarget) -> None:
    drafter = drafter_of(model)
    assert len(draft(drafter, 7, TreeBudget(64, 8, 0))) == 1
    assert len(draft(drafter, 7, TreeBudget(1, 8, 3))) == 1
    assert len(draft(drafter, 7, TreeBudget(64, 0, 3))) == 1
    assert max(draft(drafter, 7, TreeBudget(64, 8, 3)).depths) == 3
    assert len(draft(drafter, 7, TreeBudget(64, 8, 1))) == 1 + BRANCH
    drafting = drafter.start([Root((7,))], TreeBudget(10, 4, 2))
    assert [one_pass(drafting) for _ in range(4)] == [True, True, False, False]


def test_following_outcomes_is_like_starting_afresh(model: TorchTarget) -> None:
    """Full, partial and no acceptance, tokens it never drafted, plain cycles: the trees that come after are
    those of a drafter that reads the whole text anew."""
    rng = np.random.default_rng(1)
    drafter = drafter_of(model, 400)
    text, root = list(PROMPT), 3
    budget = TreeBudget(16, 4, 4)
    for cycle in range(14):
        if cycle % 4 == 3:  # a plain cycle: nothing is drafted
            outcome = Outcome(np.array([0]), (int(rng.integers(VOCABULARY)),))
        else:
            tree = draft(drafter, root, budget)
            node = int(rng.integers(len(tree)))
            path = tree.path_to(node)
            bonus = int(rng.integers(VOCABULARY))
            outcome = Outcome(path, (*tree.tokens[path[1:]].tolist(), bonus))
        drafter.commit(root, outcome)
        text += [root, *outcome.tokens[:-1]]
        root = outcome.tokens[-1]
        assert drafter.tokens + drafter.tail == text
        assert cache_of(drafter).length == len(drafter.tokens)
        check_tree(model, text, draft(drafter, root, TreeBudget(4, 2, 2)))


def test_a_long_tail_is_followed_in_prefill_passes(model: TorchTarget) -> None:
    drafter = drafter_of(model, 400)
    rng = np.random.default_rng(2)
    text = list(PROMPT)
    for _ in range(LONG_TAIL + 5):
        token = int(rng.integers(VOCABULARY))
        drafter.commit(token, Outcome(np.array([0]), (0,)))
        text.append(token)
    assert len(drafter.tail) == LONG_TAIL + 5
    check_tree(model, text, draft(drafter, 9, TreeBudget(6, 3, 3)))
    assert not drafter.tail


def test_a_new_prompt_keeps_what_it_shares(model: TorchTarget) -> None:
    drafter = drafter_of(model)
    draft(drafter, 7, TreeBudget(16, 3, 3))  # interrupted: never committed
    edited = [*PROMPT[:20], 1, 2, 3]
    kept = cache_of(drafter).k[:, :, :20].clone()
    drafter.prefill(Context(edited))
    assert drafter.tokens == edited
    assert torch.equal(kept, cache_of(drafter).k[:, :, :20])
    check_tree(model, edited, draft(drafter, 4, TreeBudget(6, 2, 2)))


def test_cancelling_leaves_it_usable(model: TorchTarget) -> None:
    drafter = drafter_of(model)
    expected = draft(drafter, 7, TreeBudget(16, 3, 3))
    drafting = drafter.start([Root((7,))], TreeBudget(64, 8, 8))
    one_pass(drafting)
    one_pass(drafting)
    drafting.cancel()
    assert not drafting.step()
    assert len(cache_of(drafter).parents) == 0
    again = draft(drafter, 7, TreeBudget(16, 3, 3))
    assert np.array_equal(expected.tokens, again.tokens)


def test_a_cancelled_prefill_keeps_its_blocks(model: TorchTarget, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("edgespec.runtimes.torch.draft.PREFILL_ROWS", 256)
    drafter = ModelDrafter(TorchDraft.alone(model, 400), VOCABULARY)
    long = np.random.default_rng(3).integers(0, VOCABULARY, 300).tolist()

    def check() -> None:
        if len(drafter.tokens) >= 256:
            raise Cancelled("the reply was cancelled")

    with pytest.raises(Cancelled):
        drafter.prefill(Context(long, check=check))
    assert drafter.tokens == long[:256]
    drafter.prefill(Context(long))
    check_tree(model, long, draft(drafter, 9, TreeBudget(4, 2, 2)))


def test_several_roots_share_what_they_begin_with(model: TorchTarget) -> None:
    drafter = drafter_of(model)
    roots = [Root((5, 6)), Root((5, 8)), Root((5,)), Root((9, 6))]
    drafting = drafter.start(roots, TreeBudget(8, 3, 4))
    one_pass(drafting)
    assert len(cache_of(drafter).parents) == 5  # 5, 6, 8 behind it, 9, 6 behind it
    while drafting.step():
        pass
    for i, root in enumerate(roots):
        tree = drafting.tree(i)
        assert tree.tokens[0] == root.token
        assert len(tree) == 8
        check_tree(model, PROMPT + list(root.path[:-1]), tree)


def test_it_stops_at_its_own_context(model: TorchTarget) -> None:
    drafter = ModelDrafter(TorchDraft.alone(model, len(PROMPT) + 6), VOCABULARY)
    drafter.prefill(Context(PROMPT, Sampler(GenerationOptions(temperature=1.0)), Noise(0), drawn=True))
    assert len(draft(drafter, 1, TreeBudget(64, 16, 16))) == 6  # a chain: the root and 5 behind it
    drafter.prefill(Context(PROMPT))
    assert max(draft(drafter, 1, TreeBudget(64, 16, 16)).depths) <= 5
    for token in range(10):
        drafter.commit(token, Outcome(np.array([0]), (token + 1,)))
        draft(drafter, token + 1, TreeBudget(64, 16, 16))
    assert len(draft(drafter, 1, TreeBudget(64, 16, 16))) == 1
    assert drafter.tokens + drafter.tail == [*PROMPT, *range(10)]
    drafter.prefill(Context(PROMPT))
    assert len(draft(drafter, 1, TreeBudget(64, 16, 16))) > 1


def test_padding_of_a_vocabulary_is_never_proposed(model: TorchTarget) -> None:
    drafter = ModelDrafter(TorchDraft.alone(model, 200), vocabulary=20)
    drafter.prefill(Context([t % 20 for t in PROMPT]))
    assert draft(drafter, 3, TreeBudget(64, 4, 4)).tokens.max() < 20


def test_ratio_gets_a_chain_drawn_from_the_models_distribution(model: TorchTarget) -> None:
    drafter = ModelDrafter(TorchDraft.alone(model, 200), VOCABULARY)
    options = GenerationOptions(temperature=0.9, top_k=20)
    context = Context(PROMPT, Sampler(options), Noise(3), drawn=True)
    drafter.prefill(context)
    tree = draft(drafter, 7, TreeBudget(64, 5, 5))
    assert tree.parents.tolist() == [-1, 0, 1, 2, 3, 4]
    assert tree.drafts is not None
    for node in range(5):
        path = [*PROMPT, *tree.tokens[: node + 1].tolist()]
        expected = Sampler(options).distribution(logprobs(model, path).astype(np.float32))
        draft_of = tree.drafts[node]
        assert draft_of is not None
        assert np.allclose(draft_of.at(expected.ids), expected.probs, atol=2e-3)
    again = draft(drafter, 7, TreeBudget(64, 5, 5))
    assert np.array_equal(tree.tokens, again.tokens)  # keyed by position, not by call
    drafter.prefill(Context(PROMPT, Sampler(options), Noise(4), drawn=True))
    assert not np.array_equal(tree.tokens, draft(drafter, 7, TreeBudget(64, 5, 5)).tokens)


def test_combined_drafters_make_one_tree(model: TorchTarget) -> None:
    combined = Combined([NGram(), ModelDrafter(TorchDraft.alone(model, 200), VOCABULARY)])
    assert combined.passes == range(17)
    text = [*PROMPT[:10], 7, 150, 151, 152, *PROMPT[10:]]
    combined.prefill(Context(text))
    drafting = combined.start([Root((7,))], TreeBudget(40, 6, 0))
    assert drafting.step()
    assert not drafting.step()
    assert {150, 151, 152} <= set(drafting.tree().tokens.tolist())  # free drafts come without steps
    drafting = combined.start([Root((7,))], TreeBudget(40, 6, 2))
    while drafting.step():
        pass
    tree = drafting.tree()
    tree.validate()
    assert {150, 151, 152} <= set(tree.tokens.tolist())
    assert int(np.argmax(logprobs(model, [*text, 7]))) in tree.tokens[tree.children(0)]
    assert len(tree) <= 40


def test_likeliest_of_damaged_logits_is_impossible() -> None:
    rows = np.array([[0.0, 2.0, 1.0], [np.nan, 0, 0]], dtype=np.float32)
    tokens, values = likeliest(rows, 2)
    assert tokens[0].tolist() == [1, 2]
    assert np.exp(values[0]).sum() < 1
    assert np.isneginf(values[1]).all()


def test_another_tokenizer_is_refused(tmp_path: Path) -> None:
    model = write_model(tmp_path / "target")
    other = write_model(tmp_path / "draft", num_hidden_layers=1)
    tokenizer = Tokenizer.from_directory(model)
    DraftFiles(other, tokenizer)  # the same tokens: welcome
    text = (other / "tokenizer.json").read_text().replace('"!":', '"!!":')
    (other / "tokenizer.json").write_text(text)
    with pytest.raises(TokenizerError, match=r"1 of the target's 128 tokens.*'!' \(0\) is missing"):
        DraftFiles(other, tokenizer)


def test_vocabularies_are_compared_by_id() -> None:
    check_vocabulary({"a": 0, "b": 1}, {"b": 1, "a": 0}, "d")
    with pytest.raises(TokenizerError, match=r"2 of the target's 2 tokens.*'a' is 0, there 1"):
        check_vocabulary({"a": 0, "b": 1}, {"a": 1, "b": 0}, "d")
    with pytest.raises(TokenizerError, match=r"0 of the target's 1 tokens.*'z' \(1\) is only there"):
        check_vocabulary({"a": 0}, {"a": 0, "z": 1}, "d")


def test_bytes_cover_what_is_opened(tmp_path: Path) -> None:
    path = write_model(tmp_path / "m")
    files = DraftFiles(path, Tokenizer.from_directory(path))
    model = files.open()
    drafter = ModelDrafter(TorchDraft.alone(model, 100), VOCABULARY)
    held = sum(len(b) for b in model.weights.pinned.values()) + cache_of(drafter).nbytes
    nbytes = files.extras.owners["drafter"]
    assert held < nbytes(100) < held + 40 * 10**6
    assert nbytes(200) > nbytes(100)
