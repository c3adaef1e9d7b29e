"""Draft, then verify, then draft again."""

from __future__ import annotations

from collections.abc import Callable
from time import perf_counter
from typing import TYPE_CHECKING, Any

from edgespec.config import EngineOptions
from edgespec.core.acceptance import Outcome
from edgespec.core.schedule import UNDRAFTED, Context, Controller, Offer, Place, TreeBudget
from edgespec.core.trace import Cycle, Overlap
from edgespec.core.tree import TokenTree
from edgespec.drafters.base import Drafter, Elsewhere, Root, Watching
from edgespec.drafters.combined import without_models
from edgespec.errors import Cancelled, ModelError
from edgespec.runtimes.rows import Rows
from edgespec.runtimes.target import NO_LAYER, Layers

if TYPE_CHECKING:
    from torch import Tensor


class Plain:
    """No drafting: every tree is its root alone. See `core.schedule.Schedule`."""

    name = "plain"
    damaged = False
    undrafted: str | None = None
    offer: Offer | None = None
    hears: Layers = NO_LAYER

    def begin(self, context: Context, limit: int) -> None:
        pass

    def next_tree(self, root: int) -> TokenTree:
        self.tree = TokenTree.root(root)
        return self.tree

    def settle(self, outcome: Outcome) -> Cycle:
        return Cycle(None, self.tree, outcome, 0.0, outcome.seconds)

    def end(self) -> None:
        pass

    def lesson(self) -> Controller | None:
        return None

    def give_back(self, reason: str) -> None:
        pass

    def on_chunk(self) -> None:
        pass

    def on_layer(self, index: int, hidden: Tensor, rows: Rows) -> None:
        pass

    def on_wait(self) -> bool:
        return False


def make(drafter: Drafter, controller: Controller, options: EngineOptions, place: Place) -> Serial:
    """See `schedules.kinds.Make`."""
    return Serial(drafter, controller, options.tree_nodes)


