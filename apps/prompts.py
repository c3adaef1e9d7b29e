"""Prompts for `generate` and `tune --measure`: from flags, or from standard input or a file, one a line."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from io import BytesIO
from pathlib import Path
from typing import Annotated, BinaryIO

import msgspec
from msgspec import Meta

from edgespec.errors import OptionError

MAX_LINE_BYTES = 16 * 2**20
FILE_BYTES = 2**20  # of prompts that are measured with: some of them are


@dataclass(frozen=True)
class PromptInput:
    """A text to continue (one turn), or the user's turns of a conversation."""

    turns: tuple[str, ...]
    is_chat: bool
    origin: str  # for messages: "prompt 2", "line 7"
    id: str | int | None = None  # by which its answer is known to who asks, beside its number


Text = Annotated[str, Meta(min_length=1)]


class _Row(msgspec.Struct, forbid_unknown_fields=True):
    """A line that is a JSON object."""

    prompt: Text | None = None
    turns: Annotated[list[Text], Meta(min_length=1)] | None = None
    id: Annotated[str, Meta(max_length=1000)] | Annotated[int, Meta(ge=-(2**63), le=2**63 - 1)] | None = None


def read_text(stream: BinaryIO, name: str) -> str:
    """All of a stream. Raises OptionError when it is too long, or not UTF-8."""
    data = stream.read(MAX_LINE_BYTES + 1)
    if len(data) > MAX_LINE_BYTES:
        raise OptionError(f"{name} is longer than {MAX_LINE_BYTES} bytes")
    try:
        return data.decode("utf-8")
    except UnicodeDecodeError as error:
        raise OptionError(f"{name} is not UTF-8: {error.reason} at byte {error.start}") from None


def from_flags(texts: Sequence[str]) -> Iterator[PromptInput]:
    for number, text in enumerate(texts, 1):
        if not text:
            raise OptionError("-p is empty; give it a text to continue")
        yield PromptInput((text,), False, f"prompt {number}")


def from_file(path: Path, option: str) -> list[PromptInput]:
    """The prompts in a small file, one a line as in a stream. Raises OptionError, naming the option, for one
    that is not there, too long, not UTF-8, or has none."""
    try:
        if not path.is_file():  # nor a pipe that would never end
            what = "is a folder" if path.is_dir() else "is not there"
            raise OptionError(f"{option} {path} {what}; name a file with one prompt a line", option)
        with path.open("rb") as file:
            raw = file.read(FILE_BYTES + 1)
    except OSError as error:
        raise OptionError(f"{option} {path} cannot be read: {error.strerror}", option) from None
    if len(raw) > FILE_BYTES:
        raise OptionError(
            f"{option} {path} is longer than {FILE_BYTES} bytes; some prompts are enough", option
        )
    found = [
        prompt for prompt in from_stream(BytesIO(raw), name=str(path)) if isinstance(prompt, PromptInput)
    ]
    if not found:
        raise OptionError(f"{option} {path} has no prompt; it takes one a line", option)
    return found


def from_stream(
    stream: BinaryIO, keep_going: bool = False, name: str = "standard input"
) -> Iterator[PromptInput | OptionError]:
    """One prompt a line: plain text, or what begins with {, a JSON object with "prompt" or "turns", and
    perhaps an "id". Blank lines are skipped.

    Raises OptionError naming the line that is too long, not UTF-8, or no such object; yields it instead with
    `keep_going`.
    """
    for number, line in enumerate(_lines(stream), 1):
        try:
            prompt = _read(line, f"line {number}", name)
        except OptionError as error:
            if not keep_going:
                raise
            yield error
        else:
            if prompt is not None:
                yield prompt


def count(stream: BinaryIO) -> int:
    """How many prompts a file that is standard input has, which stays where it was; 0 of a pipe."""
    try:
        start = stream.tell()
    except OSError:
        return 0
    found = sum(bool(line.strip()) or len(line) > MAX_LINE_BYTES for line in _lines(stream))
    stream.seek(start)
    return found


def _lines(stream: BinaryIO) -> Iterator[bytes]:
    """The lines of a stream; of one that is too long, the first MAX_LINE_BYTES + 1 bytes."""
    while line := stream.readline(MAX_LINE_BYTES + 1):
        yield line
        while line and not line.endswith(b"\n"):  # the rest of it
            line = stream.readline(MAX_LINE_BYTES)


def _read(line: bytes, origin: str, name: str) -> PromptInput | None:
    if len(line) > MAX_LINE_BYTES:
        raise OptionError(f"{origin} of {name} is longer than {MAX_LINE_BYTES} bytes")
    try:
        text = line.decode("utf-8").rstrip("\r\n")
    except UnicodeDecodeError as error:
        raise OptionError(f"{origin} of {name} is not UTF-8: {error.reason} at byte {error.start}") from None
    return _parse(text, origin, name) if text.strip() else None


def _parse(text: str, origin: str, name: str) -> PromptInput:
    if not text.lstrip().startswith("{"):
        return PromptInput((text,), False, origin)
    try:
        row = msgspec.json.decode(text, type=_Row)
    except (msgspec.DecodeError, RecursionError) as error:
        raise OptionError(
            f"{origin} of {name} begins with {{, so it should be a JSON object: {error}"
        ) from None
    if row.prompt is not None and row.turns is None:
        return PromptInput((row.prompt,), False, origin, row.id)
    if row.turns is not None and row.prompt is None:
        return PromptInput(tuple(row.turns), True, origin, row.id)
    raise OptionError(
        f'{origin} of {name} is a JSON object, so it needs either "prompt", a text to continue, '
        'or "turns", a list of messages'
    )
