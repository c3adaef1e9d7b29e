"""EAGLE as a drafter: trees over drafted features, best first, one forward a level; for `ratio`, chains."""

from __future__ import annotations

from collections.abc import Generator, Sequence
from dataclasses import replace
from typing import TYPE_CHECKING

from edgespec.core.acceptance import Outcome
from edgespec.core.schedule import Context, TreeBudget
from edgespec.core.tree import TokenTree
from edgespec.drafters.base import Drafting, DraftingAhead, Root, committed
from edgespec.drafters.eagle.rounds import EagleRounds, SharedRound, Wanted
from edgespec.drafters.eagle.runtime import EagleRuntime
from edgespec.drafters.forest import Forest, Room
from edgespec.drafters.growth import MAX_PASSES
from edgespec.drafters.rounds import go_ahead, grow
from edgespec.drafters.watch import StateWatch
from edgespec.runtimes.base import KVCache
from edgespec.runtimes.rows import Rows
from edgespec.runtimes.target import Layers

if TYPE_CHECKING:
    from torch import Tensor

LONG_TAIL = 16  # tokens that are run beside the next root; where there are more, they are followed before


class EagleDrafter:
    """See `drafters.base.Drafter`. `cache` is the conversation's own, the target's; `vocabulary`, `room`: see
    `drafters.forest.Forest`.

    What is drafted while the target verifies hangs on drafted features alone. Where that has become the next
    tree, it is run anew from the target's own before anything is drafted ahead of that: or features would
    drift.
    """

    resident = forgoes = True
    passes = range(1, MAX_PASSES + 1)
    width = 8
    ahead_width = 16

    def __init__(
        self,
        runtime: EagleRuntime,
        rounds: EagleRounds,
        cache: KVCache,
        vocabulary: int,
        room: Room | None = None,
    ) -> None:
        self.runtime, self.cache, self.rounds = runtime, cache, rounds
        self.forest = Forest(runtime, vocabulary, room)
        self.watch = StateWatch(cache, (0, runtime.target.config.layers), runtime)
        self.context = Context([])
        self.tokens: list[int] = []  # that the target has committed
        self.next: int | None = None  # the root behind them, until it is asked for
        self.round: SharedRound | None = None  # behind it, made with others' and perhaps not asked for
        self.asked: TreeBudget | None = None  # for the latest round, if that was
        rounds.join(self)

    def prefill(self, context: Context) -> None:
        with self.runtime.batch.lock:
            self.context = context
            self.tokens = [int(t) for t in context.tokens]
            self.next = self.round = self.asked = None
            self.forest.forget()
            self.runtime.forget(len(self.tokens))
            self.runtime.settle()

    def start(self, roots: Sequence[Root], budget: TreeBudget) -> Drafting:
        with self.runtime.batch.lock:
            able, made = self._able(budget), self.round
            self.asked, self.round, self.next = budget, None, None
            goes_on = self.forest.kept or self.forest.keeps
            if goes_on or len(roots) != 1 or len(roots[0].path) != 1:
                self._renew()
                return grow(self, roots, able)
            what = Wanted.of(roots[0].token, able)
            if made is not None and made.what == what:
                return made
            self._renew()
            return self.rounds.begin(self, what)

    def _renew(self) -> None:
        """A round begins; what was seen while nobody drafted, a prompt perhaps, is caught up with before."""
        goes_on = self.forest.kept or self.forest.keeps
        self.forest.renew()
        if len(self.runtime.seen) > LONG_TAIL and not goes_on:
            self.runtime.follow()

    def take(self, made: SharedRound) -> None:
        """See `eagle.rounds.Companion`."""
        self.round = made

    def expected(self) -> Wanted | None:
        """See `eagle.rounds.Companion`."""
        if self.next is None or self.asked is None or self.round is not None or self.forest.kept:
            return None
        what, self.asked = Wanted.of(self.next, self._able(self.asked)), None
        self._renew()
        return what

    def prepared(self) -> bool:
        return self.forest.kept

    def ahead(self, tree: TokenTree, budget: TreeBudget, fan_out: Sequence[int] = ()) -> DraftingAhead:
        self.asked = None
        self.forest.renew()
        if self.runtime.stale:
            self.forest.forget()
        return go_ahead(self, tree, self._able(budget), fan_out)

    def _able(self, budget: TreeBudget) -> TreeBudget:
        """Nothing, where it has not seen the last committed position."""
        return budget if self.runtime.end == len(self.tokens) else replace(budget, depth=0)

    def commit(self, root: int, outcome: Outcome) -> None:
        with self.runtime.batch.lock:
            fresh = committed(root, outcome)
            self.next, self.round = outcome.tokens[-1], None
            missed = self.runtime.end != len(self.tokens)
            if not self.watch.heard:
                if not missed:
                    self.forest.forget()
                self.tokens += fresh
                return
            if missed:
                self.forest.forget()
            path = [*self.tokens[self.runtime.length :], *fresh]
            self.watch.commit(outcome.path)
            self.forest.commit(path, outcome.tokens[-1])
            self.tokens += fresh

    @property
    def position(self) -> int:
        """See `drafters.growth.Grower`."""
        return len(self.tokens)

    def trunk(self) -> Generator[None, None, Sequence[int]]:
        """See `drafters.growth.Grower`: accepted tokens whose features came with the outcome."""
        yield from ()
        return self.tokens[self.runtime.length :]

    @property
    def hears(self) -> Layers:
        """See `drafters.base.Watching`."""
        return self.watch.hears

    def on_layer(self, index: int, hidden: Tensor, rows: Rows) -> None:
        """Likewise."""
        self.watch.on_layer(index, hidden, rows)
