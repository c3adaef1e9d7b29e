"""A directory with a model that was exported for Core ML. Needs no torch.

    DIR/exported.json       engine, shapes, whose model and vocabulary it is
    DIR/host.safetensors    what the host reads: angles, and the embedding (F16)
    DIR/model.mlpackage     a function for each number of rows, of the layers and of the LM head, and one that
                            fills the states, if it has some; see `graph`
    DIR/tokenizer.json      and the rest of the tokenizer

All of it is hostile until checked: a package is run only if it has the functions and operations that `graph`
writes, and no weights but its own.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated, Any, Literal

import msgspec

from edgespec.devices.files import read_bounded
from edgespec.errors import Call, CorruptFileError
from edgespec.offload.digest import file_digest
from edgespec.offload.safetensors_header import read_header
from edgespec.offload.strict_json import read_object
from edgespec.runtimes.config import EMBEDDING, ModelConfig
from edgespec.runtimes.coreml.graph import OPERATIONS, Precision, Shapes
from edgespec.runtimes.coreml.package import runtime
from edgespec.runtimes.exported.manifest import ExportRecord, Rows, check_digest, read_export
from edgespec.runtimes.formats.exported import MANIFEST_BYTES
from edgespec.runtimes.formats.trained import FileDigest

HOST = "host.safetensors"
PACKAGE = "model.mlpackage"
FORMAT = 4  # another, when `graph` would write something else
ROPE = "rope"
_PROGRAM = "Data/com.apple.CoreML/model.mlmodel"
_WEIGHTS = "Data/com.apple.CoreML/weights/weight.bin"
_DIGESTED = HOST, f"{PACKAGE}/{_PROGRAM}", f"{PACKAGE}/{_WEIGHTS}"
_BLOB = "@model_path/weights/weight.bin"
_PROGRAM_LIMIT = 2**26
STATE_UNIT = 32  # positions in states are a multiple of that, for the Neural Engine (coremltools issue 2631)


class CoreMLManifest(ExportRecord, forbid_unknown_fields=True):
    """See `exported.manifest.ExportRecord`; all shapes are static. precision: of matrices. kept: positions of
    the cache that are in Core ML's states; 0 = it has none. digests: of the host's file, and of the package's
    program and weights."""

    engine: Literal["coreml"]
    precision: Precision
    kept: Annotated[int, msgspec.Meta(ge=0, lt=2**20, multiple_of=STATE_UNIT)]
    rows: Annotated[list[Rows], msgspec.Meta(min_length=1, max_length=8)]
    positions: Annotated[int, msgspec.Meta(ge=64, le=2**20)]
    digests: tuple[FileDigest, FileDigest, FileDigest]


@dataclass(frozen=True)
class CoreMLExported:
    """A model exported for Core ML, checked. host: by tensor, encoding and place in its file."""

    path: Path
    config: ModelConfig
    manifest: CoreMLManifest
    host: dict[str, tuple[str, int]]

    @property
    def shapes(self) -> Shapes:
        about = self.manifest
        return Shapes(self.config, about.positions, about.kept, about.precision)

    def check_weights(self) -> None:
        """Reads all of them. Raises CorruptFileError where they are not those that were exported, and
        StorageError."""
        for file, known in zip(_DIGESTED, self.manifest.digests, strict=True):
            check_digest(self.path / file, known, self.again)

    @property
    def functions(self) -> set[str]:
        """Of its package, by name."""
        return functions_of(self.manifest)

    @property
    def nbytes(self) -> int:
        """Of the weights that a pass reads."""
        return (self.path / PACKAGE / _WEIGHTS).stat().st_size

    @property
    def cached(self) -> int:
        """Positions of a conversation's caches: the host has all, and the states some of them again."""
        return self.manifest.positions + self.manifest.kept

    @property
    def element(self) -> int:
        """Bytes of a number of the cache."""
        return 2

    @property
    def again(self) -> Call:
        """What exports the model anew."""
        return self.manifest.source.again(self.path)


def digests_of(directory: Path) -> tuple[FileDigest, FileDigest, FileDigest]:
    """See `CoreMLManifest`. Raises StorageError."""
    host, program, weights = (file_digest(directory / file) for file in _DIGESTED)
    return host, program, weights


