"""Which memory a drafted token may see in training: what it would have had in a cycle (T-step-bounded masks).

A cycle's drafts all see the memory of what was committed before it (Zimmer et al. 2024, Figure 2):

    position         p-1   p  p+1 p+2 p+3 p+4 p+5 p+6 p+7 ...    p: the reply's first token; K = 4, then 3
    memory up to     p-2  p-1 p-1 p-1 p-1 p+3 p+3 p+3 p+6

so a *gap*, from the last token that is remembered to the one behind which is drafted, is 1 to K. (The
official code has gaps 0 to K - 1; but a draft never sees its own token's memory: only the target makes that.)

*Local* sequences see, of the text's own tokens, those alone that the memory does not have: what lies before
must then be learned from the memory. The official code, not the paper, begins with all of them local and has
none from half of its epochs on, in a straight line.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from edgespec.training.corpus import Sample

LEAST, MOST = 5, 15  # tokens of a cycle (Table 6)
Bools = NDArray[np.bool_]
Ints = NDArray[np.int64]


@dataclass(frozen=True)
class Questions:
    """Positions of b sequences behind which is drafted, and how many tokens' memory each sees.

    positions, until: [b, s]; where `there` [b, s] is False, of nothing.
    since: [b, s], the first of the text's own tokens that each sees.
    """

    positions: Ints
    until: Ints
    there: Bools
    since: Ints


def ask(samples: Sequence[Sample], until: Sequence[Ints], local: Sequence[bool] = ()) -> Questions:
    """`until`: of each sequence, for each of its supervised positions. `local`: of each sequence; none, if
    left out."""
    width = max(len(known) for known in until)
    positions, seen = np.zeros((2, len(samples), width), dtype=np.int64)
    there = np.zeros((len(samples), width), dtype=np.bool_)
    for row, (sample, known) in enumerate(zip(samples, until, strict=True)):
        positions[row, : len(known)], seen[row, : len(known)] = supervised(sample), known
        there[row, : len(known)] = True
    since = seen * np.array(local or [False] * len(samples))[:, None]
    return Questions(positions, seen, there, since)


def supervised(sample: Sample) -> Ints:
    """Positions behind which a token of a reply stands."""
    return np.concatenate([np.arange(start - 1, stop - 1) for start, stop in sample.spans])


def at_gap(sample: Sample, gap: int) -> Ints:
    """Memory at the same gap everywhere."""
    return np.maximum(supervised(sample) + 1 - gap, 0)


def bounded(sample: Sample, chance: np.random.Generator, stale: float = 0.0) -> Ints:
    """Memory as in cycles of LEAST to MOST tokens; of this share of them as it was one cycle earlier, which
    is what is drafted with while the target verifies."""
    known = []
    for start, stop in sample.spans:
        ends = [start]
        known.append(np.array([start - 1]))  # the token before the reply is a cycle of its own
        while ends[-1] < stop - 1:
            length = min(int(chance.integers(LEAST, MOST + 1)), stop - 1 - ends[-1])
            late = len(ends) > 1 and chance.random() < stale
            known.append(np.full(length, ends[-2] if late else ends[-1]))
            ends.append(ends[-1] + length)
    return np.concatenate(known)


def local_share(done: float) -> float:
    """Of sequences, when this share of the run is done."""
    return max(0.0, 1 - 2 * done)
