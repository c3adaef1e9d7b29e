"""Models exported for ONNX Runtime: the same as torch's, of any architecture; and files from strangers."""

from __future__ import annotations

import itertools
import json
import os
import re
import shutil
import subprocess
import sys
import textwrap
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from safetensors.torch import load_file, save_file
from tokenizers import Tokenizer

import edgespec
from edgespec.apps.devices import _engine_lines
from edgespec.demo_model.recipe.dialogue import conversation
from edgespec.demo_model.recipe.draw import HELD_OUT
from edgespec.demo_model.recipe.tokenizer import encode
from edgespec.drafters.engine_facts import engine_facts
from edgespec.errors import (
    ContextError,
    CorruptFileError,
    DeviceError,
    EdgeSpecError,
    MissingExtraError,
    ModelError,
    OptionError,
    StorageError,
    UnsupportedModelError,
)
from edgespec.models.exporting import export_model
from edgespec.models.packing import pack_model
from edgespec.progress import Progress
from edgespec.runtimes.base import DraftRuntime
from edgespec.runtimes.exported.draft import ExportedDraft
from edgespec.runtimes.exported.source import SourceRecord
from edgespec.runtimes.formats import whole
from edgespec.runtimes.formats.describe import describe_model
from edgespec.runtimes.onnx import graph, providers, sessions
from edgespec.runtimes.onnx.directory import FORMAT, open_exported
from edgespec.runtimes.onnx.layout import WIDEST, ZERO, Stored, quantise, stored_tensors
from edgespec.runtimes.onnx.model import STEP_ROWS, OnnxModel, model_bytes
from edgespec.runtimes.torch.draft import TorchDraft, open_draft
from tests.models import make_tokenizer, write_gguf
from tests.tiny import write_checkpoint
from tests.twins import Twins, run

onnxruntime = pytest.importorskip("onnxruntime")

ROOT = Path(__file__).resolve().parent.parent
DEMO = Path(edgespec.__file__).parent / "demo_model"
KINDS: dict[str, dict[str, Any]] = {
    "llama": {"rope_theta": 500.0},
    "llama3": {
        "rope_scaling": {
            "rope_type": "llama3",
            "factor": 8.0,
            "low_freq_factor": 1.0,
            "high_freq_factor": 4.0,
            "original_max_position_embeddings": 64,
        },
        "attention_bias": True,
        "mlp_bias": True,
    },
    "mistral": {"architectures": ["MistralForCausalLM"], "sliding_window": 24},
    "qwen2": {
        "architectures": ["Qwen2ForCausalLM"],
        "use_sliding_window": True,
        "sliding_window": 16,
        "max_window_layers": 1,
    },
    "qwen3": {"architectures": ["Qwen3ForCausalLM"], "head_dim": 32, "tie_word_embeddings": True},
}
WAYS: list[tuple[str, dict[str, Any]]] = [(kind, {}) for kind in KINDS]
WAYS += [("mistral", {"rows": 8, "positions": 400}), ("qwen2", {"rows": 2, "positions": 400})]
WAYS += [("qwen3", {"precision": "fp16"}), ("llama", {"precision": "fp16", "rows": 4, "positions": 400})]
WAYS += [("llama3", {"precision": "int8"}), ("qwen3", {"precision": "int8", "rows": 8})]


def tiny_model(path: Path, kind: str = "llama", **changes: Any) -> Path:
    write_checkpoint(path, vocab_size=320, **{**KINDS[kind], **changes})
    make_tokenizer(path)
    return path


def exported_draft(path: Path, capacity: int = 300, rows: int = 90) -> ExportedDraft:
    return ExportedDraft(OnnxModel(open_exported(path)), capacity, rows)


