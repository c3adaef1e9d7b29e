"""The split over real sockets, and a client in a process that has no torch."""

from __future__ import annotations

import base64
import hashlib
import io
import json
import os
import re
import shutil
import socket
import ssl
import subprocess
import sys
import threading
from collections.abc import Iterator
from contextlib import suppress
from pathlib import Path
from typing import Any

import pytest
from websockets.exceptions import ConnectionClosed
from websockets.sync.server import ServerConnection, serve

import edgespec
from edgespec.apps import main
from edgespec.config import GenerationOptions
from edgespec.engine import Engine
from edgespec.errors import LinkError, OptionError, ProtocolError, RefusedError
from edgespec.response import whole
from edgespec.serving.client import ServerClient
from edgespec.split import line
from edgespec.split import websocket as websocket_module
from edgespec.split.address import address_of
from edgespec.split.host import Host
from edgespec.split.line import Line
from edgespec.split.link import Link
from edgespec.split.payload import pack_tokens, unsqueeze
from edgespec.split.protocol import FRAME_BYTES, REQUESTS, Judge, Upload, read
from edgespec.split.websocket import websocket
from tests.sessions import WAIT
from tests.split_ends import Running, listening
from tests.test_session import prompt_of, write_model
from tests.test_tls import certify

BUSY = b"HTTP/1.1 503 Busy\r\nRetry-After: 7\r\nContent-Length: %d\r\n\r\n%s"
LOADING = b'{"error": {"message": "it is being loaded"}}'
ROOT = Path(__file__).resolve().parent.parent
PROMPT = prompt_of(7) * 5
REPLY = GenerationOptions(max_tokens=30, ignore_eos=True)

CLIENT = """
import json, sys, time
began = time.perf_counter()

class Nothing:
    def find_spec(self, name, path=None, target=None):
        if name.split(".")[0] in {barred!r}:
            raise ImportError(name + " is not there")

sys.meta_path.insert(0, Nothing())
import edgespec
prompt = {prompt!r}
with edgespec.connect({url!r}, drafter="ngram") as engine:
    reply = edgespec.generate(engine, prompt, max_tokens=30, ignore_eos=True)
    with edgespec.Chat(engine, context=100) as chat:
        said = chat.send("Hello", max_tokens=5).text
print(json.dumps({{"tokens": reply.tokens, "said": said, "verified": reply.verified}}))
"""
BARRED = (
    "torch", "transformers", "safetensors", "huggingface_hub", "typer", "rich", "prompt_toolkit", "triton",
    "matplotlib", "starlette", "uvicorn",
)  # fmt: skip


@pytest.fixture(scope="module")
def engine(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Engine]:
    model = write_model(tmp_path_factory.mktemp("split") / "m", max_position_embeddings=2048)
    with edgespec.load(model, memory="2GB", context=600, drafter="none") as engine:
        yield engine


@pytest.fixture
def url(engine: Engine) -> Iterator[str]:
    with Running(engine) as running, listening(running.host) as url:
        yield url


def test_a_client_without_torch_says_what_the_server_would(engine: Engine, url: str) -> None:
    expected = edgespec.generate(engine, PROMPT, REPLY).tokens
    with edgespec.Chat(engine, context=100) as chat:
        said = chat.send("Hello", max_tokens=5).text
    code = CLIENT.format(barred=BARRED, prompt=PROMPT, url=url)
    run = subprocess.run(
        [sys.executable, "-c", code], capture_output=True, text=True, cwd=ROOT, env=os.environ, check=False
    )
    assert run.returncode == 0, run.stderr
    assert json.loads(run.stdout) == {"tokens": expected, "said": said, "verified": True}


def test_the_pages_examples_run(url: str) -> None:
    page = (ROOT / "docs" / "split.md").read_text("utf-8")
    examples = re.findall(r"```python\n(.*?)```", page, re.S)
    assert len(examples) == 2
    for example in examples:
        code = example.replace("https://host:8642", url).replace("context=1000", "context=100")
        assert code != example
        exec(compile(code, "split.md", "exec"), {})


