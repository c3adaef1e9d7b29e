"""`edgespec bench --batch`: several conversations timed together say what each would alone."""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path

import pytest

import edgespec
from edgespec.apps import bench_runs, main
from edgespec.apps.bench_replies import Several
from edgespec.apps.bench_runs import Arm
from edgespec.apps.bench_tables import as_text
from edgespec.apps.terminal import Terminal
from edgespec.config import EngineOptions, GenerationOptions
from edgespec.core.trace import Cycle
from edgespec.engine import Engine
from edgespec.errors import BudgetError
from edgespec.runtimes.formats.needs import context_of, pool_positions, round_up
from edgespec.runtimes.formats.passes import BLOCK
from tests.test_session import prompt_of, write_model

PROMPTS = [prompt_of(n, seed=n) for n in (7, 3, 12)]


@pytest.fixture(scope="module")
def model(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return write_model(tmp_path_factory.mktemp("bench") / "m", max_position_embeddings=2048)


@pytest.fixture
def engine(model: Path) -> Iterator[Engine]:
    with edgespec.load(model, memory="4GB", context=64, batch=3, drafter="ngram") as engine:
        yield engine


def test_replies_are_timed_together_and_say_what_each_says_alone(engine: Engine) -> None:
    cycles: list[Cycle] = []
    together = Several(engine, None, Terminal(), 48, cycles.append)
    for tokens in (9, 1, 5):  # in the same conversations
        cycles.clear()
        timed = together.reply(PROMPTS, tokens)
        assert timed.tokens == 3 * (tokens - 1) <= sum(len(cycle.outcome.tokens) for cycle in cycles)
        assert timed.passes <= tokens - 1
        assert timed.prompt_seconds > 0
        assert timed.tokens_per_cycle >= 1
    assert timed.prompt_tokens <= 3, "what the conversations have of their prompts is not read again"
    said = [session.tokens for session in together.sessions]
    for session in together.sessions:
        session.close()
    options = GenerationOptions(max_tokens=5, ignore_eos=True)
    for prompt, tokens_ in zip(PROMPTS, said, strict=True):
        assert [*prompt, *edgespec.generate(engine, prompt, options).tokens[:-1]] == tokens_


def test_ctrl_c_ends_them_all_and_they_may_reply_again(engine: Engine) -> None:
    def hear(cycle: Cycle) -> None:
        if stopping:
            together._cancel()

    together, stopping = Several(engine, None, Terminal(), 48, hear), True
    with pytest.raises(KeyboardInterrupt):
        together.reply(PROMPTS, 20)
    stopping = False
    assert together.reply(PROMPTS, 3).tokens == 6


def test_trees_of_a_fixed_size_have_room_behind_the_replies(model: Path) -> None:
    wanted = EngineOptions(batch=2, drafter="ngram", memory=4 * 10**9, tree_nodes=16)
    setting = Arm(wanted, steps=4, tests=[bench_runs.Test("tg", 12)])
    assert setting.positions == 12 + 2 + 1 + 16
    with edgespec.load(model, memory="4GB", context=setting.positions, batch=2, drafter="ngram") as engine:
        together = Several(engine, 4, Terminal(), setting.positions, lambda cycle: None)
        assert together.reply([[1, 2], [1, 3]], 13).tokens == 24


@pytest.mark.parametrize("sequences", [1, 2, 16])
@pytest.mark.parametrize("positions", [5, 512, 600, 1024])
def test_so_many_fit_into_the_context_that_is_asked_for(sequences: int, positions: int) -> None:
    context = context_of(sequences, positions)
    assert context >= positions
    if sequences > 1:
        assert pool_positions(context, sequences) >= sequences * round_up(positions)
        assert context == positions or pool_positions(context - BLOCK, sequences) < sequences * round_up(
            positions
        )


def test_a_setting_with_a_batch(model: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Its rows say how many; auto takes as many as have room; prompts differ, and fit."""
    monkeypatch.setattr(bench_runs, "_measure_matmuls", lambda terminal: None)
    found = []
    for batch, context, memory in ((1, 30, 10**9), (3, 30, 10**9), (0, 64, 5 * 10**8)):
        wanted = EngineOptions(batch=batch, context=context, memory=memory, drafter="none")
        tests = [bench_runs.Test("pp", 8), bench_runs.Test("tg", 6), bench_runs.Test("tg", 6, depth=4)]
        found.append(Arm(wanted, tests=tests))
        bench_runs.measure(str(model), found[-1], 2, False, None, Terminal())
    rows = [json.loads(line) for line in as_text("jsonl", "m", found, False).splitlines()]
    batches = [row["batch"] for row in rows]
    assert batches[:6] == [1, 1, 1, 3, 3, 3]
    assert batches[-1] > 3
    assert all(row["tokens_per_second"] > 0 for row in rows)
    assert "| batch |" in as_text("md", "m", found[1:2], False), "also where all settings have the same"
    assert "| batch |" not in as_text("md", "m", found[:1], False)


def cells(peaks: list[int | None], *speeds: float) -> list[dict[str, str]]:
    """The Markdown table of settings with these peaks of the cgroup, each run at these tokens/s."""
    runs = [bench_runs.Run(speed, 2.0, 0.0, 0.0, None, None, 1.0, kappa=1.5) for speed in speeds]
    found = []
    for peak in peaks:
        found.append(Arm(EngineOptions(memory=10**9), tests=[bench_runs.Test("tg", 6, runs=runs)]))
        found[-1].found = dict.fromkeys(("weight_bytes", "memory", "peak_memory"), 10**9)
        found[-1].found |= {"precision": "BF16", "cgroup_peak": peak, "memory_gbps": 9.0, "batch": 1}
        found[-1].found |= {"rho": 2.0, "drafters": [], "schedule": "serial"}
    head, _, *rows = (line.strip("| ").split(" | ") for line in as_text("md", "m", found, False).splitlines())
    return [dict(zip(head, row, strict=True)) for row in rows]


def test_speeds_have_as_many_decimals_as_their_deviations() -> None:
    assert cells([None], 2900.0, 3675.0, 4455.5)[0]["tokens/s"] == "3676.83 ± 777.75"
    assert cells([None], 0.04, 0.05)[0]["tokens/s"] == "0.045 ± 0.007"


def test_each_setting_has_its_cgroup_s_peak_where_it_is_known() -> None:
    assert [row["cgroup's peak"] for row in cells([10**9, None, 3 * 10**9], 1.0)] == ["1 GB", "–", "3 GB"]
    (row,) = cells([None], 1.0)
    assert "cgroup's peak" not in row
    assert "kappa" not in row


@pytest.mark.parametrize(
    ("flags", "told"),
    [
        (["--batch", "2", "-n", "600", "--context", "700"], "--context is 700, but 2 conversations of 603"),
        (["--batch", "2", "--trace", "t.json"], "--trace is of one conversation"),
        (["--batch", "2,-1"], "--batch is -1"),
        (["--batch", "2,x"], "--batch is 'x'; it must be a whole number"),
        (["--batch", "2000"], "from 0 to 1024"),
        (
            ["--batch", "4", "--drafter", "cascade", "--adapters", "a"],
            "drafts for one conversation at a time",
        ),
    ],
)
def test_refused(flags: list[str], told: str, capsys: pytest.CaptureFixture[str]) -> None:
    assert main.run(["bench", "m", "-p", "0", *flags]) == 2
    assert told in capsys.readouterr().err


def test_conversations_beyond_the_plan_are_refused_with_what_fits(model: Path) -> None:
    with (
        edgespec.load(model, memory="1GB", context=64, batch=2, drafter="none") as engine,
        pytest.raises(BudgetError, match="KV memory for 128 positions"),
    ):
        Several(engine, None, Terminal(), 65, lambda cycle: None)
