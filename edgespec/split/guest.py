"""A client's conversation as its server has it, and the passes that it asks for. Needs no torch."""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Iterator
from typing import Protocol

from edgespec.core.batch import Part, PrefillBlock, Verification, blocks
from edgespec.core.decode import Chooser
from edgespec.core.sampling import Noise, Sampler
from edgespec.core.verify import Cancellation
from edgespec.errors import EdgeSpecError, ProtocolError
from edgespec.runtimes.base import Seat
from edgespec.session import Session
from edgespec.split.payload import pack_tokens, unpack_nodes, unpack_tokens, unsqueeze
from edgespec.split.protocol import (
    MOST_TOKENS,
    Behind,
    Judge,
    Judged,
    Manner,
    Told,
    Upload,
    Uploaded,
    Why,
    as_options,
)
from edgespec.split.recall import Recall
from edgespec.split.transcript import Transcript

Over = Callable[["BaseException | None"], None]


class Connection(Protocol):
    """Of a client, as its conversation needs it."""

    def tell(self, message: Told) -> None: ...

    def fail(self, error: BaseException) -> None: ...

    def attempt(self, work: Callable[[], None]) -> None: ...

    def refuse(self, why: Why, words: str, seconds: float = 0.0) -> None: ...

    def takes(self, then: Callable[[], None]) -> bool: ...


class Guest:
    """What a server keeps of one conversation. In the thread that runs the passes, all of it.

    Its *session* is its memory, which it may lose (`host.Host` has the reasons): then it is 0 tokens long,
    and the client, who has the text, sends it again.
    """

    def __init__(self, seat: bytes, context: int, clock: Callable[[], float]) -> None:
        """context: positions, at most."""
        self.seat, self.context, self.clock = seat, context, clock
        self.session: Session | None = None
        self.line: Connection | None = None
        self.transcript = Transcript()
        self.chooser: Chooser | None = None
        self.work: Work | None = None  # asked for, and not answered yet
        self._asked: tuple[int, bytes] = (0, b"")  # the latest round, and the frame's hash
        self._said: Told | None = None  # the answer to it
        self.next: Callable[[], None] | None = None  # to be done when that has ended
        self.since = clock()  # when it last had something to do
        self.recall: Recall | None = None  # sends what its drafter attends to

    def choose(self, manner: Manner) -> None:
        """Raises ProtocolError."""
        options, acceptance = as_options(manner)
        self.chooser = Chooser(Sampler(options), Noise(options.seed), acceptance)

    def begins(self, request: Upload | Judge, digest: bytes) -> bool:
        """Whether this is a new round. One that was answered is answered again in the same words, and one
        that is under way will be, on the connection that asked last. Raises ProtocolError."""
        self.since = self.clock()
        number, known = self._asked
        if request.round > number:
            self._asked, self._said = (request.round, digest), None
            self._hush()
            return True
        if request.round < number or digest != known:
            raise ProtocolError(f"round {request.round} is over: the latest was {number}")
        if self._said is not None:
            self.tell(self._said)
            self.recollect(request.known)
        return False

    @property
    def round(self) -> int:
        """The latest."""
        return self._asked[0]

    @property
    def cache(self) -> Seat | None:
        """See `split.recall.Attending`."""
        return None if self.session is None else self.session.cache

    def recollect(self, known: int) -> None:
        """The latest round has been answered; of so many tokens the client has the vectors."""
        if self.recall is not None:
            self.recall.answer(self, known)

    def takes(self, then: Callable[[], None]) -> bool:
        """See `split.recall.Attending`."""
        return self.line is not None and self.line.takes(then)

    def _hush(self) -> None:
        """No vectors are made any more, until the next round is answered."""
        if self.recall is not None:
            self.recall.forget(self)

    def give_up(self, round: int) -> None:
        """Nobody waits for the answer to it."""
        if self.work is not None and round == self.round:
            self.work.cancellation.cancel()
            self.next = lambda: None

    def undo(self, round: int) -> None:
        """That round failed: it may be asked for again."""
        if self._asked[0] == round:
            self._asked = round - 1, b""

    def goes_on(self, request: Upload | Judge) -> bool:
        """Whether what the request goes on from is here; what lies behind it is forgotten then."""
        if request.committed > len(self.transcript) or (
            self.transcript.hash(request.committed) != request.hash
        ):
            self.answer(Behind(request.round, len(self.transcript), self.transcript.hash()))
            return False
        self.truncate(request.committed)
        return True

    def truncate(self, length: int) -> None:
        self.transcript.truncate(length)
        if self.session is not None:
            self.session.cache.truncate(length)

    def answer(self, message: Told) -> None:
        """To the latest round."""
        self.since, self._said = self.clock(), message
        self.tell(message)

    def tell(self, message: Told) -> None:
        """To whoever has the connection now, if anybody."""
        if self.line is not None:
            self.line.tell(message)

    def forget(self) -> None:
        """Its memory goes back to the ledger."""
        session, self.session = self.session, None
        self.transcript.truncate(0)
        self._hush()
        if session is not None:
            session.close()


