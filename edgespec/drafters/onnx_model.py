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
from edgespec.drafters.streaming.drafter import STREAM_ROWS, StreamingDrafter
from edgespec.drafters.worker import run
from edgespec.runtimes.exported.draft import ExportedDraft
from edgespec.runtimes.exported.streams import ExportedStreams
from edgespec.runtimes.onnx.directory import Exported, open_exported
from edgespec.runtimes.onnx.model import STEP_ROWS, OnnxModel, model_bytes
from edgespec.runtimes.onnx.streams import OnnxStreams


def find(search: Search, found: dict[str, Found]) -> ExportedFiles:
    """The exported model that is named.

    Raises ModelError for files that are damaged, of another EdgeSpec, or older than their source,
    TokenizerError when its tokens are not the target's.
    """
    provider = search.engine.partition(":")[2] or "cpu"
    assert search.worker is not None
    exported = open_exported(search.given["draft_model"])
    load = Load(str(exported.path.resolve()), search.worker, provider)
    program = Program(command("edgespec.drafters.onnx_model:main"), INSTEAD)
    widest = max(STEP_ROWS, streamed_rows(exported))
    nbytes = partial(model_bytes, exported, widest=widest)
    return ExportedFiles(exported, search.tokenizer, load, program, nbytes, streamed_rows(exported))


def streamed_rows(exported: Exported) -> int:
    """Rows of the largest pass that has lookahead streams, theirs among them."""
    return STREAM_ROWS * (1 + exported.streams) if exported.streams else 0


class OnnxCpuDrafter(ModelDrafter):
    """On a CPU 32 rows take ONNX Runtime four times as long as one, and it is not interrupted in a pass: who
    asks for what was prepared waits for its end."""

    ahead_width = ModelDrafter.width


class OnnxCpuStreamingDrafter(StreamingDrafter):
    """As `OnnxCpuDrafter`."""

    ahead_width = StreamingDrafter.width


def open_onnx(exported: Exported, provider: str, threads: int) -> Opened:
    """An exported model, run by ONNX Runtime. Raises as `OnnxModel`."""
    slots, cpu = slots_of(exported), provider == "cpu"
    if exported.streams:
        streams = OnnxStreams(exported, provider, threads)
        drafts = OnnxCpuStreamingDrafter if cpu else StreamingDrafter
        runtime = partial(ExportedStreams, streams, rows=slots, width=STREAM_ROWS)
        return Opened(runtime, str(streams.placement), drafts)
    model = OnnxModel(exported, provider, threads)
    drafter = OnnxCpuDrafter if cpu else ModelDrafter
    return Opened(partial(ExportedDraft, model, rows=slots), str(model.placement), drafter)


def onnx_model(load: Load, progress: Callable[[int], None]) -> Opened:
    """See `drafters.opened.OpenModel`. Raises as `open_exported` and `OnnxModel`."""
    exported = open_exported(Path(load.model))
    opened = open_onnx(exported, load.provider, load.threads)
    progress(exported.nbytes)
    return opened


def main() -> None:
    """What the worker process runs."""
    run(onnx_model)
