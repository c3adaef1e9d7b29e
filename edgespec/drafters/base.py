"""What a drafter is: whoever proposes continuations, as token trees. Needs no torch.

A drafter belongs to one conversation and follows its tokens:

    prefill ── start ─ step ─ step … ─ tree ── commit ── start …    (a plain cycle has a commit alone)
                          ├ stop (the outcome is there: what was drafted below it is kept by `commit`)
                          └ cancel (interrupted: everything drafted is dropped)

`start` takes several *roots*, because a schedule may draft while the target is still verifying, for each
outcome it thinks likely. Who is `Foreseeing` finds these outcomes itself. A *pass* of drafting says what
follows some nodes; a *step* is the part of it that fits into a wait for flash. Drafters speak token ids and
never see text; what they propose cannot change what the target says, only how fast.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Protocol, runtime_checkable

from edgespec.core.acceptance import Outcome
from edgespec.core.schedule import Context, TreeBudget
from edgespec.core.tree import TokenTree
from edgespec.runtimes.target import NO_LAYER, Layers

if TYPE_CHECKING:
    from torch import Tensor

    from edgespec.runtimes.rows import Rows


@dataclass(frozen=True)
class Root:
    """Where a tree hangs: `path` [>= 1] are the tokens behind the committed ones, the last of them the root.

    More than one while the target is verifying: a predicted path, then the predicted bonus token. `logprob`
    [nats] is how likely that outcome is believed to be.
    """

    path: tuple[int, ...]
    logprob: float = 0.0

    @property
    def token(self) -> int:
        return self.path[-1]


class Drafting(Protocol):
    """One round of drafting under way."""

    def step(self) -> bool:
        """Do one unit of work, milliseconds; False = there was nothing left to do."""

    def tree(self, root: int = 0) -> TokenTree:
        """The best tree so far for the given root; the root alone before the first step."""

    def stop(self) -> None:
        """Do no more, and keep what is drafted for the drafter's next `commit`."""

    def cancel(self) -> None:
        """Do no more, and drop all that is drafted; the drafter can start again."""


class Drafter(Protocol):
    """One conversation's source of drafts."""

    @property
    def resident(self) -> bool:
        """It drafts with what a `drafters.resident.Resident` holds in memory: not when that is closed, or its
        model has computed NaN."""

    @property
    def passes(self) -> range:
        """Numbers of draft passes that make sense: range(1) for a drafter whose drafts are free."""

    def prefill(self, context: Context) -> None:
        """A reply begins. The context may share any part of what was committed before, or nothing."""

    def start(self, roots: Sequence[Root], budget: TreeBudget) -> Drafting:
        """Begin a tree for each root; ends the round before. Nothing expensive happens before `step`."""

    def commit(self, root: int, outcome: Outcome) -> None:
        """`root` and the outcome's accepted tokens are committed; its bonus token is the next root."""


class DraftingAhead(Protocol):
    """Drafting under way while a tree is verified; `step`, `stop` and `cancel` as of `Drafting`."""

    @property
    def passes(self) -> int:
        """Of its model that this process has made so far."""

    @property
    def nodes(self) -> int:
        """That were drafted so far."""

    def rank(self, outcome: Outcome) -> int | None:
        """How many outcomes with as many accepted tokens were thought likelier than this one; None where
        nobody has asked what follows its last node. Until it is committed."""

    def step(self) -> bool: ...

    def stop(self) -> None: ...

    def cancel(self) -> None: ...


@runtime_checkable
class Hearing(DraftingAhead, Protocol):
    """Can be told meanwhile what somebody else thinks follows the verified nodes: other outcomes, and others
    likelier."""

    def expect(self) -> None:
        """Somebody will speak: leave room for what only he thinks of."""

    def hear(self, said: Mapping[int, Mapping[int, float]], trust: float) -> None:
        """What follows nodes of the verified tree: by node, log-probabilities by token. `trust` (0...1): how
        much of what is believed is his word; the rest is the drafter's own."""

    def believed(self, node: int, token: int) -> float | None:
        """The probability that the drafter itself gives to a token behind a verified node; 0 = it never
        thought of it, None = it does not tell, and learns by itself how much to trust."""

    @property
    def seconds(self) -> float | None:
        """Of drafting in another process since it has heard; None = it is in this one, in waits."""


@runtime_checkable
class Foreseeing(Protocol):
    """A drafter that can prepare for the outcomes of a tree while that is verified."""

    @property
    def width(self) -> int:
        """Nodes that one pass of it goes on from, before the target verifies."""

    def prepared(self) -> bool:
        """For the outcome that was committed last. A round begun now goes on with what was prepared, and has
        it without a pass. May wait for somebody, as far as is sensible; raises Cancelled."""

    def ahead(self, tree: TokenTree, budget: TreeBudget, fan_out: Sequence[int] = ()) -> DraftingAhead:
        """Draft below the outcomes of `tree`, which the latest round has drafted, others may have added to,
        and is being verified; `budget.depth` is of the deepest node, from its root on, `budget.nodes` of the
        tree that will be asked for next. `fan_out`: of how many outcomes, by the number of accepted tokens;
        (): best first over all. Ends the round before, which was stopped. Nothing expensive happens before
        `step`."""


@runtime_checkable
class Elsewhere(Protocol):
    """A drafter that drafts in another process, which may be lost."""

    @property
    def lost(self) -> str | None:
        """Why it will never draft again, for the user; None = it is there."""

    @property
    def damaged(self) -> bool:
        """It is lost because its model computed NaN."""

    def rest(self) -> None:
        """A reply is over, however it ended: what is under way for it has no use any more."""


@runtime_checkable
class Watching(Protocol):
    """A drafter that also learns from the target's own passes, its prompts' among them."""

    forgoes: bool  # positions that it has not heard of are left out for good; else it computes them again

    @property
    def hears(self) -> Layers:
        """As of `runtimes.target.PassObserver`."""

    def on_layer(self, index: int, hidden: Tensor, rows: Rows) -> None:
        """Likewise."""


def committed(root: int, outcome: Outcome) -> list[int]:
    """The tokens that an outcome commits."""
    return [root, *outcome.tokens[:-1]]


def shared_prefix(ours: Sequence[int], theirs: Sequence[int]) -> int:
    """How many tokens two sequences begin with alike."""
    for place, (a, b) in enumerate(zip(ours, theirs, strict=False)):
        if a != b:
            return place
    return min(len(ours), len(theirs))


class Cancelling:
    """A drafter's passes end where the reply is cancelled; see `runtimes.target.PassObserver`."""

    hears: Layers = NO_LAYER

    def __init__(self, check: Callable[[], None]) -> None:
        self.check = check  # raises Cancelled

    def on_chunk(self) -> None:
        self.check()

    def on_layer(self, index: int, hidden: Tensor, rows: Rows) -> None:
        self.check()  # a low-bit copy has no chunks

    def on_wait(self) -> bool:
        return False
