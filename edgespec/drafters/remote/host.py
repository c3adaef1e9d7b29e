"""A small model that drafts for targets elsewhere: the server's end of `remote.wire`. Needs no torch.

Each connection has a thread, with the desk that a worker process has (`drafters.desk`); they take turns,
step by step. What a client says is bounded before it comes there.
"""

from __future__ import annotations

import logging
import math
from collections import deque
from collections.abc import Callable
from dataclasses import dataclass, field
from queue import Empty
from threading import Lock, Thread
from time import monotonic

from msgspec.structs import replace

from edgespec.config import GenerationOptions
from edgespec.drafters.channel import (
    Beat,
    Close,
    Commit,
    Draft,
    GoAhead,
    Gone,
    Nonsense,
    Open,
    Prefill,
    Request,
    Sent,
    Worked,
    decoded,
    encoded,
)
from edgespec.drafters.desk import Desk
from edgespec.drafters.growth import MAX_PASSES
from edgespec.drafters.inbox import Inbox
from edgespec.drafters.opened import Opened
from edgespec.drafters.remote.turns import Turns
from edgespec.drafters.remote.wire import ASKED, DRAFT_VERSION, Apply, Declined, Hired, NoRoom, Reason
from edgespec.errors import OptionError
from edgespec.runtimes.base import TREE_ROWS
from edgespec.split.protocol import FRAME_BYTES

UNHEARD, UNHEARD_BYTES = 256, 2 * FRAME_BYTES  # messages of a connection that may wait
MOST_REFUSED = 1024  # conversations of a connection that there was no room for

log = logging.getLogger("edgespec.server")


@dataclass
class DraftCounters:
    """What was done since the start. rounds: that were asked for, and nodes of theirs; ahead: while targets
    verify; seconds: of all."""

    conversations: int = 0
    refused: int = 0
    rounds: int = 0
    nodes: int = 0
    rounds_ahead: int = 0
    nodes_ahead: int = 0
    seconds: float = 0.0

    def add(self, round: Worked) -> None:
        self.rounds += not round.ahead
        self.rounds_ahead += round.ahead
        self.nodes += 0 if round.ahead else round.nodes
        self.nodes_ahead += round.nodes if round.ahead else 0
        self.seconds += round.micros / 1e6


@dataclass
class DraftHost:
    """A model, and the conversations that there is memory for.

    model: its name. vocabulary: digest; tokens: rows of its embedding. positions: of a conversation, at most.
    seats: conversations at once. nbytes: that a pass reads.
    """

    opened: Opened
    model: str
    vocabulary: str
    tokens: int
    positions: int
    seats: int
    nbytes: int
    turns: Turns = field(default_factory=Turns)
    counters: DraftCounters = field(default_factory=DraftCounters)  # changed by who has the turn
    taken: int = 0
    _lock: Lock = field(default_factory=Lock)

    @property
    def hired(self) -> Hired:
        return Hired(self.model[:200], self.vocabulary, self.positions, self.nbytes)

    def take_seat(self) -> bool:
        """Whether there is memory for another conversation, which has it then."""
        with self._lock:
            free = self.taken < self.seats
            self.taken += free
            self.counters.conversations += free
            self.counters.refused += not free
            return free

    def give_back(self, seats: int) -> None:
        with self._lock:
            self.taken -= seats


