"""Writing a model for Core ML: on any system that coremltools is for. Needs no torch; who has the weights
gives them."""

from __future__ import annotations

import json
import shutil
from collections.abc import Callable, Mapping, Sequence
from contextlib import redirect_stderr
from dataclasses import replace
from functools import partial
from io import StringIO
from pathlib import Path
from typing import Any

import msgspec
import numpy as np
from numpy.typing import NDArray

from edgespec.errors import ModelError
from edgespec.offload.safetensors_header import HeaderEntry, build_header
from edgespec.runtimes.config import EMBEDDING
from edgespec.runtimes.coreml.directory import (
    FORMAT,
    HOST,
    PACKAGE,
    ROPE,
    CoreMLManifest,
    digests_of,
    function_names,
    keep_name,
)
from edgespec.runtimes.coreml.graph import Shapes, head_program, keep_program, layers_program
from edgespec.runtimes.coreml.package import runtime
from edgespec.runtimes.exported.source import SourceRecord
from edgespec.runtimes.formats.exported import MANIFEST
from edgespec.runtimes.formats.whole import new_directory

PARTS = "parts"  # packages of one function each, until they are put together


def write_coreml(
    out: Path,
    shapes: Shapes,
    read: Callable[[str], NDArray[np.float32]],
    *,
    rows: Sequence[int],
    source: SourceRecord,
    vocabulary: str,
    beside: Mapping[str, bytes],
    progress: Callable[[int, int], None] = lambda done, total: None,
) -> None:
    """Write a model to the new directory `out`; arguments as `onnx.export.write_exported`. rows: of passes,
    ascending. progress: gets functions done, and in all.

    A function's weights are in memory several times while it is converted. Raises MissingExtraError,
    ModelError for a weight beyond fp16, and as `new_directory` and `read`.
    """
    ct = runtime()
    config = replace(shapes.config, rope=replace(shapes.config.rope, interleaved=False))
    shapes = replace(shapes, config=config)

    def checked(name: str) -> NDArray[np.float32]:
        found = read(name)
        if not (np.abs(found) <= np.finfo(np.float16).max).all():
            raise ModelError(f"{name} has a weight beyond fp16, which Core ML computes in; use engine=onnx")
        return found

    weights = sum(a * b for layer in range(config.layers) for a, b in config.matrix_shapes(layer).values())
    embedding = config.vocab_size * config.hidden_size
    nbytes = 2 * (weights + 2 * embedding) * (len(rows) + 1)  # each function by itself first
    with new_directory(out, {HOST, PACKAGE, PARTS, MANIFEST, *beside}, nbytes) as work:
        for name, content in beside.items():
            (work / name).write_bytes(content)
        host = {ROPE: read(ROPE).astype("<f4"), EMBEDDING: checked(EMBEDDING).astype("<f2")}
        _write_host(work / HOST, host)
        descriptor = ct.utils.MultiFunctionDescriptor()
        parts = work / PARTS
        parts.mkdir()
        functions: dict[str, Callable[[], Any]] = {}
        for bucket in rows:
            layers, head = function_names(bucket)
            functions[layers] = partial(layers_program, shapes, checked, bucket)
            functions[head] = partial(head_program, shapes, checked, bucket)
        if shapes.kept:
            functions[keep_name(rows[-1])] = partial(keep_program, shapes, rows[-1])
        for done, (name, program) in enumerate(functions.items(), 1):
            path = str(parts / f"{name}.mlpackage")
            _converted(ct, program()).save(path)
            descriptor.add_function(path, src_function_name="main", target_function_name=name)
            progress(done, len(functions))
        descriptor.default_function_name = function_names(rows[0])[0]
        with redirect_stderr(StringIO()):
            ct.utils.save_multifunction(descriptor, str(work / PACKAGE))
        shutil.rmtree(parts)
        manifest = CoreMLManifest(
            format=FORMAT, engine="coreml", precision=shapes.precision, rows=list(rows),
            positions=shapes.positions, kept=shapes.kept, vocabulary=vocabulary, source=source,
            config=config.to_dict(), digests=digests_of(work),
        )  # fmt: skip
        (work / MANIFEST).write_bytes((json.dumps(msgspec.to_builtins(manifest), indent=1) + "\n").encode())


def _converted(ct: Any, program: Any) -> Any:
    """A program as a package with one function. It is as it is to be: no pass rewrites it."""
    with redirect_stderr(StringIO()):  # bars
        return ct.convert(
            program,
            convert_to="mlprogram",
            minimum_deployment_target=ct.target.iOS18,
            compute_units=ct.ComputeUnit.CPU_AND_NE,
            pass_pipeline=ct.PassPipeline.EMPTY,
            skip_model_load=True,
        )


def _write_host(path: Path, tensors: Mapping[str, NDArray[Any]]) -> None:
    entries, place = [], 0
    for name, array in tensors.items():
        entries.append(
            HeaderEntry(name, "F16" if array.dtype == "<f2" else "F32", array.shape, place, array.nbytes)
        )
        place += array.nbytes
    with open(path, "wb") as file:
        file.write(build_header(iter(entries)))
        for array in tensors.values():
            file.write(np.ascontiguousarray(array).data)
