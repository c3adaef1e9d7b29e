"""A conversation's place on a server, as the client has it: its text, and rounds that survive the link. No
torch.
    compute    ask ─── wait (draft ahead) ─── answer, checked
                 │        └ too long: LinkError; somebody else goes on meanwhile, and looks in by `advance`
                 └ connection lost: another one, made in a thread of its own; the same round is asked again

What a server has of the text may be less than the client's, after an outage or an eviction: the client knows
how much both have agreed on, asks from there on, and is told by `Behind` where that is wrong.
"""

from __future__ import annotations

import time
from collections import deque
from collections.abc import Callable, Generator, Sequence
from functools import partial

from edgespec.core.batch import Part, PrefillBlock
from edgespec.core.tree import TokenTree
from edgespec.drafters.base import shared_prefix
from edgespec.errors import EdgeSpecError, LinkError, ProtocolError, RefusedError
from edgespec.split.checks import outcome_of, token_behind
from edgespec.split.link import Connector, Link, Patience
from edgespec.split.payload import pack_nodes, pack_tokens, squeeze
from edgespec.split.protocol import (
    JUDGES,
    PASSING,
    Answer,
    Behind,
    Judge,
    Judged,
    LeaveSeat,
    Manner,
    Recalled,
    Seated,
    Still,
    TakeSeat,
    Upload,
    Uploaded,
    written,
)
from edgespec.split.recall import NONE, Recollection, known
from edgespec.split.transcript import Transcript

TICK = 0.02  # seconds between two looks at whether a round was cancelled
PIECE = 4096  # tokens of a prompt in one frame
BEHIND = 8  # times that a server may have lost the text within one round
RECALL = 0.05  # seconds, and half a round trip, that drafts wait for what they attend to
DEAD = 3.0  # times its patience, after which a silent connection is given up

Round = Generator[None, None, Uploaded | Judged | Behind]


