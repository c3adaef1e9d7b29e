"""The Mixture-of-Attentions drafter: its files, it when open, and how it follows a conversation.

Zimmer et al. 2024 (arXiv 2410.03804); the network is `runtimes.torch.moa`. It reads the keys and values that
the target has committed, in the conversation's own cache, and so has nothing to watch, and may draft while
the target verifies: of the tree under verification it knows the tokens, and the memory ends before it. Its
trees are grown as a draft model's (EAGLE-2's are of 8 nodes a pass, 6 deep and of 62 nodes in all; here the
controller decides).
"""

from __future__ import annotations

from collections.abc import Callable, Generator, Sequence
from dataclasses import dataclass
from math import ceil
from pathlib import Path

from edgespec.drafters.drawn import kept_bytes
from edgespec.drafters.forest import Room
from edgespec.drafters.model import DRAFT_ROWS, ModelDrafter
from edgespec.drafters.resident import Found, Search
from edgespec.drafters.substitute import torch_target
from edgespec.errors import OptionError
from edgespec.offload.plan.needs import Extras, MustPin
from edgespec.offload.plan.plan import Plan
from edgespec.runtimes.base import TREE_ROWS, KVCache, Target
from edgespec.runtimes.formats.describe import ModelFiles
from edgespec.runtimes.formats.moa_sizes import (
    KIND,
    MoaSizes,
    cache_configs,
    conversation_bytes,
    drafting_parameters,
    parameter_shapes,
    parameters,
)
from edgespec.runtimes.formats.needs import overlay_bytes
from edgespec.runtimes.torch.moa import Moa
from edgespec.runtimes.torch.moa_draft import LocalMemory, MoaDraft, pass_bytes
from edgespec.runtimes.torch.moa_tail import Tail
from edgespec.runtimes.torch.trained_files import ModuleFile, describe_module, free_parameters


def find(search: Search, found: dict[str, Found]) -> MoaFiles:
    """The network in the directory that is named. Raises as `describe_module`."""
    return describe_moa(Path(search.given["adapters"]), search.files, search.prepares, search.auto)


def describe_moa(directory: Path, files: ModelFiles, prepares: bool, auto: bool) -> MoaFiles:
    """The network in a directory, for this target. Raises as `describe_module`."""
    return MoaFiles(
        files, describe_module(directory, KIND, MoaSizes, parameter_shapes, files), prepares, auto
    )


def draft_rows(sizes: MoaSizes) -> int:
    """Slots of a conversation. Where drafts go through the target, it does not stream, and nothing waits."""
    return 2 * TREE_ROWS if sizes.target_layers else DRAFT_ROWS


@dataclass(frozen=True)
class MoaFiles:
    """A trained network on disk, known by its headers; see `drafters.resident.Found`."""

    files: ModelFiles  # the target's
    file: ModuleFile[MoaSizes]
    prepares: bool = False  # see `drafters.resident.Search`, as the next
    auto: bool = False

    @property
    def extras(self) -> Extras:
        """Head and embedding are the target's; the head, which each pass reads, must be in memory."""
        owners = {"drafter": self.nbytes}
        if self.prepares:
            kept = kept_bytes(draft_rows(self.file.shape), self.files.config.vocab_size)
            owners["drawn drafts"] = lambda context: kept
        last = self.file.shape.target_layers
        return Extras(owners, MustPin("the MoA drafter", "drafts with", (0,), last))

    def nbytes(self, context: int) -> int:
        """Bytes of the network, with one conversation of `context` positions, and of a pass."""
        config, sizes, element = self.files.config, self.file.shape, self.files.element
        passing = pass_bytes(config, sizes, ModelDrafter.ahead_width, element)
        rows = draft_rows(sizes)
        conversation = conversation_bytes(config, sizes, context, rows, element)
        tail = overlay_bytes(config, rows, element) if sizes.target_layers else 0
        return parameters(config, sizes) * element + passing + conversation + tail

    def unused(self, plan: Plan) -> str | None:
        """See `drafters.resident.Found`."""
        return self._streams(plan) if self.auto else None

    def _streams(self, plan: Plan) -> str | None:
        """Why the target's last layers are not to be drafted through under this plan."""
        last = self.file.shape.target_layers
        if not last or not plan.streamed_bytes:
            return None
        return (
            f"the MoA drafter goes through the target's last {last} layers in every pass (target_layers), "
            "and the target streams"
        )

    def reads(self, plan: Plan) -> int:
        """See `drafters.resident.Found`."""
        return self.file.nbytes

    def resident(self, target: Target, plan: Plan, progress: Callable[[int], None]) -> MoaResident:
        """See `drafters.resident.Found`. Raises OptionError where drafts would go through a target that
        streams."""
        if (why := self._streams(plan)) is not None:
            raise OptionError(f"{why}; use a larger memory=, or train a drafter with target_layers=0")
        return MoaResident(self, target, plan, progress)


class MoaResident:
    """An open network, shared by an engine's sessions; see `drafters.resident.Resident`."""

    name = KIND

    def __init__(
        self,
        found: MoaFiles,
        target: Target,
        plan: Plan,
        progress: Callable[[int], None] = lambda nbytes: None,
    ) -> None:
        """Reads the network. Raises StorageError."""
        config, sizes, dtype = found.files.config, found.file.shape, found.files.dtype
        self.target = torch_target(target, "the MoA drafter")
        self.moa = Moa(config, sizes, dtype, self.target.device).eval()
        found.file.read(self.moa)
        progress(found.file.nbytes)
        head = sum(c.nbytes for c in plan.table.chunks if c.layer == plan.table.layers)
        through = config.layers - sizes.target_layers
        last = sum(c.nbytes for c in plan.table.chunks if through <= c.layer < config.layers)
        self.nbytes = drafting_parameters(config, sizes) * dtype.itemsize + last + head
        tokens, memory = (c.kv_bytes(1, dtype.itemsize) for c in cache_configs(config, sizes))
        every = config.kv_bytes(1, dtype.itemsize) + tokens + memory
        self.slots = draft_rows(sizes)
        further = (self.slots - TREE_ROWS) * tokens
        if sizes.target_layers:
            further += overlay_bytes(config, self.slots, dtype.itemsize)
        self.rows = ceil(further / every)
        self.room = Room(kept_bytes(self.slots, config.vocab_size))

    def drafter(self, cache: KVCache, vocabulary: int) -> MoaDrafter:
        source, through = LocalMemory(self.moa, cache), self.moa.sizes.target_layers
        tail = Tail(self.target, cache, through, self.slots) if through else None
        draft = MoaDraft(self.moa, self.target, source, cache.capacity, self.slots, tail)
        return MoaDrafter(draft, vocabulary, self.room)

    def close(self) -> None:
        free_parameters(self.moa)


class MoaDrafter(ModelDrafter):
    """See `drafters.base.Drafter`."""

    def trunk(self) -> Generator[None, None, Sequence[int]]:
        """Nothing: committed tokens follow from their embeddings, which costs no pass."""
        if self.tail:
            yield from self._follow()
        return self.tail
