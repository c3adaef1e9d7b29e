"""What a directory with an exported model says of itself first: which engine runs it. Needs no torch."""

from __future__ import annotations

from pathlib import Path

import msgspec

from edgespec.devices.files import read_bounded
from edgespec.offload.strict_json import parse_manifest

MANIFEST = "exported.json"
MANIFEST_BYTES = 2**20  # at most


class ExportHead(msgspec.Struct):
    """What the manifest of every engine has."""

    format: int
    engine: str


def is_exported(path: Path) -> bool:
    """Whether a path looks like an exported model; whoever opens it says whether it is a sound one."""
    return (path / MANIFEST).is_file()


def exported_engine(path: Path) -> str:
    """The engine that runs the model in a directory, as its manifest says; at most 80 characters. Raises
    CorruptFileError for one that says nothing, StorageError."""
    file = path / MANIFEST
    return parse_manifest(read_bounded(file, MANIFEST_BYTES), file, ExportHead).engine[:80]
