"""The command line: what each command prints where, and how wrong use ends."""

from __future__ import annotations

import csv
import importlib
import io
import json
import os
import re
import signal
import subprocess
import sys
import threading
from collections.abc import Callable
from pathlib import Path
from types import ModuleType, SimpleNamespace
from typing import Any, cast

import numpy as np
import pytest

from edgespec import __version__
from edgespec.apps import bench_runs, common, main, options
from edgespec.apps.bench_drafts import Drafts
from edgespec.apps.bench_runs import Arm, Run
from edgespec.apps.terminal import Terminal
from edgespec.config import EngineOptions
from edgespec.core.acceptance import Outcome
from edgespec.core.trace import Cycle
from edgespec.core.tree import TokenTree
from edgespec.errors import BudgetError, CorruptFileError
from edgespec.progress import Progress
from tests.fake_engine import FakeEngine, long_story
from tests.test_progress import Screen

bench = importlib.import_module("edgespec.apps.bench")  # the package names its command so, too
ROOT = Path(__file__).resolve().parent.parent
FOLDERS = ["edgespec", "apps", "runtimes", "offload", "devices", "kernels", "benchmarks"]
Edgespec = Callable[..., "Result"]


class Result(SimpleNamespace):
    code: int
    out: str
    err: str


@pytest.fixture
def engine(monkeypatch: pytest.MonkeyPatch) -> FakeEngine:
    engine = FakeEngine()
    monkeypatch.setattr(common, "load_engine", engine.load)
    monkeypatch.setattr(bench_runs, "_measure_matmuls", lambda terminal: None)
    return engine


@pytest.fixture
def edgespec(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str], tmp_path: Path) -> Edgespec:
    """Run one command line in an empty folder, with `stdin` on standard input."""
    for name in [name for name in os.environ if name.startswith("EDGESPEC_")]:
        monkeypatch.delenv(name)
    monkeypatch.chdir(tmp_path)

    def run(*arguments: str, stdin: str | bytes = "") -> Result:
        data = stdin.encode() if isinstance(stdin, str) else stdin
        monkeypatch.setattr(sys, "stdin", io.TextIOWrapper(io.BytesIO(data), encoding="utf-8"))
        code = main.run(arguments)
        captured = capsys.readouterr()
        return Result(code=code, out=captured.out, err=captured.err)

    return run


def is_one_message(text: str) -> bool:
    return text.startswith("error: ") and text.count("\n") == 1 and "Traceback" not in text


# Without a model


def test_help_and_version(edgespec: Edgespec) -> None:
    for arguments in ((), ("--help",)):
        shown = edgespec(*arguments)
        assert shown.code == 0
        assert all(command in shown.out for command in ("chat", "generate", "pack", "bench"))
    assert edgespec("--version").out == f"edgespec {__version__}\n"


