"""The server's end: conversations of clients that draft elsewhere, in the passes of the batched verifier.

Who runs the passes is somebody else (`serving.scheduler`): a host hands it members of a
`core.batcher.Batcher`, one for each round, and everything here but `introduce`, `Line.hear` and `Line.beat`
happens in that one thread, between two passes. Needs no torch.

A conversation's memory is a session's of the engine: in the ledger, and refused when there is none. Who has
not said anything for a while gives it back, and so does, before others are refused, who has not for the
longest; they notice a longer wait, as their next request finds the server behind, and their text is sent
again.
"""

from __future__ import annotations

import secrets
import time
from collections.abc import Callable
from typing import TYPE_CHECKING, Protocol

from edgespec.errors import (
    BudgetError,
    ClosedError,
    ProtocolError,
    RefusedError,
)
from edgespec.runtimes.base import TREE_ROWS
from edgespec.split.guest import Guest, Judging, Reading, Work
from edgespec.split.line import Line
from edgespec.split.protocol import (
    SEAT_BYTES,
    VERSION,
    AskTokenizer,
    Hello,
    Judge,
    LeaveSeat,
    Manner,
    Request,
    Seated,
    TakeSeat,
    TokenizerPart,
    Upload,
    Welcome,
)
from edgespec.split.recall import Recall
from edgespec.split.vocabulary import packed_tokenizer

if TYPE_CHECKING:
    from edgespec.engine import Engine

IDLE_SECONDS = 600.0  # after which a conversation's memory goes to others who want it, or to nobody
SPARE_SECONDS = 20.0  # a connected client may rest so long, whoever waits
STEP = 256  # positions by which a conversation grows
GUESTS = 1024  # conversations that are known, with memory or without
PART_BYTES = 2**16  # of a tokenizer's frames: each takes a slow link some seconds


class Ground(Protocol):
    """Whoever runs the passes, of others' replies, too."""

    def post(self, work: Callable[[], None]) -> None:
        """Have this called in the thread that runs them, between two; from any thread."""

    def visit(self, work: Work) -> None:
        """Take a member into the batch. In that thread."""

    def spare(self, positions: int) -> bool:
        """Whether others can do without so many positions of the pool. In that thread."""


