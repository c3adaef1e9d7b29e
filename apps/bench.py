"""`edgespec bench`: how fast a model reads prompts (pp) and writes replies (tg), and what that reads."""

from __future__ import annotations

import json
import random
from dataclasses import dataclass, field, replace
from pathlib import Path
from statistics import mean, stdev
from typing import TYPE_CHECKING, Annotated, Any

import typer

from edgespec import __version__
from edgespec.apps import options
from edgespec.apps.common import open_engine
from edgespec.apps.reply import follow
from edgespec.apps.terminal import Terminal
from edgespec.apps.timeline import TRACE_HELP, Timeline, new_session, timeline
from edgespec.config import EngineOptions, GenerationOptions
from edgespec.errors import OptionError
from edgespec.values import Option, Options, count_of, format_bytes

if TYPE_CHECKING:
    from edgespec.engine import Engine
    from edgespec.session import Session


@dataclass(frozen=True)
class BenchFlags(Options):
    """What is measured."""

    prompt_tokens: Annotated[
        tuple[int, ...],
        Option("Lengths of prompts; 0 for none.", metavar="N,...", short="-p", least=0, most=10**6),
    ] = (512,)
    new_tokens: Annotated[
        tuple[int, ...],
        Option("Lengths of replies; 0 for none.", metavar="N,...", short="-n", least=0, most=10**6),
    ] = (128,)
    repetitions: Annotated[int, Option("Runs of each test.", metavar="N", short="-r", least=1, most=1000)] = 5
    json: Annotated[bool, Option("Print one JSON object.")] = False
    trace: Annotated[Path | None, Option(TRACE_HELP, metavar="FILE")] = None


@options.takes()
def bench(model: options.Model, *, wanted: BenchFlags, engine: EngineOptions) -> None:
    """Measure speed: prompt reading (pp), greedy replies (tg), and what they read.

    Mean ± standard deviation; of a model that streams also the disk's own rate, measured before each run.
    """
    tests = [Test("pp", n) for n in wanted.prompt_tokens if n]
    tests += [Test("tg", n) for n in wanted.new_tokens if n]
    if not tests:
        raise OptionError("there is nothing to measure: --prompt-tokens and --new-tokens are both 0")
    needed = max(test.positions for test in tests)
    options.check_together(engine, GenerationOptions())
    if engine.context is None:
        engine = replace(engine, context=needed)
    elif engine.context < needed:
        raise OptionError(f"--context is {engine.context}, but the longest test takes {needed} positions")
    with (
        timeline(wanted.trace) as traced,
        Terminal() as terminal,
        open_engine(model, engine, terminal) as opened,
    ):
        _measure(opened, tests, wanted.repetitions, terminal, traced)
        name = Path(model).name
        if wanted.json:
            terminal.result(json.dumps(_report(opened, name, engine, tests)))
        else:
            terminal.result(_table(opened, name, tests))


@dataclass
class Run:
    """One repetition of one test."""

    tokens_per_second: float
    tokens_per_cycle: float | None
    bytes_per_token: float
    read_gbps: float
    direct_gbps: float | None  # the disk's own rate, measured just before


@dataclass
class Test:
    kind: str  # "pp" or "tg"
    length: int
    runs: list[Run] = field(default_factory=list)

    @property
    def name(self) -> str:
        return f"{self.kind}{self.length}"

    @property
    def positions(self) -> int:
        """Prompt and reply: pp makes one token, tg starts from one and times `length` after the first."""
        return self.length + (1 if self.kind == "pp" else 2)

    def average(self, figure: str) -> float | None:
        """Mean of one figure of the runs; None when they have none."""
        values = [getattr(run, figure) for run in self.runs if getattr(run, figure) is not None]
        return mean(values) if values else None

    @property
    def deviation(self) -> float:
        speeds = [run.tokens_per_second for run in self.runs]
        return stdev(speeds) if len(speeds) > 1 else 0.0

    @property
    def share_of_direct(self) -> float | None:
        """The run's read rate over the disk's own, averaged; None when nothing is read."""
        shares = [run.read_gbps / run.direct_gbps for run in self.runs if run.direct_gbps and run.read_gbps]
        return mean(shares) if shares else None


