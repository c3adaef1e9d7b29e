"""A draft model that was exported for ONNX Runtime: are its tokens the target's, what does it need, run it in
a process of its own. No torch."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

from edgespec.drafters.beside import Beside
from edgespec.drafters.channel import Load
from edgespec.drafters.model import DRAFT_ROWS, further_rows
from edgespec.drafters.process import command
from edgespec.drafters.resident import Found, Resident, Search
from edgespec.drafters.vocabulary import check_vocabulary, vocabulary_digest
from edgespec.drafters.worker import Opened, run
from edgespec.errors import OptionError, TokenizerError
from edgespec.offload.plan.needs import Extras
from edgespec.offload.plan.plan import Plan
from edgespec.runtimes.onnx.directory import Exported, open_exported
from edgespec.runtimes.onnx.draft import OnnxDraft
from edgespec.runtimes.onnx.model import OnnxModel, model_bytes
from edgespec.runtimes.onnx.providers import find_provider
from edgespec.runtimes.target import Target
from edgespec.text.tokenizer import Tokenizer

# A process without torch before it has a model: interpreter, numpy, tokenizer's and ONNX Runtime's libraries
# (measured, Linux, ONNX Runtime 1.32: 45 MB, and 55 more with a first graph).
WORKER_BYTES = 110 * 10**6


def find(search: Search, found: dict[str, Found]) -> ExportedFiles:
    """The exported model that is named.

    Raises ModelError for files that are damaged, of another EdgeSpec, or older than their source,
    TokenizerError when its tokens are not the target's, OptionError, DeviceError and MissingExtraError for a
    provider that is not there.
    """
    provider = search.engine.partition(":")[2] or "cpu"
    find_provider(provider)
    assert search.worker is not None
    return ExportedFiles(search.given["draft_model"], search.tokenizer, search.worker, provider)


def slots_of(exported: Exported) -> int:
    """Slots of a conversation: a quarter of static positions, at most what a forest asks for."""
    return min(DRAFT_ROWS, exported.manifest.positions // 4 or DRAFT_ROWS)


class ExportedFiles:
    """An exported model on disk, checked. See `drafters.resident.Found`."""

    def __init__(self, path: Path, tokenizer: Tokenizer, threads: int, provider: str) -> None:
        """`tokenizer` is the target's. Raises as `find`."""
        self.path, self.threads, self.provider = path, threads, provider
        self.exported = open_exported(path)
        check_tokens(self.exported, tokenizer)

    @property
    def extras(self) -> Extras:
        return Extras({"drafter": self.nbytes, "draft worker": lambda context: WORKER_BYTES})

    def nbytes(self, context: int) -> int:
        """Bytes of the open model with one conversation of `context` positions."""
        return model_bytes(self.exported, context, slots_of(self.exported))

    def unused(self, plan: Plan) -> str | None:
        """Raises OptionError where the plan's context is more than static shapes have room for."""
        positions = self.exported.manifest.positions
        most = positions - slots_of(self.exported)
        if positions and min(plan.context, self.exported.config.max_context) > most:
            raise OptionError(
                f"{self.path} was exported for {positions} positions, of which {positions - most} are for "
                f"drafts; the context is {plan.context}: use context={most}, or export it with more "
                "positions="
            )
        return None

    def reads(self, plan: Plan) -> int:
        return self.exported.nbytes

    def resident(self, target: Target, plan: Plan, progress: Callable[[int], None]) -> Resident:
        """Raises as `process.Worker`."""
        own = self.exported.config.kv_bytes(1, self.exported.element)
        rows = further_rows(slots_of(self.exported), own, target.config)
        load = Load(str(self.path.resolve()), self.threads, self.provider)
        program = command("edgespec.drafters.onnx_model:main")
        return Beside(load, self.exported.nbytes, rows, progress, program)


def check_tokens(exported: Exported, tokenizer: Tokenizer) -> None:
    """Raises TokenizerError, with examples, where an exported model's tokens are not those of a target's
    `tokenizer`."""
    ids = tokenizer.backend.get_vocab(with_added_tokens=True)
    if vocabulary_digest(ids) == exported.manifest.vocabulary:
        return
    own = Tokenizer.from_directory(exported.path, exported.config.vocab_size)
    check_vocabulary(ids, own.backend.get_vocab(with_added_tokens=True), str(exported.path))
    raise TokenizerError(
        f"{exported.path} has a tokenizer that its manifest does not name; export the model again",
        hint=exported.again,
    )


def onnx_model(load: Load, progress: Callable[[int], None]) -> Opened:
    """An exported model, run by ONNX Runtime; see `drafters.worker.OpenModel`. Raises as `open_exported` and
    `OnnxModel`."""
    exported = open_exported(Path(load.model))
    model = OnnxModel(exported, load.provider, load.threads)
    progress(exported.nbytes)
    return Opened(lambda capacity: OnnxDraft(model, capacity, slots_of(exported)), str(model.placement))


def main() -> None:
    """What the worker process runs."""
    run(onnx_model)
