"""What a client's drafter attends to: vectors that the server makes of the tokens that it has committed.

Mixture of Attentions attends to the target's keys and values in all layers; attention over the layers, and
its mean, are done here, so that a token takes one vector on the wire (`runtimes.torch.moa_memory`; the other
half is `drafters.client_moa`), and one of each of the target's last layers that drafts go through. They
follow the answer, whose tokens do not wait for them, and are made between passes: a part for each
conversation, several conversations' at once. They are sent in short frames, of which few are under way at a
time (`split.line`): an answer would wait behind them. Needs no torch.
"""

from __future__ import annotations

import logging
import time
from collections import deque
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Any, Protocol

import numpy as np
from numpy.typing import NDArray

from edgespec.drafters.resident import Remembering
from edgespec.errors import ProtocolError
from edgespec.split.payload import pack_vectors, squeeze, unpack_vectors, unsqueeze, vector_bytes
from edgespec.split.protocol import RECALLED_BYTES, Recalled, Told
from edgespec.split.transcript import Transcript

log = logging.getLogger("edgespec.server")

# A tenth of a pass, which is how long others may wait while vectors are made, and seconds at least and most.
SHARE, LEAST_SECONDS, MOST_SECONDS = 0.1, 0.01, 0.5
HEADER = 64  # bytes of a frame beside its body, at most
LARGEST = float(np.finfo(np.float16).max)  # number that a client keeps, of some 100 times that it may be sent
NONE = -1  # in a request: this client's drafter attends to nothing


