"""Exporting a model by its name: resolve, read, write a directory for another engine, and its tokenizer."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Any, cast

import numpy as np
from numpy.typing import NDArray

from edgespec.drafters.exported_model import slots_in
from edgespec.drafters.vocabulary import vocabulary_digest
from edgespec.errors import OptionError
from edgespec.models.hub import resolve_model
from edgespec.models.options import STATEFUL_UNIT, ExportOptions
from edgespec.offload.digest import file_digest
from edgespec.progress import Progress, ProgressCallback
from edgespec.runtimes.coreml.package import package_version as coreml_version
from edgespec.runtimes.exported.source import SourceRecord
from edgespec.runtimes.formats.checkpoint import companions_in
from edgespec.runtimes.formats.describe import ModelFiles, describe_model
from edgespec.runtimes.formats.gguf import read_gguf
from edgespec.runtimes.formats.trained import trained_kind
from edgespec.runtimes.formats.whole import check_new
from edgespec.runtimes.onnx.design import Design, Precision
from edgespec.runtimes.onnx.export import write_exported
from edgespec.runtimes.onnx.layout import ROPE
from edgespec.text.tokenizer import load_tokenizer
from edgespec.values import with_keywords

POSITIONS = 2048  # of a cache of static shapes, if nothing else is said
CORE_ML_ROWS = 32  # of a pass, if nothing else is said: fewer take the Neural Engine as long
PROMPT_ROWS = 64  # of static shapes: prompts are read so many at a time
# Why another engine cannot run what was trained, by kind.
UNEXPORTED = {
    "cascade": "the cascade drafts inside the target, with its first layers",
    "eagle": "the EAGLE drafter goes on from hidden states of the target, which are in the target's process",
    "specformer": "the SpecFormer drafter reads hidden states of the target, which are in its process",
    "moa": "the MoA drafter attends to the target's keys and values of all layers; a client of a server that "
    "has these drafts with its half (export_client), without torch",
    "spd": "the SPD drafter's layers are tracks, for which there are no graphs; draft_worker= runs it in a "
    "process of its own",
}
_OF_MODEL = ("config.json", "generation_config.json")  # what is exported has a manifest


def export_model(
    model: str, out: str | Path, *, progress: ProgressCallback | None = None, **options: Any
) -> None:
    """Write `model` (directory, packed or not, hub id or GGUF file) to the directory `out`, for another
    engine to draft with.

    options: the fields of `ExportOptions`: engine, adapters, precision, rows, positions, stateful.

    All that is exported is read into memory, as it is stored; `out` is written whole or not at all.

    Raises OptionError (`out` is not empty or in the model's directory, or no other engine can run what is in
    `adapters`), ModelError, TokenizerError,
    StorageError (too little space, named before anything is written).
    """
    asked = with_keywords(ExportOptions(), options)
    path = resolve_model(str(model), progress)
    files = describe_model(path)
    if path.is_dir() and Path(out).resolve().is_relative_to(path.resolve()):
        raise OptionError(
            f"{out} is in the directory of the model that is exported; choose one outside {path}"
        )
    check_new(Path(out))  # before torch is read
    adapters = None if asked.adapters is None else Path(asked.adapters)
    if adapters is not None:
        check_exportable(adapters)
    tokenizer = load_tokenizer(files, path)
    companions = read_gguf(path).companions() if path.is_file() else companions_in(path)
    if asked.engine == "coreml":
        coreml_version()  # before anything is read

    def say(stage: str, done: int, total: int, unit: str = "bytes") -> None:
        if progress is not None:
            progress(Progress(stage, done, total, unit))

    about: dict[str, Any] = {
        "source": SourceRecord.of(path, Path(out), files.digest),
        "vocabulary": vocabulary_digest(tokenizer.backend.get_vocab(with_added_tokens=True)),
        "beside": {name: content for name, content in companions.items() if name not in _OF_MODEL},
    }
    if adapters is not None:
        _write_streaming(Path(out), files, adapters, asked, about, say)
        return
    from edgespec.runtimes.torch.dense import DenseTensors  # torch: seconds

    with DenseTensors(files, _reading(files.table.nbytes, say)) as tensors:

        def tensor(name: str) -> NDArray[np.float32]:
            return tensors.angles() if name == ROPE else tensors.tensor(name)

        rows, positions = static_shapes(asked, files.config.max_context)
        if asked.engine == "coreml":
            from edgespec.runtimes.coreml.export import write_coreml
            from edgespec.runtimes.coreml.graph import Shapes

            kept = positions - slots_in(positions) if asked.stateful else 0
            shapes = Shapes(files.config, positions, kept, "int8" if asked.precision == "int8" else "fp16")
            done = partial(say, "export", unit="parts")
            write_coreml(Path(out), shapes, tensor, **about, rows=rows, progress=done)
            return
        design = Design(files.config, cast(Precision, asked.precision or "fp32"), rows, positions)
        write_exported(Path(out), design, tensor, **about, progress=partial(say, "export"))


def check_exportable(adapters: Path) -> None:
    """Raises OptionError for a trained drafter that no other engine can run, with the reason."""
    kind = trained_kind(adapters)
    if kind in UNEXPORTED:
        raise OptionError(f"{adapters} is not exported: {UNEXPORTED[kind]}", "adapters")


def static_shapes(asked: ExportOptions, context: int) -> tuple[list[int], int]:
    """Rows of passes, ascending, and positions, for a model of so many; [] and 0 = any."""
    rows = asked.rows or (CORE_ML_ROWS if asked.engine == "coreml" else 0)
    if not rows:
        return [], 0
    positions = asked.positions or min(POSITIONS, context)
    if asked.stateful:
        positions = -(-positions // STATEFUL_UNIT) * STATEFUL_UNIT
    return sorted({rows, max(rows, PROMPT_ROWS)}), positions


def _reading(total: int, say: Callable[[str, int, int], None]) -> Callable[[int], None]:
    """Tells bytes read of so many."""
    read = 0

    def advance(nbytes: int) -> None:
        nonlocal read
        read += nbytes
        say("load", read, total)

    return advance


def _write_streaming(
    out: Path,
    files: ModelFiles,
    adapters: Path,
    asked: ExportOptions,
    about: dict[str, Any],
    say: Callable[[str, int, int], None],
) -> None:
    """Write the streaming drafter in `adapters`, with embedding and head of its target. Raises as
    `describe_module`."""
    from edgespec.runtimes.torch.dense import DenseTensors  # torch: seconds
    from edgespec.runtimes.torch.streaming import KIND, StreamingShape, streaming_shapes
    from edgespec.runtimes.torch.streaming_tensors import StreamingTensors, exported_config, lookahead
    from edgespec.runtimes.torch.trained_files import describe_module

    module = describe_module(adapters, KIND, StreamingShape, streaming_shapes, files)
    trained = SourceRecord.of(adapters, out, module.digest or file_digest(module.path))
    config = exported_config(files.config, module.shape)
    shapes = static_shapes(asked, config.max_context)
    design = Design(config, cast(Precision, asked.precision or "fp32"), *shapes, lookahead(module.shape))
    read = _reading(sum(chunk.nbytes for chunk in files.table.end()), say)
    with DenseTensors(files, read, layers=0) as target:
        tensors = StreamingTensors(target, module)

        def tensor(name: str) -> NDArray[np.float32]:
            return target.angles() if name == ROPE else tensors.tensor(name)

        write_exported(out, design, tensor, **about, trained=trained, progress=partial(say, "export"))
