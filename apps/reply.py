"""One reply on the terminal, stopped by Ctrl-C."""

from __future__ import annotations

import signal
from collections.abc import Callable, Iterator
from contextlib import closing, contextmanager
from types import FrameType
from typing import TYPE_CHECKING

from edgespec.response import Response

if TYPE_CHECKING:
    from collections.abc import Generator

    from edgespec.apps.terminal import Terminal


def follow(
    steps: Generator[Response, None, None],
    cancel: Callable[[], None],
    terminal: Terminal,
    show: bool = True,
) -> Response:
    """The whole reply, written as it comes if `show`. Ctrl-C calls `cancel` and so ends it."""
    reply = Response("", finish_reason="cancelled")
    with closing(steps), stop_on_interrupt(cancel):
        try:
            for step in steps:
                if show:
                    terminal.reply(step.text, step.from_draft, step.verified)
                reply.add(step)
                if show and step.withdrawn is not None:
                    terminal.take_back(reply.text)
        except KeyboardInterrupt:
            reply.finish_reason = "cancelled"
    return reply


@contextmanager
def stop_on_interrupt(cancel: Callable[[], None]) -> Iterator[None]:
    """The first Ctrl-C calls `cancel`; another one raises KeyboardInterrupt, should that take too long."""

    def handle(number: int, frame: FrameType | None) -> None:
        signal.signal(signal.SIGINT, signal.default_int_handler)
        cancel()

    before = signal.signal(signal.SIGINT, handle)
    try:
        yield
    finally:
        signal.signal(signal.SIGINT, before)
