"""An engine in a process of its own that reports every cycle of a reply: what was drafted, and what it cost.

A job is a JSON line: `prompt` (ids), `tokens` and `cycles` (at most so many), `temperature`, `seed`, `mode`:

    {"kind": "own"}                        the engine's own drafter and controller
    {"kind": "fixed", "steps": [4, 8]}     its drafter, cycle by cycle with the next of these numbers of steps
    {"kind": "fixed", ..., "variant": "chain", "fresh": true}    a cascade so; fresh: having learnt nothing
    {"kind": "set", "steps": [8], "reply": [...], "p": 0.9}      `SetAcceptance` around its drafter
    {"kind": "wrong", "nodes": [1, 64]}    trees of random tokens, cycle by cycle with so many nodes
"""

from __future__ import annotations

import argparse
import itertools
import json
import sys
import time
from collections.abc import Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

from benchmarks.common import Row
from benchmarks.held_out import repetition
from benchmarks.worker import Worker

NODES = 64


class DraftWorker(Worker):
    """The parent's side."""

    script = "benchmarks.draft_worker"

    def run(self, prompt: list[int], tokens: int, mode: Row, **more: Any) -> Row:
        """One reply; raises RuntimeError when it failed."""
        row = self.ask({"prompt": prompt, "tokens": tokens, "mode": mode, **more})
        if "error" in row:
            raise RuntimeError(row["error"])
        return row


def open_worker(model: Path, dial: int, drafter: str, *options: str | Path | int) -> DraftWorker:
    """Raises RuntimeError when the engine does not open."""
    worker = DraftWorker(model, dial, drafter, *map(str, options))
    if "error" in worker.loaded:
        worker.close()
        raise RuntimeError(worker.loaded["error"])
    return worker


def recorded(model: Path, dial: int, kinds: Mapping[str, Sequence[list[int]]], tokens: int) -> Row:
    """By kind of prompt, what the model says by itself: [{prompt, reply, repeats}]."""
    row: Row = {}
    with open_worker(model, dial, "none") as worker:
        for kind, texts in kinds.items():
            row[kind] = []
            for text in texts:
                said = worker.run(text, tokens, {"kind": "own"})["tokens"]
                row[kind].append({"prompt": text, "reply": said, "repeats": repetition(text, said)})
    return row


def timed(reply: Row) -> list[Row]:
    """The cycles whose time and tokens count: not the first (a full ring awaits it), nor the last (cut)."""
    cycles: list[Row] = reply["cycles"][1:-1]
    return cycles


