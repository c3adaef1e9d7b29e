"""The process that drafts beside the target: it has the draft model, and does what it is told over a pipe.

What it does is the `desk`'s. It ends with its parent: when the pipe does, whatever it is just computing.
Needs no torch but for torch's models.
"""

from __future__ import annotations

import os
import signal
import sys
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path
from queue import Empty
from threading import Thread
from time import sleep
from typing import BinaryIO

from edgespec.drafters.channel import Failed, Load, Loading, Nonsense, Ready, Sent, frame
from edgespec.drafters.desk import Desk
from edgespec.drafters.inbox import Inbox
from edgespec.drafters.model import DRAFT_ROWS
from edgespec.drafters.opened import Opened, OpenModel
from edgespec.errors import EdgeSpecError

LOOK = 1.0  # seconds between two looks whether the parent is still there


def serve(hear: BinaryIO, speak: BinaryIO, open_model: OpenModel) -> None:
    """Work until the parent is gone, or something goes wrong, which it is told. Does not return before."""
    inbox = Inbox()
    Thread(target=inbox.listen, args=(hear,), daemon=True).start()
    end_with_parent()

    def say(message: Sent) -> None:
        speak.write(frame(message))
        speak.flush()

    try:
        _serve(inbox, say, open_model)
    except BaseException as error:
        # Without the hint, a call of the library: who hears it may show commands.
        words = error.message if isinstance(error, EdgeSpecError) else str(error)
        with suppress(OSError):
            say(Failed(type(error).__name__, words[:2000]))
        raise


def _serve(inbox: Inbox, say: Callable[[Sent], None], open_model: OpenModel) -> None:
    load = inbox.take(wait=True)
    if not isinstance(load, Load):
        raise Nonsense(f"{load}, and no model is open")

    def progress(nbytes: int, compiling: tuple[int, int] | None = None) -> None:
        say(Loading(nbytes, *(compiling or ())))

    opened = open_model(load, progress)
    desk = Desk(say, opened.drafter, inbox.recalls, opened.peak)
    say(Ready(opened.peak(), opened.placement))
    while True:
        try:
            message = inbox.take(wait=desk.idle)
        except Empty:
            desk.work()
            continue
        if isinstance(message, Nonsense):
            raise message
        desk.take(message)


def end_with_parent() -> None:
    """From now on, whatever is under way: a process that the parent has forked may hold the pipe open when it
    is gone itself."""
    parent = os.getppid()

    def look() -> None:
        while os.getppid() == parent:
            sleep(LOOK)
        os._exit(0)

    Thread(target=look, daemon=True).start()


def run(open_model: OpenModel) -> None:
    """Serve on the standard input and output, which whoever prints must not get hold of."""
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # the terminal's Ctrl-C is for the parent
    hear, speak = os.fdopen(os.dup(0), "rb"), os.fdopen(os.dup(1), "wb")
    nothing = os.open(os.devnull, os.O_RDONLY)
    os.dup2(nothing, 0)
    os.close(nothing)
    os.dup2(2, 1)
    try:
        serve(hear, speak, open_model)
    except BaseException as error:
        print(f"{type(error).__name__}: {error}", file=sys.stderr, flush=True)
        os._exit(1)  # not held up by threads, nor by what they hold


def torch_model(load: Load, progress: Callable[[int], None]) -> Opened:
    """A small model, read by torch; see `OpenModel`. Raises what `open_draft` raises."""
    from edgespec.kernels.threads import use_threads
    from edgespec.runtimes.formats.describe import describe_model
    from edgespec.runtimes.torch.draft import TorchDraft, open_draft

    use_threads(load.threads)
    model = open_draft(describe_model(Path(load.model)), DRAFT_ROWS, progress)
    return Opened(lambda capacity: TorchDraft.alone(model, capacity))


def main() -> None:
    run(torch_model)
