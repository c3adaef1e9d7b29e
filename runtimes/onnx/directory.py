"""A directory with an exported model: what it says of itself, and whether that is so. Needs no torch.

    DIR/exported.json           engine, precision, opset, shapes, whose model and vocabulary it is
    DIR/weights.safetensors     see `layout`
    DIR/layers.onnx, head.onnx  see `graph`; of a drafter with lookahead streams also streams.onnx, and
                                before.onnx where some layers go without; with static shapes one of each for
                                each number of rows
    DIR/tokenizer.json          and the rest of the tokenizer

All of it is hostile until checked. Graphs are run only if they are, byte for byte, what `graph` writes for
such a model: so no file can name another, nor a library, nor operations that multiply memory.
"""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import Literal

from edgespec.devices.files import read_bounded
from edgespec.errors import Call, CorruptFileError, UnsupportedModelError
from edgespec.offload.safetensors_header import read_header
from edgespec.runtimes.config import ModelConfig
from edgespec.runtimes.exported.manifest import ExportRecord, check_digest, read_export
from edgespec.runtimes.exported.source import SourceRecord
from edgespec.runtimes.formats.trained import FileDigest, trained_digest
from edgespec.runtimes.onnx.design import WEIGHTS, Design, Lookahead, Part, Precision, graph_name
from edgespec.runtimes.onnx.graph import OPSET
from edgespec.runtimes.onnx.layout import Stored

FORMAT = 4  # another, when `graph` or `layout` would write something else
_GRAPH_LIMIT = 2**26  # of a graph; 200 layers take 2 MB


class ExportManifest(ExportRecord, forbid_unknown_fields=True):
    """See `exported.manifest.ExportRecord`.

    trained: the drafter that was exported with embedding and head of `source`, its target; None = `source`
    was. digest: of the file of weights, in what was exported since there are any.
    """

    engine: Literal["onnx"]
    precision: Precision
    opset: int
    lookahead: Lookahead | None = None
    trained: SourceRecord | None = None
    digest: FileDigest | None = None


@dataclass(frozen=True)
class Exported:
    """An exported model, checked."""

    path: Path
    manifest: ExportManifest
    design: Design
    weights: dict[str, Stored]

    @property
    def config(self) -> ModelConfig:
        return self.design.config

    @property
    def nbytes(self) -> int:
        """Of the weights that a pass reads."""
        return sum(stored.nbytes for stored in self.weights.values())

    @property
    def cached(self) -> int:
        """Positions of a conversation's cache; 0 = any."""
        return self.manifest.positions

    @property
    def element(self) -> int:
        """Bytes of a number of states, and of the cache."""
        return 2 if self.manifest.precision == "fp16" else 4

    @property
    def streams(self) -> int:
        """Lookahead streams of a row that has some."""
        return self.design.streams

    def check_weights(self) -> None:
        """Reads all of them. Raises CorruptFileError where they are not those that were exported, and
        StorageError."""
        if self.manifest.digest is not None:
            check_digest(self.path / WEIGHTS, self.manifest.digest, self.again)

    def graph(self, part: Part, rows: int | None) -> bytes:
        """A graph as it is run. Raises CorruptFileError where the file is another, ModelError and
        StorageError."""
        made, path = self.design.graph(part, rows, self.weights), self.path / graph_name(part, rows)
        if read_bounded(path, _GRAPH_LIMIT) != made:
            raise CorruptFileError(
                f"{path} is not what EdgeSpec writes for this model, so it is not run; export the model "
                "again",
                hint=self.again,
            )
        return made

    @property
    def again(self) -> Call:
        """What exports the model anew."""
        source, trained = self.manifest.source, self.manifest.trained
        if trained is None:
            return source.again(self.path)
        model, adapters = source.where(self.path) or "MODEL", trained.where(self.path) or "ADAPTERS"
        return Call("export_model", {"model": str(model), "adapters": str(adapters), "out": "DIR"})


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
    if manifest.lookahead is not None and manifest.lookahead.layers > config.layers:
        raise CorruptFileError(
            f"{path} has streams through {manifest.lookahead.layers} of {config.layers} layers; export again"
        )
    shapes = manifest.precision, manifest.rows, manifest.positions
    design = Design(config, *shapes, manifest.lookahead)
    exported = Exported(path, manifest, design, _stored(path / WEIGHTS, design))
    manifest.source.check(path, exported.again)
    if manifest.trained is not None:
        manifest.trained.check(path, exported.again, trained_digest)
    return exported


def _stored(path: Path, design: Design) -> dict[str, Stored]:
    """Where the tensors lie: exactly those that such a model has. Raises as `read_header`."""
    tensors, _ = read_header(path)
    wanted = design.tensors
    if {name: (t.encoding, t.shape) for name, t in tensors.items()} != wanted:
        wrong = sorted(tensors.keys() ^ wanted.keys())[:3] or "shapes"
        raise CorruptFileError(
            f"{path} does not hold the weights that its manifest names ({wrong}); export again"
        )
    return {name: Stored(t.encoding, t.shape, t.offset) for name, t in tensors.items()}
