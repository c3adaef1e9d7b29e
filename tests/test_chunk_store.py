"""Chunk tables: over safetensors in place, and over packed directories whose manifest may be hostile."""

from __future__ import annotations

import json
import random
import shutil
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors.torch import load_file, save_file

from edgespec.errors import CorruptFileError, EdgeSpecError, ModelError, UnsupportedModelError
from edgespec.offload.chunk_store import in_place, is_store, open_store
from edgespec.offload.chunks import (
    CHUNK_BYTES,
    ELEMENT_BYTES,
    PAGE,
    StreamOrder,
    TensorSource,
    rows_per_chunk,
    stored_bytes,
)
from edgespec.offload.pack.layout import lay_out
from edgespec.offload.pack.pack import verify
from edgespec.runtimes.config import EMBEDDING, HEAD, ModelConfig, from_hf
from edgespec.runtimes.formats.checkpoint import read_checkpoint, stream_order
from edgespec.runtimes.formats.packed import open_packed
from tests.packed import cuts, pack_checkpoint, read_matrices, read_source
from tests.tiny import SHAPE, tensor_shapes, write_checkpoint

SHAPES = {
    "7b": {"hidden_size": 4096, "intermediate_size": 11008, "num_attention_heads": 32, "vocab_size": 32000},
    "70b": {
        "hidden_size": 8192,
        "intermediate_size": 28672,
        "num_attention_heads": 64,
        "num_key_value_heads": 8,
        "vocab_size": 128256,
    },
    "0.5b": {
        "hidden_size": 896,
        "intermediate_size": 4864,
        "num_attention_heads": 14,
        "vocab_size": 151936,
        "tie_word_embeddings": True,
    },
}


def imagined(changes: dict[str, Any], encoding: str = "BF16") -> tuple[ModelConfig, StreamOrder]:
    """A model's tensors as if they lay back to back in one file; nothing is on the disk."""
    config = from_hf(SHAPE | {"num_hidden_layers": 2} | changes)
    place, tensors = 1000 * PAGE, {}
    for name, shape in tensor_shapes(config).items():
        kind = encoding if len(shape) == 2 or encoding in ELEMENT_BYTES else "F32"  # as GGUF stores vectors
        nbytes = stored_bytes(kind, shape)
        tensors[name] = TensorSource(name, kind, shape, Path("m.safetensors"), place, nbytes)
        place += nbytes
    return config, stream_order(config, tensors)


# --- in place -------------------------------------------------------------------------------------------


@pytest.mark.parametrize("tied", [False, True])
def test_in_place_covers_every_matrix_in_order_of_use(tmp_path: Path, tied: bool) -> None:
    path = write_checkpoint(tmp_path / "m", torch_dtype="bfloat16", tie_word_embeddings=tied)
    checkpoint = read_checkpoint(path)
    table = in_place(checkpoint.order, "m")
    found = read_matrices(table)
    expected = [name for layer in range(3) for name in checkpoint.config.matrix_shapes(layer)] + [HEAD]
    assert list(found) == expected
    for name, data in found.items():
        source = EMBEDDING if tied and name == HEAD else name
        assert data.tobytes() == read_source(checkpoint.tensors[source]).tobytes()
    assert [c.index for c in table.chunks] == list(range(len(table.chunks)))
    assert {c.layer for c in table.chunks} == {0, 1, 2, 3}
    assert all(p.tensor == HEAD for c in table.chunks if c.layer == 3 for p in c.pieces)
    assert table.layers == 3
    assert table.nbytes == sum(len(data) for data in found.values())
    assert len(table.small) == 7
    assert table.embedding.name == EMBEDDING


@pytest.mark.parametrize("encoding", ["BF16", "F32", "Q8_0"])
@pytest.mark.parametrize("shape", SHAPES)
def test_chunks_are_bounded_whatever_the_shape(shape: str, encoding: str) -> None:
    _, order = imagined(SHAPES[shape], encoding)
    table = in_place(order, "m")
    assert max(c.nbytes for c in table.chunks) <= CHUNK_BYTES
    assert min(c.nbytes for c in table.chunks[:-1]) > 2**18
    assert all(c.nbytes == sum(p.nbytes for p in c.pieces) for c in table.chunks)