def in_frame(token: int) -> int:
    """Tokens of so many bytes that a frame has at most."""
    return max(1, (RECALLED_BYTES - HEADER) // token)


class Attending(Protocol):
    """A conversation whose drafter attends to it: `split.guest.Guest`.

    Attributes:
        round: the latest.
    """

    transcript: Transcript

    @property
    def round(self) -> int: ...

    @property
    def cache(self) -> Any:
        """The target's."""

    def tell(self, message: Told) -> None: ...

    def takes(self, then: Callable[[], None]) -> bool:
        """Whether more could be sent to it soon. If not, `then` is done once it can, if ever."""


@dataclass(eq=False)
class _Wanted:
    """Vectors that one conversation waits for, of its tokens from `start` on: a frame of them at most."""

    round: int
    start: int
    made: list[NDArray[np.float32]] = field(default_factory=list)

    @property
    def at(self) -> int:
        """Behind what is made."""
        return self.start + sum(map(len, self.made))


class Recall:
    """The server's end, for all conversations; in the thread that runs the passes.

    Attributes:
        nbytes: of bodies that were sent.
    """

    def __init__(
        self,
        memory: Remembering,
        post: Callable[[Callable[[], None]], None],
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        """post: have something done between two passes."""
        self.memory, self._post, self._clock, self.nbytes = memory, post, clock, 0
        self._most = in_frame(vector_bytes(memory.width // memory.each, memory.each))
        self._wanted: dict[Attending, _Wanted] = {}  # who has waited longest first
        self._posted, self._left_off = False, clock()

    def answer(self, guest: Attending, known: int) -> None:
        """The latest round has been answered, and of the first `known` tokens this client has the vectors."""
        self.forget(guest)
        if known != NONE and known < len(guest.transcript):
            self._wanted[guest] = _Wanted(guest.round, known)
            self._wake()

    def forget(self, guest: Attending) -> None:
        """It waits no more: its client has gone on, or its memory was given to others."""
        self._wanted.pop(guest, None)

    def _wake(self) -> None:
        if not self._posted:
            self._posted = True
            self._post(self._go_on)

    def _go_on(self) -> None:
        """Part by part for those who wait and can be told, in turn, as long as there is time for it; as many
        at once as fit into a step."""
        self._posted, now = False, self._clock()
        until = now + min(max(LEAST_SECONDS, SHARE * (now - self._left_off)), MOST_SECONDS)
        ready = deque(guest for guest in [*self._wanted] if guest.takes(self._wake))
        while ready:
            together, room = dict[Attending, range](), self.memory.step
            while ready and (count := self._left(ready[0])) <= room:
                guest, room = ready.popleft(), room - count
                at = self._wanted[guest].at
                together[guest] = range(at, at + count)
            self._make(together)
            ready += [guest for guest in together if guest in self._wanted and guest.takes(self._wake)]
            if self._clock() >= until:
                break
        if ready:
            self._wake()
        self._left_off = self._clock()

    def _make(self, together: Mapping[Attending, range]) -> None:
        """And send what is whole. What fails ends none but these drafters' memory."""
        try:
            made = self.memory.vectors([(guest.cache, span) for guest, span in together.items()])
        except Exception:
            log.exception("vectors for clients' drafters")
            for guest in together:
                self.forget(guest)
            return
        ends = np.cumsum([len(span) for span in together.values()])
        for guest, own in zip(together, np.split(made, ends[:-1]), strict=True):
            wanted = self._wanted.pop(guest)
            wanted.made.append(own)
            self._wanted[guest] = wanted  # behind the others
            if not self._left(guest):
                self._send(guest, wanted)

    def _left(self, guest: Attending) -> int:
        """Tokens of its next part; 0 = its frame is full, or has all."""
        wanted = self._wanted[guest]
        made = wanted.at - wanted.start
        return min(len(guest.transcript) - wanted.at, self._most - made, self.memory.step)

    def _send(self, guest: Attending, wanted: _Wanted) -> None:
        self.forget(guest)
        try:
            body = pack_vectors(np.concatenate(wanted.made).reshape(-1, self.memory.each))
        except ValueError:  # NaN: its drafter does without
            return
        told = Recalled(wanted.round, wanted.start, wanted.at, *squeeze(body))
        self.nbytes += len(told.vectors)
        guest.tell(told)
        self.answer(guest, wanted.at)


class Recollection:
    """The client's end: the vectors of a conversation's first tokens, as they came.

    Attributes:
        length: tokens that there are vectors of.
    """

    def __init__(self, width: int, each: int | None = None) -> None:
        """width: numbers of a token. each: of one of its vectors; None = it has one."""
        self.width, self.each, self.length = width, each or width, 0
        self._bytes = vector_bytes(width // self.each, self.each)  # of a token
        # What comes of rounds from `_since` on is of this text; of those before, back to `_past`, as far as
        # `_same`, as they have it in common.
        self._since = self._past = self._same = 0
        self._levels = np.zeros((0, width), dtype=np.float16)  # grows by half of what it holds

    def take(self, answer: Recalled, committed: int) -> None:
        """What has come; committed: tokens that both ends have. Raises ProtocolError."""
        start, stop = answer.start, answer.stop
        if answer.round < self._past or (answer.round < self._since and stop > self._same):
            return  # it is of another text
        if start > self.length or start < stop <= self.length:
            return  # what is before it was not taken, or it is here already
        if not start < stop <= committed:
            raise ProtocolError(f"the server recalls tokens {start} to {stop}, of {committed}")
        if stop - start > in_frame(self._bytes):
            raise ProtocolError(
                f"the server recalls {stop - start} tokens at once; {in_frame(self._bytes)} are the most"
            )
        # Who asked for it may not have had yet what came since: what is here stays.
        count = stop - start
        body = unsqueeze(answer.packed, answer.vectors, count * self._bytes)
        vectors = unpack_vectors(body, count * self.width // self.each, self.each)
        self.put(vectors.reshape(count, self.width)[self.length - start :])

    def put(self, vectors: NDArray[np.float32]) -> None:
        length = self.length + len(vectors)
        if length > len(self._levels):
            grown = np.zeros((length + length // 2, self.width), dtype=np.float16)
            grown[: self.length] = self._levels[: self.length]
            self._levels = grown
        self._levels[self.length : length] = np.clip(vectors, -LARGEST, LARGEST)
        self.length = length

    def truncate(self, length: int, round: int) -> None:
        """From now on the text is another one behind so many tokens; `round`: the earlier one's latest."""
        self.length = min(self.length, length)
        if self._since <= round:
            self._past, self._since, self._same = self._since, round + 1, length
        else:
            self._same = min(self._same, length)

    def vectors(self, start: int, stop: int) -> NDArray[np.float32]:
        """[stop - start, width]."""
        assert stop <= self.length
        return self._levels[start:stop].astype(np.float32)


def known(recollection: Recollection | None) -> int:
    """As requests say it."""
    return NONE if recollection is None else recollection.length
