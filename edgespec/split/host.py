"""The server's end: conversations of clients that draft elsewhere, in the passes of the batched verifier.

Who runs the passes is somebody else (`serving.scheduler`): a host hands it members of a
`core.batcher.Batcher`, one for each round, and everything here but `introduce`, `Line.hear` and `Line.beat`
happens in that one thread, between two passes. Needs no torch.
"""

from __future__ import annotations

import time
from collections import Counter
from collections.abc import Callable
from typing import TYPE_CHECKING, Protocol

from edgespec.errors import ProtocolError, RefusedError
from edgespec.runtimes.base import TREE_ROWS
from edgespec.split.guest import Guest, Judging, Reading, Work
from edgespec.split.guests import IDLE_SECONDS, Guests
from edgespec.split.line import Line
from edgespec.split.protocol import (
    VERSION,
    AskTokenizer,
    GiveUp,
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
    Why,
)
from edgespec.split.recall import Recall
from edgespec.split.vocabulary import packed_tokenizer

if TYPE_CHECKING:
    from edgespec.engine import Engine

MID_REPLY_SECONDS = 1.0  # since its last round, within which a reply most likely goes on
TOKENIZER_BYTES = 2**16  # of a tokenizer's frames: each takes a slow link some seconds


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
        self.ground, self.post, self.clock = ground, ground.post, clock
        self.closed = False
        self.refusals = Counter[str]()  # connections that ended so
        self._tokenizer, digest = packed_tokenizer(engine.tokenizer)
        config = engine.config
        trees = engine.plan.sequences == 1 or engine.drafters  # else sessions have no room for them
        nodes = min(engine.options.tree_nodes, TREE_ROWS) if trees else 1
        # Where sessions have no room for trees beside their positions, these are among them.
        behind = nodes if engine.plan.sequences > 1 else 0
        self.guests = Guests(engine, ground.spare, behind, idle, clock)
        name, eos, context = engine.files.path.name[:200], sorted(engine.eos), engine.plan.context
        about = config.vocab_size, eos, context - behind, config.layers, nodes
        memory = engine.memory
        self._recall = None if memory is None else Recall(memory, ground.post)
        known = () if memory is None else (memory.digest, memory.width)
        self._welcome = Welcome(VERSION, name, *about, digest, engine.files.identity, *known)

    def connect(self, send: Callable[[bytes], None], close: Callable[[], None]) -> Line:
        """A client has come; see `Line`."""
        return Line(self, send, close)

    def sweep(self) -> None:
        """See `serving.visitors.Tenant`."""
        self.guests.sweep()

    @property
    def held(self) -> int:
        """See `serving.visitors.Tenant`."""
        return self.guests.held

    @property
    def mid_reply(self) -> bool:
        """See `serving.visitors.Tenant`."""
        return any(g.line is not None and self.clock() - g.since < MID_REPLY_SECONDS for g in self.guests)

    def give_way(self) -> bool:
        """See `serving.visitors.Tenant`."""
        return self.guests.give_way()

    def close(self) -> None:
        """Conversations end: who asks is told so."""
        self.closed = True
        for guest in self.guests:
            if guest.work is not None:
                guest.work.cancellation.cancel()
            elif guest.session is not None:
                self.guests.drop(guest)

    # What clients ask: see `split.line.Listener`.

    def introduce(self, line: Line, request: Hello | AskTokenizer) -> None:
        if self.closed:
            raise RefusedError("the server is closing", "closing")
        if isinstance(request, Hello):
            self.greet(line, request)
        else:
            self.send_tokenizer(line)

    def take(self, line: Line, request: Request, digest: bytes) -> None:
        if self.closed:
            raise RefusedError("the server is closing", "closing")
        if isinstance(request, TakeSeat):
            self.seat(line, request)
        elif isinstance(request, (Upload, Judge)):
            self.ask(line, request, digest)
        elif line.guest is None:
            raise ProtocolError("a session is spoken of before there is one")
        elif isinstance(request, Manner):
            line.guest.choose(request)
        elif isinstance(request, GiveUp) and line.guest.seat == request.seat:
            line.guest.give_up(request.round)
        elif isinstance(request, LeaveSeat) and line.guest.seat == request.seat:
            guest, line.guest = line.guest, None
            self.leave(guest)

    def left(self, guest: Guest) -> None:
        guest.since = self.clock()

    def refused(self, why: Why) -> None:
        self.refusals[why] += 1

    @property
    def vector_bytes(self) -> int:
        """That were sent to clients' drafters."""
        return 0 if self._recall is None else self._recall.nbytes

    def seat(self, line: Line, asked: TakeSeat) -> None:
        """Raises RefusedError and ProtocolError."""
        if asked.context > self._welcome.context:
            raise ProtocolError(
                f"a conversation of {asked.context} positions, where {self._welcome.context} are the most"
            )
        guest = self.guests.get(asked.seat, asked.context)
        if guest.line is not None and guest.line is not line:
            guest.line.refuse("taken", "this session goes on in another connection")
        if line.guest is not None and line.guest is not guest:
            line.guest.line = None
        line.guest, guest.line = guest, line
        guest.recall = self._recall
        self.guests.admit(guest, 1)
        line.tell(Seated(guest.seat))

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
        """line: that it was asked on; another may have come since."""

        def over(error: BaseException | None) -> None:
            follows, guest.next = guest.next, None
            if follows is not None:
                (guest.line or line).attempt(follows)
            elif error is not None and guest.line is not None:
                guest.line.fail(error)
            if self.closed and guest.work is None:
                self.guests.drop(guest)

        if not guest.goes_on(request):
            return
        vocabulary, nodes, known = self._welcome.vocabulary, self._welcome.nodes, line.known(request)
        try:
            work = (
                Reading(guest, request, vocabulary, known, over)
                if isinstance(request, Upload)
                else Judging(guest, request, vocabulary, nodes, known, over)
            )
            self.guests.admit(guest, work.positions)
        except BaseException:
            guest.undo(request.round)  # it may be asked for again, when there is room
            raise
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
        parts = memoryview(self._tokenizer)  # whoever asks for it is sent these bytes
        for start in range(0, len(parts), TOKENIZER_BYTES):
            part = parts[start : start + TOKENIZER_BYTES]
            line.tell(TokenizerPart(len(parts) - start - len(part), part))  # type: ignore[arg-type]

    def leave(self, guest: Guest) -> None:
        """The conversation is over."""
        guest.line = None
        if guest.work is not None:
            guest.work.cancellation.cancel()
            guest.next = lambda: self.guests.drop(guest)
        else:
            self.guests.drop(guest)
