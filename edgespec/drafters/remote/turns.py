"""Whose turn it is to compute: connections of a server that drafts have it one after the other."""

from __future__ import annotations

from collections import deque
from threading import Lock
from types import TracebackType


class Turns:
    """A lock that is had in the order of asking for it."""

    def __init__(self) -> None:
        self._lock = Lock()  # of the next two
        self._waiting = deque[Lock]()
        self._taken = False

    def __enter__(self) -> None:
        mine = Lock()
        mine.acquire()
        with self._lock:
            if not self._taken:
                self._taken = True
                return
            self._waiting.append(mine)
        mine.acquire()  # until whoever had it hands it on

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        with self._lock:
            if self._waiting:
                self._waiting.popleft().release()
            else:
                self._taken = False

    def let_others(self) -> None:
        """Whoever has it gives it to those who wait, and has it again then."""
        self.__exit__(None, None, None)
        self.__enter__()
