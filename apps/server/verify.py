"""Clients that draft for themselves: what they ask to have verified goes into the passes of all."""

from __future__ import annotations

import asyncio
from contextlib import suppress
from time import monotonic

from starlette.websockets import WebSocket, WebSocketDisconnect

from edgespec.apps.server.problems import Problem, again
from edgespec.apps.server.service import Service
from edgespec.split.guests import SPARE_SECONDS
from edgespec.split.host import Host
from edgespec.split.protocol import STILL_SECONDS

# Connected at once, and refused but not gone yet: with `connections.MOST_CONNECTIONS`, fewer than the 1024
# files that a process may usually open.
MOST_CLIENTS, MOST_ENDING = 384, 64
HELLO_SECONDS = 5.0  # in which a client must have said its first word,
SEAT_SECONDS = 30.0  # and have a seat
MOST_UNREAD, MOST_UNREAD_BYTES = 256, 2**19  # frames that wait for a client to read them; and of these
PATIENCE = 60.0  # seconds that it may take to read one


class Verifying:
    """The path of `split.websocket`; its connections share one host."""

    def __init__(self, service: Service) -> None:
        self.service = service
        self._host: Host | None = None
        self._clients = set[Client]()

    async def attend(self, socket: WebSocket) -> None:
        try:
            host = self._ready()
            self._make_room()
        except Problem as problem:
            await socket.send_denial_response(problem.response())
            return
        client = Client(host)
        self._clients.add(client)
        others = list[asyncio.Future[None]]()
        try:
            await socket.accept()
            others = [asyncio.ensure_future(work) for work in (client.outbox.send(socket), client.watch())]
            with suppress(WebSocketDisconnect, KeyError):  # KeyError: text, where frames are bytes
                while not others[0].done():
                    client.hear(await socket.receive_bytes())
        finally:
            self._clients.remove(client)
            client.line.lost()
            for other in others:
                other.cancel()
            await asyncio.gather(*others, return_exceptions=True)

    def _make_room(self) -> None:
        """Whoever has rested for longest goes, if need be, and comes again when it wants something. Raises
        Problem."""
        there = [client for client in self._clients if not client.line.over]
        if len(there) < MOST_CLIENTS:
            return
        longest = max(there, key=lambda client: client.rested)
        if longest.rested < SPARE_SECONDS or len(self._clients) >= MOST_CLIENTS + MOST_ENDING:
            words = f"{len(there)} clients are connected, which are the most"
            raise Problem(503, words, code="overloaded", headers=again(SPARE_SECONDS))
        longest.line.refuse("closing", "others want this connection, which rests")

    def _ready(self) -> Host:
        """Raises Problem."""
        scheduler = self.service.ready()
        if self._host is None:
            self._host = scheduler.visitors.tenant = Host(scheduler.engine, scheduler)
        return self._host


class Client:
    """A connection."""

    def __init__(self, host: Host) -> None:
        self.outbox = Outbox(MOST_UNREAD_BYTES)
        self.line = host.connect(self.outbox.put, self.outbox.end)
        self._since = monotonic()  # when it last said something, or was owed something

    @property
    def rested(self) -> float:
        """Seconds."""
        return monotonic() - self._since

    def hear(self, frame: bytes) -> None:
        self._since = monotonic()
        self.line.hear(frame)

    async def watch(self) -> None:
        """Tells it that the server is at work, and ends it when it does not want anything."""
        line = self.line
        while True:
            await asyncio.sleep(STILL_SECONDS)
            line.beat()
            if line.owes or self.outbox.busy:
                self._since = monotonic()
            elif not line.greeted and self.rested > HELLO_SECONDS:
                line.refuse("closing", f"nothing was said here for {HELLO_SECONDS:g} s")
            elif line.guest is None and self.rested > SEAT_SECONDS:
                line.refuse("closing", f"no seat was taken here for {SEAT_SECONDS:g} s")


class Outbox:
    """What is to be sent; from any thread. Who lets more bytes wait than `most`, or `MOST_UNREAD` frames, is
    `gone`: nothing of that is sent."""

    def __init__(self, most: int) -> None:
        self.most, self.gone = most, False
        self._loop, self._frames = asyncio.get_running_loop(), asyncio.Queue[bytes | None]()
        self._sending = False
        self.nbytes = 0  # of frames that wait

    @property
    def busy(self) -> bool:
        """Something has not been read yet."""
        return self._sending or not self._frames.empty()

    @property
    def waiting(self) -> int:
        """Frames, but for those that other threads have just put."""
        return self._frames.qsize()

    def put(self, frame: bytes | None) -> None:
        with suppress(RuntimeError):  # the loop is closed: nobody waits
            self._loop.call_soon_threadsafe(self._put, frame)

    def _put(self, frame: bytes | None) -> None:
        if self.gone:
            return
        self.nbytes += len(frame or b"")
        self.gone = self.nbytes > self.most or self._frames.qsize() >= MOST_UNREAD
        while self.gone and not self._frames.empty():
            self._frames.get_nowait()
        self._frames.put_nowait(None if self.gone else frame)

    def end(self) -> None:
        self.put(None)

    async def send(self, socket: WebSocket) -> None:
        """Until the end, or until the client reads no more; closes the connection."""
        with suppress(WebSocketDisconnect, RuntimeError, asyncio.TimeoutError, TimeoutError):
            while (frame := await self._frames.get()) is not None:
                self._sending = True
                await asyncio.wait_for(socket.send_bytes(frame), PATIENCE)
                self.nbytes -= len(frame)
                self._sending = False
        with suppress(RuntimeError):  # it is closed
            await socket.close()
