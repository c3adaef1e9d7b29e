"""A cascade's adapters on disk: its manifest, and one small safetensors file for each adapter.

{"format": 1, "kind": "cascade", "target": {...}, (see `formats.trained`)
 "adapters": [{"role": "draft", "depth": 3, "file": "draft-3.safetensors", "training": {...},
               "digest": of the file}, ...]}
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated, Any, Literal

import msgspec
import torch

from edgespec.errors import CorruptFileError, StorageError
from edgespec.runtimes.config import ModelConfig
from edgespec.runtimes.formats.describe import ModelFiles
from edgespec.runtimes.formats.trained import (
    FORMAT,
    MANIFEST,
    Count,
    FileDigest,
    TrainedManifest,
    checked_tensors,
    read_manifest,
    target_record,
    write_manifest,
)
from edgespec.runtimes.torch.adapter import Adapter, parameter_shapes
from edgespec.runtimes.torch.blocks import CPU
from edgespec.runtimes.torch.trained_files import TrainedFile, write_parameters

KIND = "cascade"
ROLES = ("draft", "verify")
_MOST = 64  # adapters in a directory

Role = Literal["draft", "verify"]


class AdapterRecord(msgspec.Struct, forbid_unknown_fields=True):
    role: Role
    depth: Count
    file: str
    training: dict[str, Any]  # steps, tokens, loss, held-out agreement; for people
    digest: FileDigest | None = None  # see `trained_files.ModuleManifest`


class CascadeManifest(TrainedManifest, forbid_unknown_fields=True):
    adapters: Annotated[list[AdapterRecord], msgspec.Meta(min_length=1, max_length=_MOST)]


@dataclass(frozen=True)
class AdapterFile(TrainedFile):
    """One adapter on disk."""

    role: Role
    depth: int

    def open(self, config: ModelConfig, dtype: torch.dtype, device: torch.device = CPU) -> Adapter:
        """Read the parameters, as `dtype` (the target's activations'). Raises as `read`."""
        adapter = Adapter(config, self.depth, dtype, device)
        self.read(adapter)
        return adapter


def describe_adapters(directory: Path, files: ModelFiles, fitting: bool = True) -> list[AdapterFile]:
    """The adapters of a directory, shallowest first; reads headers only.

    fitting: only those for this very target; else another's of the same shape will do, to train on from.

    Raises as `formats.trained.read_manifest` and `checked_tensors`.
    """
    manifest = read_manifest(directory, KIND, CascadeManifest, files, fitting)
    path, adapters = Path(directory) / MANIFEST, []
    for record in manifest.adapters:
        if record.depth >= files.config.layers:
            raise CorruptFileError(
                f"{path}: an adapter behind {record.depth} layers cannot be: the target has "
                f"{files.config.layers}, and the last needs none"
            )
        file, tensors = checked_tensors(Path(directory), record.file, parameter_shapes(files.config))
        adapters.append(AdapterFile(file, tensors, record.training, record.digest, record.role, record.depth))
    if len({(a.role, a.depth) for a in adapters}) != len(adapters):
        raise CorruptFileError(f"{path} has two adapters of one role and depth")
    return sorted(adapters, key=lambda a: (a.depth, a.role))


def save_adapters(
    directory: Path,
    files: ModelFiles,
    adapters: Sequence[tuple[Role, Adapter, Mapping[str, Any]]],
    dtype: torch.dtype,
) -> None:
    """Write (role, adapter, training facts) of one target to `directory`, as `dtype`; a kill leaves the files
    as they were before, or complete, or, just between the two, such that they are refused. Raises
    StorageError."""
    records = []
    try:
        directory.mkdir(parents=True, exist_ok=True)
        for role, adapter, training in adapters:
            name = f"{role}-{adapter.depth}.safetensors"
            digest = write_parameters(directory / name, adapter, dtype)
            records.append(AdapterRecord(role, adapter.depth, name, dict(training), digest))
        write_manifest(directory, CascadeManifest(FORMAT, KIND, target_record(files), records))
    except OSError as error:
        raise StorageError(f"{directory} cannot be written: {error.strerror}") from None
