"""How many bonus tokens to prepare for behind each position of a chain: the shape of the speculation cache.

A chain of K drafted tokens is being verified. Its outcome is a pair: how many of them are accepted (0 ... K)
and the bonus token after these. Of the (K + 1) V outcomes a budget of B can be prepared for: F_k of them with
k tokens accepted, those whose bonus token the drafter finds likeliest (Saguaro, SSD, section 4.1; F_k is its
Definition 10). Needs no torch.

    uniform     the same everywhere
    geometric   Theorem 12: optimal when every token is accepted with the same chance and misses are a power
                law of the fan-out
    measured    Theorem 18: the next outcome goes where it was found to gain most
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from math import log

from edgespec.control.curve import rising
from edgespec.control.estimates import HOPE, LEAN, MEMORY
from edgespec.errors import OptionError
from edgespec.values import did_you_mean


def uniform(budget: int, depth: int) -> list[int]:
    """[K + 1] outcomes by number of accepted tokens, `budget` in all; what is over goes to the first.

    Raises OptionError when `budget` is below K + 1, K being `depth`.
    """
    _check(budget, depth)
    share, over = divmod(budget, depth + 1)
    return [share + (k < over) for k in range(depth + 1)]


def geometric(budget: int, depth: int, acceptance: float, power: float) -> list[int]:
    """[K + 1] outcomes by number of accepted tokens, `budget` in all, by Theorem 12: with a the `acceptance`
    rate of a token and r the `power` of the misses' law 1 - p_hit(F) = F^-r,

        F_k = F_0 a^(k / (1 + r)) for k < K,    F_K = F_0 (a^K / (1 - a))^(1 / (1 + r)).

    The law means nothing below one outcome, so every position has one (among the others the budget is shared
    as before), and what is left of rounding down goes to the largest fractions, the first of equal ones.

    Raises OptionError when `budget` is below K + 1, K being `depth`; ValueError unless 0 <= a <= 1 and r > 0.
    """
    _check(budget, depth)
    if not (0 <= acceptance <= 1 and power > 0):
        raise ValueError(f"acceptance {acceptance} must be in 0...1 and power {power} above 0")
    shares = _shares(budget, _weights(depth, acceptance, power))
    counts = [int(share) for share in shares]
    largest = sorted(range(depth + 1), key=lambda k: counts[k] - shares[k])  # stable
    for k in largest[: budget - sum(counts)]:
        counts[k] += 1
    return counts


def _weights(depth: int, acceptance: float, power: float) -> list[float]:
    """[K + 1] F_k / F_0 of Theorem 12; a token that is always accepted leaves one outcome: all of them."""
    if acceptance == 1:
        return [0.0] * depth + [1.0]
    reached = [acceptance**k for k in range(depth)] + [acceptance**depth / (1 - acceptance)]
    return [chance ** (1 / (1 + power)) for chance in reached]


def _shares(budget: int, weights: Sequence[float]) -> list[float]:
    """[n] of `budget`, proportional to the weights [n], and at least 1 each."""
    shares = [1.0] * len(weights)
    above = [k for k, weight in enumerate(weights) if weight > 0]
    while above:
        left, total = budget - (len(weights) - len(above)), sum(weights[k] for k in above)
        kept = [k for k in above if left * weights[k] >= total]
        if kept == above:
            for k in above:
                shares[k] = left * weights[k] / total
            break
        above = kept
    return shares


def measured(budget: int, curves: Sequence[Sequence[float]]) -> list[int]:
    """[K + 1] outcomes by number of accepted tokens, `budget` in all, by Theorem 18: marginal gains end even.

    curves: [K + 1][m] the chance that so many tokens are accepted *and* that the bonus token is among the
        first 1, 2, ..., m that would be prepared for (the theorem's a^k (1 - a) p^k_hit, a^K p^K,all_hit).

    The next outcome goes where it gains most, which is optimal for gains that fall; where recorded ones do
    not, they are levelled first. Of equal gains, and beyond m, the smallest fan-out comes first. A position
    that gains nothing gets nothing.

    Raises OptionError when `budget` is below K + 1.
    """
    _check(budget, len(curves) - 1)
    gains = [_falling([b - a for a, b in zip([0.0, *curve], curve, strict=False)]) for curve in curves]
    counts = [0] * len(gains)
    for _ in range(budget):
        ahead = [gain[n] if n < len(gain) else 0.0 for gain, n in zip(gains, counts, strict=True)]
        counts[max(range(len(counts)), key=lambda k: (ahead[k], -counts[k], -k))] += 1
    return counts


def _falling(gains: Sequence[float]) -> list[float]:
    """The non-increasing sequence nearest to `gains`."""
    return rising(gains[::-1], [1.0] * len(gains))[::-1]


def _check(budget: int, depth: int) -> None:
    if depth < 0:
        raise ValueError(f"a chain of {depth} tokens")
    if budget <= depth:
        raise OptionError(
            f"a fan-out budget of {budget} is below the {depth + 1} outcomes that a chain of {depth} drafted "
            f"tokens has before its bonus token is guessed; use at least {depth + 1}, or draft at most "
            f"{max(budget - 1, 0)} tokens"
        )


class HitCurves:
    """Where bonus tokens were found, recorded as it happens; fading by cycle.

    Bounded: (depth + 1) x (ranks + 1) counts, however long it goes on.
    """

    def __init__(self, depth: int, ranks: int) -> None:
        """depth: of the longest chain that is told apart, at least 1; beyond, evidence is pooled.
        ranks: guesses behind a position that are told apart.
        """
        self.ranks = ranks
        self._accepted = [0.0] * depth  # drafted tokens at this place of their chain that were accepted
        self._refused = [[0.0] * (ranks + 1) for _ in range(depth)]  # by rank of the bonus token; last: none
        self._full = [0.0] * (ranks + 1)  # likewise, after chains that were accepted whole

    def add(self, accepted: int, depth: int, rank: int | None) -> None:
        """A chain of `depth` drafted tokens was verified. `rank` of the bonus token among the drafter's
        guesses for that outcome, whether prepared for or not: 0 = the first, None = not among them."""
        for counts in (self._accepted, self._full, *self._refused):
            counts[:] = [count * MEMORY for count in counts]
        last = len(self._accepted) - 1
        for k in range(accepted):
            self._accepted[min(k, last)] += 1
        behind = self._full if accepted == depth else self._refused[min(accepted, last)]
        behind[self.ranks if rank is None else min(rank, self.ranks)] += 1

    def acceptance(self) -> float:
        """Of a drafted token whose predecessors were accepted, wherever in the chain (a of Theorem 12)."""
        accepted = sum(self._accepted)
        return (accepted + LEAN * HOPE) / (accepted + sum(map(sum, self._refused)) + LEAN)

    def power(self) -> float:
        """r of Definition 11, 1 - p_hit(F) = F^-r: the line through 0 nearest to log misses over log F."""
        pooled = [sum(counts) for counts in zip(*self._refused, self._full, strict=True)]
        hits = _hits(pooled, _believed(self.ranks))[1:]  # by the law one guess never hits
        logs = [log(fan_out) for fan_out in range(2, self.ranks + 1)]
        rise = -sum(x * log(1 - hit) for x, hit in zip(logs, hits, strict=True))
        return rise / sum(x * x for x in logs) if logs else 1.0

    def curves(self, depth: int) -> list[list[float]]:
        """[K + 1][ranks] what `measured` needs, for a chain of K = `depth`. Each position leans on the one
        before, and the first ones on what is believed without measurements."""
        chance, reached, hits = HOPE, 1.0, _believed(self.ranks)
        found = []
        for k in range(depth):
            if k < len(self._accepted):  # beyond, as the last one
                went_on, refused = self._accepted[k], self._refused[k]
                chance = (went_on + LEAN * chance) / (went_on + sum(refused) + LEAN)
                hits = _hits(refused, hits)
            found.append([reached * (1 - chance) * hit for hit in hits])
            reached *= chance
        full = _hits(self._full, _believed(self.ranks))
        return [*found, [reached * hit for hit in full]]


def _believed(ranks: int) -> list[float]:
    """[ranks] of hits with 1, 2, ... guesses before anything is known: a power law (r = 1) for which the
    first guess is worth something."""
    return [1 - 1 / (fan_out + 1) for fan_out in range(1, ranks + 1)]


def _hits(counts: Sequence[float], believed: Sequence[float]) -> list[float]:
    """[ranks + 1] counts by rank -> [ranks] chance of a hit with 1, 2, ... guesses; below 1."""
    total, found, hits = sum(counts), 0.0, []
    for count, belief in zip(counts, believed, strict=False):
        found += count
        hits.append((found + LEAN * belief) / (total + LEAN))
    return hits


class CacheShape:
    """The shape of a conversation's speculation cache by one of POLICIES; a chain out of the cache and one
    that was drafted after a miss have curves of their own (F^p and F^b of Definition 10)."""

    def __init__(self, policy: str, depth: int, ranks: int) -> None:
        """See `HitCurves`. Raises OptionError for an unknown policy."""
        if policy not in POLICIES:
            hint = did_you_mean(policy, POLICIES, f"choose from {', '.join(POLICIES)}")
            raise OptionError(f"fan-out {policy!r} is unknown; {hint}")
        self._allocate = POLICIES[policy]
        self.after_hit, self.after_miss = HitCurves(depth, ranks), HitCurves(depth, ranks)

    def allocate(self, budget: int, depth: int, hit: bool) -> list[int]:
        """[K + 1] outcomes to prepare for while a chain of K = `depth` is verified, which came out of the
        cache (`hit`) or was drafted after a miss. Raises OptionError when `budget` is below K + 1."""
        return self._allocate(budget, depth, self.after_hit if hit else self.after_miss)

    def add(self, accepted: int, depth: int, rank: int | None, hit: bool) -> None:
        """What became of it; as `HitCurves.add`."""
        (self.after_hit if hit else self.after_miss).add(accepted, depth, rank)


POLICIES: dict[str, Callable[[int, int, HitCurves], list[int]]] = {
    "uniform": lambda budget, depth, curves: uniform(budget, depth),
    "geometric": lambda budget, depth, curves: geometric(budget, depth, curves.acceptance(), curves.power()),
    "measured": lambda budget, depth, curves: measured(budget, curves.curves(depth)),
}
