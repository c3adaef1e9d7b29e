"""Connections of clients that draft: bounded apart from requests, in number, and in time without a seat."""

from __future__ import annotations

import asyncio
import json
import socket
import threading
import urllib.error
import urllib.request
from collections.abc import Iterator
from contextlib import ExitStack
from queue import Queue
from types import SimpleNamespace
from typing import Any

import pytest

import edgespec
from edgespec.config import GenerationOptions
from edgespec.engine import Engine
from edgespec.errors import RefusedError
from edgespec.response import whole
from edgespec.split.address import VERIFY
from edgespec.split.protocol import ANSWERS, VERSION, Hello, Refusal, TakeSeat, Welcome, read, written
from tests.sessions import WAIT
from tests.split_ends import Running
from tests.test_session import prompt_of, write_model

pytest.importorskip("uvicorn", reason="needs the extra `serve`")
from websockets.exceptions import InvalidStatus
from websockets.sync.client import ClientConnection, connect

from edgespec.apps.server import guard, listen, verify
from edgespec.apps.server.service import Service

PROMPT = prompt_of(6) * 4
REPLY = GenerationOptions(max_tokens=10, ignore_eos=True)
MOST = 4


@pytest.fixture(scope="module")
def engine(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Engine]:
    model = write_model(tmp_path_factory.mktemp("split") / "m", max_position_embeddings=2048)
    with edgespec.load(model, memory="2GB", context=1200, drafter="none") as engine:
        yield engine


@pytest.fixture
def url(engine: Engine, monkeypatch: pytest.MonkeyPatch) -> Iterator[str]:
    """Of a server that takes few clients, and fewer requests, at once."""
    monkeypatch.setattr(verify, "MOST_CLIENTS", MOST)
    monkeypatch.setattr(guard, "MOST_REQUESTS", MOST - 1)
    with Running(engine) as running, listen.listening("127.0.0.1", 0, False) as (listener, url):
        ground: Any = SimpleNamespace(engine=engine, visitors=SimpleNamespace(tenant=None), post=running.post)
        ground.visit, ground.spare = running.visit, running.spare
        server = listen.Server(Service("m", "m", GenerationOptions(), scheduler=ground), 0.0)
        thread = threading.Thread(target=server.run, args=([listener],))
        thread.start()
        yield url
        server.should_exit = True
        thread.join()
        running.host = ground.visitors.tenant or running.host


def opened(url: str) -> ClientConnection:
    return connect(url.replace("http", "ws") + VERIFY.path, compression=None, ping_interval=None)


def status(url: str) -> int:
    try:
        with urllib.request.urlopen(url, timeout=WAIT) as response:
            return int(response.status)
    except urllib.error.HTTPError as error:
        with error:
            return error.code


def last_words(client: ClientConnection) -> str:
    """Of the server, which closes the connection."""
    said = [read(frame, ANSWERS) for frame in client if isinstance(frame, bytes)]
    return said[-1].words if isinstance(said[-1], Refusal) else ""


def test_what_a_client_does_not_read_is_bounded() -> None:
    class Socket:
        async def send_bytes(self, frame: bytes) -> None:
            await asyncio.sleep(WAIT)

    async def fill(size: int) -> verify.Outbox:
        outbox = verify.Outbox(verify.MOST_UNREAD_BYTES)
        socket: Any = Socket()
        sending = asyncio.create_task(outbox.send(socket))
        for _ in range(2000):
            outbox.put(bytes(size))
            await asyncio.sleep(0)
            assert outbox.waiting * size <= verify.MOST_UNREAD_BYTES
            assert outbox.waiting <= verify.MOST_UNREAD
        sending.cancel()
        return outbox

    for size in (2**16, 10):
        outbox = asyncio.run(fill(size))
        assert outbox.gone
        assert outbox.waiting <= 1, "frames are kept for somebody who is gone"


def test_clients_that_ask_nothing_stand_in_no_requests_way(url: str) -> None:
    with ExitStack() as stack:
        for _ in range(MOST):
            stack.enter_context(opened(url))
        with pytest.raises(InvalidStatus) as caught:
            opened(url)
        assert caught.value.response.status_code == 503
        assert caught.value.response.headers["retry-after"] == "20"
        assert "4 clients are connected" in json.loads(caught.value.response.body or b"")["error"]["message"]
        assert [status(url + path) for path in ("/health", "/v1/models")] == [200, 200]


def test_health_is_told_however_many_ask(url: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(guard, "MOST_REQUESTS", 0)
    assert (status(url + "/v1/models"), status(url + "/health")) == (503, 200)


def test_who_says_nothing_or_takes_no_seat_is_let_go(url: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(verify, "HELLO_SECONDS", 0.3)
    monkeypatch.setattr(verify, "SEAT_SECONDS", 0.6)
    with opened(url) as silent, opened(url) as standing, opened(url) as seated:
        for client in (standing, seated):
            client.send(written(Hello(VERSION)))
            frame = client.recv(WAIT)
            assert isinstance(frame, bytes)
            assert isinstance(read(frame, ANSWERS), Welcome)
        seated.send(written(TakeSeat(b"", 100)))
        assert last_words(silent) == "nothing was said here for 0.3 s"
        assert last_words(standing) == "no seat was taken here for 0.6 s"
        seated.recv(WAIT)
        with pytest.raises(TimeoutError):
            seated.recv(1.0)


def test_hello_again_and_again_keeps_no_connection_open(url: str) -> None:
    with opened(url) as client:
        for _ in range(2):
            client.send(written(Hello(VERSION)))
        assert last_words(client) == "hello was said already"


def test_who_rests_makes_room_and_comes_again(
    url: str, engine: Engine, monkeypatch: pytest.MonkeyPatch
) -> None:
    expected = edgespec.generate(engine, PROMPT, REPLY).tokens
    with edgespec.connect(url, drafter="ngram") as far, ExitStack() as stack:
        session = stack.enter_context(far.new_session(200))
        assert whole(session.generate(PROMPT, REPLY)).tokens == expected
        for _ in range(MOST - 1):
            stack.enter_context(far.new_session(200))
        with pytest.raises(RefusedError, match="4 clients are connected") as caught:
            far.new_session(200)
        assert (caught.value.why, caught.value.seconds) == ("full", 20)
        monkeypatch.setattr(verify, "SPARE_SECONDS", 0.0)
        stack.enter_context(far.new_session(200))
        reply = whole(session.generate(PROMPT, REPLY))
        assert (reply.tokens, reply.verified) == (expected, True)


def test_small_frames_are_sent_at_once() -> None:
    """What a drafter attends to follows an answer: it must not wait 40 ms until that is acknowledged."""
    heard = Queue[int]()

    async def serve(listener: socket.socket) -> None:
        async def attend(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
            accepted = writer.get_extra_info("socket")
            heard.put(accepted.getsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY))
            writer.close()

        async with await asyncio.start_server(attend, sock=listener):
            with socket.create_connection(listener.getsockname()) as client:
                await asyncio.to_thread(client.recv, 1)

    with listen.listening("127.0.0.1", 0, locked=False) as (listener, _):
        asyncio.run(serve(listener))
    assert heard.get(timeout=WAIT)
