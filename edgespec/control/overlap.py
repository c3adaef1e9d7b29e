"""What drafting while the target verifies should gain: the laws of SSD and Mirror-SD.

Times of SSD are in passes of the target (its verification takes 1, as one plain token does); a speedup is
over plain decoding unless it says otherwise. Times of Mirror-SD are in any one unit. Domains: chances in
0...1, times at least 0, tokens a cycle at least 1 (the bonus token); outside them ValueError. Needs no torch.

The tuner predicts by Theorem 7 and Equation 10, `schedules.mirror` reports the latter, and the benchmark of
schedules puts all of SSD's beside what it measures. Nothing here decides in a session: the controller weighs
a late draft against none by what it has measured itself (Theorem 17 for one conversation), and for several in
a pass nobody does: a batch has the serial schedule, and who shares passes otherwise weighs his own misses.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from itertools import accumulate
from math import inf, log

import numpy as np

from edgespec.core.sampling import FloatArray


@dataclass(frozen=True)
class Drafted:
    """What a way of drafting gives and costs.

    tokens: a cycle makes with it, the bonus token included (E).
    seconds: it takes, in passes of the target (T).
    """

    tokens: float
    seconds: float

    def __post_init__(self) -> None:
        if not (self.tokens >= 1 and self.seconds >= 0):
            raise ValueError(f"{self} must make at least 1 token and take no less than no time")


NOTHING = Drafted(tokens=1.0, seconds=0.0)  # a miss that is not drafted for


def serial_speedup(draft: Drafted) -> float:
    """E / (1 + T): draft, then verify (Leviathan et al. 2023; SSD, Corollary 9)."""
    return draft.tokens / (1 + draft.seconds)


def hit_rate(after_hit: float, after_miss: float) -> float:
    """How often the outcome is in the cache on the whole, of the rates `after_hit`, while a tree out of the
    cache is verified, and `after_miss`, while one of the fallback's is (SSD, Equation 1).

    With rates of 1 and 0 nothing is certain: it stays as it began. Then ValueError.
    """
    _chances(after_hit, after_miss)
    changes = (1 - after_hit) + after_miss  # never less than after_miss, whatever the rounding
    if changes == 0:
        raise ValueError("hits always after a hit and never after a miss: the rate depends on the first one")
    return after_miss / changes


def speedup(hits: float, primary: Drafted, fallback: Drafted, batch: int = 1) -> float:
    """SSD, Theorem 7, and Corollary 16 for a batch, all of which waits for the fallback when one misses.

    hits: how often a conversation's outcome is in the cache (see `hit_rate`).
    primary: fills the cache during a pass; what takes longer than that delays the cycle.
    fallback: drafts after a miss, when the pass is over.
    """
    _chances(hits)
    if batch < 1:
        raise ValueError(f"a batch of {batch}")
    together = hits**batch
    tokens = hits * primary.tokens + (1 - hits) * fallback.tokens
    return tokens / (together * max(1, primary.seconds) + (1 - together) * (1 + fallback.seconds))


def speedup_bounds(hits: float, primary: Drafted, serial: Drafted) -> tuple[float, float]:
    """Over the serial schedule with `serial`: at least and at most (SSD, Corollary 9).

    Holds where the cache is filled within a pass (`primary` takes at most 1), the fallback takes no time,
    and a hit makes at least as many tokens as a miss.
    """
    _chances(hits)
    if primary.seconds > 1:
        raise ValueError(f"Corollary 9 is for drafting within a pass, and {primary} takes longer")
    most = (1 + serial.seconds) * primary.tokens / serial.tokens
    return hits * most, most


def critical_batch(hits: float, primary: Drafted, quick: Drafted) -> float:
    """b* of SSD's Theorem 17: in a smaller batch a miss is best drafted for just in time, with `primary`, in
    this or a larger one by `quick`, which takes no time. 0 = always so, infinity = never; where nothing is
    missed it does not matter, and 0.

    The theorem assumes that `primary` takes at most 1; beyond, this goes on with its max(1, T_p).
    """
    _chances(hits)
    if quick.seconds > 0:
        raise ValueError(f"Theorem 17 is for a fallback that takes no time, and {quick} takes some")
    tokens = hits * primary.tokens + (1 - hits) * quick.tokens
    longest, late = max(1.0, primary.seconds), 1 + primary.seconds
    # Both are as quick where p_hit^b is this; with longest = 1 it is the theorem's
    # 1 + 1 / T_p - E_hit / (T_p E).
    even = tokens * late - primary.tokens
    scale = primary.tokens * (longest - 1) + tokens * (late - longest)
    if even >= scale or hits == 1:  # as quick at b = 0 already
        return 0.0
    if even <= 0:
        return inf
    return log(even / scale) / log(hits) if hits > 0 else 0.0


def best_fallback(
    hits: float, primary: Drafted, fallbacks: Mapping[str, Drafted], batch: int = 1
) -> str | None:
    """The name of the fallback with the highest speedup (Corollary 16); of equal ones the quicker, then the
    first. None = `NOTHING`: none of them is worth its time. For two of them, Theorem 17."""
    ways: list[tuple[str | None, Drafted]] = [(None, NOTHING), *fallbacks.items()]
    return max(ways, key=lambda way: (speedup(hits, primary, way[1], batch), -way[1].seconds))[0]


@dataclass(frozen=True)
class Mirrored:
    """A step of Mirror-SD, times in one unit.

    before, behind: the target's layers up to the early exit, and those that follow it: the overlap budget.
    draft: until all branches are drafted.
    early, final: what the early exit and the verification cost beside (its rendezvous: head, top-k, handing
        over).
    """

    before: float
    behind: float
    draft: float
    early: float = 0.0
    final: float = 0.0

    def __post_init__(self) -> None:
        if not min(self.before, self.behind, self.draft, self.early, self.final) >= 0:
            raise ValueError(f"{self} takes less than no time")

    @property
    def step(self) -> float:
        """Equation 10, the latency law: drafting costs what it takes longer than the overlap budget."""
        return self.before + self.early + max(self.behind, self.draft) + self.final

    @property
    def in_waits(self) -> float:
        """Equation 10 for a target that waits for flash, and one thread that asks the exit, and drafts, in
        these waits (or for a worker that drafts beside it, when the exit has spoken).

        The exit is as hidden as the drafting is, so both are on one side of the maximum. And as they have the
        waits and nothing else, and end with the pass whether they are done or not, that side is the smaller
        one: a step may have begun just before its chunk is there, but the next wait is the shorter for it.
        So the law says that nothing is lost, which is a claim: of a pass whose waits are overdrawn, or which
        reads slower while somebody computes, more is measured."""
        return self.before + max(self.behind, self.early + self.draft) + self.final

    @property
    def serial(self) -> float:
        """Equation 5: the same, one after the other; without an early exit."""
        return self.before + self.behind + self.draft

    @property
    def saved(self) -> float:
        """Appendix C: min(budget, draft) less both rendezvous; below 0 = it costs more than it hides."""
        return self.serial - self.step


def deepest_exit(layers: Sequence[float], draft: float) -> int | None:
    """The number of layers before the latest early exit that still hides a `draft` of so much time, given
    what each layer of the target takes; None when even behind the first layer it would not be hidden.

    Within the budget a deeper exit costs nothing and knows more (Mirror-SD, Appendix E.5). There is a layer
    before it and one behind it.
    """
    behind = [*accumulate(reversed(layers))][::-1]  # [N] of layer i and all that follow
    return next((before for before in range(len(layers) - 1, 0, -1) if behind[before] >= draft), None)


def overlap_mass(early: FloatArray, final: FloatArray, count: int) -> float:
    """Mirror-SD's Equation 9: the mass that the target's own distribution `final` [V] has on the `count`
    tokens that are likeliest in `early` [V], at its early exit; the lower token of equal ones.

    It never falls as `count` grows (Proposition 1). What is certain of fallbacks is FF >= 1 - mass: reuse
    needs the first token among these, and all that follow. (Appendix E has <=, which is an equality when each
    step is refused at its first token, and wrong otherwise.)
    """
    if count < 1:
        raise ValueError(f"the {count} likeliest tokens")
    kept = np.argsort(-early, kind="stable")[:count]
    return float(final[kept].sum())


def _chances(*values: float) -> None:
    for value in values:
        if not 0 <= value <= 1:
            raise ValueError(f"{value} is not a chance")