def _measure(
    engine: Engine, tests: list[Test], repetitions: int, terminal: Terminal, traced: Timeline | None
) -> None:
    terminal.count_reads(lambda: engine.bytes_read)
    dice = random.Random(0)
    session = new_session(engine, traced)
    _run(Test("pp", 1), engine, session, dice, terminal)  # a first pass also pays for buffers and threads
    for repetition in range(repetitions):
        for test in tests:
            terminal.busy(f"{test.name}, run {repetition + 1} of {repetitions}")
            test.runs.append(_run(test, engine, session, dice, terminal))


def _run(test: Test, engine: Engine, session: Session, dice: random.Random, terminal: Terminal) -> Run:
    direct = _direct_rate(engine) if engine.plan.streamed_bytes else None
    is_prompt = test.kind == "pp"
    prompt = [dice.randrange(engine.config.vocab_size) for _ in range(test.length if is_prompt else 1)]
    # Every reply has the length that is asked for.
    wanted = GenerationOptions(max_tokens=1 if is_prompt else test.length + 1, ignore_eos=True)
    terminal.busy(f"prompt {count_of(len(prompt), 'token')}")
    reply = follow(session.generate(prompt, wanted, terminal.progress), session.cancel, terminal, show=False)
    if reply.finish_reason == "cancelled":
        raise typer.Exit(130)
    stats = reply.stats
    if not is_prompt:
        return Run(
            tokens_per_second=stats.tokens_per_second,
            tokens_per_cycle=stats.tokens_per_cycle,
            bytes_per_token=stats.bytes_per_token,
            read_gbps=stats.read_gbps,
            direct_gbps=direct,
        )
    tokens = stats.prompt_tokens - stats.reused_tokens
    moved = stats.bytes_read - stats.decode_bytes_read
    return Run(
        tokens_per_second=tokens / stats.prefill_seconds,
        tokens_per_cycle=None,
        bytes_per_token=moved / tokens,
        read_gbps=moved / stats.prefill_seconds / 1e9,
        direct_gbps=direct,
    )


def _direct_rate(engine: Engine) -> float | None:
    """GB/s of direct reads of the model's largest file, now; None for a file too small to tell."""
    from edgespec.devices.rates import read_rate

    measured = read_rate(max(engine.plan.table.files(), key=lambda path: path.stat().st_size), fresh=True)
    return measured.gbps if measured else None


def _table(engine: Engine, model: str, tests: list[Test]) -> str:
    """A Markdown table, one row a test."""
    table, dial = engine.plan.table, engine.plan.dial
    peak = f"{format_bytes(engine.peak_memory())} of {format_bytes(dial)}"
    heads = ["model", "size", "precision", "test", "tokens/s", "tokens/cycle", "read a token", "read rate"]
    heads += ["of the disk's", "peak memory"]
    rows = [f"| {' | '.join(heads)} |", "| --- | ---: | --- |" + " ---: |" * (len(heads) - 3)]
    for test in tests:
        cycle = test.average("tokens_per_cycle")
        share = test.share_of_direct
        cells = [
            model,
            format_bytes(table.nbytes),
            table.precision,
            test.name,
            f"{test.average('tokens_per_second'):.4g} ± {test.deviation:.2g}",
            "–" if cycle is None else f"{cycle:.3g}",
            format_bytes(test.average("bytes_per_token") or 0),
            f"{format_bytes((test.average('read_gbps') or 0) * 1e9)}/s",
            "–" if share is None else f"{share:.0%}",
            peak,
        ]
        rows.append(f"| {' | '.join(cells)} |")
    return "\n".join(rows)


def _report(engine: Engine, model: str, options: EngineOptions, tests: list[Test]) -> dict[str, Any]:
    return {
        "edgespec": __version__,
        "model": model,
        "weight_bytes": engine.plan.table.nbytes,
        "precision": engine.plan.table.precision,
        "device": options.device,
        "memory": engine.plan.dial,
        "peak_memory": engine.peak_memory(),
        "plan": engine.plan.to_dict(),
        "tests": [
            {
                "test": test.name,
                "tokens_per_second": test.average("tokens_per_second"),
                "tokens_per_second_sd": test.deviation,
                "tokens_per_cycle": test.average("tokens_per_cycle"),
                "bytes_per_token": test.average("bytes_per_token"),
                "read_gbps": test.average("read_gbps"),
                "direct_read_gbps": test.average("direct_gbps"),
                "share_of_direct_read": test.share_of_direct,
                "samples": [run.tokens_per_second for run in test.runs],
            }
            for test in tests
        ],
    }
