"""Members of the passes whose tokens are somebody else's, and who brings them. Needs no torch."""

from __future__ import annotations

from collections import deque
from collections.abc import Callable
from time import monotonic
from typing import Any, Protocol

from edgespec.core.batch import Part
from edgespec.core.batcher import Batcher

GATHERING = 0.25  # of a pass: time that the next one waits for those who were answered by it
TRIAL = 16  # in one of so many it waits although that has not paid lately


class Visitor(Protocol):
    """A `core.batcher.Member` that hears of its end."""

    def ask(self) -> Part: ...

    def answer(self, part: Part) -> bool:
        """As of `Member`. Where it does not go on, and raises nothing, it knows that it has ended."""

    def end(self, error: BaseException) -> None:
        """It will not be asked any more."""


class Tenant(Protocol):
    """Whoever brings visitors, and has sessions of its own on the engine; see `split.host.Host`."""

    @property
    def held(self) -> int:
        """Positions of the pool that they hold."""

    @property
    def mid_reply(self) -> bool:
        """Whether somebody was answered just now, and is likely to want more passes for that reply."""

    def give_way(self) -> bool:
        """Give back some that are not needed now; False = there are none."""

    def sweep(self) -> None:
        """Called now and then."""

    def close(self) -> None:
        """No more passes will be run."""


class Visitors:
    """Those who are there; in the thread that runs the passes."""

    def __init__(self, batcher: Batcher[Any], clock: Callable[[], float] = monotonic) -> None:
        self.batcher, self.clock = batcher, clock
        self.tenant: Tenant | None = None
        self.calls = deque[Callable[[], None]]()  # to be made between two passes: others',
        self.later = deque[Callable[[], None]]()  # and this thread's own, each in a gap of its own
        self.rounds = 0  # that have ended
        self._there: list[Visitor] = []
        self._away = 0  # whom the latest pass has answered, and who have not asked again
        self._ended = self._took = 0.0  # that pass: when, as of the clock, and seconds
        self._come = 1.0  # the share of them who ask again in time, lately
        self._passed_by = 0  # times that nobody waited for them

    def __len__(self) -> int:
        return len(self._there)

    @property
    def held(self) -> int:
        return 0 if self.tenant is None else self.tenant.held

    @property
    def mid_reply(self) -> bool:
        return self.tenant is not None and self.tenant.mid_reply

    def join(self, visitor: Visitor) -> None:
        self._there.append(visitor)
        self._away = max(0, self._away - 1)
        self.batcher.join(visitor)

    def passed(self, seconds: float) -> None:
        """A pass has ended, which took so long."""
        self._ended, self._took = self.clock(), seconds

    def gather(self, listen: Callable[[float], bool]) -> None:
        """Make the calls that have come, and wait for those whom the latest pass has answered.

        They mostly ask again at once. A pass that begins without them makes them wait for all of it, and then
        two halves of the clients would have passes of their own, for ever: twice the flash is read. Whoever
        is in line waits for them, a part of a pass, where that pays: no more time in sum than it saves.
        listen: waits for a call, so many seconds at most; False = there is none.
        """
        self._call()
        awaited = self._away
        if awaited and not (worth := self._pays):
            self._passed_by += 1
        if awaited and (worth or self._passed_by % TRIAL == 0):
            until = self._ended + GATHERING * self._took
            while self._away and (left := until - self.clock()) > 0 and listen(left):
                self._call()
            self._come += ((awaited - self._away) / awaited - self._come) / 4
        self._away = 0

    @property
    def _pays(self) -> bool:
        return self._come * self._away > GATHERING * len(self.batcher)

    @property
    def called(self) -> bool:
        return bool(self.calls or self.later)

    def _call(self) -> None:
        """What is put off meanwhile is for the next time, behind a pass if anybody wants one."""
        later, self.later = self.later, deque()
        self.calls.extendleft(reversed(later))
        while self.calls:
            self.calls.popleft()()
        if self.tenant is not None:
            self.tenant.sweep()

    def give_way(self, enough: Callable[[], bool]) -> None:
        """Until there is enough, or nobody has anything to spare."""
        while self.tenant is not None and not enough() and self.tenant.give_way():
            pass

    def end(self, visitor: Visitor, error: BaseException | None) -> None:
        self._there.remove(visitor)
        self.rounds += 1
        if error is not None:
            visitor.end(error)
        else:
            self._away += 1

    def end_all(self, error: BaseException) -> None:
        for visitor in [*self._there]:
            self.batcher.leave(visitor)
            self.end(visitor, error)
