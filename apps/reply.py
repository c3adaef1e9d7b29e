"""One reply, from prompt tokens to the terminal, stopped by Ctrl-C."""

from __future__ import annotations

import signal
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from types import FrameType
from typing import TYPE_CHECKING

from edgespec.config import GenerationOptions
from edgespec.response import Stats

if TYPE_CHECKING:
    from edgespec.apps.terminal import Terminal
    from edgespec.session import Session


@dataclass
class Reply:
    text: str = ""
    tokens: list[int] = field(default_factory=list)  # EOS included
    finish_reason: str = "cancelled"  # "stop", "length" or "cancelled"; after an error, this last one
    stats: Stats = field(default_factory=Stats)

    @property
    def interrupted(self) -> bool:
        return self.finish_reason == "cancelled"


def reply_to(
    prompt: Sequence[int],
    session: Session,
    options: GenerationOptions,
    terminal: Terminal,
    show: bool = True,
    reply: Reply | None = None,
) -> Reply:
    """Generate the reply, writing it as it comes if `show`. Ctrl-C ends it and leaves the session usable.

    Give an empty `reply` to have what was said before an error, too.
    """
    reply = reply or Reply()
    terminal.busy(f"prompt {len(prompt)} tokens")
    with stop_on_interrupt(session.cancel):
        try:
            for response in session.generate(list(prompt), options, terminal.progress):
                if show:
                    terminal.reply(response.text)
                reply.text += response.text
                reply.stats = response.stats
                if response.token is not None:
                    reply.tokens.append(response.token)
                if response.finish_reason is not None:
                    reply.finish_reason = response.finish_reason
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
