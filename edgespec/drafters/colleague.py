"""Who drafts elsewhere, in another process or on another machine, as the target has them. Needs no torch.

Others speak and hear for it, in threads of their own, so that nobody waits for a pipe or a net. What is asked
is a `Question`; whoever has asked may wait for its answer as long as he likes. There are no locks, in which a
Ctrl-C could come: dicts and queues change in single steps.
"""

from __future__ import annotations

import itertools
from collections.abc import Callable
from contextlib import suppress
from queue import Empty, SimpleQueue
from time import monotonic, perf_counter

from edgespec.core.trace import Round
from edgespec.drafters.channel import Answer, Beat, Committed, Failed, Nonsense, Sent, Trees, Worked, encoded

TICK = 0.05  # seconds, after which whoever waits looks whether he is cancelled
MOST_WAITING = 64  # messages not taken yet, beyond which it is lost


class Question:
    """Asked, and answered at some time, by such a message."""

    def __init__(self, kind: type[Trees] | type[Committed]) -> None:
        self.kind = kind
        self.answer: Trees | Committed | None = None
        self.asked = self.beat = monotonic()  # when, and when the worker was last at work on it
        self._woken = SimpleQueue[None]()

    def wake(self) -> None:
        self._woken.put(None)

    def wait(self, seconds: float) -> None:
        """Until it is answered, the worker is lost, or so much time has passed."""
        with suppress(Empty):
            self._woken.get(timeout=max(seconds, 0.0))


class Colleague:
    """What it was told and asked, and has answered. Its methods may be called in any thread.

    A subclass takes what is to be sent out of `_outbox`, to the None at its end, has `_take` hear what is
    answered, and ends it where it is lost.
    """

    def __init__(self) -> None:
        self.lost: str | None = None  # why it does not answer any more
        self.peak = 0  # bytes, the most that it has taken
        self.nodes: dict[int, int] = {}  # by conversation: drafted ahead for the tree under way
        self.seconds: dict[int, float] = {}  # likewise: as of `channel.Beat`
        self.heard = monotonic()  # when it last said something
        self.pass_seconds: float | None = None  # that the target's latest pass took
        self.listener: Callable[[Round], None] | None = None  # in the thread that hears; raises nothing
        self._round_ended = perf_counter()
        self._failed: Failed | None = None
        self._outbox = SimpleQueue[bytes | None]()
        self._questions: dict[int, Question] = {}  # not answered yet, by number
        self._count, self._seats = itertools.count(1), itertools.count(1)

    def lose(self, why: str) -> None:
        """It is of no use any more."""
        self.lost = self.lost or why

    @property
    def damaged(self) -> bool:
        """It has ended because its model computes NaN."""
        return False

    def new_seat(self) -> int:
        seat = next(self._seats)
        self.nodes[seat], self.seconds[seat] = 0, 0.0
        return seat

    def leave(self, seat: int, message: Sent) -> None:
        """A conversation is over."""
        self.nodes.pop(seat, None)
        self.seconds.pop(seat, None)
        self.tell(message)

    def tell(self, message: Sent) -> None:
        """Say something; what a lost worker is told goes nowhere."""
        if self.lost is not None:
            return
        if self._outbox.qsize() > MOST_WAITING:
            self.lose(f"it has not taken the last {MOST_WAITING} messages")
        self._outbox.put(encoded(message))

    def ask(self, kind: type[Trees] | type[Committed], message: Callable[[int], Sent]) -> Question:
        """Say something that has an answer; `message` gets the question's number."""
        number, question = next(self._count), Question(kind)
        self._questions[number] = question
        self.tell(message(number))
        return question

    def _wake(self) -> None:
        """Nobody will be answered any more."""
        for question in list(self._questions.values()):
            question.wake()

    def _take(self, message: Answer) -> None:
        """Raises Nonsense for what nobody has asked."""
        if isinstance(message, Failed):
            self._failed = message
            return
        if isinstance(message, Beat):
            if message.seat in self.nodes:  # else the conversation is over
                self.nodes[message.seat], self.seconds[message.seat] = message.nodes, message.seconds
            if (question := self._questions.get(message.question)) is not None:
                question.beat = self.heard
        elif isinstance(message, Worked):
            now = perf_counter()
            began = max(now - message.micros / 1e6, self._round_ended)
            self._round_ended = now
            if self.listener is not None:
                self.listener(Round(message.ahead, message.nodes, began, now))
        elif not isinstance(message, (Trees, Committed)):
            raise Nonsense(f"{type(message).__name__}, out of turn")
        else:
            if isinstance(message, Committed):
                self.peak = max(self.peak, message.peak)
            question = self._questions.pop(message.question, None)
            if question is None or type(message) is not question.kind:
                raise Nonsense(f"{type(message).__name__} to question {message.question}, which nobody asked")
            question.answer = message
            question.wake()
