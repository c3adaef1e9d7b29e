"""What comes next by a draft model's logits: tokens, and how likely the target is to say them. No torch."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
from numpy.typing import NDArray

from edgespec.core.sampling import FloatArray, IntArray, Sampler, floor, largest
from edgespec.core.schedule import Context

BLUR = 0.1  # of cumulative probability, by which drafter and target are taken to differ
AT_ONCE = 2**18  # logits that are looked through at a time: 1 to 5 ms, which fits into a wait for flash
FAINT = 1e-3  # tokens less likely than this (or a tenth of the likeliest one) are not foreseen


def rows_at_once(vocabulary: int) -> int:
    """Rows of logits that fit into a wait."""
    return max(1, AT_ONCE // vocabulary)


def following(
    logits: NDArray[np.float32], count: int, context: Context, positions: Sequence[int]
) -> tuple[IntArray, FloatArray]:
    """[n, V] -> `count` tokens of each row that the target may say at `positions` [n], likeliest first, and
    their log-probabilities, [n, count] each: as the reply's acceptance chooses them."""
    if context.keyed:
        return foreseen(logits, count, context.sampler, [context.noise.uniform(p) for p in positions])
    return likeliest(logits, count)


def possible(tokens: IntArray, logprobs: FloatArray) -> dict[int, float]:
    """One row of `following`, [count] each, by token; without what fills it up, which names tokens again."""
    return {t: p for t, p in zip(tokens.tolist(), logprobs.tolist(), strict=True) if p > float("-inf")}


def likeliest(logits: NDArray[np.float32], count: int) -> tuple[IntArray, FloatArray]:
    """[n, V] -> the `count` likeliest tokens of each row and their log-probabilities, [n, count] each.

    Of equal ones the lower token comes first. A row with NaN or +inf, a damaged model's, proposes nothing:
    all its log-probabilities are -inf.
    """
    count = min(count, logits.shape[1])
    top = logits.max(axis=1)
    sound = np.isfinite(top)
    tokens = np.tile(np.arange(count), (len(logits), 1))
    logprobs = np.full(tokens.shape, -np.inf)
    if len(logits) and count and sound.any():
        if not sound.all():
            tokens[sound], logprobs[sound] = likeliest(logits[sound], count)
            return tokens, logprobs
        tokens = _largest(logits, count)
        sums = np.exp(logits - top[:, None]).sum(axis=1, dtype=np.float64)
        logprobs = np.take_along_axis(logits, tokens, 1) - (top.astype(np.float64) + np.log(sums))[:, None]
    return tokens, logprobs


def _largest(values: NDArray[np.float32], count: int) -> IntArray:
    """`sampling.largest` of each row, [n, m] -> [n, count], of all rows at once."""
    reached = values >= floor(values, count)[:, None]
    rows, found = np.divmod(np.flatnonzero(reached), values.shape[1])
    order = np.lexsort((found, -values[rows, found], rows))
    first = np.searchsorted(rows, np.arange(len(values)))  # of each row's, which are `count` or more
    best: IntArray = found[order[first[:, None] + np.arange(count)]]
    return best


def foreseen(
    logits: NDArray[np.float32], count: int, sampler: Sampler, uniforms: list[float]
) -> tuple[IntArray, FloatArray]:
    """`likeliest`, where it is known with which number each token will be drawn: `uniforms` [n].

    The target draws the token in whose interval of its cumulative distribution the number falls. The
    drafter's intervals lie near the target's, so a token is as likely as a number about there is to fall into
    its interval: Laplace's distribution around the number, `BLUR` wide.
    """
    count = min(count, logits.shape[1])
    tokens = np.tile(np.arange(count), (len(logits), 1))
    chances = np.zeros(tokens.shape)
    for i, row in enumerate(logits):
        if not np.isfinite(row.max()):
            continue
        found = sampler.distribution(row)
        running = np.cumsum(found.probs)
        likely = np.flatnonzero(found.probs >= min(FAINT, float(found.probs.max()) / 10))
        above = running[likely]
        edges = np.concatenate([above - found.probs[likely], above, [0.0, running[-1]]]) / running[-1]
        reached = _laplace((edges - uniforms[i]) / BLUR)  # [k + k + 2]
        k = len(likely)
        inside = np.maximum(reached[k : 2 * k] - reached[:k], 0.0) / (reached[-1] - reached[-2])
        best = largest(inside, count)
        tokens[i, : len(best)] = found.ids[likely[best]]
        chances[i, : len(best)] = inside[best]
    with np.errstate(divide="ignore"):
        return tokens, np.log(chances)


def _laplace(x: FloatArray) -> FloatArray:
    """Its cumulative distribution."""
    tail = np.exp(-np.abs(x)) / 2
    return np.where(x < 0, tail, 1 - tail)