@pytest.mark.parametrize("shape", SHAPES)
@pytest.mark.parametrize(
    ("stored", "precision"),
    [("BF16", "source"), ("F32", "bf16"), ("F16", "bf16"), ("Q4_0", "bf16"), ("BF16", "bf16")],
)
def test_a_matrix_is_cut_alike_in_every_store(shape: str, stored: str, precision: str) -> None:
    """In place and packed, a matmul has the same shape, and so the same bits."""
    _, order = imagined(SHAPES[shape])
    _, source = imagined(SHAPES[shape], stored)
    packed = lay_out(source, precision)
    blocks: dict[str, list[tuple[int, int]]] = {}
    for unit in packed.units:
        for part in unit.parts if unit.layer is not None else ():
            assert part.encoding == "BF16"
            blocks.setdefault(part.source.name, []).append((part.row, part.rows))
    assert blocks == cuts(in_place(order, "m"))


def test_a_matrix_with_the_same_shape_is_cut_alike_in_every_layer() -> None:
    _, order = imagined(SHAPES["7b"])
    found = cuts(in_place(order, "m"))
    for name in ("mlp.up_proj", "mlp.down_proj", "self_attn.q_proj"):
        assert found[f"model.layers.0.{name}.weight"] == found[f"model.layers.1.{name}.weight"]


def test_only_contiguous_neighbours_in_order_of_use_share_a_chunk() -> None:
    config, order = imagined({})
    q, k, v, o, gate, up, down = order.layers[0]
    assert [len(c.pieces) for c in in_place(order, "m").chunks if c.layer == 0] == [7]
    apart = replace(v, offset=v.offset + 2**30)  # somewhere else in the file
    other = replace(up, file=Path("other.safetensors"))
    layers = ((q, k, apart, o, gate, other, down), *order.layers[1:])
    runs = [c for c in in_place(replace(order, layers=layers), "m").chunks if c.layer == 0]
    assert [[p.tensor for p in c.pieces] for c in runs] == [
        [q.name, k.name], [v.name], [o.name, gate.name], [up.name], [down.name]
    ]  # fmt: skip
    backwards = in_place(replace(order, layers=((k, q, v, o, gate, up, down), *order.layers[1:])), "m")
    assert [len(c.pieces) for c in backwards.chunks if c.layer == 0] == [1, 1, 5]
    assert config.layers == 2


def test_layers_never_share_a_chunk() -> None:
    _, order = imagined({})
    table = in_place(order, "m")
    assert [c.layer for c in table.chunks] == [0, 1, 2]


def test_a_tied_heads_chunks_are_the_embeddings_bytes() -> None:
    _, order = imagined(SHAPES["0.5b"])
    table = in_place(order, "m")
    head = [c for c in table.chunks if c.layer == 2]
    assert len(head) > 1
    assert head[0].offset == order.embedding.offset
    assert sum(c.nbytes for c in head) == order.embedding.nbytes
    assert {p.tensor for c in head for p in c.pieces} == {HEAD}


def test_a_tensor_inside_an_element_must_be_packed(tmp_path: Path) -> None:
    path = write_checkpoint(tmp_path / "m")
    tensors = load_file(path / "model.safetensors")
    entries, data = {"odd": {"dtype": "U8", "shape": [1], "data_offsets": [0, 1]}}, b"x"
    for name, tensor in tensors.items():
        raw = tensor.numpy().tobytes()
        entries[name] = {
            "dtype": "F32",
            "shape": list(tensor.shape),
            "data_offsets": [len(data), len(data) + len(raw)],
        }
        data += raw
    header = json.dumps(entries).encode()
    (path / "model.safetensors").unlink()
    (path / "model.safetensors").write_bytes(len(header).to_bytes(8, "little") + header + data)
    checkpoint = read_checkpoint(path)
    with pytest.raises(
        ModelError, match=r"inside one of its 4-byte elements.*pack_model\(model='m', out='DIR'\)"
    ):
        in_place(checkpoint.order, "m")
    packed = open_store(pack_checkpoint(path, tmp_path / "p"))
    assert read_matrices(packed.table)[HEAD].tobytes() == tensors[HEAD].numpy().tobytes()
    low = open_store(pack_checkpoint(path, tmp_path / "p8", "int8"))
    aligned = open_store(pack_checkpoint(write_checkpoint(tmp_path / "n"), tmp_path / "q8", "int8"))
    assert read_matrices(low.table)[HEAD].tobytes() == read_matrices(aligned.table)[HEAD].tobytes()


# --- packed directories ---------------------------------------------------------------------------------


