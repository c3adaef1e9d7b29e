"""How many tokens a cycle should make, before any was accepted: the chance that a draft is right, by the kind
of the drafter, and what a tree of such drafts gives.
"""

from __future__ import annotations

import heapq
from dataclasses import dataclass
from functools import cache

from edgespec.control.estimates import HOPE

# The chance that none of the F likeliest drafts is right is (1 - p) F^-SPREAD: SSD's power law (Theorem 12),
# through a calibrated CATS draft (Vicuna-7B: 62 % by the likeliest token, 90 % by the ten likeliest).
SPREAD = 0.58
MOST_NODES = 64


@dataclass(frozen=True)
class Prior:
    """Chance that the likeliest draft is what the target says: middle, and the ends of 80 % of what is
    believed of models and texts."""

    low: float
    middle: float
    high: float
    source: str
    branches: bool = True  # its other drafts may be right where the likeliest is not
    width: int = MOST_NODES  # nodes that a pass of its expands; the likeliest come first
    spread: float = SPREAD  # of outcomes that nothing was prepared for (`expected_hits`)

    @property
    def chances(self) -> tuple[float, float, float]:
        return self.low, self.middle, self.high

    @staticmethod
    def around(agreement: float) -> Prior:
        """Of a drafter that agreed so often with its target on held-out text: other text is rarely better."""
        low, high = max(0.05, agreement - 0.2), min(0.98, agreement + 0.05)
        return Prior(low, min(high, agreement), high, "agreement on held-out text, as trained")


# spread, where it is not the law's: 68 % of outcomes were hit by 16 passes of a draft model, a quarter to a
# third by 4 of a copy, which are of few rows (benchmarks/README.md).
# N-grams: 1.4 tokens a cycle where 9 % of 4-grams repeat, 1.0 to 1.2 in new stories (benchmarks/README.md),
# more where text is copied.
PRIORS = {
    "ngram": Prior(0.02, 0.2, 0.5, "what benchmarks measured of stories and answers", branches=False),
    "model": Prior(0.5, HOPE, 0.9, "what the controller hopes; SubSpec has more", width=8, spread=0.4),
    "substitute": Prior(0.8, 0.9, 0.96, "QuantSpec: 4-bit copies agree in about 90 %", width=2, spread=0.2),
    "cascade": Prior(0.45, 0.62, 0.75, "CATS on Vicuna-7B"),
    "moa": Prior(0.5, HOPE, 0.9, "what the controller hopes", width=8),
    "eagle": Prior(0.5, 0.7, 0.82, "EAGLE on Vicuna-7B"),
    "specformer": Prior(0.35, 0.55, 0.7, "SpecFormer on Qwen3: 2.2 tokens a cycle by 4 to 8 drafts"),
    "streaming": Prior(0.5, HOPE, 0.9, "what the controller hopes", width=8),
    "spd": Prior(0.5, HOPE, 0.9, "what the controller hopes", width=8),
}


def tree_tokens(
    chance: float, depth: int, nodes: int, branches: bool = True, width: int = MOST_NODES
) -> float:
    """Tokens of a cycle, the bonus token included, with the best tree of at most so many nodes (root
    included) and levels below the root, for each of which `width` nodes were expanded, if `chance` holds at
    every node."""
    return _curve(round(chance, 3), depth, branches, width)[max(0, min(nodes, MOST_NODES) - 1)]


def expected_hits(passes: int, spread: float = SPREAD) -> float:
    """How often the outcome is among those that so many passes of drafting prepared for: SSD's power law, a
    pass being worth an outcome more at each node."""
    return float(1 - (1 + passes) ** -spread)


@cache
def _curve(chance: float, depth: int, branches: bool, width: int) -> tuple[float, ...]:
    """[MOST_NODES] by number of nodes: the likeliest nodes are taken first, each with its parent there."""
    tokens, expanded = [1.0], 1
    # Minus the chance that the node is on the path, that of its parent, its level and its rank.
    heap = [(-chance, 1.0, 1, 0)] if depth else []
    while heap and len(tokens) < MOST_NODES:
        value, parent, level, rank = heapq.heappop(heap)
        tokens.append(tokens[-1] - value)
        if branches:
            heapq.heappush(heap, (-parent * _of_rank(chance, rank + 1), parent, level, rank + 1))
        if level < depth and expanded < width * depth:
            expanded += 1
            heapq.heappush(heap, (value * chance, -value, level + 1, 0))
    return tuple(tokens + [tokens[-1]] * (MOST_NODES - len(tokens)))


@cache
def _of_rank(chance: float, rank: int) -> float:
    """That the draft of this rank (0: the likeliest) is right."""
    return chance if rank == 0 else (1 - chance) * float(rank**-SPREAD - (rank + 1) ** -SPREAD)
