"""From a ticket to its client: whole, or as server-sent events; and who leaves is replied to no more."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Iterator
from contextlib import suppress
from typing import Any, ClassVar, Protocol

import msgspec
from starlette.responses import Response as HTTPResponse
from starlette.types import Message, Receive, Scope, Send

from edgespec.apps.server.problems import Problem, problem_of
from edgespec.response import Response
from edgespec.serving.ticket import Ticket

SILENCE = (
    15.0  # seconds after which a stream that has no news says that it is waiting: proxies end silent ones
)
PATIENCE = 60.0  # seconds that a client may take to read what was sent, before it is given up
LAST_WORDS = 1.0  # seconds for the same, when the server ends
HEADERS = [(b"content-type", b"text/event-stream; charset=utf-8"), (b"cache-control", b"no-store")]


class Waker:
    """Tells a coroutine that a thread has something for it."""

    def __init__(self) -> None:
        self._loop, self._event = asyncio.get_running_loop(), asyncio.Event()

    def __call__(self) -> None:
        with suppress(RuntimeError):  # the loop is closed: nobody waits
            self._loop.call_soon_threadsafe(self._event.set)

    async def wait(self, seconds: float) -> bool:
        """Whether there was something within so many seconds."""
        try:
            await asyncio.wait_for(self._event.wait(), seconds)
        except (asyncio.TimeoutError, TimeoutError):
            return False
        self._event.clear()
        return True


async def follow(ticket: Ticket, waker: Waker) -> AsyncIterator[Response | None]:
    """What is said, until the reply is over; None = nothing, for a while. Raises what has ended it."""
    while True:
        said = ticket.take()
        if said is not None:
            yield said
            if said.finish_reason is not None:
                return
        elif not await waker.wait(SILENCE):
            yield None


class ReplyShape(Protocol):
    """A reply as objects of one of OpenAI's paths. Those of a stream that have a `type` are named by it."""

    done: ClassVar[bytes | None]  # what ends a stream, if anything does

    def whole(self, reply: Response) -> dict[str, Any]:
        """All of it."""

    def begin(self) -> Iterator[dict[str, Any]]:
        """What comes before any text."""

    def said(self, said: Response) -> Iterator[dict[str, Any]]:
        """A piece of a stream, and what comes at its end behind the last; a cancelled one has no end."""

    def broken(self, problem: Problem) -> dict[str, Any]:
        """What has ended a stream."""


class Replying(HTTPResponse):
    """The reply to one request: one object, or with `events` a stream of them."""

    def __init__(self, ticket: Ticket, waker: Waker, shape: ReplyShape, events: bool) -> None:
        self.ticket, self.waker, self.shape, self.events = ticket, waker, shape, events
        self.background = None
        self._begun = self._over = False  # of what is sent: its headers, all of it

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        async def tell(message: Message) -> None:
            self._begun = True
            await asyncio.wait_for(send(message), PATIENCE)
            self._over = message["type"] == "http.response.body" and not message.get("more_body")

        work = asyncio.ensure_future(self._stream(tell) if self.events else self._whole(tell))
        gone = asyncio.ensure_future(_disconnected(receive))
        stopped = False
        try:
            await asyncio.wait([work, gone], return_when=asyncio.FIRST_COMPLETED)
            if work.done():
                work.result()
        except asyncio.CancelledError:  # the server ends, at once
            stopped = not self._over
        finally:
            self.ticket.cancel()  # nothing, if it is over
            for task in (work, gone):
                task.cancel()
                with suppress(asyncio.CancelledError, Exception):
                    await task
        if stopped:
            with suppress(asyncio.TimeoutError, TimeoutError):
                await asyncio.wait_for(self._break_off(_cut_off(), tell), LAST_WORDS)

    async def _whole(self, send: Send) -> None:
        reply = Response("")
        try:
            async for said in follow(self.ticket, self.waker):
                if said is not None:
                    reply.text += said.text
                    reply.finish_reason, reply.stats = said.finish_reason, said.stats
            if reply.finish_reason == "cancelled":  # by nobody here: the server stops
                raise _cut_off()
            response = HTTPResponse(
                msgspec.json.encode(self.shape.whole(reply)), media_type="application/json"
            )
        except Exception as error:
            response = problem_of(error).response()
        await _send(response, send)

    async def _stream(self, send: Send) -> None:
        begun = False
        try:
            async for said in follow(self.ticket, self.waker):
                if said is None:  # so that nobody on the way takes the connection for dead
                    await self._say(b": waiting", send)
                    continue
                for event in () if begun else self.shape.begin():
                    await self._event(event, send)
                begun = True
                for event in self.shape.said(said):
                    await self._event(event, send)
                if said.finish_reason == "cancelled":
                    raise _cut_off()
        except (asyncio.TimeoutError, OSError):
            raise
        except Exception as error:
            await self._break_off(problem_of(error), send)
        else:
            await self._end(send)

    async def _break_off(self, problem: Problem, send: Send) -> None:
        """What has ended it is said as well as it still can be."""
        if not self._begun:
            await _send(problem.response(), send)
        elif self.events:
            await self._event(self.shape.broken(problem), send)
            await self._end(send)

    async def _event(self, found: dict[str, Any], send: Send) -> None:
        name = f"event: {found['type']}\n".encode() if "type" in found else b""
        await self._say(name + b"data: " + msgspec.json.encode(found), send)

    async def _end(self, send: Send) -> None:
        if self.shape.done is not None:
            await self._say(self.shape.done, send, more=False)
        else:
            await send({"type": "http.response.body", "body": b""})

    async def _say(self, data: bytes, send: Send, more: bool = True) -> None:
        if not self._begun:
            await send({"type": "http.response.start", "status": 200, "headers": HEADERS})
        await send({"type": "http.response.body", "body": data + b"\n\n", "more_body": more})


def _cut_off() -> Problem:
    return Problem(503, "the server stops; the reply was cut off", code="stopping")


async def _send(response: HTTPResponse, send: Send) -> None:
    start = {"type": "http.response.start", "status": response.status_code, "headers": response.raw_headers}
    await send(start)
    await send({"type": "http.response.body", "body": response.body})


async def _disconnected(receive: Receive) -> None:
    while (await receive())["type"] != "http.disconnect":
        pass
