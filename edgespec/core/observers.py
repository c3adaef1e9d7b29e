"""Who hears of a pass that several conversations share: each of its own part."""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING

import numpy as np

from edgespec.core.batch import Part, alone
from edgespec.errors import Cancelled
from edgespec.runtimes.base import PassObserver, Rows

if TYPE_CHECKING:
    from torch import Tensor


class FanOut:
    """The observers of a pass's parts: each hears of its own rows. One that raises ends its own part, and the
    pass when no other is left. See `runtimes.base.PassObserver`."""

    def __init__(self, parts: Sequence[Part]) -> None:
        self.parts = {id(part.cache): part for part in parts}
        self._turns = deque(parts)
        self._rows: Rows | None = None  # of the layers under way, and each part's own of them:
        self._own: dict[int, tuple[slice, Rows]] = {}

    def on_chunk(self) -> None:
        self._tell(lambda observer, part: observer.on_chunk())

    def on_layer(self, index: int, hidden: Tensor, rows: Rows) -> None:
        if rows is not self._rows:
            self._rows, spans = rows, zip(rows.caches, rows.segments, strict=True)
            self._own = {id(c): (slice(s.start, s.stop), rows.take(np.array(s))) for c, s in spans}

        def tell(observer: PassObserver, part: Part) -> None:
            if (found := self._own.get(id(part.cache))) is not None:
                span, own = found
                observer.on_layer(index, hidden[span], own)

        self._tell(tell)

    def on_wait(self) -> bool:
        """A unit of the next part's work that has any: a chunk may be late by one unit, not by one a part."""
        worked: list[bool] = []
        for _ in self.parts:
            self._turns.rotate(-1)
            self._tell(lambda observer, part: worked.append(observer.on_wait()), self._turns[-1])
            if any(worked):
                return True
        return False

    def _tell(self, say: Callable[[PassObserver, Part], None], only: Part | None = None) -> None:
        for part in self.parts.values() if only is None else (only,):
            if part.error is None and part.observer is not None:
                alone(part, say, part.observer, part)
        if all(part.error is not None for part in self.parts.values()):
            raise Cancelled("no part of the pass is left")
