"""Trees, and what an early exit says of them, as messages have them. Needs no torch."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import numpy as np

from edgespec.core.tree import TokenTree
from edgespec.drafters.channel import Named, Nonsense, Tree


def as_sent(tree: TokenTree) -> Tree:
    run = None if tree.run is None else tree.run.tolist()
    return Tree(tree.tokens.tolist(), tree.parents.tolist(), tree.logprobs.tolist(), run)


def as_received(tree: Tree, vocabulary: int) -> TokenTree:
    """Raises Nonsense for what is no tree of such tokens."""
    columns = tree.tokens, tree.parents, tree.logprobs, tree.run
    if len({len(column) for column in columns if column is not None}) > 1:
        raise Nonsense("a tree's columns differ in length")
    found = TokenTree(
        np.array(tree.tokens, dtype=np.int64),
        np.array(tree.parents, dtype=np.int64),
        np.array(tree.logprobs, dtype=np.float64),
        run=None if tree.run is None else np.array(tree.run, dtype=np.bool_),
    )
    if not np.isfinite(found.logprobs).all():
        raise Nonsense("a tree's log-probability is not finite")
    if len(set(zip(tree.parents, tree.tokens, strict=True))) < len(found):
        raise Nonsense("a tree has a token twice behind one node")
    try:
        found.validate(vocabulary)
    except ValueError as error:
        raise Nonsense(str(error)) from None
    return found


def as_named(said: Mapping[int, Mapping[int, float]]) -> list[Named]:
    return [Named(node, list(after), [min(p, 0.0) for p in after.values()]) for node, after in said.items()]


def as_heard(named: Sequence[Named], nodes: int, vocabulary: int) -> dict[int, dict[int, float]]:
    """Log-probabilities, by node of a tree of so many and by token. Raises Nonsense."""
    for row in named:
        if row.node >= nodes or max(row.tokens, default=0) >= vocabulary:
            raise Nonsense(
                f"tokens behind node {row.node}, of a tree of {nodes} and a vocabulary of {vocabulary}"
            )
        if len(row.tokens) != len(row.logprobs) or not np.isfinite(row.logprobs).all():
            raise Nonsense("tokens without their log-probabilities")
    return {row.node: dict(zip(row.tokens, row.logprobs, strict=True)) for row in named}


def trees_for(
    roots: Sequence[int], trees: Sequence[Tree], nodes: int, depth: int, vocabulary: int
) -> list[TokenTree]:
    """What was drafted for these roots, of so many nodes and so deep at most. Raises Nonsense otherwise."""
    if len(trees) != len(roots):
        raise Nonsense(f"{len(trees)} trees for {len(roots)} roots")
    found = [as_received(tree, vocabulary) for tree in trees]
    for root, tree in zip(roots, found, strict=True):
        if tree.tokens[0] != root:
            raise Nonsense(f"a tree of token {tree.tokens[0]}, where {root} was asked for")
        if len(tree) > nodes or tree.depths.max() > depth:
            raise Nonsense(f"a tree of {len(tree)} nodes, {tree.depths.max()} deep, is larger than asked for")
    return found
