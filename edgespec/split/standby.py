"""The server's own model, streamed from this machine's flash, which goes on while no server can be asked.

    server    ── rounds ──╳ later than most    lost           ╭─ answers ── rounds ──
    here                  └ prompt, a token ── said, pass ... ─┤ between two layers

The weights are the same and sampling is keyed by positions, so the text is what the server would have made of
it, and stays. An answer that is later than most may be lost: the model here begins to read then, which costs
nothing but its time, and has the next token about when nobody waits any longer. Needs no torch itself.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from typing import TYPE_CHECKING

from edgespec.core.reply import Reply
from edgespec.errors import BudgetError, EdgeSpecError, OptionError, RemoteError
from edgespec.progress import Progress
from edgespec.runtimes.base import TREE_ROWS
from edgespec.session import Session
from edgespec.split.alone import Deputy
from edgespec.split.protocol import VERSION, Welcome

if TYPE_CHECKING:
    from edgespec.engine import Engine


class Standby(Deputy):
    """A reply here, behind what was said so far."""

    verified = True

    def __init__(self, session: Session, reply: Reply, back: Callable[[], bool]) -> None:
        """session: of the engine here. back: whether the server has answered, asked after each layer of the
        model; it may raise."""
        super().__init__(len(reply.writer.tokens))
        self._session, self._reply, self._back = session, reply, back
        text = [*reply.prompt, *reply.writer.tokens]
        most = min(reply.limit - self.said, session.context - len(text))
        options = reply.chooser.sampler.options
        options = replace(options, max_tokens=max(most, 1), stop=(), ignore_eos=True)
        safe = None if reply.safe == len(reply.prompt) else reply.safe
        self._steps = session.generate(text, options, self._look, safe) if most > 0 else None
        self._next: list[int] | None = None  # tokens that `read` has found

    def read(self) -> bool:
        """What was said so far, and find the next token; False = that was done already."""
        if self._next is not None:
            return False
        self._next = self.say()
        return True

    def _look(self, progress: Progress) -> None:
        if self._reply.cancellation.cancelled or self._back():
            self._session.cancel()

    def say(self) -> list[int]:
        """The next token; [] = it was interrupted, or there is no room for more."""
        if self._next:
            found, self._next = self._next, []
            return found
        step = None if self._steps is None else next(self._steps, None)
        return [] if step is None or step.token is None else [step.token]

    def end(self) -> None:
        if self._steps is not None:
            self._steps.close()


class Reserve:
    """A conversation's place on the engine here, which it takes when the server is first missed."""

    def __init__(self, engine: Engine | None, context: int) -> None:
        """engine: None = there is none. context: positions of the conversation."""
        self._engine, self._context = engine, context
        self._session: Session | None = None
        self._ready: Standby | None = None  # reads, or has read, for a round whose answer is late

    def read(self, reply: Reply, back: Callable[[], bool]) -> bool:
        """An answer is later than most. back: see `Standby`. False = there is nothing more to do. Raises what
        the server has refused."""
        self._ready = self._ready or self._standby(reply, back)
        try:
            return self._ready is not None and self._ready.read()
        except RemoteError:
            raise
        except EdgeSpecError:  # the answer may still come; if not, who goes on here hears of it
            self.rest()
            return False

    def deputy(self, reply: Reply, back: Callable[[], bool]) -> Standby | None:
        """It did not come. back: see `Standby`. None = there is no engine here, or it has no room now."""
        ready, self._ready = self._ready, None
        return ready or self._standby(reply, back)

    def rest(self) -> None:
        """It came, or is not wanted any more."""
        ready, self._ready = self._ready, None
        if ready is not None:
            ready.end()

    def _standby(self, reply: Reply, back: Callable[[], bool]) -> Standby | None:
        here = self._here()
        return None if here is None else Standby(here, reply, back)

    def _here(self) -> Session | None:
        if self._session is None and self._engine is not None and not self._engine.closed:
            try:
                context = min(self._context, self._engine.plan.context)
                self._session = self._engine.new_session(context)
            except BudgetError:  # other conversations have it
                return None
        return self._session

    def close(self) -> None:
        if self._session is not None:
            self._session.close()


def as_announced(engine: Engine) -> Welcome:
    """What a server of the same model would say of it, as far as it is known here: for conversations that
    begin while none answers."""
    config, eos = engine.config, sorted(engine.eos)
    about = (
        engine.files.path.name[:200],
        config.vocab_size,
        eos,
        engine.plan.context,
        config.layers,
        TREE_ROWS,
    )
    return Welcome(VERSION, *about, bytes(16), engine.files.identity)


def check_standby(engine: Engine, welcome: Welcome, url: str) -> None:
    """Raises OptionError when this is not the model of the server at `url`."""
    files, ours = engine.files, as_announced(engine)
    if (ours.weights, ours.vocabulary, ours.eos) != (welcome.weights, welcome.vocabulary, welcome.eos):
        raise OptionError(
            f"{files.path} ({files.table.precision}) is not the model at {url}, {welcome.model}: what it "
            "says would be another text; name the same model in the same precision, or none"
        )
