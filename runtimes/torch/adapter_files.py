"""Adapters on disk: a directory with `adapter.json` and one small safetensors file for each adapter.

    {"format": 1, "kind": "cascade", "target": {"digest", "precision", "name", "hidden_size", "layers", ...},
     "adapters": [{"role": "draft", "depth": 3, "file": "draft-3.safetensors", "training": {...}}, ...]}

Adapters fit one target at one precision only: the manifest has its digest, and others are refused. Both files
are hostile until checked: bounded, no pickle, every tensor of exactly the shape that the target asks for.
"""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated, Any, Literal

import msgspec
import torch
from safetensors.torch import save_file

from edgespec.devices.files import read_bounded, replacing
from edgespec.errors import Call, CorruptFileError, ModelError, StorageError, UnsupportedModelError
from edgespec.kernels.matmul import typed
from edgespec.offload.chunks import TensorSource
from edgespec.offload.reader import DirectFile
from edgespec.offload.safetensors_header import read_header
from edgespec.offload.strict_json import is_file_name, parse_object
from edgespec.runtimes.config import ModelConfig
from edgespec.runtimes.formats.describe import ModelFiles
from edgespec.runtimes.torch.adapter import CPU, Adapter, parameter_shapes

MANIFEST = "adapter.json"
FORMAT = 1
ROLES = ("draft", "verify")
_LIMIT = 2**20  # bytes of a manifest
_MOST = 64  # adapters in a directory

Role = Literal["draft", "verify"]
Count = Annotated[int, msgspec.Meta(ge=1, le=2**24)]


class TargetRecord(msgspec.Struct, forbid_unknown_fields=True):
    """Which target, and the shape that an adapter's tensors follow from."""

    digest: str
    precision: str  # "source" of a bf16 checkpoint is "bf16", so that a packed copy of it is the same target
    name: str  # for people; not compared
    hidden_size: Count
    layers: Count
    heads: Count
    kv_heads: Count
    head_dim: Count


class AdapterRecord(msgspec.Struct, forbid_unknown_fields=True):
    role: Role
    depth: Count
    file: str
    training: dict[str, Any]  # steps, tokens, loss, held-out agreement; for people


class AdapterManifest(msgspec.Struct, forbid_unknown_fields=True):
    format: int
    kind: Literal["cascade"]
    target: TargetRecord
    adapters: Annotated[list[AdapterRecord], msgspec.Meta(min_length=1, max_length=_MOST)]


class _AdaptersVersion(msgspec.Struct):
    format: int


@dataclass(frozen=True)
class AdapterFile:
    """One adapter on disk, known by its header and fit for its target."""

    role: Role
    depth: int
    path: Path
    tensors: Mapping[str, TensorSource]
    training: Mapping[str, Any]

    @property
    def nbytes(self) -> int:
        """Bytes as stored."""
        return sum(t.nbytes for t in self.tensors.values())

    @property
    def agreement(self) -> float | None:
        """How often it agreed with the target on held-out text, if its training says."""
        found = self.training.get("held_out")
        share = found.get("agreement") if isinstance(found, dict) else None
        return share if isinstance(share, float) else None

    def open(self, config: ModelConfig, dtype: torch.dtype, device: torch.device = CPU) -> Adapter:
        """Read the parameters, as `dtype` (the target's activations'). Raises StorageError."""
        adapter = Adapter(config, self.depth, dtype, device).requires_grad_(False)
        file = DirectFile(self.path)
        try:
            for name, parameter in adapter.named_parameters():
                source = self.tensors[name]
                raw = torch.frombuffer(file.read(source.offset, source.nbytes), dtype=torch.uint8)
                parameter.copy_(typed(raw, source.encoding, source.shape))
        finally:
            file.close()
        return adapter


def target_record(files: ModelFiles) -> TargetRecord:
    """What adapters for this target say of it."""
    c, precision = files.config, files.table.precision
    if precision == "source":
        precision = {"bfloat16": "bf16", "float16": "fp16", "float32": "fp32"}[c.dtype]
    name = files.path.name
    return TargetRecord(
        files.digest, precision, name, c.hidden_size, c.layers, c.heads, c.kv_heads, c.head_dim
    )


def how_to_train(files: ModelFiles) -> Call:
    """What makes adapters for a model."""
    return Call("train_cascade", {"model": str(files.path), "data": "TEXT", "out": "DIR"})


