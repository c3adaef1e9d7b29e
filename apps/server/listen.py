"""The socket, the keys, and the loop: all that can be refused before a model is loaded is."""

from __future__ import annotations

import errno
import ipaddress
import logging
import socket
import ssl
import threading
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from types import FrameType

import uvicorn
from starlette.types import ASGIApp

from edgespec.apps.server.app import make_app
from edgespec.apps.server.connections import IDLE, BoundedConnection
from edgespec.apps.server.service import Service
from edgespec.errors import OptionError
from edgespec.split.protocol import FRAME_BYTES

MOST_HEADERS = 32 * 1024  # bytes of a request's line and headers
BACKLOG = 128
UNREAD = 60_000  # milliseconds after which the system drops a client that reads nothing


@contextmanager
def listening(
    host: str, port: int, locked: bool, tls: ssl.SSLContext | None = None
) -> Iterator[tuple[socket.socket, str]]:
    """A socket that listens there, and its URL. Raises OptionError for an address that others can reach when
    there are no keys, one that is not this machine's, and a port in use."""
    try:
        found = socket.getaddrinfo(host, port, type=socket.SOCK_STREAM, flags=socket.AI_PASSIVE)
    except (OSError, UnicodeError) as error:
        raise OptionError(f"--host {host!r} is no address of this machine: {error}") from None
    family, kind, protocol, _, address = found[0]
    if not locked and not ipaddress.ip_address(str(address[0]).partition("%")[0]).is_loopback:
        raise OptionError(
            f"--host {host} can be reached from other machines, and nobody is asked for a key; give "
            "--api-key-file FILE, or leave --host out"
        )
    # asyncio sends small frames at once (TCP_NODELAY) only where a socket says that it is TCP's. Else the
    # second of two waits until the client has acknowledged the first, which its system puts off by 40 ms.
    with socket.socket(family, kind, protocol) as listener:
        listener.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        if hasattr(socket, "TCP_USER_TIMEOUT"):  # Linux; connections inherit it
            listener.setsockopt(socket.IPPROTO_TCP, socket.TCP_USER_TIMEOUT, UNREAD)
        try:
            listener.bind(address)
            listener.listen(BACKLOG)
        except OSError as error:
            if error.errno == errno.EADDRINUSE:
                raise OptionError(f"port {port} of {host} is in use; name another with --port") from None
            raise OptionError(f"cannot listen on {host}, port {port}: {error.strerror}") from None
        shown = f"[{host}]" if ":" in host else host
        yield listener, f"{'https' if tls else 'http'}://{shown}:{listener.getsockname()[1]}"


class Server(uvicorn.Server):
    """Serves until a signal, or an error that ends the service. Replies under way have `patience` seconds
    then, of clients that draft, too, while new requests are refused; at a second signal, none."""

    def __init__(
        self,
        service: Service,
        patience: float,
        tls: ssl.SSLContext | None = None,
        make: Callable[[Service], ASGIApp] = make_app,
    ) -> None:
        """make: of what it serves."""
        log = logging.getLogger("uvicorn.error")
        log.setLevel(logging.ERROR)  # what clients do wrong is told to them
        log.addFilter(_is_a_fault)
        super().__init__(
            uvicorn.Config(
                make(service),
                http=BoundedConnection,
                ws="websockets-sansio",
                ws_max_size=FRAME_BYTES,
                ws_per_message_deflate=False,
                loop="asyncio",
                lifespan="off",
                log_config=None,
                access_log=False,
                proxy_headers=False,
                server_header=False,
                backlog=BACKLOG,
                timeout_keep_alive=IDLE,
                timeout_graceful_shutdown=5,
                h11_max_incomplete_event_size=MOST_HEADERS,
            )
        )
        self.config.load()
        self.config.ssl = tls
        self.service, self.patience, self._signalled = service, patience, False
        service.ended = self._end

    def handle_exit(self, sig: int, frame: FrameType | None) -> None:
        self.force_exit, self._signalled = self._signalled, True

        def stop(patience: float) -> None:
            self.service.stop(patience)
            # Not before: with this uvicorn closes all WebSockets at once.
            super(Server, self).handle_exit(sig, frame)

        threading.Thread(target=stop, args=(0 if self.force_exit else self.patience,), daemon=True).start()

    def _end(self) -> None:
        self.should_exit = True

    def run(self, sockets: Sequence[socket.socket] | None = None) -> None:
        super().run(list(sockets or ()))


def _is_a_fault(record: logging.LogRecord) -> bool:
    """uvicorn takes a WebSocket that is refused for one."""
    return record.msg != "ASGI callable returned without completing handshake."
