"""A draft model's files: are its tokens the target's, how many bytes does it need, and open it."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

from edgespec.drafters.beside import Beside
from edgespec.drafters.channel import Load
from edgespec.drafters.forest import Room, kept_bytes
from edgespec.drafters.model import DRAFT_ROWS, ModelDrafter, further_rows
from edgespec.drafters.model_memory import model_extras
from edgespec.drafters.resident import Found, Resident, Search
from edgespec.drafters.substitute import is_copy
from edgespec.drafters.vocabulary import check_vocabulary
from edgespec.errors import OptionError
from edgespec.offload.plan.needs import Extras
from edgespec.offload.plan.plan import Plan
from edgespec.progress import LoadCallback
from edgespec.runtimes.base import TREE_ROWS, KVCache
from edgespec.runtimes.config import ModelConfig
from edgespec.runtimes.formats.describe import ModelFiles, describe_model
from edgespec.runtimes.target import Target
from edgespec.runtimes.torch.draft import TorchDraft, open_draft
from edgespec.runtimes.torch.machine import arithmetic
from edgespec.runtimes.torch.target import TorchTarget
from edgespec.runtimes.torch.weights import Weights
from edgespec.text.tokenizer import Tokenizer, load_tokenizer


def find(search: Search, found: dict[str, Found]) -> DraftFiles | None:
    """The small model that is named; under auto None when that is a low-bit copy of the target instead.

    Raises ModelError for damaged files, TokenizerError when its tokens are not the target's, OptionError when
    a copy is named as a draft model beside the substitute.
    """
    named = search.given["draft_model"]
    if "substitute" in search.members and is_copy(named, search.files):
        if search.auto:
            return None
        raise OptionError(
            f"{named} is a low-bit copy of {search.files.path}, and no model beside it; use "
            "drafter=substitute, or name a small model"
        )
    rows = TREE_ROWS if search.several else DRAFT_ROWS
    return DraftFiles(named, search.tokenizer, search.worker, search.prepares, rows)


class DraftFiles:
    """A draft model on disk, known by its headers.

    Raises ModelError for damaged files, TokenizerError when its tokens are not the target's.
    """

    def __init__(
        self,
        path: Path,
        tokenizer: Tokenizer,
        worker: int | None = None,
        prepares: bool = False,
        rows: int = DRAFT_ROWS,
    ) -> None:
        """`tokenizer` is the target's; `worker`, `prepares`: see `drafters.resident.Search`. rows: slots of a
        conversation, for its trees, beside what it has committed."""
        self.path, self.worker, self.prepares, self.rows = path, worker, prepares, rows
        self.files: ModelFiles = describe_model(path)
        own = load_tokenizer(self.files, path)
        check_vocabulary(
            tokenizer.backend.get_vocab(with_added_tokens=True),
            own.backend.get_vocab(with_added_tokens=True),
            str(path),
        )

    @property
    def extras(self) -> Extras:
        """See `drafters.resident.Found`."""
        return model_extras(self.files, arithmetic(), self.worker is not None, self.prepares, self.rows)

    def unused(self, plan: Plan) -> str | None:
        """See `drafters.resident.Found`."""
        return None

    def reads(self, plan: Plan) -> int:
        """See `drafters.resident.Found`."""
        return self.files.table.nbytes

    def resident(self, target: Target, plan: Plan, progress: LoadCallback) -> Resident:
        """See `drafters.resident.Found`; raises as `DraftFiles.open`, and as `process.Worker`."""
        rows = self.further_rows(target.config)
        if self.worker is None:
            return DraftModel(self, rows, progress)
        load = Load(str(self.path.resolve()), self.worker)
        return Beside(load, self.files.table.nbytes, rows, progress)

    def further_rows(self, target: ModelConfig) -> int:
        """See `drafters.resident.Resident.rows`."""
        return further_rows(self.rows, self.files.config.kv_bytes(1, self.files.dtype.itemsize), target)

    def open(self, progress: Callable[[int], None] | None = None) -> TorchTarget[Weights]:
        """Read all its weights. Raises StorageError and CorruptFileError; `progress` gets bytes read."""
        return open_draft(self.files, self.rows, progress)


class DraftModel:
    """An open draft model; see `drafters.resident.Resident`."""

    name = "model"

    def __init__(self, files: DraftFiles, rows: int, progress: Callable[[int], None] | None = None) -> None:
        """Reads all its weights; raises as `DraftFiles.open`."""
        self.rows = rows
        self.model = files.open(progress)
        self.nbytes = files.files.table.nbytes
        self.room = Room(kept_bytes(files.rows, files.files.config.vocab_size))

    def drafter(self, cache: KVCache, vocabulary: int) -> ModelDrafter:
        return ModelDrafter(TorchDraft.alone(self.model, cache.capacity), vocabulary, self.room)

    def close(self) -> None:
        self.model.weights.close()
