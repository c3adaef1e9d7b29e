"""Clients that draft for themselves: what they ask to have verified goes into the passes of all."""

from __future__ import annotations

import asyncio
from contextlib import suppress

from starlette.websockets import WebSocket, WebSocketDisconnect

from edgespec.apps.server.problems import Problem
from edgespec.apps.server.service import Service
from edgespec.split.host import Host
from edgespec.split.line import Line
from edgespec.split.protocol import STILL_SECONDS

MOST_UNREAD = 256  # frames that wait for a client to read them
PATIENCE = 60.0  # seconds that it may take to read one


class Verifying:
    """The path of `split.websocket`; its connections share one host."""

    def __init__(self, service: Service) -> None:
        self.service = service
        self._host: Host | None = None

    async def attend(self, socket: WebSocket) -> None:
        try:
            host = self._ready()
        except Problem as problem:
            await socket.send_denial_response(problem.response())
            return
        await socket.accept()
        outbox = Outbox()
        line = host.connect(outbox.put, outbox.end)
        others = [asyncio.ensure_future(work) for work in (outbox.send(socket), _beat(line))]
        try:
            with suppress(WebSocketDisconnect, KeyError):  # KeyError: text, where frames are bytes
                while not others[0].done():
                    line.hear(await socket.receive_bytes())
        finally:
            line.lost()
            for other in others:
                other.cancel()
            await asyncio.gather(*others, return_exceptions=True)

    def _ready(self) -> Host:
        """Raises Problem."""
        scheduler = self.service.ready()
        if self._host is None:
            self._host = scheduler.visitors.tenant = Host(scheduler.engine, scheduler)
        return self._host


class Outbox:
    """What is to be sent; from any thread."""

    def __init__(self) -> None:
        self._loop, self._frames = asyncio.get_running_loop(), asyncio.Queue[bytes | None]()

    def put(self, frame: bytes | None) -> None:
        with suppress(RuntimeError):  # the loop is closed: nobody waits
            self._loop.call_soon_threadsafe(self._frames.put_nowait, frame)

    def end(self) -> None:
        self.put(None)

    async def send(self, socket: WebSocket) -> None:
        """Until the end, or until the client reads no more; closes the connection."""
        with suppress(WebSocketDisconnect, RuntimeError, asyncio.TimeoutError, TimeoutError):
            while (frame := await self._frames.get()) is not None and self._frames.qsize() < MOST_UNREAD:
                await asyncio.wait_for(socket.send_bytes(frame), PATIENCE)
        with suppress(RuntimeError):  # it is closed
            await socket.close()


async def _beat(line: Line) -> None:
    while True:
        await asyncio.sleep(STILL_SECONDS)
        line.beat()
