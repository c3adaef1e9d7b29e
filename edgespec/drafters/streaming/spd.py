"""An SPD drafter's file. It drafts as a streaming drafter does: with all its tracks in one process, or, in
processes of its own (`draft_worker`), with equal shares of them in so many."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path
from typing import ClassVar

from edgespec.devices.probe import peak_memory
from edgespec.drafters.channel import Load
from edgespec.drafters.model import DRAFT_ROWS
from edgespec.drafters.opened import Opened
from edgespec.drafters.process import command
from edgespec.drafters.resident import Found, Search
from edgespec.drafters.streaming.drafter import STREAM_ROWS, StreamingDrafter
from edgespec.drafters.streaming.files import StreamingFiles, open_apart, streaming_model
from edgespec.drafters.streaming.tracks import Followers, Join, LeadingDraft, follow
from edgespec.drafters.worker import run
from edgespec.errors import OptionError
from edgespec.kernels.threads import use_threads
from edgespec.offload.plan.needs import Extras
from edgespec.runtimes.formats.describe import ModelFiles, describe_model
from edgespec.runtimes.torch.spd import KIND, Spd, SpdShape
from edgespec.runtimes.torch.streaming import streaming_shapes
from edgespec.runtimes.torch.streaming_draft import StreamingDraft
from edgespec.runtimes.torch.track_group import TrackGroup, tracks_of_each
from edgespec.runtimes.torch.trained_files import describe_module, parameter_bytes


def find(search: Search, found: dict[str, Found]) -> SpdFiles:
    """What is in the directory that is named. Raises as `describe_module`, and OptionError for workers that
    cannot have equal shares of its tracks."""
    drafter = find_spd(search.given["adapters"], search.files, search.prepares)
    try:
        tracks_of_each(drafter.tracks, search.worker or 1)
    except OptionError as error:
        raise OptionError(f"draft_worker is {search.worker}: {error}", "draft_worker") from None
    return replace(drafter, worker=search.worker, several=search.several)


def find_spd(directory: Path, files: ModelFiles, prepares: bool) -> SpdFiles:
    """What `train spd` made for these files; `prepares`: see `drafters.resident.Search`."""
    return SpdFiles(files, describe_module(directory, KIND, SpdShape, streaming_shapes, files), prepares)


@dataclass(frozen=True)
class SpdFiles(StreamingFiles):
    """See `drafters.resident.Found`. worker: processes that share its tracks, with a thread each."""

    label = "the SPD drafter"
    kind: ClassVar[str] = KIND
    program: ClassVar[str] = "edgespec.drafters.streaming.spd:main"
    made = Spd

    @property
    def tracks(self) -> int:
        shape = self.module.shape
        assert isinstance(shape, SpdShape)
        return shape.tracks

    @property
    def extras(self) -> Extras:
        found, more = super().extras, range(2, (self.worker or 1) + 1)
        shapes = streaming_shapes(self.files.config, self.module.shape).items()
        shared = {name: shape for name, shape in shapes if not name.startswith("tracks.")}
        each = parameter_bytes(shared, self.files.element) + self.pass_bytes + self.copied_bytes
        drafter, further = found.owners["drafter"], len(more) * each
        processes = (*found.processes, *(f"draft worker {number}" for number in more))
        return Extras(
            {**found.owners, "drafter": lambda c: drafter(c) + further}, found.must_pin, processes=processes
        )


def spd_model(load: Load, progress: Callable[[int], None]) -> Opened:
    """See `drafters.opened.OpenModel`: one process alone, or the leader of so many. Raises as
    `streaming_model`, and DeviceError when the others cannot be started or are gone."""
    workers = load.threads
    if workers == 1:
        return streaming_model(find_spd, load, progress)
    use_threads(1)
    found = find_spd(Path(load.adapters), describe_model(Path(load.model)), False)
    program = command("edgespec.drafters.streaming.spd:follow_main")
    followers = Followers(program, load.model, load.adapters, workers)
    group = TrackGroup(found.tracks)
    opened = open_apart(found, partial(Spd, meeting=group), progress)
    group.wait()
    return Opened(
        partial(LeadingDraft, followers, *opened, rows=DRAFT_ROWS, width=STREAM_ROWS),
        f"{workers} workers have {len(group.own)} of {found.tracks} tracks each",
        StreamingDrafter,
        lambda: workers * peak_memory(),  # that of the leader, who has logits, too, is the largest
    )


def _tracks(order: Join) -> Callable[[int], StreamingDraft]:
    """A follower's own."""
    use_threads(1)
    found = find_spd(Path(order.adapters), describe_model(Path(order.model)), False)
    group = TrackGroup(found.tracks)
    opened = open_apart(found, partial(Spd, meeting=group), lambda nbytes: None)
    group.wait()
    return partial(StreamingDraft, *opened, rows=DRAFT_ROWS, width=STREAM_ROWS)


def follow_main() -> None:
    """What the other workers run."""
    follow(_tracks)


def main() -> None:
    """What the worker process runs."""
    run(spd_model)
