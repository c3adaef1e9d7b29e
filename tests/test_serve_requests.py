"""What `edgespec serve` refuses: before it loads a model, at the door, and in requests."""

from __future__ import annotations

import asyncio
import builtins
import json
import socket
import threading
from collections.abc import Callable, Iterator
from contextlib import ExitStack
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

from edgespec.apps.server import app, connections, fields, guard, listen, stream
from edgespec.apps.server.app import Paths, make_app
from edgespec.apps.server.fields import ChatRequest, CompletionRequest, decoded
from edgespec.apps.server.objects import Shape
from edgespec.apps.server.prepare import message_of, options_for, prepare_chat, prepare_text
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


@pytest.mark.parametrize(
    ("message", "param"),
    [
        ({"role": "bogus", "content": "x"}, "messages[0].role"),
        ({"role": "function", "name": "f", "content": "x"}, "messages[0].role"),
        ({"role": "user"}, "messages[0].content"),
        ({"role": "assistant", "content": None}, "messages[0].content"),
        ({"role": "user", "content": "x", "name": "Ann"}, "messages[0]"),
        ({"role": "assistant", "content": "", "tool_calls": [{"function": {"name": "f"}}]}, "messages[0]"),
        ({"role": "tool", "content": "42", "tool_call_id": "1"}, "messages[0]"),
    ],
)
def test_no_message_vanishes(message: dict[str, Any], param: str) -> None:
    """Nor a part of one: what the template leaves out is refused."""
    known = "{% for m in messages if m.role in ('user', 'assistant') %}{{ m.content }};{% endfor %}"
    assert text_of(
        asked(messages=[{"role": "assistant", "content": "a"}, *2 * [{"role": "user", "content": "b"}]]),
        known,
    )
    with pytest.raises(Problem) as caught:
        text_of(asked(messages=[message]), known)
    assert (caught.value.status, caught.value.param) == (400, param)


def test_messages_that_the_template_has_are_taken() -> None:
    whole = (
        "{% for m in messages %}{{ m.name }}{{ m.content }}"
        "{% for c in m.tool_calls or [] %}{{ c.function.name }}{{ c.function.arguments.x }}{% endfor %}"
        "{% endfor %}"
    )
    call = {"id": "1", "type": "function", "function": {"name": "f", "arguments": '{"x": 1}'}}
    messages = [
        {"role": "user", "content": "u", "name": "Ann"},
        {"role": "assistant", "content": None, "tool_calls": [call]},
        {"role": "tool", "tool_call_id": "1", "content": "42"},
        {"role": "user", "content": ""},
    ]
    assert text_of(asked(messages=messages), whole) == "Annuf142"