def main() -> None:
    from benchmarks.set_acceptance import SetAcceptance, Wrong
    from edgespec.config import EngineOptions, GenerationOptions
    from edgespec.control.controller import Fixed
    from edgespec.core.schedule import TreeBudget
    from edgespec.core.trace import Cycle
    from edgespec.core.tree import TokenTree
    from edgespec.drafters.base import Drafter
    from edgespec.drafters.cascade.files import Cascade
    from edgespec.drafters.cascade.tree import Calibration
    from edgespec.drafters.cascade.variant import VARIANTS
    from edgespec.engine import Engine
    from edgespec.errors import EdgeSpecError
    from edgespec.runtimes.torch.kv_cache import TorchKVCache
    from edgespec.schedules.serial import Serial
    from edgespec.session import Session

    class Rotating(Fixed):
        """The next of several budgets each cycle."""

        def __init__(self, budgets: list[TreeBudget]) -> None:
            self.budgets = itertools.cycle(budgets)

        def budget(self, limit: TreeBudget, steps: range) -> TreeBudget | None:
            self._budget = next(self.budgets)
            return super().budget(limit, steps)

    class Traffic:
        """Bytes of layers that passes have read from memory, by layers that they ran."""

        def __init__(self, engine: Engine) -> None:
            self.nbytes = 0
            sizes = [0] * engine.config.layers
            pinned = [0] * engine.config.layers
            for chunk in engine.plan.table.chunks:
                if chunk.layer < len(sizes):
                    sizes[chunk.layer] += chunk.nbytes
                    pinned[chunk.layer] += chunk.nbytes * (chunk.index in engine.plan.pinned)
            self.watch(engine.target, sizes, 0)
            for resident in engine.resident:
                if isinstance(resident, Cascade) and resident.substitute is not None:
                    self.watch(resident.substitute, pinned, resident.substitute.weights.nbytes)

        def watch(self, model: Any, layer: list[int], whole: int) -> None:
            run = model.run

            def counted(hidden: Any, rows: Any, layers: range, observer: Any = None) -> Any:
                self.nbytes += whole + sum(layer[i] for i in layers)
                return run(hidden, rows, layers, observer)

            model.run = counted

    def cascade(engine: Engine, session: Session, variant: str, fresh: bool) -> Drafter:
        found = next(r for r in engine.resident if isinstance(r, Cascade))
        if fresh:
            found.calibrations = Calibration(), Calibration()
        assert isinstance(session.cache, TorchKVCache)
        # Every cycle to its full depth: the paper's chains do not stop when they are unsure.
        return found.drafter(session.cache, variant=replace(VARIANTS[variant], stop=0.0))

    def prepare(engine: Engine, session: Session, job: Row) -> None:
        mode, vocabulary = job["mode"], engine.config.vocab_size
        kind, schedule = mode["kind"], session.schedule
        if kind == "own":
            return
        if kind == "wrong":
            budgets = [TreeBudget(n, 1, 0) for n in mode["nodes"]]
            session.schedule = Serial(Wrong(min(vocabulary, 1000), job["seed"]), Rotating(budgets), NODES)
            return
        if not isinstance(schedule, Serial):
            raise EdgeSpecError("this engine has no drafter to drive")
        schedule.controller = Rotating([TreeBudget(NODES, max(n, 24 * (n == 0)), n) for n in mode["steps"]])
        if "variant" in mode:
            schedule.drafter = cascade(engine, session, mode["variant"], mode.get("fresh", False))
        if kind == "set":
            schedule.drafter = SetAcceptance(
                schedule.drafter, mode["reply"], mode["p"], job["seed"], vocabulary
            )

    def reply(engine: Engine, job: Row) -> Row:
        session = engine.new_session()
        prepare(engine, session, job)
        drafted: list[Cycle] = []
        if isinstance(session.schedule, Serial):
            controller = session.schedule.controller
            learn = controller.record

            def record(cycle: Cycle) -> None:
                drafted.append(cycle)
                learn(cycle)

            controller.record = record  # type: ignore[method-assign]
        options = GenerationOptions(job["tokens"], temperature=job["temperature"], seed=job["seed"])
        tokens: list[int] = []
        ends: list[Row] = []
        finish = None
        stats = None
        for response in session.generate(job["prompt"], options):
            stats, finish = response.stats, response.finish_reason
            if response.token is None:
                continue
            tokens.append(response.token)
            if len(ends) < stats.cycles:
                ends.append(
                    {
                        "at": time.perf_counter(),
                        "bytes": engine.bytes_read,
                        "layers": traffic.nbytes,
                        "tokens": 0,
                    }
                )
            ends[-1]["tokens"] += 1
            if len(ends) > job["cycles"]:  # the last is cut, like that of a reply that has ended
                break
        session.close()
        assert stats is not None
        cycles = []
        whole = drafted or [Cycle(0, TokenTree.root(0), None, 0.0, 0.0)] * (len(ends) - 1)  # type: ignore[arg-type]
        for before, end, cycle in zip(ends, ends[1:], whole, strict=False):
            seconds = end["at"] - before["at"]
            cycles.append(
                {
                    "seconds": seconds,
                    "tokens": end["tokens"],
                    "bytes": end["bytes"] - before["bytes"],
                    "layers": end["layers"] - before["layers"],
                    "steps": cycle.passes or 0,
                    "nodes": len(cycle.tree),
                    "draft": cycle.draft_seconds,
                    "verify": cycle.verify_seconds if drafted else seconds,
                }
            )
        return {
            "tokens": tokens,
            "finish": finish,
            "cycles": cycles,
            "prefill_seconds": stats.prefill_seconds,
            "decode_seconds": stats.decode_seconds,
            "passes": stats.cycles,
            "tokens_per_second": stats.tokens_per_second,
            "tokens_per_cycle": stats.tokens_per_cycle,
            "bytes_per_token": stats.bytes_per_token,
            "peak_memory": stats.peak_memory,
        }

    parser = argparse.ArgumentParser(description=(__doc__ or "").split("\n")[0])
    parser.add_argument("model")
    parser.add_argument("--memory", type=int, required=True)
    parser.add_argument("--drafter", default="none")
    parser.add_argument("--draft-model")
    parser.add_argument("--adapters")
    parser.add_argument("--resident-layers", type=int)
    parser.add_argument("--context", type=int, default=1024)
    args = parser.parse_args()
    answers, sys.stdout = sys.stdout, sys.stderr

    def answer(row: Row) -> None:
        answers.write(json.dumps(row) + "\n")
        answers.flush()

    began = time.perf_counter()
    try:
        engine = Engine.load(
            args.model,
            EngineOptions(
                memory=args.memory,
                drafter=args.drafter,
                draft_model=args.draft_model,
                adapters=args.adapters,
                resident_layers=args.resident_layers,
                context=args.context,
            ),
        )
    except EdgeSpecError as error:
        answer({"error": str(error)})
        return
    traffic = Traffic(engine)
    answer({"plan": engine.plan.to_dict(), "load_seconds": time.perf_counter() - began})
    for line in sys.stdin:
        job = {"temperature": 0.0, "seed": 0, "cycles": 10**6, **json.loads(line)}
        try:
            answer(reply(engine, job))
        except (EdgeSpecError, ValueError) as error:
            answer({"error": str(error)})


if __name__ == "__main__":
    main()
