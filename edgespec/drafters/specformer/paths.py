"""The likeliest paths through a draft's positions, where what stands at one does not depend on the others.

    position 1   a  b  c            a path's chance is the product of its tokens'; so of what may stand at a
    position 2   d  e  f            position, likeliest first, the next one is never likelier behind the same
    position 3   g  h  i            path, and no path is likelier than its beginning

So best first looks at two paths for each that it takes: its likeliest continuation, and the one with the next
token in its last one's place.
"""

from __future__ import annotations

from collections.abc import Sequence
from heapq import heappop, heappush
from math import log

import numpy as np

from edgespec.core.sampling import FloatArray, IntArray
from edgespec.core.tree import TokenTree

IMPOSSIBLE = float("-inf")


def likeliest_paths(
    root: int, said: Sequence[tuple[IntArray, FloatArray]], nodes: int, least: float = 0.0
) -> TokenTree:
    """The best tree of at most `nodes`, its root among them, of paths whose chance is above `least`. said:
    for each position the tokens [k] that may stand there and their log-probabilities, likeliest first. Equal
    paths: the earlier taken goes on first."""
    positions = [(tokens.tolist(), np.minimum(logprobs, 0.0).tolist()) for tokens, logprobs in said]
    tokens, parents, logprobs = [root], [-1], [0.0]
    open_paths: list[tuple[float, int, int, int, int, float]] = []
    looked, floor = 0, log(least) if least > 0 else IMPOSSIBLE

    def look(parent: int, depth: int, rank: int, before: float) -> None:
        """At the path that goes on from `parent`, of log-probability `before`."""
        nonlocal looked
        if depth < len(positions) and rank < len(positions[depth][0]):
            score = before + positions[depth][1][rank]
            if score > floor:
                looked += 1
                heappush(open_paths, (-score, looked, parent, depth, rank, before))

    look(0, 0, 0, 0.0)
    while open_paths and len(tokens) < nodes:
        minus, _, parent, depth, rank, before = heappop(open_paths)
        tokens.append(positions[depth][0][rank])
        parents.append(parent)
        logprobs.append(positions[depth][1][rank])
        look(len(tokens) - 1, depth + 1, 0, -minus)
        look(parent, depth, rank + 1, before)
    return TokenTree(np.array(tokens), np.array(parents), np.array(logprobs))
