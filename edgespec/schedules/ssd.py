"""Draft while verifying: speculative speculative decoding (SSD, Saguaro), for trees and in the waits.

    serial   draft │ verify ──────────────────── │ draft │ verify ──────────────────── │ ...
    ssd      draft │ verify ─ prepare ─ prepare ─ │ verify ─ prepare ─ prepare ──────── │ ...
                     ▓▓ wait ▓▓ wait ▓▓ wait ▓▓     └ hit: the tree is there

While flash is the bottleneck, the thread that computes waits for chunk after chunk. Each wait is a step of
drafting (a layer of the draft model), below all outcomes the tree may have, likeliest first
(`drafters.ahead`). When the outcome is known, what hangs below it is the next tree; a miss is drafted for as
the fallback says. On a target that never waits a drafter in this process prepares nothing, and this is the
serial schedule; a draft worker (`drafters.beside`) needs no waits, and prepares until its outcome comes. What
is prepared cannot change what the target says.

Under `ratio` acceptance chains are drawn below the outcomes (`drafters.drawn_ahead`). What was drawn for the
one that came is verified, whatever the controller thinks of its tokens: leaving it out by these would bias.
"""

from __future__ import annotations

from collections.abc import Callable
from contextlib import suppress
from dataclasses import replace
from time import perf_counter
from typing import Any

from edgespec.config import EngineOptions
from edgespec.core.acceptance import Outcome
from edgespec.core.schedule import Context, Controller, Place, TreeBudget
from edgespec.core.trace import Cycle, Overlap
from edgespec.core.tree import TokenTree
from edgespec.drafters.base import Drafter, DraftingAhead, Foreseeing
from edgespec.drafters.growth import KNOWN
from edgespec.schedules.fan_out import CacheShape
from edgespec.schedules.serial import Serial

DEPTH = 16  # of drafts whose hits are recorded apart


def make(drafter: Drafter, controller: Controller, options: EngineOptions, place: Place) -> Ssd:
    """See `schedules.kinds.Make`."""
    shape = None
    if options.fan_out != "best-first":
        shape = CacheShape(options.fan_out, depth=DEPTH, ranks=KNOWN)
    return Ssd(drafter, controller, options.tree_nodes, options.fallback, shape, options.fan_out_budget)


class Ssd(Serial):
    """See the module and `core.schedule.Schedule`."""

    name = "ssd"

    def __init__(
        self,
        drafter: Drafter,
        controller: Controller,
        nodes: int,
        fallback: str = "jit",
        shape: CacheShape | None = None,
        outcomes: int = 64,
        clock: Callable[[], float] = perf_counter,
    ) -> None:
        """fallback: who drafts when nothing was prepared for an outcome: `jit` = the drafter, then;
            `ngram` = only what costs no passes; `none`.
        shape: which `outcomes`, so many, at least `nodes`, are prepared for; None = all, best first.
        """
        super().__init__(drafter, controller, nodes, clock)
        self.fallback, self.shape, self.outcomes = fallback, shape, outcomes
        self._ahead: DraftingAhead | None = None
        self._begun = False  # a round, for the latest tree: what it left may lie below the outcome

    def begin(self, context: Context, limit: int) -> None:
        self._ahead, self._begun, self._drawn = None, False, context.drawn
        self.overlap: Overlap = Overlap()
        super().begin(context, limit)

    def next_tree(self, root: int) -> TokenTree:
        began = self.clock()
        self.root, self.tree, self.passes = root, TokenTree.root(root), None
        # On the way here the drafter has committed the outcome: the lookup. A worker is waited for with it,
        # so nobody asks where nothing can be: in one plain cycle after the other.
        ready = self._begun and isinstance(self.drafter, Foreseeing) and self.drafter.prepared()
        self.overlap = Overlap(None if self._ahead is None else ready)
        self._ahead = None
        limit = TreeBudget(self.nodes, self.left - 1, passes=0)
        prepared = self._draft(root, limit, goes_on=True) if ready else self.tree
        width = self.drafter.width if isinstance(self.drafter, Foreseeing) else 1
        budget, kept = self.controller.overlapped(limit, self.drafter.passes, prepared, width)
        budget = self._able(budget)
        if budget is None and self._drawn and len(prepared) > 1:
            budget = replace(limit, found=len(prepared) - 1)
        if budget is not None and self.drafter.passes:
            self.tree, self.passes, late = kept, budget.passes, False
            if not ready or budget.passes or (budget.nodes, budget.depth) != (limit.nodes, limit.depth):
                tree = self._draft(root, budget, goes_on=True) if ready else self._fall_back(root, budget)
                late = self.overlap.hit is False and len(tree) > 1
                self.tree = self.controller.prune(tree)
            self.overlap = replace(self.overlap, found=budget.found, fallback=late)
            if budget.ahead and self.drafter.resident and isinstance(self.drafter, Foreseeing):
                self._ahead = self.drafter.ahead(
                    self.tree, replace(limit, nodes=budget.nodes), self._fan_out(ready)
                )
        self._begun = ready or self.passes is not None
        self._rest()
        self.draft_seconds = self.clock() - began
        return self.tree

    def _fan_out(self, hit: bool) -> list[int]:
        if self.shape is None:
            return []
        return self.shape.allocate(self.outcomes, int(self.tree.depths.max()), hit)

    def _fall_back(self, root: int, budget: TreeBudget) -> TokenTree:
        """Nothing was prepared. Where no model drafts, nothing ever is."""
        if self.fallback != "jit" and self.drafter.resident:
            budget, self.passes = replace(budget, passes=0), 0
            if self.fallback == "none":
                return TokenTree.root(root)
        return self._draft(root, budget, goes_on=True)

    def settle(self, outcome: Outcome) -> Cycle:
        if self._ahead is not None:
            self._ahead.stop()
            self.overlap = replace(self.overlap, passes=self._ahead.passes, nodes=self._ahead.nodes)
            if self.shape is not None and (rank := self._ahead.rank(outcome)) is not None:
                depth, hit = int(self.tree.depths.max()), self.overlap.hit is True
                self.shape.add(min(outcome.accepted, depth), depth, rank, hit)
        return super().settle(outcome)

    def on_wait(self) -> bool:
        """A step of drafting."""
        if self._ahead is None:
            return False
        worked = self._safely(self._ahead.step)
        self.overlap = replace(self.overlap, steps=self.overlap.steps + worked)
        return worked

    def _safely(self, work: Callable[..., bool | None], *arguments: Any) -> bool:
        """And nothing more is prepared by who has failed."""
        drafter, worked = self.drafter, super()._safely(work, *arguments)
        if self.drafter is not drafter:
            if self._ahead is not None:
                with suppress(Exception):  # it is given up, and whatever failed may fail again
                    self._ahead.cancel()
            self._ahead = None
        return worked
