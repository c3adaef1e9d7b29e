"""GGUF files as models: config and tensors mapped as llama.cpp means them, foreign ones refused."""

from __future__ import annotations

import struct
import subprocess
import sys
from pathlib import Path
from typing import Any

import gguf
import numpy as np
import pytest

from edgespec.errors import CorruptFileError, ModelError, UnsupportedModelError
from edgespec.kernels.gguf_blocks import dequantize
from edgespec.runtimes.formats.gguf import read_gguf
from edgespec.runtimes.formats.gguf_file import read_gguf_file
from tests.models import (
    ARCHITECTURES,
    add_value,
    gguf_name,
    make_checkpoint,
    permute,
    read_tensors,
    rope_factors,
    write_gguf,
)


@pytest.fixture(scope="module")
def checkpoints(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Path]:
    root = tmp_path_factory.mktemp("models")
    return {a: make_checkpoint(root / a, a, tied=a == "qwen3") for a in ARCHITECTURES}


@pytest.mark.parametrize("architecture", ARCHITECTURES)
def test_config_and_tensors(tmp_path: Path, checkpoints: dict[str, Path], architecture: str) -> None:
    from edgespec.runtimes.formats.checkpoint import read_checkpoint

    source = read_checkpoint(checkpoints[architecture])
    got = read_gguf(write_gguf(checkpoints[architecture], tmp_path / "m.gguf"))
    theirs, ours = source.config, got.config
    for field in (
        "architecture",
        "hidden_size",
        "intermediate_size",
        "layers",
        "heads",
        "kv_heads",
        "head_dim",
    ):
        assert getattr(ours, field) == getattr(theirs, field), field
    for field in (
        "vocab_size",
        "max_context",
        "tied_head",
        "dtype",
        "qkv_bias",
        "o_bias",
        "mlp_bias",
        "qk_norm",
    ):
        assert getattr(ours, field) == getattr(theirs, field), field
    assert (ours.windows, ours.bos, ours.eos) == (theirs.windows, theirs.bos, theirs.eos)
    assert ours.norm_eps == np.float32(theirs.norm_eps)
    assert ours.rope.theta == theirs.rope.theta
    assert ours.rope.interleaved == (architecture in ("llama2", "llama3", "mistral"))
    assert got.tensors.keys() == source.tensors.keys() - ({"lm_head.weight"} if theirs.tied_head else set())
    weights = read_tensors(checkpoints[architecture])
    for name, tensor in got.tensors.items():
        assert tensor.name == name
        assert tensor.shape == source.tensors[name].shape
        raw = tensor.file.read_bytes()[tensor.offset : tensor.offset + tensor.nbytes]
        stored = np.frombuffer(raw, np.float32).reshape(tensor.shape)
        expected = weights[name].numpy()
        if ours.rope.interleaved and name.endswith(("q_proj.weight", "k_proj.weight")):
            expected = permute(expected, ours.heads if "q_proj" in name else ours.kv_heads)
        assert (stored == expected).all(), name


def test_llama3_scaling_becomes_divisors(tmp_path: Path, checkpoints: dict[str, Path]) -> None:
    from edgespec.runtimes.formats.checkpoint import read_checkpoint
    from edgespec.runtimes.torch.rope import inverse_frequencies

    got = read_gguf(write_gguf(checkpoints["llama3"], tmp_path / "m.gguf")).config.rope
    assert got.kind == "default"
    assert len(set(got.factors)) > 2  # kept, blended and stretched
    original = read_checkpoint(checkpoints["llama3"]).config
    assert original.rope.kind == "llama3"
    ours, theirs = inverse_frequencies(got, 16), inverse_frequencies(original.rope, 16)
    assert np.allclose(ours.numpy(), theirs.numpy(), rtol=1e-6, atol=0)


def test_linear_scaling(tmp_path: Path, checkpoints: dict[str, Path]) -> None:
    extra = {"llama.rope.scaling.type": "linear", "llama.rope.scaling.factor": 4.0}
    rope = read_gguf(write_gguf(checkpoints["llama2"], tmp_path / "m.gguf", metadata=extra)).config.rope
    assert (rope.kind, rope.factor, rope.interleaved) == ("linear", 4.0, True)
    old = {"llama.rope.scale_linear": 2.0}
    rope = read_gguf(write_gguf(checkpoints["llama2"], tmp_path / "o.gguf", metadata=old)).config.rope
    assert (rope.kind, rope.factor) == ("linear", 2.0)


