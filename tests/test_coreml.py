"""Models exported for Core ML: what lies in the package says what torch says; files from strangers."""

from __future__ import annotations

import shutil
import sys
from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest

import edgespec
from edgespec.errors import CorruptFileError, DeviceError, EdgeSpecError, MissingExtraError, OptionError
from edgespec.models.exporting import export_model
from edgespec.runtimes.coreml import graph, package
from edgespec.runtimes.coreml.model import CoreMLModel
from edgespec.runtimes.exported.draft import ExportedDraft
from edgespec.runtimes.formats.describe import describe_model
from edgespec.runtimes.torch.draft import TorchDraft, open_draft
from tests.mil import functions_of, interpreter
from tests.test_onnx import edited, tiny_model
from tests.twins import Twins, run

pytest.importorskip("coremltools")
from edgespec.runtimes.coreml.directory import open_coreml

pytestmark = pytest.mark.filterwarnings("ignore")  # coremltools' own


@pytest.fixture(scope="module")
def exported(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("coreml")
    tiny_model(folder / "m", "qwen3", num_attention_heads=8, num_hidden_layers=2, tie_word_embeddings=False)
    export_model(str(folder / "m"), folder / "x", engine="coreml", rows=8, positions=256)
    return folder / "x"


def test_the_package_says_what_torch_says(exported: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """By an interpreter: a prompt, branches and roots in one call, what is kept, and going back."""
    model = open_draft(describe_model(exported.parent / "m"), 64)
    opened = CoreMLModel(open_coreml(exported), interpreter)
    twins = Twins(TorchDraft.alone(model, 192), ExportedDraft(opened, 192, 64), 0.1)
    try:
        twins.begin(100, nodes=20)
        twins.tree(6, first=3)
        twins.ask(lambda runtime: runtime.truncate(60))
        twins.tree(6)
    finally:
        model.weights.close()
    assert twins.most > 5, "logits that differ"


def test_windows_biases_and_a_head_in_parts(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(graph, "HEAD_ROWS", 128)
    path = tiny_model(tmp_path / "m", "qwen2", num_hidden_layers=2)
    export_model(str(path), tmp_path / "x", engine="coreml", rows=64, positions=128)
    model = open_draft(describe_model(path), 32)
    opened = CoreMLModel(open_coreml(tmp_path / "x"), interpreter)
    ours = TorchDraft.alone(model, 96), ExportedDraft(opened, 96, 32)
    try:
        for runtime in ours:
            list(runtime.prefill(list(range(3, 80))))
        expected, found = (run(runtime, [9, 8, 7], [-1, 0, 0]) for runtime in ours)
        assert np.abs(expected - found).max() < 0.1
    finally:
        model.weights.close()


def test_what_is_in_the_package(exported: Path) -> None:
    functions = functions_of(exported / "model.mlpackage")
    assert set(functions) == {"layers_8", "head_8", "layers_64", "head_64"}
    for name, function in functions.items():
        rows = int(name.partition("_")[2])
        assert {op.op_type for op in function.operations} <= graph.OPERATIONS
        for var in (*function.inputs.values(), *function.outputs):
            assert len(var.shape) == 4
            assert var.dtype.__name__ == "fp16"
            assert var.shape[-1] in (rows, 256, 256 + rows), "last: rows, or positions"
        assert not any(
            len(o.shape) > 4 for op in function.operations for o in op.outputs if op.op_type != "const"
        )
        matrices = [op for op in function.operations if op.op_type == "conv"]
        assert len(matrices) == (1 if name.startswith("head") else 2 * 7)
    stored = sum(file.stat().st_size for file in (exported / "model.mlpackage").rglob("weight.bin"))
    weights = describe_model(exported.parent / "m").table.nbytes // 2  # of fp32
    assert stored < 1.3 * weights, "both numbers of rows share them"


def test_it_runs_on_a_mac_only(exported: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    if sys.platform != "darwin":
        words = "Core ML runs on macOS 15 and later only, and this is .*; export the model with engine=onnx"
        with pytest.raises(DeviceError, match=words):
            CoreMLModel(open_coreml(exported))
        with pytest.raises(DeviceError, match=words):
            edgespec.load(exported.parent / "m", memory="2GB", drafter="model", draft_model=exported)

    def version(name: str) -> str:
        raise package.PackageNotFoundError(name)

    monkeypatch.setattr(package, "version", version)
    with pytest.raises(MissingExtraError, match=r"pip install 'coremltools>=9'"):
        export_model(str(exported.parent / "m"), exported.parent / "y", engine="coreml")
    with pytest.raises(OptionError, match="precision is int8, and the Neural Engine computes in fp16"):
        export_model("m", "y", engine="coreml", precision="int8")


@pytest.mark.macos
@pytest.mark.skipif(sys.platform != "darwin", reason="Core ML is macOS's")
def test_core_ml_says_what_the_interpreter_says(exported: Path) -> None:
    there = open_coreml(exported)
    drafts = [
        ExportedDraft(CoreMLModel(there, way), 128, 16)
        for way in (interpreter, CoreMLModel.__init__.__defaults__[0])
    ]  # type: ignore[misc]
    for draft in drafts:
        list(draft.prefill(list(range(3, 40))))
    expected, found = (run(draft, [9, 8, 7], [-1, 0, 0]) for draft in drafts)
    assert np.abs(expected - found).max() < 0.5


def program(directory: Path) -> Path:
    return directory / "model.mlpackage" / "Data" / "com.apple.CoreML" / "model.mlmodel"


def swapped(directory: Path, old: bytes, new: bytes) -> None:
    assert len(old) == len(new)
    program(directory).write_bytes(program(directory).read_bytes().replace(old, new))


HOSTILE: list[tuple[Callable[[Path], object], type[EdgeSpecError], str]] = [
    (lambda d: edited(d, rows=[64, 8]), CorruptFileError, "sound manifest"),
    (lambda d: edited(d, rows=[]), CorruptFileError, "sound manifest"),
    (lambda d: edited(d, rows=[8]), CorruptFileError, "other functions"),
    (lambda d: edited(d, format=9), EdgeSpecError, "has format 9"),
    (
        lambda d: swapped(d, b"@model_path/weights", b"@model_path/../../x"),
        CorruptFileError,
        "an operation 'const'",
    ),
    (lambda d: swapped(d, b"silu", b"gelu"), CorruptFileError, "an operation 'gelu'"),
    (lambda d: program(d).write_bytes(b"\xff" * 100), CorruptFileError, "is not what EdgeSpec writes"),
    (lambda d: (d / "model.mlpackage" / "more").touch(), CorruptFileError, "its files are"),
    (lambda d: shutil.rmtree(d / "model.mlpackage"), CorruptFileError, "its files are"),
    (lambda d: (d / "host.safetensors").write_bytes(b"{" * 90), CorruptFileError, "host.safetensors"),
]


@pytest.mark.parametrize(("change", "kind", "words"), HOSTILE)
def test_files_from_strangers(
    change: Callable[[Path], object], kind: type[EdgeSpecError], words: str, exported: Path, tmp_path: Path
) -> None:
    shutil.copytree(exported, tmp_path / "x")
    change(tmp_path / "x")
    with pytest.raises(kind, match=words):
        open_coreml(tmp_path / "x")
