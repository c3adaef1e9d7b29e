"""A client's connection, as its server has it. Needs no torch."""

from __future__ import annotations

import logging
import threading
from collections import deque
from collections.abc import Callable
from typing import Protocol

import xxhash

from edgespec.errors import (
    BudgetError,
    Cancelled,
    ContextError,
    EdgeSpecError,
    ProtocolError,
    RefusedError,
)
from edgespec.split.guest import Guest
from edgespec.split.protocol import (
    AT_ONCE,
    FRAME_BYTES,
    REQUESTS,
    AskTokenizer,
    GiveUp,
    Heard,
    Hello,
    Judge,
    Recalled,
    Refusal,
    Request,
    Still,
    TokenizerPart,
    Told,
    Upload,
    Why,
    read,
    written,
)

log = logging.getLogger("edgespec.server")

UNHEARD, UNHEARD_BYTES = 8, FRAME_BYTES  # requests that may wait: a client asks for one thing at a time


class Listener(Protocol):
    """Whom clients talk to: `split.host.Host`."""

    def post(self, work: Callable[[], None]) -> None:
        """Have this called in the thread that runs the passes, between two of them."""

    def introduce(self, line: Line, request: Hello | AskTokenizer) -> None:
        """What is known without a pass, told at once: who asks for it waits for none. In the thread that
        hears. Raises EdgeSpecError: the connection then ends."""

    def take(self, line: Line, request: Request, digest: bytes) -> None:
        """Raises EdgeSpecError: the connection then ends."""

    def left(self, guest: Guest) -> None:
        """Its connection has ended."""

    def refused(self, why: Why) -> None:
        """A connection ends for this reason. In any thread."""


