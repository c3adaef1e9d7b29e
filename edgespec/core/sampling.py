"""From a row of logits to a token. Needs numpy, no torch.

Order of the filters: temperature, top-k, top-p, min-p, each on what the one before left, as in
transformers' logits processors (llama.cpp's default chain applies temperature last).

Chance is a function, not a stream: a draw depends on (seed, position, draw) and on nothing that happened
before, so the same seed gives the same text whatever the drafter, the memory dial or the timing.
"""

from __future__ import annotations

import struct
from dataclasses import dataclass
from typing import Any

import numpy as np
import xxhash
from numpy.typing import NDArray

from edgespec.config import GenerationOptions
from edgespec.errors import Call, ModelError

IntArray = NDArray[np.int64]
FloatArray = NDArray[np.float64]

# Draw numbers at one position. Draws of different purpose must differ, or a drafter's luck would be
# correlated with the luck that judges it.
TARGET_DRAW = 0  # the target's own token: plain decoding, the bonus token, the residual
ACCEPT_DRAW = 1  # + rank among its siblings: whether `ratio` keeps a drafted child
DRAFT_DRAW = 1 << 32  # + depth in its chain: a drafter that samples its proposals

FOLDED = 64  # values in each part of a row (`floor`)


class Noise:
    """Uniform numbers keyed by (seed, position, draw): the top 53 bits of XXH3-64 over the three, as
    little-endian 64-bit integers, over 2^53. Stateless, about 1 us a number."""

    def __init__(self, seed: int) -> None:
        self.seed = seed

    def uniform(self, position: int, draw: int = TARGET_DRAW) -> float:
        """A number in [0, 1) for the token at absolute `position`."""
        key = struct.pack("<QQQ", self.seed, position, draw)
        return float((xxhash.xxh3_64_intdigest(key) >> 11) * 2.0**-53)


@dataclass(frozen=True, eq=False)
class Distribution:
    """What may follow: `ids` [m], ascending, and their probabilities `probs` [m], float64, summing to 1."""

    ids: IntArray
    probs: FloatArray

    @property
    def nbytes(self) -> int:
        return self.ids.nbytes + self.probs.nbytes

    def of(self, token: int) -> float:
        """The probability of one token."""
        index = int(np.searchsorted(self.ids, token))
        return float(self.probs[index]) if index < len(self.ids) and self.ids[index] == token else 0.0

    def at(self, tokens: IntArray) -> FloatArray:
        """[k] -> [k] probabilities."""
        index = np.minimum(np.searchsorted(self.ids, tokens), len(self.ids) - 1)
        return np.where(self.ids[index] == tokens, self.probs[index], 0.0)

    def pick(self, uniform: float) -> int:
        """Inverse CDF: the first id whose running sum (float64, in id order) passes uniform x the total."""
        return int(self.ids[_invert(np.cumsum(self.probs), uniform)])


class Sampler:
    """How the options turn a row of logits into a token: a row's bits and the noise decide, nothing else.

    Keeps two work buffers of a row (fresh megabytes cost more page faults than the arithmetic takes), so one
    sampler serves one thread at a time.
    """

    def __init__(self, options: GenerationOptions) -> None:
        self.options = options
        self._buffers = np.empty((2, 0))

    @property
    def greedy(self) -> bool:
        return self.options.temperature == 0

    def distribution(self, logits: NDArray[np.float32]) -> Distribution:
        """[V] -> the distribution the next token is drawn from; at temperature 0 all of it on the argmax.

        Equal logits at the top-k boundary all stay, as in transformers; at the top-p boundary the lower id
        comes first. Raises ModelError as `argmax` does.
        """
        if self.greedy:
            return Distribution(np.array([argmax(logits)]), np.ones(1))
        ids, weights = self._candidates(logits)
        return Distribution(np.arange(len(logits)) if ids is None else ids, weights / weights.sum())

    def pick(self, logits: NDArray[np.float32], noise: Noise, position: int) -> int:
        """The token at absolute `position`, given its row of logits [V]; raises as `distribution`."""
        if self.greedy:
            return argmax(logits)
        ids, weights = self._candidates(logits)
        running = np.cumsum(weights, out=self._buffers[1, : len(weights)])
        index = _invert(running, noise.uniform(position, TARGET_DRAW))
        return index if ids is None else int(ids[index])

    def _candidates(self, logits: NDArray[np.float32]) -> tuple[IntArray | None, FloatArray]:
        """Ids that pass the filters, ascending (None = all), and their weights relative to the best one's, 1.

        The weights may lie in a work buffer.
        """
        options, vocabulary = self.options, len(logits)
        best, ids, kept = logits[argmax(logits)], None, logits
        if 0 < options.top_k < vocabulary:
            high = logits[logits >= floor(logits, options.top_k)]
            kth = np.partition(high, -options.top_k)[-options.top_k]
            ids = np.flatnonzero(logits >= kth)
            kept = logits[ids]
        if self._buffers.shape[1] < len(kept):
            self._buffers = np.empty((2, len(kept)))
        weights = self._buffers[0, : len(kept)]
        self._log_weights(kept, best, weights)
        np.exp(weights, out=weights)
        if options.top_p < 1:
            # What is lighter than an even share of the tail is in the tail; so little is left to be sorted.
            heavy = np.flatnonzero(weights > (1 - options.top_p) * weights.sum() / len(weights))
            logs = self._log_weights(kept[heavy], best, np.empty(len(heavy)))
            heavy = heavy[_nucleus(-logs, weights[heavy], options.top_p * weights.sum())]
            ids, weights = heavy if ids is None else ids[heavy], weights[heavy]
        if options.min_p > 0:
            heavy = np.flatnonzero(weights >= options.min_p)
            ids, weights = heavy if ids is None else ids[heavy], weights[heavy]
        return ids, weights

    def _log_weights(self, logits: NDArray[np.float32], best: np.float32, out: FloatArray) -> FloatArray:
        """[m] -> (logit - best) / temperature, in float64."""
        np.subtract(logits, best, out=out, dtype=np.float64)
        with np.errstate(over="ignore"):  # a tiny temperature may send all but the best to -infinity
            return np.divide(out, self.options.temperature, out=out)


