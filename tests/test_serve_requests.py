"""What `edgespec serve` refuses: before it loads a model, at the door, and in requests."""

from __future__ import annotations

import asyncio
import builtins
import json
import socket
from collections.abc import Callable
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from edgespec.apps import main
from edgespec.config import GenerationOptions
from edgespec.errors import ClosedError, ContextError, OptionError, OverloadError, StorageError
from edgespec.response import Response
from edgespec.serving.ticket import Ticket
from edgespec.text.chat_template import ChatTemplate

pytest.importorskip("uvicorn", reason="needs the extra `serve`")
from starlette.requests import Request

from edgespec.apps.server import app
from edgespec.apps.server.app import Paths, make_app
from edgespec.apps.server.fields import ChatRequest, CompletionRequest, decoded
from edgespec.apps.server.objects import Shape
from edgespec.apps.server.prepare import message_of, options_for, prepare_chat
from edgespec.apps.server.problems import Problem, problem_of
from edgespec.apps.server.service import Service, digest_of
from edgespec.apps.server.stream import Replying, Waker

PLAIN = "{% for m in messages %}{{ m.role }}:{{ m.content }};{% endfor %}"
TOOLS = "{% for t in tools or [] %}[{{ t.function.name }}]{% endfor %}" + PLAIN
DEFAULT = GenerationOptions()


def tokenizer(template: str = PLAIN) -> Any:
    """Characters are tokens."""
    made = ChatTemplate({"default": template})
    return SimpleNamespace(
        template=made,
        render_chat=made.render,
        apply_chat=lambda messages, **more: [ord(c) for c in made.render(messages, **more)],
    )


def asked(**fields: Any) -> ChatRequest:
    body = {"messages": [{"role": "user", "content": "Hi"}]} | fields
    return decoded(json.dumps(body).encode(), ChatRequest)


def text_of(request: ChatRequest, template: str = PLAIN) -> str:
    return "".join(map(chr, prepare_chat(request, tokenizer(template), DEFAULT).prompt))


# --- fields ------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("fields", "param"),
    [
        ({"max_tokens": "x"}, "max_tokens"),
        ({"max_tokens": 0}, "max_tokens"),
        ({"max_tokens": True}, "max_tokens"),
        ({"max_completion_tokens": -3}, "max_completion_tokens"),
        ({"max_completion_tokens": 3, "max_tokens": 4}, "max_tokens"),
        ({"temperature": "hot"}, "temperature"),
        ({"temperature": -1}, "temperature"),
        ({"top_p": 0}, "top_p"),
        ({"seed": -1}, "seed"),
        ({"seed": 2**64}, "seed"),
        ({"stop": ["a", 1]}, "stop[1]"),
        ({"stop": ""}, "stop"),
        ({"stop": ["x"] * 17}, "stop"),
        ({"n": 2}, "n"),
        ({"n": True}, "n"),
        ({"logprobs": True}, "logprobs"),
        ({"top_logprobs": 3}, "top_logprobs"),
        ({"logit_bias": {"5": 1}}, "logit_bias"),
        ({"frequency_penalty": 0.5}, "frequency_penalty"),
        ({"response_format": {"type": "json_object"}}, "response_format"),
        ({"tool_choice": "required"}, "tool_choice"),
        ({"stream": 1}, "stream"),
        ({"stream_options": {"usage": True}}, "stream_options.usage"),
        ({"temprature": 1}, "temprature"),
        ({"messages": []}, "messages"),
        ({"messages": "Hi"}, "messages"),
        ({"messages": [{"content": "x"}]}, "messages[0].role"),
        ({"messages": [{"role": "user", "content": 5}]}, "messages[0].content"),
        ({"messages": [{"role": "user", "content": [{"type": "image_url"}]}]}, "messages[0].content"),
    ],
)
def test_wrong_fields_are_named(fields: dict[str, Any], param: str) -> None:
    with pytest.raises((Problem, OptionError)) as caught:
        prepare_chat(asked(**fields), tokenizer(), DEFAULT)
    found = caught.value
    assert (found.param if isinstance(found, Problem) else found.option) == param
    assert not isinstance(found, Problem) or found.status == 400


