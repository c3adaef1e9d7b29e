"""One pass of the target over parts of several conversations: their trees, or blocks of their prompts.

Rows of all parts share the matmuls, and each part gets exactly the bits of a pass of its own: a tree's rows
stay within one row class, a prompt's block is multiplied in one piece (docs/exactness.md). What goes wrong
with one part (its observer, its acceptance, NaN) becomes that part's `error` and is no matter to the others.
"""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field
from itertools import pairwise
from typing import TYPE_CHECKING, Any, ClassVar

import numpy as np

from edgespec.core.acceptance import Acceptance, Logits, Outcome
from edgespec.core.sampling import IntArray, Noise
from edgespec.core.schedule import Offer
from edgespec.core.tree import Computed, TokenTree
from edgespec.errors import ModelError
from edgespec.runtimes.base import PREFILL_ROWS, Seat
from edgespec.runtimes.rows import Rows
from edgespec.runtimes.target import PassObserver, Target

if TYPE_CHECKING:
    from torch import Tensor


@dataclass(eq=False)
class _Part:
    """What one conversation wants of a pass; after it, there is a result or the `error`."""

    cache: Any  # a seat of whoever computes it: here a KVCache
    observer: PassObserver | None = field(default=None, kw_only=True)
    rows: Rows | None = field(default=None, init=False)  # while the pass is under way
    error: BaseException | None = field(default=None, init=False)

    def raise_error(self) -> None:
        error, self.error = self.error, None  # by its traceback it knows this part: no circles
        if error is not None:
            try:
                raise error
            finally:
                del error


@dataclass(eq=False)
class Verification(_Part):
    """A tree, and after the pass its `outcome`, whose path is committed. Of a tree with an `offer` the pass
    may leave nodes out; the tree is then what it has verified."""

    phase: ClassVar[str] = "verify"  # `core.trace.Phase`
    tree: TokenTree
    acceptance: Acceptance
    noise: Noise
    offer: Offer | None = None
    outcome: Outcome | None = field(default=None, init=False)

    def __len__(self) -> int:
        return len(self.tree)

    @property
    def least(self) -> int:
        """Rows that it needs in any case."""
        return len(self.tree) if self.offer is None else 1

    @property
    def judged(self) -> int:
        """Last rows that are looked at."""
        return len(self.tree)

    @property
    def order(self) -> tuple[bool, int]:
        """Of the parts in a pass: as they came, and before blocks of prompts."""
        return False, 0

    @property
    def tokens(self) -> IntArray:
        return self.tree.tokens

    @property
    def starts(self) -> IntArray:
        """[n] layers that each row has been run through."""
        return self.tree.starts

    @property
    def until(self) -> None:
        """Through all layers, in one pass."""

    @property
    def computed(self) -> Computed | None:
        return self.tree.computed

    def result(self) -> Outcome:
        """The outcome; raises the error."""
        self.raise_error()
        assert self.outcome is not None, "not judged yet"
        return self.outcome

    def open(self) -> None:
        """A row for each node; slot i of the cache is node i."""
        if self.tree.computed is None:
            self.rows = Rows.append(self.cache, self.tree.parents)
        else:
            written, layers = self.tree.computed.slots, int(self.tree.starts.max())
            self.rows = Rows.of(self.cache, self.cache.adopt(self.tree.parents, written, layers))

    def commit(self) -> None:
        """What is accepted is, by `judge`."""

    def judge(self, logits: Logits) -> None:
        """Walk the tree by what follows each node, [n, V]."""
        outcome = self.acceptance.walk(self.tree, logits, self.noise, self.cache.length + 1)
        self.cache.commit(outcome.path)
        self.outcome = outcome


@dataclass(eq=False)
class PrefillBlock(_Part):
    """Some tokens of a prompt, [n <= PREFILL_ROWS], committed as soon as the layers are through. After the
    pass the `last` block of a prompt has the `logits` [V] of what follows its last token; or, where these
    stay on a server, the token that it has `chosen` by them.

    A `patient` one may be taken through its layers in several passes, so that each is hardly longer for those
    who go on beside it: in the next one from the `at`th on and `until` another (None: through all). In each
    layer it is computed in one piece, so no bits depend on where it rests.
    """

    phase: ClassVar[str] = "prefill"
    tokens: Sequence[int]
    last: bool = True
    logits: Logits | None = field(default=None, init=False)
    chosen: int | None = field(default=None, init=False)
    patient: bool = field(default=False, init=False)
    at: int = field(default=0, init=False)
    until: int | None = field(default=None, init=False)
    hidden: Tensor | None = field(default=None, init=False)  # [n, d] behind the first `at` layers
    computed: ClassVar[None] = None

    def __len__(self) -> int:
        return len(self.tokens)

    @property
    def least(self) -> int:
        return len(self.tokens)

    @property
    def judged(self) -> int:
        return int(self.last and self.until is None)

    @property
    def order(self) -> tuple[bool, int]:
        return True, len(self.tokens)

    @property
    def starts(self) -> IntArray:
        return np.full(len(self), self.at, dtype=np.int64)

    def result(self) -> Logits:
        """The logits, of a last block; raises the error."""
        self.raise_error()
        assert self.logits is not None, "no prompt ends here"
        return self.logits

    def open(self) -> None:
        self.rows = Rows.append(self.cache, np.arange(-1, len(self) - 1), prefill=True)

    def commit(self) -> None:
        if self.until is None:
            self.cache.commit(np.arange(len(self)))

    def rest(self, hidden: Tensor) -> None:
        """The pass has taken it so far, where it has these states."""
        self.at, self.hidden = self.until or 0, None if self.until is None else hidden.clone()

    def judge(self, logits: Logits) -> None:
        (self.logits,) = logits


