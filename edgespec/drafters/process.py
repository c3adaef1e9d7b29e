"""The target's hand on the process that drafts beside it: started, asked, lost and ended. Needs no torch.

Two threads speak and hear for it, so that nobody waits for a pipe.
"""

from __future__ import annotations

import json
import subprocess
import sys
import tempfile
from collections.abc import Sequence
from contextlib import suppress
from dataclasses import dataclass
from queue import Empty, SimpleQueue
from threading import Thread, current_thread
from time import monotonic
from typing import BinaryIO, cast

from edgespec import errors
from edgespec.drafters.channel import (
    ANSWER_BYTES,
    ANSWERS,
    Answer,
    Failed,
    Load,
    Loading,
    Nonsense,
    Ready,
    read_frame,
    with_length,
)
from edgespec.drafters.colleague import TICK, Colleague
from edgespec.errors import DeviceError, EdgeSpecError, ModelError, StorageError
from edgespec.progress import LoadCallback

START = 120.0  # seconds without a word, after which a start has failed: torch from a slow disk takes tens
ABORTED = 6  # the signal that a process sends to itself: of a failed assertion (SIGABRT)
COMPILES = 1800.0  # and where it has said that it compiles: it may not be able to speak meanwhile
END = 5.0  # seconds that a killed process may take to be gone
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


class Worker(Colleague):
    """See `colleague.Colleague`."""

    def __init__(self, program: Program) -> None:
        """Raises DeviceError when its command cannot be run."""
        super().__init__()
        self.program = program
        self.placement = ""  # see `channel.Ready`
        self._ready = False
        self._loading = SimpleQueue[Answer]()
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

    def load(self, message: Load, progress: LoadCallback) -> None:
        """Have the model opened.

        Raises DeviceError when the worker cannot start, and what reading a model raises. It is then ended, as
        by whatever `progress` raises.
        """
        patience = START
        try:
            self.tell(message)
            while True:
                with suppress(Empty):
                    heard = self._loading.get(timeout=TICK)
                    if isinstance(heard, Ready):
                        return
                    if isinstance(heard, Loading):
                        compiling = [(heard.compiling, heard.functions)] if heard.compiling else []
                        patience = COMPILES if compiling else START
                        progress(heard.nbytes, *compiling)
                    continue
                if self.lost is None and monotonic() - self.heard > patience:
                    self.lose(f"it said nothing for {patience:.0f} s")
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
                pipe.write(with_length(data))
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
        self._wake()

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
        if isinstance(message, Failed) or (self._ready and not isinstance(message, (Loading, Ready))):
            super()._take(message)
            return
        if self._ready or not isinstance(message, (Loading, Ready)):
            raise Nonsense(f"{type(message).__name__}, out of turn")
        if isinstance(message, Ready):
            self._ready, self.peak = True, max(self.peak, message.peak)
            self.placement = message.placement
        self._loading.put(message)