class Host:
    """Serves clients of one engine."""

    def __init__(
        self,
        engine: Engine,
        ground: Ground,
        idle: float = IDLE_SECONDS,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        """idle: seconds."""
        self.engine, self.ground, self.post, self.idle, self.clock = engine, ground, ground.post, idle, clock
        self.guests: dict[bytes, Guest] = {}
        self.closed = False
        self._tokenizer, digest = packed_tokenizer(engine.tokenizer)
        config = engine.config
        trees = engine.plan.sequences == 1 or engine.drafters  # else sessions have no room for them
        nodes = min(engine.options.tree_nodes, TREE_ROWS) if trees else 1
        # Where sessions have no room for trees beside their positions, these are among them.
        self._behind = nodes if engine.plan.sequences > 1 else 0
        name, eos, context = engine.files.path.name[:200], sorted(engine.eos), engine.plan.context
        about = config.vocab_size, eos, context - self._behind, config.layers, nodes
        memory = engine.memory
        self._recall = None if memory is None else Recall(memory, ground.post)
        known = () if memory is None else (memory.digest, memory.width)
        self._welcome = Welcome(VERSION, name, *about, digest, engine.files.identity, *known)

    def connect(self, send: Callable[[bytes], None], close: Callable[[], None]) -> Line:
        """A client has come; see `Line`."""
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

    # What clients ask: see `split.line.Listener`.

    def introduce(self, line: Line, request: Hello | AskTokenizer) -> None:
        if self.closed:
            raise RefusedError("the server is closing", "closing")
        if isinstance(request, Hello):
            self.greet(line, request)
        else:
            _check_greeted(line)
            self.send_tokenizer(line)

    def take(self, line: Line, request: Request, digest: bytes) -> None:
        if self.closed:
            raise RefusedError("the server is closing", "closing")
        _check_greeted(line)
        if isinstance(request, TakeSeat):
            self.seat(line, request)
        elif isinstance(request, (Upload, Judge)):
            self.ask(line, request, digest)
        elif line.guest is None:
            raise ProtocolError("a session is spoken of before there is one")
        elif isinstance(request, Manner):
            line.guest.choose(request)
        elif isinstance(request, LeaveSeat) and line.guest.seat == request.seat:
            guest, line.guest = line.guest, None
            self.leave(guest)

    def left(self, guest: Guest) -> None:
        guest.since = self.clock()

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
        self._admit(guest, 1)
        line.tell(Seated(guest.seat))

    def _new(self, context: int) -> Guest:
        if len(self.guests) >= GUESTS:
            for guest in self._resting(0, self.idle)[:1]:
                self._drop(guest)
        if len(self.guests) >= GUESTS:
            raise RefusedError(f"{GUESTS} conversations are open here, the most", "full", SPARE_SECONDS)
        guest = Guest(secrets.token_bytes(SEAT_BYTES), context, self.clock)
        guest.recall = self._recall
        self.guests[guest.seat] = guest
        return guest

    def _admit(self, guest: Guest, positions: int) -> None:
        """Give it memory for so many: for all that it may ever need, unless it can grow. Raises
        RefusedError."""
        grown = min(guest.context, -(-positions // STEP) * STEP) if self.engine.may_grow else guest.context
        held = grown + self._behind
        while not self._holds(guest, held):
            if not self.give_way():
                holding = sum(g.session is not None for g in self.guests.values())
                raise RefusedError(
                    f"there is no room for a conversation of {held} positions: {holding} hold some of the "
                    f"{self.engine.pool.positions} that the server has memory for, and others' replies may; "
                    "try again later, or ask for a smaller context",
                    "full",
                    SPARE_SECONDS,
                )

    def _holds(self, guest: Guest, held: int) -> bool:
        """Whether it has memory for so many positions now."""
        engine, pool, session = self.engine, self.engine.pool, guest.session
        if session is not None and session.cache.capacity >= held:
            return True
        share = 0 if session is None else pool.share(session.number)
        try:
            if not self.ground.spare(pool.of(held) - share):
                return False
            if session is None:
                context = None if engine.may_grow else held
                guest.session = engine.new_session(context, held=held if engine.may_grow else None)
            else:
                engine.hold(session, held)
        except ClosedError:
            raise RefusedError("the server is closing", "closing") from None
        except BudgetError:
            return False
        return True

    @property
    def held(self) -> int:
        """Positions that clients' conversations hold of the pool."""
        open = [g.session for g in self.guests.values() if g.session is not None]
        return sum(self.engine.pool.share(session.number) for session in open)

    def give_way(self) -> bool:
        """Take memory from the client that has rested for longest; False = from none."""
        spare = [g for g in self._resting(0, SPARE_SECONDS) if g.session is not None]
        if spare:
            self._drop(spare[0])
        return bool(spare)

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
        def over(error: BaseException | None) -> None:
            follows, guest.next = guest.next, None
            if follows is not None:
                line.attempt(follows)
            elif error is not None and guest.line is not None:
                guest.line.fail(error)
            if self.closed and guest.work is None:
                self._drop(guest)

        if not guest.goes_on(request):
            return
        vocabulary, nodes = self._welcome.vocabulary, self._welcome.nodes
        work = (
            Reading(guest, request, vocabulary, over)
            if isinstance(request, Upload)
            else Judging(guest, request, vocabulary, nodes, over)
        )
        self._admit(guest, work.positions)
        guest.work = work
        work.begin()
        self.ground.visit(work)

    def greet(self, line: Line, hello: Hello) -> None:
        """Raises RefusedError and ProtocolError."""
        if line.greeted:
            raise ProtocolError("hello was said already")
        if hello.version != VERSION:
            raise RefusedError(
                f"this server speaks version {VERSION} of the protocol, and the client {hello.version}; "
                "install the same edgespec on both",
                "version",
            )
        line.greeted = True
        line.tell(self._welcome)

    def send_tokenizer(self, line: Line) -> None:
        """Raises ProtocolError."""
        if line.has_tokenizer:
            raise ProtocolError("the tokenizer was sent already")
        line.has_tokenizer = True
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


def _check_greeted(line: Line) -> None:
    if not line.greeted:
        raise ProtocolError("the first frame of a connection is Hello")
