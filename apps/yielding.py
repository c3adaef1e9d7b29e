"""`chat --yield`: memory is given back while the machine, or the container, is short of it."""

from __future__ import annotations

import time
from collections.abc import Callable
from typing import TYPE_CHECKING

from edgespec.devices.pressure import memory_pressure
from edgespec.errors import BudgetError, EdgeSpecError
from edgespec.values import format_bytes

if TYPE_CHECKING:
    from edgespec.engine import Engine

STALLED = 10.0  # percent of the time that somebody waits for memory: beyond, some is given back
PART = 0.75  # of the dial is left then
AGAIN = 10.0  # seconds, over which the system counts
LOOK = 0.5  # seconds between two looks


class Yielding:
    """Lowers the engine's dial, between two steps of a reply. It never raises it: `/set memory` does."""

    def __init__(self, engine: Engine, clock: Callable[[], float] = time.monotonic) -> None:
        self.engine, self.clock = engine, clock
        self.able = memory_pressure() is not None  # the system tells
        self.least = 0  # bytes: the smallest dial, once it was asked for
        self._looked = self._lowered = -AGAIN

    def look(self) -> str | None:
        """What was done, and why, for the user. Nothing is raised: the reply goes on."""
        now = self.clock()
        if not self.able or now < self._looked + LOOK:
            return None
        self._looked = now
        pressure, dial = memory_pressure(), self.engine.dial
        if pressure is None or dial <= self.least:
            return None
        if pressure.high is not None and pressure.high < dial:
            return self._lower(pressure.high, f"memory.high is {format_bytes(pressure.high)}")
        if pressure.stalled is not None and pressure.stalled > STALLED and now >= self._lowered + AGAIN:
            return self._lower(int(PART * dial), f"{pressure.stalled:.0f}% of the time is waited for memory")
        return None

    def _lower(self, dial: int, why: str) -> str | None:
        self._lowered = self.clock()
        try:
            self.engine.set_memory(dial)
        except BudgetError as error:
            self.least = error.smallest
            if self.least >= self.engine.dial:
                return f"[{why}, but all of {format_bytes(self.engine.dial)} is needed]"
            return self._lower(self.least, why)
        except EdgeSpecError as error:
            self.able = False
            return f"[memory cannot be given back: {error}]"
        return f"[memory is now {format_bytes(self.engine.dial)}: {why}]"
