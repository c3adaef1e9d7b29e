"""What `edgespec bench` measures of one setting: in this process, or in one of its own.

Rates of the hardware are taken in the same run: of memory before the model is loaded, of the disk before and
after each test of a model that streams. A *cold* run is the first thing that its process does, and nothing of
the model's files lies in the page cache then.
"""

from __future__ import annotations

import os
import random
from contextlib import ExitStack
from dataclasses import dataclass, field
from itertools import zip_longest
from pathlib import Path
from statistics import mean, stdev
from time import perf_counter, sleep
from typing import TYPE_CHECKING, Any

from edgespec.apps.bench_drafts import Drafts
from edgespec.apps.bench_replies import Several, Single
from edgespec.apps.common import open_engine
from edgespec.apps.terminal import Terminal
from edgespec.apps.timeline import Timeline, timeline
from edgespec.config import EngineOptions
from edgespec.values import count_of

if TYPE_CHECKING:
    from edgespec.core.trace import Cycle
    from edgespec.engine import Engine

SETTLED_SECONDS = 0.2  # without a read: the ring is full
DEEPEST = 64  # position of a drafted token that is told of


@dataclass
class Run:
    """One repetition of one test. Rates are GB/s (10^9 bytes), times seconds."""

    tokens_per_second: float
    tokens_per_cycle: float | None  # None of prompts
    bytes_per_token: float
    read_gbps: float
    direct_gbps: float | None  # the disk's own rate: just before and just after, averaged
    roofline: float | None  # share of the speed that disk and memory would allow
    load_seconds: float  # of the model, in this process
    tried: list[int] = field(default_factory=list)  # cycles whose tree was so deep: 1, 2, ...,
    kept: list[int] = field(default_factory=list)  # and those that accepted a token there
    # See `bench_drafts`; None without drafts.
    accepted_length: float | None = None
    nodes: float | None = None
    kappa: float | None = None
    r1: float | None = None


@dataclass
class Test:
    kind: str  # "pp" or "tg"
    length: int
    depth: int = 0  # positions that the context holds before
    runs: list[Run] = field(default_factory=list)

    @property
    def name(self) -> str:
        return f"{self.kind}{self.length}" + (f" @ d{self.depth}" if self.depth else "")

    @property
    def positions(self) -> int:
        """Depth, prompt and reply: pp makes one token, tg starts from one and times `length` after the
        first."""
        return self.depth + self.length + (1 if self.kind == "pp" else 2)

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

    @property
    def acceptance(self) -> list[float]:
        """By position behind the root, from 1 on: of the trees so deep, the share that had a token accepted
        there."""
        tried = map(sum, zip_longest(*(run.tried for run in self.runs), fillvalue=0))
        kept = map(sum, zip_longest(*(run.kept for run in self.runs), fillvalue=0))
        return [n / of for n, of in zip(kept, tried, strict=True)]


@dataclass
class Arm:
    """Options of the engine, and a fixed number of drafting passes a cycle (None: the controller decides);
    then what was found."""

    options: EngineOptions
    steps: int | None = None
    tests: list[Test] = field(default_factory=list)
    found: dict[str, Any] = field(default_factory=dict)  # JSON: of the model, its plan, memory

    @property
    def positions(self) -> int:
        """That a conversation takes: one among others begins with another token more, and trees of a size
        that nobody adapts lie behind its end."""
        longest = max(test.positions for test in self.tests)
        if self.options.batch == 1:
            return longest
        return longest + 1 + (self.options.tree_nodes if self.steps is not None else 0)


