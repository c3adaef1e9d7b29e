"""`Chat`: a conversation with a model, for programs; `edgespec chat` is one of them."""

from __future__ import annotations

import weakref
from collections.abc import AsyncIterator, Callable, Generator, Sequence
from contextlib import closing, suppress
from inspect import GEN_SUSPENDED, getgeneratorstate
from types import TracebackType
from typing import TYPE_CHECKING

from edgespec.arguments import check_engine, check_progress, check_text, given_options
from edgespec.config import GenerationOptions, refuse_idle
from edgespec.errors import OptionError
from edgespec.progress import ProgressCallback
from edgespec.response import InThread, Response, Stats, whole
from edgespec.text.conversation import Conversation, Message
from edgespec.values import with_keywords

if TYPE_CHECKING:
    from typing_extensions import Unpack

    from edgespec.api import GenerationKeywords
    from edgespec.core.trace import Trace
    from edgespec.engine import Engine
    from edgespec.split.client import RemoteEngine


class Chat:
    """Keeps the messages, formats them by the model's template, and computes nothing twice.

        with edgespec.load("model-dir") as engine, edgespec.Chat(engine, system="Be brief.") as chat:
            for response in chat.stream("Hello!"):
                print(response.text, end="")

    One reply at a time; `cancel` may come from any thread. A reply that is stopped (by `cancel`, by leaving
    the iterator, by an error, by the next message) is kept as far as it went; a message without any reply is
    not.

    Attributes:
        options: how replies are made from now on.
        conversation: what was said; `messages` shows it.
        last: the last reply, as far as it went; None at the beginning.
        forgot: turns that the last reply's prompt was the first to leave out.
    """

    def __init__(
        self,
        engine: Engine | RemoteEngine,
        *,
        system: str | None = None,
        options: GenerationOptions | None = None,
        context: int | None = None,
        trace: Trace | None = None,
        forgets: bool = False,
    ) -> None:
        """context: positions of the session; None = all that are free, so a second chat needs a number.
        trace: who hears of its cycles. forgets: where prompt and reply might pass the context, the oldest
            turns are left out of this prompt and those after it (`messages` has them), until half of the
            context is free again. Else that is a ContextError.

        Raises BudgetError when they are not free, OptionError for a system prompt that the model's template
        would leave out.
        """
        check_engine(engine)
        if system is not None:
            check_text("system prompt", system)
        self.engine = engine
        self.options = given_options(options, GenerationOptions)
        self.conversation = Conversation(engine.tokenizer)
        self.conversation.set_system(system)
        self.session = engine.new_session(context, trace=trace)
        self.last: Response | None = None
        self.forgets, self.forgot = forgets, 0
        self._latest: Callable[[], Generator[Response, None, None] | None] = lambda: None  # while it is held

    @property
    def messages(self) -> Sequence[Message]:
        """System prompt, questions and replies, oldest first."""
        return tuple(self.conversation.messages)

    def stream(
        self,
        message: str,
        *,
        private: bool = False,
        progress: ProgressCallback | None = None,
        **overrides: Unpack[GenerationKeywords],
    ) -> Generator[Response, None, None]:
        """Reply to `message`, one Response a token.

        private: nothing of it leaves this machine, nor of what follows it. With a target on a server, that is
            the drafter's alone then, and not verified; with a drafter on one, drafted here or not at all.
        overrides: fields of GenerationOptions, for this reply.

        Raises OptionError, and ContextError when the conversation would not fit; then nothing has changed.
        """
        check_text("message", message)
        if not message:
            raise OptionError("the message is empty; there is nothing to reply to")
        check_progress(progress)
        options = with_keywords(given_options(self.options, GenerationOptions), overrides)
        refuse_idle(options, overrides)
        self._leave()
        asked = self.conversation.copy()
        asked.ask(message, private)
        return self._reply(asked, options, progress)

    def regenerate(self, *, progress: ProgressCallback | None = None) -> Generator[Response, None, None]:
        """Reply to the last message again, with the next seed (`options` keeps it).

        The earlier reply stays unless the new one is a whole one. Raises OptionError when there is none, or
        at temperature 0, where the reply would be the same.
        """
        if not self.options.temperature:
            raise OptionError("at temperature 0 the reply would be the same; try temperature=0.7")
        self._leave()
        asked = self.conversation.copy()
        private = asked.private
        question = asked.take_back()
        if question is None:
            raise OptionError("there is no reply to make again")
        asked.ask(question, private and not asked.private)
        # The noise depends on seed and position only, so the same seed would give the same reply.
        options = with_keywords(self.options, {"seed": self.options.seed + 1})
        replies = self._reply(asked, options, progress, whole_only=True)
        self.options = options
        return replies

    def send(
        self,
        message: str,
        *,
        private: bool = False,
        progress: ProgressCallback | None = None,
        **overrides: Unpack[GenerationKeywords],
    ) -> Response:
        """The whole reply to `message` as one Response; see `stream`."""
        return whole(self.stream(message, private=private, progress=progress, **overrides))

    def astream(
        self,
        message: str,
        *,
        private: bool = False,
        progress: ProgressCallback | None = None,
        **overrides: Unpack[GenerationKeywords],
    ) -> AsyncIterator[Response]:
        """`stream` for asyncio: passes run in a thread, and cancelling the task ends the reply."""
        replies = self.stream(message, private=private, progress=progress, **overrides)
        return InThread(replies, self.cancel)

    async def asend(
        self,
        message: str,
        *,
        private: bool = False,
        progress: ProgressCallback | None = None,
        **overrides: Unpack[GenerationKeywords],
    ) -> Response:
        """`send` for asyncio; see `astream`."""
        stream = self.astream(message, private=private, progress=progress, **overrides)
        return whole([r async for r in stream])

    def undo(self) -> str | None:
        """Forget the last message and the reply to it; returns the message, None when there is none."""
        self._leave()
        return self.conversation.take_back()

    def clear(self) -> None:
        """Forget everything but the system prompt."""
        self._leave()
        self.conversation.clear()

    def cancel(self) -> None:
        """End the running reply, as `Session.cancel` does."""
        self.session.cancel()

    def close(self) -> None:
        """Give the session's memory back to the engine."""
        self.session.close()

    def __enter__(self) -> Chat:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()

    def __repr__(self) -> str:
        return f"<Chat of {len(self.messages)} messages with {self.engine!r}>"

    def _reply(
        self,
        asked: Conversation,
        options: GenerationOptions,
        progress: ProgressCallback | None,
        whole_only: bool = False,
    ) -> Generator[Response, None, None]:
        context = self.session.context
        reserve = options.max_tokens or context // 4  # for the reply, whose length nobody knows
        forgot = asked.forget(context - reserve, (context - reserve) * 2 // 3) if self.forgets else 0
        prompt = asked.prompt()
        safe = {"safe": asked.safe(prompt)} if asked.private else {}
        replies = self.session.generate(prompt, asked.options(options), progress, **safe)
        self.last = reply = Response("", stats=Stats(prompt_tokens=len(prompt)))
        self.forgot = forgot
        followed = self._follow(asked, prompt, reply, replies, whole_only)
        self._latest = weakref.ref(followed)  # who leaves its loop lets go of it, and that ends it
        return followed

    def _leave(self) -> None:
        """End the reply before, as closing its iterator does, if its reader has begun and not ended it. One
        that is at work now (in another thread; or it calls us) is not ended: the session then refuses."""
        latest = self._latest()
        if latest is not None and getgeneratorstate(latest) == GEN_SUSPENDED:
            with suppress(ValueError):  # it has gone on in this moment
                latest.close()

    def _follow(
        self,
        asked: Conversation,
        prompt: Sequence[int],
        reply: Response,
        replies: Generator[Response, None, None],
        whole_only: bool,
    ) -> Generator[Response, None, None]:
        """The conversation stays what it was until the reply to what was `asked` has ended, somehow."""
        try:
            with closing(replies):
                for response in replies:
                    reply.add(response)
                    yield response
        finally:
            stopped = reply.finish_reason in (None, "cancelled")
            if reply.tokens and not (stopped and whole_only):
                asked.answer(reply, prompt, self.engine.eos)
                self.conversation = asked
