"""An engine that reports every cycle of a reply: what was drafted, and what it cost. `worker.py` drives it.

    python -m benchmarks.engine_process MODEL '{"memory": 8000000000, "drafter": "none"}'

Of the options two are no engine's: of "cores" the target computes on the first, a draft worker on the second;
with "device" draft workers are stand-ins for an accelerator whose passes take so long (`stand_in.py`).

A job is a JSON line: `prompt` (ids or text), `tokens` and `cycles` (at most so many), `temperature`, `seed`,
`ignore_eos`, `settle` (see `Worker.reply`), `mode`:

    {"kind": "own"}                        the engine's own drafter and controller
    {"kind": "fixed", "steps": [4, 8]}     its drafter, cycle by cycle with the next of these numbers of steps
    {"kind": "fixed", ..., "nodes": 16}    in trees of so many nodes
    {"kind": "fixed", ..., "variant": "chain"}    its cascade so
    {"kind": "set", "steps": [8], "reply": [...], "p": 0.9}      `SetAcceptance` around its drafter
"""

from __future__ import annotations

import itertools
import json
import os
import sys
import time
from collections.abc import Sequence
from contextlib import closing
from dataclasses import asdict, replace
from typing import Any

from benchmarks.common import Row
from benchmarks.drafters import SetAcceptance
from benchmarks.measure import process_io
from benchmarks.stand_in import stand_in
from edgespec.config import EngineOptions, GenerationOptions
from edgespec.control.fixed import Fixed
from edgespec.core.schedule import TreeBudget
from edgespec.core.trace import Cycle, Layer, Trace
from edgespec.drafters.base import Drafter
from edgespec.drafters.beside import Beside
from edgespec.drafters.cascade.drafter import CascadeDrafter
from edgespec.drafters.cascade.exits import Exit, SubstituteExit
from edgespec.drafters.cascade.files import Cascade
from edgespec.drafters.cascade.tree import Calibration
from edgespec.drafters.cascade.variant import VARIANTS
from edgespec.engine import Engine
from edgespec.errors import EdgeSpecError
from edgespec.runtimes.base import KVCache
from edgespec.runtimes.rows import Rows
from edgespec.schedules.serial import Serial
from edgespec.session import Session

NODES = 64  # of the largest tree
DEFAULTS: Row = {"temperature": 0.0, "seed": 0, "cycles": 10**6, "ignore_eos": False, "settle": False}
OVERLAP = "cache_hits", "cache_misses", "drafted_while_verifying", "fallbacks"  # of `Stats`
SETTLED_SECONDS = 0.3  # without a read: the ring is full


class Rotating(Fixed):
    """The next of several budgets each cycle. A second is worth as many tokens as all have made: by that a
    drafter chooses how wide its passes are."""

    def __init__(self, budgets: Sequence[TreeBudget]) -> None:
        super().__init__(budgets[0])
        self.turns = itertools.cycle([Fixed(budget) for budget in budgets])
        self.tokens, self.seconds = 0, 0.0

    def budget(self, limit: TreeBudget, passes: range) -> TreeBudget | None:
        budget = next(self.turns).budget(limit, passes)
        assert budget is not None
        return replace(budget, price=self.tokens / self.seconds if self.seconds else 0.0)

    def record(self, cycle: Cycle) -> None:
        self.tokens += len(cycle.outcome.tokens)
        self.seconds += cycle.draft_seconds + cycle.verify_seconds


def fixed(steps: Sequence[int], nodes: int = NODES) -> Rotating:
    """No steps: n-grams, whose drafts are free."""
    return Rotating([TreeBudget(nodes, n or 24, n) for n in steps])


class Traffic:
    """Bytes of layers that passes have read from memory, by layers that they ran."""

    def __init__(self, engine: Engine) -> None:
        self.nbytes = 0
        self.sizes, self.pinned = [0] * engine.config.layers, [0] * engine.config.layers
        for chunk in engine.plan.table.chunks:
            if chunk.layer < len(self.sizes):
                self.sizes[chunk.layer] += chunk.nbytes
                self.pinned[chunk.layer] += chunk.nbytes * (chunk.index in engine.plan.pinned)

    def add(self, nbytes: int) -> None:
        self.nbytes += nbytes

    def on_layer(self, event: Layer) -> None:
        """Of the target's own passes; those of a cascade's drafts are not traced."""
        self.add(self.sizes[event.index])


class Counted:
    """A target whose passes count as `traffic`: `sizes` of the layers, and `whole` for each pass."""

    def __init__(self, target: Any, traffic: Traffic, sizes: Sequence[int], whole: int = 0) -> None:
        self.target, self.traffic, self.sizes, self.whole = target, traffic, sizes, whole

    def __getattr__(self, name: str) -> Any:
        return getattr(self.target, name)

    def run(self, hidden: Any, rows: Rows, layers: range, observer: Any = None) -> Any:
        self.traffic.add(self.whole + sum(self.sizes[i] for i in layers))
        return self.target.run(hidden, rows, layers, observer)


