"""Many replies from one engine, and `edgespec generate --batch`: what one at a time would say, once each."""

from __future__ import annotations

import io
import json
import re
import subprocess
import sys
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

import edgespec
from edgespec.apps import main, prompts
from edgespec.apps.batch import output_file
from edgespec.config import EngineOptions, GenerationOptions
from edgespec.core.passes import LocalVerifier
from edgespec.drafters.resident import Drafters
from edgespec.engine import Engine
from edgespec.errors import BudgetError, Cancelled, ContextError, EdgeSpecError, OptionError, StorageError
from edgespec.models.asked import check_options
from edgespec.models.planning import plan_engine
from edgespec.offload.plan.plan import Plan
from edgespec.progress import Progress
from edgespec.response import Response
from edgespec.runtimes.formats.describe import describe_model
from edgespec.runtimes.formats.needs import pool_positions
from tests.covering import covering
from tests.machine import DISK, GIVEN
from tests.sessions import wait_for
from tests.test_session import prompt_of, write_model

ROOT = Path(__file__).resolve().parent.parent
COLD = GenerationOptions(max_tokens=24, ignore_eos=True)
HOT = GenerationOptions(max_tokens=24, ignore_eos=True, temperature=0.9, seed=3)
OPTIONS = {"cold": COLD, "hot": HOT}
LENGTHS = (20, 33, 7, 150, 1, 64, 90)
MB = 10**6


