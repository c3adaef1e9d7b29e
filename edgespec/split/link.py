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
    Heard,
    Hello,
    Recalled,
    Refusal,
    Seated,
    Still,
    TokenizerPart,
    Welcome,
    read,
    written,
)

OPEN_SECONDS = 5.0  # that a connection may take to be made
MOST_WORK = 600.0  # seconds that a server may be at work on a question: one that hangs may say so for ever
REMEMBERED = 100  # rounds
LEAST_PATIENCE = 0.4  # seconds; a server at work says so every 0.2
LOST_PACKET = 0.3  # seconds, and three round trips, within which TCP has made up for one
MARGIN = 1.25  # times what answers took of late
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
        if isinstance(answer, (TokenizerPart, Recalled)):
            self.send(written(Heard()))
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

    A quarter more than all of late took but the slowest: of a hundred rounds one may be late. A lost packet
    costs a few round trips and TCP's own patience, which is why rounds have to wait for that in any case. One
    that came much later counts as one that was a little late: so patience follows a link that is slow, and an
    outage, which says nothing of the next one, does not make it that much longer.

    Attributes:
        greeted: seconds that the latest connection's greeting took.
    """

    def __init__(self) -> None:
        self.greeted = 0.0
        self._took = deque[float](maxlen=REMEMBERED)
        self._sorted: list[float] = []

    def learn(self, seconds: float) -> None:
        """Of a round, the longest that no word came: from the question, or a word before the answer."""
        self._took.append(min(seconds, MARGIN * self.seconds))
        self._sorted = sorted(self._took)

    @property
    def round_trip(self) -> float:
        """Seconds, of the link; as far as is known, for answers have the server's time in them."""
        return min(self.greeted, self._all_but(0.5)) if self._took else self.greeted

    @property
    def seconds(self) -> float:
        learnt = MARGIN * self._all_but(1 / REMEMBERED)
        return max(LEAST_PATIENCE, LOST_PACKET + 3 * self.round_trip, min(learnt, MOST_LEARNT))

    @property
    def usual(self) -> float:
        """Seconds, less than those, that hardly one of ten answers takes."""
        return min(max(0.05 + 2 * self.round_trip, MARGIN * self._all_but(0.1)), self.seconds)

    def _all_but(self, share: float) -> float:
        """What the latest rounds took at most, but for so many of the slowest, and one at least."""
        few = max(1, int(share * len(self._sorted)))
        return self._sorted[-1 - few] if few < len(self._sorted) else 0.0


class Connector:
    """Makes a connection in a thread of its own, again and again, each time after a longer pause. So pauses
    of many clients, whose server has come back, do not end at once, they are drawn at random (by up to
    half)."""

    def __init__(self, make: Callable[[], Link], pause: float = 0.0) -> None:
        """pause: seconds before the first time, as after connections that were of no use."""
        self._make, self._pause = make, pause
        self._found: Link | None = None
        self.failed = False  # since somebody asked for it last
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
                self.failed = True
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
        self.failed = False
        self._hurry.set()

    def stop(self) -> None:
        self._stopped.set()
        self._hurry.set()
        if (link := self._found) is not None:
            link.close()
