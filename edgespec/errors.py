"""Every error a user can cause or meet, as one tree.

    EdgeSpecError
    ├── OptionError             an option is unknown, malformed, or does not apply here
    ├── ModelError              something is wrong with a model's files
    │   ├── UnsupportedModelError   the architecture, the quantisation or a tensor's type is not known
    │   ├── CorruptFileError        truncated, overlapping, or failing its checksum
    │   └── TokenizerError          missing, or does not match the model
    ├── BudgetError             the memory dial is too small; names each owner of bytes
    ├── ContextError            prompt and reply would pass the context
    ├── BusyError               what was asked for is in use: a pass is under way there
    ├── OverloadError           as many requests wait as may; names the seconds until one more could
    ├── StorageError            disk full, a read or a write failed
    ├── DeviceError             no such device, or it cannot do what is asked
    ├── TrainingError           a training run cannot go on
    ├── MissingExtraError       an optional dependency is not installed
    ├── RemoteError             something is wrong with a server, or with the way to it
    │   ├── LinkError               it cannot be reached, or does not answer in time
    │   ├── RefusedError            it says that it will not: it is full, or speaks another version
    │   └── ProtocolError           it says what it may not say
    ├── ClosedError             a session or an engine was closed, and is used again
    └── Cancelled               the caller stopped a pass

Each message states the fact, the numbers, and what to do next. Options are named as in Python (`memory=`),
and so is a function that would help (`Call`); the command line has its own words for both. This module
imports nothing of ours, so every folder may use it.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass


@dataclass(frozen=True)
class Call:
    """What would help: a function of the library and its arguments; "DIR" and the like are for the user."""

    function: str
    arguments: Mapping[str, str]

    def __str__(self) -> str:
        return f"{self.function}({', '.join(f'{name}={value!r}' for name, value in self.arguments.items())})"


class EdgeSpecError(Exception):
    """Base of all errors that EdgeSpec raises on purpose.

    Attributes:
        hint: the call that would help, where there is one; the message ends in it.
    """

    def __init__(self, message: str = "", *, hint: Call | None = None) -> None:
        super().__init__(message)
        self.hint = hint

    @property
    def message(self) -> str:
        """Without the hint."""
        return str(self.args[0])

    def __str__(self) -> str:
        return self.message if self.hint is None else f"{self.message}: {self.hint}"


class OptionError(EdgeSpecError):
    """An option is unknown, malformed, or does not apply to this model or command.

    Attributes:
        option: the one that is wrong, where one is; the message then has its name first.
    """

    def __init__(self, message: str, option: str | None = None, *, hint: Call | None = None) -> None:
        super().__init__(message, hint=hint)
        self.option = option


class ModelError(EdgeSpecError):
    """Something is wrong with a model's files."""


class UnsupportedModelError(ModelError):
    """The architecture, quantisation or tensor type is not supported."""


class CorruptFileError(ModelError):
    """A file is truncated, overlapping, or fails its checksum; names the file and the place."""


class TokenizerError(ModelError):
    """The tokenizer is missing or does not match the model."""


class BudgetError(EdgeSpecError):
    """The memory dial is too small.

    Attributes:
        owners: bytes of each owner of memory, by name.
        dial: the dial in bytes.
        smallest: the smallest dial that works, in bytes; with some room, so that it does at the next start.
    """

    def __init__(self, message: str, owners: dict[str, int], dial: int, smallest: int) -> None:
        super().__init__(message)
        self.owners = owners
        self.dial = dial
        self.smallest = smallest


class ContextError(EdgeSpecError):
    """Prompt and reply together would pass the context; the message has both counts."""


class BusyError(EdgeSpecError):
    """What was asked for is in use: a pass is under way in that cache, and would lose what it has written."""


class OverloadError(EdgeSpecError):
    """As many requests wait as may.

    Attributes:
        patience: seconds until there may be room for one more.
    """

    def __init__(self, message: str, patience: float) -> None:
        super().__init__(message)
        self.patience = patience


class StorageError(EdgeSpecError):
    """A disk is full, or a read or a write failed."""


class DeviceError(EdgeSpecError):
    """The device is missing or cannot do what is asked."""


class TrainingError(EdgeSpecError):
    """A training run cannot go on: its loss is not finite. The last good checkpoint is kept."""


class MissingExtraError(EdgeSpecError):
    """An optional dependency is not installed; the message has the pip line."""


class RemoteError(EdgeSpecError):
    """Something is wrong with a server, or with the way to it."""


class LinkError(RemoteError):
    """A server cannot be reached, or does not answer in time; what is known of a conversation stays."""


class RefusedError(RemoteError):
    """A server will not do what it is asked for.

    Attributes:
        why: in one word, as `edgespec.split.protocol` has them.
        seconds: after which to ask again, where that is of use; else 0.
    """

    def __init__(self, message: str, why: str = "", seconds: float = 0.0) -> None:
        super().__init__(message)
        self.why = why
        self.seconds = seconds


class ProtocolError(RemoteError):
    """The other end says what it may not say: it is broken, hostile, or of another make."""


class ClosedError(EdgeSpecError):
    """A session or an engine was closed, and is used again."""


class Cancelled(EdgeSpecError):
    """The caller stopped the pass; the cache is back at its committed length."""
