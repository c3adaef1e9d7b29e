"""Hugging Face directories: what is read, and what hostile or damaged files are answered with."""

from __future__ import annotations

import json
import random
import struct
import subprocess
import sys
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import safetensors
import torch
from safetensors.torch import load_file, save_file

from edgespec.errors import CorruptFileError, EdgeSpecError, ModelError, UnsupportedModelError
from edgespec.offload.chunks import PAGE, TensorSource
from edgespec.offload.safetensors_header import HEADER_LIMIT, HeaderEntry, build_header, read_header
from edgespec.runtimes.config import EMBEDDING, HEAD
from edgespec.runtimes.formats.checkpoint import read_checkpoint
from tests.tiny import write_checkpoint

STORIES = Path("/work/shared/models/stories260k")


def stored(source: TensorSource) -> bytes:
    with open(source.file, "rb") as file:
        file.seek(source.offset)
        return file.read(source.nbytes)


def raw_file(path: Path, header: Any, data: bytes = b"") -> Path:
    text = header if isinstance(header, bytes) else json.dumps(header).encode()
    path.write_bytes(struct.pack("<Q", len(text)) + text + data)
    return path


def entry(dtype: str, shape: list[Any], begin: Any, end: Any) -> dict[str, Any]:
    return {"dtype": dtype, "shape": shape, "data_offsets": [begin, end]}


# --- safetensors headers --------------------------------------------------------------------------------


@pytest.mark.parametrize("dtype", [torch.float32, torch.float16, torch.bfloat16, torch.int64, torch.uint8])
def test_every_tensor_of_the_library_is_found(tmp_path: Path, dtype: torch.dtype) -> None:
    tensors = {
        "b": torch.arange(12).reshape(3, 4).to(dtype),
        "a": torch.ones(7).to(dtype),
        "scalar": torch.tensor(3).to(dtype),
        "empty": torch.zeros(0, 5).to(dtype),
    }
    save_file(tensors, tmp_path / "x.safetensors", metadata={"format": "pt"})
    found, _ = read_header(tmp_path / "x.safetensors")
    assert set(found) == set(tensors)
    for name, tensor in tensors.items():
        assert found[name].shape == tuple(tensor.shape)
        assert stored(found[name]) == tensor.reshape(-1).view(torch.uint8).numpy().tobytes()


def test_what_build_header_writes_the_library_loads(tmp_path: Path) -> None:
    entries = [
        HeaderEntry("a", "F32", (2, 3), 0, 24),
        HeaderEntry("__pad__.1", "U8", (40,), 24, 40),
        HeaderEntry("b", "I8", (5,), 64, 5),
    ]
    header = build_header(entries)
    assert len(header) % PAGE == 0
    path = tmp_path / "x.safetensors"
    path.write_bytes(header + np.arange(6, dtype="<f4").tobytes() + bytes(40) + bytes([1, 2, 3, 4, 255]))
    loaded = load_file(path)
    assert loaded["a"].tolist() == [[0, 1, 2], [3, 4, 5]]
    assert loaded["b"].tolist() == [1, 2, 3, 4, -1]
    found, _ = read_header(path)
    assert (found["b"].offset, found["b"].nbytes) == (len(header) + 64, 5)


