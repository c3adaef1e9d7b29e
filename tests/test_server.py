"""`edgespec serve` as clients see it: a process, sockets, and OpenAI's own client."""

from __future__ import annotations

import json
import random
import signal
import socket
import threading
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import psutil
import pytest

import edgespec
from edgespec.apps.common import demo_model
from edgespec.engine import Engine
from edgespec.text.conversation import Conversation
from tests.servers import ServerProcess, exchange, post
from tests.sessions import wait_for

openai = pytest.importorskip("openai", reason="needs the extra `test`: OpenAI's client")
pytest.importorskip("uvicorn", reason="needs the extra `serve`")

FLAGS = ("--max-sessions", "4", "--context", "400", "--threads", "1", "--memory", "2GB")
ASKED = ("What does /clear do?", "Hello!", "What is the dial?", "Who are you?", "How do I save a chat?")
DOCUMENTED = {200, 400, 401, 403, 404, 405, 408, 413, 503}


@pytest.fixture(scope="module")
def server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[ServerProcess]:
    server = ServerProcess(*FLAGS, cache=tmp_path_factory.mktemp("server"))
    seen = server.loaded()
    assert 503 in seen  # while it loads
    assert seen[-1] == 200
    yield server
    assert server.end(signal.SIGINT) == 130, server.said
    assert not [line for line in server.said if "Traceback" in line], server.said


@pytest.fixture(scope="module")
def client(server: ServerProcess) -> Iterator[Any]:
    with openai.OpenAI(base_url=f"{server.url}/v1", api_key="any", max_retries=0, timeout=100) as client:
        yield client


@pytest.fixture(scope="module")
def alone() -> Iterator[Engine]:
    with edgespec.load(demo_model(), context=400, drafter="none", threads=1, memory="2GB") as engine:
        yield engine


def said_alone(engine: Engine, text: str, **options: Any) -> str:
    conversation = Conversation(engine.tokenizer)
    conversation.ask(text)
    return edgespec.generate(engine, conversation.prompt(), **options).text


def chat(client: Any, text: str, **options: Any) -> Any:
    messages = [{"role": "user", "content": text}]
    return client.chat.completions.create(model="demo_model", messages=messages, **options)


def test_openais_client_gets_what_single_decoding_says(client: Any, alone: Engine) -> None:
    for options in ({"max_tokens": 30}, {"max_tokens": 30, "temperature": 0.8, "seed": 5, "top_p": 0.9}):
        for text in ASKED[:2]:
            expected = said_alone(alone, text, **options)
            reply = chat(client, text, **options)
            assert reply.choices[0].message.content == expected
            assert reply.choices[0].finish_reason in ("stop", "length")
            assert reply.usage.total_tokens == reply.usage.prompt_tokens + reply.usage.completion_tokens
            assert {"draft_n", "draft_n_accepted", "tokens_per_cycle"} <= set(reply.timings)
            streamed = [*chat(client, text, stream=True, stream_options={"include_usage": True}, **options)]
            assert "".join(c.choices[0].delta.content or "" for c in streamed[:-1]) == expected
            assert streamed[0].choices[0].delta.role == "assistant"
            assert streamed[-2].choices[0].finish_reason == reply.choices[0].finish_reason
            assert streamed[-1].choices == []
            assert streamed[-1].usage == reply.usage


def respond(client: Any, asked: Any, /, **options: Any) -> Any:
    return client.responses.create(model="demo_model", input=asked, **options)


