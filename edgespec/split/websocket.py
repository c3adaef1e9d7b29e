"""Frames over WebSocket, which keeps them whole, passes proxies, and has TLS. Needs no torch."""

from __future__ import annotations

import ssl
from collections.abc import Callable
from contextlib import ExitStack
from typing import Any
from urllib.parse import urlsplit, urlunsplit

from edgespec.errors import LinkError, MissingExtraError, OptionError, ProtocolError, RefusedError
from edgespec.split.link import OPEN_SECONDS, Dial
from edgespec.split.protocol import FRAME_BYTES, PATH
from edgespec.split.tls import trusting

REFUSED = {401: "the server does not know this key", 403: "the server forbids it", 404: "no such path there"}


def websocket(url: str, key: str | None, ca: str | None) -> Dial:
    """Connects to ws:// or wss:// (http:// and https:// mean the same); without a path, to PATH.

    Raises OptionError for what is no such address, and for a key that would cross the net unencrypted;
    MissingExtraError.
    """
    parts = urlsplit(url)
    scheme = {"http": "ws", "https": "wss"}.get(parts.scheme, parts.scheme)
    if scheme not in ("ws", "wss") or not parts.hostname:
        raise OptionError(f"{url!r} is no server's address; write for example wss://host:8000")
    near = parts.hostname in ("localhost", "127.0.0.1", "::1")
    if key is not None and scheme == "ws" and not near:
        raise OptionError(f"the key would go to {parts.hostname} unencrypted; use wss://, or no key", "key")
    if ca is not None and scheme == "ws":
        raise OptionError("ca changes nothing for ws://, which is not encrypted; use wss://", "ca")
    try:
        from websockets.sync.client import connect
    except ImportError:
        raise MissingExtraError(
            "a server is reached with the package websockets; install it with pip install 'edgespec[client]'"
        ) from None
    address = urlunsplit((scheme, parts.netloc, PATH if parts.path in ("", "/") else parts.path, "", ""))
    context = trusting(ca) if scheme == "wss" else None
    headers = {} if key is None else {"Authorization": f"Bearer {key}"}

    def dial() -> _Socket:
        from websockets.exceptions import InvalidStatus, WebSocketException

        opened = ExitStack()
        try:
            socket = opened.enter_context(
                connect(
                    address,
                    ssl=context,
                    additional_headers=headers,
                    compression=None,  # bodies are compressed where it pays
                    max_size=FRAME_BYTES,
                    open_timeout=OPEN_SECONDS,
                    close_timeout=0.5,
                    ping_interval=None,  # a server at work says so itself
                )
            )
        except InvalidStatus as error:
            status = error.response.status_code
            words = REFUSED.get(status, f"it answers {status}")
            if status >= 500:
                raise LinkError(f"{address} cannot be reached: {words}") from None
            raise RefusedError(f"{address}: {words}", "key" if status == 401 else "status") from None
        except ssl.SSLCertVerificationError as error:
            raise RefusedError(f"{address}: its certificate is not trusted: {error.verify_message}") from None
        except (OSError, WebSocketException) as error:
            raise LinkError(f"{address} cannot be reached: {error or type(error).__name__}") from None
        return _Socket(socket, opened)

    return dial


class _Socket:
    """See `split.link.Transport`."""

    def __init__(self, socket: Any, opened: ExitStack) -> None:
        from websockets.exceptions import ConnectionClosed

        self._socket, self._opened = socket, opened
        self._closed: type[Exception] = ConnectionClosed

    def send(self, frame: bytes) -> None:
        self._guarded(lambda: self._socket.send(frame))

    def receive(self, timeout: float) -> bytes | None:
        try:
            frame = self._guarded(lambda: self._socket.recv(timeout))
        except TimeoutError:
            return None
        if not isinstance(frame, bytes):
            raise ProtocolError("the server sent text, where frames are bytes")
        return frame

    def _guarded(self, work: Callable[[], Any]) -> Any:
        try:
            return work()
        except TimeoutError:
            raise
        except (self._closed, OSError) as error:
            raise LinkError(f"the connection to the server is lost: {error}") from None

    def close(self) -> None:
        self._opened.close()
