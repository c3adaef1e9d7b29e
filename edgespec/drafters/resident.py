"""What a kind of drafter finds, needs and opens: the contracts of `drafters.kinds`. Needs no torch."""

from __future__ import annotations

from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any, Protocol, runtime_checkable

import numpy as np
from numpy.typing import NDArray

from edgespec.config import EngineOptions
from edgespec.core.trace import Round
from edgespec.drafters.base import Drafter
from edgespec.offload.plan.needs import Extras
from edgespec.offload.plan.plan import Plan
from edgespec.progress import LoadCallback

if TYPE_CHECKING:
    import torch

    from edgespec.runtimes.base import KVCache
    from edgespec.runtimes.formats.describe import ModelFiles
    from edgespec.runtimes.target import EarlyExit, Target
    from edgespec.text.tokenizer import Tokenizer


@dataclass(frozen=True)
class Served:
    """A server that drafts, as the options name it. key_file, ca: files of its key, and of certificates to
    trust."""

    url: str
    key_file: str | None = None
    ca: str | None = None

    @staticmethod
    def of(options: EngineOptions) -> Served | None:
        url = options.draft_server
        return None if url is None else Served(url, options.draft_key_file, options.draft_ca)


@dataclass(frozen=True)
class Search:
    """What an engine's drafters are looked for by."""

    drafter: str  # the option: "auto", or names
    members: tuple[str, ...]  # the kinds that it means
    files: ModelFiles  # the target's
    tokenizer: Tokenizer  # the target's
    given: Mapping[str, Path] = field(default_factory=dict)  # by option: what those of the kinds name
    device: str = "cpu"
    worker: int | None = None  # threads of a process beside the target that drafts; None = there is none
    engine: str = "torch"  # that runs a draft model, as `drafters.engines` has it
    prepares: bool = (
        False  # they may draft while the target verifies: what chains are drawn from is kept then
    )
    several: bool = False  # conversations share passes: each follows the target in few slots
    server: Served | None = None
    verifier_layers: int | None = None  # of the target, before a cascade's shallow verifier; None = it shows

    @property
    def auto(self) -> bool:
        """Whether whatever there is will do."""
        return self.drafter == "auto"


class Found(Protocol):
    """What there is of one kind to draft with, known by headers."""

    @property
    def extras(self) -> Extras:
        """What it keeps in memory beside the target."""

    def unused(self, plan: Plan) -> str | None:
        """Why this plan leaves it out; None = it drafts."""

    def reads(self, plan: Plan) -> int:
        """Bytes that `resident` reads."""

    def resident(self, target: Target, plan: Plan, progress: LoadCallback) -> Resident:
        """Read its weights; `progress` gets bytes. Raises CorruptFileError and StorageError."""


Find = Callable[[Search, dict[str, Found]], Found | None]
"""Looks for one kind; None = there is nothing. It may take what was found of others, as parts of its own.

Raises OptionError for what is not there or of no use; ModelError or TokenizerError for unfit files.
"""


class Resident(Protocol):
    """An open drafter, shared by an engine's sessions."""

    name: str  # of its kind
    nbytes: int  # that one step of drafting reads from memory
    rows: int  # positions' worth of slots that each further session of it takes, beside the target's

    def drafter(self, cache: KVCache, vocabulary: int) -> Drafter:
        """For the conversation whose cache this is, of the target."""

    def close(self) -> None:
        """Free its memory; sessions must not draft with it any more."""


@runtime_checkable
class Outside(Protocol):
    """A drafter whose memory is another process's."""

    @property
    def outside(self) -> int:
        """Most bytes that this has taken."""

    @property
    def placement(self) -> str:
        """What of it runs where, in words, where its engine has several providers; else nothing."""

    @property
    def gone(self) -> bool:
        """The process has ended, or is to: it drafts no more, and its memory is free."""

    @property
    def away(self) -> str | None:
        """Why it drafts nothing now, though it may later; None = it is there, or gone for good."""

    def listen(self, listener: Callable[[Round], None] | None) -> None:
        """Who hears of its rounds, in a thread of its own; must be quick and raise nothing. None = nobody."""


