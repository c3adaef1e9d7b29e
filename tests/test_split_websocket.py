"""The split over real sockets, and a client in a process that has no torch."""

from __future__ import annotations

import json
import os
import re
import socket
import subprocess
import sys
import threading
from collections.abc import Iterator
from contextlib import suppress
from pathlib import Path

import pytest
from websockets.exceptions import ConnectionClosed
from websockets.sync.server import ServerConnection, serve

import edgespec
from edgespec.config import GenerationOptions
from edgespec.engine import Engine
from edgespec.errors import LinkError, OptionError, ProtocolError, RefusedError
from edgespec.response import whole
from edgespec.split.protocol import FRAME_BYTES
from tests.split_ends import Running, listening
from tests.test_session import prompt_of, write_model

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
        ("host:8000", "no server's address"),
        ("ftp://host", "no server's address"),
        ("ws://", "no server's address"),
    ):
        with pytest.raises(OptionError, match=fact):
            edgespec.connect(url)
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


def test_a_port_without_a_server() -> None:
    with socket.socket() as held:
        held.bind(("127.0.0.1", 0))
        with pytest.raises(LinkError, match="cannot be reached"):
            edgespec.connect(f"ws://127.0.0.1:{held.getsockname()[1]}")


@pytest.mark.parametrize(
    ("answer", "error"),
    [
        (b"HTTP/1.1 401 Unauthorized\r\nContent-Length: 0\r\n\r\n", RefusedError),
        (b"HTTP/1.1 404 Not Found\r\nContent-Length: 0\r\n\r\n", RefusedError),
        (b"HTTP/1.1 503 Busy\r\nContent-Length: 0\r\n\r\n", LinkError),
        (b"SSH-2.0-OpenSSH_9.6\r\n", LinkError),
        (b"", LinkError),
    ],
)
def test_servers_that_speak_otherwise(answer: bytes, error: type[Exception]) -> None:
    with socket.create_server(("127.0.0.1", 0)) as server:

        def reply() -> None:
            connection, _ = server.accept()
            with connection:
                connection.recv(4096)
                connection.sendall(answer)

        thread = threading.Thread(target=reply)
        thread.start()
        with pytest.raises(error):
            edgespec.connect(f"ws://127.0.0.1:{server.getsockname()[1]}")
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
