"""Where a chat's messages come from: a terminal with editing and history, or a pipe."""

from __future__ import annotations

import os
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any, Protocol

from edgespec.apps.saved import data_directory
from edgespec.errors import StorageError

if TYPE_CHECKING:
    from prompt_toolkit.key_binding import KeyBindings, KeyPressEvent

QUOTES = '"""'
PROMPT, CONTINUED = ">>> ", "... "


class Interrupted(Exception):
    """Ctrl-C at an empty prompt."""


class Reader(Protocol):
    def read(self) -> str | None:
        """The next message; None at the end. Raises Interrupted."""


class PipeReader:
    """One message a line, or several lines between triple quotes."""

    def read(self) -> str | None:
        line = sys.stdin.readline()
        while is_open(line):
            more = sys.stdin.readline()
            if not more:
                break
            line += more
        return unquote(line.rstrip("\n")) if line else None


class TerminalReader:
    r"""A line editor: Enter sends, Alt-Enter and Ctrl-J begin a new line, Ctrl-G opens $EDITOR.

    Args:
        history: where lines are remembered between chats; None: only during this one.
        commands: completed with Tab, such as "/help".
        options: passed on to prompt_toolkit's PromptSession (tests give it their own input and output).
    """

    def __init__(self, history: Path | None, commands: Sequence[str] = (), **options: Any) -> None:
        from prompt_toolkit import PromptSession
        from prompt_toolkit.completion import WordCompleter
        from prompt_toolkit.history import FileHistory, InMemoryHistory
        from prompt_toolkit.output import create_output

        self._session: PromptSession[str] = PromptSession(
            PROMPT,
            history=FileHistory(str(history)) if history else InMemoryHistory(),
            key_bindings=_key_bindings(),
            multiline=True,
            prompt_continuation=CONTINUED,
            completer=WordCompleter(list(commands), sentence=True),
            complete_while_typing=False,
            **{"output": create_output(always_prefer_tty=True), **options},
        )

    def read(self) -> str | None:
        try:
            return unquote(self._session.prompt())
        except EOFError:
            return None
        except KeyboardInterrupt:
            raise Interrupted from None


def is_open(text: str) -> bool:
    '''Whether text begins with """ that are not closed yet.'''
    text = text.strip()
    return text.startswith(QUOTES) and not (len(text) >= 2 * len(QUOTES) and text.endswith(QUOTES))


def unquote(text: str) -> str:
    """The message without its triple quotes."""
    stripped = text.strip()
    if not stripped.startswith(QUOTES):
        return text
    return stripped.removeprefix(QUOTES).removesuffix(QUOTES).strip("\n")


def _key_bindings() -> KeyBindings:
    from prompt_toolkit.filters import is_searching
    from prompt_toolkit.key_binding import KeyBindings

    bindings = KeyBindings()
    writing = ~is_searching  # Ctrl-R keeps its own keys

    @bindings.add("enter", filter=writing)
    def send(event: KeyPressEvent) -> None:
        buffer = event.current_buffer
        if is_open(buffer.text):
            buffer.insert_text("\n")
        else:
            buffer.validate_and_handle()

    @bindings.add("escape", "enter")
    @bindings.add("c-j")
    def new_line(event: KeyPressEvent) -> None:
        event.current_buffer.insert_text("\n")

    @bindings.add("c-g", filter=writing)
    def edit(event: KeyPressEvent) -> None:
        event.current_buffer.open_in_editor()

    @bindings.add("c-c", filter=writing)
    def clear_or_interrupt(event: KeyPressEvent) -> None:
        if event.current_buffer.text:
            event.current_buffer.reset()
        else:
            event.app.exit(exception=KeyboardInterrupt)

    return bindings


def history_file() -> Path:
    """The file that remembers what was typed, readable by its owner only. Raises StorageError."""
    path = data_directory() / "history"
    try:
        path.parent.mkdir(mode=0o700, parents=True, exist_ok=True)
        os.close(os.open(path, os.O_RDWR | os.O_CREAT, 0o600))
    except OSError as error:
        raise StorageError(f"cannot keep a history in {path}: {error.strerror}; use --no-history") from None
    return path
