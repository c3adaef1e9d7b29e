"""Token trees: structure, merging, pruning, best-first growth."""

from __future__ import annotations

import itertools

import numpy as np
import pytest

from edgespec.core.sampling import Distribution
from edgespec.core.tree import TokenTree, TreeBuilder, merge


def tree_of(tokens, parents, logprobs=None) -> TokenTree:
    logprobs = [0.0] + [-1.0] * (len(tokens) - 1) if logprobs is None else logprobs
    tree = TokenTree(np.array(tokens), np.array(parents), np.array(logprobs, dtype=np.float64))
    tree.validate()
    return tree


def random_tree(rng, nodes: int, vocabulary: int) -> TokenTree:
    parents = [-1] + [int(rng.integers(0, i)) for i in range(1, nodes)]
    logprobs = -rng.random(nodes)
    logprobs[0] = 0
    return tree_of(rng.integers(0, vocabulary, nodes), parents, logprobs)


def paths(tree: TokenTree) -> set[tuple[int, ...]]:
    return {tuple(tree.tokens[tree.path_to(node)].tolist()) for node in range(len(tree))}


def test_structure():
    tree = tree_of([7, 1, 2, 3, 4, 5], [-1, 0, 0, 1, 2, 1], [0, -1, -2, -0.5, -1, -4])
    assert len(tree) == 6
    assert tree.depths.tolist() == [0, 1, 1, 2, 2, 2]
    assert [tree.children(node).tolist() for node in range(6)] == [[1, 2], [3, 5], [4], [], [], []]
    assert tree.path_to(5).tolist() == [0, 1, 5]
    assert tree.path_to(0).tolist() == [0]
    assert tree.scores.tolist() == [0, -1, -2, -1.5, -3, -5]


def test_root_and_chain():
    root = TokenTree.root(3)
    root.validate()
    assert len(root) == 1
    assert root.children(0).tolist() == []
    chain = TokenTree.chain([3, 4, 5], [0, -1, 1e-9])
    chain.validate()  # rounding above 0 is cut
    assert chain.parents.tolist() == [-1, 0, 1]
    assert TokenTree.chain([3, 4]).logprobs.tolist() == [0, 0]


def test_children_match_parents_in_random_trees():
    rng = np.random.default_rng(1)
    for _ in range(20):
        tree = random_tree(rng, int(rng.integers(1, 40)), 5)
        for node in range(len(tree)):
            assert tree.children(node).tolist() == np.flatnonzero(tree.parents == node).tolist()
            path = tree.path_to(node)
            assert tree.depths[node] == len(path) - 1
            assert tree.scores[node] == pytest.approx(tree.logprobs[path].sum())


BROKEN = [
    ([], [], [], "needs"),
    ([1, 2], [-1], [0, 0], "parents has shape"),
    ([[1]], [[-1]], [[0]], "tokens has shape"),
    ([1, -2], [-1, 0], [0, -1], "token of node 1 is -2"),
    ([1, 9], [-1, 0], [0, -1], "token of node 1 is 9; the vocabulary has 9"),
    ([1, 2], [0, 0], [0, -1], "parent of node 0 is 0"),
    ([1, 2, 3], [-1, 2, 0], [0, -1, -1], "parent of node 1 is 2"),
    ([1, 2], [-1, 1], [0, -1], "parent of node 1 is 1"),
    ([1, 2], [-1, -1], [0, -1], "parent of node 1 is -1"),
    ([1, 2], [-1, 0], [0, 0.5], "node 1 is 0.5"),
    ([1, 2], [-1, 0], [0, np.nan], "node 1 is nan"),
    ([1, 2], [-1, 0], [-1, -1], "node 0 is -1"),
]


@pytest.mark.parametrize(("tokens", "parents", "logprobs", "message"), BROKEN)
def test_broken_trees_are_refused(tokens, parents, logprobs, message):
    tree = TokenTree(
        np.array(tokens, dtype=np.int64), np.array(parents, dtype=np.int64), np.array(logprobs, dtype=float)
    )
    with pytest.raises(ValueError, match=message):
        tree.validate(vocabulary=9)


def test_wrong_number_of_draft_distributions():
    draft = Distribution(np.array([1]), np.ones(1))
    with pytest.raises(ValueError, match="draft distributions"):
        TokenTree.chain([1, 1], drafts=[draft, draft]).validate()


def test_merge_keeps_every_path_once():
    rng = np.random.default_rng(2)
    for _ in range(20):
        trees = [random_tree(rng, int(rng.integers(1, 20)), 3) for _ in range(3)]
        trees = [tree_of([9, *t.tokens[1:]], t.parents, t.logprobs) for t in trees]
        merged = merge(trees)
        merged.validate()
        assert paths(merged) == set().union(*map(paths, trees))
        assert len(paths(merged)) == len(merged)


def test_merge_takes_the_better_guess():
    trees = [TokenTree.chain([9, 1, 2], [0, -3, -1]), TokenTree.chain([9, 1, 4], [0, -1, -2])]
    merged = merge(trees)
    assert merged.tokens.tolist() == [9, 1, 2, 4]
    assert merged.logprobs.tolist() == [0, -1, -1, -2]
    assert merge(trees[::-1]).logprobs.tolist() == [0, -1, -2, -1]


