"""A reply under way among others, and what is counted of it."""

from __future__ import annotations

from time import monotonic

from edgespec.core.batch import Part
from edgespec.serving.counters import Counters
from edgespec.serving.shelf import Kept
from edgespec.serving.ticket import Ticket

COUNTED = ("prompt_tokens", "reused_tokens", "reply_tokens", "cycles", "drafted", "accepted")


class Replier:
    """See `core.batcher.Member`.

    held: positions that its session has memory for; context: that it may need at most. parked: it has left
    the passes until it may hold more.
    """

    def __init__(
        self, ticket: Ticket, kept: Kept, held: int, context: int, rows: int, counters: Counters
    ) -> None:
        """rows: of its trees."""
        self.ticket, self.kept, self.held, self.context, self.rows = ticket, kept, held, context, rows
        self.session, self.start, self.parked = kept.session, len(kept.session.tokens), False
        self.reply = self.session.new_reply(ticket.prompt, ticket.options)
        self.counters, self._counted = counters, dict.fromkeys(COUNTED, 0)
        ticket.began = monotonic()
        ticket.stop_with(self.reply.cancellation.cancel)

    def ask(self) -> Part:
        return self.session.ask(self.reply)

    def answer(self, part: Part) -> bool:
        for step in self.session.answer(self.reply, part):
            self.ticket.put(step)
        self.count()
        if self.reply.writer.finished:
            return False
        self.parked = self.held < self.context and self.session.cache.length + self.rows > self.held
        return not self.parked

    def end(self) -> None:
        self.session.end(self.reply)
        self.count()
        self.kept.ended(len(self.ticket.prompt), self.start)

    def count(self) -> None:
        """What has come since it was last counted."""
        for name in COUNTED:
            now = getattr(self.reply.stats, name)
            setattr(self.counters, name, getattr(self.counters, name) + now - self._counted[name])
            self._counted[name] = now
