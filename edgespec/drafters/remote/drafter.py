"""A conversation's drafter on a server: as a worker's, and it survives its connection. Needs no torch."""

from __future__ import annotations

from dataclasses import replace
from typing import Protocol

from edgespec.core.acceptance import Outcome
from edgespec.core.schedule import Context
from edgespec.drafters.base import committed
from edgespec.drafters.beside import BesideDrafter
from edgespec.drafters.colleague import Colleague
from edgespec.drafters.remote.connection import DraftConnection

FAR = 0.5  # seconds that an answer is waited for at least: it crosses a net


class DraftSource(Protocol):
    """Where it drafts: `remote.server.DraftServer`."""

    refused: str | None
    positions: int

    @property
    def latest(self) -> Colleague: ...

    def connection(self) -> Colleague | None: ...


class RemoteDrafter(BesideDrafter):
    """See `drafters.beside.BesideDrafter`: with the text of its conversation, to tell it anew."""

    def __init__(self, server: DraftSource, capacity: int, vocabulary: int) -> None:
        self.server, self._asked = server, capacity
        self.tokens = list[int]()  # committed
        super().__init__(server.latest, min(capacity, server.positions), vocabulary)

    @property
    def lost(self) -> str | None:
        return None if self.server.refused is None else f"no more drafts: {self.server.refused}"

    @property
    def passes(self) -> range:
        return super().passes if self._drafts else range(0)

    @property
    def caught_up(self) -> bool:
        return self._drafts and super().caught_up

    @property
    def _drafts(self) -> bool:
        """The server has memory for this conversation, as long as it is, and may hear of it."""
        connection = self.worker
        full = isinstance(connection, DraftConnection) and self.seat in connection.full
        return len(self.tokens) < self.capacity and not full and not self.context.private

    def waits(self) -> bool:
        return self._drafts and super().waits()

    @property
    def _least(self) -> float:
        """See `BesideDrafter`."""
        return FAR

    def prefill(self, context: Context) -> None:
        self.tokens = [int(token) for token in context.tokens]
        self.context = context
        if context.private:
            self._owed = self._lookup = None
        elif not self._drafts or self.worker.lost is not None:
            self._move()
        else:
            self._begin()

    def commit(self, root: int, outcome: Outcome) -> None:
        self.tokens += committed(root, outcome)
        if self.context.private:
            return
        if self.worker.lost is not None:
            self._move()
        elif self._drafts:
            super().commit(root, outcome)

    def _move(self) -> None:
        """To another connection, or to another place on this one, if there is one."""
        if (connection := self.server.connection()) is not None:
            self._leave()
            self.capacity = min(self._asked, self.server.positions)
            self._sit(connection)
            self._begin()

    def _begin(self) -> None:
        """Tell the whole text, if there may be room for it."""
        if self._drafts:
            super().prefill(replace(self.context, tokens=self.tokens))