@pytest.mark.parametrize(
    ("arguments", "part"),
    [
        (["generate", "m", "--memroy", "8GB"], "--memory"),
        (["gnerate", "m"], "gnerate"),
        (["generate"], "MODEL"),
        (["generate", "m", "extra", "-p", "x"], "extra"),
        (["generate", "m", "-p", "x", "--temperature", "hot"], "--temperature"),
        (["generate", "m", "-p", "x", "--memory", "8XB"], "--memory: '8XB' is not a size"),
        (["generate", "m", "-p", "x", "--top-p", "1.5"], "--top-p is 1.5"),
        (["generate", "m", "-p", "x", "--precision", "int3"], "int3"),
        (["generate", "m", "-p", "x", "--context", "0"], "--context is 0"),
        (["generate", "m", "-p", "x", "--memory", "8"], "--memory: '8' has no unit; write for example 8GB"),
        (["generate", "m", "-p", "x", "--memory", "9" * 400], "is not a size"),
        (
            ["chat", "m", "--precision", "itn8"],
            "--precision 'itn8' is unknown; did you mean int8",
        ),
        (["generate", "m", "-p", "x", "--top-k", "5"], "--top-k changes nothing at temperature 0"),
        (["chat", "m", "--top-p", "0.5", "--seed", "7"], "--top-p changes nothing"),
        (["chat", "m", "-p", ""], "-p is empty"),
        (["chat", "m", "--system", "a", "--system-file", "b"], "leave one of them out"),
        (["chat", "m", "--continue"], "there is no conversation to go on with"),
        (["generate", "m", "-p", ""], "-p is empty"),
        (["generate", "m"], "standard input has no prompt"),
        (["chat", "m", "--max-tokens", "0"], "--max-tokens is 0"),
        (["pack", "m"], "--out"),
        (["pack", "m", "-o", "d", "--precision", "int3"], "int3"),
        (["pack", "m", "-o", "d", "--memory", "8GB"], "--memory"),
        (["pack", "m", "--verify", "d"], "--verify DIR stands alone"),
        (["generate", "m", "-p", "x", "--drafter", "magic"], "drafter 'magic' is unknown"),
        (
            ["generate", "m", "-p", "x", "--drafter", "ngrm"],
            "--drafter 'ngrm' is unknown; did you mean ngram?",
        ),
        (["generate", "m", "-p", "x", "--drafter", "model"], "--draft-model"),
        (["generate", "m", "-p", "x", "--drafter", "ngram", "--tree-nodes", "1"], "trees of 1 node"),
        (["chat", "m", "--drafter", "ngram", "--draft-model", "d"], "does not use the draft model"),
        (["chat", "m", "--acceptance", "typical"], "temperature"),
        (["bench", "m", "--schedule", "magic"], "schedule 'magic' is unknown"),
        (["bench", "m", "--acceptance", "greedy"], "--acceptance"),
        (["bench", "m", "-p", "5x"], "--prompt-tokens is '5x'"),
        (["bench", "m", "-p", "0", "-n", "0"], "nothing to measure"),
        (["bench", "m", "-n", "-4"], "from 0 to"),
        (["bench", "m", "-r", "0"], "--repetitions is 0"),
        (["bench", "m", "--temperature", "1"], "--temperature"),
        (["bench", "m", "-p", "100", "--context", "50"], "--context is 50"),
        (["bench", "m", "-d", "100", "-n", "0", "-p", "9", "--context", "109"], "the longest test takes 110"),
        (["bench", "m", "-p", ""], "--prompt-tokens is ''"),
        (["bench", "m", "--memory", "4GB,,8GB"], "--memory is '4GB,,8GB'; a value is missing beside a comma"),
        (["bench", "m", "--memory", ""], "--memory is ''"),
        (["bench", "m", "--memory", "4GB,5"], "--memory: '5' has no unit"),
        (["bench", "m", "--threads", "2,0"], "--threads is 0"),
        (["bench", "m", "--drafter", "ngram,magic"], "drafter 'magic' is unknown"),
        (["bench", "m", "--schedule", "serial,magic"], "schedule 'magic' is unknown"),
        (["bench", "m", "--drafter", "ngram", "--steps", "4"], "drafter ngram makes no passes"),
        (["bench", "m", "--steps", "0"], "--steps has 0"),
        (["bench", "m", "-o", "xml"], "output 'xml' is unknown"),
        (["bench", "m", "-o", "csv", "--json"], "two ways to print"),
        (["bench", "m", "--trace", "t.json", "--memory", "4GB,8GB"], "--trace is of one process"),
        (
            ["bench", "m", "--drafter", "cascade,cascade+substitute", "--schedule", "ssd"],
            "needs trained adapters",
        ),
    ],
)
def test_wrong_options_end_at_once_with_one_message(
    edgespec: Edgespec, engine: FakeEngine, arguments: list[str], part: str
) -> None:
    result = edgespec(*arguments)
    assert result.code == 2
    assert result.out == ""
    assert part in result.err
    assert is_one_message(result.err)
    assert engine.loaded_with is None, "a wrong option must be found before a model is loaded"


def test_help_names_what_there_is(edgespec: Edgespec) -> None:
    from edgespec.config import PRECISIONS
    from edgespec.core.acceptance import ACCEPTANCES
    from edgespec.drafters.kinds import drafter_names
    from edgespec.schedules.kinds import SCHEDULES

    shown = set(re.split(r"[^\w+]+", edgespec("generate", "--help").out))
    assert shown >= {*ACCEPTANCES, *drafter_names(), *PRECISIONS}
    schedules = {schedule.name for schedule in SCHEDULES}
    assert (schedules <= shown) == (len(schedules) > 1), "one schedule is no choice, and is not shown"


