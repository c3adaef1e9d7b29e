"""Who hears of a pass that several conversations share: each of its own part."""

from __future__ import annotations

from collections import deque
from collections.abc import Sequence
from typing import TYPE_CHECKING

from edgespec.core.batch import Part, attempt
from edgespec.errors import Cancelled
from edgespec.runtimes.rows import Rows
from edgespec.runtimes.target import Layers, PassObserver, any_of

if TYPE_CHECKING:
    from torch import Tensor


class FanOut:
    """The observers of a pass's parts: each hears of its own rows. One that raises ends its own part, and the
    pass when no other is left. See `runtimes.target.PassObserver`."""

    def __init__(self, parts: Sequence[Part]) -> None:
        self.parts = {id(part.cache): part for part in parts}
        self._heard = [(part, part.observer) for part in parts if part.observer is not None]
        self._layers = {id(part): observer.hears for part, observer in self._heard}
        self.hears = any_of(self._layers.values())
        self._told = parts[0]  # last
        self._turns = deque(parts)
        self._rows: Rows | None = None  # of the layers under way, and those who listen:
        self._own: list[tuple[Part, PassObserver, Layers, range, Rows]] = []

    def on_chunk(self) -> None:
        left = iter(self._heard)

        def tell() -> None:
            for self._told, observer in left:
                if self._told.error is None:
                    observer.on_chunk()

        while (error := attempt(tell)) is not None:  # of one; the others are told, too
            self._told.error = error
        self._go_on()

    def on_layer(self, index: int, hidden: Tensor, rows: Rows) -> None:
        if index not in self.hears:
            return
        if rows is not self._rows:
            self._rows, self._own = rows, []
            for place, (cache, segment) in enumerate(zip(rows.caches, rows.segments, strict=True)):
                part = self.parts[id(cache)]
                if part.observer is not None and (hears := self._layers[id(part)]):
                    self._own.append((part, part.observer, hears, segment, rows.of_cache(place)))
        for part, observer, hears, segment, own in self._own:
            if index in hears and part.error is None:
                mine = hidden[segment.start : segment.stop]
                part.error = attempt(observer.on_layer, index, mine, own)
        self._go_on()

    def on_wait(self) -> bool:
        """A unit of the next part's work that has any: a chunk may be late by one unit, not by one a part."""
        worked: list[bool] = []

        def wait(observer: PassObserver) -> None:
            worked.append(observer.on_wait())

        for _ in self.parts:
            self._turns.rotate(-1)
            if (part := self._turns[-1]).error is None and part.observer is not None:
                part.error = attempt(wait, part.observer)
            self._go_on()
            if any(worked):
                return True
        return False

    def _go_on(self) -> None:
        """Raises Cancelled where nobody is left."""
        for part in self.parts.values():
            if part.error is None:
                return
        raise Cancelled("no part of the pass is left")
