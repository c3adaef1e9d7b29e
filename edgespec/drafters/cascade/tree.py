"""The tree that a cascade ranks: proposals of two sources on one scale, the later replacing the earlier.

A node's children are first proposed by the draft, and again by the shallow verifier, which is nearer to the
target: what the draft had proposed gets the verifier's probability, and what it had not joins as a
*correction*. (CATS' official code scores every correction alike, above any draft; the paper's Algorithm 1
ranks none.) Needs no torch.
"""

from __future__ import annotations

from collections.abc import Iterable
from math import exp, inf

import numpy as np

from edgespec.core.sampling import FloatArray, IntArray


class RankedTree:
    """Nodes by path probability. Node numbers never change; parents precede children.

    Beside `core.tree.TreeBuilder`, which drops for good what cannot enter a full tree: here a later proposal
    may make a node less likely, and others come back.
    """

    def __init__(self, root: int, nodes: int, depth: int) -> None:
        """`nodes` the tree may have, the root included; `depth` of its deepest node."""
        self.nodes, self.depth = nodes, depth
        self.tokens, self.parents, self.depths = [root], [-1], [0]
        self.logprobs = [0.0]
        self.children: dict[int, dict[int, int]] = {}  # of expanded nodes: token -> node
        self.scores = [0.0]  # log-probability of each node's path
        self.selection = [0]  # the best tree's nodes, most probable first

    def propose(self, node: int, tokens: Iterable[int], logprobs: Iterable[float]) -> None:
        """What may follow `node`. A token that was proposed before takes the new log-probability; one that is
        impossible (-infinity) is not taken in. `rank` once all is proposed."""
        children = self.children.setdefault(node, {})
        for token, logprob in zip(tokens, logprobs, strict=True):
            if token in children:
                self.logprobs[children[token]] = logprob
            elif logprob > -inf:
                children[token] = len(self.tokens)
                self.tokens.append(token)
                self.parents.append(node)
                self.depths.append(self.depths[node] + 1)
                self.logprobs.append(logprob)

    def rank(self) -> None:
        """Score all nodes and select the best: connected, as no path is likelier than its beginning."""
        self.scores = [0.0]
        for parent, logprob in zip(self.parents[1:], self.logprobs[1:], strict=True):
            self.scores.append(self.scores[parent] + logprob)
        order = np.argsort(-np.array(self.scores), kind="stable")[: self.nodes]  # of equals the parent first
        self.selection = [node for node in order.tolist() if self.scores[node] > -inf]

    def frontier(self, width: int) -> list[int]:
        """Up to `width` nodes whose children may join the tree, most probable first."""
        full = len(self.selection) == self.nodes  # then a child has to displace the least probable node
        floor = self.scores[self.selection[-1]] if full else -inf
        found = [
            node
            for node in self.selection
            if node not in self.children and self.depths[node] < self.depth and self.scores[node] > floor
        ]
        return found[:width]

    def chance(self, nodes: Iterable[int]) -> float:
        """That the accepted path goes through one of `nodes`, of which none is another's ancestor."""
        return sum(exp(self.scores[node]) for node in nodes)

    def arrays(self) -> tuple[IntArray, IntArray, IntArray, FloatArray]:
        """Of the best tree: node numbers, ascending; tokens; parents, counted within the tree; and
        log-probabilities, [n] each."""
        chosen = np.sort(np.array(self.selection))
        number = np.full(len(self.tokens), -1)
        number[chosen] = np.arange(len(chosen))
        parents = number[np.array(self.parents)[chosen]]
        parents[0] = -1
        return chosen, np.array(self.tokens)[chosen], parents, np.array(self.logprobs)[chosen]


KNOTS = np.log([1e-3, 0.01, 0.03, 0.1, 0.2, 0.35, 0.5, 0.65, 0.8, 0.9, 0.97, 1.0])  # log-probability
MIDDLES = (KNOTS[1:] + KNOTS[:-1]) / 2
BELIEF = 8.0  # expected acceptances' worth of evidence that a claim has before it is measured
FADE = 0.998  # per outcome
SUREST = float(np.log(0.99))


class Calibration:
    """What a source's probabilities proved to be worth: accepted against claimed, by what was claimed."""

    def __init__(self) -> None:
        self.claimed = np.zeros(len(KNOTS))
        self.accepted = np.zeros(len(KNOTS))

    def __call__(self, logprobs: FloatArray) -> FloatArray:
        """[...] log-probabilities as claimed -> as measured."""
        factors = np.log((self.accepted + BELIEF) / (self.claimed + BELIEF))
        measured: FloatArray = np.minimum(logprobs + np.interp(logprobs, KNOTS, factors), SUREST)
        return measured

    def learn(self, logprobs: FloatArray, accepted: IntArray) -> None:
        """Claims for tokens that followed accepted ones, and which of these [k] the target took (0 or 1)."""
        self.claimed *= FADE
        self.accepted *= FADE
        cells = np.digitize(logprobs, MIDDLES)
        np.add.at(self.claimed, cells, np.exp(logprobs))
        np.add.at(self.accepted, cells, accepted)
