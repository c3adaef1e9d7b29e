"""An SPD drafter's file. It drafts as a streaming drafter does, all its tracks in this process."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import ClassVar

from edgespec.drafters.resident import Found, Search
from edgespec.drafters.streaming.files import StreamingFiles
from edgespec.runtimes.formats.describe import ModelFiles
from edgespec.runtimes.torch.spd import KIND, Spd, SpdShape
from edgespec.runtimes.torch.streaming import streaming_shapes
from edgespec.runtimes.torch.trained_files import describe_module


def find(search: Search, found: dict[str, Found]) -> SpdFiles:
    """What is in the directory that is named. Raises as `describe_module`."""
    return find_spd(search.given["adapters"], search.files, search.prepares)


def find_spd(directory: Path, files: ModelFiles, prepares: bool) -> SpdFiles:
    """What `train spd` made for these files; `prepares`: see `drafters.resident.Search`."""
    return SpdFiles(files, describe_module(directory, KIND, SpdShape, streaming_shapes, files), prepares)


@dataclass(frozen=True)
class SpdFiles(StreamingFiles):
    """See `drafters.resident.Found`."""

    label = "the SPD drafter"
    kind: ClassVar[str] = KIND
    made = Spd