class Work:
    """A round that takes passes: see `core.batcher.Member`. What goes wrong with it alone is its answer. Once
    cancelled, it ends with the pass under way.

    positions: that its conversation needs memory for.
    """

    positions: int

    def __init__(self, guest: Guest, asked: Upload | Judge, known: int, over: Over) -> None:
        """known: tokens that the client has the vectors of. `over`: called once, when it has been answered,
        or with why it has not."""
        self.guest, self.round, self.known, self.over = guest, asked.round, known, over
        self.cancellation = Cancellation()
        self._parts = deque[Part]()

    def begin(self) -> None:
        """Its conversation has the memory."""
        assert self.guest.session is not None
        self._parts.extend(self._cut(self.guest.session.cache))

    def ask(self) -> Part:
        return self._parts[0]

    def answer(self, part: Part) -> bool:
        """See `core.batcher.Member`."""
        try:
            part.raise_error()
            self.cancellation.check()
            self._take(part)
            self._parts.popleft()
        except EdgeSpecError as error:
            self.end(error)
            return False
        if not self._parts:
            self.end(None)
            self.guest.recollect(self.known)
        return bool(self._parts)

    def _cut(self, seat: Seat) -> Iterator[Part]:
        raise NotImplementedError

    def _take(self, part: Part) -> None:
        raise NotImplementedError

    def end(self, error: BaseException | None) -> None:
        """Nothing more will come of it. Whoever runs the passes says so when one has failed for all."""
        guest = self.guest
        guest.work = None
        if error is not None:
            guest.undo(self.round)
        if guest.session is not None:  # what a pass has committed that was not told
            guest.truncate(min(len(guest.transcript), guest.session.cache.length))
        self.over(error)


class Reading(Work):
    """A prompt, or a part of one."""

    def __init__(self, guest: Guest, asked: Upload, vocabulary: int, known: int, over: Over) -> None:
        """Raises ProtocolError for what is no prompt that fits."""
        super().__init__(guest, asked, known, over)
        room = min(guest.context - asked.committed, MOST_TOKENS)
        tokens = unpack_tokens(unsqueeze(asked.packed, asked.tokens, 3 * room), vocabulary)
        if not tokens or len(tokens) > room:
            raise ProtocolError(f"{len(tokens)} tokens, where there is room for 1 to {room}")
        if guest.chooser is None:
            raise ProtocolError("a reply begins, and nobody has said how to choose its tokens")
        self.positions = asked.committed + len(tokens)
        self._tokens, self._chooser, self._draws = tokens, guest.chooser, asked.draws

    def _cut(self, seat: Seat) -> Iterator[Part]:
        for block in blocks(seat, self._tokens):
            block.last = block.last and self._draws
            yield block

    def _take(self, part: Part) -> None:
        assert isinstance(part, PrefillBlock)
        said = self.guest.transcript
        said.extend(part.tokens)
        if len(self._parts) == 1:
            token = self._chooser.first(part, len(said)) if self._draws else -1
            self.guest.answer(Uploaded(self.round, len(said), said.hash(), token))


class Judging(Work):
    """A tree."""

    def __init__(
        self, guest: Guest, asked: Judge, vocabulary: int, nodes: int, known: int, over: Over
    ) -> None:
        """Raises ProtocolError for what is no tree that fits."""
        super().__init__(guest, asked, known, over)
        tree = self.tree = unpack_nodes(asked.nodes, asked.root, vocabulary)
        deepest = int(tree.depths.max())
        self.positions = asked.committed + 1 + deepest
        if len(tree) > nodes or self.positions > guest.context:
            raise ProtocolError(
                f"a tree of {len(tree)} nodes, {deepest} deep, behind {asked.committed} tokens; {nodes} "
                f"nodes and {guest.context} positions are the most"
            )
        if guest.chooser is None:
            raise ProtocolError("a tree is to be judged, and nobody has said how to choose tokens")
        self._chooser = guest.chooser

    def _cut(self, seat: Seat) -> Iterator[Part]:
        yield Verification(seat, self.tree, self._chooser.acceptance, self._chooser.noise)

    def _take(self, part: Part) -> None:
        assert isinstance(part, Verification)
        outcome, said = part.result(), self.guest.transcript
        said.extend(self.tree.tokens[outcome.path])
        self.guest.answer(Judged(self.round, len(said), said.hash(), pack_tokens(outcome.tokens)))
