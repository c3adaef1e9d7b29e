"""A server of OpenAI's API as somebody to talk with: `edgespec serve`, or another. Standard library alone.

What a server says is believed within bounds: lines and answers have a longest length, and whatever is not
what it should be is a ProtocolError.
"""

from __future__ import annotations

import http.client
import json
import math
import socket
import ssl
from collections.abc import Generator, Mapping, Sequence
from contextlib import contextmanager, suppress
from typing import Any

from edgespec.config import GenerationOptions
from edgespec.errors import ContextError, LinkError, OptionError, ProtocolError, RefusedError
from edgespec.response import Response, Stats
from edgespec.split.address import address_of
from edgespec.split.tls import UNTRUSTED, trusting
from edgespec.text.conversation import Message

CONNECT = 10.0  # seconds in which a server must be reached, and tell of itself
MOST_LINE, MOST_ANSWER = 2**20, 4 * 2**20  # bytes


class ServerClient:
    """Requests to one server, one at a time; `cancel` may come from any thread, or from a signal."""

    def __init__(self, url: str, key: str | None = None, ca: str | None = None) -> None:
        """url: see `split.address`. ca: see `split.tls.trusting`. Raises OptionError."""
        self.address = address_of(url)
        if ca is not None and not self.address.encrypted:
            raise OptionError("ca changes nothing for http://, which is not encrypted; use https://", "ca")
        self._tls = trusting(ca) if self.address.encrypted else None
        self.url = self.address.url("http")
        self.key = key
        self._socket: socket.socket | None = None
        self._cancelled = False

    def ask(self, path: str, body: Mapping[str, Any] | None = None) -> dict[str, Any]:
        """What a path answers. Raises as `reply`."""
        with self._request(path, body) as response:
            return self._object(response.read(MOST_ANSWER + 1))

    def reply(
        self, model: str, messages: Sequence[Message], options: GenerationOptions
    ) -> Generator[Response, None, None]:
        """The reply to messages, piece by piece; the last has a finish_reason, "cancelled" after `cancel`.

        Raises LinkError when the server cannot be reached or goes away, RefusedError when it is busy, wants
        another key or will not do this, ContextError, ProtocolError.
        """
        self._cancelled = False
        said = [{"role": message.role, "content": message.content} for message in messages]
        body = {"model": model, "messages": said, "stream": True, **_fields(options)}
        try:
            with self._request("/v1/chat/completions", body) as response:
                while (data := self._event(response)) is not None:
                    yield from self._piece(self._object(data))
        except LinkError:
            if not self._cancelled:
                raise
            yield Response("", finish_reason="cancelled")

    def cancel(self) -> None:
        """End the request under way."""
        self._cancelled = True
        if self._socket is not None:
            with suppress(OSError):  # TLS's own would take the encryption off under who reads and writes
                socket.socket.shutdown(self._socket, socket.SHUT_RDWR)

    @contextmanager
    def _request(
        self, path: str, body: Mapping[str, Any] | None
    ) -> Generator[http.client.HTTPResponse, None, None]:
        host, port = self.address.host, self.address.port
        connection = (
            http.client.HTTPConnection(host, port, timeout=CONNECT)
            if self._tls is None
            else http.client.HTTPSConnection(host, port, timeout=CONNECT, context=self._tls)
        )
        headers = {"Accept": "application/json, text/event-stream", "Connection": "close"}
        if self.key is not None:
            headers["Authorization"] = f"Bearer {self.key}"
        data = None if body is None else json.dumps(body).encode()
        try:
            connection.connect()
            self._socket = connection.sock
            if data is not None:
                headers["Content-Type"] = "application/json"
                self._socket.settimeout(None)  # it may be a while until a reply's turn
                self._socket.setsockopt(socket.SOL_SOCKET, socket.SO_KEEPALIVE, 1)
            connection.request("GET" if data is None else "POST", self.address.base + path, data, headers)
            response = connection.getresponse()
            if response.status != 200:
                self._refuse(response)
            yield response
        except ssl.SSLCertVerificationError as error:
            raise RefusedError(UNTRUSTED.format(url=self.url, why=error.verify_message, ca="ca")) from None
        except (ssl.SSLError, http.client.BadStatusLine) as error:
            raise LinkError(
                f"the server at {self.url} cannot be reached: {error}; {self.address.other_scheme}"
            ) from None
        except (OSError, http.client.HTTPException) as error:
            what = "does not answer" if isinstance(error, TimeoutError) else "cannot be reached, or has gone"
            raise LinkError(f"the server at {self.url} {what}: {error or type(error).__name__}") from None
        finally:
            self._socket = None
            connection.close()

    def _refuse(self, response: http.client.HTTPResponse) -> None:
        """Raises what the status means."""
        error = self._object(response.read(MOST_ANSWER + 1)).get("error")
        told = error if isinstance(error, dict) else {}
        message = str(told.get("message", response.reason))[:1000]
        if response.status in (401, 403):
            raise RefusedError(
                f"the server at {self.url} lets nobody in with this key: {message}; api_key_file=FILE"
            )
        if told.get("code") == "context_length_exceeded":
            raise ContextError(message)
        if response.status in (429, 503):
            after = response.headers.get("retry-after", "")
            seconds = float(after) if after.isdigit() and len(after) < 6 else 0.0
            when = f"; try again in {math.ceil(seconds)} s" if seconds else ""
            raise RefusedError(f"the server at {self.url} is busy: {message}{when}", "busy", seconds)
        raise RefusedError(f"the server at {self.url} refuses this ({response.status}): {message}")

    def _event(self, response: http.client.HTTPResponse) -> bytes | None:
        """The next event's data; None = that was all."""
        while line := response.readline(MOST_LINE + 1):
            if len(line) > MOST_LINE:
                raise ProtocolError(f"the server at {self.url} has sent a line of over {MOST_LINE} bytes")
            if line.startswith(b"data:") and line.endswith(b"\n"):  # else it was cut short
                data = line[5:].strip()
                return None if data == b"[DONE]" else data
        raise LinkError(f"the server at {self.url} has gone in the middle of a reply")

    def _object(self, data: bytes) -> dict[str, Any]:
        try:
            found = json.loads(data) if len(data) <= MOST_ANSWER else None
        except (ValueError, RecursionError):
            found = None
        if not isinstance(found, dict):
            raise ProtocolError(f"the server at {self.url} does not speak OpenAI's API: {data[:80]!r}")
        return found

    def _piece(self, event: dict[str, Any]) -> Generator[Response, None, None]:
        if isinstance(error := event.get("error"), dict):
            raise LinkError(
                f"the server at {self.url} broke the reply off: {str(error.get('message'))[:1000]}"
            )
        choices = event.get("choices")
        for choice in choices if isinstance(choices, list) else ():
            delta = choice.get("delta") if isinstance(choice, dict) else None
            text = delta.get("content") if isinstance(delta, dict) else None
            reason = choice.get("finish_reason") if isinstance(choice, dict) else None
            if isinstance(text, str) and text:
                yield Response(text, NO_TOKEN)
            if reason is not None:
                yield Response("", finish_reason=str(reason)[:20], stats=stats_of(event.get("timings")))


