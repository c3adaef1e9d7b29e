"""The Python API: prompts of every kind, `Chat`, asyncio, and the examples of docs/api.md."""

from __future__ import annotations

import asyncio
import gc
import re
import threading
import time
from collections.abc import Iterator
from inspect import GEN_CLOSED, getgeneratorstate
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

import edgespec
from edgespec import Chat, Engine, GenerationOptions
from edgespec.errors import ContextError, EdgeSpecError, OptionError
from edgespec.progress import Progress
from edgespec.response import Response
from edgespec.text.conversation import Conversation
from tests.fake_engine import FakeEngine, FakeTokenizer, long_story
from tests.test_session import write_model

PAGE = Path(__file__).resolve().parent.parent / "docs" / "api.md"


@pytest.fixture(scope="module")
def model(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return write_model(tmp_path_factory.mktemp("api") / "m")


@pytest.fixture(scope="module")
def engine(model: Path) -> Iterator[Engine]:
    with edgespec.load(model, context=400) as engine:
        yield engine


def fake_chat(engine: FakeEngine | None = None, **options: Any) -> Chat:
    made: Any = engine or FakeEngine()
    return Chat(made, **options)


def said(chat: Chat) -> list[str]:
    return [message.content for message in chat.messages]


# Prompts


@pytest.mark.parametrize(
    "prompt",
    [
        [5, 6, 7],
        (5, 6, 7),
        np.array([5, 6, 7]),
        np.array([5, 6, 7], np.uint8),
        list(np.array([5, 6, 7])),
        torch.tensor([5, 6, 7]),
        list(torch.tensor([5, 6, 7])),
        range(5, 8),
    ],
)
def test_token_ids_of_every_kind(engine: Engine, prompt: Any) -> None:
    assert engine.encode(prompt) == [5, 6, 7]


@pytest.mark.parametrize(
    ("prompt", "part"),
    [
        ([5, "a"], "item 1 of the prompt is 'a'"),
        ([{"role": "user", "content": "x"}, 5], "item 0 of the prompt is"),
        ([5, {"role": "user", "content": "x"}], "item 1 of the prompt is"),
        (["a", "b"], "item 0"),
        ([5, 6.0], "item 1 of the prompt is '6.0'"),
        ([True], "item 0"),
        (np.array([[5, 6]]), "item 0 of the prompt is '\\[5, 6\\]'"),
        (np.array([0.5]), "item 0"),
        (b"abc", "the prompt is of type bytes; give a text"),
        ({"role": "user"}, "the prompt is of type dict; give a text"),
        (5, "the prompt is of type int; give a text"),
        (np.array(5), "the prompt is of type ndarray; give a text"),
        (None, "the prompt is of type NoneType; give a text"),
    ],
)
def test_nothing_else_is_a_prompt_and_nothing_is_dropped(engine: Engine, prompt: Any, part: str) -> None:
    with pytest.raises(OptionError, match=part):
        engine.encode(prompt)


def test_keywords_are_checked_before_anything_is_done(engine: Engine, model: Path) -> None:
    generate: Any = edgespec.generate
    for keywords, part in (
        ({"max_tokens": 5.5}, "max_tokens is 5.5; it must be a whole number"),
        ({"temperature": "hot"}, "temperature is 'hot'; it must be a number"),
        ({"seed": None}, "seed is None; it must be a whole number"),
        ({"nonsense": 3}, "unknown generation option nonsense"),
        ({"top_k": 5}, "top_k changes nothing at temperature 0"),
    ):
        with pytest.raises(OptionError, match=part):
            generate(engine, "hi", **keywords)
    with pytest.raises(OptionError, match="unknown engine option memroy; did you mean memory"):
        edgespec.load(model, memroy=8)  # type: ignore[call-arg]


def test_a_stop_is_met_whole(engine: Engine) -> None:
    free = edgespec.generate(engine, "once", max_tokens=60).text
    stop = free[10:13]
    assert edgespec.generate(engine, "once", max_tokens=60, stop=stop).text == free[: free.index(stop)]


def test_every_error_is_at_the_top() -> None:
    from edgespec import errors

    kinds = {k for k, v in vars(errors).items() if isinstance(v, type) and issubclass(v, EdgeSpecError)}
    assert kinds <= set(edgespec.__all__)
    assert all(getattr(edgespec, kind) is getattr(errors, kind) for kind in kinds)


def test_things_say_what_they_are(engine: Engine) -> None:
    with Chat(engine, context=100) as chat:
        for thing in (engine, chat.session, chat, engine.encode("a")):
            assert len(repr(thing)) < 200
        assert repr(chat).startswith("<Chat of 0 messages with <Engine of m in ")


def test_the_models_own_maximum_is_named(model: Path, engine: Engine) -> None:
    with pytest.raises(ContextError, match="the context is 400; set a larger context= or shorten"):
        edgespec.generate(engine, "a" * 500)
    with (
        edgespec.load(model, context=512) as largest,
        pytest.raises(ContextError, match="512, the model's own maximum; shorten"),
    ):
        edgespec.generate(largest, "a" * 600)


# Chat


def test_a_chat_is_what_one_would_write_by_hand(engine: Engine) -> None:
    with Chat(engine, options=GenerationOptions(max_tokens=12), context=300) as chat:
        first = chat.send("hello")
        second = chat.send("and then")
    messages = [{"role": "user", "content": "hello"}]
    stops = list(engine.tokenizer.template.stop)
    assert edgespec.generate(engine, messages, max_tokens=12, stop=stops).text == first.text
    assert first.tokens
    assert second.stats.reused_tokens >= first.stats.prompt_tokens, "nothing is computed twice"


def test_messages_and_undo() -> None:
    chat = fake_chat(system="be brief")
    assert chat.send("a").text == "reply 1"
    assert chat.send("b").text == "reply 2"
    assert said(chat) == ["be brief", "a", "reply 1", "b", "reply 2"]
    assert chat.undo() == "b"
    assert chat.send("c").text == "reply 2"
    assert [chat.undo(), chat.undo(), chat.undo()] == ["c", "a", None]
    chat.clear()
    assert said(chat) == ["be brief"]


def test_undo_keeps_the_very_tokens_of_earlier_replies(monkeypatch: pytest.MonkeyPatch) -> None:
    """The tokenizer would cut them otherwise, and all behind that would be computed again."""
    engine = FakeEngine()
    encode = engine.tokenizer.encode

    def merging(text: str, add_bos: bool = True, continues: bool = False) -> list[int]:
        return encode(text.replace("reply", "\ue000"), add_bos)

    monkeypatch.setattr(engine.tokenizer, "encode", merging)
    chat = fake_chat(engine)
    for message in ("a", "b", "c"):
        chat.send(message)
    second = engine.sessions[0].prompts[1]
    chat.undo()
    chat.undo()
    chat.send("b")
    assert engine.sessions[0].prompts[3] == second


def test_leaving_early_keeps_what_was_said() -> None:
    chat = fake_chat(FakeEngine(long_story))
    for response in chat.stream("hi"):
        if response.text == " ":
            break
    assert said(chat) == ["hi", "once "]
    assert chat.messages[-1].stopped
    unread = chat.stream("never read")
    assert said(chat) == ["hi", "once "], "a reply that nobody reads changes nothing"
    unread.close()


def test_errors_and_refusals_leave_the_conversation() -> None:
    chat = fake_chat()
    with pytest.raises(ContextError):
        chat.send("a" * 500)
    with pytest.raises(OptionError, match="unknown generation option"):
        chat.send("a", nonsense=1)  # type: ignore[call-arg]
    with pytest.raises(EdgeSpecError, match="a read failed"):
        chat.send("wrong")
    assert said(chat) == ["wrong", "re"]
    assert chat.messages[-1].stopped


def test_regenerating() -> None:
    chat = fake_chat(options=GenerationOptions(temperature=0.5, seed=3))
    with pytest.raises(OptionError, match="no reply to make again"):
        chat.regenerate()
    chat.send("hi")
    assert "".join(r.text for r in chat.regenerate()) == "reply 1"
    assert said(chat) == ["hi", "reply 1"]
    assert chat.options.seed == 4
    for _ in chat.regenerate():
        break
    assert said(chat) == ["hi", "reply 1"], "a part of a reply does not take the place of a whole one"
    chat.options = GenerationOptions()
    with pytest.raises(OptionError, match="the reply would be the same"):
        chat.regenerate()


def test_a_template_that_drops_the_system_prompt() -> None:
    class Dropping(FakeTokenizer):
        def render_chat(self, messages: Any) -> str:
            return super().render_chat([m for m in messages if m["role"] != "system"])

    engine = FakeEngine()
    engine.tokenizer = Dropping()
    with pytest.raises(OptionError, match="leaves the system prompt out"):
        fake_chat(engine, system="be brief")
    assert not engine.sessions, "it is refused before memory is taken"
    conversation = Conversation(engine.tokenizer)  # type: ignore[arg-type]
    conversation.set_system(None)
    assert conversation.messages == []


# asyncio


def test_the_loop_goes_on_while_a_reply_is_made() -> None:
    chat = fake_chat(FakeEngine(lambda text: "012"))

    async def main() -> tuple[str, int]:
        ticks = 0

        async def tick() -> None:
            nonlocal ticks
            while True:
                await asyncio.sleep(0.01)
                ticks += 1

        clock = asyncio.create_task(tick())
        text = "".join([response.text async for response in chat.astream("slow")])
        clock.cancel()
        return text, ticks

    text, ticks = asyncio.run(main())
    assert text == "012"
    assert ticks > 5
    assert said(chat) == ["slow", "012"]


def test_cancelling_the_task_ends_the_reply() -> None:
    chat = fake_chat(FakeEngine(long_story))

    async def main() -> None:
        with pytest.raises(asyncio.TimeoutError):
            await asyncio.wait_for(chat.asend("slow tale"), 0.5)
        kept = said(chat)
        assert kept[0] == "slow tale"
        assert long_story("").startswith(kept[1])
        assert chat.messages[-1].stopped
        assert (await chat.asend("hi")).text == long_story("")

    asyncio.run(main())
    for thread in threading.enumerate():
        if thread.name.startswith("edgespec reply"):
            thread.join(10)
            assert not thread.is_alive(), "a reply's thread ends with it"


def test_leaving_an_async_reply_and_errors_in_it() -> None:
    chat = fake_chat(FakeEngine(long_story))

    async def main() -> None:
        stream = chat.astream("hi")
        async for response in stream:
            if response.text == " ":
                break
        await stream.aclose()  # type: ignore[attr-defined]
        assert said(chat) == ["hi", "once "]
        with pytest.raises(EdgeSpecError, match="a read failed"):
            await chat.asend("wrong")

    asyncio.run(main())


def test_an_async_loop_that_is_left_has_ended_its_reply(engine: Engine) -> None:
    """At once, as a generator that nobody holds: what comes next finds the session and its memory free."""

    async def main() -> None:
        for _ in range(3):
            async for response in edgespec.astream_generate(engine, "once upon", max_tokens=30):
                assert response.token is not None
                break
            assert len((await edgespec.agenerate(engine, "once upon", max_tokens=3)).tokens) == 3
        with Chat(engine, options=GenerationOptions(max_tokens=12, ignore_eos=True)) as chat:
            for message in "abc":
                async for _ in chat.astream(message):
                    break
                assert chat.messages[-1].stopped
                assert chat.messages[-2].content == message
            assert len((await chat.asend("d")).tokens) == 12
            assert len(chat.messages) == 8

    asyncio.run(main())
    with engine.new_session() as session:
        assert session.context == 400


def test_a_message_ends_a_reply_that_was_left_and_is_held(engine: Engine) -> None:
    options = GenerationOptions(max_tokens=12, ignore_eos=True)

    async def main(chat: Chat) -> None:
        held = chat.astream("c")
        async for _ in held:
            break
        assert len((await chat.asend("d")).tokens) == 12
        assert [response async for response in held] == []

    with Chat(engine, options=options) as chat:
        held = chat.stream("a")
        next(held)
        assert len(chat.send("b").tokens) == 12
        assert list(held) == []
        asyncio.run(main(chat))
        asked = [message for message in chat.messages if message.role == "user"]
        assert "".join(message.content for message in asked) == "abcd"
        assert [message.stopped for message in chat.messages[1::2]] == [True, False, True, False]
        held = chat.stream("e")
        next(held)
        assert chat.undo() == "e"
        assert list(held) == []
        assert len(chat.messages) == 8


def test_a_reply_at_work_is_not_ended_by_another(engine: Engine) -> None:
    """Asked for by its own callback, between passes or within one."""
    refused: list[str] = []

    def ask(progress: Progress) -> None:
        with pytest.raises(OptionError, match="already replying"):
            chat.send("b")
        refused.append(progress.stage)

    options = GenerationOptions(max_tokens=4, ignore_eos=True)
    with Chat(engine, options=options) as chat:
        assert len(chat.send("a", progress=ask).tokens) == 4
        assert {"prefill", "layers"} == set(refused)
        assert len(chat.messages) == 2


def test_a_loop_that_ends_before_its_reply_ends_it() -> None:
    """Its task is dropped in the midst of a step; whoever collects it then ends the reply."""
    chat, begun = fake_chat(FakeEngine(long_story)), threading.Event()
    stream = chat.astream("slow tale", progress=lambda progress: begun.set())

    async def begin(stream: Any) -> asyncio.Task[Response]:
        task = asyncio.ensure_future(anext(stream))
        while not begun.is_set():
            await asyncio.sleep(0.01)
        return task

    loop = asyncio.new_event_loop()
    task = loop.run_until_complete(begin(stream))
    loop.close()
    reply = chat._latest()
    assert reply is not None
    del task, stream, loop
    last = time.monotonic() + 30
    while getgeneratorstate(reply) != GEN_CLOSED:  # once its step has ended
        assert time.monotonic() < last
        gc.collect()
        time.sleep(0.01)
    assert chat.send("hi").text == long_story("")


def test_async_replies_are_the_same(engine: Engine) -> None:
    plain = edgespec.generate(engine, "once upon", max_tokens=10)
    again = asyncio.run(edgespec.agenerate(engine, "once upon", max_tokens=10))
    assert again.tokens == plain.tokens
    assert again.finish_reason == "length"


# The documentation


@pytest.mark.parametrize(
    "code", re.findall(r"```python\n(.*?)```", PAGE.read_text(encoding="utf-8"), re.DOTALL)
)
def test_the_examples_run(code: str, model: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    code = (
        code.replace('"model-dir"', repr(str(model)))
        .replace('memory="8GB"', "context=500")
        .replace('"6GB"', '"4GB"')
    )
    exec(compile(code, str(PAGE), "exec"), {"__name__": "example"})


def test_there_are_examples() -> None:
    assert len(re.findall("```python", PAGE.read_text(encoding="utf-8"))) == 9
