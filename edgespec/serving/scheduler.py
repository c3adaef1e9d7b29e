"""One thread that replies to all: it owns the engine, and requests join and leave between two passes.

    submit ──► queue ──► a session, new or kept ──► passes that all share ──► the session is kept
                 full: OverloadError                 ▲ parked until it may hold more │

Sessions begin with room for their prompts and a little more, and grow between passes, so that replies of
unknown length can be made side by side. That everybody comes to an end nevertheless is the banker's rule
(Dijkstra, EWD 623), in the order of arrival: nobody gets positions without which those who came before could
not have, one after the other, all that they may need.
"""

from __future__ import annotations

import threading
from collections import deque
from collections.abc import Callable, Sequence
from functools import partial
from time import monotonic

from edgespec.config import GenerationOptions
from edgespec.core.acceptance import make_acceptance
from edgespec.core.batch import attempt
from edgespec.core.batcher import Batcher
from edgespec.engine import Engine
from edgespec.errors import Cancelled, ClosedError, EdgeSpecError, OverloadError
from edgespec.schedules.kinds import check_acceptance
from edgespec.serving.counters import Counters, Occupancy
from edgespec.serving.replier import Replier
from edgespec.serving.shelf import Shelf
from edgespec.serving.ticket import Ticket
from edgespec.serving.visitors import Visitor, Visitors
from edgespec.session import reply_limit

STEP = 256  # positions by which a session grows
MOST_WAITING = 64  # requests
LOOK = 0.05  # seconds between two looks at whether those come again whose replies may go on
SWEEP = 5.0  # seconds; a tenant is told so often that time goes by
MOST_PATIENCE = 60.0  # seconds that somebody is told to wait