Part = Verification | PrefillBlock


def blocks(
    cache: Seat, tokens: Sequence[int], observer: PassObserver | None = None, together: int = 1
) -> Iterator[PrefillBlock]:
    """A prompt, cut as its bits need it. together: for who cuts it so himself, so many in one piece."""
    for start in range(0, len(tokens), together * PREFILL_ROWS):
        stop = start + together * PREFILL_ROWS
        yield PrefillBlock(cache, tokens[start:stop], stop >= len(tokens), observer=observer)


def run_pass(target: Target, parts: Sequence[Part], observer: PassObserver | None = None) -> None:
    """One pass over parts of different caches; `observer` hears all of it
    (`core.observers.FanOut`).

    Each part has its result, or its own error, after it. What is raised concerns them all (Ctrl-C, the disk).
    Either way every cache is at its committed length.
    """
    try:
        for part in parts:
            alone(part, part.open)
        # Short blocks first: their rows may share the trees' matmuls (`kernels.matmul.ragged`).
        able = sorted((p for p in parts if p.error is None), key=lambda p: p.order)
        if able:
            _run(target, able, observer)
    finally:
        for part in parts:
            part.cache.truncate(part.cache.length)
            part.rows = None


def attempt(work: Callable[..., None], *arguments: Any) -> BaseException | None:
    """Do what concerns one conversation only, and return what it raises. But a Ctrl-C, which may come at any
    moment in the main thread, is meant for all, and raised."""
    try:
        work(*arguments)
    except BaseException as error:
        if isinstance(error, KeyboardInterrupt) and threading.current_thread() is threading.main_thread():
            raise
        return error
    return None


def alone(part: Part, work: Callable[..., None], *arguments: Any) -> None:
    """What this raises is the part's own error."""
    if (error := attempt(work, *arguments)) is not None:
        part.error = error


def _run(target: Target, parts: Sequence[Part], observer: PassObserver | None) -> None:
    rows = Rows.concat([part.rows for part in parts if part.rows is not None])
    tokens = np.concatenate([part.tokens for part in parts])
    starts = np.concatenate([part.starts for part in parts])
    layers = target.config.layers
    stops = np.concatenate([np.full(len(part), part.until or layers) for part in parts])
    hidden = _states(target, rows, tokens, starts, parts)
    if observer is not None and all(part.computed is None for part in parts):
        begin = np.flatnonzero(starts == 0)  # others have rested behind some layer
        if len(begin) == rows.n:
            observer.on_layer(-1, hidden, rows)
        elif len(begin):
            observer.on_layer(-1, hidden[begin], rows.take(begin))
    # A row enters the pass at the layer that its drafter, or the pass before, has come to; each layer is run
    # once, for all rows that are there.
    for first, stop in pairwise(sorted({*starts.tolist(), *stops.tolist()})):
        there = np.flatnonzero((starts <= first) & (first < stops))
        if len(there) == rows.n:
            hidden = target.run(hidden, rows, range(first, stop), observer)
        elif len(there):
            ran = target.run(hidden[there], rows.take(there), range(first, stop), observer)
            hidden = hidden.clone()  # what a target gives must not be written to
            hidden[there] = ran
    for part, span in zip(parts, rows.segments, strict=True):
        if part.error is None:
            alone(part, part.commit)
            if isinstance(part, PrefillBlock):
                part.rest(hidden[span.start : span.stop])
    ends = [(part, span[-part.judged :]) for part, span in zip(parts, rows.segments, strict=True)]
    _judge(target, hidden, [(part, span) for part, span in ends if part.judged], observer)


def _states(target: Target, rows: Rows, tokens: IntArray, starts: IntArray, parts: Sequence[Part]) -> Tensor:
    """The hidden state with which each row enters, [n, d]."""
    fresh = np.flatnonzero(starts == 0)
    if len(fresh) == rows.n:
        return target.embed(tokens)
    known = [(span, c) for span, p in zip(rows.segments, parts, strict=True) if (c := p.computed) is not None]
    resting = [
        (span, p.hidden)
        for span, p in zip(rows.segments, parts, strict=True)
        if isinstance(p, PrefillBlock) and p.hidden is not None
    ]
    some = [c.hidden for _, c in known] + [states for _, states in resting]
    hidden = some[0].new_empty((rows.n, target.config.hidden_size))
    for span, states in resting:
        hidden[span.start : span.stop] = states
    if len(fresh):
        hidden[fresh] = target.embed(tokens[fresh])
    for segment, computed in known:
        nodes = np.flatnonzero(computed.slots >= 0)
        hidden[segment.start + nodes] = computed.hidden[computed.slots[nodes]]
    return hidden


def _judge(
    target: Target,
    hidden: Tensor,
    spans: Sequence[tuple[Part, range]],
    observer: PassObserver | None,
) -> None:
    """Give each of these parts the logits of its rows of `hidden` [n, d]."""
    asking = [(part, span) for part, span in spans if part.error is None]
    if not asking:
        return
    wanted = np.concatenate([np.arange(span.start, span.stop) for _, span in asking])
    rows = hidden if len(wanted) == len(hidden) else hidden[wanted]
    try:
        logits: Logits = target.logits(rows, observer).cpu().numpy()
    except ModelError:  # NaN: whose?
        if len(asking) == 1:
            raise
        for part, span in asking:
            alone(part, _judge, target, hidden, [(part, span)], part.observer)
        return
    done = 0
    for part, span in asking:
        own, done = logits[done : done + len(span)], done + len(span)
        if part.error is None:  # it may have been cancelled on the way through the head
            alone(part, part.judge, own)
