"""A drafter for measuring, whose tokens are right with a set probability: it is told what the target says."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace

import numpy as np

from edgespec.config import GenerationOptions
from edgespec.core.acceptance import Outcome
from edgespec.core.sampling import Noise, Sampler
from edgespec.core.schedule import Context, TreeBudget
from edgespec.core.tree import TokenTree
from edgespec.drafters.base import Drafter, Drafting, Root


@dataclass
class SetAcceptance:
    """See `drafters.base.Drafter`. Works as `inner` does, step by step, and proposes other tokens.

    inner: a real drafter. It is asked for *drawn* chains, so that a step runs one node, and every step costs
        what it costs that drafter; what it proposes is thrown away.
    reply: the target's greedy reply, recorded before. Each proposed token is the reply's with probability
        `probability`, independently (keyed by seed and place); else another token.
    """

    inner: Drafter
    reply: Sequence[int]
    probability: float
    seed: int
    vocabulary: int
    done: int = 0  # tokens of the reply that are committed

    @property
    def resident(self) -> bool:
        return self.inner.resident

    @property
    def passes(self) -> range:
        return self.inner.passes

    def prefill(self, context: Context) -> None:
        self.done = 0
        sampler = Sampler(GenerationOptions(temperature=1.0))
        self.inner.prefill(replace(context, sampler=sampler, noise=Noise(self.seed), drawn=True))

    def start(self, roots: Sequence[Root], budget: TreeBudget) -> Drafting:
        """Raises ValueError when the target has said something else than was recorded."""
        root, known = roots[0].token, self.reply[self.done : self.done + 1]
        if known and known[0] != root:
            raise ValueError(f"token {self.done} of the reply is {root}; {known[0]} was recorded")
        chance = np.random.default_rng((self.seed, self.done))
        chain = [root]
        for token in self.reply[self.done + 1 :]:
            right = chance.random() < self.probability
            chain.append(token if right else (token + 1) % self.vocabulary)
        most = min(budget.passes, budget.depth, budget.nodes - 1)
        return SetDrafting(self.inner.start(roots[:1], budget), chain, most)

    def commit(self, root: int, outcome: Outcome) -> None:
        self.inner.commit(root, outcome)
        self.done += len(outcome.tokens)


@dataclass
class SetDrafting:
    """See `drafters.base.Drafting`."""

    inner: Drafting
    chain: Sequence[int]
    passes: int

    def step(self) -> bool:
        return len(self.inner.tree()) <= self.passes and self.inner.step()

    def tree(self, root: int = 0) -> TokenTree:
        """The chain, as far as the inner one was drafted and the reply is known."""
        return TokenTree.chain(self.chain[: len(self.inner.tree())])

    def stop(self) -> None:
        self.inner.stop()

    def cancel(self) -> None:
        self.inner.cancel()