BAD_HEADERS: dict[str, tuple[Any, bytes, str]] = {
    "not json": (b"{]", b"", "not valid JSON"),
    "not an object": (b"[1,2]", b"", "does not begin"),
    "not utf-8": (b'{"\xff": 1}', b"", "not valid JSON"),
    "nested": (b'{"a":' + b"[" * 200_000 + b"]" * 200_000 + b"}", b"", "nested too deeply"),
    "twice": (
        b'{"a":{"dtype":"U8","shape":[1],"data_offsets":[0,1]},"a":{"dtype":"I8","shape":[1],"data_offsets":[0,1]}}',
        b"x",
        "'a' appears twice",
    ),
    "digits": (
        b'{"a":{"dtype":"U8","shape":[' + b"9" * 5000 + b'],"data_offsets":[0,1]}}',
        b"x",
        "5000 digits",
    ),
    "no fields": ({"a": {}}, b"", "unknown dtype"),
    "a list": ({"a": [1]}, b"", "not described by"),
    "dtype": ({"a": entry("Q4", [1], 0, 1)}, b"x", "unknown dtype 'Q4'"),
    "dtype kind": ({"a": entry(3, [1], 0, 1)}, b"x", "unknown dtype"),  # type: ignore[arg-type]
    "negative shape": ({"a": entry("U8", [-1, -1], 0, 1)}, b"x", "has the shape"),
    "float shape": ({"a": entry("U8", [1.0], 0, 1)}, b"x", "has the shape"),
    "true shape": ({"a": entry("U8", [True], 0, 1)}, b"x", "has the shape"),
    "dimensions": ({"a": entry("U8", [1] * 1000, 0, 1)}, b"x", "has the shape"),
    "overflow": ({"a": entry("F32", [2**33, 2**33], 0, 16)}, bytes(16), "its data_offsets"),
    "wrapping": ({"a": entry("U8", [2**63 - 1, 2], 0, 2**64 - 2)}, b"", "data_offsets"),
    "size": ({"a": entry("F32", [2], 0, 4)}, bytes(4), "needs 8 bytes"),
    "backwards": ({"a": entry("U8", [1], 2, 1)}, b"xx", "span -1"),
    "negative offset": ({"a": entry("U8", [2], -1, 1)}, b"x", "data_offsets"),
    "outside": ({"a": entry("U8", [100], 0, 100)}, b"x", "truncated: it should have"),
    "huge": ({"a": entry("U8", [2**62], 0, 2**62)}, b"x", "truncated"),
    "gap": ({"a": entry("U8", [1], 1, 2)}, b"xx", "leaves a gap after 'the header'"),
    "overlap": ({"a": entry("U8", [2], 0, 2), "b": entry("U8", [2], 1, 3)}, b"xxx", "'b' overlaps 'a'"),
    "rest": ({"a": entry("U8", [1], 0, 1)}, b"xyz", "belong to no tensor"),
}


@pytest.mark.parametrize("case", BAD_HEADERS)
def test_unsound_headers_are_refused(tmp_path: Path, case: str) -> None:
    header, data, message = BAD_HEADERS[case]
    path = raw_file(tmp_path / "x.safetensors", header, data)
    with pytest.raises(ModelError, match=message) as caught:
        read_header(path)
    assert str(path) in str(caught.value)
    assert len(str(caught.value)) < 1000


@pytest.mark.parametrize(
    "content", [b"", b"1234567", struct.pack("<Q", 10**18) + b"{}", struct.pack("<Q", 1) + b"{"]
)
def test_lengths_that_cannot_be(tmp_path: Path, content: bytes) -> None:
    (tmp_path / "x.safetensors").write_bytes(content)
    with pytest.raises(CorruptFileError, match=f"the file has {len(content)}"):
        read_header(tmp_path / "x.safetensors")


def test_a_huge_header_is_not_read(tmp_path: Path) -> None:
    with open(tmp_path / "x.safetensors", "wb") as file:
        file.write(struct.pack("<Q", HEADER_LIMIT + 1))
        file.truncate(HEADER_LIMIT + 100)
    with pytest.raises(CorruptFileError, match="past the limit"):
        read_header(tmp_path / "x.safetensors")


