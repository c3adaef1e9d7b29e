"""What is verified where conversations share passes: the best nodes of all trees, as many as pay.

    A   ○─●─●─·   A tree each. Its root is verified in any case, and gives a token. A draft ● is worth the
    B   ○─●       chance that it is accepted, whoever's it is, and costs what a pass takes longer by one row
    C   ○─·─·     more, as measured: the likeliest of all are taken as long as tokens a second grow by them.

Where rows cost next to nothing (weights stream, or are read from memory in any case) many are taken; the more
conversations there are, the fewer for each; and where rows are bound by arithmetic, none. Nobody then drafts
any more (`control.partner`).

Trying may cost, and is paid from a *credit*, as of `control.controller`, but one for all: what pays is judged
by all tokens of a pass, in passes without drafts over the same conversations. So what drafts lose against
plain decoding has the same bound for any number of them; what is owed is time, however long passes take by
then. Each time that the credit is spent half as much comes in, down to an eighth, until drafts gain again, or
half or twice as many converse: all of them learn by one's trial. And as what was never tried may be dearer
than expected, rows, and those who draft, become more by and by. No clock and no chance here. Needs no torch.

To look whether there is anything to draft takes time, too, and so conversations pause between looks.
"""

from __future__ import annotations

from collections.abc import Sequence
from statistics import fmean, median

import numpy as np
from numpy.typing import NDArray

from edgespec.control.cohort import Cohort
from edgespec.control.controller import (
    ALLOWANCE,
    GRACE,
    GROWTH,
    LONGER,
    REST,
    SAVED,
    STALE,
    WEIGHED,
    WEIGHING,
)
from edgespec.control.costs import Costs
from edgespec.control.estimates import KEPT_LEAN, MEMORY, QUICK, STEPS
from edgespec.core.sampling import FloatArray, IntArray
from edgespec.core.schedule import Offer

LOOKING = 0.005  # of the time may be spent on looks in vain
LONGEST = 32  # cycles of a pause between them
APART = 0.5  # of the trees: so many rows more tell what a row costs
FEW = 4  # nodes that a trial begins with
HALVINGS = 3  # of what comes in
LEARNING = 0.0025  # of plain decoding's time may be spent on learning from it


