"""Text to train on: files of .txt and .jsonl, read piece by piece, strictly. Needs no torch.

A .txt file is plain text. Each line of a .jsonl file is an object with one of

    "text":      plain text
    "messages":  a conversation, [{"role": "user", "content": "..."}, ...]
    "prompt":    a question; only with the target's own replies as data
"""

from __future__ import annotations

import json
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import xxhash

from edgespec.drafters.base import shared_prefix
from edgespec.errors import OptionError, StorageError
from edgespec.text.tokenizer import Tokenizer

SUFFIXES = (".txt", ".jsonl")
TEXT_BYTES = 64 * 1024  # of a text file that are tokenised at a time; cut at a line's end
LINE_BYTES = 16 * 2**20  # of one line
MAX_FILES = 100_000


@dataclass(frozen=True)
class Passage:
    """Plain text (`text`), a conversation (`messages`), or a question (`prompt`); the others are None."""

    text: str | None = None
    messages: tuple[dict[str, str], ...] | None = None
    prompt: str | None = None


def text_files(path: Path) -> list[Path]:
    """The file itself, or the .txt and .jsonl files of a directory tree, by name. Raises OptionError."""
    if path.is_file():
        if path.suffix not in SUFFIXES:
            raise OptionError(f"{path} is neither .txt nor .jsonl; rename it, or convert it to one of them")
        return [path]
    if not path.is_dir():
        raise OptionError(f"{path} is neither a file nor a directory; name the text to train on")
    found = sorted(p for p in path.rglob("*") if p.suffix in SUFFIXES and p.is_file())
    if not found:
        raise OptionError(f"{path} has no .txt or .jsonl files")
    if len(found) > MAX_FILES:
        raise OptionError(f"{path} has {len(found)} text files; at most {MAX_FILES} are read: join some")
    return found


def corpus_digest(files: list[Path]) -> str:
    """xxh3 of all bytes, so that a run is not resumed with other text. Raises StorageError."""
    digest = xxhash.xxh3_128()
    for path in files:
        try:
            with open(path, "rb") as file:
                while block := file.read(2**20):
                    digest.update(block)
        except OSError as error:
            raise StorageError(f"{path} cannot be read: {error.strerror}") from None
    return digest.hexdigest()


def passages(files: list[Path]) -> Iterator[Passage]:
    """Everything in these files, in order.

    Raises OptionError for bytes that are not UTF-8 and for lines that are not what the format asks for,
    naming file and line.
    """
    for path in files:
        yield from _conversations(path) if path.suffix == ".jsonl" else _texts(path)


def _lines(path: Path) -> Iterator[tuple[int, str]]:
    try:
        with open(path, "rb") as file:
            number = 0
            while raw := file.readline(LINE_BYTES + 1):
                number += 1
                if len(raw) > LINE_BYTES:
                    raise OptionError(f"{path}: line {number} is longer than {LINE_BYTES} bytes; break it up")
                try:
                    yield number, raw.decode("utf-8-sig" if number == 1 else "utf-8")
                except UnicodeDecodeError as error:
                    raise OptionError(
                        f"{path}: line {number} is not UTF-8 (byte {raw[error.start]:#04x} at its place "
                        f"{error.start}); convert the file first"
                    ) from None
    except OSError as error:
        raise StorageError(f"{path} cannot be read: {error.strerror}") from None


def _texts(path: Path) -> Iterator[Passage]:
    lines: list[str] = []
    size = 0
    for _, line in _lines(path):
        lines.append(line)
        size += len(line)
        if size >= TEXT_BYTES:
            yield Passage(text="".join(lines))
            lines, size = [], 0
    if size:
        yield Passage(text="".join(lines))


def _conversations(path: Path) -> Iterator[Passage]:
    for number, line in _lines(path):
        if line.strip():
            try:
                yield _passage(json.loads(line))
            except json.JSONDecodeError as error:
                fact = f"{error.msg} at character {error.pos + 1}"
                raise OptionError(f"{path}: line {number}: not JSON: {fact}") from None
            except (ValueError, RecursionError) as error:
                raise OptionError(f"{path}: line {number}: {error}") from None


