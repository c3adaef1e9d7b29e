"""The progress line: what it shows, where, and when it stays silent."""

from __future__ import annotations

import io

from edgespec.apps.progress import ProgressLine
from edgespec.progress import Progress
from edgespec.values import format_seconds


class Screen(io.StringIO):
    def isatty(self) -> bool:
        return True


def test_progress_is_drawn_in_place_with_rates() -> None:
    now = [0.0]
    screen = Screen()
    line = ProgressLine(screen, clock=lambda: now[0])
    line(Progress("probe", 0, 1, "steps"))
    for second in range(4):
        now[0] = float(second)
        line(Progress("load", second * 2 * 10**9, 20 * 10**9, "bytes"))
    shown = screen.getvalue()
    assert shown.startswith("\r\x1b[K\x1b[2mmeasuring this machine\x1b[0m")
    assert "loading 0 B of 20 GB" in shown, "there is something to see at once"
    assert "loading 6 GB of 20 GB · 2 GB/s · 7 s left" in shown
    assert "\n" not in shown
    line.clear()
    assert screen.getvalue().endswith("\r\x1b[K")


def test_progress_shows_the_layers_of_a_slow_pass_only() -> None:
    now, read = [0.0], [0]
    screen = Screen()
    line = ProgressLine(screen, bytes_read=lambda: read[0], clock=lambda: now[0])
    for layer in range(1, 33):
        now[0] += 0.001
        line(Progress("layers", layer, 32, "layers"))
    assert screen.getvalue() == ""
    for layer in range(1, 13):
        now[0] += 0.5
        read[0] += 10**9
        line(Progress("layers", layer, 32, "layers"))
    assert "layer 12/32 · 2 GB/s" in screen.getvalue()


def test_progress_goes_below_an_unfinished_line() -> None:
    screen = Screen()
    line = ProgressLine(screen)
    line.column = 10
    line.say("layer 1/2")
    assert "\r\x1b[K" not in screen.getvalue().replace("\r\n\x1b[K", ""), "the reply must not be overwritten"
    line.clear()
    assert screen.getvalue().endswith("\x1b[J")


def test_progress_is_silent_without_a_terminal() -> None:
    stream = io.StringIO()
    line = ProgressLine(stream)
    line.say("starting")
    line(Progress("load", 1, 2, "bytes"))
    line.clear()
    assert stream.getvalue() == ""


def test_seconds() -> None:
    shown = [format_seconds(s) for s in (0.034, 7.2, 59.4, 75, 7300)]
    assert shown == ["0.034 s", "7.2 s", "59 s", "1 min 15 s", "2 h 1 min"]