class Shares:
    """For all conversations of an engine. See `core.schedule.Allotter`."""

    def __init__(self, costs: Costs) -> None:
        self.begin(costs)
        self.credit = GRACE  # passes without drafts that drafting may still lose,
        self._unit = 0.0  # seconds of each, where that is a debt,
        self._spent = 0  # times that it was spent, since drafts have gained,
        self._spenders = 1  # by so many trees
        self.trees = 1  # in the latest pass
        self.took = self.speedup = (
            1.0  # the latest pass, and what was expected of it, as of one without drafts
        )
        self._drafted_rate = 0.0  # tokens a second of it, as expected; 0 = nothing was drafted
        # Who draft for the next pass, those of them with a model, and what that should take.
        self._asked = self._modelled = 0
        self._seconds = 0.0
        self._held = 0  # who would, perhaps
        self._usual = 0.0  # who drafted of late; fading
        self._accepted = self._expected = 0.0  # of drafts of late, by all that their conversations believe
        self._hoped = 0.0  # in this pass, likewise
        self._foreseen = self._came = 0.0  # seconds of passes of late
        self._unheard = 0  # passes that nothing was learned from, in a row
        self._overdue = 0  # passes with drafts where one without was to be timed, since one was
        self._prompted = False  # blocks of prompts were in the latest pass
        self.pause = 0  # cycles between a conversation's looks for drafts, where these are in vain

    def begin(self, costs: Costs) -> None:
        """This is what is known of costs."""
        self.costs = costs
        self.cohort = Cohort()  # who draft for the same pass
        self._draft_seconds: FloatArray | None = None  # as of `draft_seconds`, until something is learned
        self._plain_rate: float | None = None  # as of `rate`, likewise
        self._least: float | None = None  # as of `least`, likewise
        self._affords: NDArray[np.bool_] | None = None  # as of `affords`, until somebody drafts
        self._rest: int | None = None  # as of `rest`, likewise

    def allot(self, offers: Sequence[Offer], most: Sequence[int], others: int, room: int) -> list[IntArray]:
        trees = len(offers) + others
        if trees != self.trees:
            self.trees, self._plain_rate, self._least = trees, None, None
        self._hoped = 0.0
        if all(len(offer.gains) == 1 for offer in offers):
            self._expect(0.0, 0)
            self.speedup = 1.0
            return [np.zeros(1, dtype=np.int64)] * len(offers)
        kept = [_best(offer.gains, nodes) for offer, nodes in zip(offers, most, strict=True)]
        gains = np.concatenate([offer.gains[nodes[1:]] for offer, nodes in zip(offers, kept, strict=True)])
        gains = np.minimum(gains * self.kept, 1.0)
        room = min(room, self._room)
        likeliest = np.argsort(-gains, kind="stable")[: max(room, 0)]
        tokens = trees + np.append(0.0, np.cumsum(gains[likeliest]))
        seconds = self._passes(trees + np.arange(len(tokens)))
        spent = sum(offer.seconds for offer in offers if offer.passes is not None)
        rates = tokens / (seconds + spent)
        # In passes without drafts, when nothing is accepted. However dear drafts turned out to be, a few
        # nodes tell what they are worth (`affords`).
        lost = seconds / seconds[0] - 1
        rates[lost > max(self.credit - spent / float(seconds[0]), float(lost[: FEW + 1][-1]))] = 0.0
        # A pass of other conversations than those that were asked may be the only one of so many trees.
        count = 0 if self._overdue >= REST and self.stale else int(np.argmax(rates))
        self._expect(float(rates[count]), count)
        self._plain_rate = plain = trees / float(seconds[0])
        self.speedup = self.rate / plain
        self._hoped = float(gains[likeliest[:count]].sum()) / self.kept
        chosen = np.zeros(len(gains), dtype=bool)
        chosen[likeliest[:count]] = True
        ends = np.cumsum([len(nodes) - 1 for nodes in kept])
        return [
            np.append(0, nodes[1:][mine])
            for nodes, mine in zip(kept, np.split(chosen, ends[:-1]), strict=True)
        ]

    def _expect(self, rate: float, nodes: int) -> None:
        """So many nodes of drafts are verified in the next pass, which gives `rate` tokens a second with what
        was drafted for it."""
        if rate != self._drafted_rate:
            self._drafted_rate, self._least = rate, None
        if self.stale:
            self._overdue = self._overdue + 1 if nodes else 0

    def record(self, offers: Sequence[Offer], rows: int, tokens: int, seconds: float, prompts: bool) -> None:
        self._usual *= MEMORY
        held, self._held = self._held, 0
        self._asked = self._modelled = 0
        self._seconds = 0.0
        self._affords = self._rest = self._draft_seconds = None
        self._prompted = prompts
        if self._passes_by(offers, seconds):
            self.took = 1.0
            allowed = seconds / self._unit if self.credit < 0 else 1.0
            self.credit = min(self.credit + self._allowance * allowed, SAVED)
            return
        usual = float(self._passes(rows))
        self._foreseen, self._came = QUICK * self._foreseen + usual, QUICK * self._came + seconds
        sure = self.costs.sure(rows, None, False)
        if not prompts:  # whose rows cost otherwise than trees'
            self.costs.add_pass(rows, seconds, plain=self.trees)
        if prompts or sure:  # then one timing alone tells of the machine, not of drafts
            seconds = float(self._passes(rows))
        asked = [offer for offer in offers if offer.passes is not None]
        drafted = [offer for offer in asked if len(offer.gains) > 1]
        in_vain = [offer.seconds for offer in asked if len(offer.gains) == 1]
        self._usual = max(self._usual, len(drafted))
        self.cohort.fade()
        spent = sum(offer.seconds for offer in asked)
        if modelled := [offer for offer in drafted if offer.passes]:
            steps = max(offer.passes or 0 for offer in modelled)  # levels of all are one forward
            step = sum(offer.seconds for offer in modelled) / steps
            spent -= steps * (step - self.cohort.add(len(modelled), step, held))
        for steps in {offer.passes or 0 for offer in drafted}:
            # Of drafts that are made together one may have taken all the time: their mean.
            self.costs.add_draft(steps, fmean(o.seconds for o in drafted if o.passes == steps))
        self._least = self._plain_rate = None
        plain = float(self._passes(self.trees))
        if self.credit < 0:  # time was lost, whatever passes take by now
            self.credit *= self._unit / plain
        self.took = (seconds + spent) / plain
        owed = self.credit < 0
        self.credit += self._allowance * self.took
        self.credit += tokens / self.trees - self.took if drafted else -spent / plain
        if self.credit < 0 and not owed:
            self._spent, self._spenders = min(self._spent + 1, HALVINGS), self.trees
        elif self.credit > GRACE:
            self._spent = 0
        self.credit, self._unit = min(self.credit, SAVED), plain
        if in_vain:
            together = self.trees * median(in_vain)
            self.pause = min(int(together / (LOOKING * plain)), LONGEST)
        if len(offers) == self.trees:  # else not all that came is of drafts that were offered
            self._accepted = QUICK * self._accepted + tokens - self.trees
            self._expected = QUICK * self._expected + self._hoped

    def _passes_by(self, offers: Sequence[Offer], seconds: float) -> bool:
        """It is so short that learning from each would take a share of their time (`WEIGHING` behind a pass,
        which leaves nothing of this in the caches): without drafts fewer tell enough."""
        self._unheard += 1
        short = self._unheard * LEARNING * seconds < WEIGHING and self._unheard < REST << LONGER
        if short and all(offer.passes is None for offer in offers) and not self.stale:
            return True
        self._unheard = 0
        return False

    @property
    def _allowance(self) -> float:
        """Share of the time that comes in."""
        alike = self._spenders / 2 < self.trees < 2 * self._spenders
        return ALLOWANCE / 2**self._spent if alike else ALLOWANCE

    @property
    def kept(self) -> float:
        """What is accepted of drafts, of what all conversations together expected of them."""
        return (self._accepted + KEPT_LEAN) / (self._expected + KEPT_LEAN)

    @property
    def draft_seconds(self) -> FloatArray:
        """[len(STEPS)] seconds of so many steps: of whoever drafts first for the next pass if all do, and of
        another who joins in."""
        if self._draft_seconds is None:
            joins = self._modelled and self.cohort.told
            if self.cohort.known:
                step = self.cohort.line(0.0)[1] if joins else self.cohort.share(self.trees)
                self._draft_seconds = STEPS * step
            else:
                self._draft_seconds = self.costs.draft.at(STEPS) / self.trees
        return self._draft_seconds

    def _next_seconds(self) -> FloatArray:
        """[len(STEPS)] seconds that one more draft of so many steps makes of the next pass."""
        if not self.cohort.known:
            return self.costs.draft.at(STEPS)
        return STEPS * (self.cohort.joining if self._modelled else self.cohort.together(1))

    @property
    def rate(self) -> float:
        """Tokens a second of a pass as of the latest `allot`, as expected."""
        if self._plain_rate is None:
            self._plain_rate = self.trees / float(self._passes(self.trees))
        return max(self._plain_rate, self._drafted_rate)

    @property
    def least(self) -> float:
        """The chance of acceptance with which a node pays for its row in the next pass."""
        if self._least is None:
            # Few more rows are timed as one count with those that are there in any case, and what lies
            # beyond those that were timed is believed to be cheap.
            fewest = max(int(APART * self.trees), 1)
            timed = max(self.costs.verify.largest - self.trees, fewest)
            more = fewest * 2 ** np.arange((timed // fewest).bit_length())
            seconds = self._passes(self.trees + np.append(0, more))
            self._least = float(self.rate * ((seconds[1:] - seconds[0]) / more).min())
        return self._least

    @property
    def _room(self) -> int:
        """Nodes that may be verified, by how many rows passes are known to take. As many as there are trees
        tell what a row costs: few are within what passes without drafts scatter by."""
        return max(FEW, self.trees) + GROWTH * max(self.costs.verify.largest - self.trees, 0)

    @property
    def stale(self) -> bool:
        """What passes without drafts take is not known of late: the next one is to show it. (Drafts that are
        there are made use of, if other conversations have come or gone meanwhile.)"""
        return self.costs.verify.weight(self.trees) < STALE

    @property
    def rest(self) -> int:
        """For so many passes nobody more drafts, by what is left of the credit and comes in, or as one
        without drafts is to be timed. Asked by all for each, and so found out once."""
        if self._rest is None:
            timed = self.stale and not self._prompted  # else its time would tell nothing
            self._rest = 1 if timed else 0 if self.affords.any() else self._until_credit()
        return self._rest

    @property
    def weighing(self) -> int:
        """Passes that a refusal stands, so that to weigh drafts takes a small share of the time."""
        return int(self.trees * WEIGHING / (WEIGHED * float(self._passes(self.trees))))

    def _until_credit(self) -> int:
        alone, longer = self._trial()
        lacking = longer / alone - 1 - self.credit
        known = self.costs.verify.weight(self.trees) >= REST  # else passes may soon turn out to be longer
        return max(1, min(int(lacking / self._allowance), REST << LONGER if known else REST))

    def _trial(self) -> tuple[float, float]:
        """Seconds of a pass without drafts, and of one with a few nodes of them."""
        alone, longer = self._passes(self.trees + np.array([0, FEW])).tolist()
        return alone, longer

    @property
    def price(self) -> FloatArray:
        """[len(STEPS)] tokens that all together make in the time that such drafts of one of them take. That
        nodes are worth theirs, `allot` sees to."""
        return self.pace * self.draft_seconds

    @property
    def pace(self) -> float:
        """Tokens a second that all together make: by passes of late, as medians of what they take leave out
        what every other one waits for."""
        return self.rate * (min(self._foreseen / self._came, 1.0) if self._came else 1.0)

    @property
    def affords(self) -> NDArray[np.bool_]:
        """[len(STEPS)] the credit is enough for one more such draft for the next pass, and to verify a few
        nodes, should none be accepted."""
        if self._affords is None:
            alone, longer = self._trial()
            left = self.credit * alone - self._seconds - (longer - alone)
            self._affords = self._next_seconds() <= left
        return self._affords

    @property
    def granted(self) -> bool:
        """Somebody drafts for the next pass."""
        return self._asked > 0

    @property
    def full(self) -> bool:
        """So many draft for the next pass that others had better see what becomes of it."""
        return self._asked > GROWTH * self._usual

    def hold(self) -> None:
        """Somebody is to see first what becomes of others' drafts."""
        self._held += 1

    def grant(self, place: int) -> None:
        """Somebody drafts STEPS[place] for the next pass."""
        self._seconds += float(self._next_seconds()[place])
        self._asked += 1
        self._modelled += place > 0
        self._affords = self._rest = self._draft_seconds = None

    def _passes(self, rows: IntArray | FloatArray | int) -> FloatArray:
        return np.maximum(self.costs.verify.at(rows), 1e-9)


def _best(gains: FloatArray, count: int) -> IntArray:
    """The `count` nodes with the highest gains, ascending; the root always."""
    return np.sort(np.argsort(-gains, kind="stable")[: max(count, 1)])
