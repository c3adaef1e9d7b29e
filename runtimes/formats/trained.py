"""What a directory of a trained drafter says of itself: its kind, and the one target that it fits. No torch.

    DIR/adapter.json    {"format": 1, "kind": "cascade", "target": {"digest", "precision", ...}, ...}

The rest of the manifest is the kind's own; the parameters lie beside it in safetensors files. All of them are
hostile until checked: bounded, no pickle, every tensor of exactly the shape that target and manifest ask for.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from pathlib import Path
from typing import Annotated, TypeVar

import msgspec

from edgespec.devices.files import read_bounded, replacing
from edgespec.errors import Call, CorruptFileError, EdgeSpecError, ModelError, UnsupportedModelError
from edgespec.offload.chunks import TensorSource
from edgespec.offload.safetensors_header import read_header
from edgespec.offload.strict_json import is_file_name, parse_manifest
from edgespec.runtimes.formats.describe import ModelFiles

MANIFEST = "adapter.json"
FORMAT = 1
_LIMIT = 2**20  # bytes of a manifest

Count = Annotated[int, msgspec.Meta(ge=1, le=2**24)]
FileDigest = Annotated[str, msgspec.Meta(pattern="^[0-9a-f]{32}$")]  # XXH3-128; see `offload.digest`
KindName = Annotated[str, msgspec.Meta(pattern="^[a-z]{1,32}$")]


class TargetRecord(msgspec.Struct, forbid_unknown_fields=True):
    """Which target, and the shape that a drafter's tensors follow from."""

    digest: str
    precision: str  # "source" of a bf16 checkpoint is "bf16", so that a packed copy of it is the same target
    name: str  # for people; not compared
    hidden_size: Count
    layers: Count
    heads: Count
    kv_heads: Count
    head_dim: Count


class _Head(msgspec.Struct):
    """What all manifests begin with, whatever follows."""

    format: int
    kind: KindName


class TrainedManifest(_Head, forbid_unknown_fields=True):
    """What the manifest of every kind has; a kind's own has more."""

    target: TargetRecord


M = TypeVar("M", bound=TrainedManifest)


def trained_kind(directory: Path) -> str | None:
    """The kind of drafter in a directory, as its manifest says; None where none can be read, which
    `read_manifest` then explains."""
    try:
        return _read_head(Path(directory) / MANIFEST)[1].kind
    except (EdgeSpecError, OSError):
        return None


class _Digested(_Head):
    digest: FileDigest | None = None


def trained_digest(directory: Path) -> str | None:
    """Of the parameters in a directory, as its manifest says; None where it says none. Raises as
    `read_bounded`, CorruptFileError."""
    path = Path(directory) / MANIFEST
    return parse_manifest(read_bounded(path, _LIMIT), path, _Digested).digest


def how_to_train(kind: str, files: ModelFiles) -> Call:
    """What makes a drafter of this kind for a model."""
    return _training(kind, str(files.path))


def _training(kind: str, model: str) -> Call:
    return Call(f"train_{kind}", {"model": model, "data": "TEXT", "out": "DIR"})


def read_manifest(
    directory: Path, kind: str, manifest: type[M], files: ModelFiles, fitting: bool = True
) -> M:
    """The manifest of a drafter of this kind for this target.

    fitting: only for this very target; else another's of the same shape will do, to train on from.

    Raises ModelError when it is missing, of another kind, or was trained for another target or precision,
    UnsupportedModelError for another format, CorruptFileError for anything unsound, StorageError.
    """
    path = Path(directory) / MANIFEST
    if not path.is_file():
        if not Path(directory).exists():
            raise ModelError(f"{directory} does not exist; name a directory of adapters")
        raise ModelError(f"{directory} has no {MANIFEST}; train adapters", hint=how_to_train(kind, files))
    raw, head = _read_head(path)
    if head.kind != kind:
        raise ModelError(
            f"{path} is of drafter {head.kind}, not {kind}; use drafter={head.kind}, or train some",
            hint=how_to_train(kind, files),
        )
    found = parse_manifest(raw, path, manifest)
    _check_target(path, kind, found.target, target_record(files), fitting)
    return found