def _passage(entry: Any) -> Passage:
    """Raises ValueError."""
    known = [k for k in ("text", "messages", "prompt") if isinstance(entry, dict) and k in entry]
    if len(known) != 1:
        raise ValueError('expected an object with one of "text", "messages" and "prompt"')
    value = entry[known[0]]
    if known[0] != "messages":
        if not isinstance(value, str):
            raise ValueError(f'"{known[0]}" is not a text')
        return Passage(text=value) if known[0] == "text" else Passage(prompt=value)
    if not isinstance(value, list) or not value:
        raise ValueError('"messages" is not a list of messages')
    for message in value:
        fields = [message.get(k) for k in ("role", "content")] if isinstance(message, dict) else [None]
        if not all(isinstance(field, str) for field in fields):
            raise ValueError('a message has no "role" and "content"')
    return Passage(messages=tuple({"role": m["role"], "content": m["content"]} for m in value))


@dataclass(frozen=True)
class Sample:
    """One training sequence. `spans` are the tokens that count, [start, stop) each, in order: what the target
    itself would say. Supervised are the positions before them, so that 0, often BOS, never counts."""

    tokens: list[int]
    spans: tuple[tuple[int, int], ...]

    @staticmethod
    def behind(tokens: list[int], start: int = 1) -> Sample:
        """Everything from token `start` on counts."""
        return Sample(tokens, ((start, len(tokens)),))


def text_samples(passage: Passage, tokenizer: Tokenizer, length: int) -> Iterator[Sample]:
    """A passage as sequences of at most `length` tokens, each beginning as a prompt would (with BOS).

    Of a conversation, the replies count. Raises OptionError for a prompt without a reply.
    """
    if passage.messages is not None:
        tokens, spans = conversation_tokens(passage.messages, tokenizer)
        if kept := tuple((start, min(stop, length)) for start, stop in spans if start < length):
            yield Sample(tokens[:length], kept)
        return
    if passage.text is None:
        raise OptionError("the data has prompts without replies: add generate= to train on the target's own")
    tokens = tokenizer.encode(passage.text)
    begins = tokens[:1] if tokenizer.bos is not None and tokens[:1] == [tokenizer.bos] else []
    body = tokens[len(begins) :]
    step = length - len(begins)
    for place in range(0, len(body), step):
        window = begins + body[place : place + step]
        if len(window) > 1:
            yield Sample.behind(window)


def conversation_tokens(
    messages: tuple[dict[str, str], ...], tokenizer: Tokenizer
) -> tuple[list[int], list[tuple[int, int]]]:
    """All of a conversation, and where its replies begin and end, with the token that ends them."""
    tokens = tokenizer.apply_chat(messages, add_generation_prompt=False)
    spans: list[tuple[int, int]] = []
    for i, message in enumerate(messages):
        if message["role"] == "assistant":
            asked = tokenizer.apply_chat(messages[:i]) if i else []
            told = tokenizer.apply_chat(messages[: i + 1], add_generation_prompt=False)
            # A template may write earlier turns in another way than the last.
            start, stop = max(1, shared_prefix(asked, tokens)), shared_prefix(told, tokens)
            if start < stop:
                spans.append((start, stop))
    return tokens, spans


def prompts(passage: Passage, tokenizer: Tokenizer, length: int, opening: int) -> Iterator[list[int]]:
    """What the target is asked to go on from: a conversation up to its last question, a question, or the
    first `opening` tokens of each `length` tokens of text. Questions longer than `length` are left out: cut,
    they would lack their beginning."""
    if passage.text is not None:
        for sample in text_samples(passage, tokenizer, length):
            yield sample.tokens[:opening]
        return
    tokens: list[int] = []
    if passage.messages is not None:
        last = max((i for i, m in enumerate(passage.messages) if m["role"] == "user"), default=-1)
        if last >= 0:
            tokens = tokenizer.apply_chat(passage.messages[: last + 1])
    elif passage.prompt is not None:
        if tokenizer.has_chat_template:
            tokens = tokenizer.apply_chat([{"role": "user", "content": passage.prompt}])
        else:
            tokens = tokenizer.encode(passage.prompt)
    if 0 < len(tokens) <= length:
        yield tokens
