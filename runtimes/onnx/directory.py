"""A directory with an exported model: what it says of itself, and whether that is so. Needs no torch.

    DIR/exported.json           engine, precision, opset, shapes, whose model and vocabulary it is
    DIR/weights.safetensors     see `layout`
    DIR/layers.onnx, head.onnx  see `graph`; with static shapes a pair for each number of rows
    DIR/tokenizer.json          and the rest of the tokenizer

All of it is hostile until checked. Graphs are run only if they are, byte for byte, what `graph` writes for
such a model: so no file can name another, nor a library, nor operations that multiply memory.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Literal

from edgespec.devices.files import read_bounded
from edgespec.errors import Call, CorruptFileError, UnsupportedModelError
from edgespec.offload.safetensors_header import read_header
from edgespec.runtimes.config import ModelConfig
from edgespec.runtimes.exported.manifest import ExportRecord, read_export
from edgespec.runtimes.onnx.graph import OPSET, GraphBuilder, head_graph, layers_graph
from edgespec.runtimes.onnx.layout import Stored, stored_tensors

WEIGHTS = "weights.safetensors"
FORMAT = 2  # another, when `graph` or `layout` would write something else
_GRAPH_LIMIT = 2**26  # of a graph; 200 layers take 2 MB

Precision = Literal["fp32", "fp16", "int8"]


class ExportManifest(ExportRecord, forbid_unknown_fields=True):
    """See `exported.manifest.ExportRecord`."""

    engine: Literal["onnx"]
    precision: Precision
    opset: int


@dataclass(frozen=True)
class Exported:
    """An exported model, checked."""

    path: Path
    config: ModelConfig
    manifest: ExportManifest
    weights: dict[str, Stored]

    @property
    def nbytes(self) -> int:
        """Of the weights that a pass reads."""
        return sum(stored.nbytes for stored in self.weights.values())

    @property
    def element(self) -> int:
        """Bytes of a number of states, and of the cache."""
        return 2 if self.manifest.precision == "fp16" else 4

    @property
    def buckets(self) -> Sequence[int | None]:
        """Rows of a pass that there is a graph for; None = any."""
        return self.manifest.rows or (None,)

    def graphs(self, rows: int | None) -> tuple[bytes, bytes]:
        """The layers and the LM head for so many rows, as they are run. Raises CorruptFileError where the
        files are others, ModelError and StorageError."""
        made = make_graphs(self.config, self.manifest.precision, self.weights, rows, self.manifest.positions)
        for name, wanted in zip(graph_names(rows), made, strict=True):
            if read_bounded(self.path / name, _GRAPH_LIMIT) != wanted:
                raise CorruptFileError(
                    f"{self.path / name} is not what EdgeSpec writes for this model, so it is not run; "
                    "export the model again",
                    hint=self.again,
                )
        return made

    @property
    def again(self) -> Call:
        """What exports the model anew."""
        return self.manifest.source.again(self.path)


def open_exported(path: Path) -> Exported:
    """The exported model in a directory; reads no weights.

    Raises ModelError where it is none or its source has changed, UnsupportedModelError for another format or
    opset, CorruptFileError for anything unsound, StorageError.
    """
    manifest, config = read_export(path, FORMAT, ExportManifest)
    if manifest.opset != OPSET:
        raise UnsupportedModelError(
            f"{path} was exported with opset {manifest.opset}, this EdgeSpec runs {OPSET}; export the model "
            "again"
        )
    exported = Exported(path, config, manifest, _stored(path / WEIGHTS, config, manifest.precision))
    manifest.source.check(path)
    return exported


def _stored(path: Path, config: ModelConfig, precision: str) -> dict[str, Stored]:
    """Where the tensors lie: exactly those that such a model has. Raises as `read_header`."""
    tensors, _ = read_header(path)
    wanted = stored_tensors(config, precision)
    if {name: (t.encoding, t.shape) for name, t in tensors.items()} != wanted:
        wrong = sorted(tensors.keys() ^ wanted.keys())[:3] or "shapes"
        raise CorruptFileError(
            f"{path} does not hold the weights that its manifest names ({wrong}); export again"
        )
    return {name: Stored(t.encoding, t.shape, t.offset) for name, t in tensors.items()}


def graph_names(rows: int | None) -> tuple[str, str]:
    """Files of the layers and of the LM head."""
    return ("layers.onnx", "head.onnx") if rows is None else (f"layers-{rows}.onnx", f"head-{rows}.onnx")


def make_graphs(
    config: ModelConfig, precision: str, weights: dict[str, Stored], rows: int | None, positions: int
) -> tuple[bytes, bytes]:
    """The layers and the LM head, for so many rows and positions; None and 0 = any."""

    def build() -> GraphBuilder:
        return GraphBuilder(precision, WEIGHTS, weights)

    return layers_graph(config, build(), rows, positions or None), head_graph(config, build(), rows)
