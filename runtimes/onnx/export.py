"""Writing a model for ONNX Runtime: weights, graphs, manifest, whole or not at all. Needs neither torch nor
`onnx`; who has the weights gives them.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any, BinaryIO

import msgspec
import numpy as np
from numpy.typing import NDArray

from edgespec.errors import ModelError
from edgespec.offload.chunks import SCALE
from edgespec.offload.digest import file_digest
from edgespec.offload.safetensors_header import HeaderEntry, build_header
from edgespec.runtimes.exported.source import SourceRecord
from edgespec.runtimes.formats.exported import MANIFEST, MANIFEST_BYTES
from edgespec.runtimes.formats.whole import new_directory
from edgespec.runtimes.onnx.design import WEIGHTS, Design, graph_name
from edgespec.runtimes.onnx.directory import FORMAT, ExportManifest
from edgespec.runtimes.onnx.graph import OPSET
from edgespec.runtimes.onnx.layout import Stored, quantise

Read = Callable[[str], NDArray[np.float32]]
"""A tensor by canonical name, in the order of Hugging Face's rotation; `layout.ROPE` too. Raises StorageError
and CorruptFileError."""


def write_exported(
    out: Path,
    design: Design,
    read: Read,
    *,
    source: SourceRecord,
    trained: SourceRecord | None = None,
    vocabulary: str,
    beside: Mapping[str, bytes],
    progress: Callable[[int, int], None] = lambda done, total: None,
) -> None:
    """Write a model to the new directory `out`.

    source, trained: see `directory.ExportManifest`. beside: small files for the directory, by name. progress:
    gets bytes done, and in all.

    Raises ModelError for a weight that the precision cannot hold, and as `new_directory` and `read`.
    """
    rope = replace(design.config.rope, interleaved=False)
    design = replace(design, config=replace(design.config, rope=rope))
    stored, header = _placed(design.tensors)
    nbytes = len(header) + sum(tensor.nbytes for tensor in stored.values())
    files = dict(beside)
    for part in design.parts:
        files |= {graph_name(part, rows): design.graph(part, rows, stored) for rows in design.buckets(part)}
    names = {WEIGHTS, MANIFEST, *files}
    with new_directory(out, names, nbytes + MANIFEST_BYTES + sum(map(len, files.values()))) as work:
        with open(work / WEIGHTS, "wb") as file:
            file.write(header)
            _write_weights(file, stored, read, lambda done: progress(done, nbytes - len(header)))
        manifest = ExportManifest(
            format=FORMAT, engine="onnx", precision=design.precision, opset=OPSET, rows=list(design.rows),
            positions=design.positions, vocabulary=vocabulary, source=source, config=design.config.to_dict(),
            lookahead=design.lookahead, trained=trained, digest=file_digest(work / WEIGHTS),
        )  # fmt: skip
        files[MANIFEST] = (json.dumps(msgspec.to_builtins(manifest), indent=1) + "\n").encode()
        for name, content in files.items():
            (work / name).write_bytes(content)


def _placed(tensors: Mapping[str, tuple[str, tuple[int, ...]]]) -> tuple[dict[str, Stored], bytes]:
    """Where tensors lie in their file, one behind the other, and its header."""
    found, place = dict[str, Stored](), 0
    for name, (encoding, shape) in tensors.items():
        found[name] = Stored(encoding, shape, place)
        place += found[name].nbytes
    header = build_header(HeaderEntry(n, s.encoding, s.shape, s.offset, s.nbytes) for n, s in found.items())
    return {n: replace(s, offset=s.offset + len(header)) for n, s in found.items()}, header


def _write_weights(
    file: BinaryIO, stored: Mapping[str, Stored], read: Read, progress: Callable[[int], None]
) -> None:
    done, scales = 0, np.empty(0, np.float32)
    for name, tensor in stored.items():
        array: NDArray[Any]
        if name.endswith(SCALE):
            array = scales  # of the matrix before
        elif tensor.encoding == "U8":
            array, scales = quantise(_finite(name, read(name)))
        else:
            with np.errstate(over="ignore"):  # that is looked for below
                array = _finite(name, read(name)).astype("<f2" if tensor.encoding == "F16" else "<f4")
            if tensor.encoding == "F16":
                _finite(name, array, "at fp16, use fp32")
        if array.shape != tensor.shape:
            raise ModelError(f"{name} has shape {list(array.shape)}, not {list(tensor.shape)}")
        file.write(np.ascontiguousarray(array).data)
        done += tensor.nbytes
        progress(done)


def _finite(name: str, array: NDArray[Any], how: str = "fetch the model again") -> NDArray[Any]:
    """Raises ModelError for weights beyond what can be multiplied."""
    if not np.isfinite(array).all():
        raise ModelError(f"{name} has a weight that is not finite; {how}")
    return array
