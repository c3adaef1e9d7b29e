"""A trained drafter that is one module, on disk: its manifest, and one safetensors file of its parameters.

    {"format": 1, "kind": "eagle", "target": {...}, (see `formats.trained`)
     "file": "eagle.safetensors", "shape": {...}, "training": {...}, "digest": of the file}

`shape` is the kind's own, a frozen msgspec.Struct of bounded numbers that forbids unknown fields: what else,
beside the target, the parameters' shapes follow from. (A cascade has several modules: `adapter_files`.)
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Generic, TypeVar

import msgspec
import torch
from safetensors.torch import save_file
from torch import nn

from edgespec.devices.files import replacing
from edgespec.errors import CorruptFileError, StorageError
from edgespec.kernels.matmul import typed
from edgespec.offload.chunks import TensorSource
from edgespec.offload.digest import check_file, file_digest
from edgespec.offload.reader import DirectFile
from edgespec.runtimes.config import ModelConfig
from edgespec.runtimes.formats.describe import ModelFiles
from edgespec.runtimes.formats.trained import (
    FORMAT,
    MANIFEST,
    FileDigest,
    TrainedManifest,
    agreement,
    checked_tensors,
    read_manifest,
    target_record,
    write_manifest,
)

S = TypeVar("S", bound=msgspec.Struct)

Shapes = Callable[[ModelConfig, S], Mapping[str, tuple[int, ...]]]
"""The shape of each parameter, by name, for this target and the drafter's own numbers. Raises ValueError for
numbers that cannot be with this target."""


class ModuleManifest(TrainedManifest, forbid_unknown_fields=True):
    file: str
    shape: dict[str, Any]
    training: dict[str, Any]  # steps, tokens, options, held-out agreement; for people
    digest: FileDigest | None = None  # of what was trained before there were any, and is not checked


@dataclass(frozen=True)
class TrainedFile:
    """One module's parameters on disk, known by their headers and fit for their target.

    digest: of the file, as the manifest has it; None = it has none.
    """

    path: Path
    tensors: Mapping[str, TensorSource]
    training: Mapping[str, Any]
    digest: str | None

    @property
    def nbytes(self) -> int:
        """Bytes as stored."""
        return sum(t.nbytes for t in self.tensors.values())

    @property
    def agreement(self) -> float | None:
        """How often it agreed with the target on held-out text, if its training says."""
        return agreement(self.training)

    def check(self) -> None:
        """Raises CorruptFileError where the file is not the one that the manifest is of, StorageError."""
        if self.digest is not None:
            check_file(self.path, self.digest, "train anew")

    def read(self, module: nn.Module) -> None:
        """Read all parameters into a module that has them uninitialised, as its own types, and let them be
        trained no more. Raises as `check`."""
        self.check()
        module.requires_grad_(False)
        file = DirectFile(self.path)
        try:
            for name, parameter in module.named_parameters():
                source = self.tensors[name]
                raw = torch.frombuffer(file.read(source.offset, source.nbytes), dtype=torch.uint8)
                parameter.copy_(typed(raw, source.encoding, source.shape))
        finally:
            file.close()


@dataclass(frozen=True)
class ModuleFile(TrainedFile, Generic[S]):
    """All that a trained drafter is, with its own numbers."""

    shape: S


def describe_module(
    directory: Path,
    kind: str,
    shape: type[S],
    shapes: Shapes[S],
    files: ModelFiles,
    fitting: bool = True,
) -> ModuleFile[S]:
    """The module in a directory; reads headers only.

    shape: what the manifest's own numbers are to be; shapes: what follows from them.
    fitting: only for this very target; else another's of the same shape will do, to train on from.

    Raises as `formats.trained.read_manifest` and `checked_tensors`.
    """
    manifest = read_manifest(directory, kind, ModuleManifest, files, fitting)
    try:
        own = msgspec.convert(manifest.shape, type=shape)
        wanted = shapes(files.config, own)
    except (msgspec.ValidationError, ValueError) as error:
        raise CorruptFileError(f"{Path(directory) / MANIFEST} is not a sound manifest: {error}") from None
    path, tensors = checked_tensors(Path(directory), manifest.file, wanted)
    return ModuleFile(path, tensors, manifest.training, manifest.digest, own)


def save_module(
    directory: Path,
    kind: str,
    shape: msgspec.Struct,
    module: nn.Module,
    files: ModelFiles,
    training: Mapping[str, Any],
    dtype: torch.dtype,
) -> None:
    """Write a module, its parameters as `dtype`, and its manifest; a kill leaves the files as they were
    before, or complete, or, just between the two, such that they are refused. Raises StorageError."""
    name = f"{kind}.safetensors"
    own = msgspec.to_builtins(shape)
    try:
        directory.mkdir(parents=True, exist_ok=True)
        digest = write_parameters(directory / name, module, dtype)
        about = kind, target_record(files), name, own, dict(training), digest
        write_manifest(directory, ModuleManifest(FORMAT, *about))
    except OSError as error:
        raise StorageError(f"{directory} cannot be written: {error.strerror}") from None


def write_parameters(path: Path, module: nn.Module, dtype: torch.dtype) -> str:
    """Write all parameters of a module, as `dtype`; a kill leaves the file as it was before, or complete.
    Returns its digest. Raises OSError and StorageError."""
    stored = {name: p.detach().to("cpu", dtype).contiguous() for name, p in module.named_parameters()}
    with replacing(path) as temporary:
        save_file(stored, temporary, metadata={"format": "pt"})
        return file_digest(temporary)


def free_parameters(module: nn.Module) -> None:
    """Let the memory of all parameters go; the module can be used no more."""
    for parameter in module.parameters():
        parameter.data = parameter.data.new_empty(0)


def parameter_bytes(shapes: Mapping[str, tuple[int, ...]], element: int) -> int:
    """Bytes of parameters of these shapes, of `element`-byte numbers."""
    return sum(torch.Size(shape).numel() for shape in shapes.values()) * element
