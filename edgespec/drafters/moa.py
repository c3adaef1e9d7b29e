"""The Mixture-of-Attentions drafter: its files, it when open, and how it follows a conversation.

Zimmer et al. 2024 (arXiv 2410.03804); the network is `runtimes.torch.moa`. It reads the keys and values that
the target has committed, in the conversation's own cache, and so has nothing to watch, and may draft while
the target verifies: of the tree under verification it knows the tokens, and the memory ends before it. Its
trees are grown as a draft model's (EAGLE-2's are of 8 nodes a pass, 6 deep and of 62 nodes in all; here the
controller decides).
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from math import ceil
from pathlib import Path

from edgespec.drafters.forest import Room, kept_bytes
from edgespec.drafters.moa_draft import MoaDrafter
from edgespec.drafters.model import DRAFT_ROWS, ModelDrafter
from edgespec.drafters.resident import Found, Search
from edgespec.drafters.substitute import torch_target
from edgespec.drafters.trained import TrainedFiles, TrainedResident
from edgespec.errors import OptionError
from edgespec.offload.plan.plan import Plan
from edgespec.runtimes.base import TREE_ROWS, KVCache
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
from edgespec.runtimes.target import Target
from edgespec.runtimes.torch.moa import Moa
from edgespec.runtimes.torch.moa_draft import LocalMemory, MoaDraft, pass_bytes
from edgespec.runtimes.torch.moa_tail import Tail
from edgespec.runtimes.torch.target import TorchTarget
from edgespec.runtimes.torch.trained_files import describe_module
from edgespec.runtimes.torch.weights import Weights


def find(search: Search, found: dict[str, Found]) -> MoaFiles:
    """The network in the directory that is named. Raises as `describe_module`."""
    return find_moa(search.given["adapters"], search.files, search.prepares, search.auto)


def find_moa(directory: Path, files: ModelFiles, prepares: bool, auto: bool = False) -> MoaFiles:
    """What `train moa` made for these files; `prepares`, `auto`: see `drafters.resident.Search`."""
    module = describe_module(directory, KIND, MoaSizes, parameter_shapes, files)
    return MoaFiles(files, module, prepares, auto)


def draft_rows(sizes: MoaSizes) -> int:
    """Slots of a conversation. Where drafts go through the target, it does not stream, and nothing waits."""
    return 2 * TREE_ROWS if sizes.target_layers else DRAFT_ROWS


@dataclass(frozen=True)
class MoaFiles(TrainedFiles[MoaSizes]):
    """See `drafters.resident.Found`. Head and embedding are the target's."""

    label = "the MoA drafter"
    layers = 2  # over tokens, and to memory

    @property
    def slots(self) -> int:
        return draft_rows(self.module.shape)

    @property
    def through(self) -> int:
        return self.module.shape.target_layers

    @property
    def step_bytes(self) -> int:
        return drafting_parameters(self.files.config, self.module.shape) * self.files.element

    def nbytes(self, context: int) -> int:
        """Bytes of the network, with one conversation of `context` positions, and of a pass."""
        config, sizes, element = self.files.config, self.module.shape, self.files.element
        passing = pass_bytes(config, sizes, ModelDrafter.ahead_width, element)
        conversation = conversation_bytes(config, sizes, context, self.slots, element)
        tail = overlay_bytes(config, self.slots, element) if self.through else 0
        return parameters(config, sizes) * element + passing + conversation + tail

    def unused(self, plan: Plan) -> str | None:
        """See `drafters.resident.Found`."""
        return self._streams(plan) if self.auto else None

    def _streams(self, plan: Plan) -> str | None:
        """Why the target's last layers are not to be drafted through under this plan."""
        if not self.through or not plan.streamed_bytes:
            return None
        return (
            f"the MoA drafter goes through the target's last {self.through} layers in every pass "
            "(target_layers), and the target streams"
        )

    def resident(self, target: Target, plan: Plan, progress: Callable[[int], None]) -> MoaResident:
        """See `drafters.resident.Found`. Raises OptionError where drafts would go through a target that
        streams."""
        if (why := self._streams(plan)) is not None:
            raise OptionError(f"{why}; use a larger memory=, or train a drafter with target_layers=0")
        return MoaResident(self, plan, torch_target(target, self.label), progress)


class MoaResident(TrainedResident[Moa]):
    """See `drafters.resident.Resident`."""

    def __init__(
        self,
        found: MoaFiles,
        plan: Plan,
        target: TorchTarget[Weights],
        progress: Callable[[int], None] = lambda nbytes: None,
    ) -> None:
        """Reads the network. Raises CorruptFileError and StorageError."""
        config, sizes, dtype = found.files.config, found.module.shape, found.files.dtype
        module = Moa(config, sizes, dtype, target.device).eval()
        super().__init__(KIND, module, found, plan, target, progress)
        tokens, memory = (c.kv_bytes(1, dtype.itemsize) for c in cache_configs(config, sizes))
        every = config.kv_bytes(1, dtype.itemsize) + tokens + memory
        self.slots = found.slots
        further = (self.slots - TREE_ROWS) * tokens
        if found.through:
            further += overlay_bytes(config, self.slots, dtype.itemsize)
        self.rows = ceil(further / every)
        self.room = Room(kept_bytes(self.slots, config.vocab_size))

    def drafter(self, cache: KVCache, vocabulary: int) -> MoaDrafter:
        source, through = LocalMemory(self.module, cache), self.module.sizes.target_layers
        tail = Tail(self.target, cache, through, self.slots) if through else None
        draft = MoaDraft(self.module, self.target, source, cache.capacity, self.slots, tail)
        return MoaDrafter(draft, vocabulary, self.room)
