"""The MoA network: a slow reference beside it, training and use alike, masks, trees, prefixes."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor

from edgespec.errors import ModelError, OptionError
from edgespec.runtimes.base import DraftPass
from edgespec.runtimes.formats.describe import ModelFiles, describe_model
from edgespec.runtimes.formats.moa_sizes import (
    MoaSizes,
    choose_sizes,
    conversation_bytes,
    drafting_parameters,
    memory_width,
    parameter_shapes,
    parameters,
)
from edgespec.runtimes.torch.kv_cache import TorchKVCache
from edgespec.runtimes.torch.moa import Moa, token_states
from edgespec.runtimes.torch.moa_draft import LocalMemory, MoaDraft
from edgespec.runtimes.torch.moa_tail import Tail
from edgespec.runtimes.torch.rope import inverse_frequencies
from edgespec.runtimes.torch.target import TorchTarget
from edgespec.training.bounded import Questions
from edgespec.training.last_layers import LastLayers
from edgespec.training.target import FrozenTarget
from tests.moa import random_moa
from tests.tiny import fill, open_tiny, write_checkpoint

SIZES = MoaSizes((2, 1, 4), (24, 8, 40))  # of SHAPE's 4 heads of 16, all unlike
THROUGH = MoaSizes(SIZES.kv_heads, SIZES.mlp, target_layers=2)
ROWS = 64


@pytest.fixture
def files(tmp_path: Path) -> ModelFiles:
    return describe_model(write_checkpoint(tmp_path / "target"))


# --- the reference: one head of one position at a time, in fp64 ------------------------------------------


def slow_norm(x: Tensor, weight: Tensor, eps: float) -> Tensor:
    return x / (x.square().mean() + eps).sqrt() * weight


def slow_rotated(x: Tensor, place: int, inverse: Tensor) -> Tensor:
    """Halves, as in every checkpoint of Hugging Face."""
    half = len(x) // 2
    angle = place * inverse.double()
    a, b = x[:half], x[half:]
    return torch.cat((a * angle.cos() - b * angle.sin(), b * angle.cos() + a * angle.sin()))


class SlowLayer:
    def __init__(self, moa: Moa, name: str, inverse: Tensor) -> None:
        self.p = {
            n.removeprefix(name + "."): v.detach().double()
            for n, v in moa.named_parameters()
            if n.startswith(name + ".")
        }
        self.e, self.eps, self.inverse = moa.config.head_dim, moa.config.norm_eps, inverse

    def norm(self, x: Tensor) -> Tensor:
        return slow_norm(x, self.p["input_norm"], self.eps)

    def attend(self, x: Tensor, place: int, others: dict[int, Tensor]) -> Tensor:
        """x [w] at a place, over the normed inputs of others, by place."""
        q = (self.p["q_proj"] @ self.norm(x)).view(-1, self.e)
        group = len(q) // (len(self.p["k_proj"]) // self.e)
        heads = []
        for h, query in enumerate(q):
            rows = slice(h // group * self.e, (h // group + 1) * self.e)
            scores = torch.stack(
                [
                    slow_rotated(query, place, self.inverse)
                    @ slow_rotated(self.p["k_proj"][rows] @ other, at, self.inverse)
                    for at, other in others.items()
                ]
            )
            weights = (scores / self.e**0.5).softmax(0)
            heads.append(
                sum(w * (self.p["v_proj"][rows] @ o) for w, o in zip(weights, others.values(), strict=True))
            )
        y = x + self.p["o_proj"] @ torch.cat(heads)
        z = slow_norm(y, self.p["post_norm"], self.eps)
        gate, up = self.p["gate_proj"] @ z, self.p["up_proj"] @ z
        return y + self.p["down_proj"] @ (gate / (1 + torch.exp(-gate)) * up)


def slow_memory(moa: Moa, keys: Tensor, values: Tensor, token: int) -> Tensor:
    """Of one token, from keys and values [L, kv_heads, n, e]."""
    states = {
        layer: torch.cat(
            [torch.cat((k, v)) for k, v in zip(keys[layer, :, token], values[layer, :, token], strict=True)]
        )
        for layer in range(moa.config.layers)
    }
    states = {layer: state.double() for layer, state in states.items()}
    if not moa.sizes.layer_attention:
        return states[moa.config.layers - 1]
    e = moa.config.head_dim
    layer = SlowLayer(moa, "over_layers", 10000.0 ** (-torch.arange(0, e, 2).double() / e))
    normed = {i: layer.norm(state) for i, state in states.items()}
    states = {i: layer.attend(state, i, normed) for i, state in states.items()}
    return torch.stack(list(states.values())).mean(0)


def slow_draft(moa: Moa, embedded: Tensor, memory: Tensor, position: int, until: int, since: int) -> Tensor:
    """What is drafted behind `position` of a sequence [t, d], from the memory of its first `until` tokens and
    its own ones from `since` on."""
    embedded, memory = embedded.double(), memory.double()
    inverse = inverse_frequencies(moa.config.rope, moa.config.head_dim)
    tokens, recall = (SlowLayer(moa, name, inverse) for name in ("over_tokens", "to_memory"))
    x = tokens.attend(
        embedded[position], position, {j: tokens.norm(embedded[j]) for j in range(since, position + 1)}
    )
    weight, bias = moa.projection.detach().double(), moa.projection_bias.detach().double()
    known = {j: recall.norm(weight @ memory[j] + bias) for j in range(until)}
    if not until:  # attention gives nothing, and the MLP is the rest of the layer
        known = {0: torch.zeros_like(x)}
    return slow_norm(recall.attend(x, position, known), moa.norm.detach().double(), moa.config.norm_eps)


def random_states(files: ModelFiles, n: int) -> tuple[Tensor, Tensor]:
    """Keys and values [L, kv_heads, n, e]."""
    c, generator = files.config, torch.Generator().manual_seed(3)
    shape = (2, c.layers, c.kv_heads, n, c.head_dim)
    keys, values = torch.randn(shape, generator=generator)
    return keys, values


@pytest.mark.parametrize("layer_attention", [True, False])
def test_it_is_the_papers(files: ModelFiles, layer_attention: bool) -> None:
    moa = random_moa(files, MoaSizes(SIZES.kv_heads, SIZES.mlp, layer_attention))
    n = 9
    keys, values = random_states(files, n)
    memory = moa.summary(token_states(keys, values)).detach()
    for token in range(n):
        assert torch.allclose(memory[token].double(), slow_memory(moa, keys, values, token), atol=1e-4)
    embedded = torch.randn(n, files.config.hidden_size, generator=torch.Generator().manual_seed(4))
    asked, until = np.array([[1, 2, 5, 8]]), np.array([[0, 1, 3, 7]])
    since = np.array([[0, 0, 3, 7]])  # the last two: only what is not remembered
    out = moa(embedded[None], memory[None], asked, until, since)[0].detach()
    for row, position, known, first in zip(out, *(a[0].tolist() for a in (asked, until, since)), strict=True):
        expected = slow_draft(moa, embedded, memory, position, known, first)
        assert torch.allclose(row.double(), expected, atol=1e-4)


def test_what_lies_behind_the_mask_reaches_nothing(files: ModelFiles) -> None:
    """Neither memory behind `until`, nor tokens behind the one that is asked about."""
    moa = random_moa(files, SIZES)
    memory = torch.randn(2, 12, memory_width(files.config), generator=torch.Generator().manual_seed(1))
    embedded = torch.randn(2, 12, files.config.hidden_size, generator=torch.Generator().manual_seed(2))
    asked, until = np.array([[3, 6], [4, 9]]), np.array([[2, 3], [4, 5]])
    since = np.array([[0, 3], [0, 5]])
    before = moa(embedded, memory, asked, until, since)
    for b, s in np.ndindex(2, 2):
        far, ahead = memory.clone(), embedded.clone()
        far[b, until[b, s] :] += 7
        ahead[b, asked[b, s] + 1 :] -= 3
        ahead[b, : since[b, s]] += 5
        assert torch.equal(moa(ahead, far, asked, until, since)[b, s], before[b, s])
        far[b, until[b, s] - 1] += 7
        assert not torch.allclose(moa(embedded, far, asked, until, since)[b, s], before[b, s], atol=1e-3)
        ahead[b, since[b, s]] += 5
        assert not torch.allclose(moa(ahead, memory, asked, until, since)[b, s], before[b, s], atol=1e-3)


def test_all_of_it_is_trained_in_the_type_of_the_features(files: ModelFiles) -> None:
    moa = random_moa(files, SIZES)
    keys, values = random_states(files, 6)
    memory = moa.summary(token_states(keys, values).bfloat16())
    embedded = torch.randn(1, 6, files.config.hidden_size).bfloat16()
    out = moa(embedded, memory[None], np.array([[2, 5]]), np.array([[1, 4]]), np.array([[0, 4]]))
    assert out.dtype == torch.bfloat16
    out.float().square().sum().backward()
    for name, parameter in moa.named_parameters():
        assert parameter.grad is not None, name
        assert parameter.grad.dtype == torch.float32
        assert parameter.grad.abs().sum() > 0, name


def test_initialised_it_says_what_follows_the_embedding_alone(files: ModelFiles) -> None:
    moa = Moa(files.config, SIZES)
    final = torch.linspace(0.5, 1.5, files.config.hidden_size)
    moa.initialise(final, torch.Generator().manual_seed(0))
    embedded = torch.randn(1, 4, files.config.hidden_size)
    asked, until, since = np.array([[1, 3]]), np.array([[1, 2]]), np.array([[0, 0]])
    out = moa(embedded, torch.randn(1, 4, memory_width(files.config)), asked, until, since)
    expected = torch.stack([slow_norm(embedded[0, i], final, files.config.norm_eps) for i in (1, 3)])
    assert torch.allclose(out[0], expected, atol=1e-5)


# --- in use -----------------------------------------------------------------------------------------------


def open_pair(
    files: ModelFiles, dtype: torch.dtype, length: int, sizes: MoaSizes = SIZES
) -> tuple[TorchTarget, MoaDraft, Moa, list[int]]:
    """A target that has committed all but the last of some tokens, and who drafts for it."""
    target = open_tiny(files.path)
    moa = random_moa(files, sizes, dtype).requires_grad_(False).eval()
    tokens = np.random.default_rng(9).integers(0, files.config.vocab_size, length).tolist()
    cache = target.new_cache(300, ROWS)
    fill(target, cache, tokens[:-1])
    return target, drafting(moa, target, cache), moa, tokens


def drafting(moa: Moa, target: TorchTarget, cache: TorchKVCache) -> MoaDraft:
    through = moa.sizes.target_layers
    tail = Tail(target, cache, through, ROWS) if through else None
    return MoaDraft(moa, target, LocalMemory(moa, cache), 300, ROWS, tail)


def finish(under_way: DraftPass) -> np.ndarray:
    while not under_way.advance():
        pass
    return under_way.logits.copy()


def expected_logits(target: TorchTarget, moa: Moa, tokens: list[int], asked: list[int], until: int) -> Tensor:
    """By the function that is trained, over one sequence."""
    cache = target.new_cache(len(tokens), ROWS)
    fill(target, cache, tokens)
    keys, values = (
        torch.stack(part) for part in zip(*map(cache.view, range(target.config.layers)), strict=True)
    )
    places, known = np.array([asked]), np.full((1, len(asked)), until)
    with torch.no_grad():
        memory = moa.train().summary(token_states(keys, values))
        states = moa(target.embed(tokens)[None].clone(), memory[None].clone(), places, known, known * 0)
        moa.eval()
        if moa.sizes.target_layers:
            asked = Questions(places, known, np.full_like(places, True, dtype=np.bool_), known * 0)
            frozen = FrozenTarget(target, [])
            last = LastLayers(frozen, moa.sizes.target_layers)
            known_to_it = token_states(keys, values)[None].to(frozen.dtype, copy=True)
            states = last(states.to(frozen.dtype), known_to_it, asked)
        return target.head(states[0].to(target.dtype))


@pytest.mark.parametrize("sizes", [SIZES, THROUGH], ids=["head", "last layers"])
@pytest.mark.parametrize(
    ("dtype", "changes", "tolerance"),
    [
        ("float32", {}, 1e-4),
        ("bfloat16", {}, 0.1),
        ("float32", {"architectures": ["Qwen3ForCausalLM"], "head_dim": 16}, 1e-4),
        ("float32", {"architectures": ["MistralForCausalLM"], "sliding_window": 24}, 1e-4),
        ("float32", {"architectures": ["Qwen2ForCausalLM"]}, 1e-4),
    ],
)
def test_training_and_use_agree(
    tmp_path: Path, dtype: str, changes: dict[str, Any], tolerance: float, sizes: MoaSizes
) -> None:
    files = describe_model(write_checkpoint(tmp_path / "target", torch_dtype=dtype, **changes))
    target, draft, moa, tokens = open_pair(files, getattr(torch, dtype), 90, sizes)
    assert list(draft.prefill(tokens[:-1]))[-1] == 89
    assert draft.memory.length == draft.length == 89
    logits = [finish(draft.begin(tokens[-1:], [-1]))]
    more = [5, 9, 77]  # drafts: behind them the memory ends where it did
    for i, token in enumerate(more):
        logits.append(finish(draft.begin([token], [i])))
    expected = expected_logits(target, moa, tokens + more, [89, 90, 91, 92], until=89).numpy()
    assert np.abs(np.concatenate(logits) - expected).max() < tolerance * np.abs(expected).max()


@pytest.mark.parametrize("sizes", [SIZES, THROUGH], ids=["head", "last layers"])
def test_a_tree_is_drafted_as_its_branches_are_one_by_one(files: ModelFiles, sizes: MoaSizes) -> None:
    _, draft, _, tokens = open_pair(files, torch.float32, 70, sizes)
    list(draft.prefill(tokens[:-1]))
    nodes, parents = [tokens[-1], 3, 8, 4, 8], [-1, 0, 0, 1, 3]
    tree = finish(draft.begin(nodes, parents))
    for path in ([0, 1, 3, 4], [0, 2]):
        draft.truncate(69)
        chain = finish(draft.begin([nodes[i] for i in path], list(range(-1, len(path) - 1))))
        assert np.allclose(chain, tree[path], atol=1e-5)


@pytest.mark.parametrize("sizes", [SIZES, THROUGH], ids=["head", "last layers"])
def test_what_is_committed_and_taken_back_is_drafted_from_as_anew(files: ModelFiles, sizes: MoaSizes) -> None:
    """A path is committed in both caches, then a prefix is gone back to; each time the memory follows."""
    target, draft, moa, tokens = open_pair(files, torch.float32, 70, sizes)
    cache = draft.source.cache  # type: ignore[attr-defined]
    list(draft.prefill(tokens[:-1]))
    finish(draft.begin([tokens[-1], 3, 8, 4], [-1, 0, 0, 2]))
    said = finish(draft.begin([11], [3]))  # behind the path 0, 2, 3
    fill(target, cache, [tokens[-1], 8, 4])
    draft.commit([0, 2, 3], [4])  # as the forest does, with what hangs below
    assert draft.length == cache.length == 72
    assert len(draft.tokens.parents) == 1
    fresh = drafting(moa, target, cache)
    list(fresh.prefill([*tokens, 8, 4]))
    again, anew = finish(draft.begin([12], [0])), finish(fresh.begin([11, 12], [-1, 0]))
    assert draft.memory.length == 72
    # What was kept has keys of its own in the target's last layers, from when it was drafted.
    assert np.allclose(again[0], anew[1], atol=1e-5) == (draft.tail is None)
    assert not np.allclose(said[0], anew[0], atol=1e-3)  # which had less to go by
    cache.truncate(50)
    fill(target, cache, [1, 2])
    draft.truncate(50)
    list(draft.prefill([1, 2]))
    fresh = drafting(moa, target, cache)
    list(fresh.prefill([*tokens[:50], 1, 2]))
    assert np.allclose(finish(draft.begin([7], [-1])), finish(fresh.begin([7], [-1])), atol=1e-5)


def test_the_memory_of_a_token_is_made_once(files: ModelFiles, monkeypatch: pytest.MonkeyPatch) -> None:
    target, draft, _, tokens = open_pair(files, torch.float32, 70)
    made: list[tuple[int, int]] = []
    vectors = LocalMemory.vectors

    def count(self: LocalMemory, start: int, stop: int) -> Tensor:
        made.append((start, stop))
        return vectors(self, start, stop)

    monkeypatch.setattr(LocalMemory, "vectors", count)
    list(draft.prefill(tokens[:-1]))
    finish(draft.begin([tokens[-1], 3], [-1, 0]))
    finish(draft.begin([5], [1]))
    fill(target, draft.source.cache, [tokens[-1], 3])  # type: ignore[attr-defined]
    draft.commit([0, 1], [2])
    finish(draft.begin([6], [0]))
    assert [i for span in made for i in range(*span)] == list(range(71))
    assert made[-1] == (69, 71)


def test_an_interrupted_prompt_is_gone_on_with(files: ModelFiles) -> None:
    _, draft, _, tokens = open_pair(files, torch.float32, 90)
    parts = draft.prefill(tokens[:-1])
    for _ in range(3):
        next(parts)
    parts.close()
    assert 0 < draft.memory.length < 89
    said = finish(draft.begin(tokens[-1:], [-1]))
    _, whole, _, _ = open_pair(files, torch.float32, 90)
    list(whole.prefill(tokens[:-1]))
    assert np.array_equal(said, finish(whole.begin(tokens[-1:], [-1])))


def test_nan_is_a_model_error_and_stays_nowhere(files: ModelFiles) -> None:
    _, draft, moa, tokens = open_pair(files, torch.float32, 20)
    list(draft.prefill(tokens[:-1]))
    weight = moa.over_tokens.v_proj
    kept = weight.clone()
    weight[0, 0] = torch.nan
    with pytest.raises(ModelError, match="train it again"):
        finish(draft.begin(tokens[-1:], [-1]))
    weight.copy_(kept)
    draft.truncate(19)
    assert np.isfinite(finish(draft.begin(tokens[-1:], [-1]))).all()


# --- sizes ------------------------------------------------------------------------------------------------


def test_sizes_follow_from_the_target_as_in_the_paper(tmp_path: Path) -> None:
    config = describe_model(write_checkpoint(tmp_path / "t")).config
    large = replace(config, hidden_size=4096, heads=32, kv_heads=8, head_dim=128, layers=32)
    sizes = choose_sizes(large)
    assert sizes.mlp == (6144, 512, 7168)  # Table 6
    assert 225e6 < parameters(large, choose_sizes(large, (8, 4, 8))) < 275e6  # "250M"


def test_bytes_are_those_that_are_there(files: ModelFiles) -> None:
    moa = Moa(files.config, SIZES)
    assert {n: tuple(p.shape) for n, p in moa.named_parameters()} == parameter_shapes(files.config, SIZES)
    assert sum(p.numel() for p in moa.parameters()) == parameters(files.config, SIZES)
    drafts = sum(p.numel() for layer in (moa.over_tokens, moa.to_memory) for p in layer.parameters())
    assert drafting_parameters(files.config, SIZES) == drafts + files.config.hidden_size
    tokens, memory = moa.new_caches(300, ROWS)
    assert conversation_bytes(files.config, SIZES, 300, ROWS, 4) == tokens.nbytes + memory.nbytes


@pytest.mark.parametrize(
    ("kv_heads", "mlp", "said"),
    [
        ((2, 3, 2), (), "3 heads of keys cannot serve the 4 heads of the attention over tokens"),
        ((0, 1, 1), (), "0 heads"),
        ((8, 1, 1), (), "8 heads of keys cannot serve the 4 heads of the attention over layers"),
        ((2, 2), (), "kv_heads has 2 numbers; give three"),
        ((), (10, 20, 0), "an MLP cannot be 0 wide"),
        ((), (10, 20, 2**21), "use 1 to 1048576"),
    ],
)
def test_sizes_that_cannot_be(
    files: ModelFiles, kv_heads: tuple[int, ...], mlp: tuple[int, ...], said: str
) -> None:
    with pytest.raises(OptionError, match=said):
        choose_sizes(files.config, kv_heads, mlp)
