"""When drafting happens, and how much of it: what the loop knows of that. Needs no torch.

A *schedule* hands out the trees of one reply, and hears what became of them. A *controller* decides for a
schedule how much is worth drafting and verifying.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import Protocol

import numpy as np

from edgespec.config import GenerationOptions
from edgespec.core.acceptance import Outcome
from edgespec.core.sampling import FloatArray, IntArray, Noise, Sampler
from edgespec.core.trace import Cycle
from edgespec.core.tree import TokenTree
from edgespec.runtimes.target import EarlyExit, PassObserver, Target


@dataclass(frozen=True)
class TreeBudget:
    """How much may be drafted. What costs no pass is drafted anyway, unless it says beforehand that it would
    not pay: tokens are what time costs."""

    nodes: int  # of a tree, the root included
    depth: int  # of the deepest node
    passes: int  # of the draft model
    found: int = 0  # passes' worth that was prepared, and is there already
    ahead: bool = False  # the drafter may go on while the tree is verified
    least: float = 0.0  # chance of acceptance that a node must have to be worth its verification
    worth: float = 0.0  # tokens beyond that, which a draft must promise to be worth its making
    price: float = 0.0  # tokens that a second of drafting costs


@dataclass(frozen=True)
class Context:
    """What a reply begins with.

    tokens: the prompt: all that the target has committed.
    sampler, noise: with which the target's own tokens are chosen.
    drawn: acceptance judges by the distribution that a token was *drawn* from (`ratio`): trees must be chains
        drawn with `sampler` and `noise`. Otherwise a tree holds the likeliest continuations.
    keyed: acceptance keeps the tokens that the target draws with `noise` (`sample`): a drafter that draws
        with the same numbers foresees them. What is kept does not depend on what was foreseen.
    check: called between blocks of long work; raises Cancelled.
    private: some of this text may not leave this machine: a drafter elsewhere hears of none of it.
    """

    tokens: Sequence[int]
    sampler: Sampler = field(default_factory=lambda: Sampler(GenerationOptions()))
    noise: Noise = field(default_factory=lambda: Noise(0))
    drawn: bool = False
    keyed: bool = False
    check: Callable[[], None] = lambda: None
    private: bool = False


@dataclass(frozen=True)
class Place:
    """Where a conversation's trees are verified. target: None = on a server. exit: a trained early exit of
    the target, if any."""

    target: Target | None
    exit: EarlyExit | None = None


@dataclass(frozen=True, eq=False)
class Offer:
    """A tree, offered to a pass that has several: it verifies the best nodes of all.

    gains: [n] the chance that each node is accepted, 1 of the root, and never above its parent's.
    passes: of drafting that it took; None = the drafter was not asked.
    seconds: that this took, and what the tree before it has taught.
    """

    gains: FloatArray
    passes: int | None = None
    seconds: float = 0.0


UNDRAFTED = Offer(np.ones(1))  # a root alone


class Allotter(Protocol):
    """Decides for conversations that share passes; told of every pass."""

    def allot(self, offers: Sequence[Offer], most: Sequence[int], others: int, room: int) -> list[IntArray]:
        """Which nodes of each tree are verified: ascending, the root and every node's parent among them.

        most: nodes of each tree that there is room for. others: rows of trees that are verified whole.
        room: for nodes of all trees together, their roots aside.
        """

    def record(self, offers: Sequence[Offer], rows: int, tokens: int, seconds: float, prompts: bool) -> None:
        """What became of a pass over these trees, and others, of so many rows: it gave so many tokens.
        `prompts`: blocks of prompts were in it, beside these rows."""


class Controller(Protocol):
    """Decides for one conversation; told of every cycle that was completed."""

    @property
    def took(self) -> float | None:
        """The latest cycle, in plain cycles; None when nobody measures."""

    @property
    def speedup(self) -> float | None:
        """What cycles as of the latest budget should give, over plain decoding; None when nobody measures."""

    @property
    def refusal(self) -> str | None:
        """Why the latest budget was None although the reply had room for drafts; None otherwise."""

    @property
    def pauses(self) -> bool:
        """The next budget would be None and its cycle teach nothing: `rested` may be told instead of both."""

    def rested(self) -> None:
        """A cycle without drafts has gone by, as it `pauses`."""

    @property
    def rests(self) -> bool:
        """The next budget will be None, too, or is likely to be, and a model that has missed this pass may
        hear one more first: asked between a budget and what became of its cycle."""

    def alone(self, nodes: int) -> float | None:
        """Seconds of a pass over so many nodes in whose waits nothing is done; None when nobody measures."""

    def budget(self, limit: TreeBudget, passes: range) -> TreeBudget | None:
        """What to draft, within `limit` and the drafter's sensible numbers of `passes`; None = nothing."""

    def overlapped(
        self, limit: TreeBudget, passes: range, prepared: TokenTree, width: int
    ) -> tuple[TreeBudget | None, TokenTree]:
        """As `budget`, for a schedule whose drafter goes on while the target verifies: what to draft beside
        what is `prepared` (the root alone: nothing) and costs nothing; and the part of that which is worth
        verifying if no more is drafted, as of `prune`. A pass goes on from `width` of its ends."""

    def asks(self) -> bool:
        """Whether the early exit is to say in the next pass what to draft for; asked once a pass."""

    def prune(self, tree: TokenTree) -> TokenTree:
        """The part of a drafted tree that is worth verifying."""

    def gains(self, tree: TokenTree) -> FloatArray | None:
        """[n] the chance that each node of a pruned tree is accepted, for a pass that verifies the best of
        several trees (`Offer`); None = the tree is verified as it is."""

    def record(self, cycle: Cycle) -> None:
        """Learn from a cycle."""

    def successor(self) -> Controller:
        """For the next conversation: it begins with what this one has learned."""


class Schedule(PassObserver, Protocol):
    """When drafting happens: hands out the trees of one conversation, and is told what became of them."""

    name: str  # as the option calls it
    tree: TokenTree  # the latest; whoever has left nodes out of it puts here what was verified

    @property
    def offer(self) -> Offer | None:
        """What that tree's nodes are worth, where a pass chooses among several trees'."""

    @property
    def damaged(self) -> bool:
        """A drafter's model computed NaN, and drafts no more."""

    @property
    def undrafted(self) -> str | None:
        """Why drafting has stopped, wholly or in part, for the user; None while it goes on."""

    def begin(self, context: Context, limit: int) -> None:
        """A reply of at most `limit` tokens begins; its prompt is committed. Raises Cancelled."""

    def next_tree(self, root: int) -> TokenTree:
        """The tree to verify next, whose root is the last emitted token."""

    def settle(self, outcome: Outcome) -> Cycle:
        """What the target made of the last tree; its accepted tokens are committed."""

    def end(self) -> None:
        """A reply is over, however it ended: nobody asks for its trees any more. Raises nothing."""

    def lesson(self) -> Controller | None:
        """What the next conversation may begin with; None when this one has learned nothing."""

    def give_back(self, reason: str) -> None:
        """Draft no more with what holds memory of its own: the target gets it. `reason` is for the user."""
