"""The target itself as its drafter: a low-bit copy of what would be streamed, and what is pinned as it is.

SubSpec (arXiv 2509.18344). Where that is quicker the copy stands for pinned layers, too (`offload.fill`). It
follows no tokens: it attends to the target's own keys and values of the committed prefix. Those of its drafts
lie in an overlay, so that it may draft while the target verifies.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Generator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from edgespec.core.acceptance import Outcome
from edgespec.core.schedule import Context, TreeBudget
from edgespec.core.tree import TokenTree
from edgespec.drafters.base import Drafting, DraftingAhead, Root, committed
from edgespec.drafters.forest import Forest, Room, kept_bytes
from edgespec.drafters.growth import MAX_PASSES
from edgespec.drafters.low_bit import AHEAD_ROWS, OVERLAY_ROWS, copy_extras, stand_in
from edgespec.drafters.resident import Found, Search
from edgespec.drafters.rounds import go_ahead, grow
from edgespec.errors import Call, OptionError
from edgespec.offload.chunk_store import is_store
from edgespec.offload.plan.needs import Extras, StandIn
from edgespec.offload.plan.plan import Plan
from edgespec.runtimes.base import DraftRuntime, KVCache
from edgespec.runtimes.formats.describe import ModelFiles, describe_model
from edgespec.runtimes.formats.needs import overlay_positions
from edgespec.runtimes.formats.packed import SUBSTITUTE
from edgespec.runtimes.target import Target
from edgespec.runtimes.torch.draft import TorchDraft
from edgespec.runtimes.torch.substitute import LowBitCopy, SubstituteWeights
from edgespec.runtimes.torch.target import TorchTarget
from edgespec.runtimes.torch.weights import Weights


def find(search: Search, found: dict[str, Found]) -> CopyFiles | None:
    """The copy that is named, or was packed with the target; under auto None when there is none.

    Raises ModelError and OptionError for a copy that is damaged, of no use, or asked for and not there.
    """
    files, named = search.files, search.given.get("draft_model")
    copy = find_copy(files, named)
    if copy is None and search.auto:
        return None
    if copy is None and named is not None:
        if "model" not in search.members:
            raise _without(f"{named} is not a packed low-bit copy of {files.path}", files)
        copy = find_copy(files)
    if copy is None:
        raise _without(f"{files.path} has no low-bit copy to draft with", files)
    return CopyFiles(files, copy, search.prepares)


def is_copy(path: Path, files: ModelFiles) -> bool:
    """Whether `path` was packed from the same checkpoint as these files."""
    return is_store(path) and describe_model(path).digest == files.digest


def find_copy(files: ModelFiles, named: Path | None = None) -> LowBitCopy | None:
    """The low-bit copy of a model: the directory `named`, if it is one, else what was packed with the model.

    Raises ModelError and OptionError for a copy that is damaged or of no use.
    """
    path = files.path / SUBSTITUTE if named is None and is_store(files.path) else named
    if path is None or not is_store(path):
        return None
    copy = describe_model(path)
    if copy.digest != files.digest:
        if named is not None:
            return None  # another model
        raise _without(f"{path} was not packed from the same checkpoint as {files.path}", files)
    return LowBitCopy(copy.table, files.table)


def _without(fact: str, files: ModelFiles) -> OptionError:
    """There is no low-bit copy, and what to do about it."""
    if files.table.precision == "int4":
        return OptionError(
            f"{fact}; an int4 model can have none that is smaller; use drafter=auto, or draft_model="
        )
    if is_store(files.path):
        hint = Call("pack_model", {"model": files.source, "out": str(files.path), "substitute": "int4"})
        return OptionError(f"{fact}; one can be added, and the other weights stay as they are", hint=hint)
    hint = Call("pack_model", {"model": str(files.path), "out": "DIR", "precision": "int4"})
    return OptionError(f"{fact}; make one and name it with draft_model=DIR", hint=hint)


@dataclass(frozen=True)
class CopyFiles:
    """A low-bit copy on disk, known by its headers; see `drafters.resident.Found`."""

    files: ModelFiles  # the target's
    copy: LowBitCopy
    prepares: bool = False  # see `drafters.resident.Search`

    @property
    def stand_in(self) -> StandIn:
        return stand_in(self.copy.nbytes)

    @property
    def extras(self) -> Extras:
        return copy_extras(self.copy.nbytes, self.files.config, self.files.element, self.prepares)

    def unused(self, plan: Plan) -> str | None:
        return None if self.reads(plan) else "nothing streams, so the low-bit copy is not used"

    def reads(self, plan: Plan) -> int:
        return plan.owners.get(self.stand_in.owner, 0)

    def resident(self, target: Target, plan: Plan, progress: Callable[[int], None]) -> Substitute:
        target = torch_target(target, "the low-bit copy")  # what is pinned of it serves both
        return Substitute(self.files, self.copy, target.weights, plan.copied, progress)


def torch_target(target: Target, drafter: str) -> TorchTarget[Any]:
    """Raises OptionError for another runtime's target, whose weights and layers this drafter cannot share."""
    if not isinstance(target, TorchTarget):
        raise OptionError(
            f"{drafter} drafts with the weights of a target that torch runs, and this one is a "
            f"{type(target).__name__}; use drafter=ngram or none"
        )
    return target


