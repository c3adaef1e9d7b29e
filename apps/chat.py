"""`edgespec chat`: a conversation with a model."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from edgespec.apps import options
from edgespec.apps.commands import COMMANDS, run_command
from edgespec.apps.common import demo_model, demo_options, describe_plan, open_engine
from edgespec.apps.conversation import Conversation
from edgespec.apps.reader import Interrupted, PipeReader, Reader, TerminalReader, history_file
from edgespec.apps.reply import Reply, reply_to
from edgespec.apps.stats import stats_line
from edgespec.apps.terminal import Terminal
from edgespec.config import EngineOptions, GenerationOptions
from edgespec.errors import ContextError, EdgeSpecError
from edgespec.response import Stats

if TYPE_CHECKING:
    from edgespec.engine import Engine


@options.takes(generation=())
def chat(
    model: Annotated[
        str | None,
        typer.Argument(
            metavar="MODEL", help=options.MODEL_HELP + " Without one: the demo model.", show_default=False
        ),
    ] = None,
    prompt: Annotated[
        str | None,
        typer.Option("--prompt", "-p", metavar="TEXT", help="Answer this and leave.", show_default=False),
    ] = None,
    system: Annotated[
        str | None, typer.Option("--system", metavar="TEXT", help="System prompt.", show_default=False)
    ] = None,
    history: Annotated[
        bool, typer.Option("--history/--no-history", help="Remember typed lines for the next chat.")
    ] = True,
    stats: Annotated[bool, typer.Option("--stats/--no-stats", help="Show figures after each reply.")] = True,
    *,
    engine: EngineOptions,
    generation: GenerationOptions,
) -> None:
    """Talk with a model. Without a terminal, each line of standard input is a message."""
    source = model or str(demo_model())
    if model is None:
        engine = demo_options(engine)
    options.check_together(engine, generation)
    with Terminal() as terminal, open_engine(source, engine, terminal) as opened:
        this = Chat(opened, source, terminal, generation, stats)
        if system:
            this.conversation.set_system(system)
        if prompt is not None:
            this.ask(prompt)
            raise typer.Exit(130 if this.interrupted else 0)
        this.talk(_reader(history, terminal))


def _reader(history: bool, terminal: Terminal) -> Reader:
    if not terminal.interactive:
        return PipeReader()
    return TerminalReader(history_file() if history else None, [f"/{name}" for name in COMMANDS])


class Chat:
    """One conversation on a terminal.

    Attributes:
        interrupted: whether the last reply was stopped with Ctrl-C.
        leaving: set by /exit.
    """

    def __init__(
        self,
        engine: Engine,
        model: str,
        terminal: Terminal,
        options: GenerationOptions,
        show_stats: bool = True,
    ) -> None:
        self.engine = engine
        self.model = model
        self.terminal = terminal
        self.options = options
        self.show_stats = show_stats
        self.session = engine.new_session()
        self.conversation = Conversation(engine.tokenizer)
        self.last_stats: Stats | None = None
        self.interrupted = False
        self.leaving = False
        terminal.count_reads(lambda: engine.bytes_read)

    def describe(self) -> str:
        return describe_plan(Path(self.model).name, self.engine.plan, self.engine.drafters)

    def talk(self, reader: Reader) -> None:
        """Answer messages and run commands until the end."""
        if self.terminal.interactive:
            self.terminal.note(self.describe())
            self.terminal.note("/help lists the commands; Ctrl-C stops a reply; Ctrl-D leaves")
        if not self.engine.tokenizer.has_chat_template:
            self.terminal.note("this model has no chat template; it gets a plain transcript")
        while not self.leaving:
            try:
                message = reader.read()
            except Interrupted:
                self.terminal.note("(Ctrl-D or /exit leaves)")
                continue
            if message is None:
                break
            try:
                if message.startswith("/"):
                    run_command(self, message)
                elif message.strip():
                    self.ask(message)
            except ContextError as error:
                self.terminal.error(f"{options.message_of(error)}, or /clear to start afresh")
            except EdgeSpecError as error:
                self.terminal.error(options.message_of(error, prefix=""))
            except KeyboardInterrupt:  # between two replies, or once more while one was ending
                self.terminal.note("[stopped]")

    def ask(self, message: str, earlier: Conversation | None = None) -> None:
        """Reply to one message. What a reply said before Ctrl-C or an error is kept; a message without any
        reply is not. `earlier`: the conversation to go back to unless the new reply is a whole one."""
        self.conversation.ask(message)
        reply = Reply()
        prompt: list[int] = []
        try:
            prompt = self.conversation.prompt()
            options = self.conversation.options(self.options)
            reply_to(prompt, self.session, options, self.terminal, reply=reply)
        except BaseException:
            kept = self._keep(reply, prompt, earlier)
            if reply.tokens or earlier:
                self.terminal.note(f"[the reply broke off; {kept}]")
            raise
        kept = self._keep(reply, prompt, earlier)
        self.interrupted = reply.interrupted
        if reply.interrupted:
            self.terminal.note(f"[stopped; {kept}]")
        elif reply.finish_reason == "length":
            self.terminal.note(self._why_cut(reply))
        if reply.tokens:
            self.last_stats = reply.stats
            if self.show_stats:
                self.terminal.note(stats_line(reply.stats))

    def _keep(self, reply: Reply, prompt: list[int], earlier: Conversation | None) -> str:
        """Put the reply into the conversation, or undo what was asked; says which."""
        if reply.tokens:
            self.terminal.end_reply()
        if earlier and reply.interrupted:
            self.conversation = earlier
            return "the earlier reply stays"
        if not reply.tokens:
            self.conversation.take_back()
            return "the message is taken back"
        self.conversation.answer(reply, prompt, self.engine.eos)
        return "the reply so far is kept"

    def _why_cut(self, reply: Reply) -> str:
        if len(reply.tokens) == self.options.max_tokens:
            return f"[stopped after {self.options.max_tokens} tokens, as set by max-tokens]"
        return f"[the context of {self.session.context} positions is full; /clear starts afresh]"
