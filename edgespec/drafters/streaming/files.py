"""A speculative streaming drafter's file: is it the target's, how many bytes does it need, and open it."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from math import ceil
from pathlib import Path
from typing import ClassVar

from edgespec.drafters.drawn import kept_bytes
from edgespec.drafters.forest import Room
from edgespec.drafters.model import DRAFT_ROWS, PASS_ROWS
from edgespec.drafters.resident import Found, Search
from edgespec.drafters.streaming.drafter import NAMED_ROWS, StreamingDrafter
from edgespec.drafters.substitute import torch_target
from edgespec.drafters.trained import TrainedFiles, TrainedResident
from edgespec.offload.plan.plan import Plan
from edgespec.runtimes.base import TREE_ROWS, KVCache
from edgespec.runtimes.formats.describe import ModelFiles
from edgespec.runtimes.target import Target
from edgespec.runtimes.torch.streaming import (
    KIND,
    Streaming,
    StreamingShape,
    streaming_shapes,
)
from edgespec.runtimes.torch.streaming_draft import StreamingDraft, conversation_bytes, pass_bytes
from edgespec.runtimes.torch.target import TorchTarget
from edgespec.runtimes.torch.trained_files import describe_module, parameter_bytes
from edgespec.runtimes.torch.weights import Weights

STREAM_ROWS = StreamingDrafter.ahead_width + NAMED_ROWS  # of one pass with streams


def find(search: Search, found: dict[str, Found]) -> StreamingFiles:
    """What is in the directory that is named. Raises as `describe_module`."""
    return find_streaming(search.given["adapters"], search.files, search.prepares)


def find_streaming(directory: Path, files: ModelFiles, prepares: bool) -> StreamingFiles:
    """What `train streaming` made for these files; `prepares`: see `drafters.resident.Search`."""
    module = describe_module(directory, KIND, StreamingShape, streaming_shapes, files)
    return StreamingFiles(files, module, prepares)


@dataclass(frozen=True)
class StreamingFiles(TrainedFiles[StreamingShape]):
    """See `drafters.resident.Found`. Head and embedding are the target's."""

    label = "the streaming drafter"
    kind: ClassVar[str] = KIND
    made: ClassVar[Callable[..., Streaming]] = Streaming  # (config, shape, dtype, device), uninitialised
    slots = DRAFT_ROWS

    @property
    def layers(self) -> int:  # type: ignore[override]
        return self.module.shape.cached(self.files.config).layers

    def nbytes(self, context: int) -> int:
        """Bytes of the open module with one conversation of `context` positions, and of a pass."""
        config, shape, e = self.files.config, self.module.shape, self.files.element
        parameters = parameter_bytes(streaming_shapes(config, shape), e)
        conversation = conversation_bytes(config, shape, context, DRAFT_ROWS, STREAM_ROWS, e)
        return parameters + conversation + pass_bytes(config, shape, PASS_ROWS, STREAM_ROWS, e)

    @property
    def further_rows(self) -> int:
        """See `drafters.resident.Resident.rows`. A position takes keys and values of all layers of the target
        and of its own, a slot more its own alone."""
        config, shape, e = self.files.config, self.module.shape, self.files.element
        target, own = config.kv_bytes(1, e), shape.cached(config).kv_bytes(1, e)
        return ceil((DRAFT_ROWS + STREAM_ROWS * shape.streams - TREE_ROWS) * own / (own + target))

    def resident(self, target: Target, plan: Plan, progress: Callable[[int], None]) -> StreamingResident:
        return StreamingResident(self, plan, torch_target(target, self.label), progress)


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
        self.rows = found.further_rows
        self.room = Room(kept_bytes(DRAFT_ROWS, config.vocab_size))

    def drafter(self, cache: KVCache, vocabulary: int) -> StreamingDrafter:
        runtime = StreamingDraft(self.module, self.target, cache.capacity, DRAFT_ROWS, STREAM_ROWS)
        return StreamingDrafter(runtime, vocabulary, self.room)
