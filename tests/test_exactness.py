"""A row's bits do not depend on the pass it is in: tree or single token, pinned or streamed weights."""

from __future__ import annotations

from itertools import accumulate, pairwise, product
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

from edgespec.kernels import compiled, matmul
from edgespec.kernels.cpu import is_native, multiply
from edgespec.kernels.matmul import Block, linear
from edgespec.kernels.row_class import _Results, row_class
from edgespec.models.packing import pack_model
from edgespec.runtimes.base import PREFILL_ROWS, TREE_ROWS
from edgespec.runtimes.formats.describe import describe_model
from edgespec.runtimes.rows import Rows
from edgespec.runtimes.torch.draft import open_draft
from edgespec.runtimes.torch.kv_cache import TorchKVCache
from tests.covering import covering
from tests.test_session import write_model
from tests.tiny import fill, open_tiny, run_tree, write_checkpoint

KINDS: dict[str, dict[str, Any]] = {
    "llama": {},
    "mha": {"num_key_value_heads": 4},
    "mistral": {"architectures": ["MistralForCausalLM"], "sliding_window": 70},
    "qwen2": {"architectures": ["Qwen2ForCausalLM"]},
    "qwen3": {"architectures": ["Qwen3ForCausalLM"], "head_dim": 32},
}


def random_tree(rng: np.random.Generator, n: int) -> list[int]:
    return [-1] + [int(rng.integers(max(0, i - 4), i)) for i in range(1, n)]


def path_to(parents: list[int], node: int) -> list[int]:
    path = []
    while node >= 0:
        path.append(node)
        node = parents[node]
    return path[::-1]