class Line:
    """`hear`, `lost` and `beat` may be called from any one thread; all else is of the one with the passes."""

    def __init__(self, listener: Listener, send: Callable[[bytes], None], close: Callable[[], None]) -> None:
        """send, close: of the connection, from any thread, at once; they raise nothing."""
        self.listener, self._send, self._close = listener, send, close
        self.guest: Guest | None = None
        self.greeted = self.over = self.has_tokenizer = False
        # Frames that have come, and that were taken: each is counted by one thread, so neither needs a lock.
        self._come = self._taken = self._come_bytes = self._taken_bytes = 0
        self._round, self._judged = 0, True  # the latest that was asked for, and whether it was answered
        self._lock = threading.RLock()  # of what is long:
        self._parts = deque[TokenizerPart | Recalled]()  # to be sent, behind
        self._flying = deque[TokenizerPart | Recalled]()  # those that have not been heard
        self._coming = list[range]()  # tokens, whose vectors are under way and not of that round
        self._then: Callable[[], None] | None = None  # to be done when more is wanted

    def hear(self, frame: bytes) -> None:
        """A frame has come."""
        try:
            request = read(frame, REQUESTS)
        except ProtocolError as error:
            self.refuse("nonsense", str(error))
            return
        if not (self.greeted or isinstance(request, Hello)):
            self.refuse("nonsense", "the first frame of a connection is Hello")
            return
        if isinstance(request, (Hello, AskTokenizer)):
            self.attempt(lambda: self.listener.introduce(self, request))
            return
        if isinstance(request, Heard):
            self._heard()
            return
        self._come += 1
        self._come_bytes += len(frame)
        if self._come - self._taken > UNHEARD or self._come_bytes - self._taken_bytes > UNHEARD_BYTES:
            words = f"more than {UNHEARD} requests, or {UNHEARD_BYTES} bytes of them, wait to be heard"
            self.refuse("nonsense", words)
            return
        digest = b""
        if isinstance(request, (Upload, Judge)):
            digest = xxhash.xxh3_128_digest(frame)
            self._asks(request)
        elif isinstance(request, GiveUp) and request.round == self._round:
            self._judged = True
        self.listener.post(lambda: self.attempt(lambda: self._take(request, digest, len(frame))))

    def _asks(self, request: Upload | Judge) -> None:
        """The client says anew what it has, so vectors that were not sent yet are of no use any more; those
        under way will come, and are not to be sent again."""
        with self._lock:
            self._round, self._judged = request.round, False
            self._parts = deque(part for part in self._parts if not isinstance(part, Recalled))
            self._coming = [range(m.start, m.stop) for m in self._flying if isinstance(m, Recalled)]

    def _late(self, message: Recalled) -> bool:
        """Whether these vectors are the round's before, and no more of them is to be sent; else they are
        under way, too."""
        if message.round >= self._round:
            return False
        gap = bool(self._coming) and self._coming[-1].stop != message.start
        if gap or self._parts or len(self._flying) >= AT_ONCE:
            return True
        self._coming.append(range(message.start, message.stop))
        return False

    def known(self, request: Upload | Judge) -> int:
        """Tokens that its client has the vectors of, or will have without asking for more: those under way
        are of use where they go on from what it has, and are of the text that it has now. If it did not want
        them after all, it says so in the next round."""
        coming = self._coming
        if coming and coming[0].start == request.known and coming[-1].stop <= request.committed:
            return coming[-1].stop
        return request.known

    def _take(self, request: Request, digest: bytes, nbytes: int) -> None:
        self._taken += 1
        self._taken_bytes += nbytes
        if not self.over:
            self.listener.take(self, request, digest)

    def lost(self) -> None:
        """The connection has ended; its conversation stays for a while."""
        self._end()
        self.listener.post(self._leave)

    def _end(self) -> None:
        with self._lock:
            self.over = True
            self._parts.clear()

    def beat(self) -> None:
        """To be called every `protocol.STILL_SECONDS`: who waits for an answer hears that it comes."""
        if self.owes and not self.over:
            self._send(written(Still(0 if self._judged else self._round)))

    @property
    def owes(self) -> bool:
        """Something was asked here, and has not been answered yet."""
        return self._come != self._taken or not self._judged

    def tell(self, message: Told) -> None:
        if isinstance(message, (TokenizerPart, Recalled)):
            with self._lock:
                if not (isinstance(message, Recalled) and self._late(message)):
                    self._parts.append(message)
                self._fly()
            return
        if getattr(message, "round", None) == self._round:  # else of one that the client has given up
            self._judged = True
        if not self.over:
            self._send(written(message))

    def _fly(self) -> None:
        """Send what may be under way. Answers need not wait behind more than that."""
        while self._parts and len(self._flying) < AT_ONCE and not self.over:
            self._flying.append(self._parts.popleft())
            self._send(written(self._flying[-1]))

    def _heard(self) -> None:
        then = None
        with self._lock:
            if self._flying:
                self._flying.popleft()
            self._fly()
            if len(self._parts) < AT_ONCE:
                then, self._then = self._then, None
        if then is not None:
            self.listener.post(then)

    def takes(self, then: Callable[[], None]) -> bool:
        """Whether more vectors could be sent soon. If not, `then` is done between two passes once they can;
        never, if the connection ends."""
        with self._lock:
            if len(self._parts) < AT_ONCE:
                return not self.over
            self._then = then
            return False

    def refuse(self, why: Why, words: str, seconds: float = 0.0) -> None:
        """And close it."""
        if not self.over:
            self.listener.refused(why)
            self._send(written(Refusal(why, words[:1000], seconds)))
            self._end()
            self._close()
        self.listener.post(self._leave)

    def fail(self, error: BaseException) -> None:
        """What was asked for here has failed: the connection ends, and nothing else."""
        if isinstance(error, RefusedError):
            self.refuse(error.why, str(error), error.seconds)  # type: ignore[arg-type]
        elif isinstance(error, ProtocolError):
            self.refuse("nonsense", str(error))
        elif isinstance(error, (ContextError, BudgetError)):
            self.refuse("full", str(error))
        elif isinstance(error, Cancelled):
            self.refuse("closing", "the server is closing")
        else:
            self.refuse("failed", f"the server could not go on: {type(error).__name__}")

    def attempt(self, work: Callable[[], None]) -> None:
        try:
            work()
        except EdgeSpecError as error:
            self.fail(error)
        except Exception as error:  # nobody else's conversation is to end by it
            log.exception("what a client has asked for")
            self.fail(error)

    def _leave(self) -> None:
        guest, self.guest = self.guest, None
        if guest is not None and guest.line is self:
            guest.line = None
            self.listener.left(guest)