@pytest.mark.parametrize("body", [b"", b"[]", b"{", b"\xff", b'"x"', b"null", b"[" * 100_000])
def test_what_is_no_json_object_is_refused(body: bytes) -> None:
    for kind in (ChatRequest, CompletionRequest):
        with pytest.raises(Problem) as caught:
            decoded(body, kind)
        assert caught.value.status == 400


def test_values_that_change_nothing_are_taken() -> None:
    request = asked(
        n=1, logprobs=False, frequency_penalty=0.0, presence_penalty=0, logit_bias={}, user="me", store=True,
        response_format={"type": "text"}, tool_choice="auto", parallel_tool_calls=True, tools=[], top_p=None,
    )  # fmt: skip
    assert prepare_chat(request, tokenizer(), DEFAULT).options == DEFAULT


def test_what_a_request_leaves_open_is_the_servers() -> None:
    default = GenerationOptions(temperature=0.5, max_tokens=7, seed=3, stop=("x",))
    assert options_for(asked(), default) == default
    said = options_for(asked(temperature=0, max_completion_tokens=9, stop=["a", "b"], top_k=4), default)
    assert (said.temperature, said.max_tokens, said.stop, said.top_k) == (0, 9, ("a", "b"), 4)
    warm = GenerationOptions(temperature=0.5)
    assert options_for(asked(seed=8), warm).seed == 8
    assert options_for(asked(), warm).seed != options_for(asked(), warm).seed


def test_messages_reach_the_template_as_it_knows_them() -> None:
    parts = [{"type": "text", "text": "a"}, {"type": "text", "text": "b"}]
    assert text_of(asked(messages=[{"role": "developer", "content": parts}])) == "system:ab;"
    call = {"id": "1", "type": "function", "function": {"name": "f", "arguments": '{"x": 1}'}}
    said = asked(messages=[{"role": "assistant", "content": None, "tool_calls": [call]}]).messages[0]
    assert message_of(said, 0)["tool_calls"][0]["function"]["arguments"] == {"x": 1}


def test_tools_go_where_the_template_has_them() -> None:
    tools = [{"type": "function", "function": {"name": "f", "parameters": {}}}]
    assert text_of(asked(tools=tools), TOOLS) == "[f]user:Hi;"
    assert text_of(asked(tools=tools, tool_choice="none"), TOOLS) == "user:Hi;"
    with pytest.raises(Problem, match="knows no tools"):
        text_of(asked(tools=tools))


def test_a_system_prompt_that_would_be_left_out_is_refused() -> None:
    deaf = "{% for m in messages if m.role == 'user' %}{{ m.content }}{% endfor %}"
    messages = [{"role": "system", "content": "Be brief."}, {"role": "user", "content": "Hi"}]
    assert "Be brief." in text_of(asked(messages=messages))
    with pytest.raises(Problem, match="leaves the system prompt out"):
        text_of(asked(messages=messages), deaf)


# --- the door ----------------------------------------------------------------------------------------------


def knock(service: Service, path: str, **headers: str) -> int:
    """The status that a GET gets."""
    sent: list[Any] = []
    raw = [(name.encode(), value.encode("utf-8", "surrogateescape")) for name, value in headers.items()]
    scope = {
        "type": "http",
        "method": "GET",
        "path": path,
        "headers": raw,
        "query_string": b"",
        "root_path": "",
    }

    async def receive() -> Any:
        return {"type": "http.request", "body": b"", "more_body": False}

    async def send(message: Any) -> None:
        sent.append(message)

    asyncio.run(make_app(service)(scope, receive, send))
    return int(sent[0]["status"])