def measure(
    model: str, setting: Arm, repetitions: int, cold: bool, trace: Path | None, terminal: Terminal
) -> None:
    """Run the setting's tests in turn, so many times, and keep what they give. Raises KeyboardInterrupt when
    a run was stopped, and what loading and replying raise."""
    wanted = setting.options
    with ExitStack() as stack:
        traced = stack.enter_context(timeline(trace))
        if not cold:  # a cold run's process has done nothing before
            _measure_matmuls(terminal)
        memory_gbps = None if wanted.device == "cuda" else _memory_rate(wanted.memory)
        before, began = _cgroup_peak(), perf_counter()
        engine = stack.enter_context(open_engine(model, wanted, terminal))
        loaded = perf_counter() - began
        terminal.count_reads(lambda: engine.bytes_read)
        runs = _Runs(engine, setting, terminal, traced, loaded, memory_gbps)
        if not cold:
            runs.run(Test("pp", 1))  # a first pass also pays for buffers and threads
        for repetition in range(repetitions):
            for test in setting.tests:
                terminal.busy(f"{test.name}, run {repetition + 1} of {repetitions}")
                test.runs.append(runs.run(test))
        after, peak = _cgroup_peak(), engine.peak_memory()
        setting.found = {
            "weight_bytes": engine.plan.table.nbytes,
            "precision": engine.plan.table.precision,
            "memory": engine.plan.dial,
            "peak_memory": max(peak, setting.found.get("peak_memory", 0)),
            # Page cache and all, where this run has raised it.
            "cgroup_peak": after if after is not None and after > (before or 0) else None,
            "memory_gbps": memory_gbps,
            "batch": len(runs.replies.sessions),
            "rho": engine.plan.costs().redundancy,
            "drafters": list(engine.drafters),
            "schedule": engine.schedule,
            "plan": engine.plan.to_dict(),
        }