@pytest.fixture(scope="module")
def packed(tmp_path_factory: pytest.TempPathFactory) -> Path:
    base = tmp_path_factory.mktemp("store")
    path = write_checkpoint(base / "m", rms_norm_eps=1.0000000000000002e-05, rope_theta=12345.678901234567)
    return pack_checkpoint(path, base / "p", "int8")


def copy(packed: Path, tmp_path: Path) -> Path:
    return Path(shutil.copytree(packed, tmp_path / "copy"))


def edit(path: Path, change: Callable[[Any], Any]) -> None:
    manifest = json.loads((path / "manifest.json").read_text())
    change(manifest)
    (path / "manifest.json").unlink()
    (path / "manifest.json").write_text(json.dumps(manifest))


def test_config_comes_back_exactly(packed: Path) -> None:
    checkpoint = read_checkpoint(packed.parent / "m")
    config, store = open_packed(packed)
    assert config == replace(checkpoint.config, dtype="bfloat16")
    assert store.source_digest == checkpoint.digest
    assert store.source == str(packed.parent / "m")
    assert store.table.precision == "int8"
    assert store.table.source == str(packed)


def test_what_is_a_store(packed: Path, tmp_path: Path) -> None:
    assert is_store(packed)
    assert not is_store(packed.parent / "m")
    assert not is_store(tmp_path / "nowhere")
    assert not is_store(packed / "manifest.json")
    (tmp_path / "manifest.json").write_text('{"name": "a browser extension"}')
    assert not is_store(tmp_path)
    with pytest.raises(ModelError, match="not a packed directory"):
        open_store(tmp_path)


def test_a_second_set_of_weights_beside_the_target(packed: Path, tmp_path: Path) -> None:
    """Room for a low-bit copy in the same directory: another set, with its own weight files."""
    path = copy(packed, tmp_path)
    other = pack_checkpoint(packed.parent / "m", tmp_path / "int4", "int4")
    added = json.loads((other / "manifest.json").read_text())
    [file] = added["files"]
    shutil.copy(other / file["name"], path / "substitute-00001-of-00001.safetensors")

    def add(manifest: Any) -> None:
        manifest["files"].append(file | {"name": "substitute-00001-of-00001.safetensors"})
        second = added["sets"]["target"]
        for record in (*second["chunks"], *second["small"], second["embedding"]):
            record["file"] = 1
        manifest["sets"]["substitute"] = second

    edit(path, add)
    assert open_store(path).table.precision == "int8"
    substitute = open_packed(path, "substitute")[1].table
    assert substitute.precision == "int4"
    expected = read_matrices(open_store(other).table)
    assert {n: d.tobytes() for n, d in read_matrices(substitute).items()} == {
        n: d.tobytes() for n, d in expected.items()
    }
    verify(path)
    with pytest.raises(ModelError, match=r"no weights called 'draft' \(it has: substitute, target\)"):
        open_store(path, "draft")


def target(manifest: Any) -> Any:
    return manifest["sets"]["target"]


def first_chunk(manifest: Any) -> Any:
    return target(manifest)["chunks"][0]


def first_piece(manifest: Any) -> Any:
    return first_chunk(manifest)["pieces"][0]


def repeat_small(manifest: Any) -> None:
    small = target(manifest)["small"]
    small[0]["tensor"] = small[1]["tensor"]


def swap_chunks(manifest: Any) -> None:
    chunks = target(manifest)["chunks"]
    chunks[0], chunks[1] = chunks[1], chunks[0]