def test_keys_open_the_door_and_nothing_else() -> None:
    service = Service("m", "m", DEFAULT, [digest_of(b"one"), digest_of("zw\u00f6i".encode())])
    assert knock(service, "/v1/models", authorization="Bearer one") == 200
    assert knock(service, "/v1/models", authorization="bearer  one ") == 200
    for wrong in ("Bearer two", "Bearer", "one", "Basic one", "Bearer \udcff", "Bearer one one"):
        assert knock(service, "/v1/models", authorization=wrong) == 401, wrong
    assert knock(service, "/v1/models") == 401
    assert knock(service, "/metrics") == 401
    assert knock(service, "/health") == 503  # nothing is loaded yet
    assert not Service("m", "m", DEFAULT).lets_in("")


def test_without_keys_no_other_sites_page_gets_in() -> None:
    service = Service("m", "m", DEFAULT)
    assert knock(service, "/v1/models") == 200
    assert knock(service, "/v1/models", origin="http://localhost:3000") == 200
    for origin in ("https://example.com", "null", "http://[", "http://127.0.0.1.example.com"):
        assert knock(service, "/v1/models", origin=origin) == 403, origin
    assert knock(service, "/v1/chat/completions") == 405
    assert knock(service, "/v1/engines") == 404
    assert knock(service, "/v1/models/other/one") == 404


def body_read(paths: Paths, chunks: list[bytes], length: str | None = None, wait: float = 0.0) -> Any:
    """What reading such a body gives; it is held for a moment."""
    rest = [*chunks]

    async def receive() -> Any:
        await asyncio.sleep(wait)
        return {"type": "http.request", "body": rest.pop(0), "more_body": bool(rest)}

    headers = [] if length is None else [(b"content-length", length.encode())]
    request = Request({"type": "http", "method": "POST", "path": "/", "headers": headers}, receive)

    async def read() -> Any:
        try:
            async with paths._body(request) as body:
                await asyncio.sleep(0.05)
                return len(body)
        except Problem as problem:
            return problem.status

    return read()


def test_bodies_are_bounded_alone_and_together(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(app, "MOST_BODY", 1000)
    monkeypatch.setattr(app, "MOST_BODIES", 3000)
    monkeypatch.setattr(app, "BODY_SECONDS", 0.5)
    paths = Paths(Service("m", "m", DEFAULT))

    async def work() -> None:
        many = [body_read(paths, [b"x" * 500] * 2) for _ in range(5)]
        found = await asyncio.gather(*many)
        assert set(found) == {503, 1000}
        assert paths._bodies == 0
        assert await body_read(paths, [b"x" * 1000]) == 1000
        assert await body_read(paths, [b"x" * 600] * 3) == 413
        assert await body_read(paths, [b""], length="1001") == 413
        assert await body_read(paths, [b""], length="9" * 5000) == 413
        assert await body_read(paths, [b"x"] * 9, wait=0.2) == 408
        assert paths._bodies == 0

    asyncio.run(work())


# --- replies -----------------------------------------------------------------------------------------------


def sent(events: bool, *steps: Response | BaseException) -> tuple[int, dict[str, str], list[Any]]:
    """Status, headers and objects that a reply of these steps is sent as; None is [DONE]."""
    found: list[Any] = []

    async def work() -> None:
        ticket = Ticket([1], DEFAULT, 9)
        for step in steps:
            ticket.fail(step) if isinstance(step, BaseException) else ticket.put(step)

        async def receive() -> Any:
            await asyncio.sleep(60)

        async def send(message: Any) -> None:
            found.append(message)

        scope = {"type": "http", "method": "POST", "path": "/", "headers": []}
        await Replying(ticket, Waker(), Shape("m", chat=True), events, True)(scope, receive, send)

    asyncio.run(work())
    headers = {name.decode(): value.decode() for name, value in found[0]["headers"]}
    body = b"".join(message["body"] for message in found[1:]).decode()
    if "event-stream" in headers["content-type"]:
        parts = [part.removeprefix("data: ") for part in body.split("\n\n") if part]
        return found[0]["status"], headers, [None if p == "[DONE]" else json.loads(p) for p in parts]
    return found[0]["status"], headers, [json.loads(body)]


def test_replies_that_are_cut_off_say_so() -> None:
    cut = Response("", finish_reason="cancelled")
    status, _, (role, text, error, end) = sent(True, Response("Hel", 5), cut)
    assert (status, end) == (200, None)
    assert role["choices"][0]["delta"]["role"] == "assistant"
    assert text["choices"][0]["delta"] == {"content": "Hel"}
    assert error["error"]["code"] == "stopping"
    status, _, (error,) = sent(False, Response("Hel", 5), cut)
    assert (status, error["error"]["code"]) == (503, "stopping")


@pytest.mark.parametrize(
    ("error", "status", "code"),
    [
        (StorageError("the disk went away"), 500, None),
        (ClosedError("the server stops"), 503, "stopping"),
        (ZeroDivisionError("secret"), 500, None),
    ],
)
def test_errors_of_replies_are_told(error: Exception, status: int, code: str | None) -> None:
    for events in (True, False):
        found, _, (told,) = sent(events, error)
        assert (found, told["error"]["code"]) == (status, code)
        assert "secret" not in told["error"]["message"]
    found, _, objects = sent(True, Response("Hel", 5), error)
    assert found == 200
    assert objects[-2]["error"]["code"] == code
    assert objects[-1] is None


def test_who_finds_it_full_is_told_when_to_come_again() -> None:
    problem = problem_of(OverloadError("full", 2.5))
    assert (problem.status, problem.headers) == (503, {"retry-after": "3"})
    told = {"message": "9 and 4", "type": "invalid_request_error", "param": None}
    told |= {"code": "context_length_exceeded"}
    assert problem_of(ContextError("9 and 4")).body == {"error": told}


# --- before the model --------------------------------------------------------------------------------------


@pytest.fixture
def refused(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str], tmp_path: Path
) -> Callable[..., str]:
    """What is said of a command that must not come to load a model."""
    monkeypatch.chdir(tmp_path)

    def load(*arguments: Any) -> None:
        raise AssertionError("a model was loaded")

    monkeypatch.setattr("edgespec.apps.serve.load_engine", load)

    def run(*flags: str, code: int = 2) -> str:
        assert main.run(["serve", *flags]) == code
        return capsys.readouterr().err

    return run


