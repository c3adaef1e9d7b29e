"""`edgespec chat --server`: the same chat with a server's replies, whatever the server does."""

from __future__ import annotations

import io
import json
import sys
import threading
from collections.abc import Callable, Iterator
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any

import pytest

from edgespec.apps import main
from edgespec.apps.served import ServedChat
from edgespec.config import GenerationOptions
from edgespec.errors import LinkError, OptionError, ProtocolError
from edgespec.serving.client import MOST_LINE, ServerClient, stats_of

TIMINGS = {"cache_n": 2, "prompt_n": 5, "predicted_n": 3, "cycles": 2, "draft_n": 4, "draft_n_accepted": 1}
Script = dict[str, Any]


def event(**choice: Any) -> bytes:
    found = {"choices": [{"index": 0, **choice}], "timings": TIMINGS if choice.get("finish_reason") else None}
    return b"data: " + json.dumps(found).encode() + b"\n\n"


def say(*pieces: str, reason: str = "stop") -> bytes:
    said = b"".join(event(delta={"content": piece}, finish_reason=None) for piece in pieces)
    return said + event(delta={}, finish_reason=reason) + b"data: [DONE]\n\n"


@pytest.fixture
def server() -> Iterator[Script]:
    """Answers POST with its status, headers and body, and keeps what it was asked."""
    script: Script = {"status": 200, "body": say("Hel", "lo!"), "asked": [], "headers": {}, "hold": None}
    script["models"] = {"data": [{"id": "m", "context_length": 400}]}

    class Handler(BaseHTTPRequestHandler):
        def answer(self, status: int, body: bytes) -> None:
            self.send_response(status)
            for name, value in script["headers"].items():
                self.send_header(name, value)
            self.end_headers()
            self.wfile.write(body)
            self.wfile.flush()
            if script["hold"] is not None:
                script["hold"].wait(60)

        def do_GET(self) -> None:
            found = script["models"] if self.path == "/v1/models" else {"memory": 5 * 10**9}
            self.answer(200, json.dumps(found).encode())

        def do_POST(self) -> None:
            body = json.loads(self.rfile.read(int(self.headers["content-length"])))
            script["asked"].append((self.path, body, self.headers.get("authorization")))
            self.answer(script["status"], script["body"])

        def log_message(self, *arguments: Any) -> None:
            pass

    with ThreadingHTTPServer(("127.0.0.1", 0), Handler) as http:
        thread = threading.Thread(target=http.serve_forever)
        thread.start()
        script["url"] = f"http://127.0.0.1:{http.server_port}"
        yield script
        http.shutdown()
        thread.join()


@pytest.fixture
def run(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str], tmp_path: Path
) -> Callable[..., tuple[int, str, str]]:
    monkeypatch.chdir(tmp_path)

    def run(*flags: str, stdin: str = "") -> tuple[int, str, str]:
        monkeypatch.setattr(sys, "stdin", io.TextIOWrapper(io.BytesIO(stdin.encode())))
        code = main.run(["chat", *flags])
        shown = capsys.readouterr()
        return code, shown.out, shown.err

    return run


Run = Callable[..., tuple[int, str, str]]


def test_a_chat_goes_on_with_what_was_said(server: Script, run: Run, tmp_path: Path) -> None:
    (tmp_path / "keys").write_text("# mine\nsesame\n")
    flags = (
        "--server",
        server["url"] + "/v1",
        "--api-key-file",
        "keys",
        "--temperature",
        "0.5",
        "--seed",
        "4",
    )
    commands = (
        "Hi\nAnd you?\n/show\n/stats\n/undo\n/set memory 4GB\n/show plan\n/set acceptance typical\n/set\n"
    )
    code, out, err = run(*flags, "--system", "Be brief.", "--memory", "8GB", stdin=commands)
    assert out == "Hello!\nHello!\n"
    assert code == 1  # two of the commands are refused
    asked = [
        body
        for path, body, key in server["asked"]
        if path == "/v1/chat/completions" and key == "Bearer sesame"
    ]
    assert [m["role"] for m in asked[1]["messages"]] == ["system", "user", "assistant", "user"]
    assert asked[1]["messages"][2]["content"] == "Hello!"
    assert asked[0] | {"messages": 0} == {
        "model": "m", "messages": 0, "stream": True, "temperature": 0.5, "seed": 4
    }  # fmt: skip
    assert server["asked"][-1][:2] == ("/v1/edgespec/memory", {"memory": 4 * 10**9})
    for said in (
        "--memory: the server goes by its own",
        f"m · context 400, at {server['url']}",
        "1/4 drafts accepted",
        "10 of 400 positions in use",
        "7 tokens, 2 of them kept from before",
        "taken back: And you?",
        "the plan of memory is the server's",
        "acceptance is the server's",
        "memory 5 GB · max-tokens",
    ):
        assert said in err, said


def test_the_last_message_is_answered_again_with_the_next_seed(server: Script, run: Run) -> None:
    code, out, _ = run(
        "--server", server["url"], "--temperature", "0.5", "--seed", "4", stdin="Hi\n/regen\n/regen\n"
    )
    assert (code, out) == (0, "Hello!\n" * 3)
    bodies = [body for _, body, _ in server["asked"]]
    assert [body["seed"] for body in bodies] == [4, 5, 6]
    assert all(body["messages"] == [{"role": "user", "content": "Hi"}] for body in bodies)