SECRET = "hunter2 is the password"


def test_what_users_mark_private_is_not_sent(
    engine: Engine, url: str, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    heard = bytearray()
    hear = Line.hear

    def listen(line: Line, frame: bytes) -> None:
        if isinstance(request := read(frame, REQUESTS), Upload):
            heard.extend(unsqueeze(request.packed, request.tokens, 10**4))
        elif isinstance(request, Judge):
            heard.extend(request.nodes)
        hear(line, frame)

    monkeypatch.setattr(Line, "hear", listen)
    secret = pack_tokens(engine.tokenizer.encode(SECRET, add_bos=False)[2:6])
    flags = "--server", url, "--drafter", "ngram", "--max-tokens", "4", "--ignore-eos"
    talk = f"Hello\n/private {SECRET}\nSay it\n/show chat\n/private\n"
    for arguments, said, code in ((["chat"], talk, 1), (["generate", "--private"], f"{SECRET}\n", 0)):
        monkeypatch.setattr(sys, "stdin", io.TextIOWrapper(io.BytesIO(said.encode())))
        assert main.run([*arguments, *flags]) == code
        shown = capsys.readouterr().err
        if code:
            assert f"user (private): {SECRET}" in shown
            assert "/private needs a message" in shown
            assert pack_tokens(engine.tokenizer.encode("Hello", add_bos=False)[1:4]) in bytes(heard)
        assert secret not in bytes(heard)
    for wrong in (["m"], ["-o", "f", *flags]):
        assert main.run(["generate", "--private", *wrong, "-p", "x"]) == 2
        assert "--private is for" in capsys.readouterr().err


def test_rounds_over_a_socket_are_small(engine: Engine, url: str) -> None:
    with edgespec.connect(url) as far, far.new_session(200) as session:
        list(session.generate(PROMPT, REPLY))
        sent, received = session.traffic
        stats = whole(session.generate([1, 2, 3], REPLY)).stats
        more_sent, more_received = (b - a for a, b in zip((sent, received), session.traffic, strict=True))
        assert more_sent <= 64 * (stats.cycles + 2) + 4 * stats.drafted + 3 * 3
        assert more_received <= 64 * (stats.cycles + 2) + 3 * 30 * 2


def test_addresses_that_are_none() -> None:
    for url, fact in (
        ("ftp://host", "no URL"),
        ("ws://", "no URL"),
        ("http://[::1", "no URL: Invalid IPv6"),
        ("http://h:99999", "no URL: Port out of range"),
        ("http://h:abc", "no URL: Port could not"),
        ("http://a..b", "no URL"),
        ("http://" + "a" * 64 + ".org", "no URL"),
        ("http://h:1?key=2", "no URL"),
        ("http://h:1#x", "no URL"),
        ("http://exa mple", "spaces"),
        ("http://h\n:1", "spaces"),
        ("http://user:hunter2@h:1", "password in its URL"),
        ("user:hunter2@h:1", "password in its URL"),
    ):
        for reach in (edgespec.connect, ServerClient):
            with pytest.raises(OptionError, match=fact) as caught:
                reach(url)
            assert "hunter2" not in str(caught.value)
    with pytest.raises(OptionError, match="control characters"):
        edgespec.connect("localhost:1", key="a\r\nX: y")
    with pytest.raises(OptionError, match="unencrypted"):
        edgespec.connect("ws://example.org", key="secret")
    with pytest.raises(OptionError, match="not encrypted"):
        edgespec.connect("ws://localhost:1", ca="ca.pem")
    with pytest.raises(OptionError, match="no file of certificates"):
        edgespec.connect("wss://localhost:1", ca="/nowhere/ca.pem")
    with pytest.raises(OptionError, match="unverified"):
        edgespec.connect("ws://localhost:1", unverified="never")
    with pytest.raises(OptionError, match="unknown"):
        edgespec.connect("ws://localhost:1", memry=3)


@pytest.mark.parametrize(
    ("url", "shown", "near"),
    [
        ("127.0.0.1:8642", "http://127.0.0.1:8642", True),
        ("http://localhost:8642/v1", "http://localhost:8642", True),
        ("ws://127.8.8.8/v1/", "http://127.8.8.8", True),
        ("wss://h.example/deep/v1/edgespec/verify", "https://h.example/deep", False),
        ("HTTPS://[::1]:9", "https://[::1]:9", True),
        ("https://[fe80::1]/", "https://[fe80::1]", False),
        ("http://127.0.0.1.evil.example", "http://127.0.0.1.evil.example", False),
    ],
)
def test_addresses(url: str, shown: str, near: bool) -> None:
    address = address_of(url)
    assert (address.url("http"), address.near) == (shown, near)
    assert ServerClient(url).url == shown


def test_the_address_that_a_server_prints_is_one(url: str) -> None:
    with edgespec.connect(url.replace("ws", "http") + "/v1") as engine:
        assert engine.config.max_context == 600


def test_no_proxy_hears_what_is_for_this_machine(url: str, monkeypatch: pytest.MonkeyPatch) -> None:
    for name in ("no_proxy", "NO_PROXY"):
        monkeypatch.delenv(name, raising=False)
    for proxy in ("http://127.0.0.1:1", "http://127.0.0.1:x", "socks5://127.0.0.1:1"):
        monkeypatch.setenv("http_proxy", proxy)
        edgespec.connect(url, key="secret").close()
    with pytest.raises(OptionError, match="no_proxy"):
        edgespec.connect("http://h.invalid:1")


def test_a_frame_that_is_too_long_ends_the_reply(engine: Engine, monkeypatch: pytest.MonkeyPatch) -> None:
    """It is no lost connection, to be made again for ever."""
    with Running(engine) as running, listening(running.host) as url, edgespec.connect(url) as far:
        monkeypatch.setattr(line, "written", lambda message: bytes(FRAME_BYTES + 1))
        with pytest.raises(ProtocolError, match="a frame that is none"):
            edgespec.generate(far, PROMPT, REPLY)


def test_a_seat_and_nothing_else_does_not_hold_a_reply_up(
    engine: Engine, monkeypatch: pytest.MonkeyPatch
) -> None:
    with (
        Running(engine) as running,
        listening(running.host) as url,
        edgespec.connect(url, drafter="none", wait=0.5) as far,
        far.new_session() as session,
    ):
        monkeypatch.setattr(Host, "ask", lambda self, line, request, digest: line._close())
        with pytest.raises(LinkError, match="has not come back"):
            whole(session.generate(PROMPT, REPLY))


def test_a_port_without_a_server() -> None:
    with socket.socket() as held:
        held.bind(("127.0.0.1", 0))
        with pytest.raises(LinkError, match="cannot be reached"):
            edgespec.connect(f"ws://127.0.0.1:{held.getsockname()[1]}")


@pytest.mark.parametrize(
    ("answer", "error", "fact"),
    [
        (b"HTTP/1.1 401 Unauthorized\r\nContent-Length: 0\r\n\r\n", RefusedError, "the key"),
        (b"HTTP/1.1 404 Not Found\r\nContent-Length: 0\r\n\r\n", RefusedError, "verifies nothing"),
        (b"HTTP/1.1 502 Gone\r\nContent-Length: 0\r\n\r\n", LinkError, "it answers 502"),
        (BUSY % (41, LOADING[:41]), RefusedError, "answers 503"),
        (
            BUSY % (44, LOADING),
            RefusedError,
            "loaded; try again in 7 s",
        ),
        (BUSY % (9, b'{"error":'), RefusedError, "answers 503"),
        (BUSY % (40000, b"[" * 40000), RefusedError, "answers 503"),
        (b"SSH-2.0-OpenSSH_9.6\r\n", LinkError, "write https://"),
        (b"", LinkError, "write https://"),
    ],
)
def test_servers_that_speak_otherwise(answer: bytes, error: type[Exception], fact: str) -> None:
    with socket.create_server(("127.0.0.1", 0)) as server:

        def reply() -> None:
            connection, _ = server.accept()
            with connection:
                connection.recv(4096)
                connection.sendall(answer)

        thread = threading.Thread(target=reply)
        thread.start()
        with pytest.raises(error, match=fact):
            edgespec.connect(f"ws://127.0.0.1:{server.getsockname()[1]}")
        thread.join()


@pytest.mark.parametrize("encrypted", [False, True])
def test_a_server_that_reads_nothing_holds_nobody(
    encrypted: bool, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(websocket_module, "SEND_SECONDS", 0.4)
    context, ca = None, None
    if encrypted:
        if shutil.which("openssl") is None:
            pytest.skip("certificates are made by openssl")
        certificate, key = certify(tmp_path, "server")
        context, ca = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER), str(certificate)
        context.load_cert_chain(certificate, key)
    over = threading.Event()
    with socket.socket() as listener:
        listener.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 4096)
        listener.bind(("127.0.0.1", 0))
        listener.listen()
        url = f"{'https' if encrypted else 'http'}://127.0.0.1:{listener.getsockname()[1]}"
        frugal: dict[str, Any] = {"compression": None, "max_queue": 1, "close_timeout": 0.1}
        with serve(lambda _: bool(over.wait(WAIT)), sock=listener, ssl=context, **frugal) as server:
            thread = threading.Thread(target=server.serve_forever)
            thread.start()
            transport = websocket(url, None, ca)()

            def flood() -> None:
                for _ in range(64):  # MiB, more than systems keep
                    transport.send(bytes(FRAME_BYTES))

            with pytest.raises(LinkError, match="is lost"):
                flood()
            over.set()
            transport.close()
            server.shutdown()
            thread.join()


