"""Connections that ask nothing: they end after a while, and go first where there are too many."""

from __future__ import annotations

import asyncio

from uvicorn.protocols.http.h11_impl import H11Protocol

MOST_CONNECTIONS = 512
IDLE = 30  # seconds in which a whole request's headers must have come, since the last one or the beginning


class BoundedConnection(H11Protocol):
    """As uvicorn's, whose patience ends only behind a first request, and with the first byte of another."""

    _silent: asyncio.TimerHandle | None = None

    def connection_made(self, transport: asyncio.Transport) -> None:  # type: ignore[override]
        super().connection_made(transport)
        self._watch()
        known = [c for c in self.connections if isinstance(c, BoundedConnection)]  # not the WebSockets
        if len(known) > MOST_CONNECTIONS:
            silent = [(c._silent.when(), c) for c in known if c._silent is not None]
            min(silent, key=lambda found: found[0])[1].give_up()  # this one, if all others are replied to

    def connection_lost(self, exc: Exception | None) -> None:
        super().connection_lost(exc)
        self._watch()

    def handle_events(self) -> None:
        super().handle_events()
        self._watch()

    def on_response_complete(self) -> None:
        super().on_response_complete()
        self._watch()

    def give_up(self) -> None:
        self.connections.discard(self)
        self._watch()
        self.transport.close()

    def _watch(self) -> None:
        """The time runs while a request is waited for, whatever part of one comes."""
        waits = self in self.connections and (self.cycle is None or self.cycle.response_complete)
        if waits and self._silent is None:
            self._silent = self.loop.call_later(IDLE, self.give_up)
        elif not waits and self._silent is not None:
            self._silent.cancel()
            self._silent = None
