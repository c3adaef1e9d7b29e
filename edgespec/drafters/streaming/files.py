"""A speculative streaming drafter's file: is it the target's, how many bytes does it need, and open it."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, replace
from functools import partial
from math import ceil
from pathlib import Path
from typing import ClassVar

from edgespec.drafters.beside import Beside
from edgespec.drafters.channel import Load
from edgespec.drafters.forest import Room, kept_bytes
from edgespec.drafters.model import DRAFT_ROWS, PASS_ROWS
from edgespec.drafters.opened import Opened
from edgespec.drafters.process import Program, command
from edgespec.drafters.resident import Found, Resident, Search
from edgespec.drafters.streaming.drafter import STREAM_ROWS, StreamingDrafter
from edgespec.drafters.substitute import torch_target
from edgespec.drafters.trained import TrainedFiles, TrainedResident
from edgespec.drafters.worker import run
from edgespec.kernels.threads import use_threads
from edgespec.offload.plan.needs import Extras
from edgespec.offload.plan.plan import Plan
from edgespec.progress import LoadCallback
from edgespec.runtimes.base import TREE_ROWS, KVCache
from edgespec.runtimes.formats.describe import ModelFiles, describe_model
from edgespec.runtimes.formats.needs import first_pass_bytes
from edgespec.runtimes.target import Target
from edgespec.runtimes.torch.machine import arithmetic
from edgespec.runtimes.torch.streaming import (
    KIND,
    Streaming,
    StreamingShape,
    streaming_shapes,
)
from edgespec.runtimes.torch.streaming_draft import StreamingDraft, conversation_bytes, pass_bytes
from edgespec.runtimes.torch.target import TorchTarget
from edgespec.runtimes.torch.trained_files import describe_module, parameter_bytes
from edgespec.runtimes.torch.warm_up import warm_up
from edgespec.runtimes.torch.weights import Weights


def find(search: Search, found: dict[str, Found]) -> StreamingFiles:
    """What is in the directory that is named. Raises as `describe_module`."""
    drafter = find_streaming(search.given["adapters"], search.files, search.prepares)
    return replace(drafter, worker=search.worker, several=search.several)


def find_streaming(directory: Path, files: ModelFiles, prepares: bool) -> StreamingFiles:
    """What `train streaming` made for these files; `prepares`: see `drafters.resident.Search`."""
    module = describe_module(directory, KIND, StreamingShape, streaming_shapes, files)
    return StreamingFiles(files, module, prepares)


@dataclass(frozen=True)
class StreamingFiles(TrainedFiles[StreamingShape]):
    """See `drafters.resident.Found`. Head and embedding are the target's; a process of its own has copies.

    worker, several: see `drafters.resident.Search`.
    """

    worker: int | None = None
    several: bool = False
    label = "the streaming drafter"
    kind: ClassVar[str] = KIND
    program: ClassVar[str] = "edgespec.drafters.streaming.files:main"
    made: ClassVar[Callable[..., Streaming]] = Streaming  # (config, shape, dtype, device), uninitialised

    @property
    def slots(self) -> int:
        return TREE_ROWS if self.several else DRAFT_ROWS

    @property
    def extras(self) -> Extras:
        if self.worker is None:
            return replace(super().extras, further={"drafter": self.conversation_bytes})
        own = self.copied_bytes
        return Extras({"drafter": lambda c: self.nbytes(c) + own}, processes=("draft worker",))

    @property
    def copied_bytes(self) -> int:
        """Of the target, in a process of its own, and of what a first pass leaves there."""
        embedding = self.files.table.embedding.nbytes * (not self.files.table.tied)
        return embedding + self.head_bytes + first_pass_bytes(self.files, arithmetic())

    @property
    def head_bytes(self) -> int:
        return sum(chunk.nbytes for chunk in self.files.table.end())

    def reads(self, plan: Plan) -> int:
        return self.module.nbytes + (0 if self.worker is None else self.head_bytes)

    @property
    def layers(self) -> int:  # type: ignore[override]
        return self.module.shape.cached(self.files.config).layers

    def nbytes(self, context: int) -> int:
        """Bytes of the open module with one conversation of `context` positions, and of a pass."""
        parameters = parameter_bytes(
            streaming_shapes(self.files.config, self.module.shape), self.files.element
        )
        return parameters + self.conversation_bytes(context) + self.pass_bytes

    def conversation_bytes(self, context: int) -> int:
        """Bytes of one conversation of `context` positions. Passes are one conversation's at a time."""
        config, shape, e = self.files.config, self.module.shape, self.files.element
        return conversation_bytes(config, shape, context, self.slots, STREAM_ROWS, e)

    @property
    def pass_bytes(self) -> int:
        config, shape = self.files.config, self.module.shape
        return pass_bytes(config, shape, PASS_ROWS, STREAM_ROWS, self.files.element)

    @property
    def further_rows(self) -> int:
        """See `drafters.resident.Resident.rows`. A position takes keys and values of all layers of the target
        and of its own, a slot more its own alone."""
        config, shape, e = self.files.config, self.module.shape, self.files.element
        target, own = config.kv_bytes(1, e), shape.cached(config).kv_bytes(1, e)
        return ceil((self.slots + STREAM_ROWS * shape.streams - TREE_ROWS) * own / (own + target))

    def resident(self, target: Target, plan: Plan, progress: LoadCallback) -> Resident:
        """Raises as `StreamingResident`, or `process.Worker`."""
        if self.worker is None:
            return StreamingResident(self, plan, torch_target(target, self.label), progress)
        adapters = str(self.module.path.parent.resolve())
        load = Load(str(self.files.path.resolve()), self.worker, adapters=adapters)
        program = Program(command(self.program))
        return Beside(load, self.reads(plan), self.further_rows, progress, program, self.kind)


