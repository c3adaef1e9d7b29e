"""The paths of the server."""

from __future__ import annotations

import asyncio
import functools
from collections.abc import AsyncIterator, Awaitable, Callable
from concurrent.futures import ThreadPoolExecutor
from contextlib import asynccontextmanager
from typing import Any, TypeVar

import msgspec
from msgspec import Struct
from starlette.applications import Starlette
from starlette.exceptions import HTTPException
from starlette.requests import ClientDisconnect, Request
from starlette.responses import JSONResponse, PlainTextResponse, Response
from starlette.routing import Route, WebSocketRoute
from starlette.types import ASGIApp

from edgespec.apps.server import fields
from edgespec.apps.server.fields import ChatRequest, CompletionRequest, ReplyRequest, decoded
from edgespec.apps.server.guard import Guard
from edgespec.apps.server.metrics import TYPE, metrics
from edgespec.apps.server.objects import Shape
from edgespec.apps.server.prepare import PreparedPrompt, message_of, prepare_chat, prepare_text
from edgespec.apps.server.problems import Problem, again, answer, problem_of
from edgespec.apps.server.responses import ResponseShape, ResponsesRequest, chat_of
from edgespec.apps.server.service import Service
from edgespec.apps.server.stream import Replying, ReplyShape, Waker
from edgespec.apps.server.verify import Verifying
from edgespec.errors import ContextError, EdgeSpecError, OptionError
from edgespec.split.address import VERIFY

MOST_BODY = 4 * 2**20  # bytes of a request,
MOST_BODIES = 16 * 2**20  # and of all together that are being read, or made prompts of,
SMALL_BODY = 64 * 1024  # beyond which it is too much; up to here each is read
BODY_SECONDS = 30.0  # in which all of it must have come

S = TypeVar("S", bound=Struct)
R = TypeVar("R")


