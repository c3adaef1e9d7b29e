"""What a process that drafts for another one does, message by message.

A conversation has a seat at the desk. Whoever waits for an answer comes first; while nobody does, it drafts
ahead for whoever's tree is being verified. A worker process has one desk, a draft server one for each
connection. Needs no torch.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, field, replace
from math import exp, inf
from time import monotonic

import numpy as np

from edgespec.config import GenerationOptions
from edgespec.control.early_exit import Trust
from edgespec.core.acceptance import Outcome
from edgespec.core.sampling import Noise, Sampler
from edgespec.core.schedule import Context, TreeBudget
from edgespec.core.tree import TokenTree
from edgespec.devices.probe import peak_memory
from edgespec.drafters.base import Drafting, DraftingAhead, Hearing, Root
from edgespec.drafters.channel import (
    Beat,
    Cancel,
    Close,
    Commit,
    Committed,
    Draft,
    Expect,
    GoAhead,
    Hear,
    Load,
    Nonsense,
    Open,
    Prefill,
    Request,
    Sent,
    Stop,
    Trees,
    Worked,
)
from edgespec.drafters.model import ModelDrafter
from edgespec.drafters.sent_trees import as_heard, as_received, as_sent
from edgespec.errors import Cancelled

BEAT = 0.02  # seconds of work, after which it says that it is at work: well within `beside.SILENCE`


@dataclass
class _Seat:
    """A conversation."""

    drafter: ModelDrafter
    vocabulary: int
    drafting: Drafting | DraftingAhead | None = None  # the latest round
    asked: tuple[Draft, Drafting] | None = None  # that round, while somebody waits for it
    ahead: DraftingAhead | None = None  # that round, while it has something to do
    nodes: int = 0  # of it
    began: float = 0.0  # of the latest round
    hearing: Hearing | None = None  # the latest round ahead, until its outcome is committed,
    verified: TokenTree | None = None  # below whose outcomes that is,
    said: Mapping[int, Mapping[int, float]] = field(default_factory=dict)  # and what the early exit said
    trust: Trust = field(default_factory=Trust)
    seconds: float = 0.0  # of drafting ahead, as of `channel.Beat`


class Desk:
    """Does what messages say, one after the other."""

    def __init__(
        self,
        say: Callable[[Sent], None],
        open_drafter: Callable[[int, int], ModelDrafter],
        recalls: Callable[[int], bool] = lambda seat: False,
        peak: Callable[[], int] = peak_memory,
    ) -> None:
        """open_drafter, peak: see `Opened`. recalls: see `inbox.Inbox`."""
        self.say, self.open_drafter, self.recalls, self.peak = say, open_drafter, recalls, peak
        self.seats: dict[int, _Seat] = {}
        self._said = 0.0  # when it was last said that it is at work

    @property
    def idle(self) -> bool:
        """Nothing is to be done until the next message."""
        return not any(seat.asked or seat.ahead for seat in self.seats.values())

    def work(self) -> None:
        """A step for each who waits for an answer; where there is none, for each that drafts ahead."""
        waited_for = [seat for seat in self.seats.values() if seat.asked is not None]
        for seat in waited_for:
            self._draft_on(seat)
        if waited_for:
            return
        for number, seat in self.seats.items():
            if seat.ahead is None:
                continue
            began = monotonic()
            ahead, worked = seat.ahead, seat.ahead.step()
            seat.seconds += monotonic() - began
            if not worked:
                self._end_ahead(number, seat)
            if seat.nodes != ahead.nodes:
                seat.nodes = ahead.nodes
                self.say(Beat(number, 0, seat.nodes, seat.seconds))

    def take(self, message: Request) -> None:
        """Raises Nonsense for what makes no sense now, and whatever the model raises."""
        if isinstance(message, Load):
            raise Nonsense("a model is open already")
        if isinstance(message, Open):
            drafter = self.open_drafter(message.capacity, message.vocabulary)
            self.seats[message.seat] = _Seat(drafter, message.vocabulary)
            return
        seat = self.seats.get(message.seat)
        if seat is None:
            raise Nonsense(f"there is no conversation {message.seat}")
        if isinstance(message, (Expect, Hear)):
            self._hear(seat, message)
            return
        self._end_ahead(message.seat, seat)
        self._answer(seat)  # whatever comes now, nobody waits for more
        if isinstance(message, Close):
            del self.seats[message.seat]
        elif isinstance(message, Prefill):
            self._prefill(seat, message)
        elif isinstance(message, Draft):
            self._draft(seat, message)
        elif isinstance(message, GoAhead):
            verified = as_received(message.tree, seat.vocabulary)
            seat.ahead = seat.drafter.ahead(verified, TreeBudget(message.nodes, message.depth, 0))
            seat.drafting, seat.nodes, seat.seconds = seat.ahead, 0, 0.0
            seat.began = monotonic()
            seat.hearing = seat.ahead if isinstance(seat.ahead, Hearing) else None
            seat.verified, seat.said = verified, {}
        elif isinstance(message, Commit):
            self._judge(seat, message.tokens)
            outcome = Outcome(np.arange(len(message.tokens)), tuple(message.tokens))
            seat.drafter.commit(message.root, outcome)
            self.say(Committed(message.question, seat.drafter.prepared(), self.peak()))
        elif seat.drafting is not None:
            if isinstance(message, Stop):
                seat.drafting.stop()
            elif isinstance(message, Cancel):
                seat.drafting.cancel()
                seat.hearing = None

    def _hear(self, seat: _Seat, message: Expect | Hear) -> None:
        if seat.hearing is None or seat.verified is None or seat.drafting is not seat.hearing:
            raise Nonsense("nothing is drafted ahead")
        if isinstance(message, Expect):
            seat.hearing.expect()
            return
        seat.said = as_heard(message.said, len(seat.verified), seat.vocabulary)
        seat.hearing.hear(seat.said, seat.trust.share)
        if seat.ahead is None:  # it had nothing left to do
            seat.ahead, seat.began = seat.hearing, monotonic()
        seat.seconds = 0.0

    def _judge(self, seat: _Seat, tokens: Sequence[int]) -> None:
        """Learn by the tokens that came how much to trust who spoke."""
        tree, hearing, node = seat.verified, seat.hearing, 0
        seat.verified = seat.hearing = None
        if tree is None or hearing is None:
            return
        for token in tokens:
            if node in seat.said and (own := hearing.believed(node, token)) is not None:
                seat.trust.learn(exp(seat.said[node].get(token, -inf)), own)
            below = tree.children(node)
            follows = below[tree.tokens[below] == token]
            if not len(follows):
                return
            node = int(follows[0])

    def _prefill(self, seat: _Seat, message: Prefill) -> None:
        options = GenerationOptions(
            temperature=message.temperature, top_p=message.top_p, top_k=message.top_k, min_p=message.min_p
        )
        context = Context(
            message.tokens,
            Sampler(options),
            Noise(message.seed),
            keyed=message.keyed,
            check=lambda: self._beat(message.seat, 0),
        )

        def read_on() -> None:
            if self.recalls(message.seat):
                raise Cancelled
            context.check()

        seat.drafting = seat.hearing = None
        with suppress(Cancelled):  # the rest is read when it is needed
            seat.drafter.prefill(replace(context, check=read_on))
        seat.drafter.context = context

    def _draft(self, seat: _Seat, message: Draft) -> None:
        roots = [Root(tuple(root.path), root.logprob) for root in message.roots]
        budget = TreeBudget(message.nodes, message.depth, message.passes, price=message.price)
        drafting = seat.drafter.start(roots, budget)
        seat.drafting, seat.asked, seat.began = drafting, (message, drafting), monotonic()

    def _draft_on(self, seat: _Seat) -> None:
        assert seat.asked is not None
        asked, drafting = seat.asked
        if drafting.step():
            self._beat(asked.seat, asked.question)
        else:
            self._answer(seat)

    def _answer(self, seat: _Seat) -> None:
        """With what there is so far, where something was asked."""
        if seat.asked is not None:
            (asked, drafting), seat.asked = seat.asked, None
            trees = [as_sent(drafting.tree(root)) for root in range(len(asked.roots))]
            self._tell(asked.seat, seat, False, sum(len(tree.tokens) - 1 for tree in trees))
            self.say(Trees(asked.question, trees))

    def _end_ahead(self, number: int, seat: _Seat) -> None:
        if seat.ahead is not None:
            nodes, seat.ahead = seat.ahead.nodes, None
            self._tell(number, seat, True, nodes)

    def _tell(self, number: int, seat: _Seat, ahead: bool, nodes: int) -> None:
        """Of a round that is over."""
        self.say(Worked(number, ahead, nodes, int(1e6 * (monotonic() - seat.began))))

    def _beat(self, seat: int, question: int) -> None:
        now = monotonic()
        if now - self._said > BEAT:
            self._said = now
            self.say(Beat(seat, question, self.seats[seat].nodes, self.seats[seat].seconds))
