"""The keyboard while nobody reads it."""

from __future__ import annotations

import sys
from collections.abc import Iterator
from contextlib import contextmanager


@contextmanager
def typing_ahead() -> Iterator[None]:
    """What is typed while a reply is written waits for the next prompt, and is not shown in between.

    Left alone, the terminal would echo it into the reply and turn Enter into a newline, so that two messages
    became one. Ctrl-C stays a signal. Prompts set the modes they need and put these back.
    """
    try:
        import termios
    except ImportError:  # Windows: its console keeps input by itself
        yield
        return
    if not sys.stdin.isatty():
        yield
        return
    keyboard = sys.stdin.fileno()
    before = termios.tcgetattr(keyboard)
    quiet = termios.tcgetattr(keyboard)
    quiet[0] &= ~termios.ICRNL
    quiet[3] &= ~(termios.ECHO | termios.ICANON)
    quiet[6][termios.VMIN], quiet[6][termios.VTIME] = 1, 0
    termios.tcsetattr(keyboard, termios.TCSANOW, quiet)
    try:
        yield
    finally:
        termios.tcsetattr(keyboard, termios.TCSANOW, before)
