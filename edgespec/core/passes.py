"""The verifier on this machine: conversations take turns, and whoever has the turn takes along who waits.

    thread A   draft │ leads ── pass of A and B ────│ settle, draft │ leads ── pass of A, B and C ──│ ...
    thread B     draft │ waits ─────────────────────│ settle, draft │ waits ────────────────────────│ ...
    thread C                   draft │ waits ───────────────────────────────────────────────────────│ ...

Weights are read once a pass, so a pass for three conversations costs about what it costs for one; and
whatever shares it changes nobody's bits (`core.batch`). So who leads the next pass waits a moment for those
that the last one has served.

The main thread is the one that Ctrl-C interrupts, at any moment. Nobody takes its parts along, nor it
anybody's: when it is interrupted, no pass of others is under way in it, and none elsewhere has its caches.
"""

from __future__ import annotations

import threading
from collections import deque
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import replace
from time import perf_counter

from edgespec.core.batch import Part, PrefillBlock, Verification, run_pass
from edgespec.core.observers import FanOut
from edgespec.core.pace import Pace
from edgespec.core.schedule import Allotter
from edgespec.errors import BusyError
from edgespec.runtimes.base import KVCache
from edgespec.runtimes.target import Target

TICK = 0.05  # seconds; who waits for a turn looks this often whether it is cancelled
GATHER = 0.1  # of the last pass's time may the next one wait for those it served


