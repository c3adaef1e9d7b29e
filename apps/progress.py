"""One line on a terminal that shows what long work is doing, drawn over itself.

Not rich's `Progress` or `Live`: they redraw from the beginning of a line, and cannot stand below a reply
whose last line is still being written.
"""

from __future__ import annotations

import os
import sys
import time
from collections.abc import Callable
from types import TracebackType
from typing import TextIO

from edgespec.progress import Progress
from edgespec.values import format_bytes, format_seconds

REDRAW_SECONDS = 0.1
PASS_PATIENCE = 0.3  # a pass shows its layers only when it takes longer than this

_VERBS = {
    "download": "downloading",
    "probe": "measuring this machine",
    "load": "loading",
    "compile": "compiling the draft model, once, for minutes: function",
    "export": "exporting",
    "measure": "measuring replies",
    "pack": "packing",
    "verify": "checking",
    "replies": "replying",
}

_CLEAR_LINE = "\r\x1b[K"
_CLEAR_BELOW = "\x1b[J"
_ROOM_BELOW = "\x1bD\x1b[A"  # scrolls when the cursor is on the last line, and keeps the column
_SAVE, _RESTORE = "\x1b7", "\x1b8"


class ProgressLine:
    """Call it with `Progress` reports; it draws on `stream` when that is a terminal and else stays silent.

    While a reply is being written on the same terminal, `column` says how far its last line reaches
    (`terminal.Terminal` keeps it), and the progress line goes below it.

    Args:
        stream: where to draw; standard error by default.
        bytes_read: a counter of bytes read from flash, for the rate of a pass.
        clock: seconds, monotonic.

    Attributes:
        drawn: whether there is a line to see.
    """

    def __init__(
        self,
        stream: TextIO | None = None,
        bytes_read: Callable[[], int] | None = None,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self.stream = sys.stderr if stream is None else stream
        self.enabled = self.stream.isatty() and os.environ.get("TERM") != "dumb"
        self.bytes_read = bytes_read
        self.column = 0
        self._clock = clock
        self.drawn = False
        self._next_draw = 0.0
        self._stage = ""
        self._began = 0.0  # when this run of the stage began, and where it stood
        self._first = 0
        self._last = 0
        self._prompt = ""

    def __call__(self, report: Progress) -> None:
        if not self.enabled:
            return
        now = self._clock()
        again = report.done <= self._last if report.stage == "layers" else report.done < self._last
        fresh = report.stage != self._stage or again
        if fresh:
            self._stage, self._began, self._first = report.stage, now, self._counter(report)
        self._last = report.done
        if report.stage == "prefill":
            more = report.done < report.total
            self._prompt = f"prompt {report.done}/{report.total} tokens" if more else ""
            self._show(self._prompt, now) if more else self.clear()
        elif report.stage != "layers":
            self._show(self._describe(report, now), now, force=fresh)
        elif now - self._began >= PASS_PATIENCE or self._prompt:
            self._show(" · ".join(filter(None, (self._prompt, self._describe(report, now)))), now)

    def say(self, text: str) -> None:
        """Show `text` until the next report."""
        if self.enabled:
            self._show(text, self._clock(), force=True)

    def clear(self) -> None:
        """Take the line away, before anything else is written."""
        if self.drawn:
            self.stream.write(_CLEAR_BELOW if self.column else _CLEAR_LINE)
            self.stream.flush()
            self.drawn = False

    def __enter__(self) -> ProgressLine:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.clear()

    def _counter(self, report: Progress) -> int:
        return self.bytes_read() if report.stage == "layers" and self.bytes_read else report.done

    def _describe(self, report: Progress, now: float) -> str:
        elapsed = now - self._began
        moved = self._counter(report) - self._first
        rate = moved / elapsed if elapsed >= PASS_PATIENCE and moved > 0 else 0.0
        if report.stage == "layers":
            text = f"layer {report.done}/{report.total}"
            return f"{text} · {format_bytes(rate)}/s" if rate and self.bytes_read else text
        verb = _VERBS.get(report.stage, report.stage)
        if report.total == 1:
            return verb
        if report.unit != "bytes":
            text = f"{verb} {report.done}" + (f"/{report.total}" if report.total else "")
            known = report.unit == "rows" and rate and report.total
            return f"{text} · {format_seconds((report.total - report.done) / rate)} left" if known else text
        text = f"{verb} {format_bytes(report.done)}" + (
            f" of {format_bytes(report.total)}" if report.total else ""
        )
        if not rate:
            return text
        text += f" · {format_bytes(rate)}/s"
        left = (report.total - report.done) / rate
        return f"{text} · {format_seconds(left)} left" if left >= 1 else text

    def _show(self, text: str, now: float, force: bool = False) -> None:
        if self.drawn and now < self._next_draw and not force:
            return
        width = width_of(self.stream)
        if self.column and self.column % width == 0:
            return  # the reply's last line is exactly full: moving the cursor would lose its place
        line = f"\x1b[2m{text[: width - 1]}\x1b[0m"
        if self.column:
            self.stream.write(f"{_ROOM_BELOW}{_SAVE}\r\n\x1b[K{line}{_RESTORE}")
        else:
            self.stream.write(f"{_CLEAR_LINE}{line}")
        self.stream.flush()
        self.drawn, self._next_draw = True, now + REDRAW_SECONDS


def width_of(stream: TextIO) -> int:
    """Cells of a line on a terminal."""
    try:
        return max(20, os.get_terminal_size(stream.fileno()).columns)
    except (OSError, ValueError):
        return 80
