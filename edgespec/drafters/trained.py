"""What drafters that are one trained module have in common: their file, its memory, and the open module.

Each of them multiplies the target's head in every step, which has to be in memory; its sizes, and how it
follows a conversation, are its own.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import ClassVar, Generic, TypeVar

import msgspec
from torch import nn

from edgespec.drafters.forest import kept_bytes
from edgespec.offload.plan.needs import Extras, MustPin
from edgespec.offload.plan.plan import Plan
from edgespec.runtimes.formats.describe import ModelFiles
from edgespec.runtimes.torch.target import TorchTarget
from edgespec.runtimes.torch.trained_files import ModuleFile, free_parameters
from edgespec.runtimes.torch.weights import Weights

S = TypeVar("S", bound=msgspec.Struct)
M = TypeVar("M", bound=nn.Module)


@dataclass(frozen=True)
class TrainedFiles(Generic[S]):
    """What a `drafters.resident.Found` of them has, known by headers; of its own are `nbytes`, `resident`,
    and what else differs.

    files: the target's. prepares, auto: see `drafters.resident.Search`. label: as messages call it. layers:
    that a step goes through.
    """

    files: ModelFiles
    module: ModuleFile[S]
    prepares: bool = False
    auto: bool = False
    label: ClassVar[str]
    layers: ClassVar[int] = 1

    @property
    def slots(self) -> int:
        """Of what is drafted while the target verifies; 0 = nothing is."""
        return 0

    @property
    def through(self) -> int:
        """The target's last layers that a step goes through, too."""
        return 0

    @property
    def step_bytes(self) -> int:
        """Of its own parameters, that a step reads."""
        return self.module.nbytes

    def nbytes(self, context: int) -> int:
        """Bytes of the open module with one conversation of `context` positions, and of a step."""
        raise NotImplementedError

    @property
    def extras(self) -> Extras:
        """See `drafters.resident.Found`."""
        owners = {"drafter": self.nbytes}
        if self.prepares and self.slots:
            kept = kept_bytes(self.slots, self.files.config.vocab_size)
            owners["drawn drafts"] = lambda context: kept
        return Extras(owners, MustPin(self.label, "drafts with", (0,), self.through))

    def unused(self, plan: Plan) -> str | None:
        """See `drafters.resident.Found`."""
        return None

    def reads(self, plan: Plan) -> int:
        """See `drafters.resident.Found`."""
        return self.module.nbytes


class TrainedResident(Generic[M]):
    """An open one, shared by an engine's sessions; see `drafters.resident.Resident`."""

    rows = 0

    def __init__(
        self,
        name: str,
        module: M,
        found: TrainedFiles[S],
        plan: Plan,
        target: TorchTarget[Weights],
        progress: Callable[[int], None],
    ) -> None:
        """Reads the module. Raises CorruptFileError for a damaged file, StorageError."""
        self.name, self.module, self.target = name, module, target
        found.module.read(module)
        progress(found.module.nbytes)
        self.nbytes = found.step_bytes + sum(c.nbytes for c in plan.table.end(found.through))

    def close(self) -> None:
        free_parameters(self.module)
