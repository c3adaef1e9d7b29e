"""`edgespec generate`: continue texts, one after another."""

from __future__ import annotations

import json
import sys
from collections.abc import Iterator
from contextlib import ExitStack, nullcontext
from dataclasses import dataclass
from itertools import chain
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from edgespec.apps import options, prompts
from edgespec.apps.batch import SharedRun, output_file
from edgespec.apps.common import check_server, multiply_alone, open_engine
from edgespec.apps.options import message_of
from edgespec.apps.prompts import PromptInput
from edgespec.apps.reply import follow
from edgespec.apps.stats import stats_line, stats_object
from edgespec.apps.terminal import Terminal
from edgespec.apps.timeline import TRACE_HELP, Timeline, new_session, timeline
from edgespec.apps.yielding import HELP as YIELD_HELP
from edgespec.apps.yielding import giving_way
from edgespec.config import EngineOptions, GenerationOptions
from edgespec.errors import EdgeSpecError, OptionError
from edgespec.response import Response, Stats
from edgespec.split.options import ConnectOptions
from edgespec.text.conversation import Conversation
from edgespec.values import Option, Options, count_of

if TYPE_CHECKING:
    from edgespec.engine import Engine
    from edgespec.session import Session
    from edgespec.split.client import RemoteEngine
    from edgespec.tuning.predict import Interval


@dataclass(frozen=True)
class GenerateFlags(Options):
    """What is continued, and how it is shown."""

    prompt: Annotated[
        tuple[str, ...],
        Option("Text to continue. Repeatable.", metavar="TEXT", short="-p", default="standard input"),
    ] = ()
    json: Annotated[bool, Option("Print one JSON object a reply.")] = False
    keep_going: Annotated[bool, Option("After a prompt that fails, go on with the next.")] = False
    stats: Annotated[bool, Option("Show figures after each reply.")] = True
    trace: Annotated[Path | None, Option(TRACE_HELP, metavar="FILE")] = None
    output: Annotated[
        Path | None,
        Option(
            "Write one JSON object a prompt there, as replies end, and go on where an earlier run stopped.",
            metavar="FILE",
            short="-o",
        ),
    ] = None
    server: Annotated[
        str | None,
        Option(
            "Draft here, and have it verified by the model of an `edgespec serve` there. MODEL is the same "
            "model, then, which goes on here when the server does not answer.",
            metavar="URL", default="none, the model is loaded here",
        ),
    ] = None  # fmt: skip
    api_key_file: Annotated[Path | None, Option("The server's key, in a file.", metavar="FILE")] = None
    yield_: Annotated[bool, Option(YIELD_HELP)] = False
    private: Annotated[
        bool,
        Option(
            "With --server: send nothing of the prompts, which the drafter continues alone. With "
            "--draft-server: it drafts for none of them."
        ),
    ] = False


@options.takes()
def generate(
    model: Annotated[
        str | None, typer.Argument(metavar="MODEL", help=options.MODEL_HELP, show_default=False)
    ] = None,
    *,
    wanted: GenerateFlags,
    engine: EngineOptions,
    generation: GenerationOptions,
    link: ConnectOptions,
) -> None:
    """Continue texts: -p, or standard input with one prompt a line.

    A line may be JSON: {"prompt": "a text"}, or {"turns": ["a message"]} in the model's chat format.

    To ask a chat model one question, use `edgespec chat -p`.
    """
    if wanted.server is not None:
        multiply_alone()
    options.check_together(engine, generation)
    _check(wanted, engine)
    check_server(wanted.server, wanted.api_key_file, link)
    if wanted.server is not None:
        _from_server(wanted, wanted.server, model, engine, generation, link)
        return
    if model is None:
        raise OptionError("name a MODEL, or a server that has one: --server URL")
    if wanted.output is not None:
        total = len(wanted.prompt) or prompts.count(sys.stdin.buffer)
        queue = _prompts(wanted.prompt, keep_going=True)
        with (
            Terminal() as terminal,
            output_file(wanted.output) as output,
            open_engine(model, engine, terminal) as opened,
            giving_way(opened, terminal.note) if wanted.yield_ else nullcontext(),
        ):
            SharedRun(opened, generation, terminal, output, total, wanted.stats).all(queue)
        return
    queue, given = _prompts(wanted.prompt, wanted.keep_going), list[str]()
    with (
        timeline(wanted.trace) as traced,
        Terminal() as terminal,
        open_engine(model, engine, terminal) as opened,
        giving_way(opened, given.append) if wanted.yield_ else nullcontext(),
    ):
        _LocalRun(opened, generation, terminal, wanted, traced, given).all(queue)


def _from_server(
    wanted: GenerateFlags,
    url: str,
    model: str | None,
    engine: EngineOptions,
    generation: GenerationOptions,
    link: ConnectOptions,
) -> None:
    from edgespec.apps.drafting import RemoteRun, connected  # numpy: not for --help

    if wanted.trace is not None:
        raise OptionError("--trace is of a model's passes, which are the server's here; leave it out")
    with Terminal() as terminal, ExitStack() as stack:
        output = None if wanted.output is None else stack.enter_context(output_file(wanted.output))
        total = len(wanted.prompt) or (0 if output is None else prompts.count(sys.stdin.buffer))
        queue = _prompts(wanted.prompt, wanted.keep_going or output is not None)
        opened = stack.enter_context(connected(url, wanted.api_key_file, link, engine, model, terminal))
        if output is not None:
            RemoteRun(opened, generation, terminal, output, total, wanted.stats).all(queue)
        else:
            session = stack.enter_context(opened.new_session())
            PromptRun(opened, session, generation, terminal, wanted).all(queue)


