"""What generation yields, for the command line, the server and the benchmarks. Needs no torch."""

from __future__ import annotations

from collections.abc import Callable, Generator, Iterable
from contextlib import suppress
from dataclasses import dataclass, field


@dataclass
class EarlyExitStats:
    """What the target's early exit did in a reply (schedule mirror); of all cycles in which it spoke."""

    layers: int = 0  # of the target, before it, at last
    kappa: int = 0  # tokens that it names behind a row
    cycles: int = 0
    tokens: int = 0  # of the target's own that it was asked about,
    found: int = 0  # and those that it had named
    timed: int = 0  # cycles of these for which the target's own pass was known, and their seconds:
    law_seconds: float = 0.0  # by the latency law (Mirror-SD, Equation 10)
    measured_seconds: float = 0.0
    terms: dict[str, float] = field(default_factory=dict)  # of the law, by name; see `core.trace.Law`

    @property
    def overlap_mass(self) -> float | None:
        """Omega (Equation 9), counted: the share of the target's tokens that were among its kappa."""
        return self.found / self.tokens if self.tokens else None


@dataclass
class Stats:
    """Measured while generating; times in seconds, sizes in bytes."""

    prompt_tokens: int = 0
    reused_tokens: int = 0  # of the prompt, found in the session's cache
    reply_tokens: int = 0
    cycles: int = 0  # passes of the target over the reply, the prefill's last one included
    drafted: int = 0  # nodes of the trees that were verified, roots aside
    accepted: int = 0  # of these, kept
    schedule: str = "plain"  # when drafting happened
    schedules: dict[str, int] = field(default_factory=dict)  # cycles by when they did; see `trace.Cycle`
    cache_hits: int = 0  # passes whose outcome had been drafted for while they were under way,
    cache_misses: int = 0  # and those whose outcome had not
    drafted_while_verifying: int = 0  # nodes, of all outcomes that were drafted for
    fallbacks: int = 0  # trees that were drafted after the pass, as the outcome had not been prepared for
    early_exit: EarlyExitStats = field(default_factory=EarlyExitStats)
    plain_cycles: float = 0.0  # in which its cycles' time is counted, as far as what plain ones take is known
    predicted_tokens: float = 0.0  # that the controller expected of them
    acceptance: str = "greedy"
    lossless: bool = True  # the acceptance keeps the target's own text or distribution
    drafter_damaged: bool = False  # its model computed NaN, and drafts no more
    undrafted: str | None = None  # why drafting has stopped, wholly or in part; None while it goes on
    prefill_seconds: float = 0.0
    decode_seconds: float = 0.0
    bytes_read: int = 0  # from flash, prefill and decode
    decode_bytes_read: int = 0
    unverified_tokens: int = 0  # of the reply: the drafter's alone, while no server could be asked
    lost: int = 0  # rounds whose answer did not come in time
    peak_memory: int = 0  # of the process since its start: `devices.probe.peak_memory`
    dial: int | None = None

    @property
    def tokens_per_second(self) -> float:
        """Reply tokens after the first, per second of decoding."""
        return (self.reply_tokens - 1) / self.decode_seconds if self.decode_seconds > 0 else 0.0

    @property
    def predicted_speedup(self) -> float | None:
        """Over plain decoding, as the controller believed it cycle by cycle: under schedules that draft while
        verifying, SSD's Theorem 7 with the measured hit rate. None where nobody measures."""
        return self.predicted_tokens / self.plain_cycles if self.plain_cycles else None

    @property
    def measured_speedup(self) -> float | None:
        """The same, of the tokens that came."""
        tokens = self.accepted + self.cycles - 1
        return tokens / self.plain_cycles if self.plain_cycles else None

    @property
    def fallback_frequency(self) -> float | None:
        """How often nothing had been prepared for an outcome (Mirror-SD, Appendix E); None = never asked."""
        asked = self.cache_hits + self.cache_misses
        return self.cache_misses / asked if asked else None

    @property
    def tokens_per_cycle(self) -> float:
        """tau: tokens emitted per pass of the target (accepted + bonus)."""
        return self.reply_tokens / self.cycles if self.cycles else 0.0

    @property
    def bytes_per_token(self) -> float:
        """Bytes read from flash per token of decoding."""
        return self.decode_bytes_read / (self.reply_tokens - 1) if self.reply_tokens > 1 else 0.0

    @property
    def read_gbps(self) -> float:
        """GB/s read from flash while decoding."""
        return self.decode_bytes_read / self.decode_seconds / 1e9 if self.decode_seconds > 0 else 0.0