@pytest.mark.parametrize(
    ("kind", "dtype"),
    covering(list(KINDS), ("float32", "bfloat16", "float16", "bfloat16 by torch")),
)
def test_a_tree_node_has_the_bits_of_plain_decoding(
    tmp_path: Path, kind: str, dtype: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    dtype, _, by_torch = dtype.partition(" by ")
    if by_torch:  # as where there is no compiled kernel for it
        monkeypatch.setattr(compiled, "available", lambda encoding: False)
    target = open_tiny(write_checkpoint(tmp_path, torch_dtype=dtype, **KINDS[kind]))
    rng = np.random.default_rng(0)
    # Prefix lengths around the attention blocks' bounds, tree sizes around the row classes' bounds.
    for length, n in [(3, 2), (40, 64), (63, 17), (64, 33), (65, 8), (127, 64), (190, 3)]:
        cache = target.new_cache(300)
        fill(target, cache, rng.integers(0, 160, length))
        parents, tokens = random_tree(rng, n), rng.integers(0, 160, n)
        in_tree = run_tree(target, cache, tokens, parents)
        for leaf in {n - 1, n // 2}:
            cache.truncate(length)
            for node in path_to(parents, leaf):
                alone = run_tree(target, cache, [int(tokens[node])], [-1])[0]
                cache.commit([0])
                assert torch.equal(alone, in_tree[node]), f"prefix {length}, tree {n}, node {node}"
            cache.truncate(length)


@pytest.mark.skipif(not compiled.available("BF16"), reason="torch multiplies bf16 here")
@pytest.mark.parametrize("dtype", ["bfloat16", "float16"])
@pytest.mark.parametrize("kind", KINDS)
def test_a_short_prompt_has_the_bits_of_plain_decoding(tmp_path: Path, kind: str, dtype: str) -> None:
    """However it is cut, and whatever shares its pass."""
    target = open_tiny(write_checkpoint(tmp_path, torch_dtype=dtype, **KINDS[kind]))
    rng, chains = np.random.default_rng(1), target.weights.chains
    if not chains:
        pytest.skip("torch attends to prompts here")
    for length, n in [(0, 1), (0, 32), (40, 9), (63, 32), (64, 2), (127, min(70, chains))]:
        before, tokens = rng.integers(0, 160, length), rng.integers(0, 160, n)
        other, cache, plain = (target.new_cache(200, 200) for _ in range(3))
        for each in (cache, plain) if length else ():
            fill(target, each, before)
        for token in tokens:
            said = run_tree(target, plain, [int(token)], [-1])
            plain.commit([0])
        chain = np.arange(-1, n - 1)
        long = Rows.append(other, np.arange(-1, 79), prefill=True)
        for beside in ([], [long]):  # alone, and before a longer prompt
            rows = Rows.concat([Rows.append(cache, chain, prefill=True), *beside])
            ids = np.concatenate([tokens, rng.integers(0, 160, rows.n - n)])
            hidden = target.run(target.embed(ids), rows, range(3))
            assert torch.equal(target.logits(hidden[n - 1 : n]), said)
            cache.commit(np.arange(n))
            for layer in range(3):
                assert all(map(torch.equal, cache.view(layer), plain.view(layer)))
            cache.truncate(length)


@pytest.mark.parametrize("precision", ["int4", "int8"])
def test_a_low_bit_prompt_has_the_same_bits_however_it_is_cut(tmp_path: Path, precision: str) -> None:
    """Also above 256 rows, which are multiplied in parts."""
    pack_model(str(write_model(tmp_path / "m")), tmp_path / "packed", precision=precision)
    target = open_draft(describe_model(tmp_path / "packed"), TREE_ROWS)
    if target.weights.chains < PREFILL_ROWS:
        pytest.skip("long prompts have an order of their own here")
    tokens, caches = np.random.default_rng(2).integers(0, 128, 420), list[TorchKVCache]()
    for cuts in ([420], [100, 320], [33, 64, 290, 1, 32]):
        caches.append(cache := target.new_cache(420))
        for start, stop in pairwise(accumulate(cuts, initial=0)):
            fill(target, cache, tokens[start:stop])
    for layer, cache in product(range(target.config.layers), caches[1:]):
        assert all(map(torch.equal, cache.view(layer), caches[0].view(layer)))
    target.weights.close()


def test_a_torch_that_does_not_know_the_processor_says_so(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delattr(torch.cpu, "get_capabilities")
    with pytest.warns(RuntimeWarning, match=r"multiplied in float32.*torch 2\.11 or later"):
        assert not is_native.__wrapped__(torch.bfloat16)


def test_a_wrong_block_order_would_be_seen(tmp_path: Path) -> None:
    """The test above can fail: the same keys in slot order (a plain masked softmax) give other bits."""
    target = open_tiny(write_checkpoint(tmp_path))
    rng = np.random.default_rng(0)
    cache = target.new_cache(300)
    fill(target, cache, rng.integers(0, 160, 70))
    chain, tokens = np.arange(-1, 39), rng.integers(0, 160, 40)
    in_tree = run_tree(target, cache, tokens, chain)
    cache.truncate(70)
    rows = Rows.append(cache, chain, prefill=True)  # as torch likes: not exact
    loose = target.logits(target.run(target.embed(tokens), rows, range(target.config.layers)))
    assert torch.allclose(loose[-1], in_tree[39], atol=1e-3)
    assert not torch.equal(loose[-1], in_tree[39])


@pytest.mark.parametrize("dtype", ["float32", "bfloat16"])
def test_streamed_weights_give_the_bits_of_pinned_ones(tmp_path: Path, dtype: str) -> None:
    path = write_checkpoint(tmp_path, torch_dtype=dtype)
    rng = np.random.default_rng(1)
    prompt, tokens, parents = rng.integers(0, 160, 50), rng.integers(0, 160, 20), random_tree(rng, 20)
    results = []
    for pinned in (lambda c: True, lambda c: False, lambda c: c.index % 3 == 0, lambda c: c.layer < 2):
        target = open_tiny(path, pinned)
        cache = target.new_cache(100)
        fill(target, cache, prompt)
        results.append(run_tree(target, cache, tokens, parents))
        target.weights.close()
    assert all(torch.equal(results[0], r) for r in results[1:])


def test_rows_of_several_sessions_share_a_pass_without_changing_it(tmp_path: Path) -> None:
    target = open_tiny(write_checkpoint(tmp_path, torch_dtype="bfloat16"))
    rng = np.random.default_rng(2)
    caches, alone, parts, tokens = [], [], [], []
    for length, n in [(10, 1), (64, 30), (100, 7)]:
        cache = target.new_cache(200)
        fill(target, cache, rng.integers(0, 160, length))
        tree, ids = random_tree(rng, n), rng.integers(0, 160, n)
        alone.append(run_tree(target, cache, ids, tree))
        cache.truncate(length)
        parts.append(Rows.append(cache, tree))
        tokens.append(ids)
        caches.append(cache)
    rows = Rows.concat(parts)
    together = target.logits(target.run(target.embed(np.concatenate(tokens)), rows, range(3)))
    assert torch.equal(torch.cat(alone), together)


def test_layers_may_be_run_in_ranges(tmp_path: Path) -> None:
    """A cascade drafts in the first layers node by node and verifies from there on."""
    target = open_tiny(write_checkpoint(tmp_path))
    rng = np.random.default_rng(3)
    cache = target.new_cache(200)
    fill(target, cache, rng.integers(0, 160, 66))
    tokens, parents = rng.integers(0, 160, 9), random_tree(rng, 9)
    whole = run_tree(target, cache, tokens, parents)
    cache.truncate(66)
    early = [
        target.run(target.embed([t]), Rows.append(cache, [p]), range(2))
        for t, p in zip(tokens, parents, strict=True)
    ]
    rows = Rows.of(cache, np.arange(9))
    late = target.logits(target.run(torch.cat(early), rows, range(2, 3)))
    assert torch.equal(whole, late)


def test_committed_path_has_the_keys_of_plain_decoding(tmp_path: Path) -> None:
    target = open_tiny(write_checkpoint(tmp_path, torch_dtype="bfloat16"))
    rng = np.random.default_rng(4)
    prompt, tokens, parents = rng.integers(0, 160, 61), rng.integers(0, 160, 30), random_tree(rng, 30)
    tree, plain = target.new_cache(200), target.new_cache(200)
    fill(target, tree, prompt)
    fill(target, plain, prompt)
    run_tree(target, tree, tokens, parents)
    path = path_to(parents, 29)
    tree.commit(path)
    for node in path:
        run_tree(target, plain, [int(tokens[node])], [-1])
        plain.commit([0])
    assert tree.length == plain.length == 61 + len(path)
    for layer in range(3):
        assert all(torch.equal(a, b) for a, b in zip(tree.view(layer), plain.view(layer), strict=True))


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16, torch.float16])
def test_row_class_holds_for_counts_between_the_probed_ones(dtype: torch.dtype) -> None:
    shape = (172, 64)
    rows = row_class(*shape, dtype)
    results = _Results(*shape, dtype)
    for n in {rows.pad, rows.pad + 1, 11, 22, rows.block - 2, rows.block} - set(range(rows.pad)):
        assert results.agree(n, rows.pad), f"{n} rows leave the class {rows}"


def test_row_class_probe_sees_another_order_of_sums() -> None:
    results = _Results(64, 256, torch.float32)
    row, weight = results.row, results.weight
    backwards = torch.nn.functional.linear(row.flip(0)[None], weight.flip(1))
    forwards = torch.nn.functional.linear(row[None], weight)
    assert not torch.equal(forwards, backwards)


def test_trees_of_any_size_are_multiplied_as_few_sizes(monkeypatch: pytest.MonkeyPatch) -> None:
    """oneDNN keeps compiled code for each; over thousands of replies that is memory without an owner."""
    seen: set[int] = set()
    weight = torch.randn(48, 32)

    def counted(x: torch.Tensor, weight: torch.Tensor) -> torch.Tensor:
        seen.add(len(x))
        return multiply(x, weight)

    whole = linear(torch.ones(64, 32), Block("F32", weight, None, 48, 32), exact=True)
    monkeypatch.setattr(matmul, "multiply", counted)
    for n in range(1, 65):
        out = linear(torch.ones(n, 32), Block("F32", weight, None, 48, 32), exact=True)
        assert torch.equal(out, whole[:n])
    assert len(seen) <= 11


def test_prompts_of_any_length_are_multiplied_as_few_sizes(monkeypatch: pytest.MonkeyPatch) -> None:
    seen: set[int] = set()
    x, weight = torch.randn(512, 32).bfloat16(), torch.randn(48, 32).bfloat16()

    plain = torch.nn.functional.linear

    def counted(x: torch.Tensor, weight: torch.Tensor) -> torch.Tensor:
        seen.add(len(x))
        return plain(x, weight)

    monkeypatch.setattr(matmul, "matmul_dtype", lambda dtype: dtype)  # as where bf16 is not made fp32
    monkeypatch.setattr(compiled, "available", lambda encoding: False)
    monkeypatch.setattr(compiled, "own_prompt", lambda *arguments: False)
    monkeypatch.setattr(matmul.F, "linear", counted)
    whole = x.float() @ weight.t().float()
    for n in range(1, 513):
        out = linear(x[:n], Block("BF16", weight, None, 48, 32), exact=False)
        assert torch.allclose(out.float(), whole[:n], rtol=0.02, atol=0.1)
    assert len(seen) <= 18  # it was 512
    assert {64, 512} <= seen, "torch multiplied them"
