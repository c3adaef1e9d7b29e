"""`edgespec chat`: a conversation with a model."""

from __future__ import annotations

import sys
import threading
from contextlib import ExitStack
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from edgespec.apps import options, saved
from edgespec.apps.commands import COMMANDS, run_command
from edgespec.apps.common import (
    check_server,
    demo_model,
    demo_options,
    multiply_alone,
    open_engine,
    say_whose,
)
from edgespec.apps.keyboard import typing_ahead
from edgespec.apps.prompts import read_text
from edgespec.apps.reader import Interrupted, PipeReader, Reader, TerminalReader, history_file
from edgespec.apps.talk import Talk
from edgespec.apps.terminal import Terminal
from edgespec.apps.yielding import HELP as YIELD_HELP
from edgespec.apps.yielding import giving_way
from edgespec.config import EngineOptions, GenerationOptions
from edgespec.errors import ContextError, EdgeSpecError, OptionError
from edgespec.split.keys import read_keys
from edgespec.split.options import ConnectOptions
from edgespec.text.conversation import Message
from edgespec.values import Option, Options, count_of

if TYPE_CHECKING:
    from edgespec.engine import Engine

PATIENCE = 1.0  # seconds of silence, after which it is said that standard input is being read


@dataclass(frozen=True)
class ChatFlags(Options):
    """How a conversation begins, and how it is shown."""

    prompt: Annotated[
        str | None,
        Option(
            "Answer this, with what standard input holds below it, and leave.",
            metavar="TEXT", short="-p", default="a conversation",
        ),
    ] = None  # fmt: skip
    system: Annotated[str | None, Option("System prompt.", metavar="TEXT")] = None
    system_file: Annotated[Path | None, Option("System prompt, from a file.", metavar="FILE")] = None
    continue_: Annotated[bool, Option("Go on with the last conversation.", short="-c")] = False
    history: Annotated[bool, Option("Remember typed lines, and the conversation for --continue.")] = True
    stats: Annotated[bool, Option("Show figures after each reply.")] = True
    verbose: Annotated[
        bool, Option("Show planned and measured memory after each reply, too.", short="-v")
    ] = False
    show_drafts: Annotated[bool, Option("Colour the tokens that were drafted.")] = False
    server: Annotated[
        str | None,
        Option(
            "Talk with a server's model: `edgespec serve`, or another that speaks OpenAI's API. With "
            "--drafter or --draft-model, tokens are drafted here, and `edgespec serve` verifies them; MODEL "
            "is the same model, then, which goes on here when the server does not answer.",
            metavar="URL", default="none, the model is loaded here",
        ),
    ] = None  # fmt: skip
    api_key_file: Annotated[Path | None, Option("The server's key, in a file.", metavar="FILE")] = None
    yield_: Annotated[bool, Option(YIELD_HELP)] = False


@options.takes()
def chat(
    model: Annotated[
        str | None,
        typer.Argument(
            metavar="MODEL", help=options.MODEL_HELP + " Without one: the demo model.", show_default=False
        ),
    ] = None,
    *,
    wanted: ChatFlags,
    engine: EngineOptions,
    generation: GenerationOptions,
    link: ConnectOptions,
) -> None:
    """Talk with a model. Without a terminal, each line of standard input is a message."""
    source = model or str(demo_model())
    # Here, for a server.
    drafts = engine.drafter != "auto" or engine.draft_model is not None or model is not None
    _check_server(wanted, link, drafts)
    if wanted.server is not None:
        multiply_alone()
    if model is None and wanted.server is None:
        engine = demo_options(engine)
    options.check_together(engine, generation)
    system = _system_prompt(wanted.system, wanted.system_file)
    earlier = _earlier() if wanted.continue_ else None
    prompt = None if wanted.prompt is None else _with_input(wanted.prompt)
    with Terminal() as terminal, typing_ahead(), ExitStack() as stack:
        remembers = wanted.history and (wanted.continue_ or (terminal.interactive and prompt is None))
        if wanted.server is not None and drafts:
            talk = _drafting(wanted, link, engine, model, stack, terminal, generation, remembers)
        elif wanted.server is not None:
            talk = _served(wanted, link, terminal, generation, remembers)
            say_whose(engine, terminal)
        else:
            opened = stack.enter_context(open_engine(source, engine, terminal))
            talk = Talk(opened, source, terminal, generation, wanted.stats, wanted.verbose, remembers)
            if wanted.yield_:
                stack.enter_context(giving_way(opened, talk.given.append))
            if system:
                _check_system(system, wanted.system_file, opened)
        if wanted.show_drafts and not terminal.show_drafts():
            terminal.note("drafts are not shown: there are no colours here")
        if earlier is not None:
            talk.restore(earlier)
            terminal.note(_which(earlier))
        if system:
            talk.chat.conversation.set_system(system)
        if prompt is not None:
            talk.ask(prompt)
            raise typer.Exit(130 if talk.interrupted else 0)
        _converse(talk, _reader(wanted.history, terminal), terminal)