def mutate(rng: random.Random, table: dict[str, Any], data: bytes) -> bytes:
    """A file whose header has one to three things changed."""
    header: Any = json.loads(json.dumps(table))
    for _ in range(rng.randint(1, 3)):
        name = rng.choice(sorted(header))
        field = rng.choice(["dtype", "shape", "data_offsets", "drop", "copy", "data"])
        value = header[name]
        if field == "drop" and len(header) > 1:
            del header[name]
        elif field == "copy":
            header[name + "'"] = value
        elif field == "dtype":
            value["dtype"] = rng.choice(["F32", "F16", "BF16", "U8", "I64", "BOOL", "f32", None, 7])
        elif field == "data":
            data = data[: rng.randrange(len(data) + 1)] + bytes(rng.randint(0, 3))
        elif field in ("shape", "data_offsets") and value[field]:
            number = rng.choice(
                [0, 1, 2, 3, 4, 8, 12, 16, 2**31, 2**32, 2**62, 2**63, 2**64, -1, 1.5, "4", None]
            )
            value[field][rng.randrange(len(value[field]))] = number
    text = bytearray(json.dumps(header).encode())
    if rng.random() < 0.2:
        text[rng.randrange(len(text))] = rng.randrange(256)
    length = len(text) if rng.random() < 0.9 else rng.choice([0, len(text) - 1, len(text) + 1, 2**40])
    return struct.pack("<Q", length) + bytes(text) + data


def test_whatever_is_accepted_the_library_accepts_too(tmp_path: Path) -> None:
    table = {
        "a": entry("F32", [2, 2], 0, 16),
        "b": entry("U8", [4], 16, 20),
        "c": entry("BF16", [2, 3], 20, 32),
        "z": entry("F16", [0, 3], 32, 32),
    }
    data = bytes(range(32))
    rng = random.Random(0)
    accepted = 0
    for i in range(3000):
        content = mutate(rng, table, data)
        path = tmp_path / f"{i}.safetensors"  # a new file: ext4 syncs one that is truncated and written again
        path.write_bytes(content)
        try:
            found, _ = read_header(path)
        except ModelError:
            continue
        accepted += 1
        theirs = dict(safetensors.deserialize(content))
        assert set(theirs) == set(found)
        for name, source in found.items():
            assert list(source.shape) == theirs[name]["shape"]
            assert stored(source) == bytes(theirs[name]["data"])
    assert 20 < accepted < 2900  # the mutations reach both sides


# --- directories ----------------------------------------------------------------------------------------


def shard(path: Path, count: int = 3) -> dict[str, str]:
    """Split a checkpoint's one file into shards with an index; returns the weight map."""
    tensors = load_file(path / "model.safetensors")
    (path / "model.safetensors").unlink()
    places = {
        name: f"model-{i % count + 1:05}-of-{count:05}.safetensors" for i, name in enumerate(sorted(tensors))
    }
    for file in sorted(set(places.values())):
        save_file({n: tensors[n] for n, place in places.items() if place == file}, path / file)
    write_index(path, places)
    return places


def write_index(path: Path, places: Any) -> None:
    (path / "model.safetensors.index.json").write_text(json.dumps({"metadata": {}, "weight_map": places}))


@pytest.mark.parametrize("tied", [False, True])
@pytest.mark.parametrize("dtype", ["float32", "float16", "bfloat16"])
def test_one_file_and_shards_give_the_same_tensors(tmp_path: Path, dtype: str, tied: bool) -> None:
    path = write_checkpoint(tmp_path / "m", torch_dtype=dtype, tie_word_embeddings=tied)
    whole = read_checkpoint(path)
    content = {name: stored(tensor) for name, tensor in whole.tensors.items()}
    digest = whole.digest
    shard(path)
    parts = read_checkpoint(path)
    assert {name: stored(tensor) for name, tensor in parts.tensors.items()} == content
    assert parts.config == whole.config
    assert parts.config.dtype == dtype
    assert len({t.file for t in parts.tensors.values()}) == 3
    assert parts.order.tied is tied
    assert parts.order.head.name == HEAD
    assert stored(parts.order.head) == content[EMBEDDING if tied else HEAD]
    assert parts.digest != digest


def test_order_is_the_order_of_use(tmp_path: Path) -> None:
    checkpoint = read_checkpoint(write_checkpoint(tmp_path / "m"))
    names = [tensor.name.rsplit(".", 2)[1] for tensor in checkpoint.order.layers[1]]
    assert names == ["q_proj", "k_proj", "v_proj", "o_proj", "gate_proj", "up_proj", "down_proj"]
    assert len(checkpoint.order.layers) == 3
    assert len(checkpoint.order.small) == 3 * 2 + 1


