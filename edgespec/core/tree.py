"""The token tree: drafted continuations of the last emitted token, verified together in one pass.

Node 0 is the *root*: the last emitted token, which is in no cache yet. Parents precede children. A tree of
one node is plain decoding.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from functools import cached_property
from typing import TYPE_CHECKING

import numpy as np
from numpy.typing import NDArray

from edgespec.core.sampling import Distribution, FloatArray, IntArray
from edgespec.runtimes.rows import slot_depths

if TYPE_CHECKING:
    from torch import Tensor


@dataclass(frozen=True, eq=False)
class Computed:
    """What a cascade, which drafts inside the target, has computed of the target itself.

    slots: [n] where each node's keys and values lie behind the committed prefix of the session's own cache;
        -1 = the node has been through no layer.
    layers: [slots] how many of the target's first layers each slot has been through.
    hidden: [slots, d] its hidden state after these.
    """

    slots: IntArray
    layers: IntArray
    hidden: Tensor

    def of(self, nodes: IntArray) -> Computed:
        """The same for a tree of these nodes [m]; -1 = a node of another drafter's."""
        return replace(self, slots=np.where(nodes >= 0, self.slots[nodes], -1))


@dataclass(frozen=True, eq=False)
class TokenTree:
    """n nodes.

    tokens: [n] token of each node.
    parents: [n] node number of the parent, below the node's own; -1 for the root.
    logprobs: [n] the drafter's log-probability of the token given its parent's path; 0 for the root.
    drafts: [n] where nodes were *sampled*: the distribution that the node's children were drawn from,
        independently and in node order (None for a leaf). `ratio` acceptance needs it.
    computed: where the drafter has run nodes through layers of the target; verification goes on from there.
    run: [n] which nodes the drafter has said all of what it thinks follows them of; None = those that have
        children. A merged tree does not say.
    """

    tokens: IntArray
    parents: IntArray
    logprobs: FloatArray
    drafts: tuple[Distribution | None, ...] | None = None
    computed: Computed | None = None
    run: NDArray[np.bool_] | None = None

    @staticmethod
    def root(token: int) -> TokenTree:
        """Plain decoding: nothing drafted."""
        return TokenTree(np.array([token]), np.array([-1]), np.zeros(1))

    @staticmethod
    def chain(
        tokens: Sequence[int] | IntArray,
        logprobs: Sequence[float] | FloatArray | None = None,
        drafts: Sequence[Distribution] | None = None,
    ) -> TokenTree:
        """A single branch, the root's token first.

        `logprobs` (default: all certain) has one entry a token, 0 for the root; rounding above 0 is cut.
        `drafts`, for sampled chains, has one a drafted token: the distribution it was drawn from.
        """
        n = len(tokens)
        return TokenTree(
            np.asarray(tokens, dtype=np.int64),
            np.arange(-1, n - 1),
            np.zeros(n) if logprobs is None else np.minimum(np.asarray(logprobs, dtype=np.float64), 0.0),
            None if drafts is None else (*drafts, None),
        )

    def __len__(self) -> int:
        return len(self.tokens)

    @cached_property
    def depths(self) -> IntArray:
        """[n] 0 for the root."""
        return slot_depths(self.parents)

    @property
    def open(self) -> NDArray[np.bool_]:
        """[n] nodes that another pass of the drafter may go on from."""
        if self.run is not None:
            return ~self.run
        childless = np.ones(len(self), dtype=np.bool_)
        childless[self.parents[1:]] = False
        return childless

    @property
    def starts(self) -> IntArray:
        """[n] how many of the target's layers each node has been through already."""
        if self.computed is None:
            return np.zeros(len(self), dtype=np.int64)
        return np.where(self.computed.slots >= 0, self.computed.layers[self.computed.slots], 0)

    @cached_property
    def scores(self) -> FloatArray:
        """[n] log-probability of each node's whole path: the sum of `logprobs` from the root."""
        scores = self.logprobs.astype(np.float64)
        for node in range(1, len(self)):
            scores[node] += scores[self.parents[node]]
        return scores

    def children(self, node: int) -> IntArray:
        """Node numbers of the children, ascending."""
        return np.flatnonzero(self.parents == node)

    def path_to(self, node: int) -> IntArray:
        """Nodes from the root to `node`, both included."""
        path = [node]
        while self.parents[path[-1]] >= 0:
            path.append(int(self.parents[path[-1]]))
        return np.array(path[::-1], dtype=np.int64)

    def select(self, nodes: Sequence[int] | IntArray) -> TokenTree:
        """The subtree of `nodes`: ascending, the root and every node's parent among them."""
        nodes = np.asarray(nodes, dtype=np.int64)
        number = np.full(len(self), -1, dtype=np.int64)
        number[nodes] = np.arange(len(nodes))
        parents = number[self.parents[nodes]]
        parents[0] = -1
        drafts = self.drafts and tuple(self.drafts[node] for node in nodes)
        computed = self.computed and self.computed.of(nodes)
        run = ~self.open[nodes]
        tree = TokenTree(self.tokens[nodes], parents, self.logprobs[nodes], drafts, computed, run)
        tree.validate()
        return tree

    def best(self, nodes: int) -> TokenTree:
        """The most probable subtree of at most `nodes` nodes (a path is never likelier than its beginning).

        Raises ValueError for a sampled tree: leaving out nodes by the tokens drawn would bias `ratio`.
        """
        if len(self) <= nodes:
            return self
        if self.drafts is not None:
            raise ValueError("a sampled tree cannot be pruned by the tokens that were drawn")
        return self.select(np.sort(_best(self.scores, nodes)))

    def validate(self, vocabulary: int | None = None) -> None:
        """Check what every consumer relies on; raises ValueError naming the first node that is wrong."""
        n = self.tokens.size
        for name in ("tokens", "parents", "logprobs"):
            array = getattr(self, name)
            if array.shape != (n,) or n == 0:
                raise ValueError(f"{name} has shape {array.shape}; a tree of {n} nodes needs [{max(n, 1)}]")
        if self.drafts is not None and len(self.drafts) != n:
            raise ValueError(f"{len(self.drafts)} draft distributions for {n} nodes")
        if self.computed is not None and self.computed.slots.shape != (n,):
            raise ValueError(f"computed slots have shape {self.computed.slots.shape} for {n} nodes")
        _check(self.tokens, self.tokens >= 0, "token of node {} is {}, which is negative")
        if vocabulary is not None:
            known = self.tokens < vocabulary
            _check(self.tokens, known, f"token of node {{}} is {{}}; the vocabulary has {vocabulary}")
        above = (self.parents >= 0) & (self.parents < np.arange(n))
        above[0] = self.parents[0] == -1
        _check(self.parents, above, "parent of node {} is {}; parents precede children and the root's is -1")
        likely = self.logprobs <= 0  # false for NaN
        likely[0] = self.logprobs[0] == 0
        _check(self.logprobs, likely, "log-probability of node {} is {}; none is above 0, the root's is 0")


