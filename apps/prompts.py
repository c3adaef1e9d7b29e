"""Prompts for `generate`: from flags, or from standard input, one a line."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import BinaryIO

import msgspec

from edgespec.errors import OptionError

MAX_LINE_BYTES = 16 * 2**20


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


def from_stream(stream: BinaryIO, keep_going: bool = False) -> Iterator[PromptInput | OptionError]:
    """One prompt a line: plain text, or a JSON object with "prompt" or "turns". Blank lines are skipped.

    Raises OptionError naming the line that is too long, not UTF-8, or an object of another kind; yields it
    instead with `keep_going` (but for a line that is too long: where the next begins is not known).
    """
    number = 0
    while line := stream.readline(MAX_LINE_BYTES + 1):
        number += 1
        origin = f"line {number}"
        if len(line) > MAX_LINE_BYTES:
            raise OptionError(f"{origin} of standard input is longer than {MAX_LINE_BYTES} bytes")
        try:
            prompt = _read(line, origin)
        except OptionError as error:
            if not keep_going:
                raise
            yield error
        else:
            if prompt is not None:
                yield prompt


def _read(line: bytes, origin: str) -> PromptInput | None:
    try:
        text = line.decode("utf-8").rstrip("\r\n")
    except UnicodeDecodeError as error:
        raise OptionError(
            f"{origin} of standard input is not UTF-8: {error.reason} at byte {error.start}"
        ) from None
    return _parse(text, origin) if text.strip() else None


def _parse(text: str, origin: str) -> PromptInput:
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
        f'{origin} of standard input is a JSON object, so it needs either "prompt", a text to continue, '
        'or "turns", a list of messages'
    )
