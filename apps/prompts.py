"""Prompts for `generate` and `tune --measure`: from flags, or from standard input or a file, one a line."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from io import BytesIO
from pathlib import Path
from typing import BinaryIO

import msgspec

from edgespec.errors import OptionError

MAX_LINE_BYTES = 16 * 2**20
FILE_BYTES = 2**20  # of prompts that are measured with: some of them are


@dataclass(frozen=True)
class PromptInput:
    """A text to continue (one turn), or the user's turns of a conversation."""

    turns: tuple[str, ...]
    is_chat: bool
    origin: str  # for messages: "prompt 2", "line 7"


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
    """One prompt a line: plain text, or a JSON object with "prompt" or "turns". Blank lines are skipped.

    Raises OptionError naming the line that is too long, not UTF-8, or an object of another kind; yields it
    instead with `keep_going` (but for a line that is too long: where the next begins is not known).
    """
    number = 0
    while line := stream.readline(MAX_LINE_BYTES + 1):
        number += 1
        origin = f"line {number}"
        if len(line) > MAX_LINE_BYTES:
            raise OptionError(f"{origin} of {name} is longer than {MAX_LINE_BYTES} bytes")
        try:
            prompt = _read(line, origin, name)
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
    found = sum(bool(line.strip()) for line in iter(lambda: stream.readline(MAX_LINE_BYTES), b""))
    stream.seek(start)
    return found


def _read(line: bytes, origin: str, name: str) -> PromptInput | None:
    try:
        text = line.decode("utf-8").rstrip("\r\n")
    except UnicodeDecodeError as error:
        raise OptionError(f"{origin} of {name} is not UTF-8: {error.reason} at byte {error.start}") from None
    return _parse(text, origin, name) if text.strip() else None


def _parse(text: str, origin: str, name: str) -> PromptInput:
    try:
        value = msgspec.json.decode(text.encode()) if text.lstrip().startswith("{") else None
    except (msgspec.DecodeError, RecursionError):
        value = None
    if not isinstance(value, dict):
        return PromptInput((text,), False, origin)
    prompt, turns = value.get("prompt"), value.get("turns")
    if isinstance(prompt, str) and prompt and turns is None:
        return PromptInput((prompt,), False, origin)
    if isinstance(turns, list) and turns and all(isinstance(t, str) and t for t in turns) and prompt is None:
        return PromptInput(tuple(turns), True, origin)
    raise OptionError(
        f'{origin} of {name} is a JSON object, so it needs either "prompt", a text to continue, '
        'or "turns", a list of messages'
    )