def function_names(rows: int) -> tuple[str, str]:
    """Of the layers and of the LM head."""
    return f"layers_{rows}", f"head_{rows}"


def functions_of(manifest: CoreMLManifest) -> set[str]:
    """All that its package has, by name."""
    found = {name for rows in manifest.rows for name in function_names(rows)}
    return found | ({keep_name(manifest.rows[-1])} if manifest.kept else set())


def keep_name(rows: int) -> str:
    """Of what puts so many rows into the states."""
    return f"keep_{rows}"


def open_coreml(path: Path) -> CoreMLExported:
    """The exported model in a directory; reads no weights.

    Raises ModelError where it is none or its source has changed, UnsupportedModelError for another format,
    CorruptFileError for anything unsound, StorageError, MissingExtraError.
    """
    manifest, config = read_export(path, FORMAT, CoreMLManifest)
    if manifest.kept >= manifest.positions:
        raise CorruptFileError(
            f"{path} has {manifest.kept} of {manifest.positions} positions in states; export again"
        )
    tensors, _ = read_header(path / HOST)
    wanted = {
        ROPE: ("F32", (config.head_dim // 2,)),
        EMBEDDING: ("F16", (config.vocab_size, config.hidden_size)),
    }
    if {name: (t.encoding, t.shape) for name, t in tensors.items()} != wanted:
        raise CorruptFileError(f"{path / HOST} does not hold what its manifest names; export again")
    _check_package(path / PACKAGE, functions_of(manifest))
    manifest.source.check(path, manifest.source.again(path))
    host = {name: (t.encoding, t.offset) for name, t in tensors.items()}
    return CoreMLExported(path, config, manifest, host)


def _check_package(package: Path, functions: set[str]) -> None:
    """Raises CorruptFileError for a package that is not one of ours."""
    runtime()  # quietly
    from coremltools.proto import Model_pb2

    def refuse(why: str) -> CorruptFileError:
        return CorruptFileError(
            f"{package} is not what EdgeSpec writes ({why}), so it is not run; export again"
        )

    files = {
        p.relative_to(package).as_posix() for p in package.rglob("*") if not p.is_dir() or p.is_symlink()
    }
    if files != {"Manifest.json", _PROGRAM, _WEIGHTS} or any(p.is_symlink() for p in package.rglob("*")):
        raise refuse(f"its files are {sorted(files)[:5]}")
    listed = read_object(package / "Manifest.json", MANIFEST_BYTES)
    entries = listed.get("itemInfoEntries")
    paths = (
        {e.get("path") for e in entries.values() if isinstance(e, dict)}
        if isinstance(entries, dict)
        else set()
    )
    if paths != {"com.apple.CoreML/model.mlmodel", "com.apple.CoreML/weights"}:
        raise refuse("its manifest names other files")
    spec = Model_pb2.Model()
    try:
        spec.ParseFromString(read_bounded(package / _PROGRAM, _PROGRAM_LIMIT))
    except Exception as error:  # of protobuf's
        raise refuse(str(error)) from None
    if spec.WhichOneof("Type") != "mlProgram" or set(spec.mlProgram.functions) != functions:
        raise refuse("it has other functions")
    for function in spec.mlProgram.functions.values():
        for block in function.block_specializations.values():
            for op in block.operations:
                if op.type not in OPERATIONS or op.blocks:
                    raise refuse(f"an operation {op.type[:40]!r} in it")
    for named in _blobs(spec):
        if named != _BLOB:
            raise refuse(f"weights in {named[:80]!r}")


def _blobs(message: Any) -> Iterator[str]:
    """The files that a protobuf message names anywhere for weights, however deep."""
    if message.DESCRIPTOR.name == "BlobFileValue":
        yield message.fileName
    for field, value in message.ListFields():
        if field.type != field.TYPE_MESSAGE:
            continue
        if hasattr(value, "ListFields"):
            value = [value]
        elif hasattr(value, "values"):
            value = [
                inner for inner in value.values() if hasattr(inner, "ListFields")
            ]  # of a map; no numbers
        for inner in value:
            yield from _blobs(inner)