class LocalVerifier:
    """See `core.verify.Verifier`. One for each target, whose passes it runs one after the other."""

    together = 1

    def __init__(self, target: Target, allotter: Allotter | None = None) -> None:
        """`allotter`: decides which nodes of the trees that are offered a pass verifies; None = all."""
        self.target, self.allotter = target, allotter
        # A bare lock: acquired and released by `with` in single steps, between which no Ctrl-C can come.
        # It knows whose it is, but is never taken twice.
        self._turn = threading.RLock()
        self._gate = threading.Lock()  # on the way to a turn; shut for whoever goes first
        self._seconds = 0.0  # that the latest pass took
        self.pace = Pace(target.config.layers)
        self._changed = threading.Condition()  # guards the following, which the main thread stays clear of
        self._waiting: deque[Part] = deque()
        self._leader: Part | None = None  # whose thread runs the next pass, or this one
        self._taken: list[Part] = []  # in the pass under way
        self._served: set[int] = set()  # ids of the last pass's caches that have not come back

    @property
    def turn(self) -> threading.RLock:
        self._refuse_inside()
        with self._gate:
            return self._turn

    @contextmanager
    def first(self) -> Iterator[None]:
        """The turn, as `turn`, before those who wait for theirs: who is at it ends the pass, and no more."""
        self._refuse_inside()
        with self._gate, self._turn:
            yield

    def inside(self) -> bool:
        return bool(self._turn._is_owned())  # type: ignore[attr-defined]  # as threading.Condition asks

    def _refuse_inside(self) -> None:
        if self.inside():
            raise BusyError(
                "a pass is under way, and this was asked by one of its callbacks, which it waits for: there, "
                "sessions and engines can be cancelled and closed; ask for anything else when it has returned"
            )

    def new_seat(self, context: int, slots: int | None = None, most: int | None = None) -> KVCache:
        """See `Target.new_cache`."""
        return self.target.new_cache(context, slots, most)

    def compute(self, parts: Sequence[Part]) -> Sequence[Part]:
        """See `core.verify.Verifier`. Who has several parts shares no pass with other threads."""
        if len(parts) != 1 or threading.current_thread() is threading.main_thread():
            with self.turn:
                taken = self._fitting(deque(parts))
                self._run(taken)
                return taken
        if self._is_to_lead(parts[0]):
            self._lead(parts[0])
        return parts

    def _is_to_lead(self, part: Part) -> bool:
        """Wait until the next pass is this thread's to run, or another thread has computed the part."""
        self._refuse_inside()
        with self._changed:
            self._waiting.append(part)
            self._served.discard(id(part.cache))
            self._changed.notify_all()
            while part in self._waiting or part in self._taken:
                if self._leader is None and self._waiting[0] is part:
                    self._leader = part
                    return True
                self._changed.wait(TICK)
                if part in self._waiting:
                    self._leave_if_cancelled(part)
            return False

    def _lead(self, part: Part) -> None:
        try:
            with self._changed:
                last = perf_counter() + GATHER * self._seconds
                while self._served and (left := last - perf_counter()) > 0:
                    self._changed.wait(min(left, TICK))
                    self._leave_if_cancelled(part)
            turn = self.turn
            while not turn.acquire(timeout=TICK):
                with self._changed:
                    self._leave_if_cancelled(part)
            try:
                with self._changed:
                    self._taken = self._fitting(self._waiting)
                self._run(self._taken)
            except BaseException as error:  # the disk's, say: it concerns all of them
                for taken in self._taken:
                    taken.error = taken.error or error
            finally:
                turn.release()
        finally:
            with self._changed:
                self._served = {id(taken.cache) for taken in self._taken}
                self._taken, self._leader = [], None
                self._changed.notify_all()

    def _leave_if_cancelled(self, part: Part) -> None:
        """While nobody computes the part. Raises whatever its observer would at the next chunk."""
        try:
            if part.observer is not None:
                part.observer.on_chunk()
        except BaseException:
            self._waiting.remove(part)
            self._changed.notify_all()
            raise

    def _fitting(self, queue: deque[Part]) -> list[Part]:
        """Take the first part, and of the others those that the ledger has room for in one pass."""
        parts, rows, judged = list[Part](), self.target.pass_rows, self.target.judged_rows
        for part in list(queue):
            looked_at = min(part.least, part.judged)
            if not parts or (part.least <= rows and looked_at <= judged):
                rows, judged = rows - part.least, judged - looked_at
                queue.remove(part)
                parts.append(part)
        self._share(parts, min(rows, judged))
        return self._paced(parts)

    def _paced(self, parts: list[Part]) -> list[Part]:
        """Beside trees, patient blocks of prompts go as far as the pass is hardly longer for it."""
        patient = [part for part in parts if isinstance(part, PrefillBlock) and part.patient]
        for block in patient:
            block.until = None
        if not patient or all(isinstance(part, PrefillBlock) for part in parts):
            return parts
        left_out = set(map(id, patient)) - set(map(id, self.pace.allot(patient)))
        return [part for part in parts if id(part) not in left_out]

    def _share(self, parts: Sequence[Part], room: int) -> None:
        """Of the trees that are offered verify the best nodes of all, as many as pay and have room."""
        trees = [part for part in parts if isinstance(part, Verification)]
        offered = [part for part in trees if part.offer is not None]
        if self.allotter is None or not offered:
            return
        offers = [part.offer for part in offered if part.offer is not None]
        others = sum(len(part) for part in trees if part.offer is None)
        # They lie where the rest of the reply will be.
        most = [part.cache.capacity - part.cache.length for part in offered]
        for part, nodes in zip(offered, self.allotter.allot(offers, most, others, room), strict=True):
            if len(nodes) < len(part):
                part.tree = part.tree.select(nodes)

    def _run(self, parts: Sequence[Part]) -> None:
        """One pass; in the thread that has the turn."""
        observer = parts[0].observer if len(parts) == 1 else FanOut(parts)
        began = perf_counter()
        try:
            if observer is not None:
                observer.on_chunk()  # it may have been cancelled, and the target closed, meanwhile
            run_pass(self.target, parts, observer)
        finally:
            self._seconds = perf_counter() - began
        self._tell(parts)

    def _tell(self, parts: Sequence[Part]) -> None:
        """Those who learn from it what the pass took."""
        rows, prompts = sum(map(len, parts)), any(isinstance(part, PrefillBlock) for part in parts)
        trees = [part for part in parts if isinstance(part, Verification)]
        if all(part.patient for part in parts if isinstance(part, PrefillBlock)):
            self.pace.record(self._seconds, bool(trees), prompts)
        seconds, tokens = self._seconds, 0
        for part in trees:
            if part.outcome is not None:
                tokens += len(part.outcome.tokens)
                beside = rows - len(part)
                part.outcome = replace(part.outcome, seconds=seconds, beside=beside, prompts=prompts)
        offers = [part.offer for part in trees if part.offer is not None]
        if self.allotter is not None and offers:
            self.allotter.record(offers, sum(map(len, trees)), tokens, seconds, prompts)
