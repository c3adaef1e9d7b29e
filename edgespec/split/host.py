"""The server's end: conversations of clients that draft elsewhere, in the passes of the batched verifier.

Who runs the passes is somebody else (`serving`): a host hands it members of a `core.batcher.Batcher`, one for
each round, and everything here but `Line.hear` and `Line.beat` happens in that one thread, between two
passes. Needs no torch.

A conversation's memory is a session's of the engine: in the ledger, and refused when there is none. Who has
not said anything for a while gives it back, and so does, before others are refused, who has not for the
longest; they notice a longer wait, as their next request finds the server behind, and their text is sent
again.
"""

from __future__ import annotations

import secrets
import time
from collections.abc import Callable
from typing import TYPE_CHECKING

import xxhash

from edgespec.errors import (
    BudgetError,
    Cancelled,
    ClosedError,
    ContextError,
    EdgeSpecError,
    ProtocolError,
    RefusedError,
)
from edgespec.runtimes.base import TREE_ROWS
from edgespec.split.guest import Guest, Judging, Reading, Work
from edgespec.split.protocol import (
    REQUESTS,
    SEAT_BYTES,
    VERSION,
    AskTokenizer,
    Hello,
    Judge,
    Manner,
    Refusal,
    Request,
    Seated,
    Still,
    TakeSeat,
    TokenizerPart,
    Told,
    Upload,
    Welcome,
    Why,
    read,
    written,
)
from edgespec.split.vocabulary import packed_tokenizer

if TYPE_CHECKING:
    from edgespec.engine import Engine

IDLE_SECONDS = 600.0  # after which a conversation's memory goes to others who want it, or to nobody
SPARE_SECONDS = 20.0  # a connected client may rest so long, whoever waits
GUESTS = 1024  # conversations that are known, with memory or without
UNHEARD = 8  # requests of a connection that may wait: a client asks for one thing at a time
PART_BYTES = 2**18  # of a tokenizer's frames