def test_openais_responses_are_the_chats_replies(client: Any, alone: Engine) -> None:
    """Whole and as events, which the client takes for what they say they are."""
    for options in ({}, {"temperature": 0.8, "top_p": 0.9, "seed": 5}):
        expected = said_alone(alone, ASKED[0], max_tokens=12, **options)
        asked = {"max_output_tokens": 12, "extra_body": options}
        reply = respond(client, ASKED[0], **asked)
        assert reply.output_text == expected
        assert (reply.status, reply.incomplete_details.reason) == ("incomplete", "max_output_tokens")
        assert reply.usage.total_tokens == reply.usage.input_tokens + reply.usage.output_tokens
        assert reply.usage.output_tokens == reply.max_output_tokens == 12
        assert (reply.temperature, reply.top_p) == (options.get("temperature", 0), options.get("top_p", 1))
        events = [*respond(client, ASKED[0], stream=True, **asked)]
        assert [event.sequence_number for event in events] == [*range(len(events))]
        kinds = [event.type.removeprefix("response.") for event in events]
        assert kinds[:4] == ["created", "in_progress", "output_item.added", "content_part.added"]
        assert kinds[-4:] == ["output_text.done", "content_part.done", "output_item.done", "incomplete"]
        assert set(kinds[4:-4]) == {"output_text.delta"}
        assert "".join(event.delta for event in events[4:-4]) == expected == events[-4].text
        assert {event.item_id for event in events[3:-2]} == {events[-2].item.id}
        last = events[-1].response
        assert last.output_text == expected
        assert (last.id, last.usage.output_tokens) == (events[0].response.id, 12)
    whole = respond(client, ASKED[1])
    assert (whole.status, whole.incomplete_details) == ("completed", None)
    with client.responses.stream(model="demo_model", input=ASKED[1]) as stream:
        assert stream.get_final_response().output_text == whole.output_text


def test_a_response_goes_on_from_all_of_its_input(client: Any) -> None:
    """Also from replies as the client has them, in parts, behind instructions: as a chat of the same does."""
    first = respond(client, ASKED[1])
    parts = [{"type": "input_text", "text": "Who are"}, {"type": "input_text", "text": " you?"}]
    turns = [{"role": "user", "content": ASKED[1]}, *first.output, {"role": "user", "content": parts}]
    messages = [
        {"role": "system", "content": "Be brief."},
        {"role": "user", "content": ASKED[1]},
        {"role": "assistant", "content": first.output_text},
        {"role": "user", "content": "Who are you?"},
    ]
    chatted = client.chat.completions.create(model="demo_model", messages=messages, max_tokens=20)
    said = respond(client, turns, instructions="Be brief.", max_output_tokens=20, store=False)
    assert said.output_text == chatted.choices[0].message.content
    assert said.usage.input_tokens == chatted.usage.prompt_tokens
    assert said.instructions == "Be brief."


@pytest.mark.parametrize(
    ("field", "fact", "options"),
    [
        ("previous_response_id", "not kept", {"previous_response_id": "resp_1"}),
        ("store", "not kept", {"store": True}),
        ("tools", "not supported", {"tools": [{"type": "function", "name": "f", "parameters": {}}]}),
        ("max_output_tokens", ">= 1", {"max_output_tokens": 0}),
        ("max_tokens", "max_output_tokens", {"extra_body": {"max_tokens": 3}}),
        ("text", "not supported", {"text": {"format": {"type": "json_object"}}}),
        ("background", "not supported", {"background": True}),
        ("reasoning", "not supported", {"reasoning": {"effort": "high"}}),
        ("prompt", "unknown field", {"prompt": {"id": "p"}}),
        ("temperature", "temperature", {"temperature": -1}),
        ("input", "context is 400", {"input": "word " * 900}),
        ("input[0].type", "function_call_output", {"input": [{"type": "function_call_output"}]}),
        ("input[1].role", "no role", {"input": [{"role": "user", "content": "x"}, {"content": "x"}]}),
        ("input[0].content", "no content", {"input": [{"role": "user"}]}),
        (
            "input[0].content",
            "input_image",
            {"input": [{"role": "user", "content": [{"type": "input_image"}]}]},
        ),
        ("input", "length", {"input": []}),
    ],
)
def test_what_a_response_cannot_be_is_refused_by_name(
    client: Any, field: str, fact: str, options: dict[str, Any]
) -> None:
    with pytest.raises(openai.BadRequestError, match=fact) as caught:
        respond(client, options.pop("input", "x"), **options)
    assert caught.value.param == field


