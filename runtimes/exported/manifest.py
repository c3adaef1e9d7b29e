"""What a directory with an exported model says of itself, for every engine. Needs no torch."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated, Any, TypeVar

import msgspec

from edgespec.devices.files import read_bounded
from edgespec.errors import Call, CorruptFileError, UnsupportedModelError
from edgespec.offload.digest import check_file
from edgespec.offload.strict_json import parse_manifest
from edgespec.runtimes.config import ModelConfig
from edgespec.runtimes.exported.source import Digest, SourceRecord
from edgespec.runtimes.formats.exported import MANIFEST, MANIFEST_BYTES, ExportHead
from edgespec.runtimes.formats.packed import check_config

MOST_ROWS = 512  # of a pass
Rows = Annotated[int, msgspec.Meta(ge=1, le=MOST_ROWS)]


class ExportRecord(ExportHead, forbid_unknown_fields=True):
    """rows, positions: of static shapes, the rows of a pass (ascending) and the cache's positions; none =
    any. vocabulary: XXH3-128 of the tokens and their ids. An engine's own narrows these, and may have more.
    """

    rows: Annotated[list[Rows], msgspec.Meta(max_length=8)]
    positions: Annotated[int, msgspec.Meta(ge=0, le=2**20)]
    vocabulary: Digest
    source: SourceRecord
    config: dict[str, Any]


M = TypeVar("M", bound=ExportRecord)


def check_digest(path: Path, known: str, again: Call) -> None:
    """Reads a file of an export. Raises CorruptFileError where its checksum is not `known`, StorageError."""
    check_file(path, known, "export the model anew", again)


def read_export(path: Path, version: int, kind: type[M]) -> tuple[M, ModelConfig]:
    """The manifest of the export in a directory, and its model.

    Raises ModelError where there is none, UnsupportedModelError for another format than `version`,
    CorruptFileError for anything unsound, StorageError.
    """
    raw, file = read_bounded(path / MANIFEST, MANIFEST_BYTES), path / MANIFEST
    found = parse_manifest(raw, file, ExportHead).format
    if found != version:
        raise UnsupportedModelError(
            f"{file} has format {found}, this EdgeSpec reads format {version}; export the model again"
        )
    manifest = parse_manifest(raw, file, kind)
    try:
        config = ModelConfig.from_dict(manifest.config)
        check_config(config)
        if manifest.rows != sorted(set(manifest.rows)) or bool(manifest.rows) != bool(manifest.positions):
            raise ValueError(f"rows {manifest.rows} with {manifest.positions} positions")
    except ValueError as error:
        raise CorruptFileError(f"{file} is not a sound manifest: {error}") from None
    return manifest, config
