"""An EAGLE drafter's file: is it the target's, how many bytes does it need, and open it."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, replace
from math import ceil
from pathlib import Path

from edgespec.drafters.eagle.batch import EagleBatch
from edgespec.drafters.eagle.drafter import EagleDrafter
from edgespec.drafters.eagle.rounds import EagleRounds
from edgespec.drafters.eagle.runtime import EagleRuntime
from edgespec.drafters.forest import Room, kept_bytes
from edgespec.drafters.resident import Found, Search
from edgespec.drafters.substitute import torch_target
from edgespec.drafters.trained import TrainedFiles, TrainedResident
from edgespec.drafters.watch import watch_bytes
from edgespec.offload.plan.needs import Extras
from edgespec.offload.plan.plan import Plan
from edgespec.runtimes.base import TREE_ROWS, KVCache
from edgespec.runtimes.formats.describe import ModelFiles
from edgespec.runtimes.target import Target
from edgespec.runtimes.torch.blocks import attention_cache_bytes, swiglu_bytes, widened
from edgespec.runtimes.torch.eagle import KIND, Eagle, EagleShape, eagle_shapes
from edgespec.runtimes.torch.target import TorchTarget
from edgespec.runtimes.torch.trained_files import (
    describe_module,
    parameter_bytes,
)
from edgespec.runtimes.torch.weights import Weights

EAGLE_ROWS = 4 * TREE_ROWS  # slots: accepted tokens, a tree, and what is drafted ahead of a pass
PASS_ROWS = 32  # of one pass, about: accepted tokens and the root, or what is expanded


@dataclass(frozen=True)
class EagleFiles(TrainedFiles[EagleShape]):
    """See `drafters.resident.Found`."""

    label = "the EAGLE drafter"
    slots = EAGLE_ROWS

    @property
    def extras(self) -> Extras:
        return replace(super().extras, further={"drafter": self.conversation_bytes})

    def nbytes(self, context: int) -> int:
        """Bytes of the open module with one conversation of `context` positions, and of a pass."""
        config, e = self.files.config, self.files.element
        parameters = parameter_bytes(eagle_shapes(config, self.module.shape), e)
        return parameters + self.conversation_bytes(context) + watch_bytes(config, 2, e)

    def conversation_bytes(self, context: int) -> int:
        """Bytes of one conversation of `context` positions: entries, features of drafts and of a tree, and a
        pass, which is one with others'."""
        config, e = self.files.config, self.files.element
        width = widened(config, self.module.shape.mlp).intermediate_size
        mlp = PASS_ROWS * width * swiglu_bytes(e)
        logits = PASS_ROWS * config.vocab_size * (e + 4)
        states = (EAGLE_ROWS + 4 * TREE_ROWS) * config.hidden_size * e
        return attention_cache_bytes(config, context, EAGLE_ROWS, e) + states + mlp + logits

    @property
    def further_rows(self) -> int:
        """See `drafters.resident.Resident.rows`. A position takes keys and values of all layers of the
        target, a slot more those of one, and a feature."""
        config, e = self.files.config, self.files.element
        layer = config.kv_bytes(1, e) // config.layers
        own = layer + config.hidden_size * e
        return ceil((EAGLE_ROWS - TREE_ROWS) * own / (config.kv_bytes(1, e) + layer))

    def resident(self, target: Target, plan: Plan, progress: Callable[[int], None]) -> EagleResident:
        return EagleResident(self, plan, torch_target(target, self.label), progress)


def find(search: Search, found: dict[str, Found]) -> EagleFiles:
    """What is in the directory that is named. Raises as `describe_module`."""
    return find_eagle(search.given["adapters"], search.files, search.prepares)


def find_eagle(directory: Path, files: ModelFiles, prepares: bool) -> EagleFiles:
    """What `train eagle` made for these files; `prepares`: see `drafters.resident.Search`."""
    module = describe_module(directory, KIND, EagleShape, eagle_shapes, files)
    return EagleFiles(files, module, prepares)


class EagleResident(TrainedResident[Eagle]):
    """See `drafters.resident.Resident`."""

    def __init__(
        self,
        found: EagleFiles,
        plan: Plan,
        target: TorchTarget[Weights],
        progress: Callable[[int], None] = lambda nbytes: None,
    ) -> None:
        """Reads the module. Raises CorruptFileError and StorageError."""
        config, final_norm = found.files.config, target.weights.small["model.norm.weight"]
        module = Eagle(config, found.module.shape, final_norm, target.dtype, target.device)
        super().__init__(KIND, module, found, plan, target, progress)
        self.rounds = EagleRounds(EagleBatch(target, module))
        self.rows = found.further_rows
        self.room = Room(kept_bytes(EAGLE_ROWS, config.vocab_size))

    def drafter(self, cache: KVCache, vocabulary: int) -> EagleDrafter:
        runtime = EagleRuntime(self.rounds.batch, cache.capacity, EAGLE_ROWS)
        return EagleDrafter(runtime, self.rounds, cache, vocabulary, self.room)