@dataclass(frozen=True)
class Withdrawn:
    """What is no part of a reply any more: so many characters and tokens at its end, none verified."""

    characters: int
    tokens: int


@dataclass
class Response:
    """One step of a reply: the text that became certain with `token` (may be empty), and where it stands.

    `verified`: the target has said it, or agreed. False only where that is on a server that did not answer.
    Where such text is made again when the server is back, `withdrawn` says how much of it goes.

    The last response of a reply has `finish_reason` "stop" (EOS or a stop string), "length" or "cancelled",
    and, from `generate`, `text` and `tokens` of the whole reply.
    """

    text: str
    token: int | None = None
    from_draft: bool = False
    finish_reason: str | None = None
    tokens: list[int] = field(default_factory=list)
    stats: Stats = field(default_factory=Stats)
    verified: bool = True
    withdrawn: Withdrawn | None = None

    def add(self, step: Response) -> None:
        """Make this the whole of a reply, as far as `step`."""
        if (gone := step.withdrawn) is not None:
            self.text = self.text[: len(self.text) - gone.characters]
            del self.tokens[len(self.tokens) - gone.tokens :]
        self.text += step.text
        if step.token is not None:
            self.tokens.append(step.token)
        self.token, self.from_draft = step.token, step.from_draft
        self.finish_reason, self.stats = step.finish_reason, step.stats
        self.verified = not step.stats.unverified_tokens


def whole(steps: Iterable[Response]) -> Response:
    """A reply's steps as one, with all its text and tokens."""
    reply = Response("")
    for step in steps:
        reply.add(step)
    return reply


class InThread:
    """A reply's steps for asyncio, each made in one thread beside the loop: an asynchronous iterator.

    A thread of its own, not one of the loop's pool: what passes keep for their thread is then kept once.
    When the task is cancelled, `cancel` ends the step under way, which is waited for. At the end, `steps` is
    closed; and where nobody holds the iterator any more, there and then: an asynchronous generator, once
    left, would be closed by the loop at some later time.
    """

    def __init__(self, steps: Generator[Response, None, None], cancel: Callable[[], None]) -> None:
        from concurrent.futures import ThreadPoolExecutor  # not for --help

        self._steps, self._cancel = steps, cancel
        self._thread = ThreadPoolExecutor(1, "edgespec reply")
        self._over = False

    def __aiter__(self) -> InThread:
        return self

    async def __anext__(self) -> Response:
        import asyncio

        if self._over:
            raise StopAsyncIteration
        loop = asyncio.get_running_loop()
        step = loop.run_in_executor(self._thread, next, self._steps, None)
        try:
            made = await asyncio.shield(step)
        except asyncio.CancelledError:
            self._cancel()
            while not step.done():
                with suppress(asyncio.CancelledError):
                    await asyncio.wait([step])
            step.exception()  # whatever it is, the task that would care was cancelled
            await self.aclose()
            raise
        except Exception:
            await self.aclose()
            raise
        if made is None:
            await self.aclose()
            raise StopAsyncIteration
        return made

    async def aclose(self) -> None:
        import asyncio

        if not self._over:
            self._over = True
            closed = asyncio.get_running_loop().run_in_executor(self._thread, self._steps.close)
            self._thread.shutdown(wait=False)
            await asyncio.shield(closed)

    def __del__(self) -> None:
        if self._over:
            return
        try:
            self._steps.close()
        except ValueError:  # a step is under way, and only its coroutine was dropped
            self._cancel()
        self._thread.shutdown(wait=False)
