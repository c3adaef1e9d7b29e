"""What the controller believes about acceptance. Needs no torch.

Everything fades by cycle: with `MEMORY` as the weight of evidence one cycle later, about the last 70 cycles
count, and what has not been tried for long is believed as if it never had been.
"""

from __future__ import annotations

from dataclasses import replace

import numpy as np

from edgespec.control.notes import Notes, as_notes, from_notes
from edgespec.core.sampling import FloatArray, IntArray
from edgespec.core.tree import TokenTree

MEMORY = 0.985
HOPE = 0.7  # chance of acceptance before anything is known,
LIKELIEST = 0.8  # and that it is then the likeliest child that is accepted
LEAN = 2.0  # observations' worth of evidence that a belief without measurements has
KEPT_LEAN = 10.0  # tokens' worth of evidence that what is expected comes true on the whole
QUICK = 0.975  # as MEMORY, of that: another subject should show within some tens of cycles
STEPS = np.array([0, 1, 2, 3, 4, 5, 6, 8, 10, 12, 16, 20, 24, 32])  # numbers of steps considered
DEPTHS = 32  # beyond this depth evidence is pooled
RANKS = 4  # likewise


class Chances:
    """Measured acceptance: by depth alone, and by depth and rank against what the drafter claimed."""

    def __init__(self) -> None:
        self._reached = np.zeros(DEPTHS + 1)  # accepted paths with drafted children at this depth
        self._went_on = np.zeros(DEPTHS + 1)  # and how many of them one of these continued
        self._claimed = np.zeros((DEPTHS + 1, RANKS))  # the drafter's probabilities for these children
        self._accepted = np.zeros((DEPTHS + 1, RANKS))  # and how many were accepted
        self._deepest = 0  # depth of which anything is known: deeper ones are believed as it
        self._by_depth: FloatArray | None = None  # as of `by_depth`, until something is learned
        self._corrections: FloatArray | None = None  # of `_factors`, likewise

    def fade(self, cycles: int = 1) -> None:
        for sums in (self._reached, self._went_on, self._claimed, self._accepted):
            sums *= MEMORY**cycles
        self._by_depth = self._corrections = None

    def add(self, tree: TokenTree, path: IntArray) -> None:
        """A verified tree, and the nodes of it that were accepted."""
        ahead = [*path.tolist()[1:], -1]
        for depth, (node, following) in enumerate(zip(path.tolist(), ahead, strict=True), start=1):
            children = tree.children(node)
            if not len(children):
                break
            cell = min(depth, DEPTHS)
            self._deepest = max(self._deepest, cell)
            self._reached[cell] += 1
            self._went_on[cell] += following >= 0
            best_first = children[np.argsort(-tree.logprobs[children], kind="stable")]
            for rank, child in enumerate(best_first.tolist()):
                self._claimed[cell, min(rank, RANKS - 1)] += np.exp(tree.logprobs[child])
                self._accepted[cell, min(rank, RANKS - 1)] += child == following
        self._by_depth = self._corrections = None

    def notes(self) -> Notes:
        return {
            "reached": as_notes(self._reached),
            "went_on": as_notes(self._went_on),
            "claimed": as_notes(self._claimed),
            "accepted": as_notes(self._accepted),
        }

    def recall(self, notes: Notes) -> None:
        """Raises ValueError, TypeError or KeyError."""
        reached, went_on = (from_notes(notes[name], DEPTHS + 1) for name in ("reached", "went_on"))
        claimed, accepted = (from_notes(notes[name], DEPTHS + 1, RANKS) for name in ("claimed", "accepted"))
        self._reached, self._went_on = reached, np.minimum(went_on, reached)
        self._claimed, self._accepted = claimed, accepted
        known = np.flatnonzero(reached + claimed.sum(1) + accepted.sum(1))
        self._deepest = int(known.max(initial=0))
        self._by_depth = self._corrections = None

    @property
    def cycles(self) -> float:
        """Cycles' worth of evidence."""
        return float(self._reached[1])

    def likelihood(self, tree: TokenTree, path: IntArray) -> float:
        """Log of the chance, by depth alone, that a tree is accepted as far as it was."""
        went_on = np.log(np.clip(self.by_depth[1 : len(path)], 1e-3, 1 - 1e-3)).sum()
        if not len(tree.children(int(path[-1]))):
            return float(went_on)
        ended = np.clip(1 - self.by_depth[min(len(path), DEPTHS)], 1e-3, 1)
        return float(went_on + np.log(ended))

    @property
    def by_depth(self) -> FloatArray:
        """[depths] the chance that a path goes on to this depth from the one before."""
        if self._by_depth is None:
            chances, chance = [], HOPE  # each depth leans on the one before
            known = slice(self._deepest + 1)
            for reached, went_on in zip(
                self._reached[known].tolist(), self._went_on[known].tolist(), strict=True
            ):
                chance = (went_on + LEAN * chance) / (reached + LEAN)
                chances.append(chance)
            self._by_depth = np.array(chances + [chance] * (DEPTHS - self._deepest))
        return self._by_depth

    @property
    def along(self) -> FloatArray:
        """[depths] `by_depth` if the likeliest child alone is there."""
        likeliest, all_ranks = float(self._accepted[:, 0].sum()), float(self._accepted.sum())
        return self.by_depth * (likeliest + LEAN * LIKELIEST) / (all_ranks + LEAN)

    def _factors(self) -> FloatArray:
        """[depths, ranks] log of accepted / claimed."""
        if self._corrections is None:
            factors = [[1.0] * RANKS]  # in lists: few numbers, one after the other
            known = slice(1, self._deepest + 1)
            for claimed, accepted in zip(
                self._claimed[known].tolist(), self._accepted[known].tolist(), strict=True
            ):  # each depth leans on the one before
                cells = zip(accepted, factors[-1], claimed, strict=True)
                factors.append([(a + LEAN * before) / (c + LEAN) for a, before, c in cells])
            self._corrections = np.log(factors + factors[-1:] * (DEPTHS - self._deepest))
        return self._corrections

    def after(self, depths: IntArray) -> FloatArray:
        """[n] the chance that a child of an accepted node at these depths is accepted, if there are any."""
        return self.by_depth[np.minimum(depths + 1, DEPTHS)]

    def scores(self, tree: TokenTree) -> FloatArray:
        """[n] log of each node's chance to be on the accepted path."""
        cells = np.minimum(tree.depths, DEPTHS), np.minimum(ranks(tree), RANKS - 1)
        corrected = np.minimum(tree.logprobs + self._factors()[cells], np.log(0.99))
        corrected[0] = 0.0
        return replace(tree, logprobs=corrected).scores