def test_one_question(server: Script, run: Run) -> None:
    assert run("--server", server["url"], "-p", "Hi", "--no-stats") == (0, "Hello!\n", "")


@pytest.mark.parametrize(
    ("status", "error", "headers", "said"),
    [
        (401, {"message": "no"}, {}, "lets nobody in with this key: no; --api-key-file FILE"),
        (503, {"message": "full"}, {"Retry-After": "7"}, "is busy: full; try again in 7 s"),
        (429, {"message": "slow down"}, {"Retry-After": "soon"}, "is busy: slow down"),
        (400, {"message": "9 tokens", "code": "context_length_exceeded"}, {}, "9 tokens, or /clear to start"),
        (418, {"message": "a teapot"}, {}, "refuses this (418): a teapot"),
    ],
)
def test_refusals_are_told(
    server: Script, run: Run, status: int, error: Any, headers: dict[str, str], said: str
) -> None:
    server |= {"status": status, "body": json.dumps({"error": error}).encode(), "headers": headers}
    code, out, err = run("--server", server["url"], stdin="Hi\n")
    assert (code, out) == (1, "")
    assert said in err


@pytest.mark.parametrize(
    ("body", "said"),
    [
        (b"", "has gone in the middle of a reply"),
        (say("Hel")[:60], "has gone in the middle"),
        (event(delta={"content": "Hel"}), "[the reply broke off; the reply so far is kept]"),
        (b"data: {\n\n", "does not speak OpenAI's API"),
        (b"data: [1]\n\n", "does not speak OpenAI's API"),
        (b"data: " + b"[" * 100_000 + b"\n\n", "does not speak OpenAI's API"),
        (b"data: " + b"x" * (MOST_LINE + 9), f"a line of over {MOST_LINE} bytes"),
        (b'data: {"error": {"message": "the server stops"}}\n\n', "broke the reply off: the server stops"),
        (b'data: {"choices": 7}\n\n', "has gone"),
        (b'data: {"choices": [7, {"delta": [], "finish_reason": null}]}\n\n', "has gone"),
    ],
)
def test_nonsense_is_told(server: Script, run: Run, body: bytes, said: str) -> None:
    server["body"] = body
    code, _, err = run("--server", server["url"], stdin="Hi\n")
    assert code == 1
    assert said in err


def test_control_characters_do_not_reach_the_terminal(server: Script, run: Run) -> None:
    server |= {"status": 400, "body": json.dumps({"error": {"message": "\x1b[2J"}}).encode()}
    assert "\x1b" not in run("--server", server["url"], stdin="Hi\n")[2]


def test_who_is_not_there(run: Run, server: Script, tmp_path: Path) -> None:
    code, _, err = run("--server", "http://127.0.0.1:1", "-p", "Hi")
    assert code == 1
    assert "the server at http://127.0.0.1:1 cannot be reached, or has gone" in err
    for wrong in ("ftp://x", "http://", "http://x:y", "http://[::1"):
        assert run("--server", wrong, "-p", "Hi")[0] == 2
    for flags in (["m", "--server", "x", "--yield"], ["--server", "x", "--yield"], ["--api-key-file", "x"]):
        assert run(*flags, "-p", "Hi")[0] == 2
    for models in ({}, {"data": []}, {"data": [{"id": 5}]}, {"data": 7}):
        server["models"] = models
        assert "names no model" in run("--server", server["url"], "-p", "Hi")[2]


def test_cancel_ends_a_reply_that_hangs(server: Script) -> None:
    server |= {"body": event(delta={"content": "Hel"}), "hold": threading.Event()}
    client = ServerClient(server["url"])
    server["hold"].set()
    chat = ServedChat(client, GenerationOptions())
    server["hold"].clear()
    said = []
    for response in chat.stream("Hi"):
        said.append(response)
        if len(said) == 1:
            threading.Timer(0.1, chat.cancel).start()
    server["hold"].set()
    assert [r.text for r in said] == ["Hel", ""]
    assert said[-1].finish_reason == "cancelled"
    assert [m.content for m in chat.messages] == ["Hi", "Hel"]
    server |= {"body": say("Hello!")}
    assert chat.send("And?").text == "Hello!"
    with pytest.raises(OptionError):
        chat.send("")


def test_figures_are_numbers() -> None:
    for wrong in (
        None,
        7,
        {"predicted_n": "x"},
        {"predicted_n": float("nan")},
        {"predicted_n": 2**70},
        {"cycles": True},
    ):
        found = stats_of(wrong)
        assert (found.reply_tokens, found.cycles) == (0, 0)
    assert issubclass(ProtocolError, LinkError.__mro__[1])


def test_what_is_private_is_not_sent(server: Script) -> None:
    chat = ServedChat(ServerClient(server["url"]), GenerationOptions())
    with pytest.raises(OptionError, match="is private"):
        chat.send("The password is hunter2", private=True)
    assert not server["asked"]