def test_merge_refuses_what_it_cannot_do():
    with pytest.raises(ValueError, match="one root"):
        merge([TokenTree.root(1), TokenTree.root(2)])
    with pytest.raises(ValueError, match="one root"):
        merge([])
    sampled = TokenTree.chain([1, 2], drafts=[Distribution(np.array([2]), np.ones(1))])
    with pytest.raises(ValueError, match="sampled"):
        merge([sampled, TokenTree.root(1)])
    with pytest.raises(ValueError, match="sampled"):
        sampled.best(1)


def test_best_is_connected_and_has_the_highest_scores():
    rng = np.random.default_rng(3)
    for _ in range(30):
        tree = random_tree(rng, 25, 4)
        for budget in (1, 4, 24, 25, 99):
            best = tree.best(budget)
            best.validate()
            assert paths(best) <= paths(tree)
            expected = sorted(tree.scores, reverse=True)[:budget]
            np.testing.assert_allclose(sorted(best.scores, reverse=True), expected)


def test_best_of_equal_scores_is_connected():
    tree = TokenTree.chain([5, 6, 7, 8])  # all certain: every score is 0
    assert tree.best(2).tokens.tolist() == [5, 6]


# --- best-first growth -------------------------------------------------------------------------------------

VOCABULARY = 5


class Table:
    """A drafter whose next token depends on the last two: exact probabilities of every path are known."""

    def __init__(self, seed: int) -> None:
        logits = np.random.default_rng(seed).standard_normal((VOCABULARY, VOCABULARY, VOCABULARY)) * 2
        self.logprobs = logits - np.log(np.exp(logits).sum(axis=-1, keepdims=True))

    def top(self, builder: TreeBuilder, nodes: np.ndarray, k: int) -> tuple[np.ndarray, np.ndarray]:
        rows = self.logprobs[builder.tokens[np.maximum(builder.parents[nodes], 0)], builder.tokens[nodes]]
        tokens = np.argsort(-rows, axis=1)[:, :k]
        return tokens, np.take_along_axis(rows, tokens, axis=1)

    def scores(self, root: int, depth: int) -> list[float]:
        """Of every path up to `depth`, by brute force."""
        found = [0.0]
        for length in range(1, depth + 1):
            for path in itertools.product(range(VOCABULARY), repeat=length):
                walk = (root, root, *path)
                found.append(sum(self.logprobs[walk[i], walk[i + 1], walk[i + 2]] for i in range(length)))
        return sorted(found, reverse=True)


@pytest.mark.parametrize("width", [1, 3, 100])
@pytest.mark.parametrize(("nodes", "depth"), [(1, 4), (2, 1), (12, 4), (40, 3), (1000, 3)])
def test_growth_finds_the_most_probable_tree(width, nodes, depth):
    for seed in range(4):
        table, builder = Table(seed), TreeBuilder(root=2, nodes=nodes, depth=depth)
        while len(frontier := builder.frontier(width)):
            assert len(frontier) <= width
            builder.expand(frontier, *table.top(builder, frontier, VOCABULARY))
            tree = builder.tree()  # legal after every step
            tree.validate(VOCABULARY)
            assert len(tree) <= nodes
            assert tree.depths.max() <= depth
        assert builder.tree().tokens[0] == 2
        expected = table.scores(2, depth)[:nodes]
        np.testing.assert_allclose(sorted(builder.tree().scores, reverse=True), expected, atol=1e-12)


def test_growth_expands_nothing_in_vain():
    builder = TreeBuilder(root=0, nodes=3, depth=9)
    builder.expand(builder.frontier(8), np.array([[1, 2, 3]]), np.array([[-1.0, -2.0, -3.0]]))
    # The tree is full of 0, 1 and 2; a child of 2 could only tie with it, so only 1 is worth a step.
    assert builder.tokens[builder.frontier(8)].tolist() == [1]


def test_node_numbers_stay_and_match_the_tree():
    table, builder = Table(7), TreeBuilder(root=1, nodes=9, depth=5)
    seen = []
    while len(frontier := builder.frontier(2)):
        seen.append((frontier, builder.tokens[frontier], builder.depths[frontier]))
        builder.expand(frontier, *table.top(builder, frontier, 3))
    for frontier, tokens, depths in seen:
        assert (builder.tokens[frontier] == tokens).all()
        assert (builder.depths[frontier] == depths).all()
    tree = builder.tree()
    assert (builder.tokens[builder.selection] == tree.tokens).all()
    assert (builder.depths[builder.selection] == tree.depths).all()


def test_repeated_and_impossible_proposals_are_left_out():
    builder = TreeBuilder(root=0, nodes=9, depth=2)
    builder.expand(np.array([0]), np.array([[4, 4, 3, 2]]), np.array([[-1, -0.5, -np.inf, -2.0]]))
    assert builder.tree().tokens.tolist() == [0, 4, 2]
    assert builder.tree().logprobs.tolist() == [0, -1, -2]


def test_growth_refuses_misuse():
    with pytest.raises(ValueError, match="cannot hold its root"):
        TreeBuilder(root=0, nodes=0, depth=3)
    builder = TreeBuilder(root=0, nodes=4, depth=1)
    one = (np.array([[1]]), np.array([[-1.0]]))
    with pytest.raises(ValueError, match="NaN"):
        builder.expand(np.array([0]), np.array([[1]]), np.array([[np.nan]]))
    with pytest.raises(ValueError, match="nodes"):
        builder.expand(np.array([0]), np.array([[1, 2]]), np.array([[-1.0]]))
    builder.expand(np.array([0]), *one)
    with pytest.raises(ValueError, match="expanded twice"):
        builder.expand(np.array([0]), *one)
    with pytest.raises(ValueError, match="deeper"):
        builder.expand(np.array([1]), *one)