class Conversations:
    """Replies of one engine, each in a session of its own."""

    def __init__(self, engine: Engine) -> None:
        self.engine = engine
        self.traffic = Traffic(engine)
        self.calibrations = Calibration(), Calibration()  # of cascades driven here

    def open(self, job: Row, trace: Trace) -> Session:
        """Raises EdgeSpecError when the engine's drafter cannot be driven so."""
        mode, engine = job["mode"], self.engine
        if mode["kind"] == "own":
            return engine.new_session(trace=trace)
        if not engine.drafters:
            raise EdgeSpecError("this engine has no drafter to drive")
        controller = fixed(mode["steps"], mode.get("nodes", NODES))
        if mode.get("variant"):
            cache = self._cache()
            return self._session(cache, self._cascade(cache, mode["variant"]), controller, trace)
        if mode["kind"] == "set":
            cache, vocabulary = self._cache(), engine.config.vocab_size
            (resident,) = engine.resident
            inner = resident.drafter(cache, vocabulary)
            drafter = SetAcceptance(inner, mode["reply"], mode["p"], job["seed"], vocabulary)
            return self._session(cache, drafter, controller, trace)
        return engine.new_session(controller=controller, trace=trace)

    def _cache(self) -> KVCache:
        """Of the plan's size: no other session is open."""
        return self.engine.verifier.new_seat(self.engine.plan.context)

    def _session(self, cache: KVCache, drafter: Drafter, controller: Fixed, trace: Trace) -> Session:
        return Session(self.engine, cache, Serial(drafter, controller, NODES), trace=trace)

    def _cascade(self, cache: KVCache, variant: str) -> CascadeDrafter:
        """The engine's cascade with its passes counted. Every cycle goes to its full depth: the paper's
        chains do not stop when they are unsure."""
        found = next(r for r in self.engine.resident if isinstance(r, Cascade))
        made = found.drafter(cache, variant=replace(VARIANTS[variant], stop=0.0))
        verify: Exit | None = made.verify
        if isinstance(verify, SubstituteExit):
            low: Any = verify.model
            counted: Any = Counted(low, self.traffic, self.traffic.pinned, low.weights.nbytes)
            verify = SubstituteExit(counted, verify.depth)
        target: Any = Counted(made.target, self.traffic, self.traffic.sizes)
        return CascadeDrafter(target, cache, made.draft, verify, made.variant, self.calibrations)

    def reply(self, job: Row) -> Row:
        engine, settle = self.engine, job["settle"]
        settled = self._settle() if settle else 0
        disk = process_io("self")[0]
        ends: list[Row] = []  # of the prompt, and of each cycle

        def end(cycle: Cycle | None = None) -> None:
            row = {"at": time.perf_counter(), "bytes": engine.bytes_read, "layers": self.traffic.nbytes}
            if cycle is not None:
                row |= {"steps": cycle.passes or 0, "nodes": len(cycle.tree)}
                row |= {"draft": cycle.draft_seconds, "verify": cycle.verify_seconds}
                over = cycle.overlap
                row |= {"hit": over and over.hit, "found": over.found if over else 0}
            ends.append({**row, "tokens": 0})

        asked = {key: job[key] for key in ("temperature", "seed", "ignore_eos")}
        options = GenerationOptions(job["tokens"], **asked)
        tokens: list[int] = []
        prompt = engine.encode(job["prompt"])
        with (
            self.open(job, Trace(end, self.traffic.on_layer)) as session,
            closing(session.generate(prompt, options)) as responses,
        ):
            for response in responses:
                stats = response.stats
                if response.token is None:
                    continue
                if not ends:
                    end()
                tokens.append(response.token)
                ends[-1]["tokens"] += 1
                if len(ends) > job["cycles"]:  # the last is cut, like that of a reply that has ended
                    break
        cycles = []
        for before, after in itertools.pairwise(ends):
            spent = {key: after[key] - before[key] for key in ("bytes", "layers")}
            seconds = after["at"] - before["at"]
            cycles.append({**after, **spent, "seconds": seconds})
        row = {"tokens": tokens, "cycles": cycles, "passes": stats.cycles, "peak_memory": stats.peak_memory}
        row["overlap"] = {key: getattr(stats, key) for key in OVERLAP}
        row["exit"] = asdict(stats.early_exit)
        if settle:  # by the passes of this reply, exactly; and the kernel's count of the same
            row |= {"streamed": self._settle() - settled, "disk": process_io("self")[0] - disk}
        return row

    def _settle(self) -> int:
        """Bytes read once the ring is full and reading has stopped."""
        before = -1
        while (now := self.engine.bytes_read) != before:
            before = now
            time.sleep(SETTLED_SECONDS)
        return now


def pin(process: int, *cores: int) -> None:
    """All threads of a process."""
    for thread in os.listdir(f"/proc/{process}/task"):
        os.sched_setaffinity(int(thread), cores)


def main() -> None:
    model, options = sys.argv[1:]
    answers, sys.stdout = sys.stdout, sys.stderr

    def answer(row: Row) -> None:
        answers.write(json.dumps(row) + "\n")
        answers.flush()

    given = json.loads(options)
    cores = given.pop("cores", None)
    if (device := given.pop("device", None)) is not None:
        stand_in(device)
    began = time.perf_counter()
    try:
        if cores:
            pin(os.getpid(), *cores)  # while it opens, as a worker begins where who starts it may run
        engine = Engine.load(model, EngineOptions(**given))
    except EdgeSpecError as error:
        answer({"error": str(error)})
        return
    answer({"plan": engine.plan.to_dict(), "load_seconds": time.perf_counter() - began})
    if cores:
        pin(os.getpid(), cores[0])
        for worker in (resident for resident in engine.resident if isinstance(resident, Beside)):
            pin(worker.worker._process.pid, cores[1])  # type: ignore[attr-defined]
    conversations = Conversations(engine)
    for line in sys.stdin:
        job = {**DEFAULTS, **json.loads(line)}
        try:
            answer(conversations.reply(job))
        except (EdgeSpecError, ValueError) as error:
            answer({"error": str(error)})


if __name__ == "__main__":
    main()