class Substitute:
    """An open low-bit copy; see `drafters.resident.Resident`."""

    name = "substitute"
    rows = overlay_positions(OVERLAY_ROWS)

    def __init__(
        self,
        files: ModelFiles,
        copy: LowBitCopy,
        target: Weights,
        copied: Collection[int],
        progress: Callable[[int], None] | None = None,
    ) -> None:
        """Reads what stands for the target's chunks `copied`. Raises CorruptFileError and StorageError."""
        self.weights = SubstituteWeights(target, copy, copied, progress)
        self.model = TorchTarget(files.config, self.weights, OVERLAY_ROWS)
        self.nbytes = self.weights.nbytes
        self.room = Room(kept_bytes(OVERLAY_ROWS, files.config.vocab_size))

    def drafter(self, cache: KVCache, vocabulary: int) -> SubstituteDrafter:
        runtime = TorchDraft(self.model, cache.overlay(OVERLAY_ROWS))
        return SubstituteDrafter(runtime, cache, vocabulary, self.room)

    def share(self, copied: Collection[int]) -> None:
        """See `drafters.resident.Sharing`."""
        self.weights.share(copied)
        self.nbytes = self.weights.nbytes

    def close(self) -> None:
        self.weights.close()


class SubstituteDrafter:
    """See `drafters.base.Drafter`. `cache` is the conversation's own, the target's; `runtime` is the copy's,
    in an overlay of it. `vocabulary`, `room`: see `drafters.forest.Forest`."""

    resident = True
    passes = range(1, MAX_PASSES + 1)
    width = 8
    ahead_width = AHEAD_ROWS

    def __init__(
        self, runtime: DraftRuntime, cache: KVCache, vocabulary: int, room: Room | None = None
    ) -> None:
        self.runtime, self.target = runtime, cache
        self.forest = Forest(runtime, vocabulary, room)
        self.context = Context([])

    def prefill(self, context: Context) -> None:
        self.context = context
        self.forest.drop(self.target.length)

    def start(self, roots: Sequence[Root], budget: TreeBudget) -> Drafting:
        self.forest.renew()
        return grow(self, roots, budget)

    def prepared(self) -> bool:
        return self.forest.kept

    def ahead(self, tree: TokenTree, budget: TreeBudget, fan_out: Sequence[int] = ()) -> DraftingAhead:
        self.forest.renew()
        return go_ahead(self, tree, budget, fan_out)

    def commit(self, root: int, outcome: Outcome) -> None:
        """The target has committed its own keys and values."""
        fresh = committed(root, outcome)
        if self.forest.commit(fresh, outcome.tokens[-1]) < len(fresh):
            self.forest.drop(self.target.length)

    @property
    def position(self) -> int:
        """See `drafters.growth.Grower`."""
        return self.target.length

    def trunk(self) -> Generator[None, None, Sequence[int]]:
        """See `drafters.growth.Grower`: it follows as the target does."""
        yield from ()
        return ()