class DraftLine:
    """A client's connection. `hear`, `decline` and `lost` may be called in any thread."""

    def __init__(
        self, host: DraftHost, send: Callable[[bytes, bool], None], close: Callable[[], None]
    ) -> None:
        """send: a frame, and whether it is of no matter where others wait to be sent; close: the connection.
        They return at once, and raise nothing."""
        self.host, self._send, self._close = host, send, close
        self.greeted = self.over = False
        self.said = monotonic()  # when the client last said something
        self._inbox, self._lengths = Inbox(), deque[int]()  # of frames of what waits there
        self._come = self._taken = 0  # bytes: each is counted by one thread, so neither needs a lock
        self._desk = Desk(self._say, host.opened.drafter, self._recalls)
        self._size: dict[int, int] = {}  # by conversation: positions,
        self._length: dict[int, int] = {}  # and tokens; it has none before its first prompt
        self._refused = set[int]()
        Thread(target=self._work, name="edgespec drafting", daemon=True).start()

    @property
    def seats(self) -> int:
        """Conversations."""
        return len(self._size)

    def hear(self, frame: bytes) -> None:
        self.said = monotonic()
        if self.over:
            return
        try:
            if len(frame) > FRAME_BYTES:
                raise Nonsense(f"a message of {len(frame)} bytes, where {FRAME_BYTES} are the most")
            message = decoded(frame, ASKED)
            if isinstance(message, Apply):
                self._greet(message)
                return
            if not self.greeted:
                raise Nonsense(f"{type(message).__name__}, before a greeting")
            self._come += len(frame)
            if self._inbox.waiting > UNHEARD or self._come - self._taken > UNHEARD_BYTES:
                raise Nonsense(f"more than {UNHEARD} messages, or {UNHEARD_BYTES} bytes, wait to be heard")
        except Nonsense as error:
            self.decline("nonsense", str(error))
        else:
            self._lengths.append(len(frame))
            self._inbox.put(message)

    def _greet(self, message: Apply) -> None:
        """Raises Nonsense."""
        if self.greeted:
            raise Nonsense("two greetings")
        self.greeted = True
        if message.version == DRAFT_VERSION:
            self._say(self.host.hired)
        else:
            self.decline("version", f"it speaks version {DRAFT_VERSION}, and the client {message.version}")

    def decline(self, why: Reason, words: str) -> None:
        """And end the connection."""
        if not self.over:
            self._say(Declined(why, words[:1000]))
            self._close()
        self.lost()

    def lost(self) -> None:
        """The connection has ended; its conversations are forgotten."""
        self.over = True
        self._inbox.put(Gone("the connection has ended"))

    def _say(self, message: Sent) -> None:
        if isinstance(message, Worked):
            self.host.counters.add(message)
        if not self.over:
            self._send(encoded(message), isinstance(message, Beat))

    def _recalls(self, seat: int) -> bool:
        """See `drafters.inbox.Inbox`; between two parts of a prompt, others have their turn."""
        self.host.turns.let_others()
        return self._inbox.recalls(seat)

    def _work(self) -> None:
        try:
            while True:
                self._step()
        except Gone:
            pass
        except Nonsense as error:
            self.decline("nonsense", str(error))
        except BaseException as error:  # of this connection alone
            log.error("drafting for a client has failed", exc_info=error)
            self.decline("failed", f"the server could not go on: {type(error).__name__}")
        self._desk.seats.clear()
        self.host.give_back(len(self._size))

    def _step(self) -> None:
        """Raises Nonsense, and what the model raises."""
        try:
            message = self._inbox.take(wait=self._desk.idle)
        except Empty:
            with self.host.turns:
                self._desk.work()
            return
        if isinstance(message, Nonsense):
            raise message
        self._taken += self._lengths.popleft()
        if (checked := self._checked(message)) is not None:
            with self.host.turns:
                self._desk.take(checked)
            if isinstance(checked, Close):
                del self._size[checked.seat]
                self._length.pop(checked.seat, None)
                self.host.give_back(1)

    def _checked(self, message: Request) -> Request | None:
        """What the desk may be told; None: nothing. Raises Nonsense."""
        if isinstance(message, Open):
            return self._opened(message)
        seat: int = getattr(message, "seat", -1)
        if seat in self._refused:
            if isinstance(message, Close):
                self._refused.remove(seat)
            return None
        if seat not in self._size:
            raise Nonsense(f"there is no conversation {seat}")
        if isinstance(message, Prefill):
            self._known(message.tokens)
            self._lengthen(seat, 0, len(message.tokens))
            numbers = message.temperature, message.top_p, message.top_k, message.min_p
            try:
                GenerationOptions(
                    temperature=numbers[0], top_p=numbers[1], top_k=numbers[2], min_p=numbers[3]
                )
            except OptionError as error:
                raise Nonsense(f"a reply cannot be made so: {error}") from None
        elif isinstance(message, Commit):
            self._known([message.root, *message.tokens])
            self._lengthen(seat, self._length.get(seat, 0), len(message.tokens))
        elif isinstance(message, Draft):
            for root in message.roots:
                self._known(root.path)
                if len(root.path) > TREE_ROWS or not math.isfinite(root.logprob):
                    raise Nonsense(f"a root behind {len(root.path)} tokens, of {root.logprob}")
            depth, passes = min(message.depth, TREE_ROWS), min(message.passes, MAX_PASSES)
            return replace(message, depth=depth, passes=passes)
        elif isinstance(message, GoAhead):
            return replace(message, depth=min(message.depth, TREE_ROWS))
        return message

    def _opened(self, message: Open) -> Open | None:
        """Raises Nonsense."""
        seat, capacity = message.seat, message.capacity
        if seat in self._size or seat in self._refused or not 1 <= capacity <= self.host.positions:
            raise Nonsense(f"conversation {seat}, of {capacity} positions: it is there, or of another size")
        if not self.host.take_seat():
            if len(self._refused) >= MOST_REFUSED:
                raise Nonsense(f"{MOST_REFUSED} conversations were refused")
            self._refused.add(seat)
            self._say(NoRoom(seat))
            return None
        self._size[seat] = capacity
        return replace(message, vocabulary=min(message.vocabulary, self.host.tokens))

    def _known(self, tokens: list[int]) -> None:
        """Raises Nonsense for tokens that the model does not have."""
        if max(tokens, default=0) >= self.host.tokens:
            raise Nonsense(f"token {max(tokens)}, of a vocabulary of {self.host.tokens}")

    def _lengthen(self, seat: int, length: int, tokens: int) -> None:
        """Raises Nonsense beyond the conversation's size, but for the end of a tree: what does not fit is not
        told."""
        self._length[seat] = length + tokens
        if length + tokens > self._size[seat] + TREE_ROWS:
            raise Nonsense(f"{length + tokens} tokens, in {self._size[seat]} positions")
