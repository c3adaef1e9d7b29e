"""Replies on standard output, everything else on standard error, and no mixing of the two on a terminal."""

from __future__ import annotations

import os
import sys
import textwrap
from collections.abc import Callable
from types import TracebackType

from edgespec.apps.progress import ProgressLine, width_of
from edgespec.apps.wrap import Wrap
from edgespec.progress import Progress

# Replies may hold any character, and notes may quote a hostile file; control characters other than tab and
# newline would drive the terminal.
_SHOWN_CONTROLS = {c: f"\\x{c:02x}" for c in (*range(0x20), *range(0x7F, 0xA0)) if chr(c) not in "\t\n"}
_STYLES = {"dim": "2", "bold": "1", "red": "31"}
_DRAFTED = "\x1b[36m"  # cyan
_UNVERIFIED = "\x1b[2m"  # faint


class Terminal:
    """Writes replies and notes; usable with redirected streams too, then plainly.

    Args:
        bytes_read: a counter of bytes read from flash, for the rate on the progress line.
    """

    def __init__(self, bytes_read: Callable[[], int] | None = None) -> None:
        self._progress = ProgressLine(bytes_read=bytes_read)
        self._mid_reply = False  # a reply is being written, and its line has not ended
        self.interactive = sys.stdin.isatty() and (sys.stdout.isatty() or sys.stderr.isatty())
        self._reply_on_terminal = sys.stdout.isatty()
        self._same_terminal = self._reply_on_terminal and sys.stderr.isatty()
        self._smart = os.environ.get("TERM") != "dumb"  # knows escape sequences
        self._may_colour = self._smart and "NO_COLOR" not in os.environ
        self._wrap = Wrap(lambda: width_of(sys.stdout))
        self._drafts_style = ""
        self._held = ""  # unverified text, which a pipe could not give back

    @property
    def width(self) -> int | None:
        """Cells of a line of notes; None without a terminal."""
        return width_of(sys.stderr) if sys.stderr.isatty() else None

    def show_drafts(self) -> bool:
        """From now on, colour what was drafted; False where there are no colours."""
        if self._reply_on_terminal and self._may_colour:
            self._drafts_style = _DRAFTED
        return bool(self._drafts_style)

    def reply(self, text: str, drafted: bool = False, verified: bool = True) -> None:
        """Write a piece of a reply, at once; on a terminal, lines break between words. What is not verified
        is faint there, and waits elsewhere, for more of the reply or its end."""
        if not self._reply_on_terminal:
            text, self._held = ("", self._held + text) if not verified else (self._held + text, "")
        if not text:
            return
        self._progress.clear()
        self._mid_reply = True
        if self._reply_on_terminal:
            text = text.translate(_SHOWN_CONTROLS)
            if self._smart:
                faint = _UNVERIFIED if self._may_colour else ""
                style = faint if not verified else self._drafts_style if drafted else ""
                text = self._wrap.push(text, style)
        _write(text)
        if self._same_terminal:
            self._progress.column = self._wrap.column

    def take_back(self, kept: str) -> None:
        """What was not verified is no part of the reply any more; this is left of it."""
        if self._reply_on_terminal:
            self.note("[the server is back: what was faint is made again]")
            self.reply(kept)
        self._held = ""

    def end_reply(self) -> None:
        """The reply is complete: end its line."""
        self.reply("")
        self._progress.clear()
        self._mid_reply = False
        self._progress.column = 0
        self._wrap = Wrap(lambda: width_of(sys.stdout))
        _write("\n")

    def result(self, text: str) -> None:
        """Write a command's answer, whole lines, to standard output."""
        self._progress.clear()
        _write(text + "\n")

    def note(self, text: str, style: str = "dim") -> None:
        """Write lines that are not part of a reply."""
        text = text.translate(_SHOWN_CONTROLS)
        self._progress.clear()
        if self._mid_reply:
            self.end_reply()
        if self.width is not None:
            text = "\n".join(_folded(line, self.width - 1) for line in text.split("\n"))
        if self._may_colour and sys.stderr.isatty():
            text = f"\x1b[{_STYLES[style]}m{text}\x1b[0m"
        sys.stderr.write(text + "\n")
        sys.stderr.flush()

    def error(self, error: BaseException | str) -> None:
        """Write one error message."""
        self.note(f"error: {error}", style="red")

    def progress(self, report: Progress) -> None:
        """Show where long work stands; the callback of everything that takes one."""
        self._progress(report)

    def busy(self, text: str) -> None:
        """Show `text` until the first report of progress, reply or note."""
        self._progress.say(text)

    def clear(self) -> None:
        """Take the progress line away: something else draws now."""
        self._progress.clear()

    def count_reads(self, bytes_read: Callable[[], int]) -> None:
        """From now on, show the rate at which this counter grows during a pass."""
        self._progress.bytes_read = bytes_read

    def __enter__(self) -> Terminal:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        stopped = self._progress.drawn and isinstance(error, KeyboardInterrupt | SystemExit)
        self._progress.clear()
        if self._mid_reply and not isinstance(error, OSError):  # which may be about standard output
            self.end_reply()
        if stopped:  # by a signal, while something was said to be under way
            self.note("[stopped]")


def _write(text: str) -> None:
    sys.stdout.write(text)
    sys.stdout.flush()


def _folded(line: str, width: int) -> str:
    return (
        textwrap.fill(line, width, break_on_hyphens=False, drop_whitespace=True)
        if len(line) > width
        else line
    )
