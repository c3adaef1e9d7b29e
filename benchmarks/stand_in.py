"""A stand-in for an accelerator that is not here: it drafts what a model says, in the time that it is told.

A worker process with it runs the small draft model, which says what the inflated one does, and then sleeps
until a pass has taken `seconds` for each 64 rows of it: an NPU's shapes are static, so that one row takes it
as long as 64. It does one pass at a time, and cannot stop in one: what is cancelled goes on to its end, and
the next pass waits for that.
"""

from __future__ import annotations

import json
import os
from collections.abc import Callable, Iterator, Sequence
from dataclasses import replace
from pkgutil import resolve_name
from time import monotonic, sleep
from typing import Any

from edgespec.drafters import beside, coreml_model, llama_cpp_model, onnx_model, process, worker
from edgespec.drafters.channel import Load
from edgespec.drafters.model import ModelDrafter
from edgespec.drafters.onnx_model import OnnxCpuDrafter, OnnxCpuStreamingDrafter
from edgespec.drafters.opened import Opened, OpenModel
from edgespec.drafters.streaming.drafter import StreamingDrafter
from edgespec.runtimes.base import DraftPass

ROWS = 64  # of its largest shape
SLICE = 0.002  # seconds of sleep, between which whoever waits for something else is heard
ASKED = "STAND_IN"  # a variable: what to be, for the worker process

# An accelerator's passes are as wide as they come; what is known of CPUs does not hold.
WIDE: dict[Any, Callable[[Any, int], ModelDrafter]] = {
    OnnxCpuDrafter: ModelDrafter,
    OnnxCpuStreamingDrafter: StreamingDrafter,
}


def stand_in(seconds: float) -> None:
    """From now on, this process's draft workers are such stand-ins."""
    made = process.command

    def command(program: str = "edgespec.drafters.worker:main") -> list[str]:
        os.environ[ASKED] = json.dumps([program, seconds])
        return made("benchmarks.stand_in:work")

    for kind in (beside, onnx_model, llama_cpp_model, coreml_model):
        kind.command = command


class Device:
    """One pass at a time."""

    def __init__(self, seconds: float) -> None:
        self.seconds = seconds
        self.free = 0.0  # when its latest pass has ended

    def begin(self, rows: int) -> float:
        """When a pass over so many rows will have ended, that begins as soon as it can."""
        self.free = max(self.free, monotonic()) + self.seconds * -(-rows // ROWS)
        return self.free


class SlowPass:
    """See `runtimes.base.DraftPass`."""

    def __init__(self, made: DraftPass, end: float) -> None:
        self.made, self.end = made, end
        self._computed = False

    def __getattr__(self, name: str) -> Any:
        return getattr(self.made, name)

    def advance(self) -> bool:
        if not self._computed:
            self._computed = self.made.advance()
            return False
        sleep(max(0.0, min(SLICE, self.end - monotonic())))
        return monotonic() >= self.end


class SlowDraft:
    """A `runtimes.base.DraftRuntime`, or a streaming drafter's, on a `Device`."""

    def __init__(self, made: Any, device: Device) -> None:
        self.made, self.device = made, device

    def __getattr__(self, name: str) -> Any:
        return getattr(self.made, name)

    def __setattr__(self, name: str, value: Any) -> None:
        if name in ("made", "device"):
            object.__setattr__(self, name, value)
        else:
            setattr(self.made, name, value)

    def prefill(self, tokens: Sequence[int]) -> Iterator[int]:
        passes = 0
        for done in self.made.prefill(tokens):  # it may come to no more tokens than before
            end, passes = self.device.begin(done - passes * ROWS), -(-done // ROWS)
            while monotonic() < end:
                sleep(SLICE)
            yield done

    def begin(self, tokens: Sequence[int], parents: Sequence[int]) -> SlowPass:
        made = self.made.begin(tokens, parents)
        return SlowPass(made, self.device.begin(len(tokens) * (1 + getattr(self.made, "streams", 0))))


def work() -> None:
    """What the worker process runs."""
    program, seconds = json.loads(os.environ[ASKED])
    device, run = Device(seconds), worker.run

    def slowed(open_model: OpenModel) -> OpenModel:
        def opens(load: Load, progress: Callable[[int], None]) -> Opened:
            opened = open_model(load, progress)

            def runtime(capacity: int) -> Any:
                return SlowDraft(opened.runtime(capacity), device)

            return replace(opened, runtime=runtime, drafts=WIDE.get(opened.drafts, opened.drafts))

        return opens

    for kind in (worker, onnx_model, llama_cpp_model, coreml_model):
        kind.run = lambda open_model: run(slowed(open_model))
    resolve_name(program)()
