"""Inflation preserves the function: logits, greedy text, probabilities, and low-bit copies."""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from safetensors.torch import load_file

if not (Path(__file__).resolve().parents[1] / "benchmarks").is_dir():
    pytest.skip("benchmarks/ is not part of an installed package", allow_module_level=True)

from benchmarks.models.inflate import inflate, inflate_trained
from benchmarks.models.inflation import Inflation, Source
from benchmarks.models.shapes import Shape
from edgespec.core.decode import decode
from edgespec.core.passes import LocalVerifier
from edgespec.kernels.quantize import (
    dequantize_int4,
    dequantize_int8,
    quantize_int4,
    quantize_int8,
)
from edgespec.runtimes.formats.describe import describe_model
from edgespec.runtimes.rows import Rows
from edgespec.runtimes.torch.adapter_files import describe_adapters
from edgespec.runtimes.torch.streaming import KIND, Streaming, StreamingShape, streaming_shapes
from edgespec.runtimes.torch.target import TorchTarget
from edgespec.runtimes.torch.trained_files import describe_module
from tests.streamings import write_streaming
from tests.test_cascade import train
from tests.tiny import greedily, open_tiny, run_tree, write_checkpoint

# Four times as wide, heads four times as large, one key-value head a query head, more of everything.
BIG = Shape(layers=8, hidden=256, ffn=400, heads=12, kv_heads=12, vocab=400, head_dim=64)
# Heads keep their size, and key-value heads serve more query heads than the small model's.
GROUPED = Shape(layers=5, hidden=256, ffn=256, heads=14, kv_heads=2, vocab=400, head_dim=16, tied=True)
PROMPT = [3, 141, 59, 26, 53, 58, 97, 93]


def small(path: Path, **changes: Any) -> Path:
    return write_checkpoint(path, seed=5, **{"intermediate_size": 192, **changes})


def inflated(source: Path, shape: Shape, seed: int = 0) -> Path:
    directory = source.with_name(f"{source.name}-inflated-{seed}")
    inflate(source, directory, shape, seed)
    return directory


def logits(target: TorchTarget, tokens: list[int]) -> torch.Tensor:
    """[n, V] of a text, all rows in one pass."""
    return run_tree(target, target.new_cache(128), tokens, list(range(-1, len(tokens) - 1)))


def greedy(target: TorchTarget, count: int) -> list[int]:
    loop, said = greedily(LocalVerifier(target), target.new_cache(512), PROMPT), list[int]()
    for cycle in decode(loop):
        said += [*cycle.tree.tokens.tolist(), *cycle.outcome.tokens][bool(said) :]
        if len(said) >= count:
            return said
    raise AssertionError


CASES = [
    pytest.param(BIG, "float32", False, id="heads-grow-fp32"),
    pytest.param(BIG, "bfloat16", True, id="heads-grow-bf16-tied-source"),
    pytest.param(GROUPED, "float32", True, id="grouped-fp32-tied"),
    pytest.param(GROUPED, "bfloat16", True, id="grouped-bf16-tied"),
]


@pytest.mark.parametrize(("shape", "dtype", "tied"), CASES)
def test_function_is_preserved(shape: Shape, dtype: str, tied: bool, tmp_path: Path) -> None:
    source = small(tmp_path / "small", torch_dtype=dtype, tie_word_embeddings=tied)
    ours, theirs = open_tiny(source), open_tiny(inflated(source, shape))
    tokens = np.random.default_rng(0).integers(0, 160, 64).tolist()
    expected, found = logits(ours, tokens), logits(theirs, tokens)
    assert expected.std() > 0.5
    error = (found[:, :160].double() - expected.double()).abs().max() / expected.abs().max()
    assert error < (2e-6 if dtype == "float32" else 0.01)
    # Added tokens: not merely unlikely; their probability is 0.
    assert found[:, 160:].max() < -10_000
    assert torch.softmax(found.float(), 1)[:, 160:].max() == 0
    said = greedy(ours, 60)
    assert len(set(said)) > 15  # not a loop
    assert greedy(theirs, 60) == said


def test_filler_has_no_say(tmp_path: Path) -> None:
    source = small(tmp_path / "small")
    paths = inflated(source, BIG, 0), inflated(source, BIG, 1)
    one, two = (load_file(path / "model.safetensors") for path in paths)
    changed = [name for name in one if not torch.equal(one[name], two[name])]
    assert len(changed) > 50
    tokens = list(range(40))
    first, second = (logits(open_tiny(path), tokens)[:, :160] for path in paths)
    assert torch.equal(first, second)