def away(drafters: Sequence[Resident]) -> str | None:
    """Why one of these drafts nothing now, though it may later; None = there is none such."""
    return next((one.away for one in drafters if isinstance(one, Outside) and one.away), None)


@runtime_checkable
class Sharing(Protocol):
    """A drafter that reads what the target has pinned."""

    def share(self, copied: Collection[int]) -> None:
        """Between two passes: the target's chunks `copied` are pinned no more, or never were; read copies.
        Raises CorruptFileError and StorageError, and can then only be closed."""


class ExitFound(Protocol):
    """A trained early exit of the target, for a schedule that asks one; known by headers."""

    @property
    def extras(self) -> Extras:
        """What it keeps in memory beside the target."""

    @property
    def reads(self) -> int:
        """Bytes that `open` reads."""

    def open(self, target: Target, progress: Callable[[int], None]) -> Exits:
        """Read its weights; `progress` gets bytes. Raises CorruptFileError and StorageError."""


class Exits(Protocol):
    """An open one, shared by an engine's sessions."""

    def exit(self, cache: KVCache) -> EarlyExit:
        """For the conversation whose cache this is, of the target."""

    def close(self) -> None:
        """Free its memory; sessions must not ask it any more."""


class MemoryFound(Protocol):
    """A network that makes what drafters elsewhere attend to; known by headers."""

    @property
    def extras(self) -> Extras:
        """What it keeps in memory beside the target."""

    @property
    def reads(self) -> int:
        """Bytes that `open` reads."""

    def open(self, device: torch.device, progress: Callable[[int], None]) -> Remembering:
        """Read its weights; `progress` gets bytes. Raises CorruptFileError and StorageError."""


class Remembering(Protocol):
    """An open one; see `split.recall`.

    Attributes:
        digest: of the network, by which clients know theirs.
        width: numbers of a token.
        each: of one of its vectors: of `width` numbers, so many have a scale together.
        step: tokens that are done in milliseconds.
    """

    digest: bytes
    width: int
    each: int
    step: int

    def vectors(self, spans: Sequence[tuple[Any, range]]) -> NDArray[np.float32]:
        """Of committed tokens of conversations' caches, one behind the other, [n, width]."""


@dataclass(frozen=True)
class Drafters:
    """What an engine may draft with, by kind, known by headers."""

    found: Mapping[str, Found]
    reasons: tuple[str, ...] = ()  # why something that is there is not used
    spare: Mapping[str, str] = field(default_factory=dict)  # label of those to do without for want of room
    exit: ExitFound | None = None  # that tells them what the target is about to say
    memory: MemoryFound | None = None  # that clients' own drafters attend to

    @property
    def extras(self) -> Extras:
        """What all of them keep in memory."""
        parts = [found.extras for found in self.found.values()]
        beside = [found.extras for found in (self.exit, self.memory) if found is not None]
        return Extras.joined([*parts, *beside])

    def without_spare(self) -> Drafters:
        kept = {name: found for name, found in self.found.items() if name not in self.spare}
        why = f"no room to draft with {' and '.join(self.spare.values())}"
        return replace(self, found=kept, reasons=(*self.reasons, why), spare={})

    def used(self, plan: Plan) -> list[Found]:
        return [found for found in self.found.values() if found.unused(plan) is None]

    def reads(self, plan: Plan) -> int:
        """Bytes that `open` reads."""
        beside = [found.reads for found in (self.exit, self.memory) if found is not None]
        return sum(found.reads(plan) for found in self.used(plan)) + sum(beside)

    def open(self, target: Target, plan: Plan, progress: LoadCallback) -> list[Resident]:
        """Read the weights of what the plan uses. Raises CorruptFileError and StorageError."""
        opened: list[Resident] = []
        try:
            for found in self.used(plan):
                opened.append(found.resident(target, plan, progress))
        except BaseException:
            for resident in opened:
                resident.close()
            raise
        return opened
