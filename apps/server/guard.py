"""Who may use the server: asked before every path."""

from __future__ import annotations

import ipaddress
from urllib.parse import urlsplit

from starlette.datastructures import MutableHeaders
from starlette.requests import HTTPConnection
from starlette.responses import Response
from starlette.types import ASGIApp, Message, Receive, Scope, Send

from edgespec.apps.server.problems import Problem, again
from edgespec.apps.server.service import Service

# At once; those for replies beyond a queue's length are refused before. Connections of clients that draft are
# bounded by themselves (`verify`), and /health is asked by who would end a server that does not answer.
MOST_REQUESTS = 448


class Guard:
    """Lets in who has a key, if there are any; else who is on this machine, and no page of another site in
    its user's browser, whatever name that site has given this machine (DNS rebinding). Pages that may use the
    server are told so as browsers ask it (CORS)."""

    def __init__(self, app: ASGIApp, service: Service) -> None:
        self.app, self.service = app, service
        self._requests = 0

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] not in ("http", "websocket"):
            return await self.app(scope, receive, send)
        request = HTTPConnection(scope)
        origin = request.headers.get("origin")
        foreign = self._foreign(request, origin)
        if origin is not None and foreign is None:
            send = _telling(origin, send)
        answer = foreign or self._preflight(request, origin) or self._refused(request)
        counts = scope["type"] == "http" and request.url.path != "/health"
        if answer is None and counts and self._requests >= MOST_REQUESTS:
            answer = Problem(503, f"{self._requests} requests are under way, which are the most",
                code="overloaded", headers=again(1) | {"connection": "close"})  # fmt: skip
        if answer is not None:
            response = answer.response() if isinstance(answer, Problem) else answer
            return await response(scope, receive, send)
        self._requests += counts
        try:
            await self.app(scope, receive, send)
        finally:
            self._requests -= counts

    def _foreign(self, request: HTTPConnection, origin: str | None) -> Problem | None:
        if self.service.keys:
            return None
        advice = "start it with --api-key-file"
        if origin is not None and not _is_here(_host(origin)):
            return Problem(403, f"pages of {origin[:200]!r} may not use this server; {advice}")
        host = request.headers.get("host")
        if host is not None and not _is_here(_host(f"//{host}")):
            return Problem(
                403, f"{host[:200]!r} is no name of this machine alone; ask 127.0.0.1 instead, or {advice}"
            )
        return None

    def _preflight(self, request: HTTPConnection, origin: str | None) -> Response | None:
        """What a browser asks before a page's request, which has no key yet."""
        asked = request.headers.get("access-control-request-method")
        if origin is None or asked is None or request.scope.get("method") != "OPTIONS":
            return None
        headers = {
            "access-control-allow-methods": "GET, POST",
            "access-control-allow-headers": request.headers.get(
                "access-control-request-headers", "authorization, content-type"
            ),
            "access-control-max-age": "600",
        }
        return Response(status_code=204, headers=headers)

    def _refused(self, request: HTTPConnection) -> Problem | None:
        if not self.service.keys or request.url.path == "/health":
            return None
        scheme, _, key = request.headers.get("authorization", "").partition(" ")
        if scheme.lower() == "bearer" and self.service.lets_in(key.strip()):
            return None
        what = "wrong" if key else "missing: send it as Authorization: Bearer KEY"
        headers = {"www-authenticate": "Bearer"}
        return Problem(401, f"the API key is {what}", code="invalid_api_key", headers=headers)


def _telling(origin: str, send: Send) -> Send:
    """Answers say that pages of this origin may read them."""

    async def tell(message: Message) -> None:
        if message["type"] == "http.response.start":
            headers = MutableHeaders(scope=message)
            headers["access-control-allow-origin"] = origin
            headers["access-control-expose-headers"] = "retry-after"
            headers.add_vary_header("origin")
        await send(message)

    return tell


def _host(url: str) -> str | None:
    try:
        return urlsplit(url).hostname
    except ValueError:
        return None


def _is_here(name: str | None) -> bool:
    """Whether this names the machine itself, which no other site's name can."""
    if name is None:
        return False
    try:
        return ipaddress.ip_address(name).is_loopback
    except ValueError:
        return name == "localhost" or name.endswith(".localhost")