BAD_MANIFESTS: dict[str, tuple[Callable[[Any], Any], str]] = {
    "version": (lambda m: m.update(edgespec=1), "has format 1, this EdgeSpec reads format 2"),
    "version kind": (lambda m: m.update(edgespec="1"), "not a sound manifest"),
    "unknown field": (lambda m: m.update(more=1), "unknown field"),
    "no config": (lambda m: m.pop("config"), "missing required field"),
    "outside": (lambda m: m["files"][0].update(name="../m/model.safetensors"), "not a file of its directory"),
    "absolute": (lambda m: m["beside"].append("/etc/passwd"), "not a file of its directory"),
    "itself": (lambda m: m["files"][0].update(name="manifest.json"), "not a file of its directory"),
    "twice": (lambda m: m["files"].append(m["files"][0]), "names a file twice"),
    "missing file": (lambda m: m["files"][0].update(name="x.safetensors"), "x.safetensors is missing"),
    "size": (lambda m: m["files"][0].update(nbytes=5), "bytes instead of 5"),
    "file index": (lambda m: first_chunk(m).update(file=7), "outside file 7"),
    "chunk end": (lambda m: target(m)["chunks"][-1].update(nbytes=2**40), "outside file 0"),
    "huge offset": (lambda m: target(m)["embedding"].update(offset=2**62), "outside file 0"),
    "negative": (lambda m: first_chunk(m).update(offset=-1), "not a sound manifest"),
    "past 64 bits": (lambda m: first_chunk(m).update(offset=2**64), "not a sound manifest"),
    "checksum": (lambda m: first_chunk(m).update(xxh3="xyz"), "not a sound manifest"),
    "pieces": (lambda m: first_chunk(m).update(pieces=[]), "not a sound manifest"),
    "piece end": (lambda m: first_chunk(m).update(nbytes=100), "its pieces reach to"),
    "piece overlap": (lambda m: first_chunk(m)["pieces"][1].update(offset=0), "overlap at"),
    "piece bytes": (lambda m: first_piece(m).update(nbytes=1), "cannot have 1 bytes"),
    "piece shape": (lambda m: first_piece(m).update(shape=[2**40, 2**40]), "cannot have"),
    "three axes": (lambda m: first_piece(m).update(shape=[1, 1, 1]), "not a sound manifest"),
    "encoding": (lambda m: first_piece(m).update(encoding="I9"), "encoding 'I9' is unknown"),
    "alignment": (lambda m: target(m)["small"][0].update(offset=4097), "inside an element"),
    "overlap": (lambda m: target(m)["chunks"][1].update(offset=first_chunk(m)["offset"]), "overlap at byte"),
    "order": (swap_chunks, "do not follow the layers"),
    "layer missing": (lambda m: target(m)["chunks"].pop(1), "do not follow the layers"),
    "layers": (lambda m: target(m).update(layers=2**60), "not a sound manifest"),
    "no chunks": (lambda m: target(m).update(chunks=[]), "do not follow the layers"),
    "rows": (lambda m: first_piece(m).update(row=3), "jumps from row 0 to row 3"),
    "scales": (lambda m: first_chunk(m)["pieces"].pop(1), "wrong scales: None"),
    "stray scales": (lambda m: first_chunk(m)["pieces"].pop(0), "belongs to no matrix"),
    "vector": (lambda m: first_piece(m).update(shape=[64 * 64]), "cannot have|not a matrix"),
    "repeated": (lambda m: first_chunk(m)["pieces"][2].update(tensor=first_piece(m)["tensor"]), "jumps"),
    "small twice": (repeat_small, "appears twice"),
    "checksummed bytes": (lambda m: target(m)["embedding"]["blocks"].clear(), "cover other bytes"),
    "low-bit vector": (lambda m: target(m)["small"][0].update(encoding="I8", shape=[256]), "has no scales"),
}  # fmt: skip


@pytest.mark.parametrize("case", BAD_MANIFESTS)
def test_manifests_that_are_not_sound(packed: Path, tmp_path: Path, case: str) -> None:
    change, message = BAD_MANIFESTS[case]
    path = copy(packed, tmp_path)
    edit(path, change)
    with pytest.raises(ModelError, match=message) as caught:
        open_store(path)
    assert str(path) in str(caught.value)
    if case == "version":
        assert isinstance(caught.value, UnsupportedModelError)


@pytest.mark.parametrize(
    ("content", "message"),
    [
        (b'{"edgespec": 2, ', "not a sound manifest"),
        (b'{"edgespec": 2, "config": ' + b"[" * 10**6, "not a sound manifest"),
        (b'{"edgespec": 2, "source": "\xff"}', "not a sound manifest"),
    ],
)
def test_manifests_that_are_not_json(tmp_path: Path, content: bytes, message: str) -> None:
    (tmp_path / "manifest.json").write_bytes(content)
    with pytest.raises(CorruptFileError, match=message):
        open_store(tmp_path)


def test_truncated_weight_file_is_named(packed: Path, tmp_path: Path) -> None:
    path = copy(packed, tmp_path)
    [file] = path.glob("*.safetensors")
    size = file.stat().st_size
    with open(file, "r+b") as handle:
        handle.truncate(size - PAGE)
    with pytest.raises(CorruptFileError, match=rf"{file.name} has {size - PAGE} bytes instead of {size}"):
        open_store(path)


