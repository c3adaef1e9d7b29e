"""ONNX Runtime's execution providers: which there are, how to ask for them, what installs others. No torch.

By itself, ONNX Runtime computes on the CPU, without a word, whatever a provider does not take or cannot do.
Here a provider that is missing is refused, and so is one that takes nothing; what the CPU does beside it is
counted (`sessions.Assignment`).
"""

from __future__ import annotations

import importlib
from collections.abc import Mapping
from dataclasses import dataclass, field
from functools import cache
from typing import TYPE_CHECKING, Any

from edgespec.errors import DeviceError, MissingExtraError, OptionError

if TYPE_CHECKING:
    import onnxruntime

INSTALL = "pip install 'onnxruntime>=1.22'"  # not the extra: a client without torch would get torch with it


@dataclass(frozen=True)
class Provider:
    """An execution provider.

    official: ONNX Runtime's name for it. package: what has it. use: what it is good for here. options: given
    to it. static: it takes graphs of static shapes only. plugin: the module whose `get_library_path` says
    what ONNX Runtime is to load for it; "" = it is built in.
    """

    official: str
    package: str
    use: str
    options: Mapping[str, str] = field(default_factory=dict)
    static: bool = False
    plugin: str = ""

    @property
    def install(self) -> str:
        """The line that brings it. A package that has ONNX Runtime itself would lie over another one's."""
        if self.package == "onnxruntime":
            return INSTALL + (" on macOS" if self.official == "CoreMLExecutionProvider" else "")
        if self.plugin:
            return f"pip install 'onnxruntime>=1.24' {self.package}"
        return f"pip uninstall onnxruntime; pip install {self.package}"

    @property
    def failure(self) -> str:
        """Why its plugin, which is installed, does not load; "" where it does."""
        return _register(self.plugin, self.official) if self.plugin else ""

    def devices(self) -> list[Any]:
        """What a plugin drives here, as ONNX Runtime has it; none of a provider that is built in."""
        if not self.plugin or self.failure:
            return []
        found: list[Any] = getattr(runtime(), "get_ep_devices", list)()  # of ONNX Runtime 1.23 and later
        return [device for device in found if device.ep_name == self.official]


def _openvino(device: str, use: str, static: bool = False) -> Provider:
    return Provider("OpenVINOExecutionProvider", "onnxruntime-openvino", use, {"device_type": device}, static)


PROVIDERS: Mapping[str, Provider] = {
    "cpu": Provider("CPUExecutionProvider", "onnxruntime", "drafts on cores that the target leaves free"),
    "coreml": Provider(
        "CoreMLExecutionProvider",
        "onnxruntime",
        "drafts on Apple's Neural Engine",
        {
            "ModelFormat": "MLProgram",
            "MLComputeUnits": "CPUAndNeuralEngine",
            "RequireStaticInputShapes": "1",
            "EnableOnSubgraphs": "0",
        },
        static=True,
    ),
    "qnn": Provider(
        "QNNExecutionProvider",
        "'onnxruntime-qnn>=2'",
        "drafts on Qualcomm's Hexagon",
        {"backend_type": "htp", "htp_performance_mode": "burst", "enable_htp_fp16_precision": "1"},
        static=True,
        plugin="onnxruntime_qnn",
    ),
    "openvino": _openvino("CPU", "drafts on cores that the target leaves free"),
    "openvino-gpu": _openvino("GPU", "drafts on Intel's GPU, if there is one"),
    "openvino-npu": _openvino("NPU", "drafts on Intel's NPU, if there is one", static=True),
    "cuda": Provider("CUDAExecutionProvider", "onnxruntime-gpu", "drafts on an NVIDIA GPU"),
    "directml": Provider("DmlExecutionProvider", "onnxruntime-directml", "drafts on a GPU under Windows"),
}


def runtime() -> Any:
    """The module `onnxruntime`. Raises MissingExtraError."""
    try:
        import onnxruntime
    except ImportError as error:
        raise MissingExtraError(
            f"the engine onnx needs onnxruntime ({error}); install it with\n  {INSTALL}"
        ) from None
    return onnxruntime


@cache
def _register(plugin: str, official: str) -> str:
    """Let ONNX Runtime load a plugin, once a process. Why that failed, if it is installed: then its provider
    is not here."""
    try:
        library = importlib.import_module(plugin).get_library_path()
        runtime().register_execution_provider_library(official, library)
    except Exception as error:  # ONNX Runtime's own classes among them
        absent = isinstance(error, ModuleNotFoundError) and error.name == plugin
        return "" if absent else f"{type(error).__name__}: {error}"[:500]
    return ""


def available() -> list[str]:
    """The providers that the installed ONNX Runtime has, and its plugins with a device here. (OpenVINO says
    when it opens a model that it has no such device.) Raises MissingExtraError."""
    there = runtime().get_available_providers()
    return [name for name, p in PROVIDERS.items() if p.official in there or p.devices()]


def check_here(provider: str) -> None:
    """Raises as `find_provider`; "" is the CPU."""
    find_provider(provider or "cpu")


def find_provider(name: str) -> Provider:
    """Raises OptionError for an unknown one, DeviceError for one that is not there, MissingExtraError."""
    provider = PROVIDERS.get(name)
    if provider is None:
        raise OptionError(f"provider {name[:80]!r} is unknown; choose {', '.join(PROVIDERS)}", "draft_engine")
    if name not in (there := available()):
        why = f" ({provider.plugin} does not load: {provider.failure})" if provider.failure else ""
        raise DeviceError(
            f"ONNX Runtime has no provider {name} here, only {', '.join(there)}{why}; it comes with\n"
            f"  {provider.install}"
        )
    return provider


def session_options(threads: int) -> onnxruntime.SessionOptions:
    """For a worker beside the target: so many threads, which sleep when they have nothing to do. (Looking for
    work, they doubled the time of the target's next step: 62 ms for 30.)"""
    options = runtime().SessionOptions()
    options.intra_op_num_threads, options.inter_op_num_threads = threads, 1
    options.log_severity_level = 3  # errors
    for key, value in {
        "session.intra_op.allow_spinning": "0",
        "session.inter_op.allow_spinning": "0",
        "session.record_ep_graph_assignment_info": "1",
    }.items():
        options.add_session_config_entry(key, value)
    return options
