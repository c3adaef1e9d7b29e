"""The chat: conversation, commands, stopping a reply, saved conversations."""

from __future__ import annotations

import io
import json
import os
import re
import select
import signal
import subprocess
import sys
import threading
from collections.abc import Callable, Iterator
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from edgespec.apps import common, main, yielding
from edgespec.apps.saved import MAX_FILE_BYTES, load
from edgespec.devices.pressure import Pressure
from edgespec.errors import EdgeSpecError, StorageError
from edgespec.response import Response
from edgespec.tuning.predict import Interval
from tests.fake_engine import FakeEngine, FakeSession, FakeTokenizer, long_story

ROOT = Path(__file__).resolve().parent.parent
Chat = Callable[..., "tuple[int, str, str]"]


@pytest.fixture
def engine(monkeypatch: pytest.MonkeyPatch) -> FakeEngine:
    engine = FakeEngine()
    monkeypatch.setattr(common, "load_engine", engine.load)
    monkeypatch.setattr(sys, "stdin", piped(""))
    return engine


def piped(text: str | bytes) -> io.TextIOWrapper:
    data = text.encode() if isinstance(text, str) else text
    return io.TextIOWrapper(io.BytesIO(data), encoding="utf-8", errors="surrogateescape")


@pytest.fixture
def chat(
    engine: FakeEngine, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str], tmp_path: Path
) -> Chat:
    """Chat through pipes: lines in; exit code, standard output and standard error back."""
    monkeypatch.chdir(tmp_path)

    def run(lines: str | bytes, *flags: str) -> tuple[int, str, str]:
        monkeypatch.setattr(sys, "stdin", piped(lines))
        code = main.run(["chat", "m", "--no-stats", *flags])
        captured = capsys.readouterr()
        return code, captured.out, captured.err

    return run


def prompts(engine: FakeEngine) -> list[str]:
    """What the model was asked, as text."""
    return [engine.tokenizer.decode(p) for session in engine.sessions for p in session.prompts]


def interrupt_after(seconds: float) -> None:
    threading.Timer(seconds, os.kill, (os.getpid(), signal.SIGINT)).start()


# Conversation


def test_each_message_is_answered_with_the_conversation_so_far(chat: Chat, engine: FakeEngine) -> None:
    code, out, err = chat("hello\n\nand then?\n")
    assert code == 0
    assert out == "reply 1\nreply 2\n"
    assert err == ""
    assert prompts(engine)[1] == "<user>hello<assistant>reply 1<user>and then?<assistant>"


def test_the_session_can_reuse_all_it_has_computed(chat: Chat, engine: FakeEngine) -> None:
    chat("a\nb\nc\n")
    first, second, third = engine.sessions[0].prompts
    assert second[: len(first)] == first
    assert third[: len(second)] == second
    assert second[len(first) :][:7] == [*b"reply 1"]


