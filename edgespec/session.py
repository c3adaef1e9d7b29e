"""One conversation: its KV cache, and replies to successive prompts that reuse what they share."""

from __future__ import annotations

import threading
import weakref
from collections.abc import Iterator, Sequence
from contextlib import suppress
from dataclasses import replace
from time import perf_counter
from typing import TYPE_CHECKING

from edgespec.config import GenerationOptions
from edgespec.core.acceptance import Acceptance, Outcome, make_acceptance
from edgespec.core.decode import Schedule, decode, prefill
from edgespec.core.sampling import Noise, Sampler
from edgespec.drafters.base import Context
from edgespec.drafters.choose import check_acceptance
from edgespec.errors import Cancelled, ContextError, OptionError
from edgespec.progress import Progress, ProgressCallback
from edgespec.response import Response, Stats
from edgespec.runtimes.base import KVCache, Rows
from edgespec.text.detokenize import Detokenizer

if TYPE_CHECKING:
    from torch import Tensor

    from edgespec.engine import Engine


class Session:
    """A conversation on an engine. One reply at a time; `cancel` may come from any thread."""

    released: weakref.finalize[..., Session]  # gives the KV memory back to the engine's ledger

    def __init__(self, engine: Engine, cache: KVCache, schedule: Schedule) -> None:
        self.engine = engine
        self.cache = cache
        self.schedule = schedule
        self.tokens: list[int] = []  # whose keys and values are committed
        self._cancelled = threading.Event()
        self._busy = False

    @property
    def context(self) -> int:
        """Positions this session may hold."""
        return self.cache.capacity

    def cancel(self) -> None:
        """End the running reply, within one chunk. What it said so far stays in the session."""
        self._cancelled.set()

    def close(self) -> None:
        """Give the KV cache's memory back to the engine. The session cannot be used any more."""
        if self.released.alive:
            del self.cache, self.schedule
            self.released()

    def generate(
        self,
        prompt: Sequence[int],
        options: GenerationOptions | None = None,
        progress: ProgressCallback | None = None,
    ) -> Iterator[Response]:
        """Reply to `prompt` (token ids of the whole conversation so far), one Response a token.

        What the prompt shares with the session's tokens is not computed again. The last Response has a
        finish_reason. Leaving the iterator early, Ctrl-C and errors keep the session usable.

        Raises ContextError (with both counts) before any work when prompt and reply do not fit, OptionError
        when acceptance, sampling options and drafter do not go together.
        """
        options = options or GenerationOptions()
        prompt = [int(t) for t in prompt]
        limit = self._check(prompt, options)
        acceptance = make_acceptance(options.acceptance, options)
        check_acceptance(acceptance, self.engine.options.drafter, self.engine.drafters)
        self._refuse_second()
        self._cancelled.clear()
        return self._reply(prompt, options, acceptance, limit, progress)

    def _refuse_second(self) -> None:
        if self._busy:
            raise OptionError("this session is already replying; open another with engine.new_session()")

    def _check(self, prompt: list[int], options: GenerationOptions) -> int:
        """The most tokens the reply may have."""
        if not prompt:
            raise OptionError("the prompt is empty; give it at least one token")
        vocabulary = self.engine.config.vocab_size
        if bad := next((t for t in prompt if not 0 <= t < vocabulary), None):
            raise OptionError(f"token {bad} is outside the model's vocabulary of {vocabulary}")
        room = self.context - len(prompt)
        wanted = options.max_tokens or 1
        if room < wanted:
            raise ContextError(
                f"the prompt has {len(prompt)} tokens and the reply may have {wanted}, together "
                f"{len(prompt) + wanted}, but the context is {self.context}; shorten the prompt or load with "
                "a larger --context"
            )
        return min(options.max_tokens or room, room)

    def _reply(
        self,
        prompt: list[int],
        options: GenerationOptions,
        acceptance: Acceptance,
        limit: int,
        progress: ProgressCallback | None,
    ) -> Iterator[Response]:
        engine = self.engine
        self._refuse_second()
        self._busy = True
        watch = _Watch(self._cancelled, self.schedule, engine.config.layers, progress)
        stats = Stats(prompt_tokens=len(prompt), dial=engine.plan.dial)
        stats.acceptance, stats.lossless = acceptance.name, acceptance.lossless
        writer = _Writer(engine, options, limit, stats)
        clock = _Clock(engine, stats)
        try:
            stats.reused_tokens = self._reuse(prompt)
            fresh = prompt[stats.reused_tokens :]
            noise, sampler = Noise(options.seed), Sampler(options)
            context = Context(prompt, check=watch.check)
            if acceptance.name == "ratio":
                context = replace(context, sampler=sampler, noise=noise)

            def advance(done: int) -> None:
                self.tokens = prompt[: stats.reused_tokens + done]
                if progress is not None:
                    progress(Progress("prefill", done, len(fresh), "tokens"))

            with suppress(Cancelled):
                with engine.one_pass:
                    logits = prefill(engine.target, self.cache, fresh, watch, advance)
                    self.schedule.begin(context, limit)  # sessions share a draft model
                root = sampler.pick(logits, noise, len(prompt))
                clock.first_token()
                yield from writer.write([root], drafted=0)
                outcomes = decode(engine.target, self.cache, root, acceptance, noise, watch)
                while not writer.finished:
                    with engine.one_pass:
                        outcome = next(outcomes)
                    self.tokens += [root, *outcome.tokens[:-1]]
                    root = outcome.tokens[-1]
                    clock.cycle(outcome)
                    stats.drafter_damaged = self.schedule.damaged
                    yield from writer.write(outcome.tokens, drafted=outcome.accepted)
                    engine.reconsider(self, len(outcome.tokens), watch.check)
            if not writer.finished:
                clock.measure()
                yield writer.cancelled()
        finally:
            # A tree may have been accepted beyond the reply's end. Plain decoding never computes that, and
            # the next prompt must find the same prefix either way.
            self._keep(len(prompt) + max(0, stats.reply_tokens - 1))
            if self.released.alive:
                engine.learn(self.schedule)
            self._busy = False
            watch.close()

    def _keep(self, length: int) -> None:
        """Forget what lies behind `length` positions."""
        if not self.released.alive:
            return  # closed in the middle of a reply
        length = min(length, len(self.tokens), self.cache.length)
        self.cache.truncate(length)
        self.tokens = self.tokens[:length]

    def _reuse(self, prompt: list[int]) -> int:
        """Truncate the cache to what it shares with the prompt, leaving at least one token to compute."""
        shared = 0
        for ours, theirs in zip(self.tokens, prompt[:-1], strict=False):
            if ours != theirs:
                break
            shared += 1
        self._keep(shared)
        return shared


