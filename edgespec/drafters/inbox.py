"""What a draft worker was told and has not taken yet. Needs no torch."""

from __future__ import annotations

import os
from collections import deque
from queue import SimpleQueue
from typing import BinaryIO

from edgespec.drafters.channel import (
    REQUEST_BYTES,
    REQUESTS,
    Cancel,
    Close,
    Gone,
    Nonsense,
    Prefill,
    Request,
    read_frame,
)


class Inbox:
    """One thread listens, another takes."""

    def __init__(self) -> None:
        self._heard = SimpleQueue[Request | Nonsense]()
        self._seen = deque[Request | Nonsense]()  # by `recalls`: these come before the others

    def listen(self, pipe: BinaryIO) -> None:
        """Until it ends, and the process with it; or until it has nonsense."""
        try:
            while (message := read_frame(pipe, REQUESTS, REQUEST_BYTES)) is not None:
                self._heard.put(message)
        except Nonsense as error:
            self._heard.put(error)
            return
        os._exit(0)

    def put(self, message: Request | Nonsense) -> None:
        """It was heard, by whoever listens elsewhere."""
        self._heard.put(message)

    @property
    def waiting(self) -> int:
        """Messages; about, while they come."""
        return self._heard.qsize() + len(self._seen)

    def take(self, wait: bool) -> Request | Nonsense:
        """The next message. Raises queue.Empty where there is none, and one is not to `wait` for it."""
        return self._seen.popleft() if self._seen else self._heard.get(block=wait)

    def recalls(self, seat: int) -> bool:
        """Nobody needs any more what this conversation reads: a message that waits says that the reply is
        over, or has another prompt, or nobody is there any more."""
        while not self._heard.empty():  # only who takes makes it so
            self._seen.append(self._heard.get())
        return any(
            isinstance(m, Gone) or (isinstance(m, (Cancel, Close, Prefill)) and m.seat == seat)
            for m in self._seen
        )
