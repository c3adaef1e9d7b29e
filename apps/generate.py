"""`edgespec generate`: continue texts, one after another."""

from __future__ import annotations

import json
import sys
from collections.abc import Iterator
from itertools import chain
from typing import TYPE_CHECKING, Annotated, Any

import typer

from edgespec.apps import options, prompts
from edgespec.apps.common import open_engine
from edgespec.apps.conversation import Conversation
from edgespec.apps.prompts import Prompt
from edgespec.apps.reply import Reply, reply_to
from edgespec.apps.stats import stats_line, stats_object
from edgespec.apps.terminal import Terminal
from edgespec.config import EngineOptions, GenerationOptions
from edgespec.errors import EdgeSpecError, OptionError

if TYPE_CHECKING:
    from edgespec.engine import Engine


@options.takes(generation=())
def generate(
    model: options.Model,
    prompt: Annotated[
        list[str] | None,
        typer.Option(
            "--prompt",
            "-p",
            metavar="TEXT",
            help="Text to continue. Repeatable. Default: standard input.",
            show_default=False,
        ),
    ] = None,
    as_json: Annotated[bool, typer.Option("--json", help="Print one JSON object a reply.")] = False,
    *,
    engine: EngineOptions,
    generation: GenerationOptions,
) -> None:
    """Continue texts: -p, or standard input with one prompt a line.

    A line may be a JSON object too: {"prompt": "a text to continue"}, or
    {"turns": ["a message"]} for a conversation in the model's chat format.
    To ask a chat model one question, use `edgespec chat -p`.
    """
    options.check_together(engine, generation)
    queue = _prompts(prompt)
    with Terminal() as terminal, open_engine(model, engine, terminal) as opened:
        _Run(opened, generation, terminal, as_json).all(queue)


def _prompts(texts: list[str] | None) -> Iterator[Prompt]:
    """The prompts, the first of which is known to be there before a model is loaded."""
    if texts:
        return iter(list(prompts.from_flags(texts)))
    if sys.stdin.isatty():
        raise OptionError("there is no prompt: give -p TEXT, or standard input with one prompt a line")
    queue = prompts.from_stream(sys.stdin.buffer)
    first = next(queue, None)
    if first is None:
        raise OptionError("standard input has no prompt; it takes one a line")
    return chain([first], queue)


class _Run:
    def __init__(self, engine: Engine, options: GenerationOptions, terminal: Terminal, as_json: bool) -> None:
        self.engine = engine
        self.options = options
        self.terminal = terminal
        self.as_json = as_json
        self.session = engine.new_session()
        terminal.count_reads(lambda: engine.bytes_read)

    def all(self, queue: Iterator[Prompt]) -> None:
        """Answer every prompt. Raises typer.Exit after Ctrl-C; errors name the prompt they are about."""
        for number, prompt in enumerate(queue):
            try:
                self._one(number, prompt)
            except EdgeSpecError as error:
                error.args = (f"{prompt.origin}: {error}", *error.args[1:])
                raise

    def _one(self, number: int, prompt: Prompt) -> None:
        conversation = Conversation(self.engine.tokenizer)
        for turn, text in enumerate(prompt.turns):
            conversation.ask(text)
            tokens = conversation.prompt() if prompt.is_chat else self.engine.tokenizer.encode(text)
            options = conversation.options(self.options) if prompt.is_chat else self.options
            reply = reply_to(tokens, self.session, options, self.terminal, show=not self.as_json)
            self._report(reply, {"prompt": number, "turn": turn})
            if reply.interrupted:
                raise typer.Exit(130)
            conversation.answer(reply, tokens, self.engine.eos)

    def _report(self, reply: Reply, place: dict[str, int]) -> None:
        if self.as_json:
            result: dict[str, Any] = {
                **place,
                "text": reply.text,
                "tokens": reply.tokens,
                "finish_reason": reply.finish_reason,
                "stats": stats_object(reply.stats, self.engine.plan.to_dict()),
            }
            self.terminal.result(json.dumps(result, ensure_ascii=False))
        else:
            self.terminal.end_reply()
            self.terminal.note(stats_line(reply.stats))
