"""The target's hand on the process that drafts beside it: started, asked, lost and ended. Needs no torch.

Two threads speak and hear for it, so that nobody waits for a pipe. What is asked is a `Question`; whoever has
asked may wait for its answer as long as he likes. There are no locks, in which a Ctrl-C could come: dicts and
queues change in single steps.
"""

from __future__ import annotations

import itertools
import json
import subprocess
import sys
import tempfile
from collections.abc import Callable, Sequence
from contextlib import suppress
from dataclasses import dataclass
from queue import Empty, SimpleQueue
from threading import Thread, current_thread
from time import monotonic, perf_counter
from typing import BinaryIO, cast

from edgespec import errors
from edgespec.core.trace import Round
from edgespec.drafters.channel import (
    ANSWER_BYTES,
    ANSWERS,
    Answer,
    Beat,
    Committed,
    Failed,
    Load,
    Loading,
    Nonsense,
    Ready,
    Sent,
    Trees,
    Worked,
    frame,
    read_frame,
)
from edgespec.errors import DeviceError, EdgeSpecError, ModelError, StorageError

TICK = 0.05  # seconds, after which whoever waits looks whether he is cancelled
START = 120.0  # seconds without a word, after which a start has failed: torch from a slow disk takes tens
ABORTED = 6  # the signal that a process sends to itself: of a failed assertion (SIGABRT)
END = 5.0  # seconds that a killed process may take to be gone
MOST_WAITING = 64  # messages not taken yet, beyond which it is lost
# With the paths of this process, so that it runs the same code, and never what lies in the current directory.
_BOOT = (
    "import json, signal, sys; signal.signal(signal.SIGINT, signal.SIG_IGN); "
    "sys.path[:] = json.loads(sys.argv.pop()); "
    "from pkgutil import resolve_name; resolve_name(sys.argv.pop())()"
)


def command(program: str = "edgespec.drafters.worker:main") -> list[str]:
    """What runs a function without arguments in a process of its own."""
    return [
        sys.executable or "python3",
        "-c",
        _BOOT,
        program,
        json.dumps([p for p in sys.path if isinstance(p, str)]),
    ]


@dataclass(frozen=True)
class Program:
    """What runs in the process.

    instead: what to do where it does not start, in words. asserts: its library ends the process (SIGABRT)
    where a model's file is not what it expects.
    """

    command: Sequence[str]
    instead: str = "leave draft_worker= out to draft in this process"
    asserts: bool = False

    def not_started(self, why: object) -> DeviceError:
        return DeviceError(f"the draft worker did not start: {why}; {self.instead}")


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


