"""A conversation's connections to its server, one after the other. No torch.

    present one    asked ── silent for too long ──────── answers after all: that counts
    next one                 └ made in a thread of its own ──────── has its seat: is the present one

A silent connection is listened to until there is another: a lost packet is sent again by TCP, after pauses
that double, and an outage of a few seconds may leave it silent for as long again. Which of the two answers
first cannot be known, so neither waits for the other.
"""

from __future__ import annotations

import threading
import time
from collections import deque
from collections.abc import Callable

from edgespec.errors import EdgeSpecError, LinkError, RefusedError
from edgespec.split.link import FIRST_WAIT, MOST_WORK, Connector, Link, Patience, passing
from edgespec.split.protocol import PASSING, Answer, Seated, TakeSeat, written

SLOW_LINK = 8000  # bytes of a question that a link is thought to carry in a second: a long prompt has 12,000
DOUBLINGS = 5  # of the patience, at most, before a connection is replaced that has replaced a silent one


class Connections:
    """One thread at a time may use it.

    Attributes:
        seat: the conversation's id on the server.
        inbox: answers that have come.
        patience: how long the present connection may be silent.
    """

    def __init__(self, connect: Callable[[], Link], positions: int, later: bool = False) -> None:
        """connect: to the server; raises as `Link`. positions: of the conversation. later: one that cannot be
        made now may be made when it is wanted. Raises what `connect` does."""
        self._connect, self._positions, self.seat = connect, positions, b""
        self.inbox, self.patience = deque[Answer](), Patience()
        self._sent = self._received = 0  # bytes, by connections that are gone
        self._connector: Connector | None = None
        self._since = 0.0  # when that began
        self._in_vain = 0  # connections that have replaced another, and nothing was heard on any
        self.present: Link | None = None
        try:
            self._take(self._sit())
        except EdgeSpecError as error:
            if not (later and passing(error)):
                raise
        self.answered = self._told = time.monotonic()  # when a server said a word last; told: an answer
        self._most = MOST_WORK  # seconds that words count for which are none
        self._crossing = 0.0  # seconds that the latest question may need to cross the link

    @property
    def traffic(self) -> tuple[int, int]:
        """Bytes sent and received."""
        link = self.present
        return self._sent + (link.sent if link else 0), self._received + (link.received if link else 0)

    def get(self, asked: Link | None) -> Link | None:
        """The connection to use now; None = there is none, another is being made. asked: the one that owes an
        answer. Raises what ends the search."""
        if self._connector is None and self._silent(asked):
            pause = FIRST_WAIT * (1 << self._in_vain) / 2 if self._in_vain else 0.0
            self._connector, self._since = Connector(self._sit, pause), time.monotonic()
        if self._connector is not None:
            try:
                link = self._connector.take()
            except EdgeSpecError:
                self._connector = None
                if self.present is None or self.present.heard < self._since:
                    raise
                return self.present  # it is not needed any more
            if link is not None:
                self._retire()
                self._connector = None
                self._take(link)
                self._in_vain = min(self._in_vain + 1, DOUBLINGS)
        return self.present

    @property
    def bearable(self) -> float:
        """Seconds that a server may be silent, asked what it was asked last."""
        return self.patience.seconds + self._crossing

    @property
    def gone(self) -> bool:
        """The connection is lost, and since the round began another could not be made."""
        return self.present is None and self._connector is not None and self._connector.failed

    def _take(self, link: Link) -> None:
        self.present, self.seat, self.patience.greeted = link, link.seat, link.round_trip

    def _sit(self) -> Link:
        """A connection that has the conversation's seat; in another thread, too. Raises as `Link`."""
        link = self._connect()
        try:
            link.send(written(TakeSeat(self.seat, self._positions)))
            link.seat = link.expect(Seated).seat
        except BaseException:
            link.close()
            raise
        return link

    def _silent(self, asked: Link | None) -> bool:
        """For longer than its answers take. What follows a connection that was silent, too, is given twice
        as long: a question may take that long to cross this link."""
        if self.present is None or self.present is not asked:
            return self.present is None
        return time.monotonic() - self.present.heard > self.bearable * (1 << self._in_vain)

    def listen(self, seconds: float) -> None:
        """Until a server says something, but no longer. Raises RefusedError and ProtocolError."""
        link = self.present
        if link is None:
            time.sleep(seconds)
            return
        try:
            answer = link.receive(seconds)
        except LinkError:
            self.drop()
        except RefusedError as error:
            self.drop()
            # "taken", while another connection is being made: by that one.
            if error.why not in PASSING and (error.why != "taken" or self._connector is None):
                raise
        else:
            if answer is not None:
                self.inbox.append(answer)
                now = time.monotonic()
                if now - self._told < self._most:
                    self.answered, self._in_vain = now, 0

    def answers(self) -> None:
        """What was asked for last has been answered: whatever else a server says, it may say so long and no
        longer."""
        self._told, self._most = time.monotonic(), MOST_WORK

    def expects(self, passes: int) -> None:
        """What is asked for next takes the server so many."""
        self._most = MOST_WORK * passes

    def tell(self, frame: bytes) -> None:
        """If it can be told."""
        if self.present is not None:
            self._crossing = len(frame) / SLOW_LINK
            try:
                self.present.send(frame)
            except LinkError:
                self.drop()

    def hurry(self) -> None:
        """A new round: do not wait until the next attempt is due."""
        self.answers()
        if self._connector is not None:
            self._connector.hurry()

    def drop(self) -> None:
        """The present one is of no use any more."""
        if (link := self._leave()) is not None:
            link.close()

    def _retire(self) -> None:
        """Another takes its place, which need not wait until a silent server has heard of that."""
        if (link := self._leave()) is not None:
            threading.Thread(target=link.close, name="edgespec disconnect", daemon=True).start()

    def _leave(self) -> Link | None:
        link, self.present = self.present, None
        if link is not None:
            self._sent, self._received = self._sent + link.sent, self._received + link.received
        return link

    def close(self) -> None:
        if self._connector is not None:
            self._connector.stop()
        self.drop()