def test_filler_is_like_the_small_model(tmp_path: Path) -> None:
    """Not zeros, where none are needed: kernels and disks see what a real model would give them."""
    source = small(tmp_path / "small")
    tensors = load_file(inflated(source, BIG) / "model.safetensors")
    whole = [n for n in tensors if n.endswith(("k_proj.weight", "gate_proj.weight", "down_proj.weight"))]
    assert len(whole) == 3 * BIG.layers
    own = load_file(source / "model.safetensors")["model.layers.1.mlp.gate_proj.weight"].std()
    for name in whole:
        assert (tensors[name] == 0).float().mean() < 0.4, name  # `down`: 192 real columns of 400
        if "gate" in name:
            assert 0.9 < tensors[name].std() / own < 1.1
    assert (tensors["model.layers.0.mlp.up_proj.weight"] == 0).all()  # an added layer's
    real = tensors["model.layers.1.mlp.up_proj.weight"]
    assert (real[:192] != 0).all()
    assert (real[192:] == 0).all()


def test_low_bit_copies_are_the_small_models(tmp_path: Path) -> None:
    """Quantising the big model does to the real weights what quantising the small one does, and no more."""
    source = small(tmp_path / "small", head_dim=64)  # groups of 64 columns are all real or all added
    shape = replace(BIG, ffn=448, head_dim=64)
    inflation, rounded = Inflation(Source(source), shape), Inflation(Source(source), shape)
    originals = load_file(source / "model.safetensors")
    for name, dims in shape.matrices():
        if "proj" not in name:
            continue
        big = inflation.tensor(name, dims)
        for quantize, dequantize in ((quantize_int4, dequantize_int4), (quantize_int8, dequantize_int8)):
            low = dequantize(*quantize(big), torch.float32)
            assert torch.equal(low == 0, (low == 0) | (big == 0)), "a zero became a number"
            matrix = rounded.matrix(name)
            rows, columns = matrix.rows.places >= 0, matrix.columns.places >= 0
            origin, real = rounded.origin(name)
            if not real:
                assert not (rows.any() and columns.any())
                continue
            expected = dequantize(*quantize(originals[origin]), torch.float32)
            order = matrix.rows.places[rows][:, None], matrix.columns.places[columns][None]
            assert torch.equal(low[rows][:, columns], expected[order])


def test_real_layers_lie_evenly(tmp_path: Path) -> None:
    source = small(tmp_path / "small", num_hidden_layers=2)
    inflation = Inflation(Source(source), replace(BIG, layers=8))
    assert inflation.layers == {2: 0, 6: 1}
    assert inflation.origin("model.layers.5.mlp.up_proj.weight") == (
        "model.layers.0.mlp.up_proj.weight",
        False,
    )
    assert inflation.origin("model.layers.0.mlp.up_proj.weight")[0].startswith("model.layers.0.")


def test_config_and_files(tmp_path: Path) -> None:
    source = small(tmp_path / "small", rope_theta=5000.0, eos_token_id=7, max_position_embeddings=300)
    (source / "tokenizer.json").write_text("{}")
    directory = inflated(source, BIG)
    config = json.loads((directory / "config.json").read_text())
    assert (config["hidden_size"], config["vocab_size"], config["tie_word_embeddings"]) == (256, 400, False)
    assert (config["rope_theta"], config["eos_token_id"], config["max_position_embeddings"]) == (
        5000.0,
        7,
        300,
    )
    assert 0 < config["rms_norm_eps"] < 1e-5 / 4
    assert (directory / "tokenizer.json").exists()
    assert not list(tmp_path.glob("*.partial"))


@pytest.mark.parametrize(
    ("changes", "reason"),
    [
        ({"hidden": 128}, "hidden size 128 is not 64 times a power of 4"),
        ({"head_dim": 32}, "head_dim 32 is not 16 times a power of 4"),
        ({"layers": 2}, "layers: 3 do not fit into 2"),
        ({"ffn": 100}, "intermediate size: 192 do not fit into 100"),
        ({"vocab": 100}, "vocabulary: 160 do not fit into 100"),
        ({"heads": 3, "kv_heads": 3}, "4 heads over 2 key-value heads need 4"),
        ({"tied": True}, "tied"),
        ({"hidden": 64}, "larger vocabulary needs extra channels"),
    ],
)
def test_impossible_shapes_say_why(changes: dict[str, Any], reason: str, tmp_path: Path) -> None:
    source = small(tmp_path / "small")
    with pytest.raises(SystemExit, match=reason):
        inflate(source, tmp_path / "big", replace(BIG, **changes))
    assert not (tmp_path / "big").exists()