def _check(values: IntArray | FloatArray, valid: NDArray[np.bool_], message: str) -> None:
    if not valid.all():
        node = int(np.argmin(valid))
        raise ValueError(message.format(node, values[node]))


def _best(scores: FloatArray, count: int) -> IntArray:
    """[n] -> the `count` highest scores' numbers, highest first; of equal ones the lower number first.

    With parents before children and log-probabilities of at most 0, the result is connected.
    """
    return np.argsort(-scores, kind="stable")[:count]


def merge(trees: Sequence[TokenTree]) -> TokenTree:
    """One tree with the branches of all; equal children of one parent become one, with the higher
    log-probability.

    Raises ValueError when the roots differ, for sampled trees (merging their draws would bias `ratio`), and
    when more than one tree was computed inside the target: they would lie in the same slots.
    """
    if not trees or len({int(tree.tokens[0]) for tree in trees}) != 1:
        raise ValueError(f"merging needs trees with one root, got {[int(tree.tokens[0]) for tree in trees]}")
    if any(tree.drafts is not None for tree in trees):
        raise ValueError("sampled trees cannot be merged")
    if sum(tree.computed is not None for tree in trees) > 1:
        raise ValueError("two trees that were computed inside the target cannot be merged")
    computed = None
    known: dict[tuple[int, int], int] = {}  # (parent, token) -> node
    tokens, parents, logprobs = [int(trees[0].tokens[0])], [-1], [0.0]
    for tree in trees:
        number = [0]  # of this tree's nodes, in the merged one
        columns = (tree.tokens[1:].tolist(), tree.parents[1:].tolist(), tree.logprobs[1:].tolist())
        for token, parent, logprob in zip(*columns, strict=True):
            key = (number[parent], token)
            if key not in known:
                known[key] = len(tokens)
                tokens.append(token)
                parents.append(key[0])
                logprobs.append(logprob)
            number.append(known[key])
            logprobs[number[-1]] = max(logprobs[number[-1]], logprob)
        if tree.computed is not None:
            computed = tree.computed, number
    merged = TokenTree(np.array(tokens), np.array(parents), np.array(logprobs))
    if computed is None:
        return merged
    origin = np.full(len(merged), -1, dtype=np.int64)  # of each merged node, in the computed tree
    for node, own in reversed(list(enumerate(computed[1]))):
        origin[own] = node
    return replace(merged, computed=computed[0].of(origin))