CONFIGS: dict[str, tuple[Callable[[Any], Any], str]] = {
    "missing": (lambda c: c.pop("heads"), "config is not sound"),
    "unknown dtype": (lambda c: c.update(dtype="int3"), "dtype 'int3' is not known"),
    "architecture": (lambda c: c.update(architecture="X"), "architecture 'X' is not known"),
    "layers": (lambda c: c.update(layers=4), "weights have 3 layers, the config 4"),
    "negative": (lambda c: c.update(hidden_size=-64), "hidden_size is -64"),
    "huge": (lambda c: c.update(vocab_size=2**60), "vocab_size is"),
    "heads": (lambda c: c.update(kv_heads=3), "cannot be"),
    "windows": (lambda c: c.update(windows=[1]), "windows do not fit"),
    "theta": (lambda c: c["rope"].update(theta=-1.0), "not positive and finite"),
    "rope": (lambda c: c["rope"].update(kind="yarn"), "rope scaling"),
    "factors": (lambda c: c["rope"].update(factors=[1.0]), "rope scaling"),
    "eps": (lambda c: c.update(norm_eps=-1.0), "norm_eps"),
    "another shape": (lambda c: c.update(intermediate_size=173), r"as \[172, 64\].*asks for \[173, 64\]"),
    "biases": (lambda c: c.update(qkv_bias=True), r"q_proj.bias is stored as None"),
    "vocabulary": (lambda c: c.update(vocab_size=161), r"asks for \[161, 64\]"),
}  # fmt: skip


@pytest.mark.parametrize("case", CONFIGS)
def test_weights_and_config_must_fit(packed: Path, tmp_path: Path, case: str) -> None:
    change, message = CONFIGS[case]
    path = copy(packed, tmp_path)
    edit(path, lambda manifest: change(manifest["config"]))
    open_store(path)
    with pytest.raises(CorruptFileError, match=message):
        open_packed(path)


def places(value: Any) -> list[tuple[Any, Any]]:
    """Every (container, key) in a JSON value."""
    keys = list(value) if isinstance(value, dict) else range(len(value)) if isinstance(value, list) else ()
    return [(value, key) for key in keys] + [place for key in keys for place in places(value[key])]


def test_a_changed_manifest_is_refused_or_still_sound(packed: Path, tmp_path: Path) -> None:
    path = copy(packed, tmp_path)
    size = next(path.glob("*.safetensors")).stat().st_size
    text = (path / "manifest.json").read_text()
    values = [
        None,
        True,
        -1,
        0,
        1,
        2,
        64,
        4096,
        2**31,
        2**62,
        2**64,
        1.5,
        "",
        "x",
        "F32",
        "U8",
        [],
        {},
        [0],
        [64],
    ]
    rng = random.Random(0)
    opened = 0
    for _ in range(1500):
        manifest = json.loads(text)
        for _ in range(rng.choice([1, 1, 2])):
            container, key = rng.choice(places(manifest["sets"] if rng.random() < 0.9 else manifest))
            container[key] = rng.choice(values)
        (path / "manifest.json").unlink()
        (path / "manifest.json").write_text(json.dumps(manifest))
        try:
            config, store = open_packed(path)
        except EdgeSpecError:
            continue
        opened += 1
        assert config.layers == 3
        for chunk in store.table.chunks:
            assert 0 <= chunk.offset <= chunk.offset + chunk.nbytes <= size
            assert all(p.offset + p.nbytes <= chunk.nbytes for p in chunk.pieces)
    assert 10 < opened < 500


def test_small_files_of_another_library_load(packed: Path) -> None:
    [file] = packed.glob("*.safetensors")
    loaded = load_file(file)
    store = open_store(packed)
    for tensor in store.table.small:
        assert loaded[tensor.name].numpy().tobytes() == read_source(tensor).tobytes()
    assert loaded[EMBEDDING].dtype == torch.bfloat16
    save_file(loaded, packed.parent / "again.safetensors")


@pytest.mark.parametrize("limit", [1, 100, 4096, CHUNK_BYTES])
def test_blocks_of_rows_are_bounded_and_even(limit: int) -> None:
    rng = random.Random(limit)
    for _ in range(500):
        rows, row_bytes = rng.randint(1, 200_000), rng.randint(1, 70_000)
        step = rows_per_chunk(rows, row_bytes, limit)
        assert 1 <= step <= rows
        assert step * row_bytes <= max(limit, row_bytes)
        fewest = -(-rows // max(1, limit // row_bytes))
        assert -(-rows // step) <= max(fewest * 2, 1)
        if step < rows and limit // row_bytes >= 16:
            assert step % 16 == 0