def saguaro(q: Distribution, count: int, weight: float) -> Distribution:
    """What a drafter draws from instead of `q` so that the bonus token is easier to foresee (SSD, Definition
    14): the probabilities of the `count` likeliest tokens (the lower id of equal ones) times `weight`, C of
    the paper, normalised again.

    Refused tokens leave max(p - q, 0), which grows where q was lowered: on the tokens that are prepared for.
    The price is acceptance. `ratio` stays lossless as long as it is given this distribution, not `q`. Where
    no other token can be drawn, q is returned: the limit of weight -> 0. ValueError unless 0 <= weight <= 1.
    """
    if not 0 <= weight <= 1:
        raise ValueError(f"the weight of the likeliest tokens, {weight}, must be in 0...1")
    if not 0 < count < len(q.ids):
        return q
    likely = largest(q.probs, count)
    probs = q.probs.copy()
    probs[likely] *= weight
    total = probs.sum()
    return Distribution(q.ids, probs / total) if total > 0 else q


def largest(values: NDArray[np.floating[Any]], count: int) -> IntArray:
    """[m] -> indices of the `count` largest values, or all, the largest first; of equal ones the lower index.
    Sorts no more than it must: all of 152k would take 24 ms."""
    if not 0 < count < len(values):
        return np.argsort(-values, kind="stable")[: max(count, 0)]
    found = np.flatnonzero(values >= floor(values, count))
    return found[np.argsort(-values[found], kind="stable")[:count]]


def floor(values: NDArray[np.floating[Any]], count: int) -> NDArray[np.floating[Any]]:
    """[..., m] -> [...]: a value of each row that at least `count` of it reach, and few more; count in 1...m.

    It is that of the largest of each of some parts of the row: where so many parts have one, so many values
    are there. Ten of 152k numbers took 1.2 ms to find, and of eight rows 10, more where many are equal; this
    takes 0.04 and 0.3.
    """
    m = values.shape[-1]
    if (parts := m // FOLDED) > count:
        values = values[..., : parts * FOLDED].reshape(*values.shape[:-1], FOLDED, parts).max(axis=-2)
    least: NDArray[np.floating[Any]] = np.partition(values, -count)[..., -count]
    return least


def argmax(logits: NDArray[np.float32]) -> int:
    """The lowest id of the highest logit; raises ModelError when there is none (NaN or infinity)."""
    best = int(logits.argmax())  # NaN counts as the highest
    if not np.isfinite(logits[best]):
        raise ModelError(
            f"the model's logits are not numbers (the highest of {len(logits)} is {logits[best]}): its "
            "weights overflow their precision or are damaged, which can be checked in a packed model",
            hint=Call("verify_store", {"directory": "DIR"}),
        )
    return best


def _invert(running: FloatArray, uniform: float) -> int:
    """Inverse CDF: the first index whose running sum (added one by one) passes uniform x the total."""
    index = np.searchsorted(running, uniform * running[-1], side="right")
    # Rounding can lift the product to the total itself; the last index with weight is then meant.
    return int(min(index, np.searchsorted(running, running[-1], side="left")))


_BINS = 256  # per unit of log-probability
_REACH = 256.0  # in the same unit; whatever lies deeper shares the last bin


def _nucleus(below: FloatArray, weights: FloatArray, target: float) -> IntArray:
    """Indices, ascending, of the smallest set of heaviest tokens whose weights reach `target`.

    Tokens are binned by how far they lie below the best one (`below` [m] >= 0, in log-probability), and only
    the bin in which the sum passes the target is sorted: sorting 256k tokens would take tens of milliseconds.
    """
    bins = (np.minimum(below, _REACH) * _BINS).astype(np.int64)
    running = np.cumsum(np.bincount(bins, weights=weights))
    last = int(np.searchsorted(running, target))
    inside = np.flatnonzero(bins == last)
    inside = inside[np.argsort(below[inside], kind="stable")]  # heaviest first, then lowest id
    before = running[last - 1] if last else 0.0
    needed = int(np.searchsorted(before + np.cumsum(weights[inside]), target)) + 1
    keep = bins < last
    keep[inside[:needed]] = True
    return np.flatnonzero(keep)
