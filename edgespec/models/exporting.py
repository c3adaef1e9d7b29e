"""Exporting a model by its name: resolve, read, write a directory for another engine, and its tokenizer."""

from __future__ import annotations

from functools import partial
from pathlib import Path
from typing import Any, cast

import numpy as np
from numpy.typing import NDArray

from edgespec.config import with_keywords
from edgespec.drafters.vocabulary import vocabulary_digest
from edgespec.errors import OptionError
from edgespec.models.hub import resolve_model
from edgespec.models.options import ExportOptions
from edgespec.progress import Progress, ProgressCallback
from edgespec.runtimes.coreml.package import package_version as coreml_version
from edgespec.runtimes.exported.source import SourceRecord
from edgespec.runtimes.formats.checkpoint import companions_in
from edgespec.runtimes.formats.describe import describe_model
from edgespec.runtimes.formats.gguf import read_gguf
from edgespec.runtimes.onnx.directory import Precision
from edgespec.runtimes.onnx.export import write_exported
from edgespec.runtimes.onnx.layout import ROPE
from edgespec.text.tokenizer import load_tokenizer

POSITIONS = 2048  # of a cache of static shapes, if nothing else is said
CORE_ML_ROWS = 32  # of a pass, if nothing else is said: fewer take the Neural Engine as long
PROMPT_ROWS = 64  # of static shapes: prompts are read so many at a time
_OF_MODEL = ("config.json", "generation_config.json")  # what is exported has a manifest


def export_model(
    model: str, out: str | Path, *, progress: ProgressCallback | None = None, **options: Any
) -> None:
    """Write `model` (directory, packed or not, hub id or GGUF file) to the directory `out`, for another
    engine to draft with.

    options: the fields of `ExportOptions`: engine, precision, rows, positions.

    All of the model is read into memory, as it is stored; `out` is written whole or not at all.

    Raises OptionError (`out` is not empty or in the model's directory), ModelError, TokenizerError,
    StorageError (too little space, named before anything is written).
    """
    asked = with_keywords(ExportOptions(), options)
    path = resolve_model(str(model), progress)
    files = describe_model(path)
    if path.is_dir() and Path(out).resolve().is_relative_to(path.resolve()):
        raise OptionError(
            f"{out} is in the directory of the model that is exported; choose one outside {path}"
        )
    tokenizer = load_tokenizer(files, path)
    companions = read_gguf(path).companions() if path.is_file() else companions_in(path)
    positions = asked.positions or min(POSITIONS, files.config.max_context)
    if asked.engine == "coreml":
        coreml_version()  # before anything is read
    from edgespec.runtimes.torch.dense import DenseTensors  # torch: seconds

    def say(stage: str, done: int, total: int, unit: str = "bytes") -> None:
        if progress is not None:
            progress(Progress(stage, done, total, unit))

    read, total = 0, files.table.nbytes

    def advance(nbytes: int) -> None:
        nonlocal read
        read += nbytes
        say("load", read, total)

    rows = asked.rows or (CORE_ML_ROWS if asked.engine == "coreml" else 0)
    about: dict[str, Any] = {
        "rows": sorted({rows, max(rows, PROMPT_ROWS)}) if rows else (),
        "positions": positions if rows else 0,
        "source": SourceRecord.of(path, Path(out), files.digest),
        "vocabulary": vocabulary_digest(tokenizer.backend.get_vocab(with_added_tokens=True)),
        "beside": {name: content for name, content in companions.items() if name not in _OF_MODEL},
    }
    with DenseTensors(files, advance) as tensors:

        def tensor(name: str) -> NDArray[np.float32]:
            return tensors.angles() if name == ROPE else tensors.tensor(name)

        if asked.engine == "coreml":
            from edgespec.runtimes.coreml.export import write_coreml

            write_coreml(
                Path(out), files.config, tensor, **about, progress=partial(say, "export", unit="parts")
            )
            return
        about |= {"precision": cast(Precision, asked.precision or "fp32")}
        write_exported(Path(out), files.config, tensor, **about, progress=partial(say, "export"))
