"""Replies that `edgespec bench` times: of one conversation, or of several that share every pass."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from statistics import mean
from time import perf_counter
from typing import TYPE_CHECKING

from edgespec.apps.reply import follow, stop_on_interrupt
from edgespec.apps.terminal import Terminal
from edgespec.apps.timeline import Timeline, new_session
from edgespec.config import GenerationOptions

if TYPE_CHECKING:
    from edgespec.core.batch import Part
    from edgespec.core.batcher import Batcher
    from edgespec.core.reply import Reply
    from edgespec.core.schedule import Controller
    from edgespec.core.trace import Cycle
    from edgespec.engine import Engine
    from edgespec.session import Session

Prompts = Sequence[list[int]]


@dataclass(frozen=True)
class Timed:
    """What the prompts took until the last reply had its first token, and what came behind that: tokens of
    all replies together, seconds, bytes read, and passes."""

    prompt_tokens: int
    prompt_seconds: float
    prompt_bytes: int
    tokens: int
    seconds: float
    bytes_read: int
    passes: int
    tokens_per_cycle: float


class Single:
    """One conversation."""

    def __init__(
        self,
        engine: Engine,
        steps: int | None,
        terminal: Terminal,
        traced: Timeline | None,
        hear: Callable[[Cycle], None],
    ) -> None:
        from edgespec.tuning.watch import Watch  # numpy: not for --help

        self.terminal, self.watch = terminal, Watch(engine, texts=False)
        self.sessions = [new_session(engine, traced, _fixed(engine, steps), hear, self.watch)]

    def reply(self, prompts: Prompts, tokens: int) -> Timed:
        """So many tokens. Raises KeyboardInterrupt when it was stopped."""
        (session,), (prompt,) = self.sessions, prompts
        steps = session.generate(prompt, fixed_length(tokens), self.terminal.progress)
        reply = follow(steps, session.cancel, self.terminal, show=False)
        if reply.finish_reason == "cancelled":
            raise KeyboardInterrupt
        stats = reply.stats
        self.watch.reply(stats)
        return Timed(
            stats.prompt_tokens - stats.reused_tokens,
            stats.prefill_seconds,
            stats.bytes_read - stats.decode_bytes_read,
            stats.reply_tokens - 1,
            stats.decode_seconds,
            stats.decode_bytes_read,
            stats.cycles - 1,
            stats.tokens_per_cycle,
        )


@dataclass(eq=False)
class Counted:
    """See `core.batcher.Member`."""

    session: Session
    reply: Reply
    said: int = field(default=0, init=False)  # tokens

    def ask(self) -> Part:
        return self.session.ask(self.reply)

    def answer(self, part: Part) -> bool:
        self.said += sum(response.token is not None for response in self.session.answer(self.reply, part))
        return not self.reply.writer.finished


class Several:
    """As many conversations as the engine makes replies at once, all in the same passes."""

    def __init__(
        self,
        engine: Engine,
        steps: int | None,
        terminal: Terminal,
        positions: int,
        hear: Callable[[Cycle], None],
    ) -> None:
        """positions: that each of them may take. Raises BudgetError where they do not fit together."""
        from edgespec.core.trace import Trace  # numpy: not for --help

        self.engine, self.terminal = engine, terminal
        count = engine.plan.sequences
        if engine.options.batch == 0:  # auto: as many as have room
            count = min(count, engine.pool.positions // engine.pool.of(positions))
        self.sessions = [
            engine.new_session(positions, _fixed(engine, steps), Trace(cycle=hear)) for _ in range(count)
        ]

    def reply(self, prompts: Prompts, tokens: int) -> Timed:
        """So many tokens each. Raises KeyboardInterrupt when they were stopped."""
        from edgespec.core.batcher import Batcher  # numpy: not for --help

        progress = [self.terminal.progress, *[None] * (len(prompts) - 1)]
        asked = zip(self.sessions, prompts, progress, strict=True)
        members = [Counted(s, s.new_reply(prompt, fixed_length(tokens), tell)) for s, prompt, tell in asked]
        batcher = Batcher[Counted](self.engine.verifier)
        for member in members:
            batcher.join(member)
        read, began = [self.engine.bytes_read], [perf_counter()]

        def mark() -> None:
            read.append(self.engine.bytes_read)
            began.append(perf_counter())

        passes = 0
        try:
            with stop_on_interrupt(self._cancel):
                while not all(member.said for member in members):
                    self._step(batcher)
                mark()
                there = sum(member.said for member in members)
                while len(batcher):
                    self._step(batcher)
                    passes += 1
                mark()
        finally:
            for member in members:
                member.session.end(member.reply)
        stats = [member.reply.stats for member in members]
        return Timed(
            sum(one.prompt_tokens - one.reused_tokens for one in stats),
            began[1] - began[0],
            read[1] - read[0],
            sum(member.said for member in members) - there,
            began[2] - began[1],
            read[2] - read[1],
            passes,
            mean(one.tokens_per_cycle for one in stats),
        )

    def _step(self, batcher: Batcher[Counted]) -> None:
        from edgespec.errors import Cancelled

        for _, error in batcher.step():
            if isinstance(error, Cancelled):
                raise KeyboardInterrupt
            if error is not None:
                raise error

    def _cancel(self) -> None:
        for session in self.sessions:
            session.cancel()


def fixed_length(tokens: int) -> GenerationOptions:
    """Every reply has the length that is asked for."""
    return GenerationOptions(max_tokens=tokens, ignore_eos=True)


def _fixed(engine: Engine, steps: int | None) -> Controller | None:
    if steps is None:
        return None
    from edgespec.control.fixed import Fixed  # numpy: not for --help
    from edgespec.core.schedule import TreeBudget

    return Fixed(TreeBudget(engine.options.tree_nodes, steps, steps))
