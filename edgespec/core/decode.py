"""The core loop: propose a tree, verify it in one pass of the target, keep what the target agrees with.

Plain decoding is the same loop with trees of one node. A prompt comes before it, block by block. This module
speaks token ids; text stays at the edge. Who runs the passes is somebody else: `decode` for one conversation
by itself, a `core.batcher.Batcher` for many.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, replace
from time import perf_counter

from edgespec.core.acceptance import Acceptance
from edgespec.core.batch import Part, PrefillBlock, Verification, blocks
from edgespec.core.sampling import Noise, Sampler
from edgespec.core.schedule import Context, Schedule
from edgespec.core.trace import Cycle, Trace
from edgespec.core.verify import Verifier
from edgespec.runtimes.base import Seat
from edgespec.runtimes.target import PassObserver


@dataclass(frozen=True)
class Chooser:
    """How a reply's tokens are chosen."""

    sampler: Sampler
    noise: Noise
    acceptance: Acceptance

    def first(self, last: PrefillBlock, position: int) -> int:
        """The token at absolute `position`, behind a prompt whose last block this is."""
        last.raise_error()
        if last.chosen is not None:
            return last.chosen
        return self.sampler.pick(last.result(), self.noise, position)

    def context(self, prompt: Sequence[int], check: Callable[[], None], private: bool = False) -> Context:
        """What drafters are told of it."""
        drawn, keyed = (self.acceptance.name == name for name in ("ratio", "sample"))
        return Context(prompt, self.sampler, self.noise, drawn, keyed, check, private)


class Decoding:
    """A reply as tokens: what it wants of the next pass, and what came of it. `root` is the token said last,
    -1 while the prompt is not all committed."""

    def __init__(
        self,
        verifier: Verifier[Seat],
        seat: Seat,
        prompt: Sequence[int],
        chooser: Chooser,
        schedule: Schedule,
        limit: int,
        observer: PassObserver | None = None,
        trace: Trace | None = None,
        check: Callable[[], None] = lambda: None,
        private: bool = False,
    ) -> None:
        """prompt: all of it, more than the seat has committed. limit: of the reply, in tokens. observer: of
        its rows in passes; the schedule hears of them only through it. check: raises Cancelled. private: see
        `Context`."""
        self.verifier, self.seat, self.prompt, self.chooser = verifier, seat, prompt, chooser
        self.schedule, self.limit, self.observer = schedule, limit, observer
        self.trace, self.check, self.private = trace or Trace(), check, private
        self.root = -1
        self._settling = 0.0  # seconds: of learning from the latest draft
        self._told = True  # the schedule has been, of the prompt
        self._blocks = deque(blocks(seat, prompt[seat.length :], observer, verifier.together))

    def ask(self) -> Part:
        """Its part of the next pass: a block of the prompt, or a tree."""
        if self._blocks:
            return self._blocks[0]
        self.tell()
        with self.verifier.turn:
            self.check()  # it may have been cancelled, and its engine closed, meanwhile
            with self.trace.telling("draft"):
                tree = self.schedule.next_tree(self.root)
        chooser, offer = self.chooser, self.schedule.offer
        if offer is not None and offer.passes is not None:
            offer = replace(offer, seconds=offer.seconds + self._settling)
        return Verification(self.seat, tree, chooser.acceptance, chooser.noise, offer, observer=self.observer)

    def answer(self, part: Part) -> Cycle | None:
        """The part has been computed: what the cycle gave, None in the prompt. Raises the part's error."""
        if isinstance(part, PrefillBlock):
            part.raise_error()
            self._blocks.popleft()
            if part.last:
                self._begin(part)
            return None
        outcome = part.result()
        self.schedule.tree = part.tree
        began = perf_counter()
        cycle = self.schedule.settle(outcome)
        self._settling = 0.0 if cycle.passes is None else perf_counter() - began
        self.root = cycle.outcome.bonus
        return cycle

    def go_on(self, said: Sequence[int]) -> None:
        """The reply is `said` so far, whoever has said it, and the seat has it, but for the last token."""
        self._blocks.clear()
        with self.verifier.turn:
            self.check()
            prompt = [*self.prompt, *said[:-1]]
            self._tell(prompt, self.limit - len(said) + 1)
        self.root = said[-1]

    def answer_late(self, part: Verification, said: Sequence[int]) -> Cycle:
        """As `answer`, of a tree behind `said`, whose drafter has gone on by itself meanwhile: the schedule
        begins anew behind it."""
        outcome = part.result()
        self.go_on([*said, *outcome.tokens])
        return Cycle(None, part.tree, outcome, 0.0, outcome.seconds)

    def tell(self) -> bool:
        """The schedule hears of a prompt that is all committed; False = it has, before. That can wait until
        the first token is said; but who drafts with others hears before any of them drafts."""
        if self._told:
            return False
        with self.verifier.turn:  # conversations share a draft model
            self.check()
            self._tell(self.prompt, self.limit)
        return True

    def _begin(self, last: PrefillBlock) -> None:
        self.check()
        self.root, self._told = self.chooser.first(last, len(self.prompt)), False

    def _tell(self, text: Sequence[int], limit: int) -> None:
        self._told = True
        self.schedule.begin(self.chooser.context(text, self.check, self.private), limit)


def decode(decoding: Decoding) -> Iterator[Cycle]:
    """One conversation by itself: its prompt, and then cycles for ever."""
    while True:
        part = decoding.ask()
        with decoding.trace.telling(part.phase):
            decoding.verifier.compute([part])
        if (cycle := decoding.answer(part)) is not None:
            yield cycle