def test_texts_are_continued(client: Any, alone: Engine) -> None:
    text = "Once upon a time"
    expected = edgespec.generate(alone, text, max_tokens=20)
    tokens = alone.encode(text)
    for prompt in (text, [text], tokens, [tokens]):
        reply = client.completions.create(model="demo_model", prompt=prompt, max_tokens=20)
        assert reply.choices[0].text == expected.text
    streamed = client.completions.create(model="demo_model", prompt=text, max_tokens=20, stream=True)
    assert "".join(chunk.choices[0].text for chunk in streamed) == expected.text
    stop = expected.text[5:8]
    reply = client.completions.create(model="demo_model", prompt=text, max_tokens=20, stop=stop)
    assert reply.choices[0].text == expected.text[: expected.text.index(stop)]
    assert reply.choices[0].finish_reason == "stop"


def test_models_and_the_small_paths(client: Any, server: ServerProcess, alone: Engine) -> None:
    (model,) = client.models.list().data
    assert (model.id, model.context_length) == ("demo_model", 400)
    assert client.models.retrieve("demo_model").id == "demo_model"
    assert server.get("/tokenize", {"content": "Hello there"})[1] == {"tokens": alone.encode("Hello there")}
    messages = [{"role": "user", "content": "Hi"}]
    assert server.get("/tokenize", {"messages": messages})[1] == {"tokens": alone.encode(messages)}
    assert server.get("/v1/edgespec/memory")[1]["memory"] == 2 * 10**9
    assert server.get("/v1/edgespec/memory", {"memory": "1.5GB"})[1]["memory"] == 1.5e9
    status, found, _ = server.get("/v1/edgespec/memory", {"memory": "2MB"})
    assert status == 400
    assert "smallest dial" in found["error"]["message"]
    assert (found["error"]["param"], found["error"]["code"]) == ("memory", "memory")
    status, found, _ = server.get("/v1/edgespec/memory", {"memory": "900TB"})
    assert status == 400
    assert found["error"]["message"].endswith("lower memory")  # a field of the request
    assert (found["error"]["param"], found["error"]["code"]) == ("memory", "memory")
    assert server.get("/v1/edgespec/memory", {"memory": 2e9})[1]["memory"] == 2 * 10**9
    assert server.metric("memory_bytes") == 2e9
    assert server.metric("replies_at_once") == 4
    assert server.metric("peak_memory_bytes") < 2e9


def test_errors_are_openais(client: Any) -> None:
    with pytest.raises(openai.NotFoundError, match="'other' is not served here; 'demo_model' is"):
        client.chat.completions.create(model="other", messages=[{"role": "user", "content": "x"}])
    with pytest.raises(openai.BadRequestError, match="n is 2") as caught:
        chat(client, "x", n=2)
    assert caught.value.param == "n"
    with pytest.raises(openai.BadRequestError, match="logprobs"):
        chat(client, "x", logprobs=True)
    with pytest.raises(openai.BadRequestError, match=r"has \d+ tokens .* context is 400") as caught:
        chat(client, "word " * 900, max_tokens=5)
    assert caught.value.code == "context_length_exceeded"
    with pytest.raises(openai.BadRequestError, match="no tools"):
        chat(client, "x", tools=[{"type": "function", "function": {"name": "f", "parameters": {}}}])
    with pytest.raises(openai.BadRequestError, match="temperature"):
        chat(client, "x", temperature=-1)


def test_the_next_turn_is_computed_from_where_it_differs(client: Any) -> None:
    messages: list[Any] = [{"role": "user", "content": "What does /undo do?"}]
    first = client.chat.completions.create(model="demo_model", messages=messages)
    messages += [first.choices[0].message.model_dump(), {"role": "user", "content": "And /regen?"}]
    second = client.chat.completions.create(model="demo_model", messages=messages)
    assert second.usage.prompt_tokens_details.cached_tokens >= first.usage.total_tokens - 1
    anew = client.chat.completions.create(
        model="demo_model", messages=messages, extra_body={"cache_prompt": False}
    )
    assert anew.usage.prompt_tokens_details.cached_tokens == 0


