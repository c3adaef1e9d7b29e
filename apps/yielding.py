"""`--yield`: memory is given back while the machine, or the container, is short of it."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import TYPE_CHECKING

from edgespec.devices.pressure import memory_pressure
from edgespec.errors import BudgetError, ClosedError, EdgeSpecError
from edgespec.values import format_bytes

if TYPE_CHECKING:
    from edgespec.engine import Engine

HELP = "Lower --memory while the machine, or the container, is short of memory."
STALLED = 10.0  # percent of the time that somebody waits for memory: beyond, some is given back
PART = 0.75  # of the dial is left then
AGAIN = 10.0  # seconds, over which the system counts
LOOK = 0.5  # seconds between two looks


class Yielding:
    """Lowers the engine's dial. It never raises it: `/set memory` does."""

    def __init__(self, engine: Engine, clock: Callable[[], float] = time.monotonic) -> None:
        self.engine, self.clock = engine, clock
        self.able = memory_pressure() is not None  # the system tells
        self.least = 0  # bytes: the smallest dial, once it was asked for
        self._lowered = -AGAIN

    def look(self) -> str | None:
        """What was done, and why, for the user. Nothing is raised: replies go on."""
        pressure, dial = memory_pressure(), self.engine.dial
        if not self.able or pressure is None or dial <= self.least:
            return None
        if pressure.high is not None and pressure.high < dial:
            return self._lower(pressure.high, f"memory.high is {format_bytes(pressure.high)}")
        if self.clock() < self._lowered + AGAIN:
            return None
        if pressure.stalled is not None and pressure.stalled > STALLED:
            return self._lower(int(PART * dial), f"{pressure.stalled:.0f}% of the time is waited for memory")
        if pressure.short:
            return self._lower(int(PART * dial), "the system is short of memory")
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
        except ClosedError:
            return None
        except EdgeSpecError as error:
            self.able = False
            return f"[memory cannot be given back: {error}]"
        return f"[memory is now {format_bytes(self.engine.dial)}: {why}]"


@contextmanager
def giving_way(engine: Engine, say: Callable[[str], object]) -> Iterator[None]:
    """Look now, and then in a thread of its own for as long as the context lasts, in the middle of replies
    and between them; `say` hears there what was done."""
    way, over = Yielding(engine), threading.Event()

    def look() -> None:
        if (said := way.look()) is not None:
            say(said)

    def watch() -> None:
        while not over.wait(LOOK):
            look()

    if not way.able:
        say("--yield does nothing: this system does not tell how short of memory it is")
        yield
        return
    look()
    thread = threading.Thread(target=watch, name="edgespec yield", daemon=True)
    thread.start()
    try:
        yield
    finally:
        over.set()
        thread.join()