class Scheduler:
    """Replies to requests, as many at once as the engine was loaded for (`batch=`), the others in turn.

    Nobody else may use the engine meanwhile, but for its dial. To be closed before the engine.

    Attributes:
        failed: what has ended it; None = it works.
    """

    def __init__(
        self, engine: Engine, waiting: int = MOST_WAITING, failing: Callable[[], None] = lambda: None
    ) -> None:
        """waiting: the most requests in the queue. failing: called, in the scheduler's thread, when an error
        has ended it."""
        self.engine, self.most_waiting, self.failing = engine, waiting, failing
        self.most = engine.plan.sequences
        self.shelf, self.batcher = Shelf(engine), Batcher[Replier | Visitor](engine.verifier, patient=True)
        self.visitors = Visitors(self.batcher)
        self.counters = Counters()
        self.failed: BaseException | None = None
        self._members: list[Replier] = []  # in the order in which they came
        self._queue: deque[Ticket] = deque()
        self._changed = threading.Condition()  # guards the queue and the following
        self._closing = self._cut = False  # cut: what is under way, too, has no time any more
        self._thread = threading.Thread(target=self._run, name="edgespec scheduler", daemon=True)
        self._thread.start()

    def submit(
        self,
        prompt: Sequence[int],
        options: GenerationOptions,
        reuse: bool = True,
        notify: Callable[[], None] = lambda: None,
    ) -> Ticket:
        """Queue a request: the tokens of a prompt, and how to reply. See `Ticket`.

        Raises OptionError, ContextError (with both counts), OverloadError when the queue is full, ClosedError
        when the scheduler is closing or has failed.
        """
        limit = reply_limit(prompt, options, self.engine.plan.context, self.engine.config)
        acceptance = make_acceptance(options.acceptance, options)
        check_acceptance(acceptance, self.engine.options, self.engine.drafters)
        ticket = Ticket(prompt, options, limit, reuse, notify)
        with self._changed:
            if self._closing:
                raise ClosedError("the server stops" if self.failed is None else f"it broke: {self.failed}")
            if len(self._queue) >= self.most_waiting:
                self.counters.refused += 1
                raise OverloadError(
                    f"{len(self._members)} replies are under way and {len(self._queue)} requests wait, which "
                    "are the most; try again later",
                    self._patience(),
                )
            self._queue.append(ticket)
            self._changed.notify_all()
        return ticket

    def post(self, work: Callable[[], None]) -> None:
        """Have this called in the thread, between two passes; it raises nothing. Not when that has ended.
        What the thread itself asks for is put off: a pass may come first."""
        own = threading.current_thread() is self._thread
        with self._changed:
            if self._thread.is_alive():
                (self.visitors.later if own else self.visitors.calls).append(work)
                self._changed.notify_all()

    @property
    def state(self) -> Occupancy:
        pool = self.engine.pool
        return Occupancy(
            len(self._queue), len(self._members), len(self.shelf), self.most, pool.held, pool.positions
        )

    def close(self, patience: float = 0.0) -> None:
        """Take no more requests and refuse those that wait. What is under way has so many seconds to end, and
        is then cut off as cancelled."""
        with self._changed:
            self._closing = True
            self._changed.notify_all()
        self._thread.join(patience)
        with self._changed:
            self._cut = True
            self._changed.notify_all()
        while self._thread.is_alive():
            for member in [*self._members]:
                member.ticket.cancel()
            self._thread.join(0.05)

    def _patience(self) -> float:
        """Seconds after which there may be a place in the queue, by replies that have ended or are under
        way."""
        now = monotonic()
        under_way = [now - (member.ticket.began or now) for member in [*self._members]]
        seconds = self.counters.reply_seconds + sum(under_way)
        replies = self.counters.replies.total() + len(under_way)
        return min(MOST_PATIENCE, max(1.0, seconds / max(1, replies) / self.most))

    # --- in the thread --------------------------------------------------------------------------------------

    def visit(self, visitor: Visitor) -> None:
        """It takes part in the passes from now on."""
        self.visitors.join(visitor)

    def spare(self, positions: int) -> bool:
        """Whether a tenant may take so many: everybody here can come to an end without them."""
        if not self._safe([(member, member.held) for member in self._members], taken=positions):
            return False
        self.shelf.make_room(positions)
        return True

    def _run(self) -> None:
        try:
            while self._wait():
                self.visitors.gather(self._listen)
                self._cut_off()
                self._unpark()
                self._admit()
                self._pass()
        except BaseException as error:
            with self._changed:
                self.failed, self._closing = error, True
        finally:
            self._end_all(self.failed or Cancelled("the server stops"))
            if self.failed is not None:
                self.failing()

    def _wait(self) -> bool:
        """Until there is something to do; False = never again."""
        with self._changed:
            self._changed.wait_for(lambda: self._busy or self._closing, SWEEP)
            while self._closing and self._queue:
                self._queue.popleft().fail(
                    ClosedError("the server stops, and has not begun with this request")
                )
            if not self._closing:
                return True
            while not (self._busy or self._cut) and self.visitors.mid_reply:
                self._changed.wait(LOOK)
            return bool(self._members) or (self._busy and not self._cut)

    def _listen(self, seconds: float) -> bool:
        """Whether a visitor's call comes in so many seconds."""
        with self._changed:
            self._changed.wait_for(lambda: self.visitors.called or self._closing, seconds)
            return self.visitors.called and not self._closing

    @property
    def _busy(self) -> bool:
        return bool(self._queue or self._members or self.visitors or self.visitors.called)

    def _cut_off(self) -> None:
        """Those who were cancelled, wherever they are."""
        with self._changed:
            gone = [ticket for ticket in self._queue if ticket.cancelled]
            self._queue = deque(ticket for ticket in self._queue if not ticket.cancelled)
        for ticket in gone:
            self.counters.replies["cancelled"] += 1
            ticket.fail(Cancelled("the request was cancelled before its turn"))
        for member in [member for member in self._members if member.ticket.cancelled]:
            self.batcher.leave(member)
            self._end(member, Cancelled("the reply was cancelled"))

    def _unpark(self) -> None:
        for member in self._members:
            held = min(member.context, member.held + STEP)
            if member.parked and self._safe([(m, held if m is member else m.held) for m in self._members]):
                self.shelf.hold(member.session, held)
                member.held, member.parked = held, False
                self.batcher.join(member)

    def _admit(self) -> None:
        """Those who have waited longest, one after the other, while there is room."""
        while self._queue and len(self._members) < self.most:
            ticket = self._queue[0]
            context = len(ticket.prompt) + ticket.limit
            held = min(context, len(ticket.prompt) + STEP) if self.engine.may_grow else context
            if self.most == 1:
                context = held = self.engine.plan.context
            there = [(m, m.held) for m in self._members]
            parked = any(member.parked for member in self._members)
            if self._members and (parked or not self._safe(there, (held, context))):
                return
            with self._changed:
                self._queue.popleft()
            self.visitors.give_way(partial(self._has, self.engine.pool.of(held)))
            if (error := attempt(self._begin, ticket, held, context)) is not None:
                self.counters.replies["error"] += 1
                ticket.fail(error)

    def _has(self, positions: int) -> bool:
        """So many are free, if need be without sessions that are kept."""
        return self.engine.pool.free + self.shelf.positions >= positions

    def _begin(self, ticket: Ticket, held: int, context: int) -> None:
        kept = self.shelf.open(ticket.prompt, held, context, ticket.reuse)
        if not self.engine.may_grow:  # a session that was kept may have more
            held = context = kept.session.context
        rows = self.engine.options.tree_nodes if self.engine.drafters else 1
        try:
            member = Replier(ticket, kept, held, context, rows, self.counters)
        except BaseException:
            kept.session.close()
            raise
        self._members.append(member)
        self.batcher.join(member)

    def _safe(
        self, members: list[tuple[Replier, int]], newcomer: tuple[int, int] | None = None, taken: int = 0
    ) -> bool:
        """Whether all can come to their ends one after the other if they hold so many positions now, and a
        newcomer (held, context) behind them; a tenant keeps what it holds, and takes more. Sessions that are
        kept are room."""
        taken += self.visitors.held
        of = self.engine.pool.of
        line = [(held, member.context) for member, held in members] + ([newcomer] if newcomer else [])
        free = self.engine.pool.positions - taken - sum(of(held) for held, _ in line)
        for held, most in line:
            if free < of(most) - of(held):
                return False
            free += of(held)
        return free >= 0

    def _pass(self) -> None:
        if not len(self.batcher):
            return
        began = monotonic()
        try:
            for member, error in self.batcher.step():
                if not isinstance(member, Replier):
                    self.visitors.end(member, error)
                elif error is not None or not member.parked:
                    self._end(member, error)
        except EdgeSpecError as wrong:
            # No part of the pass was left, all of which were cancelled (`_cut_off` ends them); or it concerns
            # all, as a disk's error does, after which the engine can be used.
            cancelled = any(member.ticket.cancelled for member in self._members)
            if not (cancelled and isinstance(wrong, Cancelled)):
                self._end_all(wrong)
        finally:
            self.counters.passes += 1
            self.counters.pass_seconds += (took := monotonic() - began)
            self.visitors.passed(took)

    def _end(self, member: Replier, error: BaseException | None) -> None:
        self._members.remove(member)
        error = attempt(member.end) or error
        counters = self.counters
        cut = isinstance(error, Cancelled)
        broken = error is not None and not cut
        if broken or attempt(self.shelf.keep, member.kept) is not None:
            member.session.close()
        counters.replies["error" if broken else "cancelled" if cut else member.ticket.reason] += 1
        counters.reply_seconds += monotonic() - (member.ticket.began or 0.0)
        if cut:
            member.ticket.put(member.reply.cancelled())
        elif error is not None:
            member.ticket.fail(error)

    def _end_all(self, error: BaseException) -> None:
        self.visitors.end_all(error)
        for member in [*self._members]:
            self.batcher.leave(member)
            self._end(member, error)
        if self._closing:
            with self._changed:
                while self._queue:
                    self._queue.popleft().fail(error)
            self.shelf.clear()
            if self.visitors.tenant is not None:
                self.visitors.tenant.close()
