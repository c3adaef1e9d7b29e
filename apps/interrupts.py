"""Signals wait until torch is imported.

An exception that Python raises while torch's C++ initialises (as Ctrl-C does) ends in `terminate called` and
abort. Whoever imports torch first, wherever that is, does so under `held`.
"""

from __future__ import annotations

import os
import signal
import sys
import threading
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from importlib.machinery import ModuleSpec
from types import FrameType, ModuleType

_SIGNALS = [getattr(signal, name) for name in ("SIGINT", "SIGTERM", "SIGHUP") if hasattr(signal, name)]


@contextmanager
def held() -> Iterator[None]:
    """Signals wait until the block is over; the second one ends the program at once."""
    if threading.current_thread() is not threading.main_thread():  # where no signal raises anything
        yield
        return
    waiting: list[int] = []

    def wait(number: int, frame: FrameType | None) -> None:
        if waiting:
            os._exit(128 + number)
        waiting.append(number)

    # What the system does by itself (end the process, ignore) raises nothing.
    raising = [number for number in _SIGNALS if callable(signal.getsignal(number))]
    before = {number: signal.signal(number, wait) for number in raising}
    try:
        yield
    finally:
        for number, handler in before.items():
            signal.signal(number, handler)
        if waiting:
            signal.raise_signal(waiting[0])


class HeldImports:
    """A finder for `sys.meta_path`: these modules are found as ever, and run under `held`."""

    def __init__(self, *names: str) -> None:
        self.names = names

    def find_spec(
        self, name: str, path: Sequence[str] | None, target: ModuleType | None = None
    ) -> ModuleSpec | None:
        if name not in self.names:
            return None
        others = (finder.find_spec(name, path, target) for finder in sys.meta_path if finder is not self)
        spec = next(filter(None, others), None)
        if spec is not None and spec.loader is not None:
            run = spec.loader.exec_module

            def exec_module(module: ModuleType) -> None:
                with held():
                    run(module)

            spec.loader.exec_module = exec_module  # type: ignore[method-assign]
        return spec