class Serial:
    """The drafter works while the target rests, as much as the controller thinks worth its time. See
    `core.schedule.Schedule`."""

    name = "serial"

    def __init__(
        self, drafter: Drafter, controller: Controller, nodes: int, clock: Callable[[], float] = perf_counter
    ) -> None:
        """`nodes`: of the largest tree that the target's cache has room for; `clock` in seconds."""
        self.drafter = drafter
        self.controller = controller
        self.nodes = nodes
        self.clock = clock
        self.damaged = False
        self.overlap: Overlap | None = None
        self._given_back: str | None = None
        self._deaf = False  # in this pass,
        self._missed = False  # and in the one before: the drafter has not seen the last position
        self._idle = False  # the controller pauses in this cycle
        # Of idle cycles that follow others: roots and outcomes, for the drafter when it is asked again.
        # Behind a pass whatever is touched comes from memory, and the drafters of sixty-four are much.
        self._untold: list[tuple[int, Outcome]] = []
        self._silent = False  # it need not be told of this cycle

    @property
    def drafter(self) -> Drafter:
        return self._drafter

    @drafter.setter
    def drafter(self, drafter: Drafter) -> None:
        self._drafter = drafter
        # Asked once: of a protocol it takes 20 us, and would be asked in each cycle and layer.
        self._watcher = drafter if isinstance(drafter, Watching) else None
        self._forgoes = self._watcher is not None and self._watcher.forgoes
        self._elsewhere = drafter if isinstance(drafter, Elsewhere) else None

    @property
    def hears(self) -> Layers:
        return NO_LAYER if self._watcher is None or self._deaf else self._watcher.hears

    @property
    def undrafted(self) -> str | None:
        return self._given_back or self.controller.refusal

    @property
    def offer(self) -> Offer | None:
        if (gains := self.controller.gains(self.tree)) is None:
            return None
        return UNDRAFTED if self._idle else Offer(gains, self.passes, self.draft_seconds)

    def begin(self, context: Context, limit: int) -> None:
        self.left = limit - 1  # the first token comes from the prompt's own pass
        self._missed = False  # which was heard
        self._tell()
        try:
            self.drafter.prefill(context)
        except ModelError:
            self._drop_models()
            self.drafter.prefill(context)
        self._leave_lost()

    def next_tree(self, root: int) -> TokenTree:
        self.root, self.tree, self.passes, self.draft_seconds = root, TokenTree.root(root), None, 0.0
        goes_on, self._idle = self._idle, self.controller.pauses
        self._silent = goes_on and self._idle and self._elsewhere is None
        if not self._idle:
            began = self.clock()
            self._tell()
            # Every outcome has a bonus token, so the deepest useful node is the last token but one.
            limit = TreeBudget(self.nodes, self.left - 1, passes=0)
            budget = self._able(self.controller.budget(limit, self.drafter.passes))
            if budget is not None and self.drafter.passes:
                self.passes = budget.passes
                self.tree = self.controller.prune(self._draft(root, budget))
            self.draft_seconds = self.clock() - began
        self._rest()
        return self.tree

    def _able(self, budget: TreeBudget | None) -> TreeBudget | None:
        """A model that has not heard the latest pass hears the next one first. So none is heard before a
        refusal that is followed by another."""
        return None if budget is not None and budget.passes and self._missed else budget

    def _rest(self) -> None:
        """Nobody asks for drafts behind this tree: what the drafter can do without costs the pass nothing."""
        self._deaf = self._forgoes and self.controller.rests
        if self._watcher is not None and not self._deaf:
            self._tell()  # of passes that were not heard, before one that is

    def _tell(self) -> None:
        untold, self._untold = self._untold, []
        for root, outcome in untold:
            self.drafter.commit(root, outcome)

    def _draft(self, root: int, budget: TreeBudget, goes_on: bool = False) -> TokenTree:
        """`goes_on`: another round will go on with this one."""
        drafting = self.drafter.start([Root((root,))], budget)
        try:
            while drafting.step():
                pass
            if goes_on:
                drafting.stop()
            return drafting.tree()
        except ModelError:
            drafting.cancel()
            self._drop_models()
            return TokenTree.root(root)
        except BaseException:
            drafting.cancel()
            raise

    def settle(self, outcome: Outcome) -> Cycle:
        told = self.passes, self.tree, outcome, self.draft_seconds, outcome.seconds
        predicted = self.controller.speedup
        self._untold.append((self.root, outcome))
        if self._idle:
            self.controller.rested()
        else:
            self.controller.record(Cycle(*told, overlap=self.overlap, predicted=predicted))
        if not self._silent or not (self._watcher is None or self._deaf):
            self._tell()
            self._leave_lost()
        self._missed, self._deaf = self._deaf, False
        self.left -= len(outcome.tokens)
        return Cycle(*told, self.controller.took, self.overlap, predicted)

    def end(self) -> None:
        self._tell()
        self._deaf = False
        if self._elsewhere is not None:
            self._elsewhere.rest()

    def lesson(self) -> Controller | None:
        return None if self.controller.took is None else self.controller

    def give_back(self, reason: str) -> None:
        self.drafter, self._given_back = without_models(self.drafter), reason

    def _leave_lost(self) -> None:
        if self._elsewhere is None or (why := self._elsewhere.lost) is None:
            return
        if self._elsewhere.damaged:
            self._drop_models()
        else:
            self.give_back(why)

    def _safely(self, work: Callable[..., bool | None], *arguments: Any) -> bool:
        """Do it while the target verifies. Whatever goes wrong ends the drafting, and not the pass: but for
        Cancelled."""
        try:
            return bool(work(*arguments))
        except Cancelled:
            raise
        except ModelError:
            self._drop_models()
        except Exception as error:
            self.give_back(f"it failed while the target verified ({type(error).__name__}: {error})")
        return False

    def _drop_models(self) -> None:
        self.damaged, self.drafter = True, without_models(self.drafter)

    def on_chunk(self) -> None:
        pass

    def on_layer(self, index: int, hidden: Tensor, rows: Rows) -> None:
        if self._watcher is not None and not self._deaf:
            self._safely(self._watcher.on_layer, index, hidden, rows)

    def on_wait(self) -> bool:
        return False
