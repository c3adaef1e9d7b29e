"""An encrypted connection that is read by one thread and written by another."""

from __future__ import annotations

import select
import shutil
import socket
import ssl
import threading
from collections.abc import Callable, Iterator

import pytest

from edgespec.split.shared_socket import SharedSocket
from edgespec.split.tls import trusting
from tests.test_tls import certify

pytestmark = pytest.mark.skipif(shutil.which("openssl") is None, reason="certificates are made by openssl")

Peer = Callable[[ssl.SSLSocket], None]


@pytest.fixture(scope="module")
def contexts(tmp_path_factory: pytest.TempPathFactory) -> tuple[ssl.SSLContext, ssl.SSLContext]:
    certificate, key = certify(tmp_path_factory.mktemp("tls"), "server")
    server = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    server.load_cert_chain(certificate, key)
    client = trusting(str(certificate))
    client.sslsocket_class = SharedSocket
    return server, client


@pytest.fixture
def connect(contexts: tuple[ssl.SSLContext, ssl.SSLContext]) -> Iterator[Callable[[Peer], SharedSocket]]:
    opened, threads = list[socket.socket](), list[threading.Thread]()

    def connect(peer: Peer) -> SharedSocket:
        """A connection to this peer, with websockets' timeouts: some for the handshake, then none."""
        here, there = socket.socketpair()
        opened.extend((here, there))

        def serve() -> None:
            with contexts[0].wrap_socket(there, server_side=True) as connection:
                peer(connection)

        threads.append(threading.Thread(target=serve))
        threads[-1].start()
        here.settimeout(10)
        made = contexts[1].wrap_socket(here, server_hostname="127.0.0.1")
        opened.append(made)
        made.settimeout(None)
        assert isinstance(made, SharedSocket)
        return made

    yield connect
    for each in opened:
        each.close()
    for thread in threads:
        thread.join(10)
        assert not thread.is_alive()


def whole(connection: ssl.SSLSocket, size: int) -> bytes:
    received = b""
    while len(received) < size and (chunk := connection.recv(65536)):
        received += chunk
    return received


def test_both_ways_at_once(connect: Callable[[Peer], SharedSocket]) -> None:
    """More each way than the system holds: whoever waits with the connection in hand waits for ever."""
    size = 3_000_000
    there = list[bytes]()

    def peer(connection: ssl.SSLSocket) -> None:
        connection.sendall(b"s" * size)
        there.append(whole(connection, size))

    here = connect(peer)
    sender = threading.Thread(target=here.sendall, args=(b"c" * size,), daemon=True)
    sender.start()
    assert whole(here, size) == b"s" * size
    sender.join(10)
    assert whole(here, 1) == b""
    assert there == [b"c" * size]


def test_a_reader_that_waits_lets_others_write(connect: Callable[[Peer], SharedSocket]) -> None:
    here = connect(lambda connection: connection.sendall(whole(connection, 5)[::-1]))
    read = list[bytes]()
    reader = threading.Thread(target=lambda: read.append(here.recv(64)), daemon=True)
    reader.start()
    reader.join(0.05)  # it has taken the tickets, and waits
    here.sendall(b"12345")
    reader.join(10)
    assert read == [b"54321"]


def test_its_end_wakes_who_waits(connect: Callable[[Peer], SharedSocket]) -> None:
    here = connect(lambda connection: assert_(whole(connection, 1) == b""))
    read = list[bytes]()
    reader = threading.Thread(target=lambda: read.append(here.recv(64)), daemon=True)
    reader.start()
    reader.join(0.05)
    here.shutdown(socket.SHUT_RDWR)
    reader.join(10)
    assert read == [b""]


def test_who_closes_it_wakes_who_waits(connect: Callable[[Peer], SharedSocket]) -> None:
    """As websockets does when a handshake takes too long; and then waits for its reader's end."""
    done = threading.Event()
    here = connect(lambda connection: assert_(done.wait(10)))
    read = list[bytes | OSError]()

    def reading() -> None:
        try:
            read.append(here.recv(64))
        except OSError as error:
            read.append(error)

    reader = threading.Thread(target=reading, daemon=True)
    reader.start()
    reader.join(0.05)
    here.close()
    reader.join(10)
    done.set()
    assert len(read) == 1


def test_nothing_is_plain_at_its_end(connect: Callable[[Peer], SharedSocket]) -> None:
    """What has come is still decrypted, and what is sent does not go out as it is."""
    done, raw = threading.Event(), list[bytes]()

    def peer(connection: ssl.SSLSocket) -> None:
        connection.sendall(b"secret")
        assert done.wait(10)
        raw.append(socket.socket.recv(connection, 64))

    here = connect(peer)
    assert select.select([here], [], [], 10)[0]
    here.shutdown(socket.SHUT_WR)
    with pytest.raises(OSError):  # OpenSSL's or the system's
        here.sendall(b"plain")
    assert whole(here, 6) == b"secret"
    done.set()
    assert whole(here, 1) == b""
    assert raw == [b""]


def test_patience(connect: Callable[[Peer], SharedSocket]) -> None:
    done = threading.Event()
    here = connect(lambda connection: assert_(done.wait(10)))
    here.settimeout(0.02)
    with pytest.raises(TimeoutError, match=r"0\.02 s"):
        here.recv(64)
    with pytest.raises(TimeoutError, match="written"):
        here.sendall(b"x" * 3_000_000)  # which nobody reads
    done.set()


def assert_(true: bool) -> None:
    assert true
