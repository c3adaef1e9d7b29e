"""What a client's drafter attends to: vectors that the server makes of the tokens that it has committed.

Mixture of Attentions attends to the target's keys and values in all layers; attention over the layers, and
its mean, are done here, so that a token takes one vector on the wire (`runtimes.torch.moa_memory`; the other
half is `drafters.client_moa`). They follow the answer, whose tokens do not wait for them, and are made part
by part between passes. Needs no torch.
"""

from __future__ import annotations

from collections.abc import Callable
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


class Recall:
    """The server's end, for all conversations; in the thread that runs the passes."""

    def __init__(self, memory: Remembering, post: Callable[[Callable[[], None]], None]) -> None:
        """post: have something done between two passes."""
        self.memory, self._post = memory, post
        self._most = max(1, (FRAME_BYTES - HEADER) // vector_bytes(1, memory.width))

    def answer(self, guest: Attending, known: int) -> None:
        """The latest round has been answered, and of the first `known` tokens this client has the vectors."""
        if known == NONE:
            return
        round = guest.round
        found = list[NDArray[np.float32]]()
        at = start = min(known, len(guest.transcript))

        def part() -> None:
            nonlocal at
            if guest.round != round or guest.cache is None:
                return  # the next one says anew what it has
            stop = min(len(guest.transcript), at + self.memory.step, start + self._most)
            found.append(self.memory.vectors(guest.cache, at, stop))
            at = stop
            if at < len(guest.transcript) and at < start + self._most:
                self._post(part)
                return
            try:
                body = pack_vectors(np.concatenate(found))
            except ValueError:  # NaN: its drafter does without
                return
            guest.tell(Recalled(round, start, *squeeze(body)))
            if at < len(guest.transcript):
                self.answer(guest, at)

        if at < len(guest.transcript):
            part()


class Recollection:
    """The client's end: the vectors of a conversation's first tokens, as they came.

    Attributes:
        length: tokens that there are vectors of.
    """

    def __init__(self, width: int) -> None:
        self.width, self.length = width, 0
        self._since = 0  # the round from which on what comes is of this text
        self._levels = np.zeros((0, width), dtype=np.float16)  # grows by half of what it holds

    def take(self, answer: Recalled, committed: int) -> None:
        """What has come; committed: tokens that both ends have. Raises ProtocolError."""
        if answer.round < self._since or answer.start > self.length or committed <= self.length:
            return  # it is of another text, or here already
        # Who asked for it may not have had yet what came since: what is here stays.
        most = (committed - answer.start) * vector_bytes(1, self.width)
        body = unsqueeze(answer.packed, answer.vectors, most)
        count = len(body) // vector_bytes(1, self.width)
        if not count:
            raise ProtocolError("the server recalls nothing, and says so")
        self.put(unpack_vectors(body, count, self.width)[self.length - answer.start :])

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
