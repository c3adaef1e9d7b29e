"""A draft worker with a stand-in for an accelerator: its model's passes take PACE_MS, however quick they are.

`engine_process.py` starts it (mode "paced"), for `schedules.py --device-stand-in 30`. What is left of a
pass's time it sleeps, as a processor does that waits for another device.
"""

from __future__ import annotations

import os
import time
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from edgespec.drafters import process, worker
from edgespec.drafters.channel import Load
from edgespec.runtimes.base import DraftPass, DraftRuntime

PACE = "PACE_MS"  # in the environment of the worker


def program(milliseconds: float) -> process.Program:
    """What runs it in a process of its own, which inherits the environment of this one."""
    os.environ[PACE] = str(milliseconds)
    return process.Program(process.command(f"{__name__}:main"))


@dataclass
class PacedPass:
    """See `runtimes.base.DraftPass`: one part, as a device would be waited for."""

    begun: DraftPass
    until: float  # as of time.perf_counter

    def advance(self) -> bool:
        while not self.begun.advance():
            pass
        time.sleep(max(0.0, self.until - time.perf_counter()))
        return True

    @property
    def logits(self) -> NDArray[np.float32]:
        return self.begun.logits


@dataclass
class PacedRuntime:
    """See `runtimes.base.DraftRuntime`."""

    runtime: DraftRuntime
    seconds: float  # of a pass

    @property
    def length(self) -> int:
        return self.runtime.length

    @property
    def capacity(self) -> int:
        return self.runtime.capacity

    @property
    def rows(self) -> int:
        return self.runtime.rows

    def prefill(self, tokens: Sequence[int]) -> Iterator[int]:
        return self.runtime.prefill(tokens)

    def begin(self, tokens: Sequence[int], parents: Sequence[int]) -> PacedPass:
        until = time.perf_counter() + self.seconds
        return PacedPass(self.runtime.begin(tokens, parents), until)

    def commit(self, path: Sequence[int], keep: Sequence[int]) -> None:
        self.runtime.commit(path, keep)

    def truncate(self, length: int) -> None:
        self.runtime.truncate(length)


def paced_model(load: Load, progress: Callable[[int], None]) -> worker.Opened:
    """See `drafters.opened.OpenModel`."""
    seconds = float(os.environ[PACE]) / 1e3
    opened = worker.torch_model(load, progress)
    return worker.Opened(lambda capacity: PacedRuntime(opened.runtime(capacity), seconds))


def main() -> None:
    worker.run(paced_model)
