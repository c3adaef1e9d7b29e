"""An engine in a process of its own, driven line by line: other arms run between its replies.

Each reply reports when every token appeared and how many bytes had been read by then, so that whole cycles
in the middle of a reply can be timed. Before and after a reply the worker waits until the ring is full: a
raw read in between then has the disk for itself, and bytes per pass can be counted exactly.
"""

from __future__ import annotations

import argparse
import json
import subprocess
import sys
import time
from pathlib import Path
from types import TracebackType
from typing import TypeVar

from benchmarks.common import PROMPT, Row, environment
from benchmarks.measure import process_io

SETTLED_SECONDS = 0.3

W = TypeVar("W", bound="Worker")


class Worker:
    """The parent's side."""

    script = "benchmarks.worker"  # the child

    def __init__(self, model: Path, memory: int, drafter: str = "none", *options: str) -> None:
        command = [
            sys.executable,
            "-m",
            self.script,
            str(model),
            "--memory",
            str(memory),
            "--drafter",
            drafter,
            *options,
        ]
        self.process = subprocess.Popen(
            command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True, env=environment()
        )
        self.loaded = self._answer()  # plan, load_seconds

    def reply(self, tokens: int) -> Row:
        """One greedy reply of `tokens` tokens; see `_reply` for what comes back."""
        return self.ask({"tokens": tokens})

    def ask(self, job: Row) -> Row:
        """One line to the child, one line back."""
        assert self.process.stdin is not None
        self.process.stdin.write(json.dumps(job) + "\n")
        self.process.stdin.flush()
        return self._answer()

    def _answer(self) -> Row:
        assert self.process.stdout is not None
        line = self.process.stdout.readline()
        if not line:
            raise RuntimeError(f"the engine's process ended with exit code {self.process.wait()}")
        row: Row = json.loads(line)
        return row

    def close(self) -> None:
        assert self.process.stdin is not None
        self.process.stdin.close()
        self.process.wait()

    def __enter__(self: W) -> W:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()


def cycles(reply: Row, skip: int = 1) -> Row:
    """Per cycle and per second figures over a reply, its first `skip` tokens left out as warm-up."""
    stamps, read, passes = reply["stamps"][skip:], reply["bytes"][skip:], reply["passes"][skip:]
    seconds, count = stamps[-1] - stamps[0], passes[-1] - passes[0]
    return {
        "cycle_seconds": seconds / count,
        "read_rate": (read[-1] - read[0]) / seconds,
        "tokens_per_cycle": (len(stamps) - 1) / count,
        "cycles": count,
    }


def main() -> None:
    import edgespec
    from edgespec.engine import Engine

    parser = argparse.ArgumentParser(description=(__doc__ or "").split("\n")[0])
    parser.add_argument("model")
    parser.add_argument("--memory", type=int, required=True)
    parser.add_argument("--drafter", default="none")
    parser.add_argument("--resident-layers", type=int)
    args = parser.parse_args()
    answers, sys.stdout = sys.stdout, sys.stderr

    def answer(row: Row) -> None:
        answers.write(json.dumps(row) + "\n")
        answers.flush()

    def settle(engine: Engine) -> int:
        """Bytes read once the ring is full and reading has stopped."""
        before = -1
        while (now := engine.bytes_read) != before:
            before = now
            time.sleep(SETTLED_SECONDS)
        return now

    def reply(engine: Engine, tokens: int) -> Row:
        settled = settle(engine)
        disk, _ = process_io("self")
        cpu = time.process_time()
        stamps: list[float] = []
        read: list[int] = []
        passes: list[int] = []
        stats = None
        for response in edgespec.stream_generate(engine, PROMPT, max_tokens=tokens, temperature=0):
            stats = response.stats
            if response.token is not None:
                stamps.append(time.perf_counter())
                read.append(engine.bytes_read)
                passes.append(stats.cycles)
        assert stats is not None
        return {
            "stamps": stamps,
            "bytes": read,
            "passes": passes,
            "cycles": stats.cycles,
            "streamed": settle(engine) - settled,  # by the passes of this reply, exactly
            "disk": process_io("self")[0] - disk,  # the kernel's count of the same
            "cpu": time.process_time() - cpu,
            "peak_memory": stats.peak_memory,
        }

    began = time.perf_counter()
    engine = edgespec.load(
        args.model, memory=args.memory, resident_layers=args.resident_layers, drafter=args.drafter
    )
    answer({"plan": engine.plan.to_dict(), "load_seconds": time.perf_counter() - began})
    for line in sys.stdin:
        answer(reply(engine, json.loads(line)["tokens"]))


if __name__ == "__main__":
    main()
