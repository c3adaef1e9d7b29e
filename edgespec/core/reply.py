"""One reply under way: the prompt, then cycle after cycle, as text and as statistics."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from time import perf_counter
from typing import TYPE_CHECKING, Any, Protocol

from edgespec.config import EngineOptions, GenerationOptions
from edgespec.core.acceptance import Acceptance
from edgespec.core.batch import Part, PrefillBlock, Verification
from edgespec.core.decode import Chooser, Decoding
from edgespec.core.sampling import Noise, Sampler
from edgespec.core.schedule import Schedule
from edgespec.core.trace import Cycle, Layer, Phase, Trace
from edgespec.core.verify import Cancellation, Verifier
from edgespec.core.writer import Writer
from edgespec.progress import Progress, ProgressCallback
from edgespec.response import Response, Stats
from edgespec.runtimes.base import Seat
from edgespec.runtimes.rows import Rows
from edgespec.runtimes.target import EVERY_LAYER, NO_LAYER, Layers, any_of
from edgespec.text.tokenizer import Tokenizer

if TYPE_CHECKING:
    from torch import Tensor


class ModelShape(Protocol):
    """What conversations need to know of the model; see `runtimes.config.ModelConfig`."""

    @property
    def layers(self) -> int: ...

    @property
    def vocab_size(self) -> int: ...

    @property
    def max_context(self) -> int: ...


class SessionHost(Protocol):
    """What conversations need of the engine that they are on."""

    tokenizer: Tokenizer
    options: EngineOptions
    eos: frozenset[int]
    drafters: tuple[str, ...]

    @property
    def config(self) -> ModelShape: ...

    @property
    def verifier(self) -> Verifier[Any]: ...

    @property
    def closed(self) -> bool: ...

    @property
    def dial(self) -> int | None:
        """Bytes that the process may use; None = as many as there are."""

    @property
    def bytes_read(self) -> int:
        """From flash so far."""

    def peak_memory(self) -> int:
        """Bytes that the process has used at most."""

    def after_cycle(self, schedule: Schedule, cycle: Cycle, check: Callable[[], None]) -> None:
        """Between two cycles of a conversation: memory may change hands. `check` raises Cancelled."""

    def learn(self, schedule: Schedule) -> None:
        """A reply is over: the next conversation begins with what it taught."""


class Reply:
    """The work of one reply, and what there is to tell of it."""

    def __init__(
        self,
        host: SessionHost,
        prompt: list[int],
        options: GenerationOptions,
        acceptance: Acceptance,
        limit: int,
        progress: ProgressCallback | None,
        trace: Trace | None,
    ) -> None:
        """`limit`: the most tokens it may have."""
        self.host, self.prompt, self.limit = host, prompt, limit
        self.safe = len(prompt)  # of its tokens, that may leave this machine
        self.progress, self.trace = progress, trace or Trace()
        self.chooser = Chooser(Sampler(options), Noise(options.seed), acceptance)
        self.cancellation = Cancellation()
        self.stats = Stats(prompt_tokens=len(prompt), dial=host.dial)
        self.stats.acceptance, self.stats.lossless = acceptance.name, acceptance.lossless
        self.writer = Writer(host.tokenizer, host.eos, options, limit, self.stats)
        self.clock = _Clock(host, self.stats)
        self.cycle: Cycle | None = None  # the latest; None in the prompt
        self.over = False

    def begin(self, seat: Seat, schedule: Schedule) -> None:
        """From the seat's length on; no pass yet. Raises Cancelled."""
        self.cancellation.check()
        self.clock.start()
        reused = self.stats.reused_tokens = seat.length
        self.fresh = len(self.prompt) - reused
        self.schedule, self.stats.schedule = schedule, schedule.name
        layers, check = self.host.config.layers, self.cancellation.check
        self.observer = _Observer(self.cancellation, schedule, layers, self.progress, self.trace)
        self.observer.drafting = False  # the schedule is at the reply before, which may have been cancelled
        private = self.safe < len(self.prompt)
        how = self.chooser, schedule, self.limit, self.observer, self.trace, check, private
        self.decoding = Decoding(self.host.verifier, seat, self.prompt, *how)

    def leave(self) -> None:
        """Its conversation is closed: let go of what holds memory of that, whoever holds the reply."""
        for name in ("schedule", "observer", "decoding"):
            self.__dict__.pop(name, None)
        self.cycle = None

    @property
    def root(self) -> int:
        """The token said last; -1 = none yet."""
        return self.decoding.root

    def ask(self) -> Part:
        """What it wants of the next pass. Raises Cancelled."""
        self.cancellation.check()
        self.tell()
        return self.decoding.ask()

    def answer(self, part: Part) -> Iterator[Response]:
        """What the part has given: responses to be, as they are asked for. `cycle` has the rest of it."""
        seat = self.decoding.seat
        if self.progress is not None and isinstance(part, PrefillBlock) and part.error is None:
            done = self.fresh - (len(self.prompt) - seat.length)
            self.progress(Progress("prefill", done, self.fresh, "tokens"))
        self.cycle = self.decoding.answer(part)
        if self.cycle is not None:
            self._record(self.cycle)
            return self.writer.write(self.cycle.outcome.tokens, drafted=self.cycle.outcome.accepted)
        if self.root < 0:
            return iter(())
        self.observer.drafting = True
        self.clock.first_token()
        return self.writer.write([self.root], drafted=0)

    def tell(self) -> None:
        """See `core.decode.Decoding`. A draft model that reads the prompt now is the prompt's time."""
        began = perf_counter()
        if self.decoding.tell():
            self.clock.prompt_took(perf_counter() - began)

    def answer_late(self, part: Verification) -> Iterator[Response]:
        """As `answer`, of a tree that somebody has spoken behind meanwhile; what was said stays verified."""
        self.cycle = self.decoding.answer_late(part, self.writer.tokens)
        self._record(self.cycle)
        return self.writer.write(self.cycle.outcome.tokens, drafted=self.cycle.outcome.accepted)

    def say(self, tokens: Sequence[int], verified: bool) -> Iterator[Response]:
        """Tokens that somebody else has said: responses to be, as they are asked for."""
        if not self.stats.reply_tokens:
            self.clock.first_token()
        return self.writer.write(tokens, drafted=0 if verified else len(tokens), verified=verified)

    def cut_short(self) -> Response:
        """The last response of a reply that nobody can go on with."""
        self.clock.measure()
        return self.writer.ended("length")

    def go_on(self) -> None:
        """Behind all that was said, whoever said it. Raises Cancelled."""
        self.decoding.go_on(self.writer.tokens)
        self.observer.drafting = True

    def _record(self, cycle: Cycle) -> None:
        self.stats.drafter_damaged, self.stats.undrafted = self.schedule.damaged, self.schedule.undrafted
        self.clock.cycle(cycle)
        if self.trace.cycle is not None:
            self.trace.cycle(cycle)

    def cancelled(self) -> Response:
        """The last response of a reply that was broken off."""
        self.clock.measure()
        return self.writer.ended("cancelled")