def test_what_can_be_refused_before_loading_is(refused: Callable[..., str], tmp_path: Path) -> None:
    with socket.create_server(("127.0.0.1", 0)) as taken:
        port = str(taken.getsockname()[1])
        assert f"port {port} of 127.0.0.1 is in use; name another with --port" in refused("--port", port)
    for host in ("0.0.0.0", "::"):
        assert "nobody is asked for a key; give --api-key-file" in refused("--host", host)
    (tmp_path / "keys").write_text("k\n")
    assert "cannot listen on 203.0.113.1" in refused("--host", "203.0.113.1", "--api-key-file", "keys")
    assert "is missing" in refused("--api-key-file", "nowhere")
    (tmp_path / "empty").write_text("\n# none yet\n")
    assert "has no key; write one a line" in refused("--api-key-file", "empty")
    (tmp_path / "bytes").write_bytes(b"\xff\xfe")
    assert "is not UTF-8" in refused("--api-key-file", "bytes")
    assert "is a folder" in refused("--api-key-file", ".")
    assert "--port is 70000; it must be from 0 to 65535" in refused("--port", "70000")
    worker = ("--max-sessions", "4", "--draft-model", "m", "--draft-worker", "1")
    assert "max-sessions is 4, and a draft worker drafts for one" in refused(*worker)
    assert "nowhere" in refused("./nowhere", code=1)


def test_a_missing_extra_is_named(refused: Callable[..., str], monkeypatch: pytest.MonkeyPatch) -> None:
    plain: Callable[..., Any] = builtins.__import__

    def missing(name: str, *more: Any, **others: Any) -> Any:
        if name.startswith("edgespec.apps.server"):
            raise ImportError("No module named 'starlette'", name="starlette")
        return plain(name, *more, **others)

    monkeypatch.setattr(builtins, "__import__", missing)
    assert "needs starlette, which is not installed: pip install 'edgespec[serve]'" in refused(code=1)
