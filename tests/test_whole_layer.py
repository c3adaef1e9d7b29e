"""A layer in one call has the bits of its functions called one by one, and is that call where it can be."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from safetensors.torch import load_file
from torch import Tensor

from edgespec.errors import BusyError
from edgespec.kernels import compiled, dispatch
from edgespec.kernels.compiled import Matrices
from edgespec.kernels.layer import BIASES, NORMS, LayerPass, LayerShape, WholeLayer, run_layers
from edgespec.kernels.scratch import _BUFFERS
from edgespec.kernels.tree_attention import Past, TreeAttention
from edgespec.runtimes.rows import Rows
from edgespec.runtimes.target import EVERY_LAYER, NO_LAYER, Layers
from edgespec.runtimes.torch import target as target_module
from edgespec.runtimes.torch import whole_layer
from tests.test_compiled import weights
from tests.test_exactness import KINDS, random_tree
from tests.tiny import fill, open_tiny, run_tree, write_checkpoint

pytestmark = pytest.mark.skipif(bool(compiled.unavailable()), reason=compiled.unavailable())

D, HEADS, KV_HEADS, E, F = 256, 4, 2, 64, 512
LENGTHS = dict(
    zip(NORMS + BIASES, (D, E, E, D, HEADS * E, KV_HEADS * E, KV_HEADS * E, D, F, F, D), strict=True)
)


class Listener:
    """Of a pass; see `runtimes.target.PassObserver`."""

    def __init__(self, hears: Layers) -> None:
        self.hears, self.heard, self.chunks = hears, list[int](), 0

    def on_chunk(self) -> None:
        self.chunks += 1

    def on_layer(self, index: int, hidden: Tensor, rows: Rows) -> None:
        self.heard.append(index)

    def on_wait(self) -> bool:
        return False


def products(encoding: str) -> list[Matrices]:
    """Of a layer, each matrix in two blocks of rows."""
    seed, made = 0, []
    for columns, matrices in (
        (D, (HEADS, KV_HEADS, KV_HEADS)),
        (HEADS * E, (D // E,)),
        (D, (F // E, F // E)),
        (F, (D // E,)),
    ):
        rows = []
        for count in matrices:
            blocks = [weights(encoding, some, columns, seed := seed + 1)[0] for some in (40, count * E - 40)]
            rows.append([(encoding, block.data, block.scale) for block in blocks])
        made.append(Matrices(rows, columns))
    return made


def pasts(dtype: torch.dtype, lengths: dict[int, int], keys: Tensor, values: Tensor) -> list[Past]:
    """Of chains of so many rows behind so many positions, [layers, kv_heads, places, e]."""
    found = []
    for i, (n, length) in enumerate(lengths.items()):
        shared = length // 64 * 64
        place = np.tile(np.arange(length - shared + n, dtype=np.int32), (n, 1))
        kv = keys[i].to(dtype), values[i].to(dtype)
        behind = range(shared, kv[0].shape[2])
        found.append(Past(kv, kv, behind, shared, place, np.arange(length, length + n)))
    return found


def one_by_one(
    layer: WholeLayer, index: int, hidden: Tensor, attention: TreeAttention, angles: tuple[Tensor, Tensor]
) -> Tensor:
    n, vectors, shape = len(hidden), layer.vectors, layer.shape

    def times(which: int, x: Tensor, *biases: str) -> list[Tensor]:
        outs = layer.products[which].times(x, x.dtype)
        return [out + vectors[b] if b in vectors else out for out, b in zip(outs, biases, strict=True)]

    x = dispatch.rms_norm(hidden, vectors["input_norm"], shape.eps)
    q, k, v = (part.view(n, -1, E) for part in times(0, x, "q_bias", "k_bias", "v_bias"))
    if "q_norm" in vectors:
        q = dispatch.rms_norm(q, vectors["q_norm"], shape.eps)
        k = dispatch.rms_norm(k, vectors["k_norm"], shape.eps)
    q, k = dispatch.rotate(q, k, *angles, shape.interleaved)
    [attended] = times(1, attention(index, q, k, v, shape.window), "o_bias")
    hidden, x = dispatch.add_norm(hidden, attended, vectors["after_norm"], shape.eps)
    [down] = times(3, dispatch.swiglu(*times(2, x, "gate_bias", "up_bias")), "down_bias")
    return hidden + down


@pytest.mark.parametrize("dtype", [torch.float32, torch.float16, torch.bfloat16], ids=str)
@pytest.mark.parametrize("encoding", ["Q4_K", "U8", "F16"])
@pytest.mark.parametrize("bare", [True, False], ids=["bare", "biases and norms"])
def test_a_layer_has_the_bits_of_its_functions(encoding: str, dtype: torch.dtype, bare: bool) -> None:
    generator = torch.Generator().manual_seed(1)
    names = ("input_norm", "after_norm") if bare else NORMS + BIASES
    vectors = {name: (1 + torch.randn(LENGTHS[name], generator=generator) / 4).to(dtype) for name in names}
    window = None if bare else 20
    layer = WholeLayer(
        products(encoding), vectors, LayerShape(D, HEADS, KV_HEADS, E, F, not bare, window, 1e-5)
    )
    for lengths in ({1: 3}, {40: 64}, {5: 70, 33: 0, 2: 130}, {64: 70, 37: 0, 1: 100}):
        n = sum(lengths)
        keys, values = torch.randn(2, len(lengths), 3, KV_HEADS, 192, E, generator=generator)
        hidden = torch.randn(n, D, generator=generator).to(dtype)
        cos, sin = torch.randn(2, n, 1, E // 2, generator=generator).to(dtype)
        apart, whole = (pasts(dtype, lengths, keys.clone(), values.clone()) for _ in range(2))
        expected = one_by_one(layer, 1, hidden, TreeAttention(apart), (cos, sin))
        _BUFFERS.by_use.pop("matmul", None)  # there is not room enough at once
        before = hidden.clone()
        found = run_layers([layer], 1, hidden, LayerPass(TreeAttention(whole), cos, sin))
        assert torch.equal(found, expected)
        assert torch.equal(hidden, before)
        for i, (a, b) in enumerate(zip(apart, whole, strict=True)):  # what was stored, and where
            assert all(torch.equal(left, right) for left, right in zip(a.prefix, b.prefix, strict=True))
            assert not torch.equal(a.prefix[0][1], keys[i][1].to(dtype))


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("dtype", ["bfloat16", "float16"])
def test_layers_in_memory_are_one_call(
    tmp_path: Path, kind: str, dtype: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    if dtype == "bfloat16" and not compiled.available("BF16"):
        pytest.skip("torch multiplies bf16 here")
    path = write_checkpoint(tmp_path, torch_dtype=dtype, **KINDS[kind])
    resident, streamed = open_tiny(path), open_tiny(path, lambda chunk: chunk.layer == 1)
    calls: list[list[int]] = []

    def counted(layers: list[WholeLayer], first: int, hidden: Tensor, shared: LayerPass) -> Tensor:
        calls.append([*range(first, first + len(layers))])
        return run_layers(layers, first, hidden, shared)

    monkeypatch.setattr(target_module, "run_layers", counted)
    rng = np.random.default_rng(5)
    prompt, tokens, parents = rng.integers(0, 160, 70), rng.integers(0, 160, 8), random_tree(rng, 8)

    def logits(target: Any, observer: Any = None) -> Tensor:
        cache = target.new_cache(200)
        fill(target, cache, prompt)
        return run_tree(target, cache, tokens, parents, observer)

    expected = logits(resident)
    assert calls == [[0, 1, 2]]
    calls.clear()
    own, chains = resident.weights, resident.weights.chains
    most = min(chains, resident.whole_rows)
    for rows in (1, 32, 64, 65):  # of a prompt
        fill(resident, resident.new_cache(200), [*prompt[:rows]])
        assert calls == [[0, 1, 2]] * (rows <= most)
        calls.clear()
    assert torch.equal(logits(streamed), expected)
    assert calls == [[1]]
    (layer,) = whole_layer.whole_layers([1], 8, resident.config, own.together, own.small)
    matrices = [name for matrices in whole_layer.PRODUCTS for name in matrices]
    shapes = load_file(path / "model.safetensors")
    assert layer.weights == sum(shapes[f"model.layers.1.{name}.weight"].numel() for name in matrices)
    for most, few, spans in (
        (16, 8, [[0, 1], [2]]),
        (16, 16, [[0], [1], [2]]),  # the 8 rows are as dear
        (23, 8, [[0, 1], [2]]),
        (24, 8, [[0, 1, 2]]),
        (0, 8, [[0], [1], [2]]),  # one in any case
    ):
        calls.clear()
        monkeypatch.setattr(whole_layer, "AT_ONCE", most * layer.weights)
        monkeypatch.setattr(whole_layer, "FEW", few)
        assert torch.equal(logits(resident), expected)
        assert calls == spans
    monkeypatch.setattr(whole_layer, "AT_ONCE", 24 * layer.weights)
    monkeypatch.setattr(whole_layer, "FEW", 8)
    for hears, spans in (
        (EVERY_LAYER, [[0], [1], [2]]),
        (NO_LAYER, [[0, 1, 2]]),
        (frozenset({-1, 0}), [[0], [1, 2]]),
        (frozenset({1, 7}), [[0, 1], [2]]),
    ):
        calls.clear()
        listener = Listener(hears)
        assert torch.equal(logits(resident, listener), expected)
        assert calls == spans
        assert listener.heard == [span[-1] for span in spans]
        assert listener.chunks == len(spans)  # a chance to end the reply, for each
    calls.clear()
    monkeypatch.setattr(target_module, "whole_pass", lambda *args: None)
    assert torch.equal(logits(resident), expected)
    assert not calls
    for target in (resident, streamed):
        target.weights.close()
    assert not resident.weights.together.layers


def test_slots_of_another_pass_are_not_overwritten(tmp_path: Path) -> None:
    target = open_tiny(write_checkpoint(tmp_path, torch_dtype="float16"))
    cache = target.new_cache(100)
    fill(target, cache, [1, 2, 3])
    inside = cache.inside()
    rows = Rows.append(inside, [-1])
    shared = target.prepare(rows)
    cache.append([-1])
    with pytest.raises(BusyError):
        target.run_layer(0, target.embed([4]), shared)
