"""Models exported for Core ML: what lies in the package says what torch says; files from strangers."""

from __future__ import annotations

import shutil
import sys
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest

import edgespec
from edgespec.drafters.channel import Load
from edgespec.errors import (
    CorruptFileError,
    DeviceError,
    EdgeSpecError,
    MissingExtraError,
    ModelError,
    OptionError,
)
from edgespec.models.exporting import export_model
from edgespec.runtimes.coreml import graph, package
from edgespec.runtimes.coreml.model import CoreMLModel, model_bytes, open_function
from edgespec.runtimes.coreml.placement import placement
from edgespec.runtimes.coreml.stateful import StatefulDraft
from edgespec.runtimes.exported.draft import ExportedDraft
from edgespec.runtimes.formats.describe import describe_model
from edgespec.runtimes.torch.draft import TorchDraft, open_draft
from tests.mil import Interpreted, functions_of, interpreter, is_state
from tests.test_onnx import edited, tiny_model
from tests.twins import Twins, run

pytest.importorskip("coremltools")
from edgespec.drafters import coreml_model as coreml_drafter
from edgespec.drafters.coreml_model import coreml_model
from edgespec.runtimes.coreml.directory import open_coreml

pytestmark = pytest.mark.filterwarnings("ignore")  # coremltools' own


