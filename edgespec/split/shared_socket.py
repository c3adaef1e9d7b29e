"""An encrypted connection that one thread reads while another writes, and a third ends. Needs no torch."""

from __future__ import annotations

import errno
import selectors
import socket
import ssl
from collections.abc import Callable
from contextlib import suppress
from threading import Lock
from time import monotonic
from typing import Any, TypeVar

LOOK = 1.0  # seconds, after which who waits looks whether the connection is still there

T = TypeVar("T")


class SharedSocket(ssl.SSLSocket):
    """What websockets takes for granted. OpenSSL's connections are one thread's at a time, and most releases
    of Python do not see to it: of 1,500 connections to a busy server three hung, where a request met the
    tickets that end TLS's handshake. Here each call does what can be done at once while it has its turn, and
    waits outside."""

    _turn: Lock | None = None  # after the handshake
    _patience: float | None = None  # seconds that a call may take
    _send_patience: float | None = None  # and, if that has no end, one that sends

    def do_handshake(self, block: bool = False) -> None:
        super().do_handshake(block)
        self._patience, self._turn = self.gettimeout(), Lock()
        super().settimeout(0)

    def settimeout(self, value: float | None) -> None:
        if self._turn is None:
            super().settimeout(value)
        self._patience = value

    def recv(self, buflen: int = 1024, flags: int = 0) -> bytes:
        return self._in_turn(lambda: ssl.SSLSocket.recv(self, buflen, flags), self._patience)

    def send(self, data: Any, flags: int = 0) -> int:
        patience = self._send_patience if self._patience is None else self._patience
        return self._in_turn(lambda: ssl.SSLSocket.send(self, data, flags), patience)

    def bound_sends(self, seconds: float) -> None:
        """Who is there and reads nothing is waited for no longer."""
        self._send_patience = seconds

    def shutdown(self, how: int) -> None:
        """Of the connection beneath. Python's own takes the encryption off first, and what other threads send
        or have not read yet would be taken for plain text."""
        socket.socket.shutdown(self, how)

    def close(self) -> None:
        """Who waits is woken: the end of a descriptor wakes nobody."""
        with suppress(OSError):
            self.shutdown(socket.SHUT_RDWR)
        with self._turn or Lock():
            super().close()

    def _in_turn(self, work: Callable[[], T], patience: float | None) -> T:
        last = None if patience is None else monotonic() + patience
        while True:
            try:
                with self._turn or Lock():
                    return work()
            except (ssl.SSLWantReadError, BlockingIOError):
                awaited = selectors.EVENT_READ
            except ssl.SSLWantWriteError:
                awaited = selectors.EVENT_WRITE
            self._wait(awaited, LOOK if last is None else min(LOOK, last - monotonic()))
            if last is not None and monotonic() >= last:
                raise TimeoutError(f"nothing was read or written in {patience:g} s")

    def _wait(self, awaited: int, seconds: float) -> None:
        """Raises OSError where the connection was closed."""
        with selectors.DefaultSelector() as selector:
            try:
                selector.register(self, awaited)
            except ValueError:  # its descriptor is none
                raise OSError(errno.EBADF, "the connection was closed") from None
            selector.select(max(seconds, 0))