def _check(wanted: GenerateFlags, engine: EngineOptions) -> None:
    """Raises OptionError for flags that do not go together."""
    if wanted.yield_ and wanted.server is not None:
        raise OptionError("--yield does not go with --server, whose memory is its own")
    if wanted.output is None and engine.batch != 1:
        raise OptionError(
            "replies of a batch end in any order; say where they go: --output FILE, one JSON object a line"
        )
    nowhere = wanted.server is None and engine.draft_server is None
    if wanted.private and (nowhere or wanted.output is not None):
        raise OptionError(
            "--private is for --server URL or --draft-server URL, without --output: nothing is sent where "
            "there is no server, and --output is of replies that were verified"
        )
    for name in ("json", "keep_going", "trace"):
        if wanted.output is not None and getattr(wanted, name):
            raise OptionError(
                f"--{name.replace('_', '-')} changes nothing with --output, which takes one JSON object for "
                "each prompt, goes on after a bad one, and has no timeline; leave it out"
            )


def _prompts(texts: tuple[str, ...], keep_going: bool) -> Iterator[PromptInput | OptionError]:
    """The prompts, the first of which is known to be there before a model is loaded. With `keep_going`, what
    is wrong with a line stands in its place."""
    if texts:
        return iter(list(prompts.from_flags(texts)))
    if sys.stdin.isatty():
        raise OptionError("there is no prompt: give -p TEXT, or standard input with one prompt a line")
    queue = prompts.from_stream(sys.stdin.buffer, keep_going)
    first = next(queue, None)
    if first is None:
        raise OptionError("standard input has no prompt; it takes one a line")
    return chain([first], queue)


class PromptRun:
    """Replies on the terminal, one after another; of a server's model, of which no plan is known."""

    def __init__(
        self,
        engine: Engine | RemoteEngine,
        session: Session,
        options: GenerationOptions,
        terminal: Terminal,
        wanted: GenerateFlags,
    ) -> None:
        self.engine, self.session = engine, session
        self.options = options
        self.terminal = terminal
        self.wanted = wanted

    plan: dict[str, Any] | None = None
    expected_speed: Interval | None = None

    def learn(self, stats: Stats) -> list[str]:
        """A reply was made; what is to be said of how."""
        return []

    def all(self, queue: Iterator[PromptInput | OptionError]) -> None:
        """Answer every prompt. Raises typer.Exit after Ctrl-C, and after errors that were said already."""
        failed = False
        for number, prompt in enumerate(queue):
            try:
                if isinstance(prompt, OptionError):
                    raise prompt
                self._one(number, prompt)
            except EdgeSpecError as error:
                if isinstance(prompt, PromptInput):
                    error.args = (f"{prompt.origin}: {error.message}", *error.args[1:])
                if not self.wanted.keep_going:
                    raise
                failed = True
                said = message_of(error)
                self.terminal.error(said)
                if self.wanted.json:
                    self.terminal.result(json.dumps({"prompt": number, "error": said}, ensure_ascii=False))
        if failed:
            raise typer.Exit(1)

    def _one(self, number: int, prompt: PromptInput) -> None:
        conversation = Conversation(self.engine.tokenizer)
        for turn, text in enumerate(prompt.turns):
            conversation.ask(text)
            tokens = conversation.prompt() if prompt.is_chat else self.engine.tokenizer.encode(text)
            options = conversation.options(self.options) if prompt.is_chat else self.options
            safe = 0 if self.wanted.private else None
            steps = self.session.generate(tokens, options, self.terminal.progress, safe=safe)
            self.terminal.busy(f"prompt {count_of(len(tokens), 'token')}")
            reply = follow(steps, self.session.cancel, self.terminal, show=not self.wanted.json)
            warnings = self.learn(reply.stats)
            self._report(reply, {"prompt": number, "turn": turn})
            for warning in warnings:
                self.terminal.note(warning)
            if reply.finish_reason == "cancelled":
                raise typer.Exit(130)
            conversation.answer(reply, tokens, self.engine.eos)

    def _report(self, reply: Response, place: dict[str, int]) -> None:
        if self.wanted.json:
            result: dict[str, Any] = {
                **place,
                "text": reply.text,
                "tokens": reply.tokens,
                "finish_reason": reply.finish_reason,
                "stats": stats_object(reply.stats, self.plan, self.expected_speed),
            }
            self.terminal.result(json.dumps(result, ensure_ascii=False))
        else:
            self.terminal.end_reply()
            if self.wanted.stats:
                self.terminal.note(stats_line(reply.stats, self.terminal.width))


class _LocalRun(PromptRun):
    def __init__(
        self,
        engine: Engine,
        options: GenerationOptions,
        terminal: Terminal,
        wanted: GenerateFlags,
        traced: Timeline | None,
        given: list[str],
    ) -> None:
        """given: what is to be said of memory when a reply has ended; another thread adds to it."""
        from edgespec.tuning.watch import Watch  # numpy: not for --help

        self.watch, self.given = Watch(engine), given
        super().__init__(engine, new_session(engine, traced, watch=self.watch), options, terminal, wanted)
        terminal.count_reads(lambda: engine.bytes_read)
        self.plan = engine.plan.to_dict()

    def learn(self, stats: Stats) -> list[str]:
        self.watch.reply(stats)
        self.expected_speed = self.watch.expected_speed
        said = [self.given.pop(0) for _ in range(len(self.given))]
        return [*self.watch.warnings(), *said]