@pytest.mark.parametrize(
    "nested", ["[" + "[]," * 3 * 2**19 + "[]]", "{" + ",".join(f'"{n}":1' for n in range(10**5)) + "}"]
)
def test_what_is_not_used_is_not_taken_apart(nested: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """So millions of objects in a body do not hold the loop up; and what is refused is not repeated."""
    taken = list[int]()
    monkeypatch.setattr(fields, "unpacked", lambda raw, *more: taken.append(len(memoryview(raw))))
    body = '{"messages":[{"role":"user","content":"x"}],"%s":' + nested + "}"
    assert decoded((body % "metadata").encode(), ChatRequest)
    assert max(taken) <= 100
    for name in ("logit_bias", "response_format", "n", "prediction"):
        with pytest.raises(Problem) as caught:
            decoded((body % name).encode(), ChatRequest)
        assert caught.value.param == name
        assert len(caught.value.message) < 200
    monkeypatch.undo()
    with pytest.raises(Problem, match=r"tools\[0\] has 70009 bytes"):
        prepare_chat(asked(tools=[{"a": "x" * 70000}]), tokenizer(), DEFAULT)


def test_null_is_what_clients_send_for_what_they_do_not_mean() -> None:
    names = [
        "audio",
        "prediction",
        "reasoning_effort",
        "web_search_options",
        "prompt_cache_retention",
        "cache_prompt",
    ]
    assert prepare_chat(asked(**dict.fromkeys(names)), tokenizer(), DEFAULT).options == DEFAULT
    for name in ("audio", "reasoning_effort"):
        with pytest.raises(Problem, match=name):
            asked(**{name: "high"})


@pytest.mark.parametrize(
    ("prompt", "tokens"),
    [
        ("ab", [97, 98]), (["ab"], [97, 98]), ([1, 2], [1, 2]), ([[1, 2]], [1, 2]), (["a", "b"], None),
        ([[1], [2]], None), ([True], None), ([1.5], None), ({"a": 1}, None), (None, None), ([[]] * 99, None),
        (5, None),
    ],
)  # fmt: skip
def test_prompts_of_completions(prompt: Any, tokens: list[int] | None) -> None:
    request = decoded(json.dumps({"prompt": prompt}).encode(), CompletionRequest)
    cut: Any = SimpleNamespace(encode=lambda text: [*map(ord, text)])
    if tokens is not None:
        assert prepare_text(request, cut, DEFAULT).prompt == tokens
        return
    with pytest.raises(Problem) as caught:
        prepare_text(request, cut, DEFAULT)
    assert caught.value.param == "prompt"


# --- the door ----------------------------------------------------------------------------------------------


def knock(service: Service, path: str, **headers: str) -> int:
    """The status that a GET gets."""
    return int(answered(service, "GET", path, **headers)["status"])


def answered(service: Service, method: str, path: str, **headers: str) -> Any:
    """How an answer begins; a name's _ is a -."""
    sent: list[Any] = []
    raw = [
        (name.replace("_", "-").encode(), value.encode("utf-8", "surrogateescape"))
        for name, value in headers.items()
    ]
    scope = {
        "type": "http",
        "method": method,
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
    return sent[0] | {"headers": {name.decode(): value.decode() for name, value in sent[0]["headers"]}}


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


def test_no_other_name_of_this_machine_gets_in_without_a_key() -> None:
    """That is how another site's page would pass for one of this machine (DNS rebinding)."""
    service = Service("m", "m", DEFAULT)
    for host in ("127.0.0.1:8642", "localhost", "[::1]:80", "me.localhost:1"):
        assert knock(service, "/v1/models", host=host) == 200, host
    for host in ("evil.example", "evil.example:8642", "192.168.1.2", "localhost.evil.example", "[", ""):
        assert knock(service, "/v1/models", host=host) == 403, host
    assert knock(Service("m", "m", DEFAULT, [digest_of(b"k")]), "/health", host="a.example") == 503


def test_pages_may_ask_before_they_have_a_key() -> None:
    locked = Service("m", "m", DEFAULT, [digest_of(b"k")])
    asks = {"access_control_request_method": "POST", "access_control_request_headers": "authorization,x-a"}
    for service, origin in (
        (locked, "https://a.example"),
        (Service("m", "m", DEFAULT), "http://localhost:3000"),
    ):
        found = answered(service, "OPTIONS", "/v1/chat/completions", origin=origin, **asks)
        assert found["status"] == 204
        assert found["headers"]["access-control-allow-origin"] == origin
        assert found["headers"]["access-control-allow-headers"] == "authorization,x-a"
        assert "POST" in found["headers"]["access-control-allow-methods"]
    refused = answered(locked, "GET", "/v1/models", origin="https://a.example")
    assert (refused["status"], refused["headers"]["access-control-allow-origin"]) == (
        401,
        "https://a.example",
    )
    evil = answered(Service("m", "m", DEFAULT), "OPTIONS", "/v1/models", origin="https://a.example", **asks)
    assert evil["status"] == 403
    assert "access-control-allow-origin" not in evil["headers"]


def test_too_many_requests_are_refused_in_openais_shape(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(guard, "MOST_REQUESTS", 0)
    found = answered(Service("m", "m", DEFAULT), "GET", "/v1/models")
    assert (found["status"], found["headers"]["retry-after"]) == (503, "1")
    assert found["headers"]["content-type"] == "application/json"


@pytest.fixture
def door(monkeypatch: pytest.MonkeyPatch) -> Iterator[int]:
    """The port of a server without a model, which closes silent connections soon."""
    monkeypatch.setattr(connections, "IDLE", 0.5)
    monkeypatch.setattr(connections, "MOST_CONNECTIONS", 8)
    with listen.listening("127.0.0.1", 0, False) as (listener, url):
        server = listen.Server(Service("m", "m", DEFAULT), 0.0)
        thread = threading.Thread(target=server.run, args=([listener],))
        thread.start()
        yield int(url.rpartition(":")[2])
        server.should_exit = True
        thread.join()


GET = b"GET /v1/models HTTP/1.1\r\nHost: localhost\r\n\r\n"


def test_silent_connections_end(door: int) -> None:
    """Before a first request, in the midst of its headers, and behind one."""
    for said in (b"", GET[:30], GET, GET + GET[:30]):
        with socket.create_connection(("127.0.0.1", door), timeout=30) as client:
            client.sendall(said)
            found = b""
            while chunk := client.recv(65536):  # until it is closed
                found += chunk
            assert found.startswith(b"HTTP/1.1 200") is (len(said) >= len(GET))


def test_silent_connections_keep_nobody_out(door: int, monkeypatch: pytest.MonkeyPatch) -> None:
    """Those that have been silent for longest go first."""
    monkeypatch.setattr(connections, "IDLE", 600)
    with ExitStack() as stack:
        silent = [stack.enter_context(socket.create_connection(("127.0.0.1", door), 30)) for _ in range(30)]
        asking = stack.enter_context(socket.create_connection(("127.0.0.1", door), 30))
        asking.sendall(GET)
        assert asking.recv(20).startswith(b"HTTP/1.1 200")
        assert silent[0].recv(1) == b""
        silent[-1].settimeout(0.1)
        with pytest.raises(TimeoutError):
            silent[-1].recv(1)


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
    monkeypatch.setattr(app, "SMALL_BODY", 100)
    paths = Paths(Service("m", "m", DEFAULT))

    async def work() -> None:
        many = [body_read(paths, [b"x" * 500] * 2) for _ in range(5)]
        found = await asyncio.gather(*many)
        assert set(found) == {503, 1000}
        assert paths._bodies == 0
        held = [asyncio.ensure_future(body_read(paths, [b"x" * 1000])) for _ in range(3)]
        await asyncio.sleep(0.01)
        assert await body_read(paths, [b"x" * 101]) == 503
        assert await body_read(paths, [b"x" * 100]) == 100, "small ones are read in any case"
        assert await asyncio.gather(*held) == [1000] * 3
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
        await Replying(ticket, Waker(), Shape("m", chat=True, usage=True), events)(scope, receive, send)

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


def test_a_stream_that_waits_says_so(monkeypatch: pytest.MonkeyPatch) -> None:
    """Or proxies would take the connection for dead."""
    monkeypatch.setattr(stream, "SILENCE", 0.02)
    found: list[Any] = []

    async def work() -> None:
        ticket, waker = Ticket([1], DEFAULT, 9), Waker()

        async def receive() -> Any:
            await asyncio.sleep(60)

        async def send(message: Any) -> None:
            found.append(message)
            if len(found) == 4:
                ticket.put(Response("Hi", 5, finish_reason="stop"))
                waker()

        await Replying(ticket, waker, Shape("m", chat=True), True)({"type": "http"}, receive, send)

    asyncio.run(work())
    assert found[0]["status"] == 200
    body = b"".join(message["body"] for message in found[1:])
    assert body.startswith(b": waiting\n\n: waiting\n\n: waiting\n\ndata: {")
    assert body.endswith(b"data: [DONE]\n\n")


@pytest.mark.parametrize("events", [True, False])
@pytest.mark.parametrize("said", [True, False])
def test_who_is_cut_off_by_the_servers_end_is_told(events: bool, said: bool) -> None:
    """The loop cancels what is under way, as at a second signal."""
    found: list[Any] = []

    async def work() -> None:
        ticket = Ticket([1], DEFAULT, 9)
        if said:
            ticket.put(Response("Hel", 5))

        async def receive() -> Any:
            await asyncio.sleep(60)

        async def send(message: Any) -> None:
            found.append(message)

        reply = Replying(ticket, Waker(), Shape("m", chat=True), events)
        task = asyncio.ensure_future(reply({"type": "http"}, receive, send))
        await asyncio.sleep(0.05)
        for each in asyncio.all_tasks() - {asyncio.current_task()}:
            each.cancel()
        await task

    asyncio.run(work())
    assert found[0]["status"] == (200 if events and said else 503)
    body = b"".join(message["body"] for message in found[1:])
    assert b'"code":"stopping"' in body
    assert not events or not said or body.endswith(b"data: [DONE]\n\n")
    assert not found[-1].get("more_body")


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
    assert "--yield does not go with --as drafter" in refused("--as", "drafter", "--yield")
    for host in ("0.0.0.0", "::"):
        assert "nobody is asked for a key; give --api-key-file" in refused("--host", host)
    (tmp_path / "keys").write_text("k\n")
    assert "cannot listen on 203.0.113.1" in refused("--host", "203.0.113.1", "--api-key-file", "keys")
    assert "is missing" in refused("--api-key-file", "nowhere")
    (tmp_path / "empty").write_text("\n# none yet\n")
    assert "has no key; write one a line" in refused("--api-key-file", "empty")
    (tmp_path / "umlaut").write_text("k\nzwöi\n", encoding="utf-8")
    assert "key 2 is not ASCII" in refused("--api-key-file", "umlaut")
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
