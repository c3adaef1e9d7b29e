"""The target itself as its drafter: a low-bit copy of what would be streamed, and what is pinned as it is.

SubSpec (arXiv 2509.18344). Where that is quicker the copy stands for pinned layers, too (`offload.fill`). It
follows no tokens: it attends to the target's own keys and values of the committed prefix. Those of its drafts
lie in an overlay, so that it may draft while the target verifies.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Generator, Sequence
from pathlib import Path

from edgespec.core.acceptance import Outcome
from edgespec.core.schedule import Context, TreeBudget
from edgespec.drafters.base import Drafting, Root, committed
from edgespec.drafters.forest import Forest
from edgespec.drafters.growth import MAX_PASSES, grow
from edgespec.errors import OptionError
from edgespec.offload.chunk_store import is_store
from edgespec.runtimes.base import TREE_ROWS, DraftRuntime, KVCache
from edgespec.runtimes.formats.describe import ModelFiles, describe_model
from edgespec.runtimes.formats.packed import SUBSTITUTE
from edgespec.runtimes.torch.draft import TorchDraft
from edgespec.runtimes.torch.substitute import LowBitCopy, SubstituteWeights
from edgespec.runtimes.torch.target import TorchTarget
from edgespec.runtimes.torch.weights import Weights


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
        raise OptionError(f"{path} was not packed from the same checkpoint as {files.path}; {how_to(files)}")
    return LowBitCopy(copy.table, files.table)


def how_to(files: ModelFiles) -> str:
    """What to do when there is no low-bit copy."""
    if files.table.precision == "int4":
        return "an int4 model can have none that is smaller; use --drafter auto, or --draft-model"
    if is_store(files.path):
        command = f"edgespec pack {files.source} -o {files.path} --substitute int4"
        return f"`{command}` adds one and leaves the other weights as they are"
    return (
        f"make one with `edgespec pack {files.path} -o DIR --precision int4` and name it with "
        "--draft-model DIR"
    )


class Substitute:
    """An open low-bit copy; see `drafters.resident.Resident`."""

    name = "substitute"

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
        self.model = TorchTarget(files.config, self.weights, TREE_ROWS)
        self.nbytes = self.weights.nbytes

    def drafter(self, cache: KVCache, vocabulary: int) -> SubstituteDrafter:
        return SubstituteDrafter(TorchDraft(self.model, cache.overlay(TREE_ROWS)), cache, vocabulary)

    def close(self) -> None:
        self.weights.close()


class SubstituteDrafter:
    """See `drafters.base.Drafter`. `cache` is the conversation's own, the target's; `runtime` is the copy's,
    in an overlay of it."""

    passes = range(1, MAX_PASSES + 1)
    width = 1  # its kernel for int4 costs nearly as much again for every further row (benchmarks/kernels.py)

    def __init__(self, runtime: DraftRuntime, cache: KVCache, vocabulary: int) -> None:
        self.runtime, self.target = runtime, cache
        self.forest = Forest(runtime, vocabulary)
        self.context = Context([])

    def prefill(self, context: Context) -> None:
        self.context = context
        self.forest.drop(self.target.length)

    def start(self, roots: Sequence[Root], budget: TreeBudget) -> Drafting:
        self.forest.renew()
        return grow(self, roots, budget)

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