class Host:
    """Serves clients of one engine."""

    def __init__(
        self,
        engine: Engine,
        post: Callable[[Callable[[], None]], None],
        join: Callable[[Work], None],
        idle: float = IDLE_SECONDS,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        """post: have this called in the thread that runs the passes, between two of them. join: take a member
        into the batch; called there. idle: seconds."""
        self.engine, self.post, self.join, self.idle, self.clock = engine, post, join, idle, clock
        self.guests: dict[bytes, Guest] = {}
        self.closed = False
        self._tokenizer, digest = packed_tokenizer(engine.tokenizer)
        config = engine.config
        nodes = 1 if engine.plan.sequences > 1 else min(engine.options.tree_nodes, TREE_ROWS)
        name, eos = engine.files.path.name[:200], sorted(engine.eos)
        about = config.vocab_size, eos, engine.plan.context, config.layers, nodes, digest
        self._welcome = Welcome(VERSION, name, *about)

    def connect(self, send: Callable[[bytes], None], close: Callable[[], None]) -> Line:
        """A client has come. send, close: of its connection, from any thread, at once; they raise nothing."""
        return Line(self, send, close)

    def sweep(self) -> None:
        """Memory of those who were idle for too long is free; to be called now and then."""
        for guest in self._resting(self.idle, self.idle):
            self._drop(guest)

    def close(self) -> None:
        """Conversations end: who asks is told so."""
        self.closed = True
        for guest in [*self.guests.values()]:
            if guest.work is not None:
                guest.work.cancellation.cancel()
            elif guest.session is not None:
                self._drop(guest)

    def _resting(self, lost: float, connected: float) -> list[Guest]:
        """With nothing to do for so many seconds, longest first."""
        now = self.clock()
        idle = [g for g in self.guests.values() if g.work is None]
        idle = [g for g in idle if now - g.since >= (lost if g.line is None else connected)]
        return sorted(idle, key=lambda g: g.since)

    def _drop(self, guest: Guest) -> None:
        guest.forget()
        if guest.line is None:
            self.guests.pop(guest.seat, None)

    # What clients ask.

    def seat(self, line: Line, asked: TakeSeat) -> None:
        """Raises RefusedError and ProtocolError."""
        guest = self.guests.get(asked.seat)
        if guest is None or guest.context != asked.context:
            guest = self._new(asked.context)
        if guest.line is not None and guest.line is not line:
            guest.line.refuse("taken", "this session goes on in another connection")
        if line.guest is not None and line.guest is not guest:
            line.guest.line = None
        line.guest, guest.line = guest, line
        self._admit(guest)
        line.tell(Seated(guest.seat))

    def _new(self, context: int) -> Guest:
        if len(self.guests) >= GUESTS:
            for guest in self._resting(0, self.idle)[:1]:
                self._drop(guest)
        if len(self.guests) >= GUESTS:
            raise RefusedError(f"{GUESTS} conversations are open here, the most", "full", SPARE_SECONDS)
        guest = Guest(secrets.token_bytes(SEAT_BYTES), context, self.clock)
        self.guests[guest.seat] = guest
        return guest

    def _admit(self, guest: Guest) -> None:
        """Give it memory. Raises RefusedError."""
        while guest.session is None:
            try:
                guest.session = self.engine.new_session(guest.context)
            except ClosedError:
                raise RefusedError("the server is closing", "closing") from None
            except BudgetError:
                spare = [g for g in self._resting(0, SPARE_SECONDS) if g.session is not None]
                if not spare:
                    holding = sum(g.session is not None for g in self.guests.values())
                    raise RefusedError(
                        f"there is no room for a conversation of {guest.context} positions: {holding} hold "
                        f"the {self.engine.plan.context} that the server has memory for; try again later, or "
                        "ask for a smaller context",
                        "full",
                        SPARE_SECONDS,
                    ) from None
                self._drop(spare[0])

    def ask(self, line: Line, request: Upload | Judge, digest: bytes) -> None:
        """Raises RefusedError and ProtocolError."""
        guest = line.guest
        if guest is None or guest.seat != request.seat:
            raise ProtocolError("a request names another session than the connection's")
        if not guest.begins(request, digest):
            return
        if guest.work is not None:  # the client has given that round up
            guest.work.cancellation.cancel()
            guest.next = lambda: self._begin(line, guest, request)
        else:
            self._begin(line, guest, request)

    def _begin(self, line: Line, guest: Guest, request: Upload | Judge) -> None:
        def over(error: EdgeSpecError | None) -> None:
            follows, guest.next = guest.next, None
            if follows is not None:
                line.attempt(follows)
            elif error is not None and guest.line is not None:
                guest.line.fail(error)
            if self.closed and guest.work is None:
                self._drop(guest)

        if self.closed:
            raise RefusedError("the server is closing", "closing")
        self._admit(guest)
        if guest.goes_on(request):
            vocabulary = self._welcome.vocabulary
            guest.work = (
                Reading(guest, request, vocabulary, over)
                if isinstance(request, Upload)
                else Judging(guest, request, vocabulary, self._welcome.nodes, over)
            )
            self.join(guest.work)

    def greet(self, line: Line, hello: Hello) -> None:
        """Raises RefusedError."""
        if hello.version != VERSION:
            raise RefusedError(
                f"this server speaks version {VERSION} of the protocol, and the client {hello.version}; "
                "install the same edgespec on both",
                "version",
            )
        line.greeted = True
        line.tell(self._welcome)

    def send_tokenizer(self, line: Line) -> None:
        parts = self._tokenizer
        for start in range(0, len(parts), PART_BYTES):
            part = parts[start : start + PART_BYTES]
            line.tell(TokenizerPart(len(parts) - start - len(part), part))

    def leave(self, guest: Guest) -> None:
        """The conversation is over."""
        guest.line = None
        if guest.work is not None:
            guest.work.cancellation.cancel()
            guest.next = lambda: self._drop(guest)
        else:
            self._drop(guest)


class Line:
    """A connection. `hear`, `lost` and `beat` may be called from any one thread."""

    def __init__(self, host: Host, send: Callable[[bytes], None], close: Callable[[], None]) -> None:
        self.host, self._send, self._close = host, send, close
        self.guest: Guest | None = None
        self.greeted = self.over = False
        self._unheard = 0
        self._has_tokenizer = False
        self._round: int | None = None  # under way

    def hear(self, frame: bytes) -> None:
        """A frame has come."""
        try:
            request = read(frame, REQUESTS)
        except ProtocolError as error:
            self.refuse("nonsense", str(error))
            return
        self._unheard += 1
        if self._unheard > UNHEARD:
            self.refuse("nonsense", f"more than {UNHEARD} requests wait to be heard")
            return
        digest = b""
        if isinstance(request, (Upload, Judge)):
            self._round, digest = request.round, xxhash.xxh3_128_digest(frame)
        self.host.post(lambda: self.attempt(lambda: self._take(request, digest)))

    def lost(self) -> None:
        """The connection has ended; its conversation stays for a while."""
        self.over = True
        self.host.post(self._leave)

    def beat(self) -> None:
        """To be called every `protocol.STILL_SECONDS`: who waits for an answer hears that it is being
        made."""
        if (number := self._round) is not None and not self.over:
            self._send(written(Still(number)))

    def tell(self, message: Told) -> None:
        if not isinstance(message, (Seated, Welcome, TokenizerPart)):
            self._round = None
        if not self.over:
            self._send(written(message))

    def refuse(self, why: Why, words: str, seconds: float = 0.0) -> None:
        """And close it."""
        if not self.over:
            self._send(written(Refusal(why, words[:1000], seconds)))
            self.over = True
            self._close()
        self.host.post(self._leave)

    def fail(self, error: EdgeSpecError) -> None:
        """A round that was asked for here has failed."""
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
        """What is wrong with a request ends its connection, and nothing else."""
        try:
            work()
        except EdgeSpecError as error:
            self.fail(error)

    def _take(self, request: Request, digest: bytes) -> None:
        self._unheard -= 1
        host = self.host
        if self.over:
            return
        if host.closed:
            raise RefusedError("the server is closing", "closing")
        if isinstance(request, Hello):
            host.greet(self, request)
            return
        if not self.greeted:
            raise ProtocolError("the first frame of a connection is Hello")
        if isinstance(request, TakeSeat):
            host.seat(self, request)
        elif isinstance(request, AskTokenizer):
            if self._has_tokenizer:
                raise ProtocolError("the tokenizer was sent already")
            self._has_tokenizer = True
            host.send_tokenizer(self)
        elif isinstance(request, (Upload, Judge)):
            host.ask(self, request, digest)
        elif self.guest is None:
            raise ProtocolError("a session is spoken of before there is one")
        elif isinstance(request, Manner):
            self.guest.choose(request)
        elif self.guest.seat == request.seat:
            guest, self.guest = self.guest, None
            host.leave(guest)

    def _leave(self) -> None:
        guest, self.guest = self.guest, None
        if guest is not None and guest.line is self:
            guest.line, guest.since = None, self.host.clock()
