"""`edgespec generate --output FILE`: many prompts, each answered once, however often a run is broken off."""

from __future__ import annotations

import os
from collections.abc import Iterator
from contextlib import ExitStack, closing, contextmanager
from dataclasses import asdict, replace
from pathlib import Path
from time import monotonic
from typing import TYPE_CHECKING, Any, BinaryIO, Generic, TypeVar

import msgspec
import typer
import xxhash

from edgespec.apps.options import message_of
from edgespec.apps.prompts import PromptInput
from edgespec.apps.terminal import Terminal
from edgespec.config import GenerationOptions
from edgespec.devices.files import held
from edgespec.errors import OptionError, StorageError
from edgespec.progress import Progress
from edgespec.response import Response
from edgespec.text.conversation import Conversation
from edgespec.values import count_of, format_seconds, two_digits

if TYPE_CHECKING:
    from collections.abc import Generator

    from edgespec.engine import Engine
    from edgespec.serving.many import Ended, Turns
    from edgespec.split.client import RemoteEngine

E = TypeVar("E", "Engine", "RemoteEngine")

MAX_LINE_BYTES = 64 * 2**20  # of an answer, with its tokens


class _Answer(msgspec.Struct):
    """What must be known of an answer to go on behind it."""

    prompt: int
    key: str


class Output:
    """The file of answers: what it has already, and where more go."""

    def __init__(self, path: Path, file: BinaryIO) -> None:
        """Raises OptionError when a line of it is not an answer. The last one may be cut short, where the run
        was killed: it goes."""
        self.path, self.file = path, file
        self.keys: dict[int, str] = {}  # by prompt
        size, end = os.fstat(file.fileno()).st_size, 0
        while line := file.readline(MAX_LINE_BYTES):
            if not line.endswith(b"\n") and file.tell() == size and line.startswith(_BEGINS[: len(line)]):
                break
            try:
                answer = msgspec.json.decode(line, type=_Answer)
            except (msgspec.DecodeError, RecursionError):
                answer = None
            if answer is None or answer.prompt in self.keys or not line.endswith(b"\n"):
                raise OptionError(
                    f"{path} is there already, and its line {len(self.keys) + 1} is no answer of `generate "
                    "--output`; name a new file"
                )
            self.keys[answer.prompt] = answer.key
            end = file.tell()
        file.seek(end)
        file.truncate()

    def has(self, number: int, key: str) -> bool:
        """Whether this prompt was answered. Raises OptionError if it was another, or asked otherwise."""
        if (known := self.keys.get(number)) not in (None, key):
            raise OptionError(
                f"{self.path} answers prompt {number} (counted from 0) of another run, with other prompts, "
                "options or another model; name a new file with --output"
            )
        return known is not None

    def write(self, answer: dict[str, Any]) -> None:
        """Raises StorageError."""
        try:
            self.file.write(msgspec.json.encode(answer) + b"\n")
            self.file.flush()
        except OSError as error:
            raise StorageError(f"{self.path} cannot be written: {error.strerror}") from None


_BEGINS = b'{"prompt":'


@contextmanager
def output_file(path: Path) -> Iterator[Output]:
    """Open the file, a new one perhaps, for this run alone. Raises OptionError when it cannot be, is another
    kind of file, or another run writes it."""
    with ExitStack() as stack:
        try:
            path.touch()
            if not path.is_file():
                raise OptionError(f"--output {path} is no ordinary file, to go on with later; name one")
            stack.enter_context(held(path))
            file = stack.enter_context(path.open("r+b"))
        except BlockingIOError:
            raise OptionError(
                f"--output {path} is being written by another run, which would answer the same prompts; wait "
                "for it, or name another file"
            ) from None
        except OSError as error:
            raise OptionError(f"--output {path} cannot be opened: {error.strerror}") from None
        yield Output(path, file)


