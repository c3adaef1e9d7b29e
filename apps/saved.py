"""Conversations in files: those the user names, and the last one, which `chat --continue` goes on with."""

from __future__ import annotations

import json
import os
import sys
from collections.abc import Sequence
from dataclasses import asdict
from pathlib import Path
from typing import Any

import msgspec

from edgespec.devices.files import replacing
from edgespec.errors import OptionError, StorageError
from edgespec.text.conversation import Message

FORMAT, VERSION = "edgespec-chat", 1
MAX_FILE_BYTES = 64 * 10**6


def data_directory() -> Path:
    """The user's data folder for this program, by the platform's convention."""
    if sys.platform == "darwin":
        return Path.home() / "Library" / "Application Support" / "edgespec"
    if sys.platform == "win32":
        return Path(os.environ.get("LOCALAPPDATA") or Path.home()) / "edgespec"
    return Path(os.environ.get("XDG_DATA_HOME") or Path.home() / ".local" / "share") / "edgespec"


def last_chat() -> Path:
    return data_directory() / "last-chat.json"


def save(path: Path, messages: Sequence[Message], model: str) -> None:
    """Write a chat to a file, whole or not at all, readable by its owner only. Raises StorageError."""
    table = {
        "format": FORMAT,
        "version": VERSION,
        "model": model,
        "messages": [_saved(message) for message in messages],
    }
    data = json.dumps(table, ensure_ascii=False, indent=1).encode("utf-8", "replace")
    if len(data) > MAX_FILE_BYTES:
        raise StorageError(f"the chat has {len(data)} bytes; at most {MAX_FILE_BYTES} are saved")
    try:
        with replacing(path, private=True, shared=True) as temporary:
            temporary.write_bytes(data)
    except OSError as error:
        raise StorageError(f"cannot write {path}: {error.strerror}") from None


def _saved(message: Message) -> dict[str, Any]:
    table = asdict(message)
    if not message.private:
        del table["private"]
    return table


def save_last(messages: Sequence[Message], model: str) -> None:
    """Remember the conversation for `chat --continue`. Raises StorageError."""
    path = last_chat()
    try:
        path.parent.mkdir(mode=0o700, parents=True, exist_ok=True)
    except OSError as error:
        raise StorageError(f"cannot keep the conversation in {path}: {error.strerror}") from None
    save(path, messages, model)


def load(path: Path) -> list[Message]:
    """The messages of a saved chat. Raises StorageError, or OptionError when the file is something else."""
    try:
        if path.stat().st_size > MAX_FILE_BYTES:
            raise OptionError(f"{path} has {path.stat().st_size} bytes; a chat has at most {MAX_FILE_BYTES}")
        with path.open("rb") as file:
            table: Any = msgspec.json.decode(file.read(MAX_FILE_BYTES))  # a device has no size, and no end
    except OSError as error:
        raise StorageError(f"cannot read {path}: {error.strerror}") from None
    except (msgspec.DecodeError, RecursionError):
        raise OptionError(f"{path} is not a saved chat (see /save)") from None
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