class Yield:
    """What a number of steps gives: tokens, and nodes to verify.

    Tokens are counted as they were to be *expected* of the trees, which scatters much less than what a few
    cycles happened to accept; on the whole, expected is corrected by accepted. A number of steps is believed
    by its own trees, and leans on what all trees gave at each depth.
    """

    def __init__(self) -> None:
        self._own = np.zeros((3, len(STEPS)))  # trees of so many steps, their expected tokens, their nodes
        self._trees = np.zeros(DEPTHS + 1)  # of at least so many steps (0: of none)
        self._tokens = np.zeros(DEPTHS + 1)  # expected at that depth of them (the last step's: and deeper)
        self._nodes = np.zeros(DEPTHS + 1)  # likewise
        self._accepted = self._expected = 0.0  # of late

    def fade(self, cycles: int = 1) -> None:
        for sums in (self._own, self._trees, self._tokens, self._nodes):
            sums *= MEMORY**cycles
        self._accepted *= QUICK**cycles
        self._expected *= QUICK**cycles

    def add(self, steps: int, tree: TokenTree, scores: FloatArray, accepted: int) -> None:
        """A tree of `steps`, with the log-chances [n] of its nodes to be accepted, and how many were."""
        tokens = np.exp(scores[1:])
        depths = np.minimum(tree.depths[1:], min(steps, DEPTHS))
        self._tokens += np.bincount(depths, tokens, minlength=DEPTHS + 1)
        self._nodes += np.bincount(depths, minlength=DEPTHS + 1)
        self._trees[1 if steps else 0 : steps + 1] += 1
        self._own[:, int(np.searchsorted(STEPS, steps))] += (1, tokens.sum(), len(tree))
        self._accepted += accepted
        self._expected += tokens.sum()

    def notes(self) -> Notes:
        return {
            "own": as_notes(self._own),
            "trees": as_notes(self._trees),
            "tokens": as_notes(self._tokens),
            "nodes": as_notes(self._nodes),
            "kept": as_notes(np.array([self._accepted, self._expected])),
        }

    def recall(self, notes: Notes) -> None:
        """Raises ValueError, TypeError or KeyError."""
        own = from_notes(notes["own"], 3, len(STEPS))
        trees, tokens, nodes = (from_notes(notes[n], DEPTHS + 1) for n in ("trees", "tokens", "nodes"))
        self._accepted, self._expected = from_notes(notes["kept"], 2).tolist()
        self._own, self._trees, self._tokens, self._nodes = own, trees, tokens, nodes

    @property
    def kept(self) -> float:
        """What is accepted, of what was expected."""
        return (self._accepted + KEPT_LEAN) / (self._expected + KEPT_LEAN)

    def expect(self, by_depth: FloatArray, most: int = DEPTHS) -> tuple[FloatArray, FloatArray]:
        """Tokens, bonus token included, and nodes [len(STEPS)]; `by_depth` as `Chances` has it. most: steps
        that are asked about; more are said to give no more tokens."""
        total, gains = 0.0, [0.0]
        chance = 1.0  # that the path gets to this depth
        asked = slice(1, min(most, DEPTHS) + 1)
        columns = self._tokens[asked].tolist(), self._trees[asked].tolist(), by_depth[asked].tolist()
        for came, trees_there, believed in zip(*columns, strict=True):
            chance = (came + LEAN * chance * believed) / (trees_there + LEAN)
            total += chance
            gains.append(total)
        gained = np.array(gains + [total] * (DEPTHS + 1 - len(gains)))
        gained[0] = (self._tokens[0] + LEAN * by_depth[1]) / (self._trees[0] + LEAN)
        level = (self._nodes + 2 * LEAN) / (self._trees + LEAN)
        size = np.append(1 + level[0], 1 + np.cumsum(level[1:]))
        return self._leaning(gained[STEPS], size[STEPS])

    def chains(self, along: FloatArray) -> tuple[FloatArray, FloatArray]:
        """The same of trees as narrow as can be: a node for each step, one of none. `along` as `Chances` has
        it."""
        gained = np.append(along[1], np.cumsum(np.cumprod(along[1:])))
        return self._leaning(gained[STEPS], 1.0 + np.maximum(STEPS, 1))

    def _leaning(self, gained: FloatArray, size: FloatArray) -> tuple[FloatArray, FloatArray]:
        """Of each number of steps its own trees, which lean on drafts that give so much and are so large."""
        trees, tokens, nodes = self._own
        tokens = (tokens + LEAN * gained) / (trees + LEAN)
        return 1 + tokens * self.kept, (nodes + LEAN * size) / (trees + LEAN)


def ranks(tree: TokenTree) -> IntArray:
    """[n] a node's place among its siblings, the likeliest being 0."""
    order = np.lexsort((-tree.logprobs, tree.parents))
    parents = tree.parents[order]
    found = np.empty(len(tree), dtype=np.int64)
    found[order] = np.arange(len(tree)) - np.searchsorted(parents, parents)
    return found