def _check_server(wanted: ChatFlags, link: ConnectOptions, drafts: bool) -> None:
    """Raises OptionError for what a server's chat cannot have."""
    check_server(wanted.server, wanted.api_key_file, link, drafts)
    if wanted.server is None:
        return
    for name, given in (
        ("--yield", wanted.yield_),
        ("--verbose", wanted.verbose),
        ("--show-drafts", wanted.show_drafts and not drafts),
    ):
        if given:
            raise OptionError(f"{name} does not go with --server, whose model, memory and drafts are its own")


def _served(
    wanted: ChatFlags,
    link: ConnectOptions,
    terminal: Terminal,
    generation: GenerationOptions,
    remembers: bool,
) -> Talk:
    from edgespec.apps.served import ServedTalk
    from edgespec.serving.client import ServerClient

    key = None if wanted.api_key_file is None else read_keys(wanted.api_key_file)[0]
    client = ServerClient(str(wanted.server), key, link.ca)
    return ServedTalk(client, terminal, generation, wanted.stats, remembers)


def _drafting(
    wanted: ChatFlags,
    link: ConnectOptions,
    engine: EngineOptions,
    model: str | None,
    stack: ExitStack,
    terminal: Terminal,
    generation: GenerationOptions,
    remembers: bool,
) -> Talk:
    from edgespec.apps.drafting import DraftingTalk, connected

    about = str(wanted.server), wanted.api_key_file, link, engine, model
    opened = stack.enter_context(connected(*about, terminal))
    return DraftingTalk(opened, terminal, generation, wanted.stats, remembers)


def _converse(talk: Talk, reader: Reader, terminal: Terminal) -> None:
    """Answer messages and run commands until the end. Raises typer.Exit when some of a pipe's have failed."""
    if terminal.interactive:
        terminal.note(talk.describe())
        terminal.note("/help lists the commands; Ctrl-C stops a reply; Ctrl-D leaves")
    if not talk.templated:
        terminal.note("this model has no chat template; it gets a plain transcript")
    failed = False
    while not talk.leaving:
        try:
            message = reader.read()
        except Interrupted:
            terminal.note("(Ctrl-D or /exit leaves)")
            continue
        if message is None:
            break
        try:
            if message.startswith("/"):
                run_command(talk, message)
            elif message.strip():
                talk.ask(message)
        except EdgeSpecError as error:
            afresh = ", or /clear to start afresh" if isinstance(error, ContextError) else ""
            terminal.error(options.message_of(error, in_chat=True) + afresh)
            failed = True
        except KeyboardInterrupt:  # between two replies, or once more while one was ending
            terminal.note("[stopped]")
    if failed and not terminal.interactive:
        raise typer.Exit(1)


def _reader(history: bool, terminal: Terminal) -> Reader:
    if not terminal.interactive:
        return PipeReader()
    return TerminalReader(history_file() if history else None, [f"/{name}" for name in COMMANDS])


def _system_prompt(text: str | None, file: Path | None) -> str | None:
    if file is None:
        return text
    if text is not None:
        raise OptionError("--system and --system-file both give a system prompt; leave one of them out")
    with file.open("rb") as stream:
        return read_text(stream, str(file)).strip()


def _check_system(system: str, file: Path | None, engine: Engine) -> None:
    """Raises ContextError for a system prompt that leaves no room for a message."""
    tokens, context = len(engine.tokenizer.encode(system, add_bos=False)), engine.plan.context
    if tokens >= context:
        where = f" in {file}" if file else ""
        raise ContextError(
            f"the system prompt{where} has {tokens} tokens, but the context is {context}; shorten it, or "
            "give a larger context="
        )


def _with_input(prompt: str) -> str:
    """The prompt of -p, and below it what is piped into the command: all of it, however slowly it comes. An
    open pipe that nobody writes to (a service's, a parent process's) looks the same, so waiting is said."""
    piped = ""
    if not sys.stdin.isatty():
        hint = "reading standard input to its end (Ctrl-D, or < /dev/null for none)"
        waiting = threading.Timer(PATIENCE, Terminal().note, [hint])
        waiting.daemon = True
        waiting.start()
        try:
            piped = read_text(sys.stdin.buffer, "standard input").strip()
        finally:
            waiting.cancel()
    if not prompt.strip() and not piped:
        raise OptionError("-p is empty; give it a message")
    return "\n\n".join(filter(None, (prompt, piped)))


def _which(messages: list[Message]) -> str:
    """By how it began, so that a script's user sees what it goes on with."""
    first = " ".join(next((m.content for m in messages if m.role == "user"), "").split())
    began = f', which began "{first if len(first) <= 50 else first[:49] + "…"}"' if first else ""
    return f"going on with the last conversation of {count_of(len(messages), 'message')}{began}"


def _earlier() -> list[Message]:
    path = saved.last_chat()
    if not path.exists():
        raise OptionError("there is no conversation to go on with: none was kept, or --no-history was given")
    return saved.load(path)
