"""A chat that fills its context goes on without its oldest turns, and says so."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

import edgespec
from edgespec.config import GenerationOptions
from edgespec.errors import ContextError
from edgespec.text.conversation import Conversation, Message
from tests.fake_engine import FakeEngine, FakeTokenizer
from tests.test_chat import Chat, chat, engine, prompts  # noqa: F401
from tests.test_session import write_model


def talk(*sizes: int, system: str | None = None) -> Conversation:
    """Turns of so many characters of question and reply together, and a question."""
    found = Conversation(FakeTokenizer())  # type: ignore[arg-type]
    found.set_system(system)
    for number, size in enumerate(sizes):
        found.ask(f"{number}{'q' * (size // 2)}")
        found.messages.append(Message("assistant", "r" * (size // 2)))
    found.ask("last")
    return found


def told(conversation: Conversation) -> list[str]:
    """The questions that the prompt has."""
    text = FakeTokenizer().decode(conversation.prompt())
    return re.findall(r"<user>(\d|last)", text)


def test_the_oldest_turns_are_left_out_until_the_goal() -> None:
    found = talk(100, 100, 100, 100)
    assert found.forget(2000, 100) == 0
    assert told(found) == ["0", "1", "2", "3", "last"]
    assert found.forget(500, 300) == 2
    assert told(found) == ["2", "3", "last"]
    assert len(found.prompt()) <= 300
    assert len(found.messages) == 9, "they are kept, to be shown and saved"
    assert found.forget(500, 300) == 0, "for some turns to come"
    assert found.forget(150, 10) == 1, "as few as will do, where the goal cannot be reached"
    assert found.forget(130, 10) == 1
    assert told(found) == ["last"]
    assert found.forget(5, 3) == 0, "what is asked now is never left out"


def test_nothing_is_safe_behind_a_private_message_that_is_forgotten() -> None:
    """What followed from it is still there."""
    found = talk(100, 100, 100)
    found.messages[2] = Message("user", "1 it is a secret", private=True)
    prompt = found.prompt()
    said = FakeTokenizer().decode(prompt[: found.safe(prompt)])
    assert "<user>0" in said
    assert "secret" not in said
    assert found.forget(len(prompt) - 1, len(prompt) - 1) == 1
    prompt = found.prompt()
    assert "<user>1" in FakeTokenizer().decode(prompt)
    assert "secret" not in FakeTokenizer().decode(prompt[: found.safe(prompt)])
    assert found.forget(len(prompt) - 1, len(prompt) - 1) == 1
    prompt = found.prompt()
    assert told(found) == ["2", "last"]
    assert found.private
    assert found.safe(prompt) == 0


def test_the_system_prompt_stays() -> None:
    found = talk(100, 100, system="be brief" * 20)
    assert found.forget(400, 120) == 1, "the goal cannot be reached: as few as will do"
    assert found.kept[0].content == "be brief" * 20
    assert told(found) == ["1", "last"]
    found.set_system(None)
    assert told(found) == ["1", "last"]
    found.set_system("other")
    assert told(found) == ["1", "last"]


def test_what_is_taken_back_or_cleared_leaves_nothing_forgotten_by_mistake() -> None:
    found = talk(100, 100, 100)
    assert found.forget(300, 200) == 2
    assert found.take_back() == "last"
    assert told(found) == ["2"]
    found.take_back()
    found.ask("last")
    assert told(found) == ["0", "1", "last"], "nothing but forgotten turns was left"
    found.forget(200, 150)
    found.clear()
    found.ask("last")
    assert told(found) == ["last"]


def test_a_chat_says_what_it_forgets_and_goes_on(chat: Chat, engine: FakeEngine, tmp_path: Path) -> None:  # noqa: F811
    engine.plan.context = 200
    lines = [f"question {number}" for number in range(8)]
    code, out, err = chat("\n".join([*lines, "/save talk.json", "/load talk.json", "again", ""]))
    assert code == 0
    assert out.count("reply") == 9, "every message has its reply"
    said = re.findall(
        r"\[little is left of the context of 200 positions: the oldest (?:(\d) turns are|turn is) forg", err
    )
    assert len(said) >= 2
    sent = prompts(engine)
    assert all(len(prompt) <= 200 for prompt in sent)
    assert all(prompt.startswith("<user>") for prompt in sent)
    first = [re.findall(r"question (\d)", prompt)[0] for prompt in sent[:8]]
    assert first == sorted(first)
    assert first[-1] > "0"
    assert len(edgespec.apps.saved.load(tmp_path / "talk.json")) == 16


def test_programs_are_told_unless_they_ask_for_it(tmp_path: Path) -> None:
    """And the reply is that of a chat which has only what is kept."""
    options = GenerationOptions(max_tokens=12, ignore_eos=True)
    with edgespec.load(write_model(tmp_path / "m"), memory="2GB", context=120, drafter="none") as loaded:
        with edgespec.Chat(loaded, options=options) as strict, pytest.raises(ContextError):
            [strict.send("hello there, how are you") for _ in range(20)]
        with edgespec.Chat(loaded, options=options, system="be brief", forgets=True) as talking:
            forgot = []
            while not talking.forgot or len(forgot) < 12:
                reply = talking.send(f"hello there, {len(forgot)}")
                forgot.append(talking.forgot)
            assert sum(forgot) == talking.conversation.forgotten // 2
            assert len([turns for turns in forgot if turns]) >= 2, "room for some turns was made"
            kept = talking.conversation.kept
            assert (kept[0].content, kept[-1].content) == ("be brief", reply.text)
            assert len(talking.messages) == 1 + 2 * len(forgot)
        with edgespec.Chat(loaded, options=options) as fresh:
            fresh.conversation.messages = kept[:-2]
            assert fresh.send(kept[-2].content).text == reply.text
