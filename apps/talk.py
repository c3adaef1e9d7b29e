"""A chat on the terminal: replies as they come, and what is said about them."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from pathlib import Path
from typing import TYPE_CHECKING

from edgespec.apps import saved
from edgespec.apps.common import describe_plan
from edgespec.apps.options import check_together
from edgespec.apps.reply import follow
from edgespec.apps.stats import memory_line, stats_line
from edgespec.chat import Chat
from edgespec.config import GenerationOptions
from edgespec.errors import OptionError, StorageError
from edgespec.response import Response, Stats
from edgespec.values import count_of

if TYPE_CHECKING:
    from collections.abc import Generator

    from edgespec.apps.terminal import Terminal
    from edgespec.engine import Engine
    from edgespec.offload.plan.plan import Plan
    from edgespec.text.conversation import Message
    from edgespec.tuning.predict import Interval


class Talk:
    """One conversation on a terminal.

    Attributes:
        show_stats: a line of figures after each reply; verbose: planned beside measured memory, too.
        remembers: the conversation is saved after each reply, for `chat --continue`.
        last_stats: of the last reply.
        interrupted: whether the last reply was stopped with Ctrl-C.
        leaving: set by /exit.
        files: that this chat was saved in or loaded from.
        given: what is to be said of memory when a reply has ended; other threads add to it.
    """

    def __init__(
        self,
        engine: Engine,
        model: str,
        terminal: Terminal,
        options: GenerationOptions,
        show_stats: bool = True,
        verbose: bool = False,
        remembers: bool = False,
    ) -> None:
        from edgespec.tuning.watch import Watch  # numpy: not for --help

        self.watch = Watch(engine)
        engine.target.weights.listen(self.watch.chunk)
        self.engine = engine
        self._begin(Chat(engine, options=options, trace=self.watch.trace, forgets=True), model, terminal)
        self.show_stats, self.verbose, self.remembers = show_stats, verbose, remembers
        terminal.count_reads(lambda: engine.bytes_read)

    def _begin(self, chat: Chat, model: str, terminal: Terminal) -> None:
        self.chat = chat
        self.model = model
        self.terminal = terminal
        self.last_stats: Stats | None = None
        self.interrupted = False
        self.leaving = False
        self.files: set[Path] = set()
        self.given: list[str] = []
        self._said_undrafted = False  # once a chat; /stats always has it

    def describe(self) -> str:
        return describe_plan(Path(self.model).name, self.engine.plan, self.engine.drafters, self.expected())

    def expected(self) -> Interval | None:
        """Tokens a second, by what runs have shown, as /stats has them beside what came; None = unknown."""
        setting = self.watch.expected()
        return setting.speed if setting is not None and setting.known else None

    @property
    def templated(self) -> bool:
        """The model was trained to chat."""
        return self.engine.tokenizer.has_chat_template

    @property
    def plan(self) -> Plan | None:
        """Of memory; None = it is not ours."""
        return self.engine.plan

    @property
    def dial(self) -> int:
        """Bytes that the model's process may use."""
        return self.engine.plan.dial

    def set_memory(self, memory: str) -> None:
        """Raises OptionError, BudgetError."""
        self.engine.set_memory(memory)

    def in_use(self) -> str:
        return f"{len(self.chat.session.tokens)} of {self.chat.session.context} positions in use"

    def check(self, options: GenerationOptions) -> None:
        """Raises OptionError for options of replies that do not go with the engine's."""
        check_together(self.engine.options, options)

    @property
    def expected_speed(self) -> Interval | None:
        """Of the last reply, before it was made; tokens a second."""
        return self.watch.expected_speed

    def _learn(self, stats: Stats) -> list[str]:
        """A reply was made; what is to be said of how."""
        self.watch.reply(stats)
        return self.watch.warnings()

    def ask(self, message: str, private: bool = False) -> None:
        """Reply to one message; see `Chat` for what is kept of it, and what `private` means."""
        self._reply(lambda: self.chat.stream(message, private=private, progress=self.terminal.progress))

    def regenerate(self) -> None:
        """Reply to the last message again; the earlier reply stays unless the new one is a whole one."""
        self._reply(lambda: self.chat.regenerate(progress=self.terminal.progress), again=True)

    def restore(self, messages: Sequence[Message]) -> None:
        """Go on with a saved conversation."""
        self.chat.conversation.messages, self.chat.conversation.forgotten = list(messages), 0
        system = self.chat.conversation.system
        if system:
            try:
                self.chat.conversation.set_system(system)
            except OptionError as error:
                self.terminal.note(f"the saved system prompt: {error}")

    def _reply(self, begin: Callable[[], Generator[Response, None, None]], again: bool = False) -> None:
        earlier = self.chat.last
        try:
            steps = begin()
            assert self.chat.last is not None
            if self.chat.forgot:
                self.terminal.note(self._what_is_forgotten())
            self.terminal.busy(f"prompt {count_of(self.chat.last.stats.prompt_tokens, 'token')}")
            reply = follow(steps, self.chat.cancel, self.terminal)
        except BaseException:
            broken = self.chat.last if self.chat.last is not earlier else None
            if broken is not None and broken.tokens:
                self.terminal.end_reply()
            if broken is not None and (broken.tokens or again):
                self.terminal.note(f"[the reply broke off; {_kept(broken, again)}]")
            raise
        if reply.tokens:
            self.terminal.end_reply()
        while self.given:
            self.terminal.note(self.given.pop(0))
        self.interrupted = reply.finish_reason == "cancelled"
        if self.interrupted:
            self.terminal.note(f"[stopped; {_kept(reply, again)}]")
        elif reply.finish_reason == "length":
            self.terminal.note(self._why_cut(reply))
        if reply.tokens:
            self.last_stats = reply.stats
            warnings = self._learn(reply.stats)
            self._report(reply.stats)
            for warning in warnings:
                self.terminal.note(warning)
            self._remember()

    def _report(self, stats: Stats) -> None:
        if self.show_stats:
            if stats.undrafted and not self._said_undrafted:
                self._said_undrafted = True
                self.terminal.note(f"[drafting has paused: {stats.undrafted}]")
            self.terminal.note(stats_line(stats, self.terminal.width))
        if self.verbose and self.plan is not None:
            self.terminal.note(memory_line(stats, self.plan))

    def _remember(self) -> None:
        if self.remembers:
            try:
                saved.save_last(self.chat.messages, self.model)
            except StorageError as error:
                self.remembers = False
                self.terminal.note(f"{error}; --continue will not find this conversation")

    def _why_cut(self, reply: Response) -> str:
        limit, context = self.chat.options.max_tokens, self.chat.session.context
        if len(reply.tokens) == limit:
            return f"[stopped after {count_of(limit, 'token')}, as set by max-tokens]"
        then = "the next message leaves out the oldest turns" if self.chat.forgets else "/clear starts afresh"
        return f"[the context of {context} positions is full; {then}]"

    def _what_is_forgotten(self) -> str:
        turns = "the oldest turn is" if self.chat.forgot == 1 else f"the oldest {self.chat.forgot} turns are"
        return f"[little is left of the context of {self.chat.session.context} positions: {turns} forgotten]"


def _kept(reply: Response, again: bool) -> str:
    if again:
        return "the earlier reply stays"
    return "the reply so far is kept" if reply.tokens else "the message is taken back"
