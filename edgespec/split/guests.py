"""Conversations of clients that draft elsewhere, and the memory that they hold on the server. Needs no torch.

A conversation's memory is a session's of the engine: in the ledger, and refused when there is none. Who has
not said anything for a while gives it back, and so does, before others are refused, who has not for the
longest; they notice a longer wait, as their next request finds the server behind, and their text is sent
again.
"""

from __future__ import annotations

import secrets
from collections.abc import Callable, Iterator
from typing import TYPE_CHECKING

from edgespec.errors import BudgetError, ClosedError, RefusedError
from edgespec.split.guest import Guest
from edgespec.split.protocol import SEAT_BYTES

if TYPE_CHECKING:
    from edgespec.engine import Engine

IDLE_SECONDS = 600.0  # after which a conversation's memory goes to others who want it, or to nobody
SPARE_SECONDS = 20.0  # a connected client may rest so long, whoever waits
GONE_SECONDS = 5.0  # without a connection, after which nobody is thought to wait for a round
STEP = 256  # positions by which a conversation grows
MOST = 1024  # conversations that are known, with memory or without


class Guests:
    """In the thread that runs the passes, all of it."""

    def __init__(
        self,
        engine: Engine,
        spare: Callable[[int], bool],
        behind: int,
        idle: float,
        clock: Callable[[], float],
    ) -> None:
        """spare: whether others can do without so many positions of the pool. behind: positions that trees
        take beside each conversation's. idle: seconds."""
        self.engine, self.idle, self.clock = engine, idle, clock
        self._spare, self._behind = spare, behind
        self._known: dict[bytes, Guest] = {}
        self.dropped = 0  # whose memory went to others

    def __len__(self) -> int:
        return len(self._known)

    def __iter__(self) -> Iterator[Guest]:
        """They may be dropped meanwhile."""
        return iter([*self._known.values()])

    def get(self, seat: bytes, context: int) -> Guest:
        """The conversation of this id, or a new one where there is none of so many positions. Raises
        RefusedError."""
        guest = self._known.get(seat)
        return self._new(context) if guest is None or guest.context != context else guest

    def _new(self, context: int) -> Guest:
        if len(self) >= MOST:
            for guest in self._resting(0, self.idle)[:1]:
                self.drop(guest)
        if len(self) >= MOST:
            raise RefusedError(f"{MOST} conversations are open here, the most", "full", SPARE_SECONDS)
        guest = Guest(secrets.token_bytes(SEAT_BYTES), context, self.clock)
        self._known[guest.seat] = guest
        return guest

    def drop(self, guest: Guest) -> None:
        """Its memory is free; it is known while it is connected."""
        guest.forget()
        if guest.line is None:
            self._known.pop(guest.seat, None)

    def sweep(self) -> None:
        """Memory of those who were idle for too long is free, and nothing more is computed for who is gone.
        What was is there when he comes again."""
        for guest in self:
            if guest.work is not None and guest.line is None and self.clock() - guest.since > GONE_SECONDS:
                guest.work.cancellation.cancel()
        for guest in self._resting(self.idle, self.idle):
            self.drop(guest)

    def _resting(self, lost: float, connected: float) -> list[Guest]:
        """With nothing to do for so many seconds, longest first."""
        now = self.clock()
        idle = [g for g in self if g.work is None]
        idle = [g for g in idle if now - g.since >= (lost if g.line is None else connected)]
        return sorted(idle, key=lambda g: g.since)

    @property
    def held(self) -> int:
        """Positions that they hold of the pool."""
        open = [g.session for g in self if g.session is not None]
        return sum(self.engine.pool.share(session.number) for session in open)

    def give_way(self, to: Guest | None = None) -> bool:
        """Take memory from the one that has rested for longest, and is not `to`; False = from none."""
        spare = [g for g in self._resting(0, SPARE_SECONDS) if g.session is not None and g is not to]
        if spare:
            self.dropped += 1
            self.drop(spare[0])
        return bool(spare)

    def admit(self, guest: Guest, positions: int) -> None:
        """Give it memory for so many: for all that it may ever need, unless it can grow. Raises
        RefusedError."""
        grown = min(guest.context, -(-positions // STEP) * STEP) if self.engine.may_grow else guest.context
        held = grown + self._behind
        while not self._holds(guest, held):
            if not self.give_way(guest):
                holding = sum(g.session is not None for g in self)
                raise RefusedError(
                    f"there is no room for a conversation of {held} positions: {holding} hold some of the "
                    f"{self.engine.pool.positions} that the server has memory for, and others' replies may; "
                    "try again later, or ask for a smaller context",
                    "full",
                    SPARE_SECONDS,
                )

    def _holds(self, guest: Guest, held: int) -> bool:
        """Whether it has memory for so many positions now."""
        engine, pool, session = self.engine, self.engine.pool, guest.session
        if session is not None and session.cache.capacity >= held:
            return True
        share = 0 if session is None else pool.share(session.number)
        try:
            if not self._spare(pool.of(held) - share):
                return False
            if session is None:
                context = None if engine.may_grow else held
                guest.session = engine.new_session(context, held=held if engine.may_grow else None)
            else:
                engine.hold(session, held)
        except ClosedError:
            raise RefusedError("the server is closing", "closing") from None
        except BudgetError:
            return False
        return True