@pytest.mark.skipif(not STORIES.is_dir(), reason="the shared stories260k model is not here")
def test_a_real_model() -> None:
    checkpoint = read_checkpoint(STORIES)
    tensors = load_file(STORIES / "model.safetensors")
    assert set(checkpoint.tensors) == set(tensors)
    for name, tensor in tensors.items():
        assert stored(checkpoint.tensors[name]) == tensor.numpy().tobytes()


def test_reading_a_checkpoint_does_not_import_torch(tmp_path: Path) -> None:
    path = write_checkpoint(tmp_path / "m")
    code = (
        "import sys; from pathlib import Path; "
        "from edgespec.runtimes.formats.checkpoint import read_checkpoint; "
        "from edgespec.offload.chunk_store import in_place; "
        f"in_place(read_checkpoint(Path({str(path)!r})).order, 'x'); assert 'torch' not in sys.modules"
    )
    subprocess.run([sys.executable, "-c", code], check=True, cwd=Path(__file__).parent.parent)


def rewrite(path: Path, change: Any) -> None:
    """Apply `change` to the table of tensors and save it again."""
    tensors = {name: tensor.clone() for name, tensor in load_file(path / "model.safetensors").items()}
    change(tensors)
    save_file(tensors, path / "model.safetensors")


def test_names_without_the_model_prefix(tmp_path: Path) -> None:
    path = write_checkpoint(tmp_path / "m", tie_word_embeddings=True)
    expected = {name: stored(tensor) for name, tensor in read_checkpoint(path).tensors.items()}

    def strip(tensors: dict[str, torch.Tensor]) -> None:
        for name in list(tensors):
            tensors[name.removeprefix("model.")] = tensors.pop(name)

    rewrite(path, strip)
    found = read_checkpoint(path)
    assert {name: stored(tensor) for name, tensor in found.tensors.items()} == expected
    assert all(tensor.name == name for name, tensor in found.tensors.items())


def test_extra_tensors_and_a_tied_models_own_head_are_not_used(tmp_path: Path) -> None:
    path = write_checkpoint(tmp_path / "m", tie_word_embeddings=True, torch_dtype="bfloat16")

    def extend(tensors: dict[str, torch.Tensor]) -> None:
        tensors["model.layers.0.self_attn.rotary_emb.inv_freq"] = torch.ones(8)
        tensors[HEAD] = tensors[EMBEDDING].clone()

    rewrite(path, extend)
    order = read_checkpoint(path).order
    assert order.tied
    assert (order.head.name, order.head.offset) == (HEAD, order.embedding.offset)


def test_the_stored_dtype_wins(tmp_path: Path) -> None:
    path = write_checkpoint(tmp_path / "m", torch_dtype="float16")
    raw = json.loads((path / "config.json").read_text())
    (path / "config.json").write_text(json.dumps(raw | {"torch_dtype": "float32"}))
    assert read_checkpoint(path).config.dtype == "float16"


def test_generation_config_owns_eos(tmp_path: Path) -> None:
    path = write_checkpoint(tmp_path / "m", eos_token_id=2)
    assert read_checkpoint(path).config.eos == (2,)
    (path / "generation_config.json").write_text('{"eos_token_id": [5, 6]}')
    assert read_checkpoint(path).config.eos == (5, 6)


def test_companions_are_the_tokenizers_files(tmp_path: Path) -> None:
    path = write_checkpoint(tmp_path / "m")
    (path / "tokenizer.json").write_text("{}")
    (path / "notes.md").write_text("mine")
    companions = read_checkpoint(path).companions()
    assert sorted(companions) == ["config.json", "tokenizer.json"]
    assert companions["tokenizer.json"] == b"{}"


