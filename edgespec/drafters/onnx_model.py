"""A draft model that was exported for ONNX Runtime: are its tokens the target's, what does it need, run it in
a process of its own. No torch."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from pathlib import Path

from edgespec.drafters.channel import Load
from edgespec.drafters.exported_model import INSTEAD, ExportedFiles, slots_of
from edgespec.drafters.model import ModelDrafter
from edgespec.drafters.opened import Opened
from edgespec.drafters.process import Program, command
from edgespec.drafters.resident import Found, Search
from edgespec.drafters.worker import run
from edgespec.runtimes.exported.draft import ExportedDraft
from edgespec.runtimes.onnx.directory import open_exported
from edgespec.runtimes.onnx.model import OnnxModel, model_bytes
from edgespec.runtimes.onnx.providers import find_provider


def find(search: Search, found: dict[str, Found]) -> ExportedFiles:
    """The exported model that is named.

    Raises ModelError for files that are damaged, of another EdgeSpec, or older than their source,
    TokenizerError when its tokens are not the target's, OptionError, DeviceError and MissingExtraError for a
    provider that is not there.
    """
    provider = search.engine.partition(":")[2] or "cpu"
    find_provider(provider)
    assert search.worker is not None
    exported = open_exported(search.given["draft_model"])
    load = Load(str(exported.path.resolve()), search.worker, provider)
    program = Program(command("edgespec.drafters.onnx_model:main"), INSTEAD)
    return ExportedFiles(exported, search.tokenizer, load, program, partial(model_bytes, exported))


class OnnxCpuDrafter(ModelDrafter):
    """On a CPU 32 rows take ONNX Runtime four times as long as one, and it is not interrupted in a pass: who
    asks for what was prepared waits for its end."""

    ahead_width = ModelDrafter.width


def onnx_model(load: Load, progress: Callable[[int], None]) -> Opened:
    """An exported model, run by ONNX Runtime; see `drafters.opened.OpenModel`. Raises as `open_exported` and
    `OnnxModel`."""
    exported = open_exported(Path(load.model))
    model = OnnxModel(exported, load.provider, load.threads)
    progress(exported.nbytes)
    drafts = OnnxCpuDrafter if load.provider == "cpu" else ModelDrafter
    runtime = lambda capacity: ExportedDraft(model, capacity, slots_of(exported))  # noqa: E731
    return Opened(runtime, str(model.placement), drafts)


def main() -> None:
    """What the worker process runs."""
    run(onnx_model)
