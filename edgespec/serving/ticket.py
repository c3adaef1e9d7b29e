"""A request on its way through a scheduler, and what has come of it so far."""

from __future__ import annotations

import threading
from array import array
from collections.abc import Callable, Iterator, Sequence
from time import monotonic

from edgespec.config import GenerationOptions
from edgespec.response import Response


class Ticket:
    """One request; any thread may take what was said, wait for more, and cancel.

    What was said and not taken yet is one Response: whoever never takes it holds nobody up, and costs no more
    than the text of a reply, which is bounded by the context.

    Attributes:
        prompt, options: what to reply to, in tokens, and how.
        limit: the most tokens that the reply may have.
        reason: why it has ended: "stop", "length", "cancelled" or "error".
        reuse: what a conversation before has computed of this prompt need not be computed again.
        began: when it left the queue, in seconds of `monotonic`; None = it waits there.
    """

    def __init__(
        self,
        prompt: Sequence[int],
        options: GenerationOptions,
        limit: int,
        reuse: bool = True,
        notify: Callable[[], None] = lambda: None,
    ) -> None:
        """notify: called, in the scheduler's thread, whenever there is something to take; must be quick."""
        self.prompt = array("i", prompt)  # 4 bytes a token: many may wait
        self.options, self.limit, self.reuse = options, limit, reuse
        self.arrived = monotonic()
        self.began: float | None = None
        self.cancelled = False
        self.reason = "error"  # it ended for, when it is over
        self._notify = notify
        self._stop: Callable[[], None] = lambda: None
        self._changed = threading.Condition()  # guards the following
        self._said: Response | None = None
        self._error: BaseException | None = None
        self._over = False

    @property
    def over(self) -> bool:
        """Nothing more will come."""
        return self._over

    def cancel(self) -> None:
        """End the reply: alone, within one chunk of weights; in a shared pass, when it has ended."""
        self.cancelled = True
        self._stop()

    def take(self) -> Response | None:
        """All that was said since the last call, as one Response: its text and tokens, and, at the reply's
        end, why it ended. None = nothing new. Raises what has ended it otherwise."""
        with self._changed:
            said, self._said = self._said, None
            if said is None and self._error is not None:
                raise self._error
            return said

    def __iter__(self) -> Iterator[Response]:
        """What is said, piece by piece, until the reply is over. Blocks; raises as `take`."""
        while True:
            with self._changed:
                self._changed.wait_for(lambda: self._said is not None or self._over)
                over = self._over
            if (said := self.take()) is not None:
                yield said
            if over and self._error is None:
                return

    # What follows is for the scheduler.

    def stop_with(self, stop: Callable[[], None]) -> None:
        """From now on `cancel` calls this, too; and now, if it came before."""
        self._stop = stop
        if self.cancelled:
            stop()

    def put(self, step: Response) -> None:
        with self._changed:
            self._said = self._said or Response("")
            self._said.add(step)
            if step.finish_reason is not None:
                self.reason, self._over = step.finish_reason, True
            self._changed.notify_all()
        self._notify()

    def fail(self, error: BaseException) -> None:
        """The reply ends with this error; what was said before it can still be taken."""
        with self._changed:
            self._error, self._over, self.reason = error, True, "error"
            self._changed.notify_all()
        self._notify()