def test_environment_and_file_set_options_too(
    edgespec: Edgespec, engine: FakeEngine, monkeypatch: pytest.MonkeyPatch
) -> None:
    Path("edgespec.toml").write_text('memory = "4GB"\ncontext = 100\nmax_tokens = 3\n')
    monkeypatch.setenv("EDGESPEC_CONTEXT", "200")
    edgespec("generate", "m", "-p", "x", "--max-tokens", "4")
    assert engine.loaded_with == ("m", EngineOptions(memory=4 * 10**9, context=200))
    assert engine.sessions[0].options[0].max_tokens == 4


def test_a_misspelt_variable_is_an_error(
    edgespec: Edgespec, engine: FakeEngine, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("EDGESPEC_MEMROY", "4GB")
    result = edgespec("generate", "m", "-p", "x")
    assert result.code == 2
    assert "EDGESPEC_MEMROY" in result.err
    assert "did you mean EDGESPEC_MEMORY?" in result.err


def test_every_variable_that_is_read_is_known() -> None:
    """Else a user who sets it is told that it does not exist."""
    code = [p for folder in FOLDERS for p in (ROOT / folder).rglob("*.py")] + [ROOT / "install.sh"]
    read = {name for path in code for name in re.findall(r"\bEDGESPEC_[A-Z_]+\b", path.read_text("utf-8"))}
    assert len(read) > 3
    assert read <= options.known_variables()


def test_errors_of_a_model_are_one_message_and_code_1(
    edgespec: Edgespec, monkeypatch: pytest.MonkeyPatch
) -> None:
    def refuse(*_: object) -> None:
        raise BudgetError("the dial of 1 GB is too small; the smallest that works is 2 GB", {}, 1, 2)

    monkeypatch.setattr(common, "load_engine", refuse)
    for command in (["chat", "m"], ["generate", "m", "-p", "x"], ["bench", "m"]):
        result = edgespec(*command)
        assert result.code == 1
        assert result.out == ""
        assert result.err == "error: the dial of 1 GB is too small; the smallest that works is 2 GB\n"


def test_a_message_cannot_drive_the_terminal(edgespec: Edgespec, monkeypatch: pytest.MonkeyPatch) -> None:
    def refuse(*_: object) -> None:
        raise CorruptFileError("tensor 'a\x1b]0;owned\x07' overlaps another")

    monkeypatch.setattr(common, "load_engine", refuse)
    result = edgespec("generate", "m", "-p", "x")
    assert "\x1b" not in result.err
    assert r"\x1b]0;owned\x07" in result.err


def test_an_unreadable_file_is_one_message(edgespec: Edgespec, monkeypatch: pytest.MonkeyPatch) -> None:
    def refuse(*_: object) -> None:
        raise PermissionError(13, "Permission denied", "/models/config.json")

    monkeypatch.setattr(common, "load_engine", refuse)
    result = edgespec("generate", "m", "-p", "x")
    assert (result.code, result.err) == (1, "error: /models/config.json: Permission denied\n")


def test_a_defect_keeps_its_traceback(edgespec: Edgespec, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(common, "load_engine", lambda *_: {}["no such key"])
    with pytest.raises(KeyError):
        edgespec("generate", "m", "-p", "x")


# generate


def test_generate_writes_the_reply_alone_on_standard_output(edgespec: Edgespec, engine: FakeEngine) -> None:
    engine.script = lambda text: text.upper()
    result = edgespec("generate", "m", "-p", "once", "-p", "upon")
    assert result.code == 0
    assert result.out == "ONCE\nUPON\n"
    assert engine.sessions[0].prompts == [[1, *b"once"], [1, *b"upon"]]
    line = result.err.splitlines()[0]
    assert line == "0.25 tok/s · 1 tok/cycle · 8 GB/tok · read 2 GB/s · peak 7.9 GB of 8 GB"
    assert "\x1b" not in result.out + result.err, "no colours or progress without a terminal"
    assert engine.closed


def test_generate_reads_a_prompt_a_line(edgespec: Edgespec, engine: FakeEngine) -> None:
    engine.script = lambda text: f"[{text}]"
    stdin = 'one {two}\n\n{"prompt": "a\\nb"}\r\nnot {json\nlast'
    assert edgespec("generate", "m", stdin=stdin).out == "[one {two}]\n[a\nb]\n[not {json]\n[last]\n"


def test_generate_json_is_one_object_a_reply(edgespec: Edgespec, engine: FakeEngine) -> None:
    engine.script = lambda text: "hé"
    result = edgespec("generate", "m", "--json", "-p", "x", "-p", "y", "--max-tokens", "2")
    first, second = map(json.loads, result.out.splitlines())
    assert (first["text"], first["tokens"], first["finish_reason"]) == ("hé", [ord("h"), ord("é")], "length")
    assert (first["prompt"], second["prompt"]) == (0, 1)
    wanted = "tokens_per_second tokens_per_cycle bytes_per_token read_gbps peak_memory cycles plan"
    assert set(wanted.split()) <= set(first["stats"])
    assert first["stats"]["tokens_per_second"] == 0.25
    assert first["stats"]["bytes_per_token"] == 8e9
    assert first["stats"]["plan"] == engine.plan.to_dict()


def test_generate_holds_conversations(edgespec: Edgespec, engine: FakeEngine) -> None:
    result = edgespec("generate", "m", "--json", stdin='{"turns": ["hi", "and?"]}\n{"turns": ["new"]}\n')
    replies = [json.loads(line) for line in result.out.splitlines()]
    assert [(r["prompt"], r["turn"], r["text"]) for r in replies] == [
        (0, 0, "reply 1"),
        (0, 1, "reply 2"),
        (1, 0, "reply 1"),
    ]
    prompts = [engine.tokenizer.decode(p) for p in engine.sessions[0].prompts]
    assert prompts[1] == "<user>hi<assistant>reply 1<user>and?<assistant>"
    assert prompts[2] == "<user>new<assistant>"


@pytest.mark.parametrize(
    "line",
    [
        '{"text": "x"}',
        '{"prompt": 3}',
        '{"prompt": ""}',
        "{not json",
        '{"turns": []}',
        '{"turns": "x"}',
        '{"turns": ["a", 1]}',
        '{"prompt": "a", "turns": ["b"]}',
    ],
)
def test_generate_refuses_other_objects(edgespec: Edgespec, engine: FakeEngine, line: str) -> None:
    result = edgespec("generate", "m", stdin=f"fine\n{line}\n")
    assert result.code == 2
    assert "line 2 of standard input" in result.err
    assert result.out == "reply 0\n", "the replies before it are not lost"


def test_generate_refuses_what_is_no_text(edgespec: Edgespec, engine: FakeEngine) -> None:
    result = edgespec("generate", "m", stdin=b"\xff\xfe\n")
    assert result.code == 2
    assert "line 1 of standard input is not UTF-8" in result.err
    assert engine.loaded_with is None


def test_generate_does_not_wait_for_a_prompt_at_a_terminal(
    engine: FakeEngine, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(sys, "stdin", Screen())
    assert main.run(["generate", "m"]) == 2
    assert "there is no prompt: give -p TEXT" in capsys.readouterr().err


def test_generate_names_the_prompt_that_is_too_long(edgespec: Edgespec, engine: FakeEngine) -> None:
    result = edgespec("generate", "m", stdin=f"short\n{'long ' * 100}\n")
    assert result.code == 1
    assert result.out == "reply 0\n"
    assert "error: line 2: the prompt has 501 tokens" in result.err
    assert "the context is 400" in result.err


def test_generate_passes_options_on(edgespec: Edgespec, engine: FakeEngine) -> None:
    edgespec(
        "generate", "m", "-p", "x",
        "--temperature", "0.5", "--top-k", "3", "--top-p", "0.9", "--min-p", "0.1", "--seed", "7",
        "--stop", "a", "--stop", "b", "--max-tokens", "9", "--memory", "1.5GiB", "--context", "64",
        "--device", "cpu", "--precision", "int8", "--resident-layers", "2",
    )  # fmt: skip
    options = engine.sessions[0].options[0]
    assert (options.temperature, options.top_k, options.top_p, options.min_p) == (0.5, 3, 0.9, 0.1)
    assert (options.seed, options.stop, options.max_tokens) == (7, ("a", "b"), 9)
    assert engine.loaded_with == (
        "m",
        EngineOptions(memory=1610612736, device="cpu", context=64, precision="int8", resident_layers=2),
    )


def interrupted_story(text: str) -> str:
    """The reply is under way, however long the command took to begin; a slow one takes seconds."""
    threading.Timer(0.3, os.kill, (os.getpid(), signal.SIGINT)).start()
    return long_story(text)


def test_ctrl_c_ends_generate_cleanly(edgespec: Edgespec, engine: FakeEngine) -> None:
    engine.script = interrupted_story
    result = edgespec("generate", "m", "--json", "-p", "slow", "-p", "never reached")
    assert result.code == 130
    (reply,) = map(json.loads, result.out.splitlines())
    assert reply["finish_reason"] == "cancelled"
    assert engine.closed


def test_a_closed_pipe_ends_generate_quietly() -> None:
    command = [sys.executable, "-m", "tests.fake_engine", "generate", "m", *["-p", "x"] * 2000]
    with subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, cwd=ROOT) as process:
        assert process.stdout is not None
        assert process.stderr is not None
        process.stdout.readline()
        process.stdout.close()
        err = process.stderr.read().decode()
        assert process.wait(60) != 0
    assert "Traceback" not in err
    assert "Error" not in err


def test_generate_without_figures(edgespec: Edgespec, engine: FakeEngine) -> None:
    assert edgespec("generate", "m", "-p", "x", "--no-stats").err == ""


def test_generate_keeps_going(edgespec: Edgespec, engine: FakeEngine) -> None:
    lines = 'one\n{"text": 1}\n\xff\n%s\nlast\n' % ("long " * 100)
    stdin = lines.encode("latin-1")
    result = edgespec("generate", "m", "--json", "--keep-going", "--no-stats", stdin=stdin)
    assert result.code == 1
    replies = [json.loads(line) for line in result.out.splitlines()]
    assert [r.get("text") for r in replies] == ["reply 0", None, None, None, "reply 0"]
    assert [r["prompt"] for r in replies] == [0, 1, 2, 3, 4]
    errors = [r["error"] for r in replies if "error" in r]
    assert [error.split(" ")[:2] for error in errors] == [["line", "2"], ["line", "3"], ["line", "4:"]]
    assert result.err == "".join(f"error: {error}\n" for error in errors)
    assert edgespec("generate", "m", stdin=stdin).out == "reply 0\n", "else it stops at the first"


def test_train_alone_shows_its_help(edgespec: Edgespec) -> None:
    result = edgespec("train")
    assert (result.code, result.err) == (0, "")
    assert "cascade" in result.out


def test_every_help_has_examples(edgespec: Edgespec) -> None:
    for command in (["chat"], ["generate"], ["pack"], ["bench"], ["train"], ["train", "cascade"]):
        shown = edgespec(*command, "--help").out
        assert f"edgespec {' '.join(command)}" in shown.partition("Examples:")[2], command


def test_shells_can_complete(edgespec: Edgespec, monkeypatch: pytest.MonkeyPatch) -> None:
    assert "--install-completion" in edgespec("--help").out
    monkeypatch.setenv("_EDGESPEC_COMPLETE", "complete_bash")
    monkeypatch.setenv("COMP_WORDS", "edgespec generate --mem")
    monkeypatch.setenv("COMP_CWORD", "2")
    with pytest.raises(SystemExit):
        main.run([])


# pack


@pytest.fixture
def packing(monkeypatch: pytest.MonkeyPatch) -> ModuleType:
    """A packer that reports progress and records its calls."""
    module = ModuleType("edgespec.models.packing")
    module.calls = []  # type: ignore[attr-defined]

    def pack_model(
        model: str,
        out: Path,
        precision: str | None,
        substitute: str | None,
        progress: Callable[[Progress], None],
        notify: Callable[[str], None],
    ) -> None:
        module.calls.append((model, out, precision, substitute))  # type: ignore[attr-defined]
        if model == "packed":
            return
        notify("going on")
        for done in (3, 5, 10):
            progress(Progress("pack", done * 10**9, 10 * 10**9, "bytes"))
            if model == "interrupted" and done == 5:
                raise KeyboardInterrupt

    def verify_store(path: Path, progress: Callable[[Progress], None]) -> None:
        progress(Progress("verify", 0, 10**9, "bytes"))
        if path.name == "bad":
            raise CorruptFileError(f"{path}/weights.safetensors: chunk 7 fails its checksum")
        progress(Progress("verify", 10**9, 10**9, "bytes"))

    monkeypatch.setattr(common, "check_source", lambda model: None)
    module.pack_model = pack_model  # type: ignore[attr-defined]
    module.verify_store = verify_store  # type: ignore[attr-defined]
    monkeypatch.setitem(sys.modules, "edgespec.models.packing", module)
    return module


def test_pack_says_what_it_wrote_and_where_it_went_on(edgespec: Edgespec, packing: ModuleType) -> None:
    result = edgespec("pack", "m", "-o", "out", "--precision", "int8")
    assert result.code == 0
    assert packing.calls == [("m", Path("out"), "int8", None)]
    assert result.out.startswith("out: packed 10 GB at precision int8 in ")
    assert result.err == "going on\n"
    assert edgespec("pack", "packed", "-o", "out").out == "out: packed already at precision source\n"


def test_pack_keeps_the_files_precision_by_default(edgespec: Edgespec, packing: ModuleType) -> None:
    edgespec("pack", "m", "-o", "out")
    assert packing.calls == [("m", Path("out"), None, None)]


def test_pack_interrupted_says_how_to_go_on(edgespec: Edgespec, packing: ModuleType) -> None:
    result = edgespec("pack", "interrupted", "-o", "out")
    assert result.code == 130
    assert "stopped at 5 GB of 10 GB; the same command goes on from there" in result.err


def test_pack_verify(edgespec: Edgespec, packing: ModuleType) -> None:
    good = edgespec("pack", "--verify", "good")
    assert good.code == 0
    assert good.out.startswith("good: all 1 GB are intact in ")
    bad = edgespec("pack", "--verify", "bad")
    assert bad.code == 1
    assert bad.err == "error: bad/weights.safetensors: chunk 7 fails its checksum\n"
    assert bad.out == ""


# bench


def test_bench_prints_a_table(edgespec: Edgespec, engine: FakeEngine) -> None:
    engine.script = long_story
    result = edgespec("bench", "dir/m", "-p", "16,32", "-n", "4", "-r", "2")
    assert result.code == 0
    head, rule, *rows = result.out.splitlines()
    assert all(line.count("|") == head.count("|") for line in (rule, *rows))
    cells = [[cell.strip() for cell in row.strip("|").split("|")] for row in rows]
    assert [row[3] for row in cells] == ["pp16", "pp32", "tg4"]
    assert [row[4] for row in cells] == ["16.000 ± 0.000", "32.000 ± 0.000", "0.250 ± 0.000"]
    assert cells[2][:3] == ["m", "13 GB", "source"]
    assert cells[2][5:] == ["1", "8 GB", "2 GB/s", "–", "7.9 GB of 8 GB"]
    assert engine.loaded_with is not None
    assert engine.loaded_with[1].context == 33


def test_bench_json(edgespec: Edgespec, engine: FakeEngine) -> None:
    engine.script = long_story
    report = json.loads(edgespec("bench", "m", "-p", "0", "-n", "4", "-r", "3", "--json").out)
    (test,) = report["tests"]
    assert test["test"] == "tg4"
    assert test["samples"] == [0.25] * 3
    assert test["bytes_per_token"] == 8e9
    assert report["peak_memory"] == 7_900_000_000
    assert report["memory"] == 8 * 10**9


def test_bench_replies_have_the_length_asked_for(edgespec: Edgespec, engine: FakeEngine) -> None:
    """A model that would end early goes on: EOS is not heeded."""
    engine.script = lambda text: "\0" * 50
    edgespec("bench", "m", "-p", "0", "-n", "20", "-r", "1")
    assert engine.sessions[0].options[-1].max_tokens == 21
    assert all(options.ignore_eos for options in engine.sessions[0].options)


def test_bench_reads_fresh_prompts(edgespec: Edgespec, engine: FakeEngine) -> None:
    """The session would reuse what two prompts share, and a benchmark of that measures nothing."""
    edgespec("bench", "m", "-p", "16", "-n", "0", "-r", "3")
    prompts = [tuple(p) for p in engine.sessions[0].prompts if len(p) == 16]
    assert len(set(prompts)) == 3


@pytest.fixture
def apart(edgespec: Edgespec, engine: FakeEngine, monkeypatch: pytest.MonkeyPatch) -> list[EngineOptions]:
    """Settings are measured in this process, with the engine that is none; who was asked for."""
    asked: list[EngineOptions] = []

    def measure(model: str, setting: Arm, repetitions: int, cold: bool, trace: Path | None) -> None:
        asked.append(setting.options)
        if setting.options.threads == 3:
            raise BudgetError("the dial is too small", {}, 1, 2)
        if setting.options.threads == 4:
            raise KeyboardInterrupt
        engine.drafters = tuple(setting.options.drafter.split("+"))
        bench_runs.measure(model, setting, repetitions, cold, trace, Terminal())

    engine.script = long_story
    monkeypatch.setattr(bench, "measure_apart", measure)
    monkeypatch.setattr(bench, "_affordable", lambda model, settings, terminal: settings)
    return asked


def test_bench_sweeps_every_combination(edgespec: Edgespec, apart: list[EngineOptions]) -> None:
    asked = ["--memory", "4GB,8GB", "--drafter", "none,model,cascade", "--schedule", "ssd,serial"]
    files = ["--draft-model", "small", "--adapters", "adapters", "--steps", "2,3"]
    result = edgespec("bench", "m", *asked, *files, "-p", "0", "-n", "4", "-r", "1")
    assert result.code == 0
    tried = [(o.memory, o.drafter, o.schedule, o.draft_model, o.adapters) for o in apart]
    each = [
        ("none", "auto", None, None),
        *[("model", "ssd", "small", None)] * 2,
        *[("model", "serial", "small", None)] * 2,
        *[("cascade", "serial", None, "adapters")] * 2,
    ]
    assert tried == [(dial * 10**9, *rest) for dial in (4, 8) for rest in each]
    assert result.err.count("left out") == 1, "said once, though it is so at both dials"
    assert "left out, --drafter cascade --schedule ssd: schedule ssd drafts behind several" in result.err
    assert result.err.index("left out") < result.err.index("1 of 14: memory 4 GB, drafter none")
    head, _, *rows = result.out.splitlines()
    assert all(f"| {column} |" in head for column in ("drafter", "steps", "tokens/s"))
    assert len(rows) == 14
    assert all(row.count("|") == head.count("|") for row in rows)


def test_bench_cold_runs_take_turns(edgespec: Edgespec, apart: list[EngineOptions]) -> None:
    result = edgespec("bench", "m", "--threads", "1,2", "--cold", "-p", "8", "-n", "4", "-r", "2", "--json")
    assert [options.threads for options in apart] == [1, 1, 2, 2] * 2
    report = json.loads(result.out)
    assert [(test["test"], test["threads"]) for test in report["tests"]] == [
        ("pp8", 1), ("tg4", 1), ("pp8", 2), ("tg4", 2),
    ]  # fmt: skip
    assert all(len(test["samples"]) == 2 for test in report["tests"])
    assert "plan" not in report, "there are two"


def test_bench_goes_on_after_a_setting_that_fails(edgespec: Edgespec, apart: list[EngineOptions]) -> None:
    result = edgespec("bench", "m", "--threads", "1,3,2", "-p", "0", "-n", "4", "-r", "1", "-o", "csv")
    assert result.code == 1
    assert "error: threads 3, tg4: the dial is too small" in result.err
    rows = list(csv.DictReader(io.StringIO(result.out)))
    assert [(row["threads"], row["test"], row["samples"]) for row in rows] == [
        ("1", "tg4", "0.25"), ("2", "tg4", "0.25"),
    ]  # fmt: skip


def test_bench_stopped_prints_what_there_is(edgespec: Edgespec, apart: list[EngineOptions]) -> None:
    result = edgespec("bench", "m", "--threads", "1,4,2", "-p", "0", "-n", "4", "-r", "1", "-o", "jsonl")
    assert result.code == 130
    assert [json.loads(line)["threads"] for line in result.out.splitlines()] == [1]
    assert len(apart) == 2


def test_bench_refuses_when_nothing_is_left(edgespec: Edgespec, apart: list[EngineOptions]) -> None:
    asked = ["--drafter", "cascade", "--adapters", "a", "--schedule", "ssd,mirror"]
    result = edgespec("bench", "m", *asked)
    assert result.code == 2
    assert "drafts behind several roots" in result.err
    assert apart == []


def test_bench_fills_the_context_once(edgespec: Edgespec, engine: FakeEngine) -> None:
    """And times what comes behind it."""
    engine.script = long_story
    edgespec("bench", "m", "-p", "16", "-n", "4", "-d", "0,64", "-r", "1")
    (session,) = engine.sessions
    lengths = [len(prompt) for prompt in session.prompts]
    assert lengths == [1, 16, 1, 64, 80, 64, 65], "this session keeps nothing, so it is filled again"
    filling = session.prompts[3]
    assert session.prompts[4][:64] == session.prompts[5] == session.prompts[6][:64] == filling


def test_bench_dials_that_cannot_be(edgespec: Edgespec, monkeypatch: pytest.MonkeyPatch) -> None:
    """By the headers, before anything runs."""
    monkeypatch.setattr(bench, "measure_apart", pytest.fail)
    result = edgespec("bench", str(common.demo_model()), "--memory", "40MB,60MB")
    assert result.code == 1
    assert "the dial is 40.0 MB, but" in result.err


def test_bench_tells_what_drafts_give_for_what_they_take() -> None:
    """SpecFormer's measures, by hand: a chain accepted in part, a tree of two branches, and a plain cycle."""
    chain = TokenTree.chain(range(4), np.log([1.0, 0.9, 0.9, 0.9]))
    branches = TokenTree(np.arange(5), np.array([-1, 0, 0, 1, 2]), np.log([1.0, 0.5, 0.4, 0.5, 0.5]))
    drafts = Drafts()
    for tree, path, passes in (
        (chain, [0, 1, 2], 3),
        (branches, [0, 2, 4], 2),
        (TokenTree.root(7), [0], None),
    ):
        outcome = Outcome(np.array(path), [1] * len(path))
        drafts.add(Cycle(passes, tree, outcome, 0.0, 0.0))
    assert drafts.a == pytest.approx(4 / 3)
    assert drafts.k == pytest.approx(7 / 3)
    assert drafts.kappa == pytest.approx((4 / 3) * 2.5 / (7 / 3))  # trees of 3 and 2 levels
    assert drafts.r1(step_bytes=30, target_bytes=100) == pytest.approx((4 / 3) / 1.5)  # 5 passes in 3 cycles
    only = Drafts()
    only.add(Cycle(3, chain, Outcome(np.arange(3), [1] * 3), 0.0, 0.0))
    assert only.kappa == pytest.approx(only.a), "of a chain kappa is the mean accepted length"
    assert Drafts().kappa is Drafts().r1(1, 1) is None


def test_bench_acceptance_by_position() -> None:
    runs = [
        Run(1, 1, 1, 1, None, None, 1, tried=[4, 2], kept=[3, 1]),
        Run(1, 1, 1, 1, None, None, 1, [4], [1]),
    ]
    assert bench_runs.Test("tg", 4, runs=runs).acceptance == [0.5, 0.5]


def test_bench_share_of_roofline(engine: FakeEngine, monkeypatch: pytest.MonkeyPatch) -> None:
    """Of what flash or memory needs at least, whichever is more; unknown where what binds is unknown."""
    runs = bench_runs._Runs(cast(Any, engine), Arm(EngineOptions()), Terminal(), None, 1.0, memory_gbps=10.0)
    assert runs._roofline(8 * 10**9, 10**9, 8.0, direct=2.0) == pytest.approx(0.5)
    assert runs._roofline(8 * 10**9, 60 * 10**9, 8.0, direct=2.0) == pytest.approx(0.75)
    assert runs._roofline(0, 60 * 10**9, 8.0, direct=None) == pytest.approx(0.75)
    assert runs._roofline(8 * 10**9, 10**9, 8.0, direct=None) is None
    assert runs._roofline(0, 0, 8.0, direct=None) is None
