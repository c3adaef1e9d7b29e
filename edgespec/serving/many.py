"""Replies to many prompts at once: each has a session, and all sessions share the passes (`core.batcher`).

Needs no torch."""

from __future__ import annotations

from collections.abc import Generator, Iterable, Iterator, Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Generic, TypeVar

from edgespec.config import GenerationOptions
from edgespec.core.batch import Part
from edgespec.core.batcher import Batcher
from edgespec.errors import BudgetError, Cancelled, ClosedError, EdgeSpecError
from edgespec.progress import Progress, ProgressCallback
from edgespec.response import Response, whole
from edgespec.session import reply_limit
from edgespec.text.prompt import Prompt

if TYPE_CHECKING:
    from edgespec.engine import Engine

K = TypeVar("K")

Turns = Generator[tuple[Sequence[int], GenerationOptions], Response, None]
"""What a conversation asks: yields a prompt (tokens of all of it) and how to reply, and gets the reply."""


def one_turn(engine: Engine, prompt: Prompt, options: GenerationOptions) -> Turns:
    yield engine.encode(prompt), options


@dataclass
class Ended(Generic[K]):
    """What became of a conversation: its replies, and what ended it early, if anything did."""

    key: K
    replies: list[Response] = field(default_factory=list)
    error: EdgeSpecError | None = None


class _Talk(Generic[K]):
    """A conversation among others; see `core.batcher.Member`."""

    def __init__(self, key: K, turns: Turns, count: int) -> None:
        self.ended, self.turns, self.count = Ended(key), turns, count
        self._first: tuple[Sequence[int], GenerationOptions] | None = None

    def positions(self, engine: Engine) -> int:
        """That it needs: of one turn, the prompt's and the reply's; else as many as there may be. Raises what
        is wrong with its first prompt."""
        if self._first is None:
            self._first = next(self.turns)
        tokens, options = self._first
        most = engine.plan.context
        limit = reply_limit(tokens, options, most, engine.config)
        return most if options.max_tokens is None or self.count > 1 else len(tokens) + limit

    def open(self, engine: Engine) -> None:
        positions = self.positions(engine)
        assert self._first is not None
        self.session = engine.new_session(positions)
        try:
            self._begin(*self._first)
        except BaseException:
            self.session.close()
            raise

    def _begin(self, tokens: Sequence[int], options: GenerationOptions) -> None:
        self.reply = self.session.new_reply(tokens, options)
        self.said = list[Response]()

    def ask(self) -> Part:
        return self.session.ask(self.reply)

    def answer(self, part: Part) -> bool:
        self.said += self.session.answer(self.reply, part)
        if not self.reply.writer.finished:
            return True
        self.session.end(self.reply)
        self.ended.replies.append(whole(self.said))
        try:
            self._begin(*self.turns.send(self.ended.replies[-1]))
        except StopIteration:
            return False
        return True

    def close(self) -> None:
        self.session.end(self.reply)
        self.session.close()


class _Crowd(Generic[K]):
    """Those who are there, and those who wait for room, in the order in which they came."""

    def __init__(self, engine: Engine, conversations: Iterable[tuple[K, Turns, int]]) -> None:
        self.engine = engine
        self.coming = (_Talk(*each) for each in conversations)
        self.next: _Talk[K] | None = None
        self.members: list[_Talk[K]] = []
        self.batcher = Batcher[_Talk[K]](engine.verifier)

    def admit(self) -> Iterator[Ended[K]]:
        """As many as there is room for. Those whose first prompt is wrong are at their end."""
        while (talk := self.next or next(self.coming, None)) is not None:
            self.next = talk
            try:
                if self.members and not self.engine.room_for(talk.positions(self.engine)):
                    return
                talk.open(self.engine)
                self.members.append(talk)
                self.batcher.join(talk)
            except (BudgetError, ClosedError):  # other sessions', which is no fault of this one
                raise
            except EdgeSpecError as error:
                talk.ended.error = error
                yield talk.ended
            self.next = None

    def step(self) -> Iterator[Ended[K]]:
        """One pass."""
        for talk, error in self.batcher.step():
            self.members.remove(talk)
            talk.close()
            if isinstance(error, Cancelled) or not (error is None or isinstance(error, EdgeSpecError)):
                raise error
            talk.ended.error = error
            yield talk.ended

    def close(self) -> None:
        for talk in self.members:
            talk.close()


def converse(
    engine: Engine, conversations: Iterable[tuple[K, Turns, int]], progress: ProgressCallback | None = None
) -> Generator[Ended[K], None, None]:
    """Have these conversations (key, what is asked, how many turns), as many at a time as there is room for,
    in this order; each as it ends. `progress` gets the number of those that have ended, after each pass.

    An error of one conversation (a prompt that is too long) ends that one. What concerns all, as a disk's
    error, is raised, and leaving the iterator ends those under way.
    """
    crowd, done = _Crowd(engine, conversations), 0
    try:
        while True:
            ended = [*crowd.admit()]
            if crowd.members:
                ended += crowd.step()
            elif not ended:
                return
            done += len(ended)
            if progress is not None:
                progress(Progress("replies", done, 0, "rows"))
            yield from ended
    finally:
        crowd.close()