NO_TOKEN = -1  # there is one, and the server does not say which


def stats_of(timings: Any) -> Stats:
    """What a server measured of a reply; what it does not tell is 0."""
    told = timings if isinstance(timings, dict) else {}

    def number(name: str) -> float:
        value = told.get(name)
        if isinstance(value, bool) or not isinstance(value, int | float):
            return 0.0
        return float(value) if 0 <= value < 2**63 else 0.0  # NaN is neither

    return Stats(
        prompt_tokens=int(number("cache_n") + number("prompt_n")),
        reused_tokens=int(number("cache_n")),
        reply_tokens=int(number("predicted_n")),
        cycles=int(number("cycles")),
        drafted=int(number("draft_n")),
        accepted=int(number("draft_n_accepted")),
        prefill_seconds=number("prompt_ms") / 1000,
        decode_seconds=number("predicted_ms") / 1000,
        bytes_read=int(number("bytes_read")),
        decode_bytes_read=int(number("decode_bytes_read")),
        peak_memory=int(number("peak_memory")),
        dial=int(number("memory")) or None,
    )


def _fields(options: GenerationOptions) -> dict[str, Any]:
    """Options as a request has them; what is as ever is left to the server."""
    default = GenerationOptions()
    found: dict[str, Any] = {"temperature": options.temperature}
    for name in ("max_tokens", "top_p", "top_k", "min_p", "seed", "ignore_eos"):
        if (value := getattr(options, name)) != getattr(default, name):
            found[name] = value
    return found | ({"stop": list(options.stop)} if options.stop else {})
