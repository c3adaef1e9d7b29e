"""The chat: taking back, going on later, what is shown of drafts and memory, and typing ahead."""

# Fixtures of other files are imported, and named by tests.
# ruff: noqa: F401, F811
from __future__ import annotations

import itertools
import os
import re
import stat
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pytest

from edgespec.apps import main, saved
from edgespec.apps.stats import stats_line, stats_table
from edgespec.apps.terminal import Terminal as Output
from edgespec.errors import StorageError
from edgespec.response import Stats
from edgespec.text.conversation import Message
from tests.fake_engine import FakeEngine, FakeTokenizer, long_story
from tests.test_chat import Chat, chat, engine, prompts
from tests.test_chat_terminal import Terminal, terminal
from tests.test_progress import Screen


@pytest.fixture(autouse=True)
def data(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> Path:
    monkeypatch.setenv("XDG_DATA_HOME", str(tmp_path / "data"))
    monkeypatch.setattr(sys, "platform", "linux")
    return tmp_path / "data" / "edgespec" / "last-chat.json"


def test_undo(chat: Chat, engine: FakeEngine) -> None:
    code, out, err = chat("a\nb\n/undo\nc\n/undo\n/undo\n/undo\n")
    assert code == 1, "nothing is left to take back"
    assert out == "reply 1\nreply 2\nreply 2\n"
    assert prompts(engine)[2] == "<user>a<assistant>reply 1<user>c<assistant>"
    assert [line for line in err.splitlines() if line.startswith("taken back")] == [
        "taken back: b", "taken back: c", "taken back: a",
    ]  # fmt: skip
    assert "error: there is no message to take back" in err


# System prompts


def test_a_system_prompt_from_a_file(chat: Chat, engine: FakeEngine, tmp_path: Path) -> None:
    (tmp_path / "system.txt").write_text("be brief\n", encoding="utf-8")
    chat("hi\n", "--system-file", str(tmp_path / "system.txt"))
    assert prompts(engine) == ["<system>be brief<user>hi<assistant>"]
    (tmp_path / "system.txt").write_bytes(b"\xff")
    for name, part in (("system.txt", "is not UTF-8"), ("none.txt", "No such file")):
        code, _, err = chat("hi\n", "--system-file", str(tmp_path / name))
        assert code in (1, 2)
        assert part in err


def test_a_system_prompt_too_long_is_named(chat: Chat, engine: FakeEngine, tmp_path: Path) -> None:
    (tmp_path / "long.txt").write_text("a" * 400)
    code, out, err = chat("hi\n", "--system-file", "long.txt")
    assert (code, out) == (1, "")
    assert "the system prompt in long.txt has 400 tokens, but the context is 400; shorten it" in err
    assert "give a larger --context" in err
    assert "the system prompt has 401 tokens" in chat("hi\n", "--system", "a" * 401)[2]
    assert prompts(engine) == []


def test_a_system_prompt_that_the_template_drops_is_said(chat: Chat, engine: FakeEngine) -> None:
    class Dropping(FakeTokenizer):
        def render_chat(self, messages: Sequence[dict[str, str]]) -> str:
            return super().render_chat([m for m in messages if m["role"] != "system"])

    engine.tokenizer = Dropping()
    code, out, err = chat("/system You are a pirate.\n/system\nhi\n")
    assert (code, out) == (1, "reply 1\n")
    assert "leaves the system prompt out" in err
    assert "there is no system prompt" in err
    code, out, err = chat("hi\n", "--system", "be brief")
    assert (code, out) == (2, "")
    assert "leaves the system prompt out" in err


# Going on later


def test_a_conversation_is_continued(chat: Chat, engine: FakeEngine, data: Path) -> None:
    saved.save_last([Message("system", "be brief"), Message("user", "hi"), Message("assistant", "ho")], "m")
    assert stat.S_IMODE(data.stat().st_mode) == 0o600
    chat("and?\n", "--continue")
    assert prompts(engine) == ["<system>be brief<user>hi<assistant>ho<user>and?<assistant>"]
    assert [m.content for m in saved.load(data)][-2:] == ["and?", "reply 2"]
    code, out, err = chat("", "-c", "-p", "more")
    assert (code, out) == (0, "reply 3\n")
    assert err == 'going on with the last conversation of 5 messages, which began "hi"\n'
    assert prompts(engine)[-1].endswith("<user>and?<assistant>reply 2<user>more<assistant>")
    assert [p.name for p in data.parent.iterdir()] == [data.name], "no temporary file is left"


def test_pipes_and_no_history_leave_the_last_conversation(
    chat: Chat,
    engine: FakeEngine,
    data: Path,
) -> None:
    chat("hi\n")
    assert not data.exists(), "a script's chat is not the one to go on with"
    saved.save_last([Message("user", "hi"), Message("assistant", "ho")], "m")
    before = data.read_bytes()
    chat("and?\n", "-c", "--no-history")
    assert prompts(engine)[-1] == "<user>hi<assistant>ho<user>and?<assistant>"
    assert data.read_bytes() == before


def test_a_conversation_that_cannot_be_kept_is_said_once(chat: Chat, data: Path) -> None:
    saved.save_last([Message("user", "hi"), Message("assistant", "ho")], "m")
    earlier = data.read_bytes()
    real = saved.save

    def full(*_: Any) -> None:
        raise StorageError("cannot write it: No space left on device")

    saved.save = full
    try:
        code, out, err = chat("a\nb\n", "-c")
    finally:
        saved.save = real
    assert (code, out) == (0, "reply 2\nreply 3\n")
    assert err.count("--continue will not find this conversation") == 1
    assert data.read_bytes() == earlier


def test_a_failed_save_leaves_the_file_and_nothing_else(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    path = tmp_path / "talk.json"
    saved.save(path, [Message("user", "one")], "m")

    def fails(*_: object) -> None:
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(os, "replace", fails)
    with pytest.raises(StorageError, match="No space left"):
        saved.save(path, [Message("user", "two")], "m")
    assert [p.name for p in tmp_path.iterdir() if p.is_file()] == ["talk.json"]
    assert saved.load(path)[0].content == "one"
    monkeypatch.setattr(saved, "MAX_FILE_BYTES", 100)
    with pytest.raises(StorageError, match="at most 100 are saved"):
        saved.save(path, [Message("user", "x" * 100)], "m")


def test_messages_are_counted_in_words(chat: Chat) -> None:
    for lines, said in (("/system be brief\n", "1 message"), ("hi\n", "2 messages")):
        name = f"{len(lines)}.json"
        assert f"saved {said} in {name}\n" in chat(f"{lines}/save {name}\n")[2]
        assert f"loaded {said} from {name}\n" in chat(f"/load {name}\n")[2]


def test_another_chat_is_not_overwritten(chat: Chat, tmp_path: Path) -> None:
    chat("hi\n/save talk.json\n")
    code, _, err = chat("other\n/save talk.json\n/load talk.json\n/save talk.json\n")
    assert code == 1
    assert "error: talk.json exists and holds another chat" in err
    assert [m.content for m in saved.load(tmp_path / "talk.json")] == ["hi", "reply 1"]


# What is shown


def test_memory_planned_beside_measured(chat: Chat) -> None:
    _, _, err = chat("hi\n/stats\n", "-v")
    assert "memory: planned 7 GB + 100 MB of headroom · measured peak 7.9 GB of 8 GB" in err
    assert re.search(r"peak memory +7.9 GB of 8 GB, planned 7 GB \+ 100 MB of headroom\n", err)
    assert "planned" not in chat("hi\n")[2]


def test_a_pause_in_drafting_is_said_once(
    chat: Chat,
    engine: FakeEngine,
) -> None:
    engine.undrafted = "drafts would give 2 tokens a second, plain decoding 3"
    _, _, err = chat("a\nb\n/stats\n", "--stats")
    assert err.count("[drafting has paused: drafts would give 2 tokens a second, plain decoding 3]") == 1
    assert "; paused: drafts would give" in err


@pytest.mark.parametrize("width", [20, 30, 40, 60, 80, 100, 200])
def test_the_line_of_figures_fits(width: int) -> None:
    stats = Stats(
        reply_tokens=30, cycles=10, drafted=500, accepted=20, decode_seconds=3.0, decode_bytes_read=10**10,
        bytes_read=10**10, peak_memory=432_100_000, dial=22 * 10**9,
    )  # fmt: skip
    line, whole = stats_line(stats, width), stats_line(stats)
    assert len(line) < max(width, 12)
    assert line.startswith("9.67 tok/s")
    assert all(part in whole for part in line.split(" · "))
    assert (line == whole) == (width > len(whole))
    assert ("peak 432 MB of 22 GB" in line) == (width >= 40)


def test_a_reply_by_a_drafter_alone_has_no_speed() -> None:
    stats = Stats(
        reply_tokens=26, unverified_tokens=26, cycles=1, decode_seconds=1e-5, peak_memory=82_000_000
    )
    assert stats_line(stats) == "peak 82 MB · 26 tokens not verified"
    assert "tokens/s" not in stats_table(stats, None)
    stats.unverified_tokens = 25
    assert "tok/s" in stats_line(stats)
    assert "tokens/s" in stats_table(stats, None)


@pytest.mark.parametrize("width", [20, 40, 100])
def test_notes_break_between_words(monkeypatch: pytest.MonkeyPatch, width: int) -> None:
    screen = Screen()
    monkeypatch.setattr(sys, "stderr", screen)
    monkeypatch.setattr(Output, "width", width)
    monkeypatch.setenv("TERM", "dumb")
    words = "[drafting has paused: drafts would give 2 tokens a second, plain decoding 3 or well-nigh 4]"
    Output().note(f"{words}\n\n  short, as it is\n{'x' * 3 * width}")
    folded, _, rest = screen.getvalue().partition("\n\n")
    lines = folded.split("\n")
    assert max(map(len, lines)) < width
    assert len(lines) > 1 or width > len(words)
    assert [word for line in lines for word in line.split(" ")] == words.split(" "), "none is cut or lost"
    for line, following in itertools.pairwise(lines):
        assert len(f"{line} {following.split()[0]}") >= width, "no line ends before it has to"
    assert rest.startswith("  short, as it is\n")
    assert max(map(len, rest.split("\n"))) < width, "a word longer than a line is cut"


def colours(monkeypatch: pytest.MonkeyPatch, **environment: str) -> str:
    monkeypatch.setenv("TERM", "xterm")
    monkeypatch.delenv("NO_COLOR", raising=False)
    for name, value in environment.items():
        monkeypatch.setenv(name, value)
    screen = Screen()
    monkeypatch.setattr(sys, "stdout", screen)
    monkeypatch.setattr(sys, "stderr", Screen())
    terminal = Output()
    shown = terminal.show_drafts()
    terminal.reply("one ", drafted=False)
    terminal.reply("two", drafted=True)
    assert shown == ("\x1b[36m" in screen.getvalue())
    return screen.getvalue()


def test_drafts_are_coloured_where_there_are_colours(monkeypatch: pytest.MonkeyPatch) -> None:
    assert colours(monkeypatch) == "one \x1b[36mtwo\x1b[0m"
    assert colours(monkeypatch, NO_COLOR="1") == "one two"
    assert colours(monkeypatch, TERM="dumb") == "one two"


def test_no_colours_for_drafts_are_said(chat: Chat) -> None:
    _, out, err = chat("hi\n", "--show-drafts")
    assert out == "reply 1\n"
    assert "drafts are not shown" in err


# On a terminal


def test_typing_ahead_waits_for_the_prompt(terminal: Terminal) -> None:
    terminal.wait_for(">>>")
    terminal.send("calm tale\r")
    terminal.wait_for("once")
    terminal.send("first\rsecond\r")
    reply = terminal.wait_for("tok/s")
    assert "first" not in reply
    assert "second" not in reply
    assert "first" in terminal.wait_for("tok/s")
    assert "second" in terminal.wait_for("tok/s")
    terminal.wait_for(">>>")
    terminal.send("/show chat\r")
    shown = terminal.wait_for("user: second") + "user: second"
    assert re.findall(r"user: (\w+)", shown) == ["calm", "first", "second"]
    terminal.wait_for(">>>")
    terminal.send("\x04")
    assert terminal.process.wait(30) == 0


def test_what_was_said_on_a_terminal_can_be_gone_on_with(
    terminal: Terminal,
    engine: FakeEngine,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    terminal.wait_for(">>>")
    terminal.send("hello\r")
    terminal.wait_for("tok/s")
    terminal.wait_for(">>>")
    terminal.send("\x04")
    assert terminal.process.wait(30) == 0
    monkeypatch.setenv("XDG_DATA_HOME", str(tmp_path))
    assert main.run(["chat", "m", "-c", "-p", "and?"]) == 0
    assert prompts(engine) == [f"<user>hello<assistant>{long_story('')}<user>and?<assistant>"]