@pytest.mark.parametrize(
    ("encoding", "dtype"),
    [
        ("F32", "float32"),
        ("F16", "float16"),
        ("BF16", "bfloat16"),
        ("Q8_0", "bfloat16"),
        ("Q4_0", "bfloat16"),
    ],
)
def test_compute_dtype_and_rows(
    tmp_path: Path, checkpoints: dict[str, Path], encoding: str, dtype: str
) -> None:
    got = read_gguf(write_gguf(checkpoints["qwen3"], tmp_path / "m.gguf", encoding))
    assert got.config.dtype == dtype
    name = "model.layers.1.mlp.down_proj.weight"
    tensor = got.tensors[name]
    assert tensor.encoding == encoding
    raw = np.frombuffer(tensor.file.read_bytes(), np.uint8)[tensor.offset :][: tensor.nbytes]
    weights = dequantize(encoding, raw.reshape(tensor.shape[0], tensor.row_bytes), tensor.shape[1])
    expected = read_tensors(checkpoints["qwen3"])[name].numpy()
    tolerance = {"F32": 0, "F16": 1e-3, "BF16": 1e-2, "Q8_0": 1e-2, "Q4_0": 0.15}[encoding]
    assert np.abs(weights - expected).max() <= tolerance * np.abs(expected).max()


def test_digest_follows_header_and_weights(tmp_path: Path, checkpoints: dict[str, Path]) -> None:
    path = write_gguf(checkpoints["qwen3"], tmp_path / "m.gguf")
    first = read_gguf(path).digest
    assert read_gguf(path).digest == first
    raw = bytearray(path.read_bytes())
    raw[min(t.offset for t in read_gguf(path).tensors.values())] ^= 1
    (tmp_path / "n.gguf").write_bytes(raw)
    assert read_gguf(tmp_path / "n.gguf").digest != first
    again = write_gguf(checkpoints["qwen3"], tmp_path / "o.gguf", metadata={"general.name": "other"})
    assert read_gguf(again).digest != first


def test_end_tokens(tmp_path: Path, checkpoints: dict[str, Path]) -> None:
    extra = {"tokenizer.ggml.eot_token_id": 7, "tokenizer.ggml.eom_token_id": 2}
    config = read_gguf(write_gguf(checkpoints["qwen3"], tmp_path / "m.gguf", metadata=extra)).config
    assert (config.bos, config.eos) == (1, (2, 7))


REFUSED: dict[str, tuple[str, dict[str, Any], str]] = {
    "architecture": ("llama2", {"general.architecture": "gemma3"}, "'gemma3' is not supported"),
    "yarn": ("qwen2", {"qwen2.rope.scaling.type": "yarn"}, "'yarn' is not supported"),
    "experts": ("llama2", {"llama.expert_count": 8}, "expert_count is 8"),
    "soft cap": ("llama2", {"llama.attn_logit_softcapping": 50.0}, "softcapping is 50"),
    "partial rotation": ("llama2", {"llama.rope.dimension_count": 8}, "dimension_count is 8"),
    "value heads": ("llama2", {"llama.attention.value_length": 8}, "value_length is 8"),
    "uneven layers": ("llama2", {"llama.feed_forward_length": [96, 96, 64]}, "differs from layer to layer"),
    "both scalings": (
        "llama3",
        {"llama.rope.scaling.type": "linear", "llama.rope.scaling.factor": 2.0},
        "linear rope scaling beside",
    ),
    "no layers": ("llama2", {"llama.block_count": 0}, "block_count is 0"),
    "too many layers": ("llama2", {"llama.block_count": 2**31}, "block_count is 2147483648"),
    "missing layer": ("llama2", {"llama.block_count": 4}, "model.layers.3.*missing"),
    "wrong width": ("llama2", {"llama.feed_forward_length": 97}, "97"),
    "odd heads": ("llama2", {"llama.attention.head_count_kv": 3}, "not possible"),
    "odd pairs": ("llama2", {"llama.attention.key_length": 15}, "not possible"),
    "context as text": ("llama2", {"llama.context_length": "long"}, "context_length is 'long'"),
    "rope base": ("llama2", {"llama.rope.freq_base": -1.0}, "not positive"),
    "rope base NaN": ("llama2", {"llama.rope.freq_base": float("nan")}, "expected a number"),
}


@pytest.mark.parametrize("case", REFUSED)
def test_models_that_would_be_computed_wrongly(
    tmp_path: Path, checkpoints: dict[str, Path], case: str
) -> None:
    architecture, extra, message = REFUSED[case]
    extra = dict(extra)
    name = extra.pop("general.architecture", None)
    path = write_gguf(checkpoints[architecture], tmp_path / "m.gguf", metadata=extra)
    if name:
        theirs = struct.pack("<Q", len(name)) + name.encode()
        path.write_bytes(path.read_bytes().replace(struct.pack("<Q", 5) + b"llama", theirs, 1))
    with pytest.raises(ModelError, match=message):
        read_gguf(path)