def test_many_at_once_say_what_each_says_alone(client: Any, alone: Engine) -> None:
    asked = [
        (ASKED[n % 5], {"max_tokens": 10 + n, "temperature": 0.7 * (n % 2), "seed": n}) for n in range(12)
    ]
    with ThreadPoolExecutor(12) as pool:
        replies = [*pool.map(lambda each: chat(client, each[0], **each[1]), asked)]
    for (text, options), reply in zip(asked, replies, strict=True):
        assert reply.choices[0].message.content == said_alone(alone, text, **options)


def test_who_leaves_is_replied_to_no_more(client: Any, server: ServerProcess) -> None:
    before = server.metric('replies_total{reason="cancelled"}')
    endless = {"max_tokens": 380, "extra_body": {"ignore_eos": True}}
    stream = chat(client, "Hi", stream=True, **endless)
    next(iter(stream))
    stream.close()
    wait_for(lambda: server.metric("replying") == 0)
    whole = {"messages": [{"role": "user", "content": "Hello!"}], "max_tokens": 380, "ignore_eos": True}
    with socket.create_connection(("127.0.0.1", server.port)) as connection:  # not streamed
        connection.sendall(post("/v1/chat/completions", json.dumps(whole).encode()))
        wait_for(lambda: server.metric("replying") == 1)
    wait_for(lambda: server.metric('replies_total{reason="cancelled"}') == before + 2)
    assert server.metric("replying") == 0


def test_who_never_reads_harms_nobody(client: Any, server: ServerProcess, alone: Engine) -> None:
    body = {
        "messages": [{"role": "user", "content": "Hi"}],
        "stream": True,
        "ignore_eos": True,
        "max_tokens": 120,
    }
    silent = []
    for _ in range(6):
        connection = socket.socket()
        connection.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 2048)
        connection.connect(("127.0.0.1", server.port))
        connection.sendall(post("/v1/chat/completions", json.dumps(body).encode()))
        silent.append(connection)
    assert chat(client, ASKED[0], max_tokens=20).choices[0].message.content == said_alone(
        alone, ASKED[0], max_tokens=20
    )
    wait_for(lambda: server.metric("replying") == 0)
    for connection in silent:
        connection.close()


def mutated(rng: random.Random) -> bytes:
    """A request that is wrong somewhere: in its JSON's values, or in its bytes."""
    weird: list[Any] = [
        None,
        -1,
        2**70,
        1e308,
        "",
        "\ud800",
        "x" * 5000,
        [],
        {},
        [[]],
        True,
        [None],
        {"a": {}},
    ]
    body: dict[str, Any] = {"model": "demo_model", "max_tokens": 1, "temperature": 0.5, "stop": ["a"]}
    path = rng.choice(
        ["/v1/chat/completions", "/v1/completions", "/tokenize", "/v1/edgespec/memory", "/nowhere"]
    )
    content: Any = rng.choice(["Hi", [{"type": "text", "text": "Hi"}], *weird])
    body["messages"] = [{"role": rng.choice(["user", "tool", *weird]), "content": content}]
    if "chat" not in path:
        body["prompt"] = body.pop("messages") and "Hi"
    for _ in range(rng.randint(0, 2)):
        key = rng.choice([*body, "stream", "n", "tools", "seed", "stream_options", "logit_bias", "unknown"])
        body[key] = rng.choice(weird)
    request = bytearray(post(path, json.dumps(body).encode()))
    for _ in range(rng.choice([0, 0, 1, 3, 20])):
        place = rng.randrange(len(request))
        match rng.randrange(4):
            case 0:
                request[place] = rng.randrange(256)
            case 1:
                del request[place : place + rng.randint(1, 30)]
            case 2:
                request[place:place] = rng.randbytes(rng.randint(1, 30))
            case _:
                request[place:place] = request[: rng.randint(1, 300)]
        if not request:
            break
    return bytes(request)


