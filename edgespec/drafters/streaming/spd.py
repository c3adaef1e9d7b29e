"""An SPD drafter's file. It drafts as a streaming drafter does, all its tracks in one process."""

from __future__ import annotations

from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import ClassVar

from edgespec.drafters.resident import Found, Search
from edgespec.drafters.streaming.files import StreamingFiles, streaming_model
from edgespec.drafters.worker import run
from edgespec.runtimes.formats.describe import ModelFiles
from edgespec.runtimes.torch.spd import KIND, Spd, SpdShape
from edgespec.runtimes.torch.streaming import streaming_shapes
from edgespec.runtimes.torch.trained_files import describe_module


def find(search: Search, found: dict[str, Found]) -> SpdFiles:
    """What is in the directory that is named. Raises as `describe_module`."""
    return find_spd(search.given["adapters"], search.files, search.prepares, search.worker)


def find_spd(directory: Path, files: ModelFiles, prepares: bool, worker: int | None = None) -> SpdFiles:
    """What `train spd` made for these files; `prepares`, `worker`: see `drafters.resident.Search`."""
    return SpdFiles(
        files, describe_module(directory, KIND, SpdShape, streaming_shapes, files), prepares, worker=worker
    )


@dataclass(frozen=True)
class SpdFiles(StreamingFiles):
    """See `drafters.resident.Found`."""

    label = "the SPD drafter"
    kind: ClassVar[str] = KIND
    program: ClassVar[str] = "edgespec.drafters.streaming.spd:main"
    made = Spd


def main() -> None:
    """What the worker process runs."""
    run(partial(streaming_model, find_spd))
