"""A cascade's files: which adapters, how many bytes, what must be pinned; and the open cascade."""

from __future__ import annotations

from collections.abc import Callable, Collection
from dataclasses import dataclass, replace
from pathlib import Path

from edgespec.drafters.cascade.drafter import CascadeDrafter
from edgespec.drafters.cascade.exits import AdapterExit, Exit, SubstituteExit
from edgespec.drafters.cascade.tree import Calibration
from edgespec.drafters.cascade.variant import VARIANTS, Variant
from edgespec.drafters.resident import Found, Search
from edgespec.drafters.substitute import CopyFiles, torch_target
from edgespec.errors import ModelError, OptionError
from edgespec.offload.plan.needs import Extras, MustPin
from edgespec.offload.plan.plan import Plan
from edgespec.runtimes.base import TREE_ROWS, KVCache
from edgespec.runtimes.formats.describe import ModelFiles
from edgespec.runtimes.formats.trained import how_to_train
from edgespec.runtimes.target import Target
from edgespec.runtimes.torch.adapter import adapter_bytes, adapter_cache_bytes
from edgespec.runtimes.torch.adapter_files import KIND, AdapterFile, describe_adapters
from edgespec.runtimes.torch.substitute import SubstituteWeights
from edgespec.runtimes.torch.target import TorchTarget
from edgespec.runtimes.torch.trained_files import free_parameters
from edgespec.runtimes.torch.weights import Weights


@dataclass(frozen=True)
class CascadeFiles:
    """A draft adapter and shallow verifiers to choose from, known by their headers.

    verify: shallowest first; all deeper than the draft. Empty when the low-bit copy verifies.
    wanted: the number of layers behind which it is to verify; None = as many as there is room for.
    """

    files: ModelFiles
    draft: AdapterFile
    verify: tuple[AdapterFile, ...]
    copy: CopyFiles | None = None
    wanted: int | None = None

    @property
    def depths(self) -> tuple[int, ...]:
        """Numbers of first layers that may be pinned, with the LM head, for drafting."""
        if self.wanted is not None:
            return (self.wanted,)
        if self.copy is not None:
            return tuple(range(self.draft.depth, self.files.config.layers + 1))
        return tuple(a.depth for a in self.verify)

    def nbytes(self, context: int) -> int:
        """Bytes of the adapters, with one conversation of `context` positions."""
        config, dtype = self.files.config, self.files.dtype
        one = adapter_bytes(config, dtype) + adapter_cache_bytes(config, context, TREE_ROWS, dtype)
        states = 4 * TREE_ROWS * config.hidden_size * dtype.itemsize  # a forest's, and what is seen of passes
        return one * (2 if self.verify else 1) + states

    @property
    def extras(self) -> Extras:
        """See `drafters.resident.Found`."""
        pinned = MustPin("the cascade", "drafts in", self.depths)
        return Extras({"drafter": self.nbytes}, pinned, self.copy.stand_in if self.copy else None)

    def unused(self, plan: Plan) -> str | None:
        """See `drafters.resident.Found`."""
        return None if plan.depth else "no layers are pinned for the cascade"

    def reads(self, plan: Plan) -> int:
        """See `drafters.resident.Found`."""
        adapters = self.draft.nbytes + (self.verify[0].nbytes if self.verify else 0)
        return adapters + (self.copy.reads(plan) if self.copy else 0)

    def resident(self, target: Target, plan: Plan, progress: Callable[[int], None]) -> Cascade:
        """See `drafters.resident.Found`."""
        target = torch_target(target, "the cascade")  # adapters are torch's, a copy shares what is pinned
        return Cascade(self, plan, target, progress)


def find(search: Search, found: dict[str, Found]) -> CascadeFiles:
    """The adapters in the directory that is named; with a low-bit copy, if that is asked for, to verify.

    Raises as `find_cascade`.
    """
    copy = found.pop("substitute", None)
    assert copy is None or isinstance(copy, CopyFiles)
    return find_cascade(search.given["adapters"], search.files, copy, search.verifier_layers)