def test_who_accepts_and_hangs_up_is_no_server() -> None:
    """As a proxy does while its server is away: a connection that may be made again."""
    rounds = 40
    with socket.create_server(("127.0.0.1", 0)) as listener:

        def hang_up() -> None:
            for _ in range(rounds):
                connection, _ = listener.accept()
                with connection:
                    asked = connection.recv(4096)
                    key = re.search(rb"(?i)sec-websocket-key: *(\S+)", asked)
                    assert key is not None
                    accept = hashlib.sha1(key[1] + b"258EAFA5-E914-47DA-95CA-C5AB0DC85B11").digest()
                    upgraded = b"HTTP/1.1 101 Yes\r\nUpgrade: websocket\r\nConnection: Upgrade\r\n"
                    accepted = b"Sec-WebSocket-Accept: %s\r\n\r\n" % base64.b64encode(accept)
                    connection.sendall(upgraded + accepted)

        thread = threading.Thread(target=hang_up)
        thread.start()
        for _ in range(rounds):
            with pytest.raises(LinkError):
                Link(websocket(f"http://127.0.0.1:{listener.getsockname()[1]}", None, None)())
        thread.join()


@pytest.mark.parametrize("frame", ["text", b"\xc1", bytes(FRAME_BYTES + 1), b""])
def test_frames_that_are_none(frame: bytes | str) -> None:
    def speak(socket: ServerConnection) -> None:
        with suppress(ConnectionClosed):
            socket.recv()
            socket.send(frame)
            socket.recv()

    with serve(speak, "127.0.0.1", 0) as server:
        thread = threading.Thread(target=server.serve_forever)
        thread.start()
        with pytest.raises((ProtocolError, LinkError)):
            edgespec.connect(f"ws://127.0.0.1:{server.socket.getsockname()[1]}")
        server.shutdown()
        thread.join()