class RemoteSeat:
    """See `runtimes.base.Seat`. One thread at a time may use it."""

    def __init__(
        self,
        connect: Callable[[], Link],
        context: int,
        vocabulary: int,
        recollection: Recollection | None = None,
    ) -> None:
        """connect: to the server; raises as `Link`. context: positions. recollection: what the drafter
        attends to, if it does. Raises what `connect` does."""
        self.recollection = recollection
        self.capacity, self.vocabulary, self._connect = context, vocabulary, connect
        self.transcript, self.patience = Transcript(), Patience()
        self.sent = self.received = 0  # bytes, by connections that are gone
        self._manner: Manner | None = None
        self._agreed = 0  # tokens of the transcript that the server has said it has
        self._seat = b""
        self.rounds = 0  # asked for; the latest one's number
        self._took = 0.0  # seconds, the latest answer
        self._connector: Connector | None = None
        self._inbox = deque[Answer]()
        self._under_way: tuple[Part, Generator[None, None, None]] | None = None
        self._link: Link | None = self._sit()
        self._quiet = time.monotonic()  # since when nothing was heard
        self.patience.mean = self._link.round_trip

    @property
    def length(self) -> int:
        return len(self.transcript)

    @property
    def traffic(self) -> tuple[int, int]:
        """Bytes sent and received."""
        link = self._link
        return (self.sent + link.sent, self.received + link.received) if link else (self.sent, self.received)

    def truncate(self, length: int) -> None:
        if self.recollection is not None and length < len(self.transcript):
            self.recollection.truncate(length, self.rounds)
        self.transcript.truncate(length)
        self._agreed = min(self._agreed, length)

    def adopt(self, tokens: Sequence[int]) -> None:
        """The conversation is this, whoever has said it."""
        kept = shared_prefix(self.transcript.tokens(), tokens)
        self.truncate(kept)
        self.transcript.extend(tokens[kept:])

    def choose(self, manner: Manner) -> None:
        """How tokens are chosen from now on."""
        if manner != self._manner:
            self._manner = manner
            if self._link is not None:
                self._tell(self._link, written(manner))

    def close(self) -> None:
        """Its memory on the server is free, if that can be reached."""
        if self._connector is not None:
            self._connector.stop()
        if self._link is not None:
            self._tell(self._link, written(LeaveSeat(self._seat)))
        self._drop()

    # A round, from the outside.

    def compute(self, part: Part) -> None:
        """See `core.verify.Verifier`. Raises LinkError when the answer takes too long: it may still come, and
        `advance` says so."""
        self._under_way = part, self._exchange(part)
        if self._connector is not None:
            self._connector.hurry()
        self._quiet = time.monotonic()
        while not self.advance():
            if part.observer is not None:
                part.observer.on_chunk()
            if (silent := time.monotonic() - self._quiet) > self.patience.seconds:
                state = "is lost, and was not made again" if self._link is None else "is silent"
                raise LinkError(f"the connection to the server {state} for {silent:.1f} s")
            if part.observer is None or not part.observer.on_wait():
                self.wait(TICK)

    def advance(self) -> bool:
        """Do what can be done of the round now: True = its part has the result. Raises RefusedError and
        ProtocolError."""
        assert self._under_way is not None
        try:
            next(self._under_way[1])
        except StopIteration:
            self._under_way = None
            return True
        except EdgeSpecError:
            self._drop()
            raise
        return False

    def wait(self, seconds: float) -> None:
        """Until a server says something, but no longer."""
        if self._link is None:
            time.sleep(seconds)
        elif not self._inbox:
            self._read(self._link, seconds)

    # Connections.

    def _sit(self) -> Link:
        """Raises as `Link`; in another thread, too."""
        link = self._connect()
        try:
            link.send(written(TakeSeat(self._seat, self.capacity)))
            self._seat = link.expect(Seated).seat
        except BaseException:
            link.close()
            raise
        return link

    def _connected(self) -> Generator[None, None, Link]:
        while self._link is None:
            connector = self._connector = self._connector or Connector(self._sit)
            try:
                link = connector.take()
            except EdgeSpecError:
                self._connector = None
                raise
            if link is None:
                yield
                continue
            self._connector, self._link = None, link
            self._inbox.clear()
            if self._manner is not None:
                self._tell(link, written(self._manner))
        return self._link

    def _drop(self) -> None:
        """The connection is of no use any more."""
        link, self._link = self._link, None
        if link is not None:
            self.sent, self.received = self.sent + link.sent, self.received + link.received
            link.close()

    def _tell(self, link: Link, frame: bytes) -> None:
        try:
            link.send(frame)
        except LinkError:
            self._drop()

    def _read(self, link: Link, seconds: float) -> None:
        try:
            if (answer := link.receive(seconds)) is not None:
                self._inbox.append(answer)
                self._quiet = time.monotonic()
            elif time.monotonic() - link.heard > DEAD * self.patience.seconds:
                self._drop()
        except (LinkError, RefusedError) as error:
            self._drop()
            if isinstance(error, RefusedError) and error.why not in PASSING:
                raise

    # A round, from the inside: each `yield` is a wait for the server.

    def _exchange(self, part: Part) -> Generator[None, None, None]:
        self._agreed = min(self._agreed, len(self.transcript))
        if isinstance(part, PrefillBlock):
            text = self.transcript.plus(part.tokens)
            part.chosen = yield from self._bring(text, part.last)
            self.transcript = text
        else:
            answer: Uploaded | Judged | Behind | None = None
            for _ in range(BEHIND):
                yield from self._bring(self.transcript, draws=False)
                answer = yield from self._ask(partial(self._judge, part.tree))
                if isinstance(answer, Judged):
                    break
                self._fall_back(answer)
            else:
                raise ProtocolError(f"the server has lost the text {BEHIND} times in one round")
            follows = self._manner is not None and JUDGES[self._manner.judge] != "typical"
            about = self.transcript, follows, self.vocabulary, self._took
            part.outcome = outcome_of(answer, part.tree, *about)
            self.transcript.extend(part.tree.tokens[part.outcome.path])
            self._agreed = len(self.transcript)
        yield from self._recollect()

    def _recollect(self) -> Generator[None, None, None]:
        """What the drafter attends to comes right behind the answer: it is waited for, but not for long."""
        until = time.monotonic() + RECALL + self.patience.mean / 2
        while self._link is not None and known(self.recollection) not in (NONE, self._agreed):
            self._read(self._link, 0)
            if self._inbox:
                self._heard(self._inbox.popleft())
            elif time.monotonic() < until:
                yield
            else:
                return

    def _heard(self, answer: Answer) -> bool:
        """Whether it was no answer to a round. Raises ProtocolError."""
        if isinstance(answer, Recalled) and self.recollection is not None:
            self.recollection.take(answer, self.capacity)
            return True
        return isinstance(answer, Still)

    def _bring(self, text: Transcript, draws: bool) -> Generator[None, None, int]:
        """Have the server commit all of this text; returns the token that follows, if it draws."""
        token, behind = -1, 0
        while self._agreed < len(text):
            start, stop = self._agreed, min(len(text), self._agreed + PIECE)
            last = draws and stop == len(text)
            answer = yield from self._ask(partial(self._upload, text, start, stop, last))
            if isinstance(answer, Uploaded):
                token = token_behind(answer, text, stop, last, self.vocabulary)
                self._agreed = stop
                continue
            if (behind := behind + 1) > BEHIND:
                raise ProtocolError(f"the server has lost the text {BEHIND} times in one round")
            self._fall_back(answer)
        return token

    def _upload(self, text: Transcript, start: int, stop: int, draws: bool, number: int, have: int) -> Upload:
        body = squeeze(pack_tokens(text.tokens(start, stop)))
        return Upload(self._seat, number, start, text.hash(start), have, draws, *body)

    def _judge(self, tree: TokenTree, number: int, have: int) -> Judge:
        text = len(self.transcript), self.transcript.hash()
        return Judge(self._seat, number, *text, have, int(tree.tokens[0]), pack_nodes(tree))

    def _ask(self, request: Callable[[int, int], Upload | Judge]) -> Round:
        """Until there is an answer; on a new connection, the same round again, byte for byte."""
        self.rounds += 1
        number, slowest, began, sent = self.rounds, 0.0, 0.0, 0.0
        asked: Link | None = None
        have = known(self.recollection)
        while True:
            link = yield from self._connected()
            if link is not asked:
                self._tell(link, written(request(number, have)))
                asked, began = link, time.monotonic()
                sent = began
            if not self._inbox:
                self._read(link, 0)
            if not self._inbox or self._link is not asked:
                if self._link is asked:
                    yield
                continue
            answer, now = self._inbox.popleft(), time.monotonic()
            slowest, began = max(slowest, now - began), now
            if self._heard(answer) or getattr(answer, "round", number) < number:
                continue
            if not isinstance(answer, (Uploaded, Judged, Behind)) or answer.round > number:
                raise ProtocolError(f"the server says {type(answer).__name__}, which was not asked for")
            self.patience.learn(slowest)
            self._took = now - sent
            return answer

    def _fall_back(self, answer: Uploaded | Judged | Behind) -> None:
        """The server has less of the text than was thought."""
        if not isinstance(answer, Behind):
            raise ProtocolError(f"the server says {type(answer).__name__}, which was not asked for")
        there = answer.committed
        same = there <= self._agreed and self.transcript.hash(there) == answer.hash
        self._agreed = there if same else 0
