"""An engine in a process of its own, driven line by line: other arms run between its replies."""

from __future__ import annotations

import json
import subprocess
import sys
from contextlib import AbstractContextManager
from pathlib import Path
from typing import Any

from benchmarks.common import PROMPT, Row, environment


class Worker(AbstractContextManager["Worker"]):
    """The parent's side; `engine_process.py` is the child's."""

    def __init__(self, model: Path, memory: int, drafter: str = "none", **options: Any) -> None:
        """`options` are those of `EngineOptions`. Raises RuntimeError when the engine does not open."""
        options |= {"memory": memory, "drafter": drafter}
        command = [sys.executable, "-m", "benchmarks.engine_process", str(model)]
        command.append(json.dumps(options, default=str))
        self.process = subprocess.Popen(
            command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True, env=environment()
        )
        try:
            self.loaded = self._answer()  # plan, load_seconds
        except RuntimeError:
            self.__exit__()
            raise

    def run(self, prompt: list[int] | str, tokens: int, mode: Row, **more: Any) -> Row:
        """One reply of at most so many tokens; `engine_process.py` has the modes, and what comes back. Raises
        RuntimeError when it failed."""
        assert self.process.stdin is not None
        job = {"prompt": prompt, "tokens": tokens, "mode": mode, **more}
        self.process.stdin.write(json.dumps(job) + "\n")
        self.process.stdin.flush()
        return self._answer()

    def reply(self, tokens: int) -> Row:
        """One greedy reply of exactly `tokens` tokens, by plain decoding, between two moments when the ring
        is full: raw reads before and after it have the disk for themselves, and bytes a pass are exact."""
        return self.run(PROMPT, tokens, {"kind": "own"}, ignore_eos=True, settle=True)

    def _answer(self) -> Row:
        assert self.process.stdout is not None
        line = self.process.stdout.readline()
        if not line:
            raise RuntimeError(f"the engine's process ended with exit code {self.process.wait()}")
        row: Row = json.loads(line)
        if "error" in row:
            raise RuntimeError(row["error"])
        return row

    def __exit__(self, *error: object) -> None:
        self.process.communicate()  # closes its standard input, which ends it


def per_cycle(reply: Row) -> Row:
    """Figures of a plain reply's cycles, the first left out: a full ring awaits it."""
    cycles = reply["cycles"][1:]
    seconds = sum(cycle["seconds"] for cycle in cycles)
    return {
        "cycle_seconds": seconds / len(cycles),
        "read_rate": sum(cycle["bytes"] for cycle in cycles) / seconds,
        "cycles": len(cycles),
    }