def test_digest_sees_config_names_and_values(tmp_path: Path) -> None:
    path = write_checkpoint(tmp_path / "m")
    first = read_checkpoint(path).digest
    assert read_checkpoint(path).digest == first
    assert read_checkpoint(write_checkpoint(tmp_path / "n")).digest == first
    seen = {first}
    seen.add(read_checkpoint(write_checkpoint(tmp_path / "o", seed=1)).digest)
    seen.add(read_checkpoint(write_checkpoint(tmp_path / "p", rms_norm_eps=1e-6)).digest)
    rewrite(path, lambda tensors: tensors.update(extra=torch.ones(1)))
    seen.add(read_checkpoint(path).digest)
    assert len(seen) == 4


# --- what can be wrong with a directory -----------------------------------------------------------------


def test_directories_that_are_no_model(tmp_path: Path) -> None:
    with pytest.raises(ModelError, match="not a directory"):
        read_checkpoint(tmp_path / "nowhere")
    with pytest.raises(ModelError, match=r"no config\.json"):
        read_checkpoint(tmp_path)
    path = write_checkpoint(tmp_path / "m")
    (path / "model.safetensors").unlink()
    with pytest.raises(ModelError, match=r"neither model\.safetensors nor"):
        read_checkpoint(path)
    (path / "pytorch_model.bin").write_bytes(b"\x80\x04")
    with pytest.raises(UnsupportedModelError, match=r"pickled.*save_pretrained"):
        read_checkpoint(path)


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("{", "not valid JSON"),
        ("[]", "not a JSON object"),
        ("null", "not a JSON object"),
        ('{"architectures": ["LlamaForCausalLM"], "architectures": []}', "appears twice"),
        ('{"architectures": ["GPT2LMHeadModel"]}', "GPT2LMHeadModel is not supported"),
        ('{"a":' * 100_000, "nested too deeply"),
    ],
)
def test_configs_that_are_not_sound(tmp_path: Path, text: str, message: str) -> None:
    path = write_checkpoint(tmp_path / "m")
    (path / "config.json").write_text(text)
    with pytest.raises(ModelError, match=message):
        read_checkpoint(path)


def test_config_values_of_any_kind_give_a_typed_error(tmp_path: Path) -> None:
    path = write_checkpoint(tmp_path / "m")
    raw = json.loads((path / "config.json").read_text())
    raw |= {"rope_scaling": None, "quantization_config": None, "sliding_window": None, "eos_token_id": 2}
    values = [None, True, -1, 0, 1.5, 2**70, "x", [], [[]], {}, {"type": "linear"}, {"rope_type": "llama3"}]
    refused = 0
    for key in raw:
        for value in values:
            (path / "config.json").write_text(json.dumps(raw | {key: value}))
            try:
                read_checkpoint(path)
            except EdgeSpecError:
                refused += 1
    assert refused > 100


@pytest.mark.parametrize(
    ("key", "value"),
    [
        ("eos_token_id", ["a"]), ("eos_token_id", [2, None, "3"]), ("eos_token_id", True),
        ("eos_token_id", {}), ("bos_token_id", "<s>"), ("bos_token_id", 1.5), ("tie_word_embeddings", "no"),
        ("tie_word_embeddings", 1), ("attention_bias", "false"), ("mlp_bias", []),
        ("torch_dtype", []), ("torch_dtype", ""), ("dtype", {}),
    ],
)  # fmt: skip
def test_config_values_of_another_kind_are_not_guessed_at(tmp_path: Path, key: str, value: Any) -> None:
    path = write_checkpoint(tmp_path / "m")
    raw = json.loads((path / "config.json").read_text())
    raw.pop("dtype", None)
    (path / "config.json").write_text(json.dumps(raw | {key: value}))
    with pytest.raises(UnsupportedModelError if "dtype" in key else CorruptFileError, match="dtype|" + key):
        read_checkpoint(path)
    if "token" in key:
        (path / "config.json").write_text(json.dumps(raw))
        (path / "generation_config.json").write_text(json.dumps({key: value}))
        with pytest.raises(CorruptFileError, match=f"^generation_config.json: {key} is "):
            read_checkpoint(path)