class Paths:
    """What each path does."""

    def __init__(self, service: Service) -> None:
        self.service = service
        # Templates and tokenizers compute; replies must not wait for them.
        self._threads = ThreadPoolExecutor(2, "edgespec prompts")
        self._bodies = 0  # bytes of them

    async def health(self, request: Request) -> Response:
        if self.service.error is not None:
            raise Problem(503, f"the server broke: {self.service.error}", code="broken")
        self.service.ready()
        return JSONResponse({"status": "ok"})

    async def models(self, request: Request) -> Response:
        return JSONResponse({"object": "list", "data": [self._model()]})

    async def model(self, request: Request) -> Response:
        self._known(request.path_params["name"])
        return JSONResponse(self._model())

    async def metrics(self, request: Request) -> Response:
        return PlainTextResponse(metrics(self.service.ready()), media_type=TYPE)

    async def chat(self, request: Request) -> Response:
        async with self._body(request) as body:
            asked = decoded(body, ChatRequest)
            return await self._reply(asked, prepare_chat, self._shape(asked, chat=True), "messages")

    async def completions(self, request: Request) -> Response:
        async with self._body(request) as body:
            asked = decoded(body, CompletionRequest)
            return await self._reply(asked, prepare_text, self._shape(asked, chat=False), "prompt")

    async def responses(self, request: Request) -> Response:
        async with self._body(request) as body:
            asked = decoded(body, ResponsesRequest)
            shape = functools.partial(ResponseShape, self.service.model, asked)
            return await self._reply(chat_of(asked), prepare_chat, shape, "input")

    async def tokenize(self, request: Request) -> Response:
        tokenizer = self.service.ready().engine.tokenizer
        async with self._body(request) as body:
            asked = decoded(body, fields.TokenizeRequest)
            if (asked.content is None) == (asked.messages is None):
                raise Problem(400, "give either content or messages", "content")

            def work() -> bytes:
                if asked.messages is not None:
                    tokens = tokenizer.apply_chat([message_of(m, i) for i, m in enumerate(asked.messages)])
                else:
                    tokens = tokenizer.encode(asked.content or "", add_bos=asked.add_special)
                return msgspec.json.encode({"tokens": tokens})

            return Response(await self._beside(work), media_type="application/json")

    async def memory(self, request: Request) -> Response:
        engine = self.service.ready().engine
        if request.method == "POST":
            async with self._body(request) as body:
                asked = decoded(body, fields.MemoryRequest)
            await self._beside(functools.partial(engine.set_memory, asked.memory))
        return JSONResponse({"memory": engine.dial, "peak_memory": engine.peak_memory()})

    def _shape(self, asked: ReplyRequest, chat: bool) -> Callable[[PreparedPrompt], Shape]:
        usage = asked.stream_options is not None and asked.stream_options.include_usage
        return lambda prepared: Shape(self.service.model, chat, usage)

    async def _reply(
        self,
        asked: ReplyRequest,
        prepare: Callable[[Any, Any, Any], PreparedPrompt],
        shape: Callable[[PreparedPrompt], ReplyShape],
        prompt: str,
    ) -> Response:
        """prompt: the field that it comes of."""
        self._known(asked.model)
        scheduler = self.service.ready()
        tokenizer, default = scheduler.engine.tokenizer, self.service.default
        waker = Waker()
        try:
            prepared = await self._beside(functools.partial(prepare, asked, tokenizer, default))
            reuse = asked.cache_prompt is not False
            ticket = scheduler.submit(prepared.prompt, prepared.options, reuse, waker)
        except (ContextError, OptionError) as error:
            problem = problem_of(error)
            problem.param = problem.param or prompt
            raise problem from None
        return Replying(ticket, waker, shape(prepared), bool(asked.stream))

    @asynccontextmanager
    async def _body(self, request: Request) -> AsyncIterator[bytes]:
        """The whole body, which counts until the block is left. Raises Problem when it is too long, or does
        not come, or when there are too many."""
        found = bytearray()

        async def read() -> None:
            async for chunk in request.stream():
                found.extend(chunk)
                self._bodies += len(chunk)
                if len(found) > MOST_BODY:
                    raise _too_long()
                if self._bodies > MOST_BODIES and len(found) > SMALL_BODY:
                    raise Problem(503, "too much is being read at once", code="overloaded", headers=again(1))

        given = request.headers.get("content-length", "0")
        if given.isdigit() and int(given[:20]) > MOST_BODY:
            raise _too_long()
        try:
            try:
                await asyncio.wait_for(read(), BODY_SECONDS)
            except (asyncio.TimeoutError, TimeoutError):
                late = f"the body did not come within {BODY_SECONDS:.0f} s"
                raise Problem(408, late, headers={"connection": "close"}) from None
            except ClientDisconnect:
                raise Problem(400, "the client has left") from None
            yield bytes(found)
        finally:
            self._bodies -= len(found)

    async def _beside(self, work: Callable[[], R]) -> R:
        return await asyncio.get_running_loop().run_in_executor(self._threads, work)

    def _known(self, name: str | None) -> None:
        if name not in (None, self.service.model, self.service.source):
            raise Problem(
                404,
                f"the model {str(name)[:200]!r} is not served here; {self.service.model!r} is",
                "model",
                "model_not_found",
            )

    def _model(self) -> dict[str, Any]:
        found = {
            "id": self.service.model,
            "object": "model",
            "created": self.service.created,
            "owned_by": "edgespec",
        }
        if self.service.scheduler is not None:
            found["context_length"] = self.service.scheduler.engine.plan.context
        return found


def _too_long() -> Problem:
    return Problem(413, f"the body has more than {MOST_BODY} bytes", headers={"connection": "close"})


Handler = Callable[[Request], Awaitable[Response]]


def make_app(service: Service) -> ASGIApp:
    paths = Paths(service)
    routes: list[tuple[str, str, Handler]] = [
        ("/health", "GET", paths.health),
        ("/metrics", "GET", paths.metrics),
        ("/v1/models", "GET", paths.models),
        ("/v1/models/{name:path}", "GET", paths.model),
        ("/v1/chat/completions", "POST", paths.chat),
        ("/v1/completions", "POST", paths.completions),
        ("/v1/responses", "POST", paths.responses),
        ("/tokenize", "POST", paths.tokenize),
        ("/v1/edgespec/memory", "GET,POST", paths.memory),
    ]
    found = [Route(path, handler, methods=methods.split(",")) for path, methods, handler in routes]
    app = Starlette(
        routes=[*found, WebSocketRoute(VERIFY.path, Verifying(service).attend)],
        exception_handlers=dict.fromkeys((Problem, EdgeSpecError, HTTPException, Exception), answer),
    )
    return Guard(app, service)
