"""Another dial in mid-reply, again and again: the process whose memory `live_dial.py` and a test look at.

    python -m benchmarks.dial_process MODEL '{"memory": 8e9, "drafter": "none"}' '{"dials": [4e9, 8e9]}'

A thread replies; the main thread sets the next dial whenever so many cycles (`every`) are over. A limited
cgroup that this process is in follows: lowered when the call has returned, raised before. "random": N sets N
random ones, from the smallest on; without a "memory" the first has room for a "share" of the weights. The
last line of stdout is JSON.
"""

from __future__ import annotations

import json
import random
import sys
import threading
import time
from itertools import pairwise
from pathlib import Path

from benchmarks.cgroup import V1, V2
from benchmarks.common import Row
from edgespec.config import EngineOptions, GenerationOptions
from edgespec.core.trace import Cycle, Trace
from edgespec.devices.cgroup import memory_cgroups
from edgespec.devices.probe import process_memory
from edgespec.engine import Engine
from edgespec.errors import BudgetError

DEFAULTS: Row = {"dials": [], "random": 0, "every": 6, "tokens": 64, "seed": 0, "leak": 0, "share": 0.6}
PROMPT = list(range(5, 60))


class Talk:
    """The same reply over and over, in a thread."""

    def __init__(self, engine: Engine, tokens: int) -> None:
        self.engine, self.options = engine, GenerationOptions(max_tokens=tokens, ignore_eos=True)
        self.cycles: list[float] = []  # when each has ended
        self.replies: list[list[int]] = []
        self.over = threading.Event()
        self._changed = threading.Condition()
        self.thread = threading.Thread(target=self._run)

    def _run(self) -> None:
        with self.engine.new_session(trace=Trace(cycle=self._cycle)) as session:
            while not self.over.is_set():
                said = session.generate(PROMPT, self.options)
                self.replies.append([r.token for r in said if r.token is not None])

    def _cycle(self, cycle: Cycle) -> None:
        with self._changed:
            self.cycles.append(time.perf_counter())
            self._changed.notify_all()

    def wait_for(self, count: int) -> None:
        """Until so many cycles are over."""
        with self._changed:
            while len(self.cycles) < count and self.thread.is_alive():
                self._changed.wait(1)


def follow(dial: int) -> None:
    """The limit of this process's own cgroup, where there is one."""
    group = next(iter(memory_cgroups()), None)
    if group is None or group.limit is None:
        return
    names = [V1.limit, V1.swap] if (group.path / V1.limit).exists() else [V2.limit]
    files = [file for name in names if (file := group.path / name).exists()]
    for file in files if dial < group.limit else reversed(files):  # memory + swap is never the smaller
        file.write_text(str(dial))


def load(model: str, options: Row, share: float) -> Engine:
    if "memory" not in options:
        try:
            Engine.load(model, EngineOptions(**options, memory="1MB"))
        except BudgetError as error:
            weights = sum(file.stat().st_size for file in Path(model).glob("*.safetensors"))
            options = options | {"memory": sum(error.owners.values()) + share * weights}
    return Engine.load(model, EngineOptions(**options))


def smallest(engine: Engine) -> int:
    try:
        engine.set_memory(10**6)
    except BudgetError as error:
        return error.smallest
    raise AssertionError("nothing runs in 1 MB")


def change(engine: Engine, talk: Talk, dial: int, every: int) -> Row:
    """Set it; `rss` as the call returns, `cycles` as it was entered."""
    cycles, began = len(talk.cycles), time.perf_counter()
    if dial > engine.dial:
        follow(dial)
    engine.set_memory(dial)
    seconds, rss, met = time.perf_counter() - began, process_memory().current, len(talk.cycles) - cycles
    follow(dial)
    talk.wait_for(cycles + every)
    return {"dial": dial, "seconds": seconds, "rss": rss, "cycles": met, "from": cycles}


def run(
    engine: Engine, dials: list[float], random_dials: int, every: int, tokens: int, seed: int, leak: int
) -> Row:
    """`leak`: bytes that are lost with each change, to see that a leak shows."""
    chance, least, most = random.Random(seed), smallest(engine), engine.dial
    wanted = [int(dial) for dial in dials]
    wanted += [chance.randint(least, most) for _ in range(random_dials)]
    talk, changes, lost = Talk(engine, tokens), list[Row](), list[bytes]()
    follow(most)
    talk.thread.start()
    try:
        talk.wait_for(every)
        first = process_memory().current
        for dial in wanted:
            changes.append(change(engine, talk, dial, every if not random_dials else chance.randint(0, 2)))
            lost.append(bytes([1]) * leak)
        # The same dial as at the beginning, and everything pinned again: the same memory, if none is lost.
        changes.append(change(engine, talk, most, every))
    finally:
        talk.over.set()
        talk.thread.join()
    return {
        "changes": changes,
        "cycles": [after - before for before, after in pairwise(talk.cycles)],
        "replies": len(talk.replies),
        "same": all(reply == talk.replies[0] for reply in talk.replies),
        "text": talk.replies[0],
        "rss": [first, process_memory().current],
        "smallest": least,
        "drafters": [*engine.drafters],
    }


def main() -> None:
    model, given, what = sys.argv[1:]
    asked = DEFAULTS | json.loads(what)
    asked["random_dials"] = asked.pop("random")
    with load(model, json.loads(given), asked.pop("share")) as engine:
        print(json.dumps(run(engine, **asked)))


if __name__ == "__main__":
    main()