@pytest.fixture(scope="module")
def model(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return write_model(tmp_path_factory.mktemp("many") / "m", max_position_embeddings=4096)


@pytest.fixture(scope="module")
def expected(model: Path) -> dict[str, list[list[int]]]:
    prompts = [prompt_of(n, seed=n) for n in LENGTHS]
    with edgespec.load(model, memory="4GB", context=300, drafter="none") as engine:
        return {
            name: [edgespec.generate(engine, prompt, options).tokens for prompt in prompts]
            for name, options in OPTIONS.items()
        }


def replies(
    engine: Engine, prompts: list[Any], options: GenerationOptions, progress: Any = None
) -> dict[int, Response | EdgeSpecError]:
    found: dict[int, Response | EdgeSpecError] = {}
    for place, reply in edgespec.generate_batch(engine, prompts, options, progress=progress):
        assert place not in found
        found[place] = reply
    return found


def tokens_of(found: dict[int, Response | EdgeSpecError]) -> list[list[int]]:
    return [reply.tokens for _, reply in sorted(found.items()) if isinstance(reply, Response)]


@pytest.mark.parametrize(
    ("sizes", "name"),
    covering([(1, 1), (3, 1), (16, 1), (3, 3)], ("cold", "hot")),
)  # of 3 layers: the rest streams
def test_a_batch_says_what_each_says_alone(
    model: Path, expected: dict[str, list[list[int]]], sizes: tuple[int, int], name: str
) -> None:
    batch, layers = sizes
    prompts = [prompt_of(n, seed=n) for n in LENGTHS]
    with edgespec.load(model, memory="4GB", context=300, batch=batch, resident_layers=layers) as engine:
        assert engine.drafters == ("ngram",)
        assert tokens_of(replies(engine, prompts, OPTIONS[name])) == expected[name]
        assert engine.pool.held == 0


def test_replies_share_passes(model: Path, expected: dict[str, list[list[int]]]) -> None:
    """All seven in as many passes as one reply takes alone, and what streams is read so often."""
    prompts, seen = [prompt_of(n, seed=n) for n in LENGTHS], list[Progress]()
    with edgespec.load(
        model, memory="4GB", context=300, batch=16, resident_layers=1, drafter="none"
    ) as engine:
        before = engine.bytes_read
        assert tokens_of(replies(engine, prompts, COLD, seen.append)) == expected["cold"]
        assert len(seen) == 24
        assert [report.done for report in seen] == [0] * 23 + [7]
        rows = sum(LENGTHS) + 7 * 24  # of the embedding, a page each
        assert engine.bytes_read - before < 26 * engine.plan.bytes_per_pass + rows * 4096


def test_a_pass_has_as_many_rows_as_the_ledger_has_room_for(model: Path) -> None:
    """Eighty prompts, and then eighty trees: more than one tree may have nodes."""
    prompts, passes = [prompt_of(3, seed=n) for n in range(80)], list[Progress]()
    with edgespec.load(
        model, memory="4GB", context=64, batch=80, resident_layers=1, drafter="none"
    ) as engine:
        found = tokens_of(replies(engine, prompts, replace(COLD, max_tokens=5), passes.append))
        assert len(passes) == 5
    with edgespec.load(model, memory="4GB", context=300, drafter="none") as engine:
        for place in (0, 41, 79):
            assert found[place] == edgespec.generate(engine, prompts[place], COLD, max_tokens=5).tokens


def test_sessions_draft_in_shared_passes_where_there_is_room(
    model: Path, expected: dict[str, list[list[int]]]
) -> None:
    """An engine that is no batch's: its positions are for whoever comes, and they draft."""
    prompts = [prompt_of(n, seed=n) for n in LENGTHS]
    with edgespec.load(model, memory="4GB", context=700, resident_layers=1) as engine:
        assert engine.drafters == ("ngram",)
        assert tokens_of(replies(engine, prompts, COLD)) == expected["cold"]


@pytest.mark.parametrize(("layers", "name"), covering((1, 3), ("cold", "hot")))
def test_a_draft_model_drafts_for_all_of_a_batch(
    model: Path, expected: dict[str, list[list[int]]], layers: int, name: str
) -> None:
    """One copy of it, with keys and values for each; here it is the target itself: trees are right."""
    prompts, drafted = [prompt_of(n, seed=n) for n in LENGTHS], list[int]()
    options: dict[str, Any] = {"drafter": "ngram+model", "draft_model": str(model), "batch": 4}
    with edgespec.load(model, memory="4GB", context=300, resident_layers=layers, **options) as engine:
        assert engine.drafters == ("ngram", "model")
        assert engine.schedule == "serial"
        found = replies(engine, prompts, OPTIONS[name])
        assert tokens_of(found) == expected[name]
        drafted += [reply.stats.drafted for reply in found.values() if isinstance(reply, Response)]
        assert sum(drafted) > 0
        sessions = [engine.new_session(n) for n in (300, 300, 200, 64)]
        caches = [session.schedule.drafter.members[1].runtime.cache for session in sessions]  # type: ignore[attr-defined]
        held = sum(cache.nbytes for cache in caches)
        weights = sum(chunk.read_bytes for chunk in engine.plan.table.chunks)
        assert held + weights < engine.plan.owners["drafter"]
        for session in sessions:
            session.close()


def test_what_drafters_keep_of_each_conversation_is_in_the_plan(model: Path) -> None:
    few, many = (planned(model, context=512, batch=n, drafter="ngram").owners for n in (2, 64))
    assert many["indices of n-grams"] == 32 * few["indices of n-grams"] == 64 * 512 * 400
    plain = planned(model, context=512, batch=64).owners
    assert "indices of n-grams" not in plain
    assert many["activations"] > plain["activations"]  # four rows each, and not one


def test_a_bad_prompt_fails_alone(model: Path, expected: dict[str, list[list[int]]]) -> None:
    prompts: list[Any] = [prompt_of(n, seed=n) for n in LENGTHS]
    prompts[2:2] = [[], [5, 1000], prompt_of(290), 7.5, b"raw"]
    with edgespec.load(model, memory="4GB", context=300, batch=3) as engine:
        found = replies(engine, prompts, COLD)
        kinds = [type(found[place]) for place in range(2, 7)]
        assert kinds[:2] == [OptionError, OptionError]
        assert kinds[2] is ContextError
        assert "290 tokens and the reply may have 24, together 314, but the context is 300" in str(found[4])
        assert all(issubclass(kind, EdgeSpecError) for kind in kinds), kinds
        assert tokens_of(found) == expected["cold"]


def test_what_concerns_all_is_raised_and_leaves_nothing_open(
    model: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    prompts = [prompt_of(20, seed=n) for n in range(5)]
    with edgespec.load(model, memory="4GB", context=300, batch=4, resident_layers=1) as engine:
        passes = 0
        run = engine.target.run

        def sometimes(*arguments: Any) -> Any:
            nonlocal passes
            passes += 1
            if passes == 5:
                raise StorageError("the disk went away")
            return run(*arguments)

        monkeypatch.setattr(engine.target, "run", sometimes)
        with pytest.raises(StorageError):
            replies(engine, prompts, COLD)
        assert engine.pool.held == 0
        early = edgespec.generate_batch(engine, [[], *prompts], COLD)
        next(early)
        assert engine.pool.held > 0
        early.close()  # type: ignore[attr-defined]
        assert engine.pool.held == 0
        others = [engine.new_session(300) for _ in range(4)]
        with pytest.raises(BudgetError, match="open sessions hold"):
            replies(engine, prompts, COLD)
        for other in others:
            other.close()

        def close(report: Progress) -> None:
            engine.close()

        with pytest.raises(Cancelled):
            replies(engine, prompts, COLD, close)


# --- the ledger --------------------------------------------------------------------------------------------


def planned(model: Path, **options: Any) -> Plan:
    asked = EngineOptions(**{"memory": 2 * 10**9, "drafter": "none"} | options)
    return plan_engine(describe_model(model), asked, replace(GIVEN, disk=DISK), Drafters({}))


def kv_of(plan: Plan) -> int:
    return next(nbytes for owner, nbytes in plan.owners.items() if owner.startswith("KV cache"))


def test_short_conversations_need_not_the_longest(model: Path) -> None:
    """64 of them have a pool of one whole context and 63 of 512 positions, in whole blocks."""
    assert pool_positions(4000, 64) == 4032 + 63 * 512
    assert pool_positions(100, 64) == 64 * 128
    one, many = (planned(model, context=4000, batch=n) for n in (1, 64))
    per_position = 2 * 3 * 2 * 16 * 4  # k and v, layers, heads, width, fp32
    assert 0.9 < (kv_of(many) - kv_of(one)) / (63 * 512 * per_position) < 1.6  # and its masks
    assert many.owners["activations"] > one.owners["activations"]


def test_memory_of_a_batch_is_what_the_ledger_has(model: Path) -> None:
    """Each session's cache has the positions that it holds, and the pool is never passed."""
    with edgespec.load(model, memory="4GB", context=1000, batch=4) as engine:
        assert engine.pool.positions == 1024 + 3 * 512
        sessions = [engine.new_session(n) for n in (1000, 512, 300, 100)]
        held = sum(session.cache.k.shape[2] for session in sessions)  # type: ignore[attr-defined]
        assert held == engine.pool.held == 1024 + 512 + 320 + 128
        assert not engine.room_for(1)  # four are there
        sessions.pop().close()
        assert engine.room_for(704)
        assert not engine.room_for(705)
        with pytest.raises(BudgetError):
            engine.new_session(1000)
        for session in sessions:
            session.close()


def test_a_batch_too_large_says_how_many_fit(model: Path) -> None:
    with pytest.raises(BudgetError) as caught:
        planned(model, memory=460 * MB, context=512, batch=1000)
    most = int(str(caught.value).partition("use batch=")[2].partition(",")[0])
    assert f"a batch of 1000 is too large for the dial, 460.0 MB, which has room for {most}:" in str(
        caught.value
    )
    assert 1 < most < 1000
    assert planned(model, memory=460 * MB, context=512, batch=most).ledger.free >= 0
    with pytest.raises(BudgetError):
        planned(model, memory=460 * MB, context=512, batch=most + 1)
    assert planned(model, memory=caught.value.smallest, context=512, batch=1000).ledger.free >= 0
    with pytest.raises(BudgetError, match="smallest dial that works"):  # not even one
        planned(model, memory=300 * MB, context=512, batch=8)


def test_auto_takes_as_many_as_fit_and_pay(model: Path) -> None:
    """Where passes read long, more sequences are more tokens a second, until there is no room."""
    few, many = (planned(model, memory=memory, context=512, batch=0) for memory in (460 * MB, 900 * MB))
    assert 1 < few.sequences < many.sequences
    assert planned(model, context=512, batch=1).sequences == 1


@pytest.mark.parametrize(
    ("options", "who"),
    [
        ({"drafter": "cascade", "adapters": "a"}, "the cascade"),
        ({"adapters": "a"}, "the cascade"),
        ({"drafter": "substitute", "draft_model": "m"}, "the low-bit copy"),
        ({"drafter": "model", "draft_model": "m", "draft_worker": 2}, "a draft worker"),
    ],
)
def test_who_drafts_for_one_conversation_drafts_for_no_batch(options: dict[str, Any], who: str) -> None:
    for batch, told in ((4, "4"), (0, "auto")):
        with pytest.raises(OptionError, match=f"^batch is {told}, and {who} drafts for one conversation at"):
            check_options(EngineOptions(batch=batch, **options))
    check_options(EngineOptions(batch=1, **options))


@pytest.mark.parametrize("schedule", ["ssd", "mirror"])
def test_a_batch_prepares_for_no_outcomes(schedule: str) -> None:
    with pytest.raises(OptionError, match=r"verifies the best nodes of all; use schedule=serial, or batch=1"):
        check_options(EngineOptions(batch=4, schedule=schedule))
    check_options(EngineOptions(batch=4, schedule="serial"))


# --- the command -------------------------------------------------------------------------------------------

Run = Callable[..., "tuple[int, str]"]


@pytest.fixture
def run(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str], tmp_path: Path) -> Run:
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("EDGESPEC_CACHE", str(tmp_path / "cache"))

    def run(*arguments: str | Path, stdin: str = "") -> tuple[int, str]:
        monkeypatch.setattr(sys, "stdin", io.TextIOWrapper(io.BytesIO(stdin.encode())))
        code = main.run(["generate", *map(str, arguments)])
        captured = capsys.readouterr()
        assert captured.out == ""
        return code, captured.err

    return run


FLAGS = ("--memory", "4GB", "--context", "300", "--max-tokens", "12", "--ignore-eos")
ROWS = ["a b c", "Once upon", '{"prompt": "x\\ny"}', "q" * 40, "zz", "hello there", "no", "the end"]


def answers(path: Path) -> dict[int, dict[str, Any]]:
    rows = [json.loads(line) for line in path.read_text().splitlines()]
    found = {row["prompt"]: row for row in rows}
    assert len(found) == len(rows)
    return found


def test_generate_batch_writes_each_answer_once(model: Path, run: Run, tmp_path: Path) -> None:
    rows = [*ROWS[:2], '{"neither": 1}', *ROWS[2:], "y" * 295]
    flags, out = (model, *FLAGS, "--batch", "3", "-o", "out.jsonl"), tmp_path / "out.jsonl"
    code, said = run(*flags, stdin="\n".join(rows))
    assert code == 1
    assert "prompt 2: line 3 of standard input begins with {" in said
    assert "prompt 9: the prompt has 295 tokens" in said
    assert "out.jsonl has 10 answers of 10, 2 of them errors" in said
    found = answers(out)
    assert sorted(found) == list(range(10))
    assert {n for n, row in found.items() if "error" in row} == {2, 9}
    with edgespec.load(model, memory="4GB", context=300, drafter="none") as engine:
        for number, text in ((0, "a b c"), (3, "x\ny"), (4, "q" * 40)):
            alone = edgespec.generate(engine, text, max_tokens=12, ignore_eos=True)
            assert (found[number]["tokens"], found[number]["text"]) == (alone.tokens, alone.text)
            assert found[number]["finish_reason"] == "length"
    before = out.read_bytes()
    code, said = run(*flags, stdin="\n".join(rows))  # nothing is left to do
    assert out.read_bytes() == before
    assert "has 10 answers of 10" in said
    # A run that was killed while it wrote.
    kept = before.splitlines(keepends=True)[:6]
    out.write_bytes(b"".join(kept) + b'{"prompt":7,"key":"12')
    run(*flags, stdin="\n".join(rows))
    assert out.read_bytes().startswith(b"".join(kept))
    assert {n: row.get("tokens") for n, row in answers(out).items()} == {
        n: row.get("tokens") for n, row in found.items()
    }


def test_rows_that_are_no_prompts_are_errors_and_the_others_are_answered(
    model: Path, run: Run, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A line that is too long, too; and each answer has the id of its row."""
    monkeypatch.setattr(prompts, "MAX_LINE_BYTES", 200)
    rows = [
        "before", "x" * 1000, "y" * 200, '{"prompt": "cut', '{"prompt": "a", }', '{"prompt": "\\ud800"}', "",
        '{"prompt": "a", "max_tokens": 3}', '{"prompt": ""}', '{"prompt": "a", "id": "row-7"}',
        '{"turns": ["a", "b"], "id": 8}', "{{ no }}", " " * 300, "after",
    ]  # fmt: skip
    code, said = run(model, *FLAGS, "--batch", "3", "-o", "out", stdin="\n".join(rows))
    found = answers(tmp_path / "out")
    assert code == 1
    assert "out has 13 answers of 13, 9 of them errors" in said
    assert {n for n, row in found.items() if "error" not in row} == {0, 8, 9, 12}
    assert "line 2 of standard input is longer than 200 bytes" in found[1]["error"]
    assert "unknown field `max_tokens`" in found[6]["error"]
    assert {n: row["id"] for n, row in found.items() if "id" in row} == {8: "row-7", 9: 8}
    kept = (tmp_path / "out").read_bytes()
    run(model, *FLAGS, "--batch", "3", "-o", "out", stdin="\n".join(rows))
    assert (tmp_path / "out").read_bytes() == kept
    renamed = [row.replace("row-7", "row-8") for row in rows]
    assert run(model, *FLAGS, "--batch", "3", "-o", "out", stdin="\n".join(renamed))[0] == 2


def test_who_names_no_length_hears_how_many_are_made_at_once(model: Path, run: Run) -> None:
    flags = (model, "--memory", "4GB", "--context", "600", "--batch", "4", "-o", "out", "-p", "x" * 590)
    assert "all of --context 600, so 3 of 4 are made at once" in run(*flags)[1]
    assert "at once" not in run(*flags[:-3], "other", "-p", "x", "--max-tokens", "3")[1]


def test_conversations_in_a_batch_are_those_of_chat(run: Run, tmp_path: Path, model: Path) -> None:
    settings = {"chat_template": "{% for m in messages %}<{{ m.role }}>{{ m.content }}\n{% endfor %}"}
    chatty = tmp_path / "chatty"
    write_model(chatty, max_position_embeddings=4096)
    (chatty / "tokenizer_config.json").write_text(json.dumps(settings))
    turns = [["hi", "and?"], ["what", "is", "that"], ["one"]]
    run(
        chatty,
        *FLAGS,
        "--batch",
        "2",
        "-o",
        tmp_path / "o",
        stdin="".join(json.dumps({"turns": t}) + "\n" for t in turns),
    )
    found = answers(tmp_path / "o")
    with edgespec.load(chatty, memory="4GB", context=300, drafter="none") as engine:
        for number, asked in enumerate(turns):
            row = found[number]
            said = row["replies"] if len(asked) > 1 else [row]
            with edgespec.Chat(engine, options=GenerationOptions(max_tokens=12, ignore_eos=True)) as chat:
                assert [reply["text"] for reply in said] == [chat.send(text).text for text in asked]


@pytest.mark.parametrize(
    ("content", "said"),
    [
        ("hello\n", "its line 1 is no answer"),
        ('{"prompt":0,"key":"0"}\n', "answers prompt 0 .* of another run"),
        ('{"prompt":0}\n', "its line 1 is no answer"),
        ('{"prompt":7,"key":"1"}\n{"prompt":7,"key":"1"}\n', "its line 2 is no answer"),
        ("my only copy of a letter", "its line 1 is no answer"),
    ],
)
def test_a_file_of_something_else_is_left_alone(
    model: Path, run: Run, tmp_path: Path, content: str, said: str
) -> None:
    (tmp_path / "out").write_text(content)
    code, error = run(model, *FLAGS, "-o", "out", stdin="a b\n")
    assert code == 2
    assert (tmp_path / "out").read_text() == content
    assert re.search(said, error.replace("\n", " "))


@pytest.mark.parametrize(
    ("flags", "said"),
    [
        (["--batch", "4"], "say where they go: --output FILE"),
        (["--batch", "0.5", "-o", "o"], "--batch is '0.5'; it must be a whole number"),
        (["--batch", "-1", "-o", "o"], "--batch is -1; it must be from 0 to 1024"),
        (["--batch", "4", "-o", "."], "cannot be opened|no ordinary file"),
        (["-o", "missing/o"], "cannot be opened"),
        (["-o", "o", "--json"], "--json changes nothing with --output"),
        (["-o", "o", "--keep-going"], "--keep-going changes nothing with --output"),
        (["-o", "o", "--batch", "4", "--adapters", "a"], "batch is 4, and the cascade drafts for one"),
    ],
)
def test_wrong_flags_of_a_batch_end_at_once(run: Run, model: Path, flags: list[str], said: str) -> None:
    code, error = run(model, *flags, "-p", "x")
    assert code == 2
    assert re.search(said, error)


def test_other_commands_do_not_hear_of_batch(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str], tmp_path: Path
) -> None:
    """Neither as a flag, nor in the environment, where it would end their drafts."""
    from edgespec.apps import chat

    monkeypatch.chdir(tmp_path)
    assert main.run(["chat", "m", "--batch", "4"]) == 2
    assert "No such option" in capsys.readouterr().err
    heard: list[int] = []

    def hear(model: Any, options: EngineOptions, *rest: Any) -> Any:
        heard.append(options.batch)
        raise OptionError("enough")

    monkeypatch.setattr(chat, "open_engine", hear)
    monkeypatch.setattr(sys, "stdin", io.TextIOWrapper(io.BytesIO(b"")))
    monkeypatch.setenv("EDGESPEC_BATCH", "8")
    main.run(["chat", "m", "-p", "x"])
    assert heard == [1]


def test_a_killed_run_goes_on_where_it_was(model: Path, tmp_path: Path) -> None:
    """Every prompt is answered once, by what an unbroken run says."""
    rows, out = [f"{word} {n}" for n, word in enumerate(ROWS * 2) if "{" not in word], tmp_path / "out"
    (tmp_path / "prompts").write_text("\n".join(rows))
    flags = ["--memory", "4GB", "--context", "300", "--max-tokens", "50", "--ignore-eos"]
    flags += ["--batch", "2", "--resident-layers", "1", "-o", str(out)]
    code = "import sys; from edgespec.apps import main; sys.exit(main.run(sys.argv[1:]))"
    command = [sys.executable, "-c", code, "generate", str(model), *flags]
    with (
        open(tmp_path / "prompts", "rb") as stdin,
        subprocess.Popen(command, cwd=ROOT, stdin=stdin, stderr=subprocess.DEVNULL) as process,
    ):
        try:
            wait_for(lambda: out.exists() and out.read_bytes().count(b"\n") >= 4)
        finally:
            process.kill()
    kept = out.read_bytes()
    kept = kept[: kept.rfind(b"\n") + 1]
    with open(tmp_path / "prompts", "rb") as stdin:
        done = subprocess.run(command, cwd=ROOT, stdin=stdin, capture_output=True, timeout=120, check=False)
    assert done.returncode == 0, done.stderr
    assert out.read_bytes().startswith(kept)
    found = answers(out)
    assert sorted(found) == list(range(len(rows)))
    with edgespec.load(model, memory="4GB", context=300, drafter="none") as engine:
        for number in (0, len(rows) // 2, len(rows) - 1):
            alone = edgespec.generate(engine, rows[number], max_tokens=50, ignore_eos=True)
            assert found[number]["tokens"] == alone.tokens


def test_ctrl_c_keeps_what_there_is(
    model: Path, run: Run, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    compute, passes = LocalVerifier.compute, iter(range(10**6))

    def interrupted(self: LocalVerifier, parts: Any) -> Any:
        if next(passes) == 30:
            raise KeyboardInterrupt
        return compute(self, parts)

    flags = (model, *FLAGS, "--batch", "3", "--drafter", "none", "-o", "out")
    with monkeypatch.context() as patched:
        patched.setattr(LocalVerifier, "compute", interrupted)
        code, said = run(*flags, stdin="\n".join(ROWS))
    assert code == 130
    assert "[stopped; out has 6 answers of 8. The same command goes on with the rest]" in said
    assert len(answers(tmp_path / "out")) == 6
    code, said = run(*flags, stdin="\n".join(ROWS))
    assert code == 0
    assert sorted(answers(tmp_path / "out")) == list(range(8))


def test_two_runs_do_not_write_one_file(model: Path, run: Run, tmp_path: Path) -> None:
    out = tmp_path / "out"
    with output_file(out) as output:
        output.write({"prompt": 5, "key": "k"})
        before = out.read_bytes()
        code, said = run(model, *FLAGS, "--batch", "2", "-o", out, stdin="a b\n")
        assert code == 2
        assert "out is being written by another run" in said.replace("\n", " ")
        assert out.read_bytes() == before
    with output_file(out) as output:  # it is over
        assert output.keys == {5: "k"}


def test_a_full_disk_ends_the_run_with_one_message(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    class Full(io.BytesIO):
        def write(self, data: Any) -> int:
            raise OSError(28, "No space left on device")

    with output_file(tmp_path / "o") as output:
        output.file = Full()
        with pytest.raises(StorageError, match="cannot be written: No space left"):
            output.write({"prompt": 1, "key": "k"})
