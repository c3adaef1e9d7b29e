"""A conversation's place on a server, as the client has it: its text, and rounds that survive the link. No
torch.
    compute    ask ─── wait (draft ahead) ─── answer, checked
                 │        └ too long: LinkError; somebody else goes on meanwhile, and looks in by `advance`
                 └ connection lost or silent: on another one (`split.connections`) the same round again

What a server has of the text may be less than the client's, after an outage or an eviction: the client knows
how much both have agreed on, asks from there on, and is told by `Behind` where that is wrong.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Generator, Sequence
from dataclasses import replace
from functools import partial

from edgespec.core.batch import Part, PrefillBlock
from edgespec.core.tree import TokenTree
from edgespec.drafters.base import shared_prefix
from edgespec.errors import EdgeSpecError, LinkError, ProtocolError
from edgespec.runtimes.base import PREFILL_ROWS
from edgespec.split.checks import outcome_of, token_behind
from edgespec.split.connections import Connections
from edgespec.split.link import Link
from edgespec.split.payload import pack_nodes, pack_tokens, squeeze
from edgespec.split.protocol import (
    JUDGES,
    Answer,
    Behind,
    GiveUp,
    Judge,
    Judged,
    LeaveSeat,
    Manner,
    Recalled,
    Still,
    Upload,
    Uploaded,
    written,
)
from edgespec.split.recall import NONE, Recollection, known
from edgespec.split.transcript import Transcript

TICK = 0.02  # seconds between two looks at whether a round was cancelled
PIECE = 4096  # tokens of a prompt in one frame
BEHIND = 8  # times that a server may have lost the text within one round
LATE_WORK = 10.0  # seconds, and four times the slowest pass, that a server may be at work on a tree
RECALL = 0.05  # seconds, and half a round trip, that drafts wait for what they attend to

Round = Generator[None, None, Uploaded | Judged | Behind]


class RemoteSeat:
    """See `runtimes.base.Seat`. One thread at a time may use it."""

    def __init__(
        self,
        connect: Callable[[], Link],
        context: int,
        vocabulary: int,
        recollection: Recollection | None = None,
        later: bool = False,
    ) -> None:
        """connect: to the server; raises as `Link`. context: positions. recollection: what the drafter
        attends to, if it does. later: see `Connections`. Raises what `connect` does."""
        self.recollection = recollection
        self.capacity, self.vocabulary = context, vocabulary
        self.transcript = Transcript()
        self._manner: Manner | None = None
        self._agreed = 0  # tokens of the transcript that the server has said it has
        self.rounds = 0  # asked for; the latest one's number
        self._took = self._slowest = 0.0  # seconds, the latest answer, and the slowest of a pass
        self._late = float("inf")  # when the text goes on, although the server says that it is at work
        self._under_way: tuple[Part, Generator[None, None, None]] | None = None
        self.links = Connections(connect, context, later)
        self._told: Link | None = None  # that knows how tokens are chosen

    @property
    def length(self) -> int:
        return len(self.transcript)

    @property
    def traffic(self) -> tuple[int, int]:
        """Bytes sent and received."""
        return self.links.traffic

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
            self._manner, self._told = manner, None

    def close(self) -> None:
        """Its memory on the server is free, if that can be reached."""
        self.links.tell(written(LeaveSeat(self.links.seat)))
        self.links.close()

    # A round, from the outside.

    def compute(self, part: Part, meanwhile: Callable[[], bool] = lambda: False) -> None:
        """See `core.verify.Verifier`. meanwhile: called when the answer is later than most; does what needs
        no server, until `advance` says that the answer is there, and returns False when there is nothing to
        do. Raises LinkError when the answer takes too long: it may still come, and `advance` says so."""
        self.give_up()
        self._under_way, self._late = (part, self._exchange(part)), float("inf")
        self.links.hurry()
        began = time.monotonic()
        while not self.advance():
            if part.observer is not None:
                part.observer.on_chunk()
            silent = time.monotonic() - max(began, self.links.answered)
            if silent > self.links.bearable or self.links.gone:
                state = "is lost, and was not made again" if self.links.present is None else "is silent"
                raise LinkError(f"the connection to the server {state} for {silent:.1f} s")
            if time.monotonic() > self._late:
                raise LinkError("the server is at work for longer than a pass can take")
            if silent > self.links.patience.usual and meanwhile():
                continue
            if part.observer is None or not part.observer.on_wait():
                self.wait(TICK)

    def advance(self) -> bool:
        """Do what can be done of the round now: True = its part has the result. Raises RefusedError and
        ProtocolError."""
        if self._under_way is None:
            return True
        try:
            next(self._under_way[1])
        except StopIteration:
            self._under_way = None
            return True
        except EdgeSpecError:
            self.links.drop()
            self.links.inbox.clear()
            raise
        return False

    def give_up(self) -> None:
        """Nobody wants the answer any more that is under way, if one is."""
        if self._under_way is not None:
            self._under_way = None
            if self.recollection is not None:  # what comes of that round yet may be of another text
                self.recollection.truncate(self._agreed, self.rounds)
            self.links.tell(written(GiveUp(self.links.seat, self.rounds)))

    def wait(self, seconds: float) -> None:
        """Until a server says something, but no longer."""
        if not self.links.inbox:
            self.links.listen(seconds)

    # A round, from the inside: each `yield` is a wait for the server.

    def _exchange(self, part: Part) -> Generator[None, None, None]:
        self._agreed = min(self._agreed, len(self.transcript))
        if isinstance(part, PrefillBlock):
            text = self.transcript.plus(part.tokens)
            part.chosen = yield from self._bring(text, part.last)
            self.transcript = text
            if part.last:
                yield from self._recollect()
            return
        answer: Uploaded | Judged | Behind | None = None
        for _ in range(BEHIND):
            yield from self._bring(self.transcript, draws=False)
            self._late = time.monotonic() + LATE_WORK + 4 * self._slowest
            answer = yield from self._ask(partial(self._judge, part.tree))
            self._late = float("inf")
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
        if len(part) > 1:  # else nobody drafts at present
            began = time.monotonic()
            yield from self._recollect()
            seconds = part.outcome.seconds + time.monotonic() - began  # it is the price of drafting
            part.outcome = replace(part.outcome, seconds=seconds)

    def _recollect(self) -> Generator[None, None, None]:
        """What the drafter attends to comes right behind the answer: it is waited for, but not for long."""
        until = time.monotonic() + RECALL + self.links.patience.round_trip / 2
        while self.links.present is not None and known(self.recollection) not in (NONE, self._agreed):
            self.links.listen(0)
            if self.links.inbox:
                self._heard(self.links.inbox.popleft())
            elif time.monotonic() >= until:
                return
            yield

    def _heard(self, answer: Answer) -> bool:
        """Whether it was no answer to a round. Raises ProtocolError."""
        if isinstance(answer, Recalled):
            if self.recollection is None:
                raise ProtocolError("the server recalls what was not asked for")
            self.recollection.take(answer, self._agreed)
            return True
        return isinstance(answer, Still)

    def _bring(self, text: Transcript, draws: bool) -> Generator[None, None, int]:
        """Have the server commit all of this text; returns the token that follows, if it draws."""
        token, behind = -1, 0
        while self._agreed < len(text):
            start, stop = self._agreed, min(len(text), self._agreed + PIECE)
            last, passes = draws and stop == len(text), -(-(stop - start) // PREFILL_ROWS)
            answer = yield from self._ask(partial(self._upload, text, start, stop, last), passes)
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
        return Upload(self.links.seat, number, start, text.hash(start), have, draws, *body)

    def _judge(self, tree: TokenTree, number: int, have: int) -> Judge:
        text = len(self.transcript), self.transcript.hash()
        return Judge(self.links.seat, number, *text, have, int(tree.tokens[0]), pack_nodes(tree))

    def _ask(self, request: Callable[[int, int], Upload | Judge], passes: int = 1) -> Round:
        """Until there is an answer, which takes the server so many passes; on a new connection, the same
        round again, byte for byte."""
        self.rounds += 1
        number, slowest, began, sent = self.rounds, 0.0, 0.0, 0.0
        asked: Link | None = None
        links, have = self.links, known(self.recollection)
        links.expects(passes)
        while True:
            link = links.get(asked)
            if link is not None and link is not asked:
                self._tell_manner(link)
                links.tell(written(request(number, have)))
                asked, began = link, time.monotonic()
                sent = began
            if not links.inbox:
                links.listen(0)
            if not links.inbox:
                yield
                continue
            answer, now = links.inbox.popleft(), time.monotonic()
            slowest, began = max(slowest, now - began), now
            if self._heard(answer) or getattr(answer, "round", number) < number:
                yield  # however much comes, who waits looks at the time
                continue
            if not isinstance(answer, (Uploaded, Judged, Behind)) or answer.round > number:
                raise ProtocolError(f"the server says {type(answer).__name__}, which was not asked for")
            links.answers()
            links.patience.learn(slowest)
            self._took = now - sent
            self._slowest = max(self._slowest, self._took / passes)
            return answer

    def _tell_manner(self, link: Link) -> None:
        if self._manner is not None and self._told is not link:
            self._told = link
            self.links.tell(written(self._manner))

    def _fall_back(self, answer: Uploaded | Judged | Behind) -> None:
        """The server has less of the text than was thought."""
        if not isinstance(answer, Behind):
            raise ProtocolError(f"the server says {type(answer).__name__}, which was not asked for")
        there = answer.committed
        same = there <= self._agreed and self.transcript.hash(there) == answer.hash
        self._agreed = there if same else 0
