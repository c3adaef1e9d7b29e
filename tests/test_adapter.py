"""Adapters: training and inference compute the same function, trees commit as chains do, hostile files."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from safetensors.torch import load_file, save_file

from edgespec.errors import CorruptFileError, ModelError, UnsupportedModelError
from edgespec.runtimes.formats.describe import ModelFiles, describe_model
from edgespec.runtimes.rows import Rows
from edgespec.runtimes.torch.adapter import Adapter, adapter_bytes, adapter_cache_bytes
from edgespec.runtimes.torch.adapter_files import MANIFEST, describe_adapters, save_adapters
from tests.tiny import write_checkpoint

SLOTS = 64


def random_adapter(files: ModelFiles, depth: int = 1, dtype: torch.dtype = torch.float32) -> Adapter:
    """With every parameter random, so that a forgotten one is seen."""
    generator = torch.Generator().manual_seed(depth)
    adapter = Adapter(files.config, depth, dtype)
    with torch.no_grad():
        for parameter in adapter.parameters():
            noise = torch.randn(parameter.shape, generator=generator)
            parameter.copy_(noise / noise.shape[-1] ** 0.5 if noise.dim() == 2 else 1 + noise / 4)
    return adapter


@pytest.fixture
def files(tmp_path: Path) -> ModelFiles:
    return describe_model(write_checkpoint(tmp_path / "target"))


def hidden_states(files: ModelFiles, n: int, dtype: torch.dtype = torch.float32) -> torch.Tensor:
    return torch.randn(n, files.config.hidden_size, generator=torch.Generator().manual_seed(7)).to(dtype)


def chain(adapter: Adapter, hidden: torch.Tensor, prefill: int) -> torch.Tensor:
    """The outputs of `run` over a prompt's block of `prefill` rows, then row by row."""
    cache = adapter.new_cache(len(hidden), SLOTS)
    rows = Rows.append(cache, np.arange(-1, prefill - 1), prefill=True)
    outputs = [adapter.run(hidden[:prefill], rows)]
    cache.commit(np.arange(prefill))
    for i in range(prefill, len(hidden)):
        outputs.append(adapter.run(hidden[i : i + 1], Rows.append(cache, [-1])))
        cache.commit([0])
    return torch.cat(outputs)


@pytest.mark.parametrize(("dtype", "tolerance"), [(torch.float32, 1e-5), (torch.bfloat16, 0.06)])
def test_training_and_inference_agree(files: ModelFiles, dtype: torch.dtype, tolerance: float) -> None:
    adapter = random_adapter(files, dtype=dtype)
    hidden = hidden_states(files, 90, dtype)
    trained = adapter(hidden[None])[0]
    used = chain(adapter, hidden, prefill=70)
    assert (trained - used).abs().max() < tolerance * used.abs().max()
    assert trained.requires_grad
    assert not used.requires_grad


def test_masters_of_fp32_train_in_the_type_of_the_features(files: ModelFiles) -> None:
    adapter = random_adapter(files)
    out = adapter(hidden_states(files, 5, torch.bfloat16)[None])
    assert out.dtype == torch.bfloat16
    out.float().square().sum().backward()
    assert all(p.grad is not None and p.grad.dtype == torch.float32 for p in adapter.parameters())
    assert all(p.grad is not None and p.grad.abs().sum() > 0 for p in adapter.parameters())


def test_a_shorter_sequence_is_not_reached_by_its_padding(files: ModelFiles) -> None:
    adapter = random_adapter(files)
    hidden = hidden_states(files, 20)
    padded = torch.stack([hidden, torch.cat([hidden[:12], torch.full_like(hidden[12:], 1e4)])])
    out = adapter(padded)
    assert torch.allclose(out[0, :12], out[1, :12], atol=1e-6)


def test_a_committed_branch_equals_the_same_tokens_one_by_one(files: ModelFiles) -> None:
    adapter = random_adapter(files)
    hidden = hidden_states(files, 80)
    straight = chain(adapter, hidden, prefill=70)
    cache = adapter.new_cache(80, SLOTS)
    adapter.run(hidden[:70], Rows.append(cache, np.arange(-1, 69), prefill=True))
    cache.commit(np.arange(70))
    # A tree: the true path is slots 0, 2, 3, and 5; the others hold other states.
    other = hidden_states(files, 99)[90:]
    tree = torch.stack([hidden[70], other[0], hidden[71], hidden[72], other[1], hidden[73]])
    out = adapter.run(tree, Rows.append(cache, [-1, 0, 0, 2, 1, 3]))
    path = [0, 2, 3, 5]
    assert torch.equal(out[path], straight[70:74])
    cache.commit(path)
    after = adapter.run(hidden[74:75], Rows.append(cache, [-1]))
    assert torch.equal(after, straight[74:75])
    cache.truncate(72)  # and back
    again = adapter.run(hidden[72:74], Rows.append(cache, [-1, 0]))
    assert torch.equal(again, straight[72:74])


def test_a_window_reaches_as_far_in_training_as_in_use(tmp_path: Path) -> None:
    changes: dict[str, Any] = {"architectures": ["MistralForCausalLM"], "sliding_window": 8}
    files = describe_model(write_checkpoint(tmp_path / "m", **changes))
    adapter = random_adapter(files)
    assert adapter.window == 8
    hidden = hidden_states(files, 40)
    assert (adapter(hidden[None])[0] - chain(adapter, hidden, 30)).abs().max() < 1e-4
    far = hidden.clone()
    far[:20] += 1
    assert torch.allclose(adapter(far[None])[0, 30:], adapter(hidden[None])[0, 30:], atol=1e-6)


