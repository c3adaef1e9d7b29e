"""The split with processes: `edgespec serve`, and clients of its verifying path."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Iterator
from pathlib import Path

import pytest

import edgespec
from edgespec.config import GenerationOptions
from edgespec.errors import LinkError, RefusedError
from edgespec.response import whole
from tests.servers import ROOT, ServerProcess
from tests.sessions import WAIT, wait_for
from tests.test_session import prompt_of, write_model
from tests.test_split_client import Parrot

REPLY = GenerationOptions(max_tokens=40, ignore_eos=True)
PROMPT = prompt_of(6) * 4


@pytest.fixture(scope="module")
def model(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return write_model(tmp_path_factory.mktemp("split") / "m", max_position_embeddings=2048)


@pytest.fixture(scope="module")
def expected(model: Path) -> list[int]:
    with edgespec.load(model, memory="2GB", context=400, drafter="none") as engine:
        return edgespec.generate(engine, PROMPT, REPLY).tokens


@pytest.fixture(scope="module", params=["1", "4"], ids=lambda most: f"{most}-sessions")
def server(
    request: pytest.FixtureRequest, model: Path, tmp_path_factory: pytest.TempPathFactory
) -> Iterator[ServerProcess]:
    cache = tmp_path_factory.mktemp("cache")
    (cache / "keys").write_text("secret\n")
    flags = "--memory", "2GB", "--context", "900", "--max-sessions", request.param
    server = ServerProcess(str(model), *flags, "--api-key-file", str(cache / "keys"), cache=cache)
    try:
        server.loaded()
        yield server
    finally:
        server.end()


def test_text_is_the_servers(server: ServerProcess, expected: list[int]) -> None:
    with edgespec.connect(server.url, key="secret") as engine:
        reply = edgespec.generate(engine, PROMPT, REPLY)
        assert reply.tokens == expected
        assert reply.verified
        with engine.new_session(300) as one, engine.new_session(300) as two:
            replies = [session.generate(PROMPT, REPLY) for session in (one, two)]
            said = [[next(r).token for r in replies] for _ in range(40)]
            assert said == [[token, token] for token in expected]
    key = {"Authorization": "Bearer secret"}
    asked = {"prompt": PROMPT, "max_tokens": 40, "ignore_eos": True}
    status, answer, _ = server.get("/v1/completions", asked, **key, **{"Content-Type": "application/json"})
    assert status == 200
    assert answer["choices"][0]["text"] == reply.text, "requests and clients share the memory"
    status, told, _ = server.get("/metrics", **key)
    figures = dict(line.rsplit(" ", 1) for line in told.splitlines() if not line.startswith("#"))
    assert float(figures["edgespec_rounds_total"]) > 20
    assert {"edgespec_conversations", "edgespec_conversation_positions"} <= figures.keys()


def test_a_wrong_key_is_refused(server: ServerProcess) -> None:
    for key in (None, "wrong"):
        with pytest.raises(RefusedError, match="key") as caught:
            edgespec.connect(server.url, key=key)
        assert caught.value.why == "key"


def test_a_server_that_is_killed_and_comes_back(model: Path, expected: list[int], tmp_path: Path) -> None:
    flags = str(model), "--memory", "2GB", "--context", "400"
    server = ServerProcess(*flags, cache=tmp_path)
    server.loaded()
    again: list[ServerProcess] = []

    def restart() -> None:
        again.append(ServerProcess(*flags, cache=tmp_path, port=server.port))

    engine = edgespec.connect(server.url, make=Parrot, wait=100, alone=5)
    try:
        with engine, engine.new_session() as session:
            steps = []
            for step in session.generate(PROMPT, REPLY):
                steps.append(step)
                if len(steps) == 10:
                    server.process.kill()
                    server.end(signal.SIGKILL)
                    threading.Thread(target=restart).start()
        assert [step for step in steps if not step.verified]
        reply = whole(steps)
        assert reply.tokens == expected
        assert reply.verified
    finally:
        for process in again:
            process.end()
    with pytest.raises(LinkError):
        edgespec.connect(server.url)


def test_a_server_that_is_to_end_lets_replies_end(model: Path, expected: list[int], tmp_path: Path) -> None:
    server = ServerProcess(str(model), "--memory", "2GB", "--context", "400", cache=tmp_path)
    server.loaded()
    met = list[str | int]()

    def end() -> None:
        server.process.send_signal(signal.SIGTERM)
        wait_for(lambda: server.get("/health")[0] == 503)
        try:
            edgespec.connect(server.url).close()
        except RefusedError as error:
            met.append(str(error))
        met.append(server.process.wait(WAIT))

    ending = threading.Thread(target=end)
    with edgespec.connect(server.url, make=Parrot) as engine, engine.new_session() as session:
        steps = []
        for step in session.generate(PROMPT, REPLY):
            steps.append(step)
            if len(steps) == 5:
                ending.start()
            time.sleep(0.03)
        reply = whole(steps)
        assert (reply.tokens, reply.verified, reply.stats.lost) == (expected, True, 0)
    ending.join()
    assert len(met) == 2
    assert "the server stops" in str(met[0])
    assert met[1] == 128 + signal.SIGTERM
    server.end()


def test_a_command_goes_on_with_the_model_that_is_here(
    model: Path, expected: list[int], tmp_path: Path
) -> None:
    """`generate --server URL MODEL`: whatever becomes of the server, the text is the model's."""
    server = ServerProcess(str(model), "--memory", "2GB", "--context", "400", cache=tmp_path)
    try:
        server.loaded()
        flags = "--memory", "2GB", "--context", "300", "--resident-layers", "0", "--ignore-eos"
        command = [
            sys.executable,
            "-m",
            "edgespec.apps.start",
            "generate",
            str(model),
            "--server",
            server.url,
        ]
        asked = [json.dumps({"prompt": "a b c"}), json.dumps({"prompt": "b c d"})]
        process = subprocess.Popen(
            [*command, *flags, "--max-tokens", "12", "--wait", "0", "--json"],
            stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True, cwd=tmp_path,
            env={**os.environ, "EDGESPEC_CACHE": str(tmp_path), "PYTHONPATH": str(ROOT)},
        )  # fmt: skip
        assert process.stdin is not None
        assert process.stdout is not None
        process.stdin.write(asked[0] + "\n")
        process.stdin.flush()
        line = process.stdout.readline()
        assert line, process.stderr.read() if process.stderr else ""
        first = json.loads(line)
        server.end(signal.SIGKILL)
        said, errors = process.communicate(asked[1] + "\n")
    finally:
        server.end()
    assert process.returncode == 0, errors
    second = json.loads(said)
    with edgespec.load(model, memory="2GB", context=400, drafter="none") as engine:
        options = GenerationOptions(max_tokens=12, ignore_eos=True)
        for prompt, told in (("a b c", first), ("b c d", second)):
            assert told["tokens"] == edgespec.generate(engine, prompt, options).tokens
            assert not told["stats"]["unverified_tokens"]