def find_cascade(
    directory: Path, files: ModelFiles, copy: CopyFiles | None, wanted: int | None = None
) -> CascadeFiles:
    """The shallowest draft adapter of a directory and all its verifiers, or with a low-bit copy that instead;
    `wanted`: see `CascadeFiles`.

    Raises ModelError when one is missing or not deeper than the draft, OptionError when none verifies where
    that is wanted, and as `describe_adapters`.
    """
    adapters = describe_adapters(directory, files)
    draft = next((a for a in adapters if a.role == "draft"), None)
    verify = tuple(a for a in adapters if a.role == "verify") if copy is None else ()
    if draft is None or (copy is None and not verify):
        missing = "draft" if draft is None else "verify"
        raise ModelError(f"{directory} has no {missing} adapter; train both", hint=how_to_train(KIND, files))
    if verify and verify[0].depth <= draft.depth:
        raise ModelError(
            f"{directory}: the verifier behind {verify[0].depth} layers is not deeper than the draft "
            f"behind {draft.depth}; train it again with more verify_layers="
        )
    found = CascadeFiles(files, draft, verify, copy)
    if wanted is not None and wanted not in found.depths:
        able = (
            ", ".join(map(str, found.depths)) if copy is None else f"{found.depths[0]} to {found.depths[-1]}"
        )
        raise OptionError(
            f"verifier_layers is {wanted}, and {directory} can verify behind {able} layers", "verifier_layers"
        )
    return replace(found, wanted=wanted)


def knows_better(verify: AdapterFile, draft: AdapterFile) -> bool:
    """Whether a shallow verifier says more often than the draft what the target says, as far as is known: one
    too shallow may not."""
    ours, least = verify.agreement, draft.agreement
    return ours is None or least is None or ours > least


class Cascade:
    """An open cascade, shared by an engine's sessions; see `drafters.resident.Resident`.

    `variant` is what new conversations draft with. Calibration is shared by all of them.
    """

    name = "cascade"
    rows = 0

    def __init__(
        self,
        found: CascadeFiles,
        plan: Plan,
        target: TorchTarget[Weights],
        progress: Callable[[int], None] = lambda nbytes: None,
    ) -> None:
        """Reads the adapters. Raises StorageError, and CorruptFileError for what is damaged."""
        config, dtype, device = found.files.config, found.files.dtype, target.device
        self.target = target
        self.draft = found.draft.open(config, dtype, device)
        progress(found.draft.nbytes)
        self.verify, self.variant = None, VARIANTS["tree"]
        for adapter in found.verify:
            if adapter.depth == plan.depth:
                self.verify = adapter.open(config, dtype, device)
                self.variant = VARIANTS["tree" if knows_better(adapter, found.draft) else "kangaroo-tree"]
                progress(adapter.nbytes)
        self.substitute: TorchTarget[SubstituteWeights] | None = None
        if found.copy is not None and plan.streamed:
            weights = SubstituteWeights(target.weights, found.copy.copy, plan.copied, progress)
            self.substitute = TorchTarget(config, weights, TREE_ROWS)
        self.depth = plan.depth
        self.calibrations = Calibration(), Calibration()
        layers = sum(c.nbytes for c in plan.table.chunks if c.layer < self.draft.depth)
        head = sum(c.nbytes for c in plan.table.end())
        self.nbytes = layers + head + self.draft.nbytes
        if self.variant.round:
            self.nbytes += self._verify_bytes(plan, head) // self.variant.round

    def _verify_bytes(self, plan: Plan, head: int) -> int:
        """The bytes that one shallow verification reads from memory."""
        if self.substitute is not None:
            return self.substitute.weights.nbytes
        if self.verify is None:
            return 0
        between = (c for c in plan.table.chunks if self.draft.depth <= c.layer < self.verify.depth)
        return sum(c.nbytes for c in between) + head + self.verify.nbytes

    def drafter(self, cache: KVCache, vocabulary: int = 0, variant: Variant | None = None) -> CascadeDrafter:
        """For the conversation whose cache this is; its `vocabulary` is the target's in any case."""
        verify: Exit | None = None
        if self.verify is not None:
            verify = AdapterExit(self.target, self.verify, cache.capacity)
        elif self.substitute is not None:
            verify = SubstituteExit(self.substitute, self.depth)
        draft = AdapterExit(self.target, self.draft, cache.capacity)
        return CascadeDrafter(self.target, cache, draft, verify, variant or self.variant, self.calibrations)

    def share(self, copied: Collection[int]) -> None:
        """See `drafters.resident.Sharing`."""
        if self.substitute is not None:
            self.substitute.weights.share(copied)

    def close(self) -> None:
        if self.substitute is not None:
            self.substitute.weights.close()
        for adapter in (self.draft, self.verify):
            if adapter is not None:
                free_parameters(adapter)