@pytest.fixture(scope="module")
def exported(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("coreml")
    tiny_model(folder / "m", "qwen3", num_attention_heads=8, num_hidden_layers=2, tie_word_embeddings=False)
    export_model(str(folder / "m"), folder / "x", engine="coreml", rows=8, positions=256)
    return folder / "x"


@pytest.fixture(scope="module")
def stateful(exported: Path) -> Path:
    """The beginning of a conversation is in its states."""
    out = exported.parent / "stateful"
    export_model(str(exported.parent / "m"), out, engine="coreml", rows=8, positions=256, stateful=True)
    return out


def test_the_weights_are_counted_once(exported: Path, tmp_path: Path) -> None:
    """All functions of a package have them."""
    shutil.copytree(exported, tmp_path / "x")
    one, other = open_coreml(exported), replace(open_coreml(exported), path=tmp_path / "x")
    with next((tmp_path / "x").rglob("weight.bin")).open("ab") as file:
        file.write(bytes(1000))
    assert model_bytes(other, 256, 64) - model_bytes(one, 256, 64) == 1000


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


def test_the_beginning_of_a_conversation_is_in_the_states(exported: Path, stateful: Path) -> None:
    """Of 256 positions 192 may be: what lies behind them, branches and all, is handed over."""
    there = open_coreml(stateful)
    assert (there.manifest.kept, there.cached) == (192, 256 + 192)
    model = open_draft(describe_model(exported.parent / "m"), 64)
    opened = CoreMLModel(there, interpreter)
    ours = StatefulDraft(opened, 192, 64)
    twins = Twins(TorchDraft.alone(model, 192), ours, 0.1)
    try:
        twins.begin(100, nodes=20)
        assert 0 < ours._kept <= 100
        for name, part in zip(opened.shapes.caches, ours._cache, strict=True):
            held = ours._state[f"kept_{name}"][0].transpose(0, 2, 1)
            assert np.array_equal(held[:, : ours._kept], part[:, : ours._kept])
        twins.tree(6, first=3)
        twins.ask(lambda runtime: runtime.truncate(20))  # to where the states are ahead
        assert ours._kept == 20
        twins.tree(6)
        twins.ask(lambda runtime: runtime.commit([0], []))
        twins.ask(lambda runtime: [*runtime.prefill(list(range(3, 160)))][-1])
        twins.tree(40)
        assert ours._kept > 100, "what was there is overwritten"
        other = StatefulDraft(opened, 192, 64)
        assert ours._state is not other._state, "each conversation has its own"
    finally:
        model.weights.close()
    assert twins.most > 5, "logits that differ"


def test_states_are_filled_to_the_last(exported: Path, tmp_path: Path) -> None:
    """Also where there are fewer slots than positions that are handed over."""
    source = exported.parent / "m"
    export_model(str(source), tmp_path / "x", engine="coreml", rows=8, positions=128, stateful=True)
    model = open_draft(describe_model(source), 8)
    ours = StatefulDraft(CoreMLModel(open_coreml(tmp_path / "x"), interpreter), 120, 8)
    twins = Twins(TorchDraft.alone(model, 120), ours, 0.1)
    try:
        twins.ask(lambda runtime: [*runtime.prefill(list(range(3, 123)))][-1])
        twins.tree(8)
        assert ours._kept == 96
    finally:
        model.weights.close()


def test_int8_weights(exported: Path, tmp_path: Path) -> None:
    source = exported.parent / "m"
    export_model(str(source), tmp_path / "int8", engine="coreml", rows=8, positions=256, precision="int8")
    packages = [folder / "model.mlpackage" for folder in (tmp_path / "int8", exported)]
    small, large = (sum(file.stat().st_size for file in p.rglob("weight.bin")) for p in packages)
    assert small < 0.6 * large
    for name, function in functions_of(packages[0]).items():
        matrices = [op for op in function.operations if op.op_type == "constexpr_blockwise_shift_scale"]
        assert len(matrices) == (1 if name.startswith("head") else 2 * 7)
        assert {op.data.val.dtype for op in matrices} == {np.dtype(np.int8)}
    drafts = [
        ExportedDraft(CoreMLModel(open_coreml(folder), interpreter), 192, 64)
        for folder in (exported, tmp_path / "int8")
    ]
    for draft in drafts:
        list(draft.prefill(list(range(3, 80))))
    exact, found = (run(draft, [9, 8, 7], [-1, 0, 0]) for draft in drafts)
    assert 0 < np.abs(exact - found).max() < 0.1 * np.abs(exact).max()


def test_a_row_of_int8_has_a_unit_of_its_own() -> None:
    matrix = np.array(
        [[1.0, -2.0, 0.5], [0.0, 0.0, 0.0], [1e-9, 0.0, 0.0], [300.0, 60000.0, -0.2]], np.float32
    )
    data, units = graph.quantise(matrix)
    assert data.dtype == np.int8
    assert units.shape == (4, 1)
    found = data.astype(np.float32) * units.astype(np.float32)
    assert np.abs(found - matrix).max(axis=1) == pytest.approx([0, 0, 0, 0], abs=60000 / 250)
    assert np.abs(found - matrix)[0].max() < 2 / 250
    assert not data[1:3].any(), "what no unit of fp16 is small enough for is 0"


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


def test_what_is_in_the_package_with_states(stateful: Path) -> None:
    """Passes read them, and one function writes them; they are of one shape everywhere, and fp16."""
    functions = functions_of(stateful / "model.mlpackage")
    assert set(functions) == {"layers_8", "head_8", "layers_64", "head_64", "keep_64"}
    for name, function in functions.items():
        states = {n: var.sym_type.wrapped_type() for n, var in function.inputs.items() if is_state(var)}
        assert len(states) == (0 if name.startswith("head") else 2 * 2)
        assert {tuple(state.get_shape()) for state in states.values()} <= {(1, 2, 32, 192)}
        written = [op for op in function.operations if op.op_type == "coreml_update_state"]
        assert len(written) == (2 * 2 if name.startswith("keep") else 0)
        handed = {var.shape[-1] for n, var in function.inputs.items() if n.startswith(("keys", "values"))}
        assert handed <= {64}
    spec = package.runtime().utils.load_spec(str(stateful / "model.mlpackage"))
    states = {f.name: [s.name for s in f.state] for f in spec.description.functions}
    assert states["layers_8"] == states["keep_64"] == [
        "kept_keys_0", "kept_values_0", "kept_keys_1", "kept_values_1",
    ]  # fmt: skip


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


@pytest.mark.parametrize(
    ("options", "words"),
    [
        (
            {"engine": "coreml", "precision": "fp32"},
            "precision is fp32, and the Neural Engine computes in fp16",
        ),
        ({"stateful": True}, "stateful is for engine=coreml, and the cache of onnx is the host's"),
        (
            {"engine": "coreml", "stateful": True, "positions": 200},
            "positions is 200, and with stateful= it must be a multiple of 128",
        ),
    ],
)
def test_what_cannot_be_written_is_refused(options: dict[str, Any], words: str) -> None:
    with pytest.raises(OptionError, match=words):
        export_model("m", "y", **options)


def test_where_core_ml_has_no_states(stateful: Path) -> None:
    class Older(Interpreted):
        def make_state(self) -> dict[str, Any]:
            raise Exception("State functionality is only supported on macOS 15+")

    opened = CoreMLModel(open_coreml(stateful), lambda package, name: Older(functions_of(package)[name]))
    with pytest.raises(ModelError, match=r"only supported on macOS 15\+; export the model without stateful="):
        StatefulDraft(opened, 192, 64)


class Planned:
    """In the place of coremltools' compute plan: what is prepared for a device of this class."""

    def __init__(self, devices: list[str | None]) -> None:
        operations = [type(name, (), {})() if name else None for name in devices]
        block = SimpleNamespace(operations=operations)
        functions = {"layers_8": SimpleNamespace(block=block)}
        self.model_structure = SimpleNamespace(program=SimpleNamespace(functions=functions))

    def get_compute_device_usage_for_mlprogram_operation(self, operation: object) -> object:
        return operation and SimpleNamespace(preferred_compute_device=operation)


@pytest.mark.parametrize(
    ("devices", "words"),
    [
        (
            ["MLNeuralEngineComputeDevice"] * 3 + [None, "MLCPUComputeDevice"],
            "Core ML runs 3 operations on the Neural Engine and 1 operations on the CPU",
        ),
        ([None], "Core ML does not say what it runs where"),
    ],
)
def test_what_runs_where_is_told(
    devices: list[str | None], words: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    plan = package.runtime().models.compute_plan.MLComputePlan
    monkeypatch.setattr(plan, "load_from_path", lambda path, compute_units: Planned(devices))
    assert placement(SimpleNamespace(get_compiled_model_path=lambda: "x.mlmodelc")) == words


def test_where_there_is_no_compute_plan_drafts_do_without() -> None:
    assert "does not say what it runs where ('object' object has no" in placement(object())


@pytest.mark.macos
@pytest.mark.skipif(sys.platform != "darwin", reason="Core ML is macOS's")
@pytest.mark.parametrize("stateful", [False, True])
@pytest.mark.parametrize("precision", ["fp16", "int8"])
def test_core_ml_says_what_the_interpreter_says(
    exported: Path, tmp_path: Path, stateful: bool, precision: str
) -> None:
    how: dict[str, Any] = {"precision": precision, "stateful": stateful, "rows": 32, "positions": 256}
    export_model(str(exported.parent / "m"), tmp_path / "x", engine="coreml", **how)
    models = [CoreMLModel(open_coreml(tmp_path / "x"), way) for way in (interpreter, open_function)]
    drafts = [(StatefulDraft if stateful else ExportedDraft)(model, 192, 64) for model in models]
    for draft in drafts:
        list(draft.prefill(list(range(3, 150))))
    expected, found = (run(draft, [9, 8, 7], [-1, 0, 0]) for draft in drafts)
    assert np.abs(expected - found).max() < 0.5
    print(placement(models[1].layers))


def program(directory: Path) -> Path:
    return directory / "model.mlpackage" / "Data" / "com.apple.CoreML" / "model.mlmodel"


def swapped(directory: Path, old: bytes, new: bytes) -> None:
    assert len(old) == len(new)
    program(directory).write_bytes(program(directory).read_bytes().replace(old, new))


def changed(directory: Path, change: Callable[[Any], None]) -> None:
    """Another program."""
    from coremltools.proto import Model_pb2

    spec = Model_pb2.Model()
    spec.ParseFromString(program(directory).read_bytes())
    change(spec)
    program(directory).write_bytes(spec.SerializeToString())


def _nested(spec: Any) -> None:
    """A file's name in a tuple, in an attribute of a function."""
    function = next(iter(spec.mlProgram.functions.values()))
    inner = function.attributes["x"].immediateValue.tuple.values.add()
    inner.blobFileValue.fileName = "/etc/passwd"


HOSTILE: list[tuple[Callable[[Path], object], type[EdgeSpecError], str]] = [
    (lambda d: edited(d, rows=[64, 8]), CorruptFileError, "sound manifest"),
    (lambda d: edited(d, rows=[]), CorruptFileError, "sound manifest"),
    (lambda d: edited(d, rows=[8]), CorruptFileError, "other functions"),
    (lambda d: edited(d, format=9), EdgeSpecError, "has format 9"),
    (lambda d: edited(d, kept=64), CorruptFileError, "other functions"),
    (lambda d: edited(d, kept=100), CorruptFileError, "kept"),
    (lambda d: edited(d, kept=256), CorruptFileError, "256 of 256 positions in states"),
    (lambda d: edited(d, precision="fp32"), CorruptFileError, "precision"),
    (
        lambda d: swapped(d, b"@model_path/weights", b"@model_path/../../x"),
        CorruptFileError,
        "weights in '@model_path/../../x",
    ),
    (lambda d: changed(d, _nested), CorruptFileError, "weights in '/etc/passwd'"),
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


@pytest.mark.parametrize(
    "file", ["host.safetensors", "model.mlpackage/Data/com.apple.CoreML/weights/weight.bin"]
)
def test_damaged_weights_are_told(
    file: str, exported: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(coreml_drafter, "open_function", interpreter)
    shutil.copytree(exported, tmp_path / "x")
    raw = bytearray((tmp_path / "x" / file).read_bytes())
    raw[-100] ^= 1
    (tmp_path / "x" / file).write_bytes(raw)
    with pytest.raises(
        CorruptFileError, match=rf"{file} has checksum .* the file is damaged: fetch it again, or export"
    ):
        coreml_model(Load(str(tmp_path / "x"), 1), lambda nbytes: None)


def test_what_the_worker_opens_drafts_and_is_heard_of_meanwhile(
    exported: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Core ML may take minutes to compile a function, which is said before it begins."""
    told: list[tuple[int, int]] = []
    read: list[int] = []

    def progress(nbytes: int, compiling: tuple[int, int] = (0, 0)) -> None:
        read.append(nbytes)
        told.append(compiling)

    def compiled(package: Path, name: str) -> Any:
        told.append((0, 1))
        return interpreter(package, name)

    monkeypatch.setattr(coreml_drafter, "open_function", compiled)
    opened = coreml_model(Load(str(exported), 1), progress)
    draft = opened.runtime(192)
    list(draft.prefill(list(range(3, 90))))
    assert run(draft, [9, 8, 7], [-1, 0, 0]).shape == (3, open_coreml(exported).config.vocab_size)
    assert sum(read) == open_coreml(exported).nbytes
    each = [place for number in range(1, 5) for place in ((number, 4), (0, 1))]
    assert told == [(0, 0), *each, (0, 0)], "the weights, each function before it is compiled, and the end"


def test_states_that_leave_no_room_for_drafts(stateful: Path, tmp_path: Path) -> None:
    shutil.copytree(stateful, tmp_path / "x")
    edited(tmp_path / "x", kept=224)
    with pytest.raises(CorruptFileError, match="hands over 32 positions, and drafts take 64"):
        coreml_model(Load(str(tmp_path / "x"), 1), lambda nbytes: None)