def malformed(server: ServerProcess, count: int, seed: int) -> None:
    def one(number: int) -> None:
        request = mutated(random.Random(number))
        for line in exchange(server.port, request).split(b"\r\n"):
            if line.startswith(b"HTTP/1.1 "):
                assert int(line.split()[1]) in DOCUMENTED, (number, request, line)

    with ThreadPoolExecutor(8) as pool:
        for _ in pool.map(one, range(seed, seed + count)):
            pass
    assert server.get("/health")[0] == 200
    wait_for(lambda: server.metric("replying") == 0)


def test_malformed_requests_break_nothing(server: ServerProcess) -> None:
    malformed(server, 300, 0)


@pytest.mark.slow
def test_ten_thousand_malformed_requests_break_nothing(server: ServerProcess) -> None:
    malformed(server, 10_000, 1000)


def test_sizes_are_bounded(server: ServerProcess) -> None:
    huge = b'{"prompt": "' + b"x" * (5 * 2**20) + b'"}'
    assert b" 413 " in exchange(server.port, post("/v1/completions", huge)[:100_000], patience=5)
    chunked = b"POST /tokenize HTTP/1.1\r\nHost: localhost\r\nTransfer-Encoding: chunked\r\n\r\n" + 80 * (
        b"10000\r\n" + 65536 * b"x" + b"\r\n"
    )
    assert b" 413 " in exchange(server.port, chunked, patience=5)
    many = {"messages": [{"role": "user", "content": "x"}] * 5000}
    assert server.get("/v1/chat/completions", many)[0] == 400
    assert b" 400 " in exchange(server.port, post("/tokenize", b"{}", "X: " + "y" * 100_000), patience=5)
    deep = b"[" * 100_000
    assert server.get("/v1/completions", b'{"prompt": ' + deep)[0] == 400
    assert server.get("/v1/completions", b'{"prompt": "x", "metadata": ' + deep)[0] == 400


def test_nothing_grows(server: ServerProcess) -> None:
    process = psutil.Process(server.process.pid)
    held = len(process.net_connections())  # by clients of tests before, for 30 s after their last request
    rng = random.Random(3)

    def one(number: int) -> None:
        body: dict[str, Any] = {
            "prompt": [rng.randrange(5, 400) for _ in range(rng.randint(1, 90))],
            "max_tokens": 2,
        }
        body |= {"stream": number % 2 == 0, "n": 1 + (number % 10 == 0)}
        server.get("/v1/completions", body)

    def round_of(count: int) -> tuple[int, int]:
        with ThreadPoolExecutor(8) as pool:
            for _ in pool.map(one, range(count)):
                pass
        wait_for(lambda: len(process.net_connections()) <= held)
        return process.memory_info().rss, process.num_fds()

    before, after = round_of(30), round_of(50)
    assert after[1] <= before[1] + 2
    assert after[0] < before[0] + 8 * 10**6


def test_a_server_with_keys_ends_cleanly(tmp_path: Path) -> None:
    (tmp_path / "keys").write_text("# ours\nopen-sesame\n\nother\n")
    server = ServerProcess(*FLAGS, "--api-key-file", str(tmp_path / "keys"), cache=tmp_path)
    try:
        server.loaded()
        assert server.get("/v1/models")[0] == 401
        assert server.get("/v1/models", authorization="Bearer other")[0] == 200
        with openai.OpenAI(base_url=f"{server.url}/v1", api_key="wrong", max_retries=0) as client:
            with pytest.raises(openai.AuthenticationError, match="API key is wrong"):
                chat(client, "x")
            client = client.with_options(api_key="open-sesame", timeout=100)
            stream = iter(chat(client, "Hi", stream=True, max_tokens=380, extra_body={"ignore_eos": True}))
            next(stream)
            ended = threading.Thread(target=server.end)
            ended.start()
            chunks = [*stream]  # it has the time to end
            assert chunks[-1].choices[0].finish_reason == "length"
            ended.join()
    finally:
        assert server.end() == 143
    assert not [line for line in server.said if "Traceback" in line], server.said
