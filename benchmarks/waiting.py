"""Drafting while the target verifies, on small models, where a pass waits for as long as so many nodes take.

They are drafted by the numbers of nodes, so every way to draft has exactly as many, and nothing is timed."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, Any

from benchmarks.common import Row
from edgespec.config import GenerationOptions
from edgespec.control.fixed import Fixed
from edgespec.core.acceptance import Outcome, make_acceptance
from edgespec.core.decode import Chooser, Decoding, decode
from edgespec.core.sampling import Noise, Sampler
from edgespec.core.schedule import TreeBudget
from edgespec.core.trace import Cycle
from edgespec.drafters.base import Drafter
from edgespec.engine import Engine
from edgespec.runtimes.base import KVCache
from edgespec.runtimes.rows import Rows
from edgespec.schedules.mirror import Mirror
from edgespec.schedules.serial import Serial
from edgespec.schedules.ssd import Ssd

if TYPE_CHECKING:
    from torch import Tensor

LONGEST = 160  # tokens of a reply
NODES = 64  # of a verified tree, at most
DEPTH = 23  # of it
PRICE = 0.025  # of a pass of drafting that is waited for, in target's passes

Make = Callable[[KVCache, Drafter, Fixed], Serial]
"""A schedule for a conversation."""


class Waiting(Ssd):
    """Its target's passes wait for as long as `waits` nodes take to draft."""

    def __init__(self, waits: int, drafter: Drafter, controller: Fixed, **named: Any) -> None:
        super().__init__(drafter, controller, NODES, **named)
        self.waits = waits
        self.ranks: list[tuple[bool, int]] = []  # the tree had been prepared; place of the outcome

    def settle(self, outcome: Outcome) -> Cycle:
        while self._ahead is not None and self._ahead.nodes < self.waits and self.on_wait():
            pass
        if self._ahead is not None and (rank := self._ahead.rank(outcome)) is not None:
            self.ranks.append((self.overlap.hit is True, rank))
        return super().settle(outcome)


class Exiting(Mirror):
    """As `Waiting`, each of the target's layers waiting as long as another. What the exit takes is free."""

    def __init__(self, waits: int, layers: int, *rest: Any) -> None:
        super().__init__(*rest)
        self.waits, self.each = waits, waits / layers

    def on_layer(self, index: int, hidden: Tensor, rows: Rows) -> None:
        self._waited = True
        super().on_layer(index, hidden, rows)
        if rows.prefill:
            return
        while self._ahead is not None and self._ahead.nodes < (index + 1) * self.each and self.on_wait():
            pass


def reply(
    engine: Engine,
    tokens: Sequence[int],
    make: Make,
    passes: int,
    accepting: str = "greedy",
    temperature: float = 0.0,
) -> tuple[Row, Serial]:
    """What is said to `tokens`, with so many passes of drafting in a cycle, prepared or not, and its
    schedule."""
    options = GenerationOptions(temperature=temperature, seed=0)
    seat = engine.verifier.new_seat(len(tokens) + LONGEST)
    drafter = engine.resident[0].drafter(seat, engine.config.vocab_size)
    schedule = make(seat, drafter, Fixed(TreeBudget(NODES, DEPTH, passes)))
    chooser = Chooser(Sampler(options), Noise(0), make_acceptance(accepting, options))
    row = dict.fromkeys(("tokens", "cycles", "passes", "hits", "lookups", "found", "asked", "named"), 0)
    decoding = Decoding(engine.verifier, seat, tokens, chooser, schedule, LONGEST, observer=schedule)
    said: list[int] = []
    for cycle in decode(decoding):
        said += cycle.outcome.tokens
        row["cycles"] += 1
        row["passes"] += cycle.passes or 0
        over = cycle.overlap
        if over is not None and over.hit is not None:
            row["hits"] += over.hit
            row["lookups"] += 1
            row["found"] += over.found
        if over is not None and over.exited is not None:
            row["asked"] += over.exited.tokens
            row["named"] += over.exited.found
        if len(said) >= LONGEST - 1 or engine.eos.intersection(cycle.outcome.tokens):
            break
    return {**row, "tokens": len(said), "said": said}, schedule
