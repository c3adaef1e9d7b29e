"""Signals at a bad moment."""

from __future__ import annotations

import os
import signal
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from types import FrameType

_SIGNALS = [getattr(signal, name) for name in ("SIGINT", "SIGTERM", "SIGHUP") if hasattr(signal, name)]


@contextmanager
def imports() -> Iterator[None]:
    """Signals wait until the block is over: an exception that Python raises while torch's C++ initialises
    (as Ctrl-C does) ends in `terminate called` and abort. The second one ends the program at once."""
    if threading.current_thread() is not threading.main_thread():
        yield
        return
    waiting: list[int] = []

    def wait(number: int, frame: FrameType | None) -> None:
        if waiting:
            os._exit(128 + number)
        waiting.append(number)

    before = {number: signal.signal(number, wait) for number in _SIGNALS}
    try:
        yield
    finally:
        for number, handler in before.items():
            signal.signal(number, handler)
        if waiting:
            signal.raise_signal(waiting[0])
