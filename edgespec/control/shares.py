"""What is verified where conversations share passes: the best nodes of all trees, as many as pay.

    A   ○─●─●─·   A tree each. Its root is verified in any case, and gives a token. A draft ● is worth the
    B   ○─●       chance that it is accepted, whoever's it is, and costs what a pass takes longer by one row
    C   ○─·─·     more, as measured: the likeliest of all are taken as long as tokens a second grow by them.

Where rows cost next to nothing (weights stream, or are read from memory in any case) many are taken; the more
conversations there are, the fewer for each; and where rows are bound by arithmetic, none. Nobody then drafts
any more (`control.partner`).

Trying may cost, and is paid from a *credit*, as of `control.controller`, but one for all: what pays is judged
by all tokens of a pass, in passes without drafts over the same conversations. So what drafts lose against
plain decoding has the same bound for any number of them. And as what was never tried may be dearer than
expected, rows, and those who draft, become more by and by. No clock and no chance here. Needs no torch.
"""

from __future__ import annotations

from collections.abc import Sequence
from statistics import median

import numpy as np
from numpy.typing import NDArray

from edgespec.control.controller import ALLOWANCE, GRACE, GROWTH, SAVED, STALE
from edgespec.control.costs import PAUSE, Costs
from edgespec.control.estimates import MEMORY, STEPS
from edgespec.core.sampling import FloatArray, IntArray
from edgespec.core.schedule import Offer


class Shares:
    """For all conversations of an engine. See `core.schedule.Allotter`."""

    def __init__(self, costs: Costs) -> None:
        self.begin(costs)
        self.credit = GRACE  # passes without drafts that drafting may still lose
        self.trees = 1  # in the latest pass
        self.took = self.speedup = (
            1.0  # the latest pass, and what was expected of it, as of one without drafts
        )
        self._rate = 0.0  # tokens a second of it, as expected
        self._asked, self._seconds = 0, 0.0  # who draft for the next pass, and what that should take
        self._usual = 0.0  # who drafted of late; fading

    def begin(self, costs: Costs) -> None:
        """This is what is known of costs."""
        self.costs = costs
        self._drafts = costs.draft.at(STEPS)  # seconds of so many steps

    def allot(self, offers: Sequence[Offer], most: Sequence[int], others: int, room: int) -> list[IntArray]:
        self.trees = trees = len(offers) + others
        plain = trees / float(self._passes(trees))
        if all(len(offer.gains) == 1 for offer in offers):
            self._rate, self.speedup = plain, 1.0
            return [np.zeros(1, dtype=np.int64)] * len(offers)
        kept = [_best(offer.gains, nodes) for offer, nodes in zip(offers, most, strict=True)]
        gains = np.concatenate([offer.gains[nodes[1:]] for offer, nodes in zip(offers, kept, strict=True)])
        room = min(room, GROWTH * self.costs.verify.largest - trees)
        likeliest = np.argsort(-gains, kind="stable")[: max(room, 0)]
        tokens = trees + np.append(0.0, np.cumsum(gains[likeliest]))
        seconds = self._passes(trees + np.arange(len(tokens)))
        rates = tokens / (seconds + sum(offer.seconds for offer in offers))
        rates[1:][self._costs(seconds[1:]) > self.credit] = 0.0
        count = 0 if self.stale else int(np.argmax(rates))
        self._rate = max(plain, float(rates[count]))
        self.speedup = self._rate / plain
        chosen = np.zeros(len(gains), dtype=bool)
        chosen[likeliest[:count]] = True
        ends = np.cumsum([len(nodes) - 1 for nodes in kept])
        return [
            np.append(0, nodes[1:][mine])
            for nodes, mine in zip(kept, np.split(chosen, ends[:-1]), strict=True)
        ]

    def record(self, offers: Sequence[Offer], rows: int, tokens: int, seconds: float, prompts: bool) -> None:
        usual = float(self._passes(rows))
        if not prompts:  # whose rows cost otherwise than trees'
            paused = seconds > PAUSE * usual and self.costs.sure(rows, None, False)
            seconds = usual if paused else seconds
            self.costs.add_pass(rows, seconds)
        else:
            seconds = usual
        drafted = [offer for offer in offers if offer.passes is not None]
        self._usual = max(MEMORY * self._usual, len(drafted))
        for steps in {offer.passes or 0 for offer in drafted}:
            self.costs.add_draft(steps, median(o.seconds for o in drafted if o.passes == steps))
        self._asked, self._seconds, self._drafts = 0, 0.0, self.costs.draft.at(STEPS)
        plain = float(self._passes(self.trees))
        self.took = (seconds + sum(offer.seconds for offer in drafted)) / plain
        self.credit += ALLOWANCE * self.took
        if drafted:
            self.credit += tokens / self.trees - self.took
        self.credit = min(self.credit, SAVED)

    @property
    def stale(self) -> bool:
        """What passes without drafts take is not known of late: one is to show it."""
        return self.costs.verify.weight(self.trees) < STALE

    @property
    def price(self) -> FloatArray:
        """[len(STEPS)] tokens that all together make in the time that such drafts of one of them take. That
        nodes are worth theirs, `allot` sees to."""
        return self._rate * self._drafts

    @property
    def affords(self) -> NDArray[np.bool_]:
        """[len(STEPS)] the credit is enough for one more such draft for the next pass, should none be
        accepted."""
        left = self.credit * float(self._passes(self.trees)) - self._seconds
        return (self._drafts <= left) & (self._asked <= GROWTH * self._usual)

    def grant(self, place: int) -> None:
        """Somebody drafts STEPS[place] for the next pass."""
        self._asked += 1
        self._seconds += float(self._drafts[place])

    def _costs(self, seconds: FloatArray) -> FloatArray:
        """What is lost, in passes without drafts, when nothing is accepted in so many."""
        return seconds / self._passes(self.trees) - 1

    def _passes(self, rows: IntArray | FloatArray | int) -> FloatArray:
        return np.maximum(self.costs.verify.at(rows), 1e-9)


def _best(gains: FloatArray, count: int) -> IntArray:
    """The `count` nodes with the highest gains, ascending; the root always."""
    return np.sort(np.argsort(-gains, kind="stable")[: max(count, 1)])
