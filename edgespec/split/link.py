"""A client's connection, how long its answers take, and how it is made again when it is lost. No torch."""

from __future__ import annotations

import random
import threading
import time
from collections import deque
from collections.abc import Callable
from typing import Protocol, TypeVar

from edgespec.errors import LinkError, ProtocolError, RefusedError
from edgespec.split.protocol import (
    ANSWERS,
    PASSING,
    VERSION,
    Answer,
    Hello,
    Refusal,
    Seated,
    Still,
    Welcome,
    read,
    written,
)

OPEN_SECONDS = 5.0  # that a connection may take to be made
MOST_WORK = 600.0  # seconds that a server may be at work on a question: one that hangs may say so for ever
REMEMBERED = 100  # rounds
LEAST_PATIENCE = 0.4  # seconds; a server at work says so every 0.2
MOST_LEARNT = 3.0  # seconds of patience that late rounds may teach
FIRST_WAIT, MOST_WAIT = 0.25, 5.0  # seconds before a connection is tried again, doubled each time


A = TypeVar("A", Welcome, Seated)


class Transport(Protocol):
    """A connection that keeps frames whole. What it raises when it is lost is LinkError."""

    def send(self, frame: bytes) -> None: ...

    def receive(self, timeout: float) -> bytes | None:
        """The next frame; None = there was none for so many seconds."""

    def abort(self) -> None:
        """End it at once, for whoever waits here: from any thread."""

    def close(self) -> None: ...


Dial = Callable[[], Transport]
"""Makes a connection, within OPEN_SECONDS. Raises LinkError, and RefusedError for what stays so."""


class Link:
    """An open one, as both ends have said hello. Counts its bytes."""

    def __init__(self, transport: Transport) -> None:
        """Raises LinkError, RefusedError and ProtocolError."""
        self.transport, self.sent, self.received = transport, 0, 0
        self.seat = b""  # that it has, once it has one
        self.heard = time.monotonic()  # when a frame came last, or was sent to who had answered all
        try:
            began = time.monotonic()
            self.send(written(Hello(VERSION)))
            self.welcome = self.expect(Welcome)
            self.round_trip = time.monotonic() - began  # seconds
        except BaseException:
            self.close()
            raise

    def send(self, frame: bytes) -> None:
        """Raises LinkError."""
        self.transport.send(frame)
        self.sent += len(frame)
        self.heard = time.monotonic()

    def receive(self, timeout: float) -> Answer | None:
        """What a server says; None = nothing for so many seconds. Raises LinkError, RefusedError and
        ProtocolError."""
        frame = self.transport.receive(timeout)
        if frame is None:
            return None
        self.heard = time.monotonic()
        self.received += len(frame)
        answer = read(frame, ANSWERS)
        if isinstance(answer, Refusal):
            words = f"the server refuses: {answer.words}"
            if answer.why == "nonsense":
                raise ProtocolError(words)
            raise RefusedError(words, answer.why, answer.seconds)
        return answer

    def expect(self, kind: type[A]) -> A:
        """The next answer, which is of this kind; a server at work on a pass is waited for, as long as it
        says so. Raises as `receive`, and LinkError when it takes too long."""
        began = time.monotonic()
        while isinstance(answer := self.receive(OPEN_SECONDS), Still):
            if time.monotonic() - began > MOST_WORK:
                raise LinkError(f"the server has been at work for {MOST_WORK:g} s, and has not answered")
        if answer is None:
            raise LinkError(f"the server has not answered for {OPEN_SECONDS:g} s")
        if not isinstance(answer, kind):
            raise ProtocolError(f"the server says {type(answer).__name__}, where {kind.__name__} is due")
        return answer

    def close(self) -> None:
        self.transport.close()


def passing(error: Exception) -> bool:
    """Whether a connection that was not made for this reason may be made later, with nothing done about it
    here."""
    return isinstance(error, LinkError) or (isinstance(error, RefusedError) and error.why in PASSING)


class Patience:
    """How long an answer may take before the text goes on without it; of what is the link's, not the
    server's, who says that it is at work.

    Half as much again as the slowest of late: a lost packet costs a few round trips and TCP's own patience,
    which is why the first rounds have to wait by a rule of thumb. A round that came later than that counts as
    one that has just come in time: so patience follows a link that is slow, and an outage, which says nothing
    of the next one, does not make it that much longer.
    """

    def __init__(self) -> None:
        self._took = deque[float](maxlen=REMEMBERED)
        self.mean = 0.0  # seconds of a round trip, the last ones most

    def learn(self, seconds: float) -> None:
        """Of a round, from the question to the last word before the answer; late ones count above all."""
        seconds = min(seconds, self.seconds)
        self.mean = self.mean + (seconds - self.mean) / 8 if self._took else seconds
        self._took.append(seconds)

    @property
    def seconds(self) -> float:
        learnt = 1.5 * max(self._took, default=0.0)
        return max(LEAST_PATIENCE + 4 * self.mean, min(learnt, MOST_LEARNT))


class Connector:
    """Makes a connection in a thread of its own, again and again, each time after a longer pause. So pauses
    of many clients, whose server has come back, do not end at once, they are drawn at random (by up to
    half)."""

    def __init__(self, make: Callable[[], Link], pause: float = 0.0) -> None:
        """pause: seconds before the first time, as after connections that were of no use."""
        self._make, self._pause = make, pause
        self._found: Link | None = None
        self.error: Exception | None = None  # that ends it
        self._stopped = threading.Event()
        self._hurry = threading.Event()
        threading.Thread(target=self._run, name="edgespec reconnect", daemon=True).start()

    def _run(self) -> None:
        if self._pause:
            self._hurry.wait(self._pause * random.uniform(0.5, 1.0))
            self._hurry.clear()
        pause = max(FIRST_WAIT, self._pause)
        while not self._stopped.is_set():
            try:
                link = self._make()
            except Exception as error:  # what nobody foresaw, too: who waits is to hear of it
                if not passing(error):
                    self.error = error
                    return
                if isinstance(error, RefusedError):
                    pause = max(pause, min(error.seconds, MOST_WAIT))
            else:
                self._found = link
                if self._stopped.is_set():  # nobody waits any more
                    link.close()
                return
            if self._hurry.wait(pause * random.uniform(0.5, 1.0)):
                self._hurry.clear()
                pause = FIRST_WAIT
            else:
                pause = min(2 * pause, MOST_WAIT)

    def take(self) -> Link | None:
        """The connection, once it is there. Raises what has ended the search."""
        if self.error is not None:
            raise self.error
        link, self._found = self._found, None
        return link

    def hurry(self) -> None:
        """Somebody asks for it anew: try now."""
        self._hurry.set()

    def stop(self) -> None:
        self._stopped.set()
        self._hurry.set()
        if (link := self._found) is not None:
            link.close()
