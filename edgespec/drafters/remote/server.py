"""A small model on a server, which drafts for a target here: `load(model, draft_server=URL)`. Needs no torch.

A pass that streams from flash takes longer than a round trip, so the drafter is as a worker beside the target
is (`drafters.beside`), but for one thing: a server that is away, at the start or later, is asked again, in a
thread, after pauses that double. Meanwhile nothing is drafted, or by others; then the conversation is told
anew.
"""

from __future__ import annotations

import random
import weakref
from collections.abc import Callable
from pathlib import Path
from threading import Thread
from time import monotonic

from edgespec.core.trace import Round
from edgespec.drafters.colleague import Colleague
from edgespec.drafters.remote.connection import DraftConnection, hired
from edgespec.drafters.remote.drafter import RemoteDrafter
from edgespec.drafters.remote.wire import MOST_POSITIONS
from edgespec.drafters.resident import Found, Search
from edgespec.drafters.vocabulary import vocabulary_digest
from edgespec.errors import EdgeSpecError, RefusedError, TokenizerError
from edgespec.offload.plan.needs import Extras
from edgespec.offload.plan.plan import Plan
from edgespec.runtimes.base import KVCache
from edgespec.runtimes.target import Target
from edgespec.split.address import DRAFT
from edgespec.split.keys import read_keys
from edgespec.split.link import FIRST_WAIT, MOST_WAIT, Dial, passing
from edgespec.split.websocket import websocket

LASTING = 10.0  # seconds, after which a connection was of use: the next one need not wait long


def find(search: Search, found: dict[str, Found]) -> ServerFound:
    """See `drafters.resident.Find`: the server that is named, which is asked what it serves.

    Raises OptionError for what is no address, no file of a key or of certificates, RefusedError and
    ProtocolError when it does not draft, TokenizerError when its model's tokens are not the target's. One
    that cannot be reached now may be later.
    """
    asked = search.server
    assert asked is not None
    key = None if asked.key_file is None else read_keys(Path(asked.key_file), DRAFT.key)[0]
    dial = websocket(asked.url, key, asked.ca, DRAFT)
    vocabulary = vocabulary_digest(search.tokenizer.backend.get_vocab(with_added_tokens=True))
    return ServerFound(dial, asked.url, vocabulary)


class ServerFound:
    """See `drafters.resident.Found`."""

    extras = Extras()

    def __init__(self, dial: Dial, url: str, vocabulary: str) -> None:
        """vocabulary: digest of the target's. Raises as `find`."""
        self.dial, self.url, self.vocabulary = dial, url, vocabulary
        self.away: str | None = None  # why it could not be reached
        try:
            transport, _ = hired(dial, url, vocabulary)
            transport.close()
        except EdgeSpecError as error:
            if not passing(error):
                raise
            self.away = str(error)

    def unused(self, plan: Plan) -> str | None:
        return None

    def reads(self, plan: Plan) -> int:
        return 0

    def resident(self, target: Target, plan: Plan, progress: Callable[[int], None]) -> DraftServer:
        return DraftServer(self.dial, self.url, self.vocabulary, self.away)


class DraftServer:
    """A server that an engine's conversations draft on; see `drafters.resident.Resident` and `Outside`."""

    name = "remote"
    rows = 0
    outside = 0  # bytes: its memory is another machine's
    gone = False

    def __init__(self, dial: Dial, url: str, vocabulary: str, away: str | None = None) -> None:
        """vocabulary: digest of the target's. away: why it is not to be waited for now; None = it is. What
        goes wrong is in `away` and `refused`."""
        self._dial, self.url, self._vocabulary = dial, url, vocabulary
        self.refused: str | None = None  # why it will never draft again
        self.nbytes, self.positions, self.placement = 0, MOST_POSITIONS, ""
        self._listener: Callable[[Round], None] | None = None
        self._began = monotonic()  # the latest connection
        self._pause, self._due = FIRST_WAIT, 0.0  # seconds, and when it may be tried again
        self._attempt: Thread | None = None
        nobody = Colleague()
        nobody.lose(away or "nobody has been asked yet")
        self._held = [nobody]  # one
        self._close = weakref.finalize(self, _end, self._held)
        if away is None:
            self._connect()
        else:
            self.connection()

    @property
    def latest(self) -> Colleague:
        """The connection, which may be lost."""
        return self._held[0]

    @property
    def away(self) -> str | None:
        """See `drafters.resident.Outside`."""
        return self.latest.lost if self.refused is None else None

    def connection(self) -> Colleague | None:
        """One that is there; None = it is away, and asked for anew, where that is due."""
        latest, now = self.latest, monotonic()
        if latest.lost is None:
            return latest
        trying = self._attempt is not None and self._attempt.is_alive()
        if self.refused is None and self._close.alive and now >= self._due and not trying:
            self._pause = FIRST_WAIT if latest.heard - self._began > LASTING else self._pause
            self._due = now + self._pause * random.uniform(0.5, 1.0)
            self._pause = min(2 * self._pause, MOST_WAIT)
            self._attempt = Thread(target=self._connect, name="edgespec draft server", daemon=True)
            self._attempt.start()
        return None

    def _connect(self) -> None:
        try:
            transport, said = hired(self._dial, self.url, self._vocabulary)
        except Exception as error:
            if isinstance(error, (TokenizerError, RefusedError)) and not passing(error):
                self.refused = str(error)  # else it is away: whoever wants it asks again
        else:
            self.nbytes, self.positions = said.nbytes, said.positions
            self.placement = f"{said.model} at {self.url}"
            made = DraftConnection(transport)
            made.listener, self._began = self._listener, monotonic()
            self._held[0] = made
            if not self._close.alive:
                made.lose("it was ended")

    def listen(self, listener: Callable[[Round], None] | None) -> None:
        self._listener = self.latest.listener = listener

    def drafter(self, cache: KVCache, vocabulary: int) -> RemoteDrafter:
        return RemoteDrafter(self, cache.capacity, vocabulary)

    def close(self) -> None:
        self._close()


def _end(held: list[Colleague]) -> None:
    held[0].lose("it was ended")
