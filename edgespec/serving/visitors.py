"""Members of the passes whose tokens are somebody else's, and who brings them. Needs no torch."""

from __future__ import annotations

from collections import deque
from collections.abc import Callable
from typing import Any, Protocol

from edgespec.core.batch import Part
from edgespec.core.batcher import Batcher


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

    def give_way(self) -> bool:
        """Give back some that are not needed now; False = there are none."""

    def sweep(self) -> None:
        """Called now and then."""

    def close(self) -> None:
        """No more passes will be run."""


class Visitors:
    """Those who are there; in the thread that runs the passes."""

    def __init__(self, batcher: Batcher[Any]) -> None:
        self.batcher = batcher
        self.tenant: Tenant | None = None
        self.calls = deque[Callable[[], None]]()  # to be made between two passes
        self.rounds = 0  # that have ended
        self._there: list[Visitor] = []

    def __len__(self) -> int:
        return len(self._there)

    @property
    def held(self) -> int:
        return 0 if self.tenant is None else self.tenant.held

    def join(self, visitor: Visitor) -> None:
        self._there.append(visitor)
        self.batcher.join(visitor)

    def call(self) -> None:
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

    def end_all(self, error: BaseException) -> None:
        for visitor in [*self._there]:
            self.batcher.leave(visitor)
            self.end(visitor, error)
