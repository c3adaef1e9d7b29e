"""A SpecFormer drafter's file: is it the target's, how many bytes does it need, and open it."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

from edgespec.drafters.resident import Found, Search
from edgespec.drafters.specformer.context import SpecFormerContext
from edgespec.drafters.specformer.drafter import SpecFormerDrafter
from edgespec.drafters.substitute import torch_target
from edgespec.drafters.watch import watch_bytes
from edgespec.offload.plan.needs import Extras, MustPin
from edgespec.offload.plan.plan import Plan
from edgespec.runtimes.base import PREFILL_ROWS, TREE_ROWS, KVCache, Target
from edgespec.runtimes.formats.describe import ModelFiles
from edgespec.runtimes.torch.blocks import attention_cache_bytes
from edgespec.runtimes.torch.specformer import HOOKS, KIND, SpecFormer, SpecFormerShape, specformer_shapes
from edgespec.runtimes.torch.target import TorchTarget
from edgespec.runtimes.torch.trained_files import (
    ModuleFile,
    describe_module,
    free_parameters,
    parameter_bytes,
)
from edgespec.runtimes.torch.weights import Weights


@dataclass(frozen=True)
class SpecFormerFiles:
    """See `drafters.resident.Found`; known by headers."""

    files: ModelFiles  # the target's
    module: ModuleFile[SpecFormerShape]

    @property
    def extras(self) -> Extras:
        """It multiplies the target's head, which has to be in memory."""
        pinned = MustPin("the SpecFormer drafter", "drafts with", (0,))
        return Extras({"drafter": self.nbytes}, pinned, further={"drafter": self.conversation_bytes})

    def nbytes(self, context: int) -> int:
        """Bytes of the open module with one conversation of `context` positions, and of a draft."""
        config, e, length = self.files.config, self.files.element, self.module.shape.length
        parameters = parameter_bytes(specformer_shapes(config, self.module.shape), e)
        fused = PREFILL_ROWS * config.hidden_size * (HOOKS * (4 + e) + 2 * e)  # of a prompt's block
        draft = length * (8 * config.hidden_size * e + config.intermediate_size * (3 * e + 8))
        logits = length * config.vocab_size * (e + 4)
        passing = fused + watch_bytes(config, HOOKS, e) + draft + logits
        return parameters + self.conversation_bytes(context) + passing

    def conversation_bytes(self, context: int) -> int:
        """Bytes of one conversation of `context` positions: K and V, and a tree's states."""
        config, e = self.files.config, self.files.element
        states = (2 + HOOKS) * TREE_ROWS * config.hidden_size * e
        return attention_cache_bytes(config, context, TREE_ROWS, e) + states

    def unused(self, plan: Plan) -> str | None:
        return None

    def reads(self, plan: Plan) -> int:
        return self.module.nbytes

    def resident(self, target: Target, plan: Plan, progress: Callable[[int], None]) -> SpecFormerResident:
        return SpecFormerResident(self, plan, torch_target(target, "the SpecFormer drafter"), progress)


def find(search: Search, found: dict[str, Found]) -> SpecFormerFiles:
    """What is in the directory that is named. Raises as `describe_module`."""
    return find_specformer(search.given["adapters"], search.files, search.prepares)


def find_specformer(directory: Path, files: ModelFiles, prepares: bool) -> SpecFormerFiles:
    """What `train specformer` made for these files. It prepares nothing."""
    return SpecFormerFiles(files, describe_module(directory, KIND, SpecFormerShape, specformer_shapes, files))


class SpecFormerResident:
    """An open one, shared by an engine's sessions; see `drafters.resident.Resident`."""

    name = KIND
    rows = 0  # a position's K and V are among those of the drafter

    def __init__(
        self,
        found: SpecFormerFiles,
        plan: Plan,
        target: TorchTarget[Weights],
        progress: Callable[[int], None] = lambda nbytes: None,
    ) -> None:
        """Reads the module. Raises StorageError."""
        self.target, final_norm = target, target.weights.small["model.norm.weight"]
        self.module = SpecFormer(
            found.files.config, found.module.shape, final_norm, target.dtype, target.device
        )
        found.module.read(self.module)
        progress(found.module.nbytes)
        head = sum(c.nbytes for c in plan.table.chunks if c.layer == plan.table.layers)
        self.nbytes = head + found.module.nbytes

    def drafter(self, cache: KVCache, vocabulary: int) -> SpecFormerDrafter:
        return SpecFormerDrafter(
            SpecFormerContext(self.target, self.module, cache.capacity), cache, vocabulary
        )

    def close(self) -> None:
        free_parameters(self.module)
