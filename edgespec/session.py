"""One conversation: its KV cache, and replies to successive prompts that reuse what they share."""

from __future__ import annotations

import threading
import weakref
from collections.abc import Callable, Generator, Iterator, Sequence
from contextlib import suppress
from types import TracebackType
from typing import Any, TypeVar

from edgespec.arguments import check_progress, given_options
from edgespec.config import GenerationOptions
from edgespec.core.acceptance import make_acceptance
from edgespec.core.batch import Part
from edgespec.core.reply import ModelShape, Reply, SessionHost
from edgespec.core.schedule import Schedule
from edgespec.core.trace import Cycle, Trace
from edgespec.core.verify import Cancellation
from edgespec.drafters.base import committed, shared_prefix
from edgespec.errors import Cancelled, ClosedError, ContextError, OptionError
from edgespec.progress import ProgressCallback
from edgespec.response import Response
from edgespec.runtimes.base import Seat
from edgespec.schedules.kinds import check_acceptance
from edgespec.text.prompt import Array, token_ids

T = TypeVar("T")


class Session:
    """A conversation on an engine; a context manager. One reply at a time.

    `cancel` and `close` may come from any thread, and from a reply's own callbacks.
    """

    def __init__(
        self,
        host: SessionHost,
        cache: Seat,
        schedule: Schedule,
        release: Callable[[], None] = lambda: None,
        trace: Trace | None = None,
        context: int | None = None,
    ) -> None:
        """`release` gives the KV memory back to the ledger, once. context: positions that it may come to
        hold; None = those of the cache."""
        self.host = host
        self.cache = cache
        self.schedule = schedule
        self.trace = trace
        self.context = cache.capacity if context is None else context  # positions this session may hold
        self.tokens: list[int] = []  # whose keys and values are committed
        self.number = 0  # that the engine knows it by
        self._release = weakref.finalize(self, release)
        self._cancellation = Cancellation()  # of the latest reply
        self._replying: Reply | None = None
        self._closed = False
        self._step = threading.Lock()  # held while a reply computes; not while its reader has the turn
        self._stepping: int | None = None  # the thread that holds it

    def __repr__(self) -> str:
        if self._closed:
            return "<Session, closed>"
        replying = ", replying" if self._replying is not None else ""
        return f"<Session of {self.context} positions, {len(self.tokens)} in use{replying}>"

    @property
    def closed(self) -> bool:
        """Its memory has gone back to the engine."""
        return not self._release.alive

    def cancel(self) -> None:
        """End the reply that was asked for last, within one chunk of weights, or a call of pinned layers (0.2
        s, or as long as one takes). What it said so far stays in the session.

        Without such a reply, or when it is over, nothing happens: a click that comes too late must not end
        the next reply. A reply may be cancelled from `generate` on, before its first token is asked for.
        """
        self._cancellation.cancel()

    def close(self) -> None:
        """Give the KV cache's memory back to the engine. The session cannot be used any more.

        A reply under way in another thread ends as cancelled, and its chunk is waited for.
        """
        self._closed = True
        self.cancel()
        if self._stepping == threading.get_ident() or self.host.verifier.inside():
            # Called by what a reply calls, who cannot wait: a step under way frees the memory at its end, and
            # one that begins now finds itself cancelled.
            if not self._step.locked():
                self._free()
        else:
            with self._step:
                self._free()

    def _free(self) -> None:
        try:
            if (schedule := self.__dict__.pop("schedule", None)) is not None:
                schedule.end()  # in the midst of a reply, perhaps
        finally:
            if self._replying is not None:  # somebody may hold its iterator
                self._replying.leave()
            self.__dict__.pop("cache", None)
            self._release()

    def __enter__(self) -> Session:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()

    def generate(
        self,
        prompt: Sequence[int] | Array,
        options: GenerationOptions | None = None,
        progress: ProgressCallback | None = None,
        safe: int | None = None,
    ) -> Generator[Response, None, None]:
        """Reply to `prompt` (token ids of the whole conversation so far), one Response a token.

        safe: how many of the prompt's first tokens may leave this machine; None = all. Of a target that is
        here none do, but to a server that drafts: it hears of nothing, then.

        What the prompt shares with the session's tokens is not computed again. The last Response has a
        finish_reason. Leaving the iterator early, Ctrl-C and errors keep the session usable.

        Raises ContextError (with both counts) before any work when prompt and reply do not fit, OptionError
        when acceptance, sampling options and drafter do not go together, ClosedError when session or engine
        are closed.
        """
        reply = self.new_reply(prompt, options, progress)
        if safe is not None and not 0 <= safe <= len(reply.prompt):
            raise OptionError(f"safe is {safe}, and the prompt has {len(reply.prompt)} tokens", "safe")
        reply.safe = len(reply.prompt) if safe is None else safe
        return self._reply(reply)

    def new_reply(
        self,
        prompt: Sequence[int] | Array,
        options: GenerationOptions | None = None,
        progress: ProgressCallback | None = None,
    ) -> Reply:
        """A reply that somebody else runs the passes of (`generate` runs its own): `ask`, have the part
        computed, `answer`, until the reply's writer has finished; and then `end`. Raises as `generate`."""
        options = given_options(options, GenerationOptions)
        check_progress(progress)
        prompt = token_ids(prompt)
        self._refuse_closed()
        limit = reply_limit(prompt, options, self.context, self.host.config)
        acceptance = make_acceptance(options.acceptance, options)
        check_acceptance(acceptance, self.host.options, self.host.drafters)
        self._refuse_second()
        reply = Reply(self.host, prompt, options, acceptance, limit, progress, self.trace)
        self._cancellation = reply.cancellation
        self._refuse_closed()  # from here on, closing reaches the reply
        return reply

    def borrow(self, other: Session, length: int) -> None:
        """Begin with the first `length` tokens of another conversation, between passes of both: its keys and
        values are copied."""
        assert not self.tokens
        mine: Any = self.cache
        mine.copy(other.cache, length)
        self.tokens = other.tokens[:length]

    def ask(self, reply: Reply) -> Part:
        """What the reply wants of the next pass. Raises Cancelled."""
        return self._in_step(self._ask, reply)

    def answer(self, reply: Reply, part: Part) -> Iterator[Response]:
        """What the part has given. Raises its error."""
        return self._in_step(self._answer_among, reply, part)

    def end(self, reply: Reply) -> None:
        """The reply is over, at its end or before. What it said stays in the session."""
        reply.over = True  # before a Ctrl-C can come
        if self._replying is reply:
            self._in_step(self._end, reply)

    def _refuse_closed(self) -> None:
        if self.host.closed:
            raise ClosedError("the engine was closed; load the model again")
        if self._closed:
            raise ClosedError("this session was closed; open another with engine.new_session()")

    def _refuse_second(self) -> None:
        if self._replying is not None and not self._replying.over:
            raise OptionError("this session is already replying; open another with engine.new_session()")

    def _reply(self, reply: Reply) -> Generator[Response, None, None]:
        try:
            with suppress(Cancelled):
                while not reply.writer.finished:
                    yield from self._in_step(self._pass, reply)
                    if reply.cycle is not None:
                        self._in_step(self._after_cycle, reply, reply.cycle)
            if not reply.writer.finished:
                yield reply.cancelled()
        finally:
            reply.over = True  # before a Ctrl-C can come: at the call, perhaps
            self.end(reply)

    def _in_step(self, work: Callable[..., T], *arguments: Any) -> T:
        """Compute something of a reply; nothing is freed meanwhile."""
        with self._step:
            self._stepping = threading.get_ident()
            try:
                return work(*arguments)
            finally:
                self._stepping = None
                if self._closed:
                    self._free()

    def _begin(self, reply: Reply) -> None:
        self._refuse_second()
        reply.cancellation.check()
        if self._replying is not None:  # a Ctrl-C came in between, and nobody was told of its end
            self._end(self._replying)
        self._replying = reply
        # What the prompt shares stays, but for one token: somebody must say what comes next.
        self.keep(shared_prefix(self.tokens, reply.prompt[:-1]))
        reply.begin(self.cache, self.schedule)

    def _pass(self, reply: Reply) -> Iterator[Response]:
        """The next pass of a reply, alone or with others'."""
        part = self._ask(reply)
        with reply.trace.telling(part.phase):
            self.host.verifier.compute([part])
        return self._answer(reply, part)

    def _ask(self, reply: Reply) -> Part:
        if self._replying is not reply:
            self._begin(reply)
        return reply.ask()

    def _answer(self, reply: Reply, part: Part) -> Iterator[Response]:
        if self.closed:  # while somebody else computed the part
            raise Cancelled("the session was closed")
        root = reply.root
        try:
            responses = reply.answer(part)
        finally:
            if root < 0:
                self.tokens = reply.prompt[: self.cache.length]
        if reply.cycle is not None:
            self.tokens += committed(root, reply.cycle.outcome)
        return responses

    def _answer_among(self, reply: Reply, part: Part) -> Iterator[Response]:
        responses = self._answer(reply, part)
        reply.tell()
        return responses

    def _after_cycle(self, reply: Reply, cycle: Cycle) -> None:
        reply.cancellation.check()
        self.host.after_cycle(self.schedule, cycle, reply.cancellation.check)

    def _end(self, reply: Reply) -> None:
        try:
            if not self._closed:
                self.schedule.end()
                # A tree may have been accepted beyond the reply's end. Plain decoding never computes that,
                # and the next prompt must find the same prefix either way.
                self.keep(len(reply.prompt) + max(0, reply.stats.reply_tokens - 1))
                self.host.learn(self.schedule)
        finally:
            self._replying = None

    def keep(self, length: int) -> None:
        """Forget what lies behind `length` positions; between passes."""
        length = min(length, len(self.tokens), self.cache.length)
        self.cache.truncate(length)
        self.tokens = self.tokens[:length]


def reply_limit(prompt: Sequence[int], options: GenerationOptions, context: int, config: ModelShape) -> int:
    """The most tokens that a reply to this prompt may have. Raises OptionError and ContextError."""
    if not prompt:
        raise OptionError("the prompt is empty; give it at least one token")
    room = context - len(prompt)
    wanted = options.max_tokens or 1
    if room < wanted:
        most = context >= config.max_context
        raise ContextError(
            f"the prompt has {len(prompt)} tokens and the reply may have {wanted}, together "
            f"{len(prompt) + wanted}, but the context is {context}"
            + (", the model's own maximum; shorten" if most else "; set a larger context= or shorten")
            + " the prompt"
        )
    vocabulary = config.vocab_size
    if bad := next((t for t in prompt if not 0 <= t < vocabulary), None):
        raise OptionError(f"token {bad} is outside the model's vocabulary of {vocabulary}")
    return min(options.max_tokens or room, room)