class Worker:
    """See the module. Its methods may be called in any thread."""

    def __init__(self, program: Program) -> None:
        """Raises DeviceError when its command cannot be run."""
        self.program = program
        self.lost: str | None = None  # why it does not answer any more
        self.peak = 0  # bytes, the most that it has taken
        self.placement = ""  # see `channel.Ready`
        self.nodes: dict[int, int] = {}  # by conversation: drafted ahead for the tree under way
        self.seconds: dict[int, float] = {}  # likewise: as of `channel.Beat`
        self.heard = monotonic()  # when it last said something
        self.listener: Callable[[Round], None] | None = None  # in the thread that hears; raises nothing
        self._round_ended = perf_counter()
        self._failed: Failed | None = None
        self._ready = False
        self._loading = SimpleQueue[Answer]()
        self._outbox = SimpleQueue[bytes | None]()
        self._questions: dict[int, Question] = {}  # not answered yet, by number
        self._count, self._seats = itertools.count(1), itertools.count(1)
        try:
            self._errors = tempfile.TemporaryFile()  # noqa: SIM115  # a pipe would be full some day
        except OSError as error:
            raise program.not_started(error) from None
        try:
            self._process = subprocess.Popen(
                list(program.command),
                stdin=subprocess.PIPE,
                stdout=subprocess.PIPE,
                stderr=self._errors,
                start_new_session=True,  # the terminal's signals are for this process
            )
        except OSError as error:
            self._errors.close()
            raise program.not_started(error) from None
        threads = (Thread(target=work, daemon=True) for work in (self._speak, self._hear))
        self._threads = list(threads)
        for thread in self._threads:
            thread.start()

    def load(self, message: Load, progress: Callable[[int], None]) -> None:
        """Have the model opened; `progress` gets bytes.

        Raises DeviceError when the worker cannot start, and what reading a model raises. It is then ended, as
        by whatever `progress` raises.
        """
        try:
            self.tell(message)
            while True:
                with suppress(Empty):
                    heard = self._loading.get(timeout=TICK)
                    if isinstance(heard, Ready):
                        return
                    if isinstance(heard, Loading):
                        progress(heard.nbytes)
                    continue
                if self.lost is None and monotonic() - self.heard > START:
                    self.lose(f"it said nothing for {START:.0f} s")
                if self.lost is not None:
                    raise self._refusal(message.model)
        except BaseException:
            self.close()
            raise

    def _refusal(self, model: str) -> EdgeSpecError:
        failed = self._failed
        kind = getattr(errors, failed.kind, None) if failed is not None else None
        if failed is not None and isinstance(kind, type) and issubclass(kind, (ModelError, StorageError)):
            return kind(failed.words)
        if self.program.asserts and self._process.poll() == -ABORTED:
            return ModelError(
                f"{model}: the engine gave up reading it, so fetch the model again: {self.lost}"
            )
        return self.program.not_started(self.lost)

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
        self._outbox.put(frame(message))

    def ask(self, kind: type[Trees] | type[Committed], message: Callable[[int], Sent]) -> Question:
        """Say something that has an answer; `message` gets the question's number."""
        number, question = next(self._count), Question(kind)
        self._questions[number] = question
        self.tell(message(number))
        return question

    def lose(self, why: str) -> None:
        """It is of no use any more."""
        self.lost = self.lost or why
        self._process.kill()

    def close(self) -> None:
        """End it, and wait until it is gone; once is enough."""
        self.lose("it was ended")
        with suppress(subprocess.TimeoutExpired):
            self._process.wait(END)
        self._outbox.put(None)
        for thread in self._threads:
            if thread is not current_thread():
                thread.join(END)
        self._errors.close()

    def _speak(self) -> None:
        with suppress(OSError), cast(BinaryIO, self._process.stdin) as pipe:
            while (data := self._outbox.get()) is not None:
                pipe.write(data)
                pipe.flush()

    def _hear(self) -> None:
        try:
            with cast(BinaryIO, self._process.stdout) as pipe:
                while (message := read_frame(pipe, ANSWERS, ANSWER_BYTES)) is not None:
                    self.heard = monotonic()
                    self._take(message)
        except Nonsense as error:
            self.lose(f"it answered nonsense ({error})")
        except Exception as error:  # whatever it is, nobody hears any more
            self.lose(f"it could not be heard ({type(error).__name__}: {error})")
        if self.lost is None:
            with suppress(subprocess.TimeoutExpired):
                self._process.wait(END)
        self.lose(self._end())
        with suppress(subprocess.TimeoutExpired):
            self._process.wait(END)
        self._outbox.put(None)
        for question in list(self._questions.values()):
            question.wake()

    @property
    def damaged(self) -> bool:
        """It has ended by a ModelError: its model computes NaN, once it is open."""
        kind = getattr(errors, self._failed.kind, None) if self._failed is not None else None
        return self._ready and isinstance(kind, type) and issubclass(kind, ModelError)

    def _end(self) -> str:
        """Why it ended by itself."""
        if self._failed is not None:
            return f"{self._failed.kind}: {self._failed.words}"
        code, words = self._process.poll(), ""
        with suppress(OSError, ValueError):
            self._errors.seek(max(0, self._errors.seek(0, 2) - 1000))
            lines = self._errors.read(1000).decode(errors="replace").strip().splitlines()
            words = f": {lines[-1]}" if lines else ""
        if code is None:
            return f"it ended its side of the pipe{words}"
        how = f"was killed by signal {-code}" if code < 0 else f"ended with code {code}"
        return f"it {how}{words}"

    def _take(self, message: Answer) -> None:
        """Raises Nonsense for what nobody has asked."""
        if isinstance(message, Failed):
            self._failed = message
            return
        if not self._ready or isinstance(message, (Loading, Ready)):
            if self._ready or not isinstance(message, (Loading, Ready)):
                raise Nonsense(f"{type(message).__name__}, out of turn")
            if isinstance(message, Ready):
                self._ready, self.peak = True, max(self.peak, message.peak)
                self.placement = message.placement
            self._loading.put(message)
        elif isinstance(message, Beat):
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
        else:
            if isinstance(message, Committed):
                self.peak = max(self.peak, message.peak)
            question = self._questions.pop(message.question, None)
            if question is None or type(message) is not question.kind:
                raise Nonsense(f"{type(message).__name__} to question {message.question}, which nobody asked")
            question.answer = message
            question.wake()