def _read_head(path: Path) -> tuple[bytes, _Head]:
    raw = read_bounded(path, _LIMIT)
    head = parse_manifest(raw, path, _Head)
    if head.format != FORMAT:
        raise UnsupportedModelError(
            f"{path} has format {head.format}, this EdgeSpec reads format {FORMAT}; train the adapters again"
        )
    return raw, head


def write_manifest(directory: Path, manifest: TrainedManifest) -> None:
    """Write a manifest whole or not at all. Raises OSError."""
    text = json.dumps(msgspec.to_builtins(manifest), indent=1) + "\n"
    with replacing(directory / MANIFEST) as temporary:
        temporary.write_text(text, encoding="utf-8")


def target_record(files: ModelFiles) -> TargetRecord:
    """What a drafter for this target says of it."""
    c, precision = files.config, files.table.precision
    if precision == "source":
        precision = {"bfloat16": "bf16", "float16": "fp16", "float32": "fp32"}[c.dtype]
    name = files.path.name
    return TargetRecord(
        files.digest, precision, name, c.hidden_size, c.layers, c.heads, c.kv_heads, c.head_dim
    )


def _check_target(path: Path, kind: str, found: TargetRecord, wanted: TargetRecord, fitting: bool) -> None:
    if fitting and found.digest != wanted.digest:
        raise ModelError(
            f"{path}: the adapters were trained for {found.name[:200]!r} (digest {found.digest[:32]}), "
            f"not for {wanted.name!r} (digest {wanted.digest}); train some for it",
            hint=_training(kind, "MODEL"),
        )
    if fitting and found.precision != wanted.precision:
        raise ModelError(
            f"{path}: the adapters were trained for the target at precision {found.precision[:20]}, this one "
            f"is {wanted.precision}; use that target, or train adapters for this one"
        )
    shape = ("hidden_size", "layers", "heads", "kv_heads", "head_dim")
    if wrong := [name for name in shape if getattr(found, name) != getattr(wanted, name)]:
        raise CorruptFileError(
            f"{path}: {wrong[0]} is {getattr(found, wrong[0])}, the target's is {getattr(wanted, wrong[0])}"
        )


def checked_tensors(
    directory: Path, name: str, shapes: Mapping[str, tuple[int, ...]]
) -> tuple[Path, dict[str, TensorSource]]:
    """The safetensors file that a manifest names, and where its tensors lie: exactly those of `shapes`, of
    floating point. Raises CorruptFileError for anything else, ModelError where there is no file."""
    if not is_file_name(name):
        raise CorruptFileError(f"{directory / MANIFEST} names {name[:200]!r}, which is not a file beside it")
    path = directory / name
    tensors, _ = read_header(path)
    if tensors.keys() != shapes.keys():
        missing, beyond = sorted(shapes.keys() - tensors.keys()), sorted(tensors.keys() - shapes.keys())
        raise CorruptFileError(
            f"{path} does not hold what {MANIFEST} and the target ask for: it lacks {missing[:3]}, and has "
            f"{beyond[:3]} beyond that"
        )
    for tensor_name, shape in shapes.items():
        tensor = tensors[tensor_name]
        if tensor.shape != shape or tensor.encoding not in ("F32", "F16", "BF16"):
            raise CorruptFileError(
                f"{path}: {tensor_name} is {tensor.encoding} {list(tensor.shape)}, the target asks for "
                f"{list(shape)}"
            )
    return path, tensors


def agreement(training: Mapping[str, object]) -> float | None:
    """How often a drafter agreed with the target on held-out text, if what it says of its training tells."""
    found = training.get("held_out")
    share = found.get("agreement") if isinstance(found, dict) else None
    return share if isinstance(share, float) else None
