"""A draft model that was exported for another engine: are its tokens the target's, what does it need, and its
process. No torch."""

from __future__ import annotations

from collections.abc import Callable
from math import ceil
from pathlib import Path
from typing import Protocol

from edgespec.drafters.beside import Beside
from edgespec.drafters.channel import Load
from edgespec.drafters.model import DRAFT_ROWS, PASS_ROWS
from edgespec.drafters.process import Program
from edgespec.drafters.resident import Resident
from edgespec.drafters.vocabulary import check_vocabulary, vocabulary_digest
from edgespec.errors import Call, OptionError, TokenizerError
from edgespec.offload.plan.needs import Extras
from edgespec.offload.plan.plan import Plan
from edgespec.progress import LoadCallback
from edgespec.runtimes.base import TREE_ROWS
from edgespec.runtimes.config import ModelConfig
from edgespec.runtimes.target import Target
from edgespec.text.tokenizer import Tokenizer

# A process without torch before it has a model: interpreter, numpy, tokenizer's and ONNX Runtime's libraries
# (measured, Linux, ONNX Runtime 1.32: 45 MB, and 55 more with a first graph).
WORKER_BYTES = 110 * 10**6
INSTEAD = "name what it was exported from to draft with torch"  # where the process does not start


class StaticShapes(Protocol):
    """What it says of itself. positions: of a conversation, with static shapes; 0 = any. vocabulary: its
    digest."""

    positions: int
    vocabulary: str


class ExportedModel(Protocol):
    """An exported model on disk, checked."""

    @property
    def path(self) -> Path: ...

    @property
    def config(self) -> ModelConfig: ...

    @property
    def manifest(self) -> StaticShapes: ...

    @property
    def nbytes(self) -> int:
        """Of the weights that a pass reads."""

    @property
    def cached(self) -> int:
        """Positions of a conversation's caches, with static shapes; 0 = any."""

    @property
    def element(self) -> int:
        """Bytes of a number of the cache."""

    @property
    def again(self) -> Call:
        """What exports the model anew."""


def slots_of(exported: ExportedModel) -> int:
    """Slots of a conversation."""
    return slots_in(exported.manifest.positions)


def slots_in(positions: int) -> int:
    """A quarter of static positions, at most what a forest asks for; 0 = any positions."""
    return min(DRAFT_ROWS, positions // 4 or DRAFT_ROWS)


class ExportedFiles:
    """An exported model on disk, checked. See `drafters.resident.Found`."""

    def __init__(
        self,
        exported: ExportedModel,
        tokenizer: Tokenizer,
        load: Load,
        program: Program,
        model_bytes: Callable[[int, int], int],
        streamed_rows: int = 0,
    ) -> None:
        """tokenizer: the target's. load, program: of its process. model_bytes: of the open model with one
        conversation of so many positions, and slots. streamed_rows: of a pass with lookahead streams. Raises
        as `check_tokens`."""
        self.exported, self.load, self.program, self.model_bytes = exported, load, program, model_bytes
        self.pass_rows = max(PASS_ROWS, streamed_rows)
        check_tokens(exported, tokenizer)

    @property
    def extras(self) -> Extras:
        return Extras({"drafter": self.nbytes, "draft worker": lambda context: WORKER_BYTES})

    def nbytes(self, context: int) -> int:
        """Bytes of the open model with one conversation of `context` positions."""
        return self.model_bytes(context, slots_of(self.exported)) + self.logits_bytes

    @property
    def logits_bytes(self) -> int:
        """Of a conversation's pass, which are there until it has ended."""
        return 4 * self.pass_rows * self.exported.config.vocab_size

    def further_rows(self, target: ModelConfig) -> int:
        """See `drafters.resident.Resident.rows`. A cache of static shapes is as large for any context."""
        own = self.exported.config.kv_bytes(1, self.exported.element)
        positions = self.exported.cached or max(slots_of(self.exported) - TREE_ROWS, 0)
        return ceil((positions * own + self.logits_bytes) / (own + target.kv_bytes(1, 2)))

    def unused(self, plan: Plan) -> str | None:
        """Raises OptionError where the plan's context is more than static shapes have room for."""
        positions = self.exported.manifest.positions
        most = positions - slots_of(self.exported)
        if positions and min(plan.context, self.exported.config.max_context) > most:
            raise OptionError(
                f"{self.exported.path} was exported for {positions} positions, of which "
                f"{positions - most} are for drafts; the context is {plan.context}: use context={most}, or "
                "export it with more positions="
            )
        return None

    def reads(self, plan: Plan) -> int:
        return self.exported.nbytes

    def resident(self, target: Target, plan: Plan, progress: LoadCallback) -> Resident:
        """Raises as `process.Worker`."""
        rows = self.further_rows(target.config)
        return Beside(self.load, self.exported.nbytes, rows, progress, self.program)


def check_tokens(exported: ExportedModel, tokenizer: Tokenizer) -> None:
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
