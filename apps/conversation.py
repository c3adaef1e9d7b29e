"""What was said in a chat, as messages for the user and as tokens for the session."""

from __future__ import annotations

import json
import os
import tempfile
from collections.abc import Collection, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

import msgspec

from edgespec.apps.reply import Reply
from edgespec.config import GenerationOptions
from edgespec.errors import OptionError, StorageError

if TYPE_CHECKING:
    from edgespec.text.tokenizer import Tokenizer

FORMAT, VERSION = "edgespec-chat", 1
MAX_FILE_BYTES = 64 * 10**6


@dataclass
class Message:
    role: str  # "system", "user" or "assistant"
    content: str
    stopped: bool = False  # the user stopped this reply before its end


@dataclass
class Conversation:
    """Messages, oldest first, and a system prompt before them; the chat template makes the prompt of them."""

    tokenizer: Tokenizer
    messages: list[Message] = field(default_factory=list)
    # The last prompt and reply, as text and as the very tokens that the session has computed.
    _said: str = ""
    _tokens: list[int] = field(default_factory=list)

    def options(self, options: GenerationOptions) -> GenerationOptions:
        """How to reply: without a chat template of its own, a model does not end its turn by itself."""
        return replace(options, stop=(*options.stop, *self.tokenizer.template.stop))

    @property
    def system(self) -> str | None:
        first = self.messages[0] if self.messages else None
        return first.content if first and first.role == "system" else None

    def set_system(self, text: str | None) -> None:
        """Replace the system prompt; None removes it."""
        if self.system is not None:
            del self.messages[0]
        if text:
            self.messages.insert(0, Message("system", text))

    def clear(self) -> None:
        """Forget everything but the system prompt."""
        self.messages = [m for m in self.messages if m.role == "system"]

    def copy(self) -> Conversation:
        """As it is now; what is said later changes one of the two only."""
        return replace(self, messages=[*self.messages])

    def ask(self, text: str) -> None:
        self.messages.append(Message("user", text))

    def take_back(self) -> str | None:
        """Remove the last question, and the reply to it if there is one; returns the question."""
        while self.messages and self.messages[-1].role != "system":
            message = self.messages.pop()
            if message.role == "user":
                return message.content
        return None

    def prompt(self) -> list[int]:
        """The tokens to reply to.

        What the session has computed is kept token for token, although the tokenizer might cut the same text
        otherwise: a reply's tokens are the model's choice. So nothing is computed twice.
        """
        text = self._text()
        if self._said and text.startswith(self._said):
            rest = text[len(self._said) :]
            return self._tokens + self.tokenizer.encode(rest, add_bos=False, continues=True)
        return self.tokenizer.encode(text, add_bos=not self.tokenizer.has_chat_template)

    def answer(self, reply: Reply, prompt: Sequence[int], eos: Collection[int]) -> None:
        """Keep the reply to `prompt`."""
        ended = bool(reply.tokens) and reply.tokens[-1] in eos
        if reply.finish_reason == "stop" and not ended:  # by a stop string: there are tokens past the text
            self._said, self._tokens = "", []
        else:
            self._said = self._text() + reply.text
            self._tokens = [*prompt, *(reply.tokens[:-1] if ended else reply.tokens)]
        self.messages.append(Message("assistant", reply.text, reply.interrupted))

    def _text(self) -> str:
        return self.tokenizer.render_chat([{"role": m.role, "content": m.content} for m in self.messages])


def save(path: Path, messages: Sequence[Message], model: str) -> None:
    """Write a chat to a file. Raises StorageError; only another chat is overwritten."""
    if path.exists():
        try:
            load(path)
        except OptionError:
            raise StorageError(f"{path} exists and is not a chat of edgespec; choose another name") from None
    table = {
        "format": FORMAT,
        "version": VERSION,
        "model": model,
        "messages": [{"role": m.role, "content": m.content, "stopped": m.stopped} for m in messages],
    }
    try:
        with tempfile.NamedTemporaryFile("w", encoding="utf-8", dir=path.parent, delete=False) as file:
            json.dump(table, file, ensure_ascii=False, indent=1)
        os.replace(file.name, path)
    except OSError as error:
        raise StorageError(f"cannot write {path}: {error.strerror}") from None


def load(path: Path) -> list[Message]:
    """The messages of a saved chat. Raises StorageError, or OptionError when the file is something else."""
    try:
        if path.stat().st_size > MAX_FILE_BYTES:
            raise OptionError(f"{path} has {path.stat().st_size} bytes; a chat has at most {MAX_FILE_BYTES}")
        table: Any = msgspec.json.decode(path.read_bytes())
    except OSError as error:
        raise StorageError(f"cannot read {path}: {error.strerror}") from None
    except (msgspec.DecodeError, RecursionError) as error:
        raise OptionError(f"{path} is not a saved chat: {error}") from None
    if not isinstance(table, dict) or table.get("format") != FORMAT:
        raise OptionError(f"{path} is not a saved chat: its format is not {FORMAT!r}")
    if table.get("version") != VERSION:
        raise OptionError(f"{path} has version {table.get('version')!r}; this edgespec reads {VERSION}")
    try:
        messages = msgspec.convert(table.get("messages"), list[Message], strict=True)
    except msgspec.ValidationError as error:
        raise OptionError(f"{path} is not a saved chat: {error}") from None
    for place, message in enumerate(messages):
        wanted = ("system", "user") if place == 0 else ("user", "assistant")
        if message.role not in wanted:
            raise OptionError(
                f"{path}: message {place + 1} has role {message.role!r}; expected {' or '.join(wanted)}"
            )
    return messages
