"""Wrong values and types in the Python API: typed errors that say what to do, before anything is done."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import edgespec
from edgespec import Chat, Engine, EngineOptions, GenerationOptions
from edgespec.drafters.substitute import torch_target
from edgespec.errors import BudgetError, ModelError, OptionError
from tests.test_session import write_model


@pytest.fixture(scope="module")
def model(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return write_model(tmp_path_factory.mktemp("misuse") / "m")


@pytest.fixture(scope="module")
def engine(model: Path) -> Iterator[Engine]:
    with edgespec.load(model, memory="2GB", context=400) as engine:
        yield engine


@pytest.mark.parametrize(
    ("context", "part"),
    [
        (-60, "context is -60; it must be at least 1"),
        (0, "context is 0; it must be at least 1"),
        (True, "context is True; it must be a whole number"),
        (1.5, "context is 1.5; it must be a whole number"),
        ("many", "context is 'many'; it must be a whole number"),
        ([5], r"context is \[5\]; it must be a whole number"),
    ],
)
def test_a_session_has_a_whole_number_of_positions(engine: Engine, context: Any, part: str) -> None:
    for open_one in (engine.new_session, lambda context: Chat(engine, context=context)):
        with pytest.raises(OptionError, match=f"^{part}$") as refused:
            open_one(context)
        assert refused.value.option == "context"
    with engine.new_session("5") as session:  # type: ignore[arg-type]  # as in load(context="400")
        assert session.context == 5
        with pytest.raises(BudgetError, match="sessions hold 5"):
            engine.new_session(396)
    with engine.new_session() as session:
        assert session.context == 400, "the ledger is as it was"


CALLS: dict[str, Callable[[Any, Any], Any]] = {
    "generate": lambda engine, rest: edgespec.generate(engine, "hi", **rest),
    "stream_generate": lambda engine, rest: edgespec.stream_generate(engine, "hi", **rest),
    "agenerate": lambda engine, rest: asyncio.run(edgespec.agenerate(engine, "hi", **rest)),
    "Session.generate": lambda engine, rest: engine.new_session(50).generate([5], **rest),
    "Chat": lambda engine, rest: Chat(engine, context=50, options=rest["options"]),
}


@pytest.mark.parametrize("call", CALLS)
@pytest.mark.parametrize(
    ("options", "part"),
    [
        (
            {"max_tokens": 3},
            r"options is of type dict; give GenerationOptions\(\), or its fields as keywords",
        ),
        (EngineOptions(), "options is of type EngineOptions; give GenerationOptions"),
        ("greedy", "options is of type str; give GenerationOptions"),
    ],
)
def test_options_are_of_their_class(engine: Engine, call: str, options: Any, part: str) -> None:
    with pytest.raises(OptionError, match=f"^{part}"):
        CALLS[call](engine, {"options": options})


def test_an_engines_options_are_of_their_class(model: Path) -> None:
    load: Any = Engine.load
    for options in ({"context": 5}, GenerationOptions()):
        with pytest.raises(
            OptionError, match=r"^options is of type .*; give EngineOptions\(\), or its fields as key"
        ):
            load(model, options)


@pytest.mark.parametrize("call", ["generate", "stream_generate", "agenerate", "Session.generate"])
def test_progress_is_a_function(engine: Engine, call: str) -> None:
    with pytest.raises(OptionError, match=r"^progress is of type int; give a function of one argument"):
        CALLS[call](engine, {"progress": 5})


def test_progress_is_a_function_for_loading_and_chatting(engine: Engine, model: Path) -> None:
    load: Any = edgespec.load
    with pytest.raises(OptionError, match=r"^progress is of type str; give a function"):
        load(model, progress="yes")
    with (
        Chat(engine, context=50) as chat,
        pytest.raises(OptionError, match=r"^progress is of type list; give"),
    ):
        chat.send("hi", progress=[])  # type: ignore[arg-type]


@pytest.mark.parametrize("call", ["generate", "stream_generate", "agenerate", "Chat"])
def test_an_engine_is_what_load_returns(call: str) -> None:
    for wrong, named in (("model-dir", "str"), (None, "NoneType"), (5, "int")):
        with pytest.raises(
            OptionError, match=rf"^engine is of type {named}; give what edgespec.load\(\) returns"
        ):
            CALLS[call](wrong, {"options": None})


@pytest.mark.parametrize(
    ("prompt", "part"),
    [
        ("hi", r"a session takes token ids, and the prompt is a text; engine.encode\(\) makes them"),
        (b"hi", "the prompt is of type bytes; give a text"),
        (None, "the prompt is of type NoneType"),
        ([5, "a"], "item 1 of the prompt is 'a'"),
        ([5, 6.5], "item 1 of the prompt is '6.5'"),
        ([True], "item 0 of the prompt is 'True'"),
    ],
)
def test_a_session_takes_token_ids(engine: Engine, prompt: Any, part: str) -> None:
    with engine.new_session(50) as session:
        with pytest.raises(OptionError, match=f"^{part}"):
            session.generate(prompt)
        assert len(list(session.generate(np.array([5, 6]), GenerationOptions(max_tokens=3)))) == 3


@pytest.mark.parametrize(
    ("message", "part"),
    [
        (5, "the message is of type int; give a text"),
        (None, "the message is of type NoneType; give a text"),
        ("", "the message is empty"),
        ([{"role": "user", "content": "hi"}], "the message is of type list; give a text"),
    ],
)
def test_a_chat_is_told_texts(engine: Engine, message: Any, part: str) -> None:
    with Chat(engine, context=100) as chat:
        with pytest.raises(OptionError, match=f"^{part}"):
            chat.send(message)
        with pytest.raises(OptionError, match=f"^{part}"):
            asyncio.run(chat.asend(message))
        assert chat.messages == ()
        chat.options = {"max_tokens": 3}  # type: ignore[assignment]
        with pytest.raises(OptionError, match=r"^options is of type dict"):
            chat.send("hi")
    if message:
        with pytest.raises(OptionError, match=r"^the system prompt is of type .*; give a text"):
            Chat(engine, system=message)
    with engine.new_session() as session:
        assert session.context == 400


@pytest.mark.parametrize("name", ["x/" * 5000, "x" * 5000, "~nobody-of-that-name/model", "a\0b", ""])
def test_a_name_that_no_disk_knows_is_a_typed_error(name: str) -> None:
    with pytest.raises(ModelError) as refused:
        edgespec.load(name)
    assert "check the spelling" in str(refused.value)
    assert len(str(refused.value)) < 600


def test_torchs_drafters_refuse_another_runtimes_target() -> None:
    with pytest.raises(
        OptionError, match=r"^the cascade drafts with .* that torch runs, and this one is a obj"
    ):
        torch_target(object(), "the cascade")  # type: ignore[arg-type]
