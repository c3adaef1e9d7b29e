"""Drafting while the target verifies, on small models, where a pass waits for as long as so many nodes take.

They are drafted by the numbers of nodes, so every way to draft has exactly as many, and nothing is timed."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, Any

import numpy as np

from benchmarks.common import Row
from benchmarks.tables import interval
from edgespec.config import GenerationOptions
from edgespec.control.fixed import Fixed
from edgespec.core.acceptance import Outcome, make_acceptance
from edgespec.core.decode import Chooser, Decoding, decode
from edgespec.core.sampling import FloatArray, IntArray, Noise, Sampler
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
TREE_DEPTH = 23  # of it
PRICE = 0.025  # of a pass of drafting that is waited for, in target's passes

Make = Callable[[KVCache, Drafter, Fixed], Serial]
"""A schedule for a conversation."""


def columns(row: Row, *keys: str) -> IntArray:
    """[keys, prompts]"""
    return np.array([[each[key] for each in row["replies"]] for key in keys])


def hit_share(row: Row, drawn: IntArray) -> FloatArray:
    """[draws], of prompts drawn [draws, prompts]."""
    hits, lookups = columns(row, "hits", "lookups")[:, drawn].sum(-1)
    return np.asarray(hits / lookups)


def speed(row: Row, price: float, drawn: IntArray) -> FloatArray:
    """[draws] tokens a target's pass, where one of drafting that was waited for takes `price` of it."""
    tokens, cycles, passes = columns(row, "tokens", "cycles", "passes")[:, drawn].sum(-1)
    return np.asarray(tokens / (cycles + price * passes))


def with_interval(figure: Callable[[IntArray], FloatArray], prompts: int, form: str) -> str:
    """A figure of all prompts, and its 95 % interval over their choice; of prompts drawn as above."""
    ends = interval(prompts, figure)
    whole = form.format(float(figure(np.arange(prompts)[None])[0]))
    return f"{whole} ({'–'.join(map(form.format, ends))})"


def more_hits(row: Row, base: Row) -> str:
    """Of the same prompts."""
    count = len(base["replies"])
    return with_interval(lambda drawn: hit_share(row, drawn) - hit_share(base, drawn), count, "{:+.3f}")


def times_as_fast(row: Row, base: Row, price: float) -> str:
    """Of the same prompts; price: see `speed`."""
    count = len(base["replies"])
    return with_interval(lambda drawn: speed(row, price, drawn) / speed(base, price, drawn), count, "{:.3f}")


def wait(schedule: Ssd, nodes: float) -> None:
    """Until so many have been drafted in this pass, or there is nothing more to draft."""
    while (ahead := schedule._ahead) is not None and ahead.nodes < nodes and schedule.on_wait():
        pass


class Waiting(Ssd):
    """Its target's passes wait for as long as `waits` nodes take to draft."""

    def __init__(self, waits: int, drafter: Drafter, controller: Fixed, **named: Any) -> None:
        super().__init__(drafter, controller, NODES, **named)
        self.waits = waits
        self.ranks: list[tuple[bool, int]] = []  # the tree had been prepared; place of the outcome

    def settle(self, outcome: Outcome) -> Cycle:
        wait(self, self.waits)
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
        if not rows.prefill:  # the layer was waited for, and then computed
            wait(self, (index + 1) * self.each)
        super().on_layer(index, hidden, rows)


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
    schedule = make(seat, drafter, Fixed(TreeBudget(NODES, TREE_DEPTH, passes)))
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
