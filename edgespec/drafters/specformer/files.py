"""A SpecFormer drafter's file: is it the target's, how many bytes does it need, and open it."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, replace
from pathlib import Path

from edgespec.drafters.resident import Found, Search
from edgespec.drafters.specformer.batch import SpecFormerBatch
from edgespec.drafters.specformer.drafter import SpecFormerDrafter
from edgespec.drafters.substitute import torch_target
from edgespec.drafters.trained import TrainedFiles, TrainedResident
from edgespec.drafters.watch import watch_bytes
from edgespec.offload.plan.needs import Extras
from edgespec.offload.plan.plan import Plan
from edgespec.runtimes.base import PREFILL_ROWS, TREE_ROWS, KVCache
from edgespec.runtimes.formats.describe import ModelFiles
from edgespec.runtimes.target import Target
from edgespec.runtimes.torch.blocks import attention_cache_bytes, swiglu_bytes, widened
from edgespec.runtimes.torch.specformer import KIND, SpecFormer, SpecFormerShape, specformer_shapes
from edgespec.runtimes.torch.target import TorchTarget
from edgespec.runtimes.torch.trained_files import (
    describe_module,
    parameter_bytes,
)
from edgespec.runtimes.torch.weights import Weights


@dataclass(frozen=True)
class SpecFormerFiles(TrainedFiles[SpecFormerShape]):
    """See `drafters.resident.Found`. It prepares nothing."""

    label = "the SpecFormer drafter"

    @property
    def extras(self) -> Extras:
        return replace(super().extras, further={"drafter": self.conversation_bytes})

    def nbytes(self, context: int) -> int:
        """Bytes of the open module with one conversation of `context` positions, and of a draft."""
        config, e, shape = self.files.config, self.files.element, self.module.shape
        parameters = parameter_bytes(specformer_shapes(config, shape), e)
        hooks = len(shape.hooks)
        fused = PREFILL_ROWS * config.hidden_size * (hooks * (4 + 2 * e) + 2 * e)  # of a prompt's block
        return parameters + self.conversation_bytes(context) + fused + watch_bytes(config, hooks, e)

    def conversation_bytes(self, context: int) -> int:
        """Bytes of one conversation of `context` positions: K and V, a tree's states, and its draft, which is
        made together with all others' and stays until it is asked for."""
        config, e, shape = self.files.config, self.files.element, self.module.shape
        states = 2 * (1 + len(shape.hooks)) * TREE_ROWS * config.hidden_size * e
        width = widened(config, shape.mlp).intermediate_size
        draft = shape.length * (8 * config.hidden_size * e + width * swiglu_bytes(e))
        logits = shape.length * config.vocab_size * (e + 4)
        return attention_cache_bytes(config, context, TREE_ROWS, e) + states + draft + logits

    def resident(self, target: Target, plan: Plan, progress: Callable[[int], None]) -> SpecFormerResident:
        return SpecFormerResident(self, plan, torch_target(target, self.label), progress)


def find(search: Search, found: dict[str, Found]) -> SpecFormerFiles:
    """What is in the directory that is named. Raises as `describe_module`."""
    return find_specformer(search.given["adapters"], search.files, search.prepares)


def find_specformer(directory: Path, files: ModelFiles, prepares: bool) -> SpecFormerFiles:
    """What `train specformer` made for these files. It prepares nothing."""
    return SpecFormerFiles(files, describe_module(directory, KIND, SpecFormerShape, specformer_shapes, files))


class SpecFormerResident(TrainedResident[SpecFormer]):
    """See `drafters.resident.Resident`. A position's K and V are among those of the drafter."""

    def __init__(
        self,
        found: SpecFormerFiles,
        plan: Plan,
        target: TorchTarget[Weights],
        progress: Callable[[int], None] = lambda nbytes: None,
    ) -> None:
        """Reads the module. Raises CorruptFileError and StorageError."""
        config, final_norm = found.files.config, target.weights.small["model.norm.weight"]
        module = SpecFormer(config, found.module.shape, final_norm, target.dtype, target.device)
        super().__init__(KIND, module, found, plan, target, progress)
        self.batch = SpecFormerBatch(target, module)

    def drafter(self, cache: KVCache, vocabulary: int) -> SpecFormerDrafter:
        return SpecFormerDrafter(self.batch, cache)