def test_a_foreign_tensor_is_refused(tmp_path: Path) -> None:
    writer = gguf.GGUFWriter(tmp_path / "m.gguf", "llama")
    for key in ("context_length", "embedding_length", "block_count", "feed_forward_length"):
        add_value(writer, f"llama.{key}", 32)
    add_value(writer, "llama.attention.head_count", 2)
    add_value(writer, "tokenizer.ggml.tokens", ["a", "b"])
    writer.add_tensor("token_embd.weight", np.zeros((2, 32), np.float32))
    writer.add_tensor("blk.0.ffn_sub_norm.weight", np.zeros(32, np.float32))
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()
    with pytest.raises(UnsupportedModelError, match="ffn_sub_norm"):
        read_gguf(tmp_path / "m.gguf")


def test_bad_frequencies(tmp_path: Path, checkpoints: dict[str, Path]) -> None:
    path = write_gguf(checkpoints["llama3"], tmp_path / "m.gguf")
    place = read_gguf_file(path).tensors["rope_freqs.weight"].offset
    raw = bytearray(path.read_bytes())
    for bad in (0.0, -1.0, float("inf"), float("nan")):
        raw[place : place + 4] = struct.pack("<f", bad)
        path.write_bytes(raw)
        with pytest.raises(CorruptFileError, match="divisor that is not positive"):
            read_gguf(path)


# --- split files -----------------------------------------------------------------------------------------


def split(path: Path, parts: int) -> list[Path]:
    """The file as `parts` files, as llama.cpp's gguf-split makes them: metadata in the first."""
    reader = gguf.GGUFReader(path)
    names = [path.with_name(f"{path.stem}-{i + 1:05}-of-{parts:05}.gguf") for i in range(parts)]
    for i, name in enumerate(names):
        writer = gguf.GGUFWriter(name, "llama" if i == 0 else "")
        if i == 0:
            for key, field in reader.fields.items():
                if not key.startswith("GGUF.") and key != "general.architecture":
                    add_value(writer, key, field.contents())
        for key, value in (("no", i), ("count", parts)):
            writer.add_uint16(f"split.{key}", value)
        for tensor in reader.tensors[i::parts]:
            writer.add_tensor(tensor.name, np.array(tensor.data))
        writer.write_header_to_file()
        writer.write_kv_data_to_file()
        writer.write_tensors_to_file()
        writer.close()
    return names


def test_split_files_are_one_model(tmp_path: Path, checkpoints: dict[str, Path]) -> None:
    path = write_gguf(checkpoints["llama3"], tmp_path / "m.gguf")
    names = split(path, 3)
    whole, got = read_gguf(path), read_gguf(names[0])
    assert got.config == whole.config
    assert got.tensors.keys() == whole.tensors.keys()
    assert {t.file for t in got.tensors.values()} == set(names)
    for name, tensor in got.tensors.items():
        there = whole.tensors[name]
        mine = tensor.file.read_bytes()[tensor.offset :][: tensor.nbytes]
        assert mine == there.file.read_bytes()[there.offset :][: there.nbytes]
    with pytest.raises(ModelError, match="give the first"):
        read_gguf(names[1])
    names[2].write_bytes(names[1].read_bytes())
    with pytest.raises(CorruptFileError, match="not part 3 of 3"):
        read_gguf(names[0])
    names[2].unlink()
    with pytest.raises(ModelError, match="not a file"):
        read_gguf(names[0])
    names[0].rename(tmp_path / "renamed.gguf")
    with pytest.raises(ModelError, match="whose name ends -00001-of-00003"):
        read_gguf(tmp_path / "renamed.gguf")


def test_reading_needs_no_torch(tmp_path: Path, checkpoints: dict[str, Path]) -> None:
    path = write_gguf(checkpoints["qwen3"], tmp_path / "m.gguf")
    code = (
        "import sys; from pathlib import Path; from edgespec.runtimes.formats.gguf import read_gguf;"
        f"read_gguf(Path({str(path)!r})).companions();"
        "sys.exit('torch' in sys.modules or 'gguf' in sys.modules)"
    )
    assert subprocess.run([sys.executable, "-c", code], check=False).returncode == 0


def test_names_and_factors_of_the_helpers() -> None:
    assert gguf_name("model.layers.3.mlp.up_proj.weight") == "blk.3.ffn_up.weight"
    names = gguf.get_tensor_name_map(gguf.MODEL_ARCH.LLAMA, 4)
    for name in ("model.layers.2.self_attn.o_proj", "model.layers.0.input_layernorm", "model.norm"):
        assert gguf_name(name + ".weight") == names.get_name(name) + ".weight"
    factors = rope_factors(
        128,
        {
            "rope_theta": 500000.0,
            "factor": 8.0,
            "low_freq_factor": 1.0,
            "high_freq_factor": 4.0,
            "original_max_position_embeddings": 8192,
        },
    )
    assert factors[0] == 1.0
    assert factors[-1] == 8.0