class StreamingResident(TrainedResident[Streaming]):
    """See `drafters.resident.Resident`."""

    def __init__(
        self,
        found: StreamingFiles,
        plan: Plan,
        target: TorchTarget[Weights],
        progress: Callable[[int], None] = lambda nbytes: None,
    ) -> None:
        """Reads the module. Raises CorruptFileError and StorageError."""
        config = found.files.config
        module = found.made(config, found.module.shape, target.dtype, target.device).eval()
        super().__init__(found.kind, module, found, plan, target, progress)
        self.rows, self.slots = found.further_rows, found.slots
        self.room = Room(kept_bytes(self.slots, config.vocab_size))

    def drafter(self, cache: KVCache, vocabulary: int) -> StreamingDrafter:
        runtime = StreamingDraft(self.module, self.target, cache.capacity, self.slots, STREAM_ROWS)
        return StreamingDrafter(runtime, vocabulary, self.room)


Look = Callable[[Path, ModelFiles, bool], StreamingFiles]


def streaming_model(look: Look, load: Load, progress: Callable[[int], None]) -> Opened:
    """The drafter that `look` finds; see `drafters.opened.OpenModel`. Raises as `describe_module` and
    `open_apart`."""
    use_threads(load.threads)
    found = look(Path(load.adapters), describe_model(Path(load.model)), False)
    opened = open_apart(found, found.made, progress)
    return Opened(
        partial(StreamingDraft, *opened, rows=DRAFT_ROWS, width=STREAM_ROWS), drafts=StreamingDrafter
    )


def open_apart(
    found: StreamingFiles, made: Callable[..., Streaming], progress: Callable[[int], None]
) -> tuple[Streaming, TorchTarget[Weights]]:
    """The module, `made` as `StreamingFiles.made`, and its target's head and embedding, which it multiplies,
    for a process of its own. Raises CorruptFileError and StorageError."""
    files = found.files
    head = tuple(files.table.end())
    table = replace(files.table, chunks=head)  # the target's layers are nobody's here
    warm_up(table, files.dtype)
    weights = Weights(table, 0, files.dtype)
    weights.pin([chunk.index for chunk in head], progress=progress)
    if not files.table.tied:  # drafting must not wait for flash
        weights.embedding.keep(True)
    target = TorchTarget(files.config, weights, DRAFT_ROWS)
    module = made(files.config, found.module.shape, target.dtype, target.device).eval()
    found.module.read(module)
    progress(found.module.nbytes)
    return module, target


def main() -> None:
    """What the worker process runs."""
    run(partial(streaming_model, find_streaming))
