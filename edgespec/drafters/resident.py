"""Drafters that take memory from the target: which of them an engine can have, and opening them."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Protocol

from edgespec.drafters.base import Drafter
from edgespec.drafters.cascade.files import Cascade, CascadeFiles, find_cascade
from edgespec.drafters.draft_model import DraftFiles, DraftModel
from edgespec.drafters.substitute import Substitute, find_copy, how_to
from edgespec.errors import OptionError
from edgespec.offload.plan.needs import Extras, MustPin, StandIn
from edgespec.offload.plan.plan import Plan
from edgespec.runtimes.base import TREE_ROWS
from edgespec.runtimes.formats.describe import ModelFiles
from edgespec.runtimes.torch.kv_cache import TorchKVCache, overlay_bytes
from edgespec.runtimes.torch.substitute import LowBitCopy
from edgespec.runtimes.torch.target import TorchTarget
from edgespec.runtimes.torch.weights import Weights
from edgespec.text.tokenizer import Tokenizer

USUAL_STEPS = 8  # of drafting with a low-bit copy, in a cycle


class Resident(Protocol):
    """An open drafter, shared by an engine's sessions."""

    name: str  # as in --drafter
    nbytes: int  # that one step of drafting reads from memory

    def drafter(self, cache: TorchKVCache, vocabulary: int) -> Drafter:
        """For the conversation whose cache this is, of the target."""

    def close(self) -> None:
        """Free its memory; sessions must not draft with it any more."""


@dataclass(frozen=True)
class ResidentFiles:
    """What there is to draft with, known by headers."""

    model: DraftFiles | None = None
    copy: LowBitCopy | None = None
    cascade: CascadeFiles | None = None
    reason: str | None = None  # why something that is there is not used

    def nbytes(self, plan: Plan) -> int:
        """That `open` reads."""
        model = self.model.files.table.nbytes if self.model else 0
        adapters = self.cascade.weight_bytes if self.cascade and plan.depth else 0
        return model + adapters + plan.owners.get("substitute", 0)

    def extras(self, files: ModelFiles) -> Extras:
        """What stays in memory, of a target of these files."""
        held = [found for found in (self.model, self.cascade) if found is not None]
        reason = "drafts read the low-bit copy alone: quicker than the pinned layers as they are"
        nbytes = overlay_bytes(files.config, TREE_ROWS, files.dtype)
        overlay = {} if self.cascade else {"draft overlay": nbytes}
        return Extras(
            {"drafter": lambda context: sum(found.nbytes(context) for found in held)} if held else {},
            MustPin("the cascade", "drafts in", self.cascade.depths) if self.cascade else None,
            StandIn("substitute", self.copy.nbytes, USUAL_STEPS, reason, overlay) if self.copy else None,
        )

    def open(
        self, files: ModelFiles, plan: Plan, target: TorchTarget[Weights], progress: Callable[[int], None]
    ) -> list[Resident]:
        """Read the weights of what the plan has room for; `progress` gets bytes.

        Raises CorruptFileError and StorageError.
        """
        opened: list[Resident] = []
        if self.model is not None:
            opened.append(DraftModel(self.model, progress))
        if self.cascade is not None and plan.depth:
            opened.append(Cascade(self.cascade, plan, target, progress))
        elif self.copy is not None and plan.owners.get("substitute"):
            opened.append(Substitute(files, self.copy, target.weights, plan.copied, progress))
        return opened


def find_resident(
    drafter: str,
    members: tuple[str, ...],
    files: ModelFiles,
    named: Path | None,
    tokenizer: Tokenizer,
    adapters: Path | None = None,
) -> ResidentFiles:
    """What `members` of the option `drafter` can use; `named` is --draft-model, a small model or a copy,
    `adapters` a cascade's directory.

    Under `auto`, a named model or copy is all; without one, the copy that was packed with the model.

    Raises OptionError for a substitute that is asked for and not there, ModelError and TokenizerError for
    files that will not do.
    """
    if "cascade" in members and "substitute" not in members:
        assert adapters is not None
        return ResidentFiles(cascade=find_cascade(adapters, files, None))
    reason = None
    try:
        copy = find_copy(files, named) if "substitute" in members else None
    except OptionError as error:
        if drafter != "auto" or named is not None:
            raise
        copy, reason = None, str(error)
    if named is None or copy is not None:
        if "substitute" in members and copy is None and drafter != "auto":
            raise OptionError(f"{files.path} has no low-bit copy to draft with; {how_to(files)}")
        found = find_cascade(adapters, files, copy) if "cascade" in members and adapters is not None else None
        return ResidentFiles(copy=copy, cascade=found, reason=reason)
    if "model" not in members:
        raise OptionError(f"{named} is not a packed low-bit copy of {files.path}; {how_to(files)}")
    if drafter != "auto" and "substitute" in members:
        copy = find_copy(files)
    return ResidentFiles(DraftFiles(named, tokenizer), copy)