class _Watch:
    """Between a pass and the schedule: hears of cancellation at every chunk, shows progress."""

    def __init__(
        self, cancelled: threading.Event, schedule: Schedule, layers: int, progress: ProgressCallback | None
    ) -> None:
        self.cancelled = cancelled
        self.schedule = schedule
        self.layers = layers
        self.progress = progress
        self.next_tree = schedule.next_tree
        self.begin = schedule.begin
        self.settle = schedule.settle

    @property
    def damaged(self) -> bool:
        return self.schedule.damaged

    def close(self) -> None:
        """Forget the schedule. Its drafters know this watch, and a circle would keep the KV cache of a closed
        session in memory until Python looks for circles."""
        del self.schedule, self.next_tree, self.begin, self.settle

    def check(self) -> None:
        if self.cancelled.is_set():
            raise Cancelled("the reply was cancelled")

    def on_chunk(self) -> None:
        self.check()

    def on_layer(self, index: int, hidden: Tensor, rows: Rows) -> None:
        if self.progress is not None:
            self.progress(Progress("layers", index + 1, self.layers, "layers"))
        self.schedule.on_layer(index, hidden, rows)

    def on_wait(self) -> bool:
        self.check()
        return self.schedule.on_wait()


class _Writer:
    """Turns tokens into responses until the reply is over: EOS, a stop string, or the limit."""

    def __init__(self, engine: Engine, options: GenerationOptions, limit: int, stats: Stats) -> None:
        self.text = Detokenizer(engine.tokenizer, options.stop, continues=True)
        self.eos = engine.eos
        self.limit = limit
        self.stats = stats
        self.finished = False

    def write(self, tokens: Sequence[int], drafted: int) -> Iterator[Response]:
        """One response a token, the first `drafted` of which came from the drafter."""
        for place, token in enumerate(tokens):
            self.stats.reply_tokens += 1
            reason = None
            if token in self.eos:
                text, reason = self.text.finish(), "stop"
            else:
                text = self.text.add(token)
                if self.text.stopped:
                    reason = "stop"
                elif self.stats.reply_tokens == self.limit:
                    text, reason = text + self.text.finish(), "length"
            self.finished = reason is not None
            yield Response(text, token, place < drafted, reason, stats=self.stats)
            if self.finished:
                return

    def cancelled(self) -> Response:
        self.finished = True
        return Response(self.text.finish(), None, False, "cancelled", stats=self.stats)


class _Clock:
    """Fills in the measured part of the stats."""

    def __init__(self, engine: Engine, stats: Stats) -> None:
        self.engine = engine
        self.stats = stats
        self.began = perf_counter()
        self.bytes = engine.bytes_read
        self.decode_began = self.began
        self.decode_bytes = self.bytes

    def first_token(self) -> None:
        self.decode_began = perf_counter()
        self.decode_bytes = self.engine.bytes_read
        self.stats.prefill_seconds = self.decode_began - self.began
        self.stats.cycles = 1
        self.measure()

    def cycle(self, outcome: Outcome) -> None:
        self.stats.cycles += 1
        self.stats.drafted += outcome.drafted
        self.stats.accepted += outcome.accepted
        self.measure()

    def measure(self) -> None:
        now = self.engine.bytes_read
        self.stats.bytes_read = now - self.bytes
        if self.stats.cycles:
            self.stats.decode_seconds = perf_counter() - self.decode_began
            self.stats.decode_bytes_read = now - self.decode_bytes
        self.stats.peak_memory = self.engine.peak_memory()