def describe_adapters(directory: Path, files: ModelFiles, fitting: bool = True) -> list[AdapterFile]:
    """The adapters of a directory, shallowest first; reads headers only.

    fitting: only those for this very target; else another's of the same shape will do, to train on from.

    Raises ModelError when they are missing or were trained for another target or precision,
    UnsupportedModelError for another format, CorruptFileError for anything unsound, StorageError.
    """
    path = Path(directory) / MANIFEST
    if not path.is_file():
        if not Path(directory).exists():
            raise ModelError(f"{directory} does not exist; name a directory of adapters")
        raise ModelError(f"{directory} has no {MANIFEST}; train adapters", hint=how_to_train(files))
    raw = read_bounded(path, _LIMIT)
    parse_object(raw, str(path))  # names no key twice
    try:
        version = msgspec.json.decode(raw, type=_AdaptersVersion).format
        if version != FORMAT:
            raise UnsupportedModelError(
                f"{path} has format {version}, this EdgeSpec reads format {FORMAT}; train the adapters again"
            )
        manifest = msgspec.json.decode(raw, type=AdapterManifest)
    except msgspec.MsgspecError as error:
        raise CorruptFileError(f"{path} is not a sound manifest: {error}") from None
    _check_target(path, manifest.target, target_record(files), fitting)
    adapters = []
    for record in manifest.adapters:
        if not is_file_name(record.file):
            raise CorruptFileError(f"{path} names {record.file[:200]!r}, which is not a file beside it")
        if record.depth >= files.config.layers:
            raise CorruptFileError(
                f"{path}: an adapter behind {record.depth} layers cannot be: the target has "
                f"{files.config.layers}, and the last needs none"
            )
        tensors = _checked_tensors(Path(directory) / record.file, files.config)
        adapters.append(
            AdapterFile(record.role, record.depth, Path(directory) / record.file, tensors, record.training)
        )
    if len({(a.role, a.depth) for a in adapters}) != len(adapters):
        raise CorruptFileError(f"{path} has two adapters of one role and depth")
    return sorted(adapters, key=lambda a: (a.depth, a.role))


def _check_target(path: Path, found: TargetRecord, wanted: TargetRecord, fitting: bool) -> None:
    if fitting and found.digest != wanted.digest:
        raise ModelError(
            f"{path}: the adapters were trained for {found.name[:200]!r} (digest {found.digest[:32]}), "
            f"not for {wanted.name!r} (digest {wanted.digest}); train some for it",
            hint=Call("train_cascade", {"model": "MODEL", "data": "TEXT", "out": "DIR"}),
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


def _checked_tensors(path: Path, config: ModelConfig) -> dict[str, TensorSource]:
    tensors, _ = read_header(path)
    shapes = parameter_shapes(config)
    if tensors.keys() != shapes.keys():
        raise CorruptFileError(f"{path} holds {sorted(tensors)[:8]}, not an adapter's {sorted(shapes)}")
    for name, shape in shapes.items():
        tensor = tensors[name]
        if tensor.shape != shape or tensor.encoding not in ("F32", "F16", "BF16"):
            raise CorruptFileError(
                f"{path}: {name} is {tensor.encoding} {list(tensor.shape)}, the target asks for {list(shape)}"
            )
    return tensors


def save_adapters(
    directory: Path,
    files: ModelFiles,
    adapters: Sequence[tuple[Role, Adapter, Mapping[str, Any]]],
    dtype: torch.dtype,
) -> None:
    """Write (role, adapter, training facts) of one target to `directory`, as `dtype`; a kill leaves the files
    as they were before, or complete. Raises StorageError."""
    records = []
    try:
        directory.mkdir(parents=True, exist_ok=True)
        for role, adapter, training in adapters:
            name = f"{role}-{adapter.depth}.safetensors"
            state = {k: p.detach().to("cpu", dtype).contiguous() for k, p in adapter.named_parameters()}
            with replacing(directory / name) as temporary:
                save_file(state, temporary, metadata={"format": "pt"})
            records.append(AdapterRecord(role, adapter.depth, name, dict(training)))
        manifest = AdapterManifest(FORMAT, "cascade", target_record(files), records)
        text = json.dumps(msgspec.to_builtins(manifest), indent=1) + "\n"
        with replacing(directory / MANIFEST) as temporary:
            temporary.write_text(text, encoding="utf-8")
    except OSError as error:
        raise StorageError(f"{directory} cannot be written: {error.strerror}") from None
