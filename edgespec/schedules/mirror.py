"""Draft for what the target is about to say, as its own early exit tells it: Mirror-SD (arXiv 2510.13161).

    target   layers 1 ... l ──────────┬─ layers l + 1 ... N ────────────────────────── head │ ...
               ▓ wait ▓ wait          │ exit: norm, head        ▓ wait ▓ wait ▓ wait        │ outcome
    exit                              └───► top-k tokens and log-probabilities a row        │
    drafter    by its own guesses           └► below these outcomes, and its own ───────────┴► hit: go on
                                                                                               miss: draft

This is the ssd schedule, its cache and its lookup, with a *token channel*: behind layer l_e the states of the
tree under verification leave the target for its own head, and the kappa likeliest tokens behind each node, as
ids and log-probabilities and nothing else, re-rank the outcomes that are prepared for and add some (section
3.1). How much the exit is believed beside the drafter is learned from what each said of tokens that came.

The head is multiplied block by block in the waits behind layer l_e, for the likeliest `EXIT_ROWS` nodes: a
chunk of the pass may be late by one, as it may be by a step of drafting. A trained adapter, where there is
one (`adapters=`), comes before it. While the exit has not spoken, half of the drafter's room is left for what
it will say. Where nobody waits (a target that is resident, on the same cores) neither it nor the drafter gets
a turn, and this is the serial schedule: `auto` takes that there. A draft worker (`draft_worker=`) needs no
waits: what the exit says goes over its pipe, and it drafts beside the layers that follow. A target that never
waits then asks its exit at once, as in the paper. A head that streams is in nobody's memory: the drafter's
own guesses are all there is, which is the ssd schedule, and `undrafted` says so.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from math import exp, inf
from time import perf_counter
from typing import TYPE_CHECKING

import numpy as np
from numpy.typing import NDArray

from edgespec.config import EngineOptions
from edgespec.control.early_exit import OverlapBudget, Trust
from edgespec.control.overlap import Mirrored
from edgespec.core.acceptance import Outcome
from edgespec.core.schedule import Context, Controller, Place
from edgespec.core.trace import Cycle, Exited, Law
from edgespec.core.tree import TokenTree
from edgespec.drafters.base import Drafter, Hearing
from edgespec.drafters.continuations import following, possible, rows_at_once
from edgespec.errors import OptionError
from edgespec.runtimes.base import EXIT_ROWS, DraftPass
from edgespec.runtimes.config import ModelConfig
from edgespec.runtimes.rows import Rows
from edgespec.runtimes.target import EVERY_LAYER, EarlyExit, Layers
from edgespec.schedules.ssd import Ssd

if TYPE_CHECKING:
    from torch import Tensor


def make(drafter: Drafter, controller: Controller, options: EngineOptions, place: Place) -> Mirror:
    """See `schedules.kinds.Make`."""
    assert place.target is not None, "edgespec.connect refuses it"
    layers = place.target.config.layers
    exit = place.exit or place.target.early_exit(options.exit_layer or layers // 2)
    moves = layers if options.exit_layer == 0 else 0
    own = exit, options.kappa, moves, options.fallback, options.schedule == "auto"
    return Mirror(drafter, controller, options.tree_nodes, *own)


def check(options: EngineOptions, config: ModelConfig) -> None:
    """Raises OptionError where this model has no such exit."""
    layers, vocabulary = config.layers, config.vocab_size
    if layers < 2:
        raise OptionError(
            f"the model has {layers} layer, and an early exit lies between two; use schedule=ssd"
        )
    if options.exit_layer is not None and options.exit_layer >= layers:
        raise OptionError(
            f"exit_layer is {options.exit_layer}, and the model has {layers} layers: an early exit lies "
            f"behind 1 to {layers - 1} of them; use exit_layer={layers // 2}, half of them, or leave it out",
            "exit_layer",
        )
    if options.exit_layer == 0 and options.adapters is not None:
        raise OptionError(
            "exit_layer is 0, so the early exit would move, and an adapter stays behind the layer that it "
            "was trained for; leave exit_layer= or adapters= out",
            "exit_layer",
        )
    if options.kappa > vocabulary:
        raise OptionError(
            f"kappa is {options.kappa}, and the model's vocabulary has {vocabulary} tokens; use kappa=8, or "
            "leave it out",
            "kappa",
        )


class Mirror(Ssd):
    """See the module and `core.schedule.Schedule`."""

    name = "mirror"

    def __init__(
        self,
        drafter: Drafter,
        controller: Controller,
        nodes: int,
        exit: EarlyExit,
        kappa: int = 8,
        moves: int = 0,
        fallback: str = "jit",
        weighs: bool = False,
        clock: Callable[[], float] = perf_counter,
    ) -> None:
        """kappa: tokens that the exit says follow a row. moves: the target's layers, if the exit is to lie as
        late as the drafting, as measured, stays hidden behind it; 0 = it stays where it is. weighs: pass by
        pass it is the controller that says whether the exit is asked, and this is ssd where it is not. Others
        as `Ssd`."""
        super().__init__(drafter, controller, nodes, fallback, clock=clock)
        self.exit, self.kappa, self.weighs = exit, kappa, weighs
        self.name = "ssd" if weighs else "mirror"
        self.trust = Trust()
        self.budget = OverlapBudget(moves) if moves else None
        self._passing = Passing()
        self._waited = False  # in any pass of this conversation

    @property
    def hears(self) -> Layers:
        return EVERY_LAYER  # what it costs until which layer

    def _rest(self) -> None:
        """It would hear all the same."""

    @property
    def undrafted(self) -> str | None:
        reason = super().undrafted
        if reason is not None or self.weighs or not self.drafter.resident or self.exit.able:
            return reason
        return "the LM head is read from flash, so the early exit says nothing: drafters guess without it"

    def begin(self, context: Context, limit: int) -> None:
        self._context, self._length = context, len(context.tokens)
        self._passing = Passing()
        super().begin(context, limit)

    def next_tree(self, root: int) -> TokenTree:
        self._passing = Passing()
        tree = super().next_tree(root)
        ahead = self._ahead
        if isinstance(ahead, Hearing) and self.exit.able and (not self.weighs or self.controller.asks()):
            ahead.expect()
            self._passing.asks = True
            self.overlap = replace(self.overlap, asked=True)
        return tree

    def on_layer(self, index: int, hidden: Tensor, rows: Rows) -> None:
        super().on_layer(index, hidden, rows)
        if not rows.prefill and index >= 0:
            self._passing.layers.append(self.clock())
        if index + 1 == self.exit.layers and self.drafter.resident:
            self._safely(lambda: self._observe(hidden, rows))
            if self._passing.observed and not self._waited:
                self._ask_at_once()

    def _ask_at_once(self) -> None:
        """Of a target that never waits: for a worker, which has cores or a device of its own."""
        now, began = self._passing, self.clock()
        beside = isinstance(self._ahead, Hearing) and self._ahead.seconds is not None
        while beside and now.said is None and self._safely(self._ask):
            now.at_once = True
        now.early += self.clock() - began

    def _observe(self, hidden: Tensor, rows: Rows) -> bool:
        # Memory changes hands between two passes: the head may have left since the exit was to speak.
        self._passing.observed = self._passing.asks and not rows.prefill and self.exit.able
        self.exit.observe(hidden, rows)
        return True

    def _commit(self, path: Sequence[int]) -> bool:
        self.exit.commit(path)
        return True

    def on_wait(self) -> bool:
        """A part of what the exit says, once the pass is there; else a step of drafting."""
        now, self._waited = self._passing, True
        if self._ahead is None or not now.observed:
            return super().on_wait()
        began = self.clock()
        if now.said is None:
            worked = self._safely(self._ask)
            now.early += self.clock() - began
        else:
            worked = super().on_wait()
            now.draft += self.clock() - began
        return worked

    def _ask(self) -> bool:
        now, tree = self._passing, self.tree
        if now.asking is None:
            likeliest = np.argsort(-tree.scores, kind="stable")[:EXIT_ROWS]
            now.nodes = np.sort(likeliest).tolist()
            now.asking = self.exit.begin(now.nodes)
        if now.logits is None:
            if now.asking.advance():
                now.logits = now.asking.logits
            return True
        first = len(now.named)
        part = slice(first, first + rows_at_once(now.logits.shape[1]))
        positions = [self._length + int(tree.depths[node]) + 1 for node in now.nodes[part]]
        found = following(now.logits[part], self.kappa, self._context, positions)
        now.named |= {node: possible(*row) for node, *row in zip(now.nodes[part], *found, strict=True)}
        if len(now.named) == len(now.nodes):
            assert isinstance(self._ahead, Hearing)
            now.said, now.logits, now.before = now.named, None, self._ahead.nodes
            self._ahead.hear(now.said, self.trust.share)
        return True

    def settle(self, outcome: Outcome) -> Cycle:
        now = self._passing
        alone = self.controller.alone(len(self.tree) + outcome.beside)
        asked = found = 0
        if now.said is not None and isinstance(self._ahead, Hearing):
            for node, token in zip(outcome.path.tolist(), outcome.tokens, strict=True):
                if node in now.said:
                    heard = exp(now.said[node].get(token, -inf))
                    if (own := self._ahead.believed(node, token)) is not None:
                        self.trust.learn(heard, own)
                    asked, found = asked + 1, found + (heard > 0)
            now.draft += self._ahead.seconds or 0.0
        began = self.clock()
        if self.drafter.resident:
            self._safely(lambda: self._commit(outcome.path.tolist()))
        cycle = super().settle(outcome)
        self._length += len(outcome.tokens)
        final = self.clock() - began
        if not asked or cycle.overlap is None:
            return cycle
        layers = self.exit.layers
        law = None
        if alone is not None:
            law = now.law(layers, outcome.seconds, alone, cycle.draft_seconds, final)
        if self.budget is not None:
            self.budget.add(now.layer_seconds, cycle.overlap.nodes - now.before, now.draft)
            window = self.kappa * max(1, int(self.tree.depths.max()))
            self.exit.layers = self.budget.layers(window) or layers
        exited = Exited(layers, self.kappa, asked, found, law)
        return replace(cycle, overlap=replace(cycle.overlap, exited=exited))


class Passing:
    """What happens in one pass; seconds."""

    def __init__(self) -> None:
        self.asks = False  # the exit is to speak
        self.observed = False  # the pass has come to it
        self.nodes: list[int] = []  # that it is asked about
        self.asking: DraftPass | None = None
        self.logits: NDArray[np.float32] | None = None  # [nodes, V], while they are looked through
        self.named: dict[int, dict[int, float]] = {}  # log-probabilities, by node and token
        self.said: Mapping[int, Mapping[int, float]] | None = None  # all of it
        self.layers: list[float] = []  # when each layer ended
        self.at_once = False  # it was asked by who computes, and not in waits
        self.before = 0  # nodes that were drafted when it had spoken
        self.early = self.draft = 0.0  # of what it says, and of drafting then, in the waits behind it

    @property
    def layer_seconds(self) -> list[float]:
        """[N >= 2] of each layer. Nobody hears when the first one begins: it counts as the mean of others."""
        others = np.diff(self.layers)
        return [float(others.mean()), *others.tolist()]

    def law(self, layers: int, seconds: float, alone: float, late: float, final: float) -> Law:
        """Equation 10 for a pass of so many seconds whose exit lies behind so many layers, and which would
        have taken `alone` by itself; its layers' shares of that are as they were in this one."""
        before = alone * min(1.0, sum(self.layer_seconds[:layers]) / seconds) if seconds else 0.0
        terms = Mirrored(before, alone - before, self.draft, self.early, final)
        step = terms.step if self.at_once else terms.in_waits
        own = late, terms.before, terms.early, terms.behind, terms.draft, terms.final
        return Law(*own, predicted=late + step, took=late + seconds + final)
