"""ONNX Runtime's providers that are not here: plugins, and what they leave to the CPU."""

from __future__ import annotations

import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest

from edgespec.errors import DeviceError
from edgespec.models.exporting import export_model
from edgespec.runtimes.exported.draft import ExportedDraft
from edgespec.runtimes.onnx import providers, sessions
from edgespec.runtimes.onnx.directory import open_exported
from edgespec.runtimes.onnx.model import OnnxModel
from tests.test_onnx import tiny_model
from tests.twins import run


class FakeRuntime:
    """An ONNX Runtime of 1.24 that loads plugins, and places a model's operations as is asked for."""

    __version__ = "1.24"

    def __init__(self, placed: list[tuple[str, list[str]]]) -> None:
        self.placed, self.loaded, self.asked = placed, list[tuple[str, str]](), list[Any]()

    def get_available_providers(self) -> list[str]:
        return ["CPUExecutionProvider"]

    def register_execution_provider_library(self, name: str, path: str) -> None:
        self.loaded.append((name, path))

    def get_ep_devices(self) -> list[Any]:
        return [SimpleNamespace(ep_name=name) for name, _ in (("CPUExecutionProvider", ""), *self.loaded)]

    def SessionOptions(self) -> Any:
        add = lambda devices, options: self.asked.append((devices, options))  # noqa: E731
        return SimpleNamespace(add_session_config_entry=lambda *pair: None, add_provider_for_devices=add)

    def InferenceSession(self, raw: bytes, options: Any, providers: Any) -> Any:
        self.asked.append(providers)
        subgraphs = [
            SimpleNamespace(
                ep_name=name, get_nodes=lambda kinds=kinds: [SimpleNamespace(op_type=kind) for kind in kinds]
            )
            for name, kinds in self.placed
        ]
        return SimpleNamespace(get_provider_graph_assignment_info=lambda: subgraphs)


@pytest.fixture
def plugged(monkeypatch: pytest.MonkeyPatch) -> Iterator[Callable[..., FakeRuntime]]:
    """A machine with Qualcomm's plugin, where models are placed so."""

    def make(*placed: tuple[str, list[str]]) -> FakeRuntime:
        fake = FakeRuntime(list(placed))
        monkeypatch.setattr(providers, "runtime", lambda: fake)
        monkeypatch.setattr(sessions, "runtime", lambda: fake)
        plugin = SimpleNamespace(get_library_path=lambda: "libqnn.so")
        monkeypatch.setitem(sys.modules, "onnxruntime_qnn", plugin)
        providers._register.cache_clear()
        return fake

    yield make
    providers._register.cache_clear()


def test_a_plugin_is_loaded_once_and_runs_its_devices(
    plugged: Callable[..., FakeRuntime], tmp_path: Path
) -> None:
    fake = plugged(("QNNExecutionProvider", ["Gemm"] * 3), ("CPUExecutionProvider", ["Pow", "Cast", "Pow"]))
    assert providers.available() == ["cpu", "qnn"]
    opened = sessions.OpenGraph(b"", tmp_path, "qnn", 1)
    assert fake.loaded == [("QNNExecutionProvider", "libqnn.so")]
    (devices, options), asked = fake.asked
    assert [device.ep_name for device in devices] == ["QNNExecutionProvider"]
    assert options["backend_type"] == "htp"
    assert asked is None
    expected = "3 operations on qnn in 1 partitions and 3 operations on cpu; left to the CPU: 2 Pow, 1 Cast"
    assert str(opened.placement) == f"ONNX Runtime runs {expected}"


def test_a_provider_that_leaves_the_matrices_to_the_cpu_is_refused(
    plugged: Callable[..., FakeRuntime], tmp_path: Path
) -> None:
    """The rest of a model is no work worth speaking of."""
    plugged(("QNNExecutionProvider", ["Mul"] * 90), ("CPUExecutionProvider", ["MatMulInteger"] * 7 + ["Pow"]))
    with pytest.raises(DeviceError, match=r"qnn leaves 7 MatMulInteger of the model .* precision=fp16"):
        sessions.OpenGraph(b"", tmp_path, "qnn", 1)


def test_a_plugin_that_does_not_load_is_not_there(
    plugged: Callable[..., FakeRuntime], monkeypatch: pytest.MonkeyPatch
) -> None:
    fake = plugged()
    monkeypatch.setitem(sys.modules, "onnxruntime_qnn", None)
    with pytest.raises(DeviceError, match=r"no provider qnn here, only cpu(.|\n)*'onnxruntime-qnn>=2'"):
        providers.find_provider("qnn")
    assert not fake.loaded


def test_why_a_plugin_does_not_load_is_said(
    plugged: Callable[..., FakeRuntime], monkeypatch: pytest.MonkeyPatch
) -> None:
    def missing() -> str:
        raise OSError("libQnnHtp.so: cannot open shared object file")

    plugged()
    monkeypatch.setitem(sys.modules, "onnxruntime_qnn", SimpleNamespace(get_library_path=missing))
    with pytest.raises(DeviceError, match=r"onnxruntime_qnn does not load: OSError: libQnnHtp(.|\n)*install"):
        providers.find_provider("qnn")


@pytest.mark.skipif("openvino" not in providers.available(), reason="needs onnxruntime-openvino")
@pytest.mark.parametrize("rows", [None, 8])
def test_openvino_says_what_the_cpu_does(rows: int | None, tmp_path: Path) -> None:
    """On the CPU, OpenVINO's own default."""
    export_model(str(tiny_model(tmp_path / "m")), tmp_path / "x", rows=rows)
    said = []
    for provider in ("cpu", "openvino"):
        model = OnnxModel(open_exported(tmp_path / "x"), provider)
        draft = ExportedDraft(model, 192, 64)
        list(draft.prefill(list(range(3, 90))))
        said.append(run(draft, [9, 8, 7], [-1, 0, 0]))
    placed = model.placement
    assert placed.operations["openvino"] > 0.9 * sum(placed.operations.values()), str(placed)
    assert np.abs(said[0] - said[1]).max() < 1e-3 * np.abs(said[0]).max()
    print(placed)