@pytest.fixture(scope="module")
def exported(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Of a small llama."""
    folder = tmp_path_factory.mktemp("exported")
    export_model(str(tiny_model(folder / "m")), folder / "x")
    return folder / "x"


@pytest.mark.parametrize(
    ("kind", "how"), WAYS, ids=[f"{k}-{'-'.join(map(str, h.values()))}" for k, h in WAYS]
)
def test_it_says_what_torch_says(kind: str, how: dict[str, Any], tmp_path: Path) -> None:
    """A prompt, trees of several roots, what is kept below an outcome, and going back."""
    path = tiny_model(tmp_path / "m", kind)
    export_model(str(path), tmp_path / "x", **how)
    model = open_draft(describe_model(path), 90)
    bound = {"fp32": 1e-4, "fp16": 0.1, "int8": 0.4}[how.get("precision", "fp32")]
    twins = Twins(TorchDraft.alone(model, 300), exported_draft(tmp_path / "x"), bound)
    try:
        twins.begin(150, nodes=70)  # more than one call's
        twins.tree(6, first=3)
        twins.ask(lambda runtime: runtime.truncate(90))
        twins.tree(6)
        twins.ask(lambda runtime: runtime.commit([], []))
        twins.tree(6)
    finally:
        model.weights.close()


def test_a_cache_grows_and_ends(exported: Path) -> None:
    draft = exported_draft(exported, capacity=400, rows=20)
    held = {draft._held}
    rng = np.random.default_rng(0)
    prompt = rng.integers(3, 320, 400).tolist()
    for _ in draft.prefill(prompt):
        held.add(draft._held)
    assert sorted(held) == [256, 384, 448], "by a half, to the most that there may be"
    again = exported_draft(exported, capacity=400, rows=420)
    run(again, prompt, range(-1, 399))  # as slots
    assert np.allclose(run(draft, [5], [-1]), run(again, [5], [399]), atol=1e-4)
    draft.truncate(400)
    with pytest.raises(ContextError, match="21 slots; there is room for 20"):
        draft.begin([5] * 21, [-1] * 21)
    run(draft, [5, 6], [-1, 0])
    with pytest.raises(ContextError, match="402 positions; there is room for 400"):
        draft.commit([0, 1], [])
    for parents in ([0], [-2], [2]):
        with pytest.raises(ValueError, match="parent"):
            exported_draft(exported).begin([5], parents)
    with pytest.raises(ValueError, match="length 500 of 400"):
        draft.truncate(500)


def test_greedy_drafts_of_the_demo_model_are_torchs(tmp_path: Path) -> None:
    """At 2,048 positions that it never learned; and int8 agrees with the model about as often as fp32."""
    path = tmp_path / "m"
    shutil.copytree(DEMO, path, ignore=shutil.ignore_patterns("cascade", "recipe", "*.py", "__pycache__"))
    weights = {name: tensor.float() for name, tensor in load_file(DEMO / "model.safetensors").items()}
    save_file(weights, path / "model.safetensors", metadata={"format": "pt"})
    for precision in ("fp32", "int8"):
        export_model(str(path), tmp_path / precision, precision=precision)
    files = describe_model(path)
    backend, text = Tokenizer.from_file(str(DEMO / "tokenizer.json")), list[int]()
    while len(text) < 2048:
        text += encode(backend, conversation(f"drafting {len(text)}", HELD_OUT))[0]
    model, target = open_draft(files, STEP_ROWS), open_draft(describe_model(DEMO), STEP_ROWS)
    runtimes: list[DraftRuntime] = []
    for torchs, name in ((model, "fp32"), (target, "int8")):
        runtimes += [TorchDraft.alone(torchs, 2048), exported_draft(tmp_path / name, 2048, STEP_ROWS)]
    said: list[list[int]] = [[] for _ in runtimes]
    try:
        for start in range(0, 2048 - STEP_ROWS + 1, STEP_ROWS):
            for runtime, found in zip(runtimes[: 4 if start < 1024 else 2], said, strict=False):
                logits = run(runtime, text[start : start + STEP_ROWS], range(-1, STEP_ROWS - 1))
                found += logits.argmax(axis=1).tolist()
                runtime.commit(range(STEP_ROWS), [])
    finally:
        model.weights.close()
        target.weights.close()
    expected, ours, targets, low = map(np.array, said)
    assert len(ours) == 2048
    assert len(set(ours.tolist())) > 100
    assert np.array_equal(ours, expected)
    assert (low == targets).mean() > (ours[:1024] == targets).mean() - 0.02


def test_a_gguf_model_and_a_packed_one_are_exported(tmp_path: Path) -> None:
    """q and k rows in llama.cpp's order; weights of 8 bits; the tokenizer in the file."""
    path = tiny_model(tmp_path / "m", hidden_size=128, intermediate_size=256, model_type="llama")
    raw = json.loads((path / "config.json").read_text())
    (path / "config.json").write_text(
        json.dumps({**raw, "rope_parameters": {"rope_type": "default", "rope_theta": 500.0}})
    )
    write_gguf(path, tmp_path / "m.gguf", "Q8_0")
    pack_model(str(path), tmp_path / "packed", "int8")
    for source in (tmp_path / "m.gguf", tmp_path / "packed"):
        out = tmp_path / f"x-{source.stem}"
        export_model(str(source), out)
        model = open_draft(describe_model(source), 8)
        ours = TorchDraft.alone(model, 50), exported_draft(out, 50, 8)
        expected, found = (run(runtime, [9, 8, 7], [-1, 0, 0]) for runtime in ours)
        assert np.abs(expected - found).max() < 0.2, "torch computes int8 in bf16"
        assert (out / "tokenizer.json").is_file()
        model.weights.close()


def test_what_other_tools_see(tmp_path: Path) -> None:
    onnx = pytest.importorskip("onnx")
    for precision, rows in (("fp32", None), ("fp16", 4), ("int8", None)):
        out = tmp_path / precision
        export_model(str(tiny_model(tmp_path / f"m-{precision}")), out, precision=precision, rows=rows)
        for path in out.glob("*.onnx"):
            onnx.checker.check_model(str(path), full_check=True)
            made = onnx.load(str(path), load_external_data=False)
            assert (made.opset_import[0].domain, made.opset_import[0].version) == ("", graph.OPSET)
            shapes = [d for i in made.graph.input for d in i.type.tensor_type.shape.dim]
            assert all(d.HasField("dim_value") for d in shapes) == (rows is not None)
            gate = {"Gather", "Neg", "Expand", "ScatterND"} & {node.op_type for node in made.graph.node}
            assert not gate, "what Core ML's provider leaves to the CPU"


def test_the_int8_of_a_matrix() -> None:
    matrix = np.zeros((3, 80), dtype=np.float32)
    matrix[0, :3], matrix[1, 79] = (1.27, -1.27, 0.01), 5.0
    numbers, scales = quantise(matrix)
    assert numbers.shape == (80, 3)
    assert numbers[:4, 0].tolist() == [ZERO + 127, ZERO - 127, ZERO + 1, ZERO]
    assert scales[2] == 0
    assert (numbers[:, 2] == ZERO).all()
    back = (numbers.T.astype(np.float32) - ZERO) * scales[:, None]
    assert np.abs(back - matrix).max() < 1e-6


@pytest.mark.parametrize(("name", "digits"), [("mlp.up_proj", 1), ("mlp.down_proj", 2)])
def test_an_int8_product_is_the_rows_own(tmp_path: Path, name: str, digits: int) -> None:
    """Rows of all sizes: each as fine as its digits, and the same bits alone. Extremes of both factors come
    together, where kernels that add pairs of products in 16 bits saturate."""
    rng = np.random.default_rng(0)
    matrix = rng.standard_normal((24, 300)).astype(np.float32)
    matrix[0] = 1.0
    x = rng.standard_normal((7, 300)).astype(np.float32) * np.array([[1], [1e-6], [1e6], [0], [3], [1], [1]])
    x = x.astype(np.float32)
    x[4:6] = [[2.0], [-2.0]]
    numbers, scales = quantise(matrix)
    stored, parts, place = dict[str, Stored](), [np.ascontiguousarray(numbers), scales], 0
    for tensor, part, encoding in zip(
        (f"{name}.weight", f"{name}.weight_scale"), parts, ("U8", "F32"), strict=True
    ):
        stored[tensor] = Stored(encoding, part.shape, place)
        place += part.nbytes
    (tmp_path / "w").write_bytes(b"".join(part.tobytes() for part in parts))
    build = graph.GraphBuilder("int8", "w", stored)
    product = build.linear(build.input("x", ["T", 300]), name)
    build.output(product, "y", ["T", 24])
    (tmp_path / "g.onnx").write_bytes(build.model("g"))
    session = onnxruntime.InferenceSession(str(tmp_path / "g.onnx"), providers=["CPUExecutionProvider"])
    found = session.run(["y"], {"x": x})[0]
    for row in range(len(x)):
        assert np.array_equal(session.run(["y"], {"x": x[row : row + 1]})[0][0], found[row])
    weights = (numbers.T.astype(np.float64) - ZERO) * scales[:, None]
    unit = np.abs(x).max(axis=1, keepdims=True) / 127 / (254 if digits == 2 else 1)
    error = np.abs(found - x.astype(np.float64) @ weights.T)
    bound = 0.5 * unit * np.abs(weights).sum(axis=1) + 1e-6 * np.abs(found) + 1e-30
    assert (error <= bound).all()
    assert (error > bound / 254).any(), "no digit more than that"
    assert (found[3] == 0).all()


def test_which_inputs_have_two_bytes() -> None:
    config = describe_model(DEMO).config
    stored = {name: Stored(*about) for name, about in stored_tensors(config, "int8", streams=2).items()}
    two = dict[str, bool]()
    for name in (n.removesuffix(".weight") for n in stored if f"{n}_scale" in stored):
        build = graph.GraphBuilder("int8", "w", stored)
        build.linear("x", name)
        two[name.split(".")[-1]] = any(b"Split" in node for node in build.nodes)
    assert {name for name, has in two.items() if not has} == {"gate_proj", "up_proj", "lm_head"}
    assert two.keys() >= {"q_proj", "k_proj", "v_proj", "o_proj", "down_proj", "stream_proj"}


def edited(directory: Path, **changes: Any) -> None:
    """Another manifest."""
    path = directory / "exported.json"
    path.write_text(json.dumps({**json.loads(path.read_text()), **changes}))


def cut(path: Path, nbytes: int) -> None:
    path.write_bytes(path.read_bytes()[:-nbytes])


AGAIN = f"reads format {FORMAT}; export the model again"
HOSTILE: list[tuple[Callable[[Path], object], type[EdgeSpecError], str]] = [
    (lambda d: edited(d, format=FORMAT + 1), UnsupportedModelError, AGAIN),
    (lambda d: edited(d, opset=9), UnsupportedModelError, "exported with opset 9, this EdgeSpec runs 17"),
    (lambda d: edited(d, engine="coreml"), CorruptFileError, "sound manifest"),
    (lambda d: edited(d, precision="int3"), CorruptFileError, "sound manifest"),
    (lambda d: edited(d, rows=[8]), CorruptFileError, "sound manifest"),
    (lambda d: edited(d, rows=[8, 4], positions=64), CorruptFileError, "sound manifest"),
    (lambda d: edited(d, rows=[10**9], positions=64), CorruptFileError, "sound manifest"),
    (lambda d: edited(d, positions=2**40), CorruptFileError, "sound manifest"),
    (lambda d: edited(d, library="evil.so"), CorruptFileError, "sound manifest"),
    (lambda d: edited(d, source={"path": "/etc", "digest": "0"}), CorruptFileError, "sound manifest"),
    (lambda d: edited(d, source={"path": "\\\\host", "digest": "0"}), CorruptFileError, "sound manifest"),
    (lambda d: edited(d, source={"path": "C:m", "digest": "0"}), CorruptFileError, "sound manifest"),
    (lambda d: edited(d, config={}), CorruptFileError, "config is not sound"),
    (lambda d: (d / "exported.json").write_text("{" * 100), CorruptFileError, "not valid JSON"),
    (lambda d: (d / "exported.json").write_text(" " * 2**21), CorruptFileError, "larger than"),
    (lambda d: cut(d / "weights.safetensors", 100), CorruptFileError, "truncated"),
    (lambda d: (d / "weights.safetensors").unlink(), ModelError, "missing"),
    (lambda d: save_file({}, d / "weights.safetensors"), CorruptFileError, "weights that its manifest"),
    (lambda d: (d / "head.onnx").unlink(), ModelError, "missing"),
    (lambda d: cut(d / "layers.onnx", 1), CorruptFileError, "is not what EdgeSpec writes"),
    (
        lambda d: (d / "layers.onnx").write_bytes(
            (d / "layers.onnx").read_bytes().replace(b"weights.safetensors", b"../../../etc/passwd")
        ),
        CorruptFileError,
        "is not what EdgeSpec writes for this model, so it is not run",
    ),
]


@pytest.mark.parametrize(("change", "kind", "words"), HOSTILE)
def test_files_from_strangers(
    change: Callable[[Path], object], kind: type[EdgeSpecError], words: str, exported: Path, tmp_path: Path
) -> None:
    shutil.copytree(exported, tmp_path / "x")
    change(tmp_path / "x")
    with pytest.raises(kind, match=words):
        OnnxModel(open_exported(tmp_path / "x"))


def test_an_export_older_than_its_source(tmp_path: Path) -> None:
    path = tiny_model(tmp_path / "m")
    export_model(str(path), tmp_path / "x")
    write_checkpoint(path, seed=1, vocab_size=320)
    with pytest.raises(ModelError, match="has changed since") as raised:
        open_exported(tmp_path / "x")
    assert raised.value.hint is not None
    assert raised.value.hint.arguments == {"model": str(path), "out": "DIR"}, "there is no room in x"
    shutil.rmtree(path)
    open_exported(tmp_path / "x")  # it may have gone elsewhere
    with pytest.raises(OptionError, match=r"was exported to draft with; use it as draft_model="):
        describe_model(tmp_path / "x")


def test_an_export_does_not_say_where_its_maker_keeps_models(tmp_path: Path) -> None:
    path = tiny_model(tmp_path / "models" / "m")
    export_model(str(path), tmp_path / "x")
    assert str(tmp_path) not in (tmp_path / "x" / "exported.json").read_text()
    record = open_exported(tmp_path / "x").manifest.source
    assert record.path == "../models/m"
    assert record.where(tmp_path / "x") == path
    away = SourceRecord.of(Path("/home/anna/m"), Path("/tmp/x"), "0")
    assert away == SourceRecord("", "0")
    assert away.where(tmp_path / "x") is None  # and not the export itself
    away.check(tmp_path / "x", away.again(tmp_path / "x"))


def test_weights_that_cannot_be(tmp_path: Path) -> None:
    """Beyond fp16 they are refused; NaN is found out in a pass, and nothing of it stays in the cache."""
    path = tiny_model(tmp_path / "m")
    weights = load_file(path / "model.safetensors")
    name = "model.layers.1.mlp.up_proj.weight"
    weights[name][3, 4] = 1e6
    save_file(weights, path / "model.safetensors", metadata={"format": "pt"})
    with pytest.raises(
        ModelError, match=r"up_proj\.weight has a weight that is not finite; at fp16, use fp32"
    ):
        export_model(str(path), tmp_path / "x", precision="fp16")
    export_model(str(path), tmp_path / "x")
    raw = bytearray((tmp_path / "x" / "weights.safetensors").read_bytes())
    place = open_exported(tmp_path / "x").weights["model.layers.2.mlp.down_proj.weight"].offset
    raw[place : place + 4] = np.float32("nan").tobytes()
    (tmp_path / "x" / "weights.safetensors").write_bytes(raw)
    with pytest.raises(CorruptFileError, match=r"weights\.safetensors has checksum"):
        exported_draft(tmp_path / "x")
    edited(tmp_path / "x", digest=None)
    draft = exported_draft(tmp_path / "x")
    with pytest.raises(ModelError, match="not finite numbers"):
        run(draft, [5, 6], [-1, 0])
    assert all(np.isfinite(part).all() for part in draft._cache)
    with pytest.raises(ModelError, match="not finite numbers"):
        list(draft.prefill([5, 6]))
    assert draft.length == 0


@pytest.mark.parametrize("name", ["self_attn.v_proj.weight_scale", "input_layernorm.weight"])
def test_what_bytes_would_hide_is_found_out_before(tmp_path: Path, name: str) -> None:
    """A number that is none, not in the first column, where ONNX Runtime's maximum of a row shows it."""
    export_model(str(tiny_model(tmp_path / "m")), tmp_path / "x", precision="int8")
    raw = bytearray((tmp_path / "x" / "weights.safetensors").read_bytes())
    place = open_exported(tmp_path / "x").weights[f"model.layers.1.{name}"].offset + 4 * 3
    raw[place : place + 4] = np.float32("nan").tobytes()
    (tmp_path / "x" / "weights.safetensors").write_bytes(raw)
    edited(tmp_path / "x", digest=None)
    with pytest.raises(ModelError, match=rf"{re.escape(name)} has a number that is not finite"):
        exported_draft(tmp_path / "x")


def test_sums_of_bytes_have_room() -> None:
    """As many products of extremes as a row may have are an int32; one more is refused."""
    assert WIDEST * 127**2 < 2**31 <= (WIDEST + 1) * 127**2
    config = describe_model(DEMO).config
    stored_tensors(replace(config, intermediate_size=WIDEST), "int8")
    stored_tensors(replace(config, intermediate_size=WIDEST + 1), "fp16")
    with pytest.raises(UnsupportedModelError, match=r"down_proj.weight has 133145 numbers a row.* fp16"):
        stored_tensors(replace(config, intermediate_size=WIDEST + 1), "int8")


def test_a_damaged_head_is_found_out(tmp_path: Path) -> None:
    export_model(str(tiny_model(tmp_path / "m")), tmp_path / "x")
    raw = bytearray((tmp_path / "x" / "weights.safetensors").read_bytes())
    place = open_exported(tmp_path / "x").weights["lm_head.weight"].offset
    raw[place : place + 4] = np.float32("nan").tobytes()
    (tmp_path / "x" / "weights.safetensors").write_bytes(raw)
    edited(tmp_path / "x", digest=None)
    with pytest.raises(ModelError, match="the LM head's outputs are not finite numbers"):
        run(exported_draft(tmp_path / "x"), [5, 6], [-1, 0])


def test_two_exports_to_one_directory(tmp_path: Path) -> None:
    """The second is refused, and the first comes to its end."""
    path, refused = tiny_model(tmp_path / "m"), []

    def again(report: Progress) -> None:
        if report.stage == "export" and not refused:
            with pytest.raises(StorageError, match="another process is exporting to") as raised:
                export_model(str(path), tmp_path / "x", precision="fp16")
            refused.append(raised)

    export_model(str(path), tmp_path / "x", progress=again)
    assert refused
    run(exported_draft(tmp_path / "x"), [5, 6], [-1, 0])


def test_each_graph_of_static_shapes_takes_memory(tmp_path: Path) -> None:
    path = tiny_model(tmp_path / "m")
    for name, rows in (("any", None), ("two", 8)):
        export_model(str(path), tmp_path / name, rows=rows, positions=64 if rows else None)
    one, two = (open_exported(tmp_path / name) for name in ("any", "two"))
    assert model_bytes(two, 50, 14) - model_bytes(one, 50, 14) >= one.nbytes


def test_where_an_export_may_go(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    path = tiny_model(tmp_path / "m")
    with pytest.raises(OptionError, match="is in the directory of the model"):
        export_model(str(path), path / "x")
    (tmp_path / "full").mkdir()
    (tmp_path / "full" / "file").touch()
    with pytest.raises(OptionError, match="is there already and not empty"):
        export_model(str(path), tmp_path / "full")
    (tmp_path / "x.partial").mkdir()
    (tmp_path / "x.partial" / "mine").touch()
    with pytest.raises(StorageError, match="is in the way and was not left by an export"):
        export_model(str(path), tmp_path / "x")
    (tmp_path / "x.partial" / "mine").rename(tmp_path / "x.partial" / "weights.safetensors")  # by a kill
    with monkeypatch.context() as patch:
        patch.setattr(whole.shutil, "disk_usage", lambda path: shutil._ntuple_diskusage(9, 9, 9))  # type: ignore[attr-defined]
        with pytest.raises(StorageError, match="free"):
            export_model(str(path), tmp_path / "x")

    def stop(report: Progress) -> None:
        if report.stage == "export" and report.done > report.total // 2:
            raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        export_model(str(path), tmp_path / "x", progress=stop)
    assert sorted(file.name for file in tmp_path.iterdir()) == ["full", "m"], "whole or not at all"
    export_model(str(path), tmp_path / "x")
    with pytest.raises(OptionError, match=r"positions is 400, but without rows="):
        export_model(str(path), tmp_path / "y", positions=400)


def test_providers(exported: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    model = OnnxModel(open_exported(exported))
    assert str(model.placement).endswith(" operations on cpu")
    assert sum(model.placement.operations.values()) > 100
    with pytest.raises(OptionError, match="provider 'npu' is unknown; choose cpu, coreml, "):
        OnnxModel(open_exported(exported), "npu")
    missing = next(name for name in ("qnn", "directml", "cuda") if name not in providers.available())
    install = re.escape(providers.PROVIDERS[missing].install)
    with pytest.raises(DeviceError, match=f"no provider {missing} here, only .*cpu.*\n  {install}$"):
        OnnxModel(open_exported(exported), missing)
    mine = providers.Provider("AzureExecutionProvider", "onnxruntime", "a service")
    if mine.official in providers.runtime().get_available_providers():  # it is there, and takes nothing
        monkeypatch.setattr(providers, "PROVIDERS", {**providers.PROVIDERS, "qnn": mine})
        with pytest.raises(DeviceError, match="provider qnn takes none of the model's operations"):
            OnnxModel(open_exported(exported), "qnn")
        with monkeypatch.context() as patch:
            patch.setattr(sessions, "_placement", lambda session, names: sessions.Assignment())
            with pytest.raises(DeviceError, match=r"does not say what qnn takes .* 1\.24 or later"):
                OnnxModel(open_exported(exported), "qnn")
    monkeypatch.setitem(sys.modules, "onnxruntime", None)
    with pytest.raises(MissingExtraError, match=r"pip install 'onnxruntime>=1\.22'"):
        OnnxModel(open_exported(exported))


WITHOUT_TORCH = """
import sys
sys.modules["torch"] = None  # whoever imports it fails
from pathlib import Path
from edgespec.drafters.channel import Load
from edgespec.drafters.onnx_model import onnx_model
runtime = onnx_model(Load(sys.argv[1], 1, "cpu"), lambda nbytes: None).runtime(100)
*_, done = runtime.prefill(range(3, 40))
under_way = runtime.begin([7, 8], [-1, 0])
assert under_way.advance()
print(done, *under_way.logits.argmax(axis=1))
assert not {"onnx", "transformers", "safetensors"} & set(sys.modules)
"""


def test_it_runs_without_torch(exported: Path) -> None:
    command = [sys.executable, "-c", WITHOUT_TORCH, str(exported)]
    there = subprocess.run(command, capture_output=True, text=True, cwd=ROOT)
    assert there.returncode == 0, there.stderr
    draft = exported_draft(exported)
    list(draft.prefill(range(3, 40)))
    assert there.stdout.split() == ["37", *map(str, run(draft, [7, 8], [-1, 0]).argmax(axis=1))]


def test_what_the_documentation_shows_runs_without_torch(exported: Path, tmp_path: Path) -> None:
    """Of the torch-free API, in a folder where `draft` is an export."""
    said = (ROOT / "docs" / "engines.md").read_text().split("Without torch, from Python:\n\n")[1]
    lines = itertools.takewhile(lambda line: not line or line.startswith("    "), said.splitlines())
    program = "import sys; sys.modules['torch'] = None\n" + textwrap.dedent("\n".join(lines))
    shutil.copytree(exported, tmp_path / "draft")
    there = subprocess.run(
        [sys.executable, "-c", program + "\nprint(*logits.shape, draft.length)"],
        capture_output=True,
        text=True,
        cwd=tmp_path,
        env={**os.environ, "PYTHONPATH": str(ROOT)},
    )
    assert there.returncode == 0, there.stderr
    assert there.stdout.split() == ["3", str(open_exported(exported).config.vocab_size), "5"]


def test_devices_lists_engines_and_what_installs_the_others(monkeypatch: pytest.MonkeyPatch) -> None:
    there = {fact.name: fact for fact in engine_facts()}
    assert there["torch"].version
    assert there["onnx"].version
    others = {f"onnx:{name}" for name in providers.PROVIDERS if name != "cpu"}
    assert set(there) == {"torch", "onnx", "coreml", "llama_cpp"} | others
    assert "onnx  " in "\n".join(_engine_lines())
    missing = next(fact for fact in there.values() if fact.version is None)
    assert f"missing: {missing.install}" in " ".join(" ".join(_engine_lines()).split())
    monkeypatch.setitem(sys.modules, "onnxruntime", None)
    without = {fact.name: fact for fact in engine_facts()}
    assert without["onnx"].version is None
    assert without["onnx"].install == "pip install 'onnxruntime>=1.22'"
