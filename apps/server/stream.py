"""From a ticket to its client: whole, or as server-sent events; and who leaves is replied to no more."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from contextlib import suppress
from typing import Any

import msgspec
from starlette.responses import Response as HTTPResponse
from starlette.types import Receive, Scope, Send

from edgespec.apps.server.objects import Shape
from edgespec.apps.server.problems import Problem, problem_of
from edgespec.response import Response
from edgespec.serving.ticket import Ticket

PATIENCE = 60.0  # seconds that a client may take to read what was sent, before it is given up


class Waker:
    """Tells a coroutine that a thread has something for it."""

    def __init__(self) -> None:
        self._loop, self._event = asyncio.get_running_loop(), asyncio.Event()

    def __call__(self) -> None:
        with suppress(RuntimeError):  # the loop is closed: nobody waits
            self._loop.call_soon_threadsafe(self._event.set)

    async def wait(self) -> None:
        await self._event.wait()
        self._event.clear()


async def follow(ticket: Ticket, waker: Waker) -> AsyncIterator[Response]:
    """What is said, until the reply is over. Raises what has ended it."""
    while True:
        if (said := ticket.take()) is None:
            await waker.wait()
            continue
        yield said
        if said.finish_reason is not None:
            return


class Replying(HTTPResponse):
    """The reply to one request: one object, or with `events` a stream of them."""

    def __init__(self, ticket: Ticket, waker: Waker, shape: Shape, events: bool, usage: bool) -> None:
        self.ticket, self.waker, self.shape, self.events, self.usage = ticket, waker, shape, events, usage
        self.background = None

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        work = asyncio.ensure_future(self._stream(send) if self.events else self._whole(scope, receive, send))
        gone = asyncio.ensure_future(_disconnected(receive))
        try:
            await asyncio.wait([work, gone], return_when=asyncio.FIRST_COMPLETED)
            if work.done():
                work.result()
        finally:
            self.ticket.cancel()  # nothing, if it is over
            for task in (work, gone):
                task.cancel()
                with suppress(asyncio.CancelledError, Exception):
                    await task

    async def _whole(self, scope: Scope, receive: Receive, send: Send) -> None:
        reply = Response("")
        try:
            async for said in follow(self.ticket, self.waker):
                reply.text += said.text
                reply.finish_reason, reply.stats = said.finish_reason, said.stats
            if reply.finish_reason == "cancelled":  # by nobody here: the server stops
                raise _cut_off()
            response = HTTPResponse(
                msgspec.json.encode(self.shape.whole(reply)), media_type="application/json"
            )
        except Exception as error:
            response = problem_of(error).response()
        await asyncio.wait_for(response(scope, receive, send), PATIENCE)

    async def _stream(self, send: Send) -> None:
        headers = [(b"content-type", b"text/event-stream; charset=utf-8"), (b"cache-control", b"no-store")]
        begun = False

        async def event(data: bytes, more: bool = True) -> None:
            nonlocal begun
            if not begun:
                begun = True
                await send({"type": "http.response.start", "status": 200, "headers": headers})
            message = {"type": "http.response.body", "body": b"data: " + data + b"\n\n", "more_body": more}
            await asyncio.wait_for(send(message), PATIENCE)

        async def tell(found: dict[str, Any]) -> None:
            await event(msgspec.json.encode(found))

        try:
            async for said in follow(self.ticket, self.waker):
                if not begun and self.shape.chat:
                    await tell(self.shape.first())
                if said.finish_reason == "cancelled":
                    said.finish_reason = None
                    await tell(self.shape.piece(said))
                    raise _cut_off()
                if said.text or said.finish_reason:
                    await tell(self.shape.piece(said))
                if said.finish_reason and self.usage:
                    await tell(self.shape.last(said.stats))
        except (asyncio.TimeoutError, OSError):
            raise
        except Exception as error:
            problem = problem_of(error)
            if not begun:
                await _send(problem, send)
                return
            await tell(problem.body)
        await event(b"[DONE]", more=False)


def _cut_off() -> Problem:
    return Problem(503, "the server stops; the reply was cut off", code="stopping")


async def _send(problem: Problem, send: Send) -> None:
    response = problem.response()
    start = {"type": "http.response.start", "status": response.status_code, "headers": response.raw_headers}
    await send(start)
    await send({"type": "http.response.body", "body": response.body})


async def _disconnected(receive: Receive) -> None:
    while (await receive())["type"] != "http.disconnect":
        pass
