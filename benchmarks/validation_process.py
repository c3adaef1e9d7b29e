"""One setting of `validation.py` in a process of its own: what the tuner says of it, and what comes.

    python -m benchmarks.validation_process speed MODEL '{"memory": 9e8}' '{"replies": 3, "seconds": 9}'
    python -m benchmarks.validation_process memory MODEL '{"memory": 9e8, "context": 512}' '{}'

The last line of stdout is JSON.
"""

from __future__ import annotations

import json
import sys
from dataclasses import replace
from pathlib import Path
from time import perf_counter

import numpy as np

from benchmarks.common import PROMPT, Row
from benchmarks.held_out import stories
from edgespec.config import EngineOptions, GenerationOptions
from edgespec.core.schedule import TreeBudget
from edgespec.devices.allocator import return_freed_memory
from edgespec.devices.matmuls import WEIGHTS_PER_BYTE, Matmuls
from edgespec.devices.probe import forget_peak, peak_memory, process_memory
from edgespec.devices.rates import measure_reads
from edgespec.engine import Engine
from edgespec.runtimes.base import TREE_ROWS
from edgespec.runtimes.formats.passes import FEW
from edgespec.runtimes.rows import Rows
from edgespec.runtimes.torch.matmuls import measure
from edgespec.text.prompt import Prompt
from edgespec.tuning.fit import fit_runs
from edgespec.tuning.measure import run_setting
from edgespec.tuning.runs import Trial
from edgespec.tuning.watch import Watch

STEADY = 0.1  # raw rates before and after a reply differ by no more: else the disk has changed
BASE, TALK = "interpreter and libraries", "conversation"  # owners
FACTORS = "flash", "compute", "step", "chance", "spread", "lookups", "rest", "passes", "rows", "pace"
CAST = 3  # replies whose place another takes, at most


def speed(engine: Engine, replies: int, seconds: float, throttled: float | None = None) -> Row:
    """Replies as `tune --measure` has them, of so many seconds each, but at least four cycles; with drafts as
    many again to other prompts of the same kind, by what the first have shown. The raw rates beside each are
    what its prediction goes by: of matmuls, and of reads `throttled`, in GB/s, which short ones exceed after
    a rest, or as measured."""
    files, streams = engine.files, engine.plan.streamed_bytes > 0
    largest = max(files.table.files(), key=lambda path: path.stat().st_size)
    runs, found, left = list[Trial](), list[Row](), CAST
    asked: list[Prompt] = [PROMPT] * replies
    if engine.tokenizer.template.is_chat:  # an inflated model, whose replies end
        asked = [*stories(files.path, 2 * replies if engine.drafters else replies)]

    def rate() -> float:
        return throttled or (raw(largest) if streams else 1.0)

    after, budget = rate(), None
    for turn, prompt in enumerate(asked):
        fit = fit_runs(runs[:replies] if turn >= replies else ())
        if turn == replies:
            budget = None
        while True:
            before = after
            rates = replace(engine.plan.rates, read=before, matmuls=multiplying(engine))
            watch = Watch(engine, rates=rates)
            setting = watch.expected(fit, budget)
            assert setting is not None
            shown = run_setting(watch, setting, [prompt], perf_counter() + seconds)
            after = rate()
            if not shown or abs(after / before - 1) <= STEADY or not left:
                break
            left -= 1
        budget = TreeBudget(setting.tree_nodes, setting.steps, setting.steps)  # of all, as when measuring
        if not shown:  # its story ended before it had cycles enough
            continue
        (run,) = shown
        runs.append(run)
        found.append({
            "after measuring": turn >= replies,
            "raw": [before, after] if streams else None,
            "tree": [setting.tree_nodes, setting.steps],
            "predicted": [setting.speed.low, setting.speed.middle, setting.speed.high],
            "predicted cycle": setting.cycle_seconds,
            "cycles": run.cycles,
            "tokens": run.tokens,
            "seconds": run.seconds,
            "factors": {name: getattr(run, name) for name in FACTORS},
        })  # fmt: skip
    return {"replies": found, "cast": CAST - left, "plan": engine.plan.to_dict()}


def multiplying(engine: Engine) -> Matmuls:
    """What matmuls with the weights of the model, and of what drafts, take now: on a shared machine another
    half as long, minutes later."""
    candidate = Watch(engine).candidate
    assert candidate is not None
    encodings = {*engine.files.table.stored, *candidate.reads(engine.plan)} & WEIGHTS_PER_BYTE.keys()
    return Matmuls({encoding: measure(encoding) for encoding in encodings})


def raw(file: Path) -> float:
    """GB/s."""
    rate = measure_reads(file)
    if rate is None:
        raise SystemExit(f"{file} cannot be read, or is too small to tell a rate")
    return rate.gbps


def memory(engine: Engine) -> Row:
    """Bytes by owner, as they are: of weights, what their buffers take; of a conversation, by how much the
    process has grown with the whole context in use and the largest tree judged there, at most. There are two,
    as what one pass leaves with its thread the next has beside it: the first has a prompt whose rows are
    multiplied as a tree's. `peak`: of the process, from its start on."""
    return_freed_memory()
    peak = peak_memory()
    weights, loaded = engine.target.weights, process_memory().current
    ring = weights.streamer
    owners = {
        "pinned weights": sum(-(-len(view) // 4096) * 4096 for view in weights.pinned.values()),
        "ring": 0 if ring is None else len(ring.buffer),
    }
    forget_peak()
    target = engine.target
    for most in (FEW, engine.plan.context):
        with engine.new_session() as session:
            length = min(most, session.context - 8)
            prompt = np.random.default_rng(0).integers(300, 3000, length).tolist()
            for _ in session.generate(prompt, GenerationOptions(max_tokens=8, ignore_eos=True)):
                pass
            rows = Rows.append(session.cache, np.arange(TREE_ROWS) - 1)
            target.logits(target.run(target.embed(prompt[:TREE_ROWS]), rows, range(target.config.layers)))
            del rows  # which has the cache
    owners[TALK] = peak_memory() - loaded
    return {
        "owners": {BASE: engine.plan.owners[BASE], **owners},
        "resident": max(peak, loaded + owners[TALK]),
    }


def main() -> None:
    kind, model, given, what = sys.argv[1:]
    with Engine.load(Path(model), EngineOptions(**json.loads(given))) as engine:
        print(json.dumps({"speed": speed, "memory": memory}[kind](engine, **json.loads(what))))


if __name__ == "__main__":
    main()
