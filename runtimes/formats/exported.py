"""What a directory with an exported model says of itself first: which engine runs it. Needs no torch."""

from __future__ import annotations

from pathlib import Path

import msgspec

from edgespec.devices.files import read_bounded
from edgespec.errors import EdgeSpecError

MANIFEST = "exported.json"
MANIFEST_BYTES = 2**20  # at most


class ExportHead(msgspec.Struct):
    """What the manifest of every engine has."""

    format: int
    engine: str


def is_exported(path: Path) -> bool:
    """Whether a path looks like an exported model; whoever opens it says whether it is a sound one."""
    return (path / MANIFEST).is_file()


def exported_engine(path: Path) -> str | None:
    """The engine that runs the model in a directory, as its manifest says; None where none can be read."""
    try:
        return msgspec.json.decode(read_bounded(path / MANIFEST, MANIFEST_BYTES), type=ExportHead).engine
    except (EdgeSpecError, OSError, msgspec.MsgspecError):
        return None
