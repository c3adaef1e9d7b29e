"""Frames over WebSocket, which keeps them whole, passes proxies, and has TLS. Needs no torch."""

from __future__ import annotations

import json
import math
import ssl
import struct
import sys
from collections.abc import Callable
from contextlib import ExitStack, suppress
from socket import SHUT_RDWR, SO_SNDTIMEO, SOL_SOCKET
from socket import socket as Socket
from typing import Any

from edgespec.errors import (
    EdgeSpecError,
    LinkError,
    MissingExtraError,
    OptionError,
    ProtocolError,
    RefusedError,
)
from edgespec.split.address import VERIFY, Address, Purpose, address_of
from edgespec.split.link import OPEN_SECONDS, Dial
from edgespec.split.protocol import FRAME_BYTES
from edgespec.split.shared_socket import SharedSocket
from edgespec.split.tls import UNTRUSTED, trusting

SEND_SECONDS = 5.0  # that a server which reads nothing is waited for
UNSOUND = (1002, 1007, 1009)  # what we say on closing, of frames that are broken, no text, too long
REFUSED = {
    401: "it does not know the key, or asks for one",
    403: "it forbids this, or {does} nothing",
    404: "it {does} nothing",
}


def websocket(url: str, key: str | None, ca: str | None, purpose: Purpose = VERIFY) -> Dial:
    """Connects to this address (see `split.address`) for this purpose.

    Raises OptionError for what is no address, and for a key that would cross the net unencrypted;
    MissingExtraError.
    """
    address = address_of(url, purpose.server)
    if key is not None and not address.encrypted and not address.near:
        raise OptionError(
            f"the key would go to {address.host} unencrypted; use https://, or no key", purpose.key
        )
    if key is not None and not key.isprintable():
        raise OptionError("the key has control characters, which no key has", purpose.key)
    if ca is not None and not address.encrypted:
        words = f"{purpose.ca} changes nothing for http://, which is not encrypted; use https://"
        raise OptionError(words, purpose.ca)
    try:
        from websockets.sync.client import connect
    except ImportError:
        raise MissingExtraError(
            "a server is reached with the package websockets; install it with pip install 'edgespec[client]'"
        ) from None
    shown = address.url("http")
    context = trusting(ca, purpose.ca) if address.encrypted else None
    if context is not None:
        context.sslsocket_class = SharedSocket
    headers = {} if key is None else {"Authorization": f"Bearer {key}"}

    def dial() -> _Socket:
        from websockets.exceptions import InvalidMessage, InvalidStatus, WebSocketException

        opened = ExitStack()
        try:
            socket = opened.enter_context(
                connect(
                    address.url("ws") + purpose.path,
                    ssl=context,
                    proxy=None if address.near else True,  # a key for this machine is for nobody between
                    additional_headers=headers,
                    compression=None,  # bodies are compressed where it pays
                    max_size=FRAME_BYTES,
                    open_timeout=OPEN_SECONDS,
                    close_timeout=0.5,
                    ping_interval=None,  # a server at work says so itself
                )
            )
        except InvalidStatus as error:
            raise _denied(address, purpose, error.response) from None
        except ssl.SSLCertVerificationError as error:
            raise RefusedError(UNTRUSTED.format(url=shown, why=error.verify_message, ca=purpose.ca)) from None
        except (ssl.SSLError, InvalidMessage) as error:
            raise LinkError(
                f"the server at {shown} cannot be reached: {error}; {address.other_scheme}"
            ) from None
        except (OSError, WebSocketException) as error:
            raise LinkError(
                f"the server at {shown} cannot be reached: {error or type(error).__name__}"
            ) from None
        except (ValueError, ImportError) as error:  # all else was looked at before
            raise OptionError(
                f"the proxy that the environment names cannot be used for {address.host}: {error}; name the "
                "host in no_proxy, to go without"
            ) from None
        _bound_sends(socket.socket)
        return _Socket(socket, opened)

    return dial


def _bound_sends(socket: Socket) -> None:
    """What is sent is short, and blocks only where a server lets it lie: then the connection is lost."""
    if isinstance(socket, SharedSocket):
        socket.bound_sends(SEND_SECONDS)
        return
    milliseconds = int(1000 * SEND_SECONDS)
    if sys.platform == "win32":
        most = struct.pack("L", milliseconds)
    else:
        most = struct.pack("ll", milliseconds // 1000, milliseconds % 1000 * 1000)
    with suppress(OSError):  # it is closed already, as whoever sends will hear
        socket.setsockopt(SOL_SOCKET, SO_SNDTIMEO, most)


def _denied(address: Address, purpose: Purpose, response: Any) -> EdgeSpecError:
    """What an answer means that opens no WebSocket: in the server's own words, if it has some."""
    status = response.status_code
    said = REFUSED.get(status, f"it answers {status}").format(does=purpose.does)
    with suppress(ValueError, TypeError, LookupError, RecursionError):
        said = said if status == 401 else str(json.loads(response.body)["error"]["message"])[:1000]
    words = f"the server at {address.url('http')} refuses: {said}"
    if status in (429, 503):
        after = response.headers.get("retry-after", "")
        seconds = float(after) if after.isdigit() and len(after) < 6 else 0.0
        when = f"; try again in {math.ceil(seconds)} s" if seconds else ""
        return RefusedError(words + when, "full", seconds)
    if status >= 500:
        return LinkError(words)
    return RefusedError(words, "key" if status == 401 else "status")


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
            if (said := getattr(error, "sent", None)) is not None and said.code in UNSOUND:
                raise ProtocolError(f"the server sent a frame that is none: {said.reason}") from None
            if (said := getattr(error, "rcvd", None)) is not None and said.code in UNSOUND:
                raise ProtocolError(
                    f"the server, or a proxy before it, takes no such frame: {said.reason or said.code}"
                ) from None
            raise LinkError(f"the connection to the server is lost: {error}") from None

    def abort(self) -> None:
        """End it at once: who waits here, to send or to receive, waits no more; then `close`."""
        with suppress(OSError):
            self._socket.socket.shutdown(SHUT_RDWR)

    def close(self) -> None:
        self._opened.close()