TOLD = 8  # of so many layers progress is told at least once, and of the last one


class _Observer:
    """What happens while a pass is under way, for one reply; see `runtimes.target.PassObserver`."""

    def __init__(
        self,
        cancellation: Cancellation,
        schedule: Schedule,
        layers: int,
        progress: ProgressCallback | None,
        trace: Trace,
    ) -> None:
        self.cancellation, self.schedule, self.layers = cancellation, schedule, layers
        self.progress, self.trace = progress, trace
        self._told = NO_LAYER if progress is None else frozenset((*range(TOLD - 1, layers, TOLD), layers - 1))
        self.drafting = True  # its waits are the schedule's

    @property
    def hears(self) -> Layers:
        return EVERY_LAYER if self.trace.layer is not None else any_of([self.schedule.hears, self._told])

    def on_chunk(self) -> None:
        self.cancellation.check()

    def on_layer(self, index: int, hidden: Tensor, rows: Rows) -> None:
        if self.progress is not None and index >= 0:
            self.progress(Progress("layers", index + 1, self.layers, "layers"))
        if self.trace.layer is not None and index >= 0:
            self.trace.layer(Layer(index, rows.n, perf_counter()))
        self.schedule.on_layer(index, hidden, rows)

    def on_wait(self) -> bool:
        self.cancellation.check()
        began = perf_counter()
        worked = self.drafting and self.schedule.on_wait()
        if worked and self.trace.phase is not None:
            self.trace.phase(Phase("draft in a wait", True, began))
            self.trace.phase(Phase("draft in a wait", False, perf_counter()))
        return worked


class _Clock:
    """Fills in the measured part of the stats."""

    def __init__(self, host: SessionHost, stats: Stats) -> None:
        self.host = host
        self.stats = stats
        self.start()

    def start(self) -> None:
        self.began = self.decode_began = perf_counter()
        self.bytes = self.decode_bytes = self.host.bytes_read

    def first_token(self) -> None:
        self.decode_began = perf_counter()
        self.decode_bytes = self.host.bytes_read
        self.stats.prefill_seconds = self.decode_began - self.began
        self.stats.cycles = 1
        self.measure()

    def prompt_took(self, seconds: float) -> None:
        """So much more, behind its token."""
        self.stats.prefill_seconds += seconds
        self.decode_began += seconds

    def cycle(self, cycle: Cycle) -> None:
        self.stats.cycles += 1
        self.stats.drafted += cycle.outcome.drafted
        self.stats.accepted += cycle.outcome.accepted
        if cycle.took is not None and cycle.predicted is not None:
            self.stats.plain_cycles += cycle.took
            self.stats.predicted_tokens += cycle.took * cycle.predicted
        self.stats.schedules[cycle.schedule] = self.stats.schedules.get(cycle.schedule, 0) + 1
        if (overlap := cycle.overlap) is not None:
            self.stats.cache_hits += overlap.hit is True
            self.stats.cache_misses += overlap.hit is False
            self.stats.drafted_while_verifying += overlap.nodes
            self.stats.fallbacks += overlap.fallback
            if (exited := overlap.exited) is not None:
                told = self.stats.early_exit
                told.layers, told.kappa, told.cycles = exited.layers, exited.kappa, told.cycles + 1
                told.tokens, told.found = told.tokens + exited.tokens, told.found + exited.found
                if (law := exited.law) is not None:
                    told.timed, told.law_seconds = told.timed + 1, told.law_seconds + law.predicted
                    told.measured_seconds += law.took
                    for name in ("late", "before", "early", "behind", "draft", "final"):
                        told.terms[name] = told.terms.get(name, 0.0) + getattr(law, name)
        self.measure()

    def measure(self) -> None:
        now = self.host.bytes_read
        self.stats.bytes_read = now - self.bytes
        if self.stats.cycles:
            self.stats.decode_seconds = perf_counter() - self.decode_began
            self.stats.decode_bytes_read = now - self.decode_bytes
        self.stats.peak_memory, self.stats.dial = self.host.peak_memory(), self.host.dial