def test_a_reply_keeps_its_own_tokens(
    chat: Chat, engine: FakeEngine, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The tokenizer may cut a reply's text into other tokens than the model chose."""
    encode = engine.tokenizer.encode

    def merging(text: str, add_bos: bool = True, continues: bool = False) -> list[int]:
        return encode(text.replace("reply", "\ue000"), add_bos)

    monkeypatch.setattr(engine.tokenizer, "encode", merging)
    chat("a\nb\n")
    first, second = engine.sessions[0].prompts
    assert second[: len(first) + 7] == [*first, *b"reply 1"]


def test_long_messages_stand_between_triple_quotes(chat: Chat, engine: FakeEngine) -> None:
    chat('"""one\n\ntwo"""\n"""\nthree\n"""\n"""unclosed\n')
    assert [p.rsplit("<user>")[-1] for p in prompts(engine)] == [
        "one\n\ntwo<assistant>",
        "three<assistant>",
        "unclosed<assistant>",
    ]


def test_one_message_from_a_flag(chat: Chat, engine: FakeEngine) -> None:
    code, out, _ = chat("", "-p", "hi", "--system", "be brief")
    assert (code, out) == (0, "reply 1\n")
    assert prompts(engine) == ["<system>be brief<user>hi<assistant>"]


def test_what_is_piped_in_stands_below_the_message(chat: Chat, engine: FakeEngine) -> None:
    assert chat("a report\n/help\n", "-p", "sum up")[:2] == (0, "reply 1\n")
    assert prompts(engine) == ["<user>sum up\n\na report\n/help<assistant>"]
    for flags, stdin, part in (
        (["-p", ""], "", "-p is empty"),
        (["-p", "x"], b"\xff", "standard input is not UTF-8"),
        (["-p", "x"], b"a" * (16 * 2**20 + 1), "standard input is longer than 16777216 bytes"),
    ):
        code, _, err = chat(stdin, *flags)
        assert code == 2
        assert part in err
    assert len(prompts(engine)) == 1


@pytest.mark.skipif(os.name == "nt", reason="select() there is for sockets only")
def test_waiting_for_a_pipe_is_said_and_loses_nothing() -> None:
    """A pipe that is open and silent, as a service's or a parent's, must not look like a hang."""
    process = subprocess.Popen(
        [sys.executable, "-m", "tests.fake_engine", "chat", "m", "-p", "hi", "--no-stats"],
        cwd=ROOT, stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=subprocess.PIPE,
    )  # fmt: skip
    assert process.stderr is not None
    if not select.select([process.stderr], [], [], 30)[0]:
        process.kill()
        pytest.fail("it waits for standard input in silence")
    hint = b"reading standard input to its end (Ctrl-D, or < /dev/null for none)\n"
    assert process.stderr.readline() == hint
    out, err = process.communicate(b"written at last", timeout=60)
    assert (process.returncode, out, err) == (0, b"once upon a time " * 4 + b"\n", b"")


def test_a_pipe_that_ends_at_once_is_not_mentioned(chat: Chat, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("edgespec.apps.chat.PATIENCE", 600.0)
    assert chat("a report", "-p", "hi") == (0, "reply 1\n", "")
    waiting = [t for t in threading.enumerate() if isinstance(t, threading.Timer) and t.interval == 600.0]
    assert all(t.finished.is_set() for t in waiting), "it would be said in the middle of the reply"


def test_stats_line(engine: FakeEngine, capsys: pytest.CaptureFixture[str]) -> None:
    assert main.run(["chat", "m", "-p", "hi"]) == 0
    assert (
        "0.25 tok/s · 1 tok/cycle · 8 GB/tok · read 2 GB/s · peak 7.9 GB of 8 GB" in capsys.readouterr().err
    )


def test_without_a_model_the_demo_model_is_loaded(
    engine: FakeEngine, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    import edgespec

    monkeypatch.setattr(edgespec, "__file__", str(tmp_path / "__init__.py"))
    assert main.run(["chat", "-p", "hi"]) == 2, "a missing demo model is an error"
    (tmp_path / "demo_model").mkdir()
    assert main.run(["chat", "-p", "hi"]) == 0
    assert engine.loaded_with is not None
    assert engine.loaded_with[0] == str(tmp_path / "demo_model")
    options = engine.loaded_with[1]
    assert options.resident_layers == 5  # the others stream, to show what this is about
    assert options.adapters == str(tmp_path / "demo_model" / "cascade")
    assert main.run(["chat", "-p", "hi", "--memory", "8GB", "--drafter", "ngram"]) == 0
    options = engine.loaded_with[1]
    assert options.resident_layers is None
    assert options.adapters is None


def test_a_model_without_a_chat_template(chat: Chat, engine: FakeEngine) -> None:
    engine.tokenizer = FakeTokenizer(has_chat_template=False)
    _, out, err = chat("once\n", "--stop", "END")
    assert "no chat template" in err
    assert out == "reply 1\n"
    assert engine.sessions[0].options[0].stop == ("END", "\nUser:"), "or it would go on for the user"
    assert engine.sessions[0].prompts[0][:2] == [1, 1], "BOS, which only a model's own template writes itself"


# Stopping


def test_ctrl_c_stops_the_reply_and_keeps_the_chat(chat: Chat, engine: FakeEngine) -> None:
    engine.script = long_story
    interrupt_after(1.0)
    code, out, err = chat("slow story\nagain\n/show chat\n", "--max-tokens", "60")
    assert code == 0
    first, _ = out.splitlines()
    assert long_story("").startswith(first)
    assert 0 < len(first) < 60
    assert "[stopped; the reply so far is kept]" in err
    assert prompts(engine)[1] == f"<user>slow story<assistant>{first}<user>again<assistant>"
    assert f"assistant (stopped): {first}" in err
    assert signal.getsignal(signal.SIGINT) is signal.default_int_handler


def test_a_message_stopped_before_its_reply_is_taken_back(chat: Chat, engine: FakeEngine) -> None:
    def script(text: str) -> str:
        if "slow" in text:  # Ctrl-C as the reply begins, before any of it is there
            os.kill(os.getpid(), signal.SIGINT)
        return f"reply {text.count('<user>')}"

    engine.script = script
    _, out, err = chat("slow\nnext\n")
    assert out == "reply 1\n"
    assert "the message is taken back" in err
    assert prompts(engine)[1] == "<user>next<assistant>"


def test_ctrl_c_in_a_one_shot_chat_is_code_130(chat: Chat, engine: FakeEngine) -> None:
    engine.script = long_story
    interrupt_after(0.5)
    assert chat("", "-p", "slow")[0] == 130


def test_a_reply_cut_by_max_tokens_says_so(chat: Chat, engine: FakeEngine) -> None:
    _, out, err = chat("hi\n", "--max-tokens", "3")
    assert out == "rep\n"
    assert "[stopped after 3 tokens, as set by max-tokens]" in err


def test_a_full_context_says_so(chat: Chat, engine: FakeEngine) -> None:
    engine.script = long_story
    engine.plan.context = 50
    _, out, err = chat("hi\n")
    assert len(out.strip()) < len(long_story(""))
    assert "[the context of 50 positions is full; the next message leaves out the oldest turns]" in err


def test_a_message_too_long_for_the_context_is_refused_and_not_kept(chat: Chat, engine: FakeEngine) -> None:
    code, out, err = chat(f"{'long ' * 100}\nshort\n")
    assert code == 1, "a script sees that a line has failed"
    assert out == "reply 1\n"
    assert re.search(
        r"error: the prompt has 5\d\d tokens .* the context is 400, or /clear to start afresh", err
    )
    assert prompts(engine) == ["<user>short<assistant>"]


def test_an_error_in_a_reply_keeps_what_was_said_and_the_chat(chat: Chat, engine: FakeEngine) -> None:
    _, out, err = chat("wrong\nright\n/show chat\n")
    assert out.splitlines() == ["re", "reply 2"]
    assert "[the reply broke off; the reply so far is kept]" in err
    assert "error: model.safetensors: a read failed: Input/output error" in err
    assert prompts(engine)[1] == "<user>wrong<assistant>re<user>right<assistant>"
    assert "assistant (stopped): re\n" in err


def test_an_error_in_a_one_shot_chat_is_code_1(chat: Chat, engine: FakeEngine) -> None:
    code, out, err = chat("", "-p", "wrong")
    assert (code, out) == (1, "re\n")
    assert "a read failed" in err


def test_ctrl_c_between_replies_keeps_the_chat(
    chat: Chat, engine: FakeEngine, monkeypatch: pytest.MonkeyPatch
) -> None:
    encode = engine.tokenizer.encode

    def interrupted_once(text: str, *args: bool, **kwargs: bool) -> list[int]:
        monkeypatch.setattr(engine.tokenizer, "encode", encode)
        raise KeyboardInterrupt

    monkeypatch.setattr(engine.tokenizer, "encode", interrupted_once)
    code, out, err = chat("lost\nhi\n")
    assert (code, out) == (0, "reply 1\n")
    assert "[stopped]" in err
    assert prompts(engine) == ["<user>hi<assistant>"]


# Commands


def test_unknown_commands_and_arguments_are_refused(chat: Chat, engine: FakeEngine) -> None:
    code, _, err = chat(
        "/hlep\n/xyzzy\n/set temprature 1\n/set temperature hot\n/set context 100\n/set acceptance ratio\n"
        "/set temperature\n/set top-p 2\n"
        "/clear all\n/show me\n/stats maybe\n/save\n/load\n/regen\n/exit now\n /not a command\n"
    )
    assert code == 1
    errors = [line for line in err.splitlines() if line.startswith("error: ")]
    parts = [
        "did you mean /help?", "/help lists them", "no option temprature", "it must be a number",
        "leave the chat and say `edgespec chat --context VALUE -c`", "ratio acceptance",
        "needs a value", "top-p is 2.0", "'all'", "/show me", "/stats maybe", "/save needs a file name",
        "/load needs a file name", "temperature 0", "'now'",
    ]  # fmt: skip
    assert len(errors) == len(parts)
    for error, part in zip(errors, parts, strict=True):
        assert part in error
    assert prompts(engine) == ["<user> /not a command<assistant>"], "a space before / makes it a message"


def test_help_names_every_command(chat: Chat) -> None:
    from edgespec.apps.commands import COMMANDS

    _, _, err = chat("/help\n")
    for name, command in COMMANDS.items():
        assert command.usage.startswith(f"/{name}")
        assert command.usage in err


def test_set_changes_the_next_reply(chat: Chat, engine: FakeEngine) -> None:
    chat(
        "/set temperature 0.7\n/set top-k 5\n/set stop END\nhi\n"
        "/set temperature default\n/set stop default\nhi\n"
    )
    first, second = engine.sessions[0].options
    assert (first.temperature, first.top_k, first.stop) == (0.7, 5, ("END",))
    assert (second.temperature, second.top_k, second.stop) == (0.0, 5, ())


def test_set_memory_says_what_it_is_now(chat: Chat, engine: FakeEngine) -> None:
    code, out, err = chat("hi\n/set memory 6GB\n/set memory 1MB\n/set memory\n/set memory lots\nhi\n")
    assert code == 1
    assert out.count("reply") == 2
    assert engine.plan.dial == 6 * 10**9
    assert "memory 6 GB" in err
    assert "raise /set memory" in err
    assert "/set memory needs a value; now it is memory 6 GB\n" in err
    assert "memory: 'lots' is not a size" in err


def test_set_lists_what_can_be_set_memory_among_it(chat: Chat) -> None:
    assert re.search(r"^memory 8 GB · .*temperature 0\.0", chat("/set\n")[2], re.MULTILINE)


def test_yield_gives_memory_back(chat: Chat, engine: FakeEngine, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(yielding, "memory_pressure", lambda: Pressure(0.0, 3 * 10**9))
    _, out, err = chat("hi\n", "--yield")
    assert out == "reply 1\n"
    assert engine.plan.dial == 3 * 10**9
    assert err.count("[memory is now 3 GB: memory.high is 3 GB]") == 1
    monkeypatch.setattr(yielding, "memory_pressure", lambda: None)
    assert "--yield does nothing" in chat("hi\n", "--yield")[2]


def test_system_prompt(chat: Chat, engine: FakeEngine) -> None:
    _, _, err = chat("/system\n/system be brief\nhi\n/system\n/clear\nagain\n/system none\nmore\n")
    assert err.splitlines()[0] == "there is no system prompt"
    assert "be brief" in err.splitlines()
    assert prompts(engine) == [
        "<system>be brief<user>hi<assistant>",
        "<system>be brief<user>again<assistant>",
        "<user>again<assistant>reply 1<user>more<assistant>",
    ]


def test_regen_asks_again_with_another_seed(chat: Chat, engine: FakeEngine) -> None:
    chat("/set temperature 1\nhi\n/regen\nnext\n")
    assert [o.seed for o in engine.sessions[0].options] == [0, 1, 1]
    assert prompts(engine)[0] == prompts(engine)[1] == "<user>hi<assistant>"
    assert prompts(engine)[2] == "<user>hi<assistant>reply 1<user>next<assistant>"


def test_a_reply_stays_until_there_is_another(
    chat: Chat, engine: FakeEngine, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Regenerating fails half-way, then is stopped, then is stopped before it begins."""
    engine.script = long_story
    generate, calls = FakeSession._reply, []

    def sometimes(self: FakeSession, prompt: list[int], *rest: Any) -> Iterator[Response]:
        calls.append(prompt)
        for place, response in enumerate(generate(self, prompt, *rest)):
            if place == 4 and len(calls) == 2:
                raise StorageError("a read failed")
            if place == (4 if len(calls) == 3 else 0) and len(calls) in (3, 4):
                raise KeyboardInterrupt
            yield response

    monkeypatch.setattr(FakeSession, "_reply", sometimes)
    _, out, err = chat("/set temperature 1\nhi\n/regen\n/regen\n/regen\n/show chat\nnext\n")
    told = [line for line in err.splitlines() if line.startswith(("[", "error"))]
    assert told == [
        "[the reply broke off; the earlier reply stays]",
        "error: a read failed",
        "[stopped; the earlier reply stays]",
        "[stopped; the earlier reply stays]",
    ]
    assert out.splitlines()[1:3] == ["once", "once"], "what the new replies said is on the screen"
    assert f"assistant: {long_story('')}\n" in err
    assert prompts(engine)[-1] == f"<user>hi<assistant>{long_story('')}<user>next<assistant>"
    first, last = engine.sessions[0].prompts[0], engine.sessions[0].prompts[-1]
    assert last[: len(first)] == first, "with its own tokens"


def test_stats_and_show(chat: Chat) -> None:
    _, _, err = chat("/stats\n/stats on\nhi\n/stats off\nhi\n/stats\n/show\n/show plan\n")
    assert err.startswith("there is no reply yet\n")
    assert err.count("tok/cycle") == 1
    assert re.search(r"peak memory +7.9 GB of 8 GB", err)
    assert "m · memory 8 GB · context 400 · about 0.25 tokens/s" in err
    assert "5 GB of weights in memory, 8 GB streamed for each pass" in err
    assert "temperature 0.0" in err
    assert "pinned weights" in err


def test_one_speed_is_expected_wherever_it_is_told(chat: Chat, monkeypatch: pytest.MonkeyPatch) -> None:
    """What runs have shown, not what the plan's rates predict of plain decoding."""
    shown = SimpleNamespace(speed=Interval(43.0, 52.0, 71.0), known=True)
    monkeypatch.setattr("edgespec.tuning.watch.Watch.expected", lambda self: shown)
    _, _, err = chat("/show\n/show plan\n/set memory 6GB\n")
    assert err.count("about 52 tokens/s") == 2
    assert "expected: 52 (43-71) tokens/s" in err
    assert "0.25" not in err
    shown.known = False  # flash was left out, as nobody knows its rate
    assert "52" not in chat("/show\n/show plan\n")[2]


def test_exit_leaves_at_once(chat: Chat, engine: FakeEngine) -> None:
    assert chat("/exit\nnever\n") == (0, "", "")
    assert engine.closed


# Saved conversations


def test_a_saved_chat_goes_on(chat: Chat, engine: FakeEngine, tmp_path: Path) -> None:
    chat("/system be brief\nhi\n/save talk.json\n")
    chat("/load talk.json\nand?\n")
    assert prompts(engine)[-1] == "<system>be brief<user>hi<assistant>reply 1<user>and?<assistant>"
    assert [path.name for path in tmp_path.iterdir()] == ["talk.json"], "no temporary file is left"


def test_only_chats_are_overwritten(chat: Chat, tmp_path: Path) -> None:
    precious = tmp_path / "thesis.txt"
    precious.write_text("precious")
    _, _, err = chat("hi\n/save thesis.txt\n/save talk.json\nho\n/save talk.json\n/save no/such/talk.json\n")
    assert precious.read_text() == "precious"
    assert "error: thesis.txt exists and is not a chat" in err
    assert "cannot write no/such/talk.json: No such file" in err
    assert len(load(tmp_path / "talk.json")) == 4


@pytest.mark.parametrize(
    ("content", "part"),
    [
        (b"\x80\x02", "not a saved chat"),
        (b"root:x:0:0:root:/root:/bin/bash\n", "error: talk.json is not a saved chat (see /save)\n"),
        (b"[1, 2]", "its format is not"),
        (b'{"format": "edgespec-chat", "version": 9}', "version 9"),
        (b'{"format": "edgespec-chat", "version": 1}', "not a saved chat"),
        (
            b'{"format": "edgespec-chat", "version": 1, "messages": [{"role": "user", "content": 5}]}',
            "`$[0].content`",
        ),
        (
            b'{"format": "edgespec-chat", "version": 1, "messages": [{"role": "root", "content": ""}]}',
            "'root'",
        ),
        (
            b'{"format": "edgespec-chat", "version": 1, "messages": [{"role": "user", "content": "a"}, '
            b'{"role": "system", "content": "a"}]}',
            "message 2",
        ),
        (b"[" * 100_000, "not a saved chat"),
    ],
)
def test_hostile_files_are_refused(chat: Chat, engine: FakeEngine, content: bytes, part: str) -> None:
    Path("talk.json").write_bytes(content)
    _, out, err = chat("hi\n/load talk.json\nand?\n")
    assert part in err
    assert out == "reply 1\nreply 2\n", "the conversation goes on as it was"


def test_a_huge_file_is_refused_unread(tmp_path: Path) -> None:
    path = tmp_path / "talk.json"
    with path.open("wb") as file:
        file.truncate(MAX_FILE_BYTES + 1)
    with pytest.raises(EdgeSpecError, match="a chat has at most"):
        load(path)
    with pytest.raises(StorageError, match="cannot read"):
        load(tmp_path / "missing.json")


def test_json_is_what_a_saved_chat_is(chat: Chat, tmp_path: Path) -> None:
    chat("hi\n/save talk.json\n")
    table = json.loads((tmp_path / "talk.json").read_text())
    assert table["messages"][1] == {"role": "assistant", "content": "reply 1", "stopped": False}
