"""Which engines this machine has to draft with, what each is good for, what installs the others. No torch.

Nothing is loaded but ONNX Runtime, which knows its providers.
"""

from __future__ import annotations

from dataclasses import dataclass
from importlib.metadata import PackageNotFoundError, version

from edgespec.errors import DeviceError, MissingExtraError
from edgespec.runtimes.coreml import package as coreml
from edgespec.runtimes.llama_cpp import package as llama_cpp
from edgespec.runtimes.onnx.providers import PROVIDERS, available


@dataclass(frozen=True)
class EngineFact:
    """An engine, or one of its providers, as `draft_engine` calls it. version: None = it is not there, and
    `install` says what brings it."""

    name: str
    use: str
    version: str | None
    install: str


def engine_facts() -> list[EngineFact]:
    """All engines, and all providers of those that have some."""
    use = "drafts in the target's process, or beside it"
    torch = EngineFact("torch", use, _version("torch"), "pip install torch")
    try:
        there, own = available(), _version("onnxruntime") or "there"  # another package may have brought it
    except MissingExtraError:
        there, own = [], ""
    found = [torch]
    for name, provider in PROVIDERS.items():
        engine = "onnx" if name == "cpu" else f"onnx:{name}"
        found.append(EngineFact(engine, provider.use, own if name in there else None, provider.install))
    try:
        coreml.check_here()
        there_is: str | None = coreml.package_version()
    except (DeviceError, MissingExtraError):
        there_is = None
    use = "drafts on Apple's Neural Engine, which macOS has; written anywhere"
    found.append(EngineFact("coreml", use, there_is, f"{coreml.INSTALL} on macOS"))
    try:
        there_is = llama_cpp.package_version()
    except MissingExtraError:
        there_is = None
    use = "drafts with a GGUF file, on cores that the target leaves free"
    found.append(EngineFact("llama_cpp", use, there_is, llama_cpp.INSTALL))
    return found


def _version(package: str) -> str | None:
    try:
        return version(package)
    except PackageNotFoundError:
        return None
