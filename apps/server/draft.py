"""Targets elsewhere: what they ask to have drafted. The server that does so replies to nobody."""

from __future__ import annotations

import asyncio
from contextlib import suppress
from time import monotonic

from starlette.applications import Starlette
from starlette.exceptions import HTTPException
from starlette.requests import Request
from starlette.responses import JSONResponse, PlainTextResponse, Response
from starlette.routing import Route, WebSocketRoute
from starlette.types import ASGIApp
from starlette.websockets import WebSocket, WebSocketDisconnect

from edgespec.apps.server.guard import Guard
from edgespec.apps.server.metrics import TYPE, draft_metrics
from edgespec.apps.server.problems import Problem, again, answer
from edgespec.apps.server.service import Service
from edgespec.apps.server.verify import HELLO_SECONDS, Outbox
from edgespec.drafters.channel import ANSWER_BYTES
from edgespec.drafters.remote.host import DraftLine
from edgespec.errors import EdgeSpecError
from edgespec.split.address import DRAFT

MOST_CLIENTS = 64  # connected at once: each has a thread
SPARE_SECONDS = 20.0  # that one must have rested, to make room for another
IDLE_SECONDS = 600.0  # without a word, after which a conversation's memory is free in any case
MOST_BEATS = 32  # frames that wait for a client to read them, beyond which it hears of no work
MOST_UNREAD_BYTES = 4 * ANSWER_BYTES  # of these frames, beyond which it is gone
LOOK = 1.0


class DraftingAtServer:
    """The path of `split.address.DRAFT`."""

    def __init__(self, service: Service) -> None:
        self.service = service
        self._clients = set[DraftLine]()

    async def attend(self, socket: WebSocket) -> None:
        outbox = Outbox(MOST_UNREAD_BYTES)

        def send(frame: bytes, spare: bool) -> None:
            if outbox.gone:
                client.lost()
            elif not (spare and outbox.waiting > MOST_BEATS):
                outbox.put(frame)

        try:
            host = self.service.ready_to_draft()
            self._make_room()
        except Problem as problem:
            await socket.send_denial_response(problem.response())
            return
        client = DraftLine(host, send, outbox.end)
        self._clients.add(client)
        others = list[asyncio.Future[None]]()
        try:
            await socket.accept()
            others = [asyncio.ensure_future(work) for work in (outbox.send(socket), self._watch(client))]
            with suppress(WebSocketDisconnect, KeyError):  # KeyError: text, where frames are bytes
                while not others[0].done():
                    client.hear(await socket.receive_bytes())
        finally:
            self._clients.remove(client)
            client.lost()
            for other in others:
                other.cancel()
            await asyncio.gather(*others, return_exceptions=True)

    def _make_room(self) -> None:
        """Whoever has said nothing for longest goes, if need be; it comes again when it wants something.
        Raises Problem."""
        if len(self._clients) < MOST_CLIENTS:
            return
        longest = min(self._clients, key=lambda client: client.said)
        if not longest.over and monotonic() - longest.said > SPARE_SECONDS:
            longest.decline("closing", "others want this connection, which rests")
        words = f"{len(self._clients)} targets are connected, which are the most"
        raise Problem(503, words, code="overloaded", headers=again(1))

    async def _watch(self, client: DraftLine) -> None:
        while True:
            await asyncio.sleep(LOOK)
            silent = monotonic() - client.said
            if not client.greeted and silent > HELLO_SECONDS:
                client.decline("closing", f"nothing was said here for {HELLO_SECONDS:g} s")
            elif silent > IDLE_SECONDS:
                client.decline("closing", f"nothing was said here for {IDLE_SECONDS:g} s")


def make_draft_app(service: Service) -> ASGIApp:
    async def health(request: Request) -> Response:
        service.ready_to_draft()
        return JSONResponse({"status": "ok"})

    async def metrics(request: Request) -> Response:
        return PlainTextResponse(draft_metrics(service.ready_to_draft()), media_type=TYPE)

    app = Starlette(
        routes=[
            Route("/health", health),
            Route("/metrics", metrics),
            WebSocketRoute(DRAFT.path, DraftingAtServer(service).attend),
        ],
        exception_handlers=dict.fromkeys((Problem, EdgeSpecError, HTTPException, Exception), answer),
    )
    return Guard(app, service)