class _Runs:
    """Tests in one conversation of an engine, or in as many as it makes replies at once."""

    def __init__(
        self,
        engine: Engine,
        setting: Arm,
        terminal: Terminal,
        traced: Timeline | None,
        load_seconds: float,
        memory_gbps: float | None,
    ) -> None:
        self.engine, self.terminal = engine, terminal
        self.load_seconds, self.memory_gbps = load_seconds, memory_gbps
        self.dice = random.Random(0)
        self.direct_gbps: float | None = None  # as measured last
        self.filling: list[int] = []  # of the context, in tests with a depth
        self.replies: Single | Several
        if setting.options.batch == 1:
            self.replies = Single(engine, setting.steps, terminal, traced, self._hear)
        else:
            self.replies = Several(engine, setting.steps, terminal, setting.positions, self._hear)

    def _hear(self, cycle: Cycle) -> None:
        self.drafts.add(cycle)
        deepest = min(int(cycle.tree.depths.max()), DEEPEST)
        for position in range(deepest):
            self.tried[position] += 1
            self.kept[position] += position < cycle.outcome.accepted

    def run(self, test: Test) -> Run:
        self.tried, self.kept, self.drafts = [0] * DEEPEST, [0] * DEEPEST, Drafts()
        is_prompt = test.kind == "pp"
        if test.depth:
            self._fill(test.depth)
        before = self.direct_gbps or self._direct_rate()  # that of the run before was just now
        timed = self.replies.reply(self._prompts(test), 1 if is_prompt else test.length + 1)
        after = self.direct_gbps = self._direct_rate()
        direct = (before + after) / 2 if before and after else None
        if is_prompt:
            tokens, seconds, moved = timed.prompt_tokens, timed.prompt_seconds, timed.prompt_bytes
            through = 0  # of memory: a prompt's passes are bound by arithmetic where flash does not bind them
        else:
            tokens, seconds, moved = timed.tokens, timed.seconds, timed.bytes_read
            through = timed.passes * self.engine.plan.table.nbytes
        deepest = DEEPEST - self.tried.count(0)  # trees are as deep as the positions before, too
        return Run(
            tokens_per_second=tokens / seconds if seconds > 0 else 0.0,
            tokens_per_cycle=None if is_prompt else timed.tokens_per_cycle,
            bytes_per_token=moved / tokens if tokens else 0.0,
            read_gbps=moved / seconds / 1e9 if seconds > 0 else 0.0,
            direct_gbps=direct,
            roofline=self._roofline(moved, through, seconds, direct),
            load_seconds=self.load_seconds,
            tried=self.tried[:deepest],
            kept=self.kept[:deepest],
            **self._of_drafts(),
        )

    def _prompts(self, test: Test) -> list[list[int]]:
        """A reply begins as a text does, so that what is drafted and accepted is of the model's own text;
        several go on with another token each."""
        bos, alone = self.engine.tokenizer.bos, len(self.replies.sessions) == 1
        start, more = self.filling[: test.depth], test.length if test.kind == "pp" else 1
        if test.kind == "tg" and not test.depth and bos is not None:
            start, more = [bos], int(not alone)
        return [start + self._random(more) for _ in self.replies.sessions]

    def _of_drafts(self) -> dict[str, float | None]:
        drafts, plan = self.drafts, self.engine.plan
        if not drafts.trees:
            return {}
        step = sum(resident.nbytes for resident in self.engine.resident)
        r1 = drafts.r1(step, plan.table.nbytes)
        return {"accepted_length": drafts.a, "nodes": drafts.k, "kappa": drafts.kappa, "r1": r1}

    def _roofline(self, moved: int, through: int, seconds: float, direct: float | None) -> float | None:
        """The larger of the least times that flash and memory need, over the time taken; None where the rate
        of what binds is not known."""
        if seconds <= 0 or (moved and direct is None) or (through and self.memory_gbps is None):
            return None
        least = max(moved / (direct or 1), through / (self.memory_gbps or 1)) / 1e9
        return least / seconds if least else None

    def _direct_rate(self) -> float | None:
        """GB/s of direct reads of the model's largest file, now that the engine has the disk at rest; None
        where it needs none, or for a file too small to tell."""
        from edgespec.devices.rates import SMALLEST_FILE, measure_reads

        largest = max(self.engine.plan.table.files(), key=lambda path: path.stat().st_size)
        if not self.engine.plan.streamed_bytes or largest.stat().st_size < SMALLEST_FILE:
            return None
        before = -1
        while (now := self.engine.bytes_read) != before:  # the ring is being filled for the next pass
            before = now
            sleep(SETTLED_SECONDS)
        rate = measure_reads(largest)
        return None if rate is None else rate.gbps

    def _fill(self, depth: int) -> None:
        """Have the context hold the first `depth` tokens of the filling; what it holds of them stays."""
        missing = depth - len(self.filling)
        if missing > 0:
            self.filling += self._random(missing)
        filling = self.filling[:depth]
        if any(session.tokens[:depth] != filling for session in self.replies.sessions):
            self.terminal.busy(f"filling the context with {count_of(depth, 'token')}")
            self.replies.reply([filling] * len(self.replies.sessions), 1)

    def _random(self, count: int) -> list[int]:
        return [self.dice.randrange(self.engine.config.vocab_size) for _ in range(count)]


def _measure_matmuls(terminal: Terminal) -> None:
    """Once for this machine: plans go by them, and rho."""
    from edgespec.devices.probe import forget_peak
    from edgespec.runtimes.torch.matmuls import matmuls  # torch: not for --help

    matmuls(progress=lambda done, total: terminal.busy(f"measuring matmuls, {done} of {total}"))
    forget_peak()


def _memory_rate(dial: int | None) -> float:
    """GB/s of reading memory, now; of at most a quarter of the dial, as nothing is loaded yet."""
    from edgespec.devices.probe import forget_peak
    from edgespec.devices.rates import measure_memory

    found = measure_memory(min(2**28, (dial or 2**30) // 4))
    forget_peak()
    return found


def _cgroup_peak() -> int | None:
    """Of the cgroup that holds this process, and at most the one that has started it, alone."""
    from edgespec.devices.cgroup import memory_cgroups

    own = next(iter(memory_cgroups()), None)
    if own is None:
        return None
    try:
        held = {int(pid) for pid in (own.path / "cgroup.procs").read_text().split()}
    except (OSError, ValueError):
        return None
    return own.peak if held <= {os.getpid(), os.getppid()} else None
