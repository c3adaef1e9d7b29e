"""What a client's drafter attends to: vectors that the server makes of the tokens that it has committed.

Mixture of Attentions attends to the target's keys and values in all layers; attention over the layers, and
its mean, are done here, so that a token takes one vector on the wire (`runtimes.torch.moa_memory`; the other
half is `drafters.client_moa`), and one of each of the target's last layers that drafts go through.
They follow the answer, whose tokens do not wait for them, and are made
between passes: a part for each conversation, several conversations' at once. Needs no torch.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any, Protocol

import numpy as np
from numpy.typing import NDArray

from edgespec.drafters.resident import Remembering
from edgespec.errors import ProtocolError
from edgespec.split.payload import pack_vectors, squeeze, unpack_vectors, unsqueeze, vector_bytes
from edgespec.split.protocol import FRAME_BYTES, Recalled, Told
from edgespec.split.transcript import Transcript

HEADER = 64  # bytes of a frame beside its body, at most
NONE = -1  # in a request: this client's drafter attends to nothing


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
        """The target's; None = its memory was given to others."""

    def tell(self, message: Told) -> None: ...


@dataclass(eq=False)
class _Wanted:
    """Vectors that one conversation waits for, of its tokens from `start` on; a frame of them at most."""

    guest: Attending
    round: int
    start: int
    made: list[NDArray[np.float32]] = field(default_factory=list)

    @property
    def at(self) -> int:
        """Behind what is made."""
        return self.start + sum(map(len, self.made))

    @property
    def over(self) -> bool:
        """Its client has gone on, and says anew what it has; or its memory was given to others."""
        return self.guest.round != self.round or self.guest.cache is None


class Recall:
    """The server's end, for all conversations; in the thread that runs the passes."""

    def __init__(self, memory: Remembering, post: Callable[[Callable[[], None]], None]) -> None:
        """post: have something done between two passes."""
        self.memory, self._post = memory, post
        self._most = max(1, (FRAME_BYTES - HEADER) // vector_bytes(memory.width // memory.each, memory.each))
        self._wanted: list[_Wanted] = []

    def answer(self, guest: Attending, known: int) -> None:
        """The latest round has been answered, and of the first `known` tokens this client has the vectors."""
        if known != NONE and known < len(guest.transcript):
            self._want(_Wanted(guest, guest.round, known))

    def _want(self, wanted: _Wanted) -> None:
        self._wanted.append(wanted)
        if len(self._wanted) == 1:
            self._post(self._go_on)

    def _go_on(self) -> None:
        """A part for each of those who wait, as many of them at once as fit into a step."""
        waiting = deque(wanted for wanted in self._wanted if not wanted.over)
        self._wanted = []
        while waiting:
            together, room = list[tuple[_Wanted, range]](), self.memory.step
            while waiting and (count := self._left(waiting[0])) <= room:
                wanted, room = waiting.popleft(), room - count
                together.append((wanted, range(wanted.at, wanted.at + count)))
            made = self.memory.vectors([(wanted.guest.cache, span) for wanted, span in together])
            ends = np.cumsum([len(span) for _, span in together])
            for (wanted, _), own in zip(together, np.split(made, ends[:-1]), strict=True):
                wanted.made.append(own)
                if self._left(wanted):
                    self._want(wanted)
                else:
                    self._send(wanted)

    def _left(self, wanted: _Wanted) -> int:
        """Tokens of its next part; 0 = its frame is full, or has all."""
        made = wanted.at - wanted.start
        return min(len(wanted.guest.transcript) - wanted.at, self._most - made, self.memory.step)

    def _send(self, wanted: _Wanted) -> None:
        try:
            body = pack_vectors(np.concatenate(wanted.made).reshape(-1, self.memory.each))
        except ValueError:  # NaN: its drafter does without
            return
        wanted.guest.tell(Recalled(wanted.round, wanted.start, *squeeze(body)))
        self.answer(wanted.guest, wanted.at)


class Recollection:
    """The client's end: the vectors of a conversation's first tokens, as they came.

    Attributes:
        length: tokens that there are vectors of.
    """

    def __init__(self, width: int, each: int | None = None) -> None:
        """width: numbers of a token. each: of one of its vectors; None = it has one."""
        self.width, self.each, self.length = width, each or width, 0
        self._bytes = vector_bytes(width // self.each, self.each)  # of a token
        self._since = 0  # the round from which on what comes is of this text
        self._levels = np.zeros((0, width), dtype=np.float16)  # grows by half of what it holds

    def take(self, answer: Recalled, committed: int) -> None:
        """What has come; committed: tokens that both ends have. Raises ProtocolError."""
        if answer.round < self._since or answer.start > self.length or committed <= self.length:
            return  # it is of another text, or here already
        # Who asked for it may not have had yet what came since: what is here stays.
        body = unsqueeze(answer.packed, answer.vectors, (committed - answer.start) * self._bytes)
        count = len(body) // self._bytes
        if not count:
            raise ProtocolError("the server recalls nothing, and says so")
        vectors = unpack_vectors(body, count * self.width // self.each, self.each)
        self.put(vectors.reshape(count, self.width)[self.length - answer.start :])

    def put(self, vectors: NDArray[np.float32]) -> None:
        length = self.length + len(vectors)
        if length > len(self._levels):
            grown = np.zeros((length + length // 2, self.width), dtype=np.float16)
            grown[: self.length] = self._levels[: self.length]
            self._levels = grown
        self._levels[self.length : length] = vectors
        self.length = length

    def truncate(self, length: int, round: int) -> None:
        """From now on the text is another one behind so many tokens; `round`: the earlier one's latest."""
        self.length, self._since = min(self.length, length), round + 1

    def vectors(self, start: int, stop: int) -> NDArray[np.float32]:
        """[stop - start, width]."""
        assert stop <= self.length
        return self._levels[start:stop].astype(np.float32)


def known(recollection: Recollection | None) -> int:
    """As requests say it."""
    return NONE if recollection is None else recollection.length
