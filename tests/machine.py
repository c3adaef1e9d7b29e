"""The machine that plans go by in tests: not the one they run on, nor what a test process has grown to."""

from __future__ import annotations

import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import replace
from functools import cache
from pathlib import Path
from typing import Any

import pytest

from edgespec.devices.disk import ReadSettings
from edgespec.devices.machine import Accelerator, Machine
from edgespec.devices.rates import ReadRate

GIVEN = Machine(
    total=64 * 10**9, available=8 * 10**9, baseline=300 * 10**6, cores=2, memory_gbps=10.0, disk=None
)
DISK = ReadRate(1.0, ReadSettings(2, 4 * 2**20))
GB = 10**9
MACHINE = replace(GIVEN, disk=DISK, available=12 * GB, total=16 * GB)  # that the tuner works for

measure = Machine.measure  # the real one


@contextmanager
def given(**changes: Any) -> Iterator[None]:
    """Whoever measures finds `GIVEN` with these changes."""

    def found(weights: Path, accelerator: Accelerator | None = None) -> Machine:
        return replace(GIVEN, accelerator=accelerator, **changes)

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(Machine, "measure", staticmethod(found))
        yield


@cache
def worker_bytes() -> int:
    """What a process that drafts with torch takes before it has a model: what is mapped of its libraries
    differs between machines by tens of MB."""
    program = (
        "import edgespec.drafters.streaming.spd; from edgespec.devices.probe import peak_memory; "
        "print(peak_memory())"
    )
    return int(subprocess.run([sys.executable, "-c", program], capture_output=True, check=True).stdout)