class TreeBuilder:
    """Best-first growth of a tree by path probability, one batched step at a time.

        while len(nodes := builder.frontier(width)):
            builder.expand(nodes, *drafter.top_k(builder.tokens[nodes], ...))
        tree = builder.tree()

    A drafter may stop after any step and has the best tree so far. Node numbers are the builder's own: they
    never change and index `tokens`, `parents`, `depths` and `scores`; `selection` says which of them the tree
    holds.
    """

    def __init__(self, root: int, nodes: int, depth: int) -> None:
        """`nodes` the tree may have, the root included; `depth` of its deepest node."""
        if nodes < 1 or depth < 0:
            raise ValueError(f"a tree of {nodes} nodes and depth {depth} cannot hold its root")
        self.nodes, self.depth = nodes, depth
        self.tokens: IntArray = np.array([root])
        self.parents: IntArray = np.array([-1])
        self.depths: IntArray = np.array([0])
        self._logprobs = self.scores = np.zeros(1)  # of each node given its parent, and of its whole path
        self._expanded = np.zeros(1, dtype=np.bool_)
        self.selection: IntArray = np.array([0])  # the best tree's nodes, most probable first

    def frontier(self, width: int) -> IntArray:
        """Up to `width` nodes whose children may join the tree, most probable first; empty = finished."""
        chosen = self.selection
        useful = ~self._expanded[chosen] & (self.depths[chosen] < self.depth)
        if len(chosen) == self.nodes:  # a child has to displace the least probable node
            useful &= self.scores[chosen] > self.scores[chosen[-1]]
        return chosen[useful][:width]

    def expand(self, nodes: IntArray, tokens: IntArray, logprobs: FloatArray) -> None:
        """Add the children of `nodes` [b] that the drafter proposes: `tokens`, `logprobs` [b, k].

        Of equal tokens under one node the first counts; impossible ones (-infinity) are left out. Raises
        ValueError for a node that has been expanded or is as deep as the tree may be, and for NaN.
        """
        nodes, tokens = np.asarray(nodes), np.asarray(tokens, dtype=np.int64)
        logprobs = np.minimum(np.asarray(logprobs, dtype=np.float64), 0.0)
        if tokens.shape != logprobs.shape or tokens.shape[:-1] != nodes.shape:
            raise ValueError(
                f"{nodes.shape} nodes, {tokens.shape} tokens and {logprobs.shape} log-probabilities"
            )
        if np.isnan(logprobs).any():
            raise ValueError("a drafted log-probability is NaN")
        if self._expanded[nodes].any() or len(np.unique(nodes)) < len(nodes):
            raise ValueError("a node is expanded twice")
        if (self.depths[nodes] >= self.depth).any():
            raise ValueError(f"a node at depth {self.depth} is expanded; the tree may not be deeper")
        self._expanded[nodes] = True
        scores = self.scores[nodes, None] + logprobs
        repeated = np.tril(tokens[:, :, None] == tokens[:, None, :], -1).any(axis=2)
        # What cannot enter a full tree now never will: the tree's least score only rises.
        full = len(self.selection) == self.nodes
        floor = self.scores[self.selection[-1]] if full else -np.inf
        rows, columns = np.nonzero((scores > floor) & ~repeated)
        self.tokens = np.concatenate([self.tokens, tokens[rows, columns]])
        self.parents = np.concatenate([self.parents, nodes[rows]])
        self.depths = np.concatenate([self.depths, self.depths[nodes[rows]] + 1])
        self._logprobs = np.concatenate([self._logprobs, logprobs[rows, columns]])
        self.scores = np.concatenate([self.scores, scores[rows, columns]])
        self._expanded = np.concatenate([self._expanded, np.zeros(len(rows), dtype=np.bool_)])
        self.selection = _best(self.scores, self.nodes)

    def tree(self) -> TokenTree:
        """The most probable connected tree within the budget; its node i is the builder's `selection[i]`."""
        number = np.full(len(self.tokens), -1)
        number[self.selection] = np.arange(len(self.selection))
        parents = self.parents[self.selection]
        parents[1:] = number[parents[1:]]
        return TokenTree(self.tokens[self.selection], parents, self._logprobs[self.selection])