def test_biases_are_refused(tmp_path: Path) -> None:
    source = small(tmp_path / "small", attention_bias=True)
    with pytest.raises(SystemExit, match="without biases"):
        Inflation(Source(source), BIG)


@pytest.mark.parametrize("shape", [BIG, GROUPED], ids=["heads-grow", "grouped"])
def test_adapters_are_inflated_with_their_model(shape: Shape, tmp_path: Path) -> None:
    """What the big adapters say is what the small ones say, at every depth."""
    source = small(tmp_path / "small", num_hidden_layers=4, tie_word_embeddings=True)
    big = inflated(source, shape)
    adapters = train(source, "random", (1, 2, 3))
    inflate_trained(source, adapters, big, shape, tmp_path / "big-adapters")
    tokens = np.random.default_rng(0).integers(0, 160, 64).tolist()
    ours, theirs = exits(source, adapters, tokens), exits(big, tmp_path / "big-adapters", tokens)
    assert list(ours) == [("draft", 1), ("verify", 2), ("verify", 3)]
    depths = {BIG.layers: [2, 4, 6], GROUPED.layers: [1, 2, 4]}[shape.layers]
    assert list(theirs) == [(role, depth) for (role, _), depth in zip(ours, depths, strict=True)]
    for expected, found in zip(ours.values(), theirs.values(), strict=True):
        assert expected.std() > 0.5
        error = (found[:, :160].double() - expected.double()).abs().max() / expected.abs().max()
        assert error < 5e-6
        assert found[:, 160:].max() < -10_000


@pytest.mark.parametrize("shape", [BIG, GROUPED], ids=["heads-grow", "grouped"])
def test_a_streaming_drafter_is_inflated_with_its_model(shape: Shape, tmp_path: Path) -> None:
    """All streams of the big one say what the small one's do, and never an added token."""
    source = small(tmp_path / "small", tie_word_embeddings=True)
    big = inflated(source, shape)
    drafter = write_streaming(source, "random")
    inflate_trained(source, drafter, big, shape, tmp_path / "big-drafter")
    tokens = np.random.default_rng(0).integers(0, 160, 24).tolist()
    expected, found = streams(source, drafter, tokens), streams(big, tmp_path / "big-drafter", tokens)
    assert expected.std() > 0.5
    assert not torch.equal(expected[0], expected[1])
    error = (found[..., :160].double() - expected.double()).abs().max() / expected.abs().max()
    assert error < 5e-6
    assert found[..., 160:].max() < -10_000


def streams(path: Path, drafter: Path, tokens: list[int]) -> torch.Tensor:
    """[1 + gamma, n, V] logits of a text, by stream."""
    target, files = open_tiny(path), describe_model(path)
    file = describe_module(drafter, KIND, StreamingShape, streaming_shapes, files)
    module = Streaming(files.config, file.shape)
    file.read(module)
    with torch.inference_mode():
        hidden = module(target.embed(tokens)[None])[0]
        [logits] = target.weights.linear(("lm_head",), hidden.flatten(0, 1), True)
    return logits.view(*hidden.shape[:2], -1).clone()


def exits(path: Path, adapters: Path, tokens: list[int]) -> dict[tuple[str, int], torch.Tensor]:
    """[n, V] logits of a text by (role, depth), all rows in one pass."""
    target, found = open_tiny(path), {}
    for file in describe_adapters(adapters, describe_model(path)):
        adapter = file.open(target.config, torch.float32)
        caches = target.new_cache(128), adapter.new_cache(128, 64)
        rows = [Rows.append(cache, np.arange(-1, len(tokens) - 1)) for cache in caches]
        hidden = target.run(target.embed(tokens), rows[0], range(file.depth))
        [logits] = target.weights.linear(("lm_head",), adapter.run(hidden, rows[1]), True)
        found[file.role, file.depth] = logits.clone()
    return found