def test_initialised_it_is_the_targets_early_exit(files: ModelFiles) -> None:
    adapter = Adapter(files.config, 1)
    final = torch.linspace(0.5, 1.5, files.config.hidden_size)
    adapter.initialise(final, torch.Generator().manual_seed(0))
    hidden = hidden_states(files, 6)
    expected = hidden * torch.rsqrt(hidden.square().mean(-1, keepdim=True) + 1e-5) * final
    assert torch.allclose(adapter(hidden[None])[0], expected, atol=1e-5)


def test_its_bytes_are_what_the_ledger_is_told(files: ModelFiles) -> None:
    adapter = random_adapter(files, dtype=torch.bfloat16)
    assert adapter.nbytes == adapter_bytes(files.config, torch.bfloat16)
    cache = adapter.new_cache(100, 20)
    assert cache.nbytes == adapter_cache_bytes(files.config, 100, 20, torch.bfloat16)
    assert len(cache.k) == 1


# --- on disk ----------------------------------------------------------------------------------------------


@pytest.fixture
def saved(files: ModelFiles, tmp_path: Path) -> Path:
    directory = tmp_path / "adapters"
    pair = [
        ("verify", random_adapter(files, 2), {"steps": 5}),
        ("draft", random_adapter(files, 1), {}),
    ]
    save_adapters(directory, files, pair, torch.float32)  # type: ignore[arg-type]
    return directory


def test_adapters_come_back_as_they_were(saved: Path, files: ModelFiles) -> None:
    found = describe_adapters(saved, files)
    assert [(a.role, a.depth) for a in found] == [("draft", 1), ("verify", 2)]
    assert found[1].training == {"steps": 5}
    for entry in found:
        adapter = entry.open(files.config, torch.float32)
        expected = random_adapter(files, entry.depth)
        assert entry.nbytes == adapter.nbytes
        assert not any(p.requires_grad for p in adapter.parameters())
        for name, parameter in adapter.named_parameters():
            assert torch.equal(parameter, dict(expected.named_parameters())[name]), name
    assert found[0].open(files.config, torch.bfloat16).q_proj.dtype == torch.bfloat16


def test_another_target_or_precision_is_refused(saved: Path, tmp_path: Path) -> None:
    other = describe_model(write_checkpoint(tmp_path / "other", seed=1))
    with pytest.raises(ModelError, match="trained for 'target'"):
        describe_adapters(saved, other)
    manifest = json.loads((saved / MANIFEST).read_text())
    manifest["target"]["precision"] = "int4"
    (saved / MANIFEST).write_text(json.dumps(manifest))
    with pytest.raises(ModelError, match="precision int4, this one is fp32"):
        describe_adapters(saved, describe_model(tmp_path / "target"))
    with pytest.raises(ModelError, match=r"train_cascade\(model="):
        describe_adapters(tmp_path, other)


def set_value(*path: Any, value: Any) -> Callable[[dict[str, Any]], None]:
    def change(manifest: dict[str, Any]) -> None:
        for key in path[:-1]:
            manifest = manifest[key]
        manifest[path[-1]] = value

    return change


@pytest.mark.parametrize(
    ("change", "error"),
    [
        (set_value("format", value=2), UnsupportedModelError),
        (set_value("kind", value="moa"), ModelError),
        (set_value("kind", value="../x"), CorruptFileError),
        (set_value("adapters", value=[]), CorruptFileError),
        (set_value("adapters", 0, "role", value="other"), CorruptFileError),
        (set_value("adapters", 0, "depth", value=0), CorruptFileError),
        (set_value("adapters", 0, "depth", value=3), CorruptFileError),  # the target has three layers
        (set_value("adapters", 0, "file", value="../target/model.safetensors"), CorruptFileError),
        (set_value("adapters", 0, "file", value="missing.safetensors"), ModelError),
        (set_value("adapters", 0, "more", value=1), CorruptFileError),
        (set_value("target", "hidden_size", value=2**30), CorruptFileError),
        (set_value("target", "heads", value=8), CorruptFileError),
    ],
)
def test_an_unsound_manifest_is_refused(
    saved: Path, files: ModelFiles, change: Callable[[dict[str, Any]], None], error: type[Exception]
) -> None:
    manifest = json.loads((saved / MANIFEST).read_text())
    change(manifest)
    (saved / MANIFEST).write_text(json.dumps(manifest))
    with pytest.raises(error):
        describe_adapters(saved, files)


def test_a_manifest_past_its_limit_or_doubled_is_refused(saved: Path, files: ModelFiles) -> None:
    text = (saved / MANIFEST).read_text()
    (saved / MANIFEST).write_text(text + " " * 2**20)
    with pytest.raises(CorruptFileError, match="larger than"):
        describe_adapters(saved, files)
    manifest = json.loads(text)
    manifest["adapters"][1] = manifest["adapters"][0]
    (saved / MANIFEST).write_text(json.dumps(manifest))
    with pytest.raises(CorruptFileError, match="two adapters"):
        describe_adapters(saved, files)


def test_tensors_of_another_shape_or_name_are_refused(saved: Path, files: ModelFiles) -> None:
    path = saved / "draft-1.safetensors"
    state = load_file(path)
    save_file({**state, "norm": torch.zeros(7)}, path)
    with pytest.raises(CorruptFileError, match="norm is F32 \\[7\\]"):
        describe_adapters(saved, files)
    save_file({**state, "norm": torch.zeros(64, dtype=torch.int32)}, path)
    with pytest.raises(CorruptFileError, match="norm is I32"):
        describe_adapters(saved, files)
    save_file({k: v for k, v in state.items() if k != "norm"}, path)
    with pytest.raises(CorruptFileError, match="does not hold what"):
        describe_adapters(saved, files)
    path.write_bytes(path.read_bytes()[:-1])
    with pytest.raises(CorruptFileError):
        describe_adapters(saved, files)
