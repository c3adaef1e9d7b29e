"""The chat's line editor, and a whole chat on a real (pseudo-)terminal."""

from __future__ import annotations

import os
import select
import signal
import stat
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest
from prompt_toolkit.input import PipeInput, create_pipe_input
from prompt_toolkit.output import DummyOutput

from edgespec.apps.reader import Interrupted, TerminalReader, history_file
from edgespec.errors import StorageError

ROOT = Path(__file__).resolve().parent.parent

# The line editor


@contextmanager
def typing(keys: str, history: Path | None = None) -> Iterator[TerminalReader]:
    pipe: PipeInput
    with create_pipe_input() as pipe:
        pipe.send_text(keys)
        yield TerminalReader(history, ["/help", "/exit"], input=pipe, output=DummyOutput())


@pytest.mark.parametrize(
    ("keys", "message"),
    [
        ("hello\r", "hello"),
        ("one\ntwo\r", "one\ntwo"),  # Ctrl-J
        ("one\x1b\rtwo\r", "one\ntwo"),  # Alt-Enter
        ('"""one\rtwo"""\r', "one\ntwo"),
        ('"""\rone\r\rtwo\r"""\r', "one\n\ntwo"),
        ('""""""\r', ""),
        ("forget this\x03keep\r", "keep"),  # Ctrl-C clears what was typed
        ("\x1b[200~pasted\nlines\x1b[201~\r", "pasted\nlines"),
    ],
)
def test_keys(keys: str, message: str) -> None:
    with typing(keys) as reader:
        assert reader.read() == message


def test_ctrl_c_and_ctrl_d_at_an_empty_prompt() -> None:
    with typing("\x03\x04") as reader:
        with pytest.raises(Interrupted):
            reader.read()
        assert reader.read() is None


def test_ctrl_g_opens_the_editor(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    editor = tmp_path / "editor"
    editor.write_text('#!/bin/sh\necho "from the editor" > "$1"\n')
    editor.chmod(0o755)
    monkeypatch.setenv("VISUAL", str(editor))
    with typing("draft\x07") as reader:
        buffer = reader._session.default_buffer
        buffer.on_text_changed += lambda _: buffer.text.startswith("from") and buffer.validate_and_handle()
        assert reader.read() == "from the editor"


def test_history_is_kept_privately(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setenv("XDG_DATA_HOME", str(tmp_path))
    monkeypatch.setattr(sys, "platform", "linux")
    path = history_file()
    assert stat.S_IMODE(path.stat().st_mode) == 0o600
    with typing("remembered\r", path) as reader:
        reader.read()
    with typing("\x1b[A\r", history_file()) as reader:  # the Up key
        assert reader.read() == "remembered"


def test_a_history_that_cannot_be_kept_is_an_error(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    (tmp_path / "file").write_text("")
    monkeypatch.setenv("XDG_DATA_HOME", str(tmp_path / "file"))
    monkeypatch.setattr(sys, "platform", "linux")
    with pytest.raises(StorageError, match="--no-history"):
        history_file()


# A real terminal


class Terminal:
    """The chat with the fake engine behind a pseudo-terminal of 80 x 24."""

    def __init__(self, home: Path, load_seconds: float = 0.1) -> None:
        import fcntl
        import pty
        import struct
        import termios

        self.master, slave = pty.openpty()
        fcntl.ioctl(slave, termios.TIOCSWINSZ, struct.pack("HHHH", 24, 80, 0, 0))
        environment = {**os.environ, "TERM": "xterm", "XDG_DATA_HOME": str(home)}
        environment["FAKE_LOAD_SECONDS"] = str(load_seconds)
        self.process = subprocess.Popen(
            [sys.executable, "-m", "tests.fake_engine", "chat", "m"],
            stdin=slave,
            stdout=slave,
            stderr=slave,
            cwd=ROOT,
            env=environment,
            start_new_session=True,
            preexec_fn=lambda: fcntl.ioctl(0, termios.TIOCSCTTY, 0),  # so that Ctrl-C reaches it as a signal
        )
        os.close(slave)
        self.shown = ""

    def send(self, keys: str) -> None:
        os.write(self.master, keys.encode())

    def wait_for(self, text: str) -> str:
        """Read until `text` is shown; returns what came before it, escape sequences included."""
        while text not in self.shown:
            if not select.select([self.master], [], [], 30)[0]:
                pytest.fail(f"{text!r} is not shown; the terminal ends with {self.shown[-2000:]!r}")
            data = os.read(self.master, 4096)
            if b"\x1b[6n" in data:
                self.send("\x1b[1;1R")  # prompt_toolkit asks where the cursor is
            self.shown += data.decode(errors="replace")
        before, _, self.shown = self.shown.partition(text)
        return before

    def close(self) -> None:
        self.process.kill()
        self.process.wait()
        os.close(self.master)


@pytest.fixture
def terminal(tmp_path: Path) -> Iterator[Terminal]:
    pytest.importorskip("pty", reason="needs pseudo-terminals")
    terminal = Terminal(tmp_path)
    yield terminal
    terminal.close()


def test_a_chat_on_a_terminal(terminal: Terminal) -> None:
    assert "starting" in terminal.wait_for("loading")
    terminal.wait_for("context 400")
    terminal.wait_for(">>>")
    terminal.send("hello\r")
    terminal.wait_for("once upon a time")
    terminal.wait_for("tok/s")
    terminal.wait_for(">>>")
    terminal.send("slow tale\r")
    terminal.wait_for("once")
    terminal.send("\x03")
    terminal.wait_for("[stopped; the reply so far is kept]")
    terminal.wait_for(">>>")
    terminal.send("\x03")
    terminal.wait_for("(Ctrl-D or /exit leaves)")
    terminal.wait_for(">>>")
    terminal.send("/show chat\r")
    terminal.wait_for("assistant (stopped): ")
    terminal.wait_for(">>>")
    terminal.send("\x04")
    assert terminal.process.wait(30) == 0


def test_layers_are_shown_below_a_slow_reply(terminal: Terminal) -> None:
    terminal.wait_for(">>>")
    terminal.send("glacial\r")
    terminal.wait_for("prompt 26 tokens")
    terminal.wait_for("layer 3/4")  # of the first pass
    assert terminal.wait_for("o").endswith("\r\x1b[K"), "the line is taken away before the reply begins"
    drawn = terminal.wait_for("layer 3/4")
    assert "\x1b7\r\r\n" in drawn, "the layers of the next pass stand below the reply"
    assert "\x1b8\x1b[J" in terminal.wait_for("n"), "and are taken away for the next token"
    terminal.send("\x03")
    terminal.wait_for("[stopped")


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM])
def test_ended_while_it_loads_it_says_so(tmp_path: Path, number: signal.Signals) -> None:
    pytest.importorskip("pty", reason="needs pseudo-terminals")
    terminal = Terminal(tmp_path, load_seconds=20)
    try:
        terminal.wait_for("loading")
        terminal.process.send_signal(number)
        assert "Traceback" not in terminal.wait_for("[stopped]")
        assert terminal.process.wait(30) == 128 + number
    finally:
        terminal.close()