class BatchRun(Generic[E]):
    """Answers prompts, and keeps what is there already."""

    def __init__(
        self,
        engine: E,
        options: GenerationOptions,
        terminal: Terminal,
        output: Output,
        total: int,
        stats: bool,
    ) -> None:
        """total: prompts; 0 = not known. stats: say at the end how fast it was."""
        self.engine: E = engine
        self.options, self.terminal = options, terminal
        self.output, self.total, self.stats = output, total, stats
        self.skipped = self.failed = self.answered = self.tokens = 0
        self.keys: dict[int, str] = {}  # of the prompts under way,
        self.ids: dict[int, str | int] = {}  # and those of them that have one
        self.asked = xxhash.xxh3_64(msgspec.json.encode([self.identity(), asdict(options)]))
        terminal.count_reads(lambda: engine.bytes_read)

    def all(self, queue: Iterator[PromptInput | OptionError]) -> None:
        """Raises typer.Exit after Ctrl-C, and when a prompt has failed."""
        began = monotonic()
        try:
            with closing(self.converse(self._left(queue))) as ended:
                for each in ended:
                    self._answer(each)
        except KeyboardInterrupt:
            self.terminal.note(f"[stopped; {self._counts()}. The same command goes on with the rest]")
            raise typer.Exit(130) from None
        if self.stats:
            self.terminal.note(self._figures(monotonic() - began))
        if self.failed:
            raise typer.Exit(1)

    def identity(self) -> str:
        """What replies depend on, beside prompts and options."""
        raise NotImplementedError

    def converse(self, conversations: Iterator[tuple[int, Turns, int]]) -> Generator[Ended[int], None, None]:
        """See `serving.many.converse`."""
        raise NotImplementedError

    def _left(self, queue: Iterator[PromptInput | OptionError]) -> Iterator[tuple[int, Turns, int]]:
        """The prompts that were not answered before."""
        for number, prompt in enumerate(queue):
            key = self._key(prompt)
            if self.output.has(number, key):
                self.skipped += 1
                continue
            self.keys[number] = key
            if isinstance(prompt, PromptInput) and prompt.id is not None:
                self.ids[number] = prompt.id
            turns = len(prompt.turns) if isinstance(prompt, PromptInput) else 1
            yield number, self._turns(prompt), turns

    def _key(self, prompt: PromptInput | OptionError) -> str:
        """What the answer depends on, in 16 digits."""
        asked: Any = prompt.message if isinstance(prompt, OptionError) else [prompt.turns, prompt.is_chat]
        if isinstance(prompt, PromptInput) and prompt.id is not None:
            asked.append(prompt.id)
        key = self.asked.copy()
        key.update(msgspec.json.encode(asked))
        return str(key.hexdigest())

    def _turns(self, prompt: PromptInput | OptionError) -> Turns:
        if isinstance(prompt, OptionError):
            raise prompt
        conversation = Conversation(self.engine.tokenizer)
        for text in prompt.turns:
            if not prompt.is_chat:
                yield self.engine.tokenizer.encode(text), self.options
                continue
            conversation.ask(text)
            tokens = conversation.prompt()
            reply = yield tokens, conversation.options(self.options)
            conversation.answer(reply, tokens, self.engine.eos)

    def _answer(self, ended: Ended[int]) -> None:
        answer: dict[str, Any] = {"prompt": ended.key, "key": self.keys.pop(ended.key)}
        if ended.key in self.ids:
            answer["id"] = self.ids.pop(ended.key)
        replies = [_reply(reply) for reply in ended.replies]
        if ended.error is not None:
            self.failed += 1
            answer["error"] = message_of(ended.error)
            self.terminal.error(f"prompt {ended.key}: {answer['error']}")
        if len(replies) == 1 and ended.error is None:
            answer |= replies[0]
        elif replies:
            answer["replies"] = replies
        self.answered += 1
        self.tokens += sum(len(reply.tokens) for reply in ended.replies)
        self.output.write(answer)

    def progress(self, report: Progress) -> None:
        self.terminal.progress(replace(report, done=report.done + self.skipped, total=self.total))

    def _counts(self) -> str:
        there = count_of(self.skipped + self.answered, "answer")
        return f"{self.output.path} has {there}" + (f" of {self.total}" if self.total else "")

    def _figures(self, seconds: float) -> str:
        failed = f", {self.failed} of them errors" if self.failed else ""
        rate = two_digits(self.tokens / seconds) if seconds > 0 else "0"
        return f"{self._counts()}{failed} · {format_seconds(seconds)} · {rate} tok/s together"


class SharedRun(BatchRun["Engine"]):
    """In shared passes."""

    def identity(self) -> str:
        return str(self.engine.files.digest)

    def converse(self, conversations: Iterator[tuple[int, Turns, int]]) -> Generator[Ended[int], None, None]:
        from edgespec.serving.many import converse  # numpy: not for --help

        engine, plan = self.engine, self.engine.plan
        at_once = engine.pool.positions // engine.pool.of(plan.context)
        if self.options.max_tokens is None and at_once < plan.sequences:
            self.terminal.note(
                f"without --max-tokens each reply may take all of --context {plan.context}, so {at_once} of "
                f"{plan.sequences} are made at once"
            )
        return converse(engine, conversations, self.progress)


def _reply(reply: Response) -> dict[str, Any]:
    return {
        "text": reply.text,
        "tokens": reply.tokens,
        "finish_reason": reply.finish_reason,
        "prompt_tokens": reply.stats.prompt_tokens,
    }