def test_tokens_may_be_none_one_or_several(tmp_path: Path) -> None:
    path = write_checkpoint(tmp_path / "m")
    raw = json.loads((path / "config.json").read_text())
    for value, eos in ((None, ()), (2, (2,)), ([5, 6], (5, 6)), (-1, ()), ([], ())):
        (path / "config.json").write_text(json.dumps(raw | {"eos_token_id": value, "bos_token_id": value}))
        config = read_checkpoint(path).config
        assert config.eos == eos
        assert config.bos == (eos[0] if eos else None)


def test_a_config_larger_than_any(tmp_path: Path) -> None:
    path = write_checkpoint(tmp_path / "m")
    with open(path / "config.json", "ab") as file:
        file.truncate(10**7 + 1)
    with pytest.raises(CorruptFileError, match="larger than 10000000 bytes"):
        read_checkpoint(path)


def test_missing_shard_is_named(tmp_path: Path) -> None:
    path = write_checkpoint(tmp_path / "m")
    shard(path)
    (path / "model-00002-of-00003.safetensors").unlink()
    with pytest.raises(ModelError, match=r"model-00002-of-00003\.safetensors is missing"):
        read_checkpoint(path)


def test_truncated_shard_is_named_with_both_sizes(tmp_path: Path) -> None:
    path = write_checkpoint(tmp_path / "m")
    shard(path)
    file = path / "model-00003-of-00003.safetensors"
    size = file.stat().st_size
    with open(file, "r+b") as handle:
        handle.truncate(size - 100)
    with pytest.raises(
        CorruptFileError, match=rf"00003.safetensors is truncated.*{size} bytes and has {size - 100}"
    ):
        read_checkpoint(path)


@pytest.mark.parametrize(
    "place", ["../model.safetensors", "/etc/passwd", "a/b", "..", ".", "", "a\\b", "a\0b", 7, None]
)
def test_an_index_may_not_leave_the_directory(tmp_path: Path, place: Any) -> None:
    path = write_checkpoint(tmp_path / "m")
    places = shard(path)
    write_index(path, places | {EMBEDDING: place})
    with pytest.raises(CorruptFileError, match="not a file name"):
        read_checkpoint(path)


def test_an_index_must_agree_with_its_shards(tmp_path: Path) -> None:
    path = write_checkpoint(tmp_path / "m")
    places = shard(path)
    other = next(place for place in places.values() if place != places[HEAD])
    write_index(path, places | {HEAD: other})
    with pytest.raises(CorruptFileError, match=rf"{HEAD}.*{other}, which does not have it"):
        read_checkpoint(path)
    write_index(path, [])
    with pytest.raises(CorruptFileError, match="no weight_map"):
        read_checkpoint(path)


def test_missing_tensor_and_wrong_shape_are_named(tmp_path: Path) -> None:
    path = write_checkpoint(tmp_path / "m")
    rewrite(path, lambda tensors: tensors.update({HEAD: torch.ones(3, 3)}))
    with pytest.raises(
        CorruptFileError, match=r"lm_head.weight has shape \[3, 3\], config.json asks for \[160, 64\]"
    ):
        read_checkpoint(path)
    rewrite(path, lambda tensors: tensors.pop(HEAD))
    with pytest.raises(ModelError, match=r"lm_head.weight \[160, 64\] is missing.*tie_word_embeddings"):
        read_checkpoint(path)


def test_one_dtype_for_all(tmp_path: Path) -> None:
    path = write_checkpoint(tmp_path / "m")
    name = "model.layers.1.mlp.up_proj.weight"
    rewrite(path, lambda tensors: tensors.update({name: tensors[name].half()}))
    with pytest.raises(UnsupportedModelError, match=rf"{name} is stored as F16.*one dtype"):
        read_checkpoint(path)

    def widen(tensors: dict[str, torch.Tensor]) -> None:
        tensors.update({n: t.double() for n, t in tensors.items()})

    rewrite(path, widen)
    with pytest.raises(UnsupportedModelError, match="stored as F64; supported are F32"):
        read_checkpoint(path)
