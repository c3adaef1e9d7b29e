"""How much to draft and to verify: whatever makes the most tokens per second, measured as it goes.

A cycle costs drafting + verification and gives 1 + accepted tokens. Before a cycle the controller chooses
how many passes to draft with (or not to draft at all), and once the tree is there, how many of its nodes to
verify. It believes:

    what a cycle costs              means by number of draft passes and of verified nodes, straight lines
                                    between; what was never tried is extrapolated as max(I/O, compute) would
                                    have it
    a node's chance of acceptance   the drafter's probability x a factor by depth and rank: accepted / claimed
    what a number of passes gives   the mean of what its trees promised by these chances, leaning on all trees

Costs are learned by all conversations of an engine together. Acceptance is a conversation's own; it begins
with some trust in what the one before had found.

All this fades, so what was given up is tried again some day. Trying may cost, and is paid from a *credit*: a
share of the time and what drafting gained go in, what it lost against plain decoding comes out. Whatever is
hoped for, a cycle that would overdraw the credit by giving a single token is not begun, and a tree of more
nodes than were expected is cut to what a plain cycle more would bear. So drafts that cost what is believed
lose no more than `GRACE` plain cycles in a first conversation, and `SAVED` where they had paid, beside that
share. And drafts get longer by and by, so that a drafter much dearer than expected is found out by one pass:
the first is so long that the credit bears two if a pass takes `DOUBT` times what the plan says.

To weigh all this takes time, too, so where a cycle is short a refusal stands for some (`REST`; behind others,
more), which are taken to be as plain ones were: nothing is learned from them.

No clock and no chance here: the same recorded cycles lead to the same decisions. Needs no torch.
"""

from __future__ import annotations

from copy import deepcopy
from dataclasses import replace

import numpy as np

from edgespec.control.beliefs import Beliefs
from edgespec.control.costs import Costs
from edgespec.control.curve import PAUSE
from edgespec.control.early_exit import Asking
from edgespec.control.estimates import STEPS
from edgespec.control.hits import Hits
from edgespec.control.notes import Notes
from edgespec.control.stalls import Stalls
from edgespec.core.sampling import FloatArray
from edgespec.core.schedule import Allotter, TreeBudget
from edgespec.core.trace import Cycle, Overlap
from edgespec.core.tree import TokenTree
from edgespec.offload.plan.costs import CostModel

ALLOWANCE = 0.015  # of the time may be lost by drafting
GRACE = 4.0  # plain cycles' worth of credit to begin with,
DOUBT = 15.0  # times what the plan says may a pass of drafting take before one was timed
GROWTH = 3  # times as long as those of late may a draft be, and one step more
SAVED = 10.0  # and at most: old gains do not pay for new losses
APART = 15  # cycles lie between two conversations, as far as acceptance is concerned
REST = 8  # cycles that a refusal stands, at most: beliefs change little,
LONGER = 2  # and one that follows another twice as long, up to so many doublings
WEIGHING = 3e-4  # seconds, about, that a cycle takes longer when drafts are weighed,
WEIGHED = 0.01  # and what share of plain decoding's time that may be
TOLD = 0.06  # plain cycles a pass until then that the first plain one may lose where drafts pay,
STALE = 0.1  # and weight of evidence on plain cycles below which one is measured again


class Adaptive:
    """See the module. `allotter`: says what is verified where conversations share passes."""

    allotter: Allotter | None = None

    def __init__(self, prior: CostModel | None = None) -> None:
        self.costs = Costs(prior)
        self.beliefs = Beliefs()
        self.hits, self.asking, self.stalls = Hits(), Asking(), Stalls()
        self.credit = GRACE  # plain cycles that drafting may still lose
        self._rate = 0.0  # the highest expected tokens per second, as of the last budget
        self._overlaps = False  # the drafter is to go on in the next pass, likewise
        self._drafting = 0.0  # seconds of drafting before it, likewise
        self.took: float | None = 1.0  # the latest cycle, in plain cycles
        self.speedup: float | None = 1.0
        self.refusal: str | None = None
        self._pause = 0  # cycles until drafts are weighed again
        self._refusals = 0  # without a draft between them
        self._rested = 0  # cycles that have not faded yet

    @property
    def pauses(self) -> bool:
        return self._pause > 1

    def rested(self) -> None:
        self._pause -= 1
        self._rested += 1
        self.took = self.speedup = 1.0
        self.credit = min(self.credit + ALLOWANCE, SAVED)

    @property
    def rests(self) -> bool:
        return self.pauses

    @property
    def pays(self) -> bool:
        """Drafts were worth their time in the latest cycle that had room for them."""
        return self.refusal is None

    def successor(self) -> Adaptive:
        """For the next conversation of the engine. Costs are learned by all of them together; how well drafts
        do may be another matter there, so it counts as if it had been a while ago."""
        successor = self._another()
        successor.costs, successor.stalls = self.costs, self.stalls
        successor.beliefs = deepcopy(self.beliefs)
        successor.beliefs.fade(APART)
        successor.beliefs.begin_anew()
        successor.hits = deepcopy(self.hits)  # the waits are the machine's: it would hope anew in each reply
        successor.asking = deepcopy(self.asking)
        successor.asking.fade(APART)
        successor.credit = min(self.credit, GRACE)
        successor._rate = self._rate
        return successor

    def _another(self) -> Adaptive:
        """Of the same kind, that knows nothing."""
        return Adaptive()

    def alone(self, nodes: int) -> float | None:
        return float(self.costs.passes(nodes, overlapped=False)) if self.costs.verify.known else None

    def notes(self) -> Notes:
        """What the next process may begin with."""
        learned = self.successor()
        return {
            "costs": self.costs.notes(),
            "beliefs": learned.beliefs.notes(),
            "hits": learned.hits.notes(),
            "asking": learned.asking.notes(),
        }

    def recall(self, notes: Notes) -> None:
        """Begin with them, or, raising ValueError, TypeError or KeyError, with what was there before."""
        costs, beliefs, hits, asking = Costs(self.costs.prior), Beliefs(), Hits(), Asking()
        costs.recall(notes["costs"])
        beliefs.recall(notes["beliefs"])
        hits.recall(notes["hits"])
        asking.recall(notes["asking"])
        self.costs, self.beliefs, self.hits, self.asking = costs, beliefs, hits, asking

    def budget(self, limit: TreeBudget, passes: range) -> TreeBudget | None:
        if self._rests(limit):
            return None
        tokens, nodes = self._drafts()
        seconds = np.maximum(self.costs.cycle(nodes, STEPS), 1e-9)
        most = self._most(limit, passes)
        sensible = (passes.start <= STEPS) & (most >= STEPS) & (seconds * self.plain_rate - 1 <= self.credit)
        rates = np.where(sensible, tokens / seconds, 0.0)
        best = int(np.argmax(rates))
        self._overlaps = False
        self._believe(float(rates[best]))
        self._refuse(float(rates[best]))
        if self.refusal is not None:
            return None
        self._drafting = float(self.costs.draft.at(STEPS[best]))
        return replace(limit, passes=int(STEPS[best]), price=self._price)

    def overlapped(
        self, limit: TreeBudget, passes: range, prepared: TokenTree, width: int
    ) -> tuple[TreeBudget | None, TokenTree]:
        """Everything has a price in time, and time is worth the best rate in the long run: what gains most at
        that price, beside what is prepared."""
        if self._rests(limit):
            return None, prepared
        tokens, nodes = self._drafts()
        tokens = np.maximum.accumulate(tokens)
        if passes.start:
            tokens[0] = nodes[0] = 1.0  # without a pass nothing is drafted
        most = self._most(limit, passes)
        best = self._in_the_long_run(tokens, nodes, most, passes.start)
        self._believe(best)
        self._refuse(best)
        if self.refusal is not None:
            return None, prepared
        prepared = self._cut(prepared, 0.0, self.credit)  # the rest is not verified, so it has no price
        given, found, even = self.beliefs.worth(prepared, tokens, width)
        more = STEPS - STEPS[even]
        seconds = self.costs.passes(np.maximum(nodes, len(prepared)), self._overlaps)
        seconds[even] = self.costs.passes(len(prepared), self._overlaps)
        seconds += self.costs.draft.at(np.maximum(more, 0))
        possible = (more >= 0) & (more <= most) & (seconds * self.plain_rate - 1 <= self.credit)
        if not possible.any():
            self._refuse(0.0)
            return None, prepared
        gains = given + tokens - tokens[even] - self._rate * seconds
        chosen = int(more[np.argmax(np.where(possible, gains, -np.inf))])
        self._drafting = float(self.costs.draft.at(chosen))
        return replace(limit, passes=chosen, found=found, ahead=self._overlaps, price=self._price), prepared

    def _drafts(self) -> tuple[FloatArray, FloatArray]:
        """Tokens and nodes of drafts of so many steps, [len(STEPS)] each: as wide as trees have been, or, if
        more tokens a second come of it, as narrow as can be: where rows are dear `prune` leaves little."""
        gives, chances = self.beliefs.gives, self.beliefs.chances
        wide, narrow = np.array(gives.expect(chances.by_depth)), np.array(gives.chains(chances.along))
        narrow[0] = np.minimum(narrow[0], wide[0])
        took = [np.maximum(self.costs.cycle(nodes, STEPS), 1e-9) for nodes in (wide[1], narrow[1])]
        tokens, nodes = np.where(narrow[0] / took[1] > wide[0] / took[0], narrow, wide)
        return tokens, nodes

    def _in_the_long_run(self, tokens: FloatArray, nodes: FloatArray, most: float, least: int) -> float:
        """The best rate of `least` to `most` passes that give so many tokens of so many nodes, [len(STEPS)]
        each; and whether that is with drafting in the waits."""
        drafts, sensible = self.costs.draft.at(STEPS), most >= STEPS
        alone, beside = (np.maximum(self.costs.passes(nodes, on), 1e-9) for on in (False, True))
        serial = np.where(sensible & (least <= STEPS), tokens / (alone + drafts), 0.0)
        ahead = 0.0
        if sensible.any():  # else nobody drafts any more
            ahead = self.hits.tokens_per_second(tokens[sensible], beside[sensible], drafts[sensible])
        self._overlaps = ahead >= float(serial.max())
        return max(ahead, float(serial.max()))

    def _believe(self, rate: float) -> None:
        """The best draft would give so many tokens a second."""
        self._rate = max(self.plain_rate, rate)
        self.speedup = self._rate / self.plain_rate

    @property
    def _price(self) -> float:
        """Tokens that a second costs, as drafters promise them."""
        return float(self._rate / self.beliefs.gives.kept)

    def _rests(self, limit: TreeBudget) -> bool:
        """There is no room for drafts, a refusal stands, or a plain cycle is to show what one costs, which it
        is the later the more it would lose."""
        self.speedup = 1.0
        if limit.depth < 1 or limit.nodes < 2 or self._pause > 0:
            return True
        if self.costs.verify.weight(1) >= STALE:
            return False
        loses = self._rate / self.plain_rate - 1
        return not self.costs.foretold(limit.nodes, loses / TOLD)

    def _most(self, limit: TreeBudget, passes: range) -> float:
        """Passes beyond the depth that the reply has left are wasted; many whose cost is a guess may be."""
        longest = 1 + GROWTH * self.costs.longest
        if not self.costs.draft.known and (step := self.costs.prior.step) > 0:
            dearest = DOUBT * step * self.plain_rate  # and one timing alone may be a pause of the machine
            longest = max(longest, self.credit / (2 * dearest))
        return min(passes.stop - 1, max(min(limit.depth, longest), passes.start))

    def _refuse(self, rate: float) -> None:
        """If the best draft would give so many tokens a second, no more than plain decoding."""
        self.refusal = self._refusal(rate)
        if self.refusal is not None:
            self._stand(min(int(WEIGHING / WEIGHED * self.plain_rate), self._longest))

    @property
    def _longest(self) -> int:
        """Cycles that a refusal may stand."""
        return REST << min(self._refusals, LONGER)

    def _stand(self, cycles: int) -> None:
        """The refusal does, so long."""
        self._pause, self._refusals = cycles, self._refusals + 1

    def _refusal(self, rate: float) -> str | None:
        """Why nothing is drafted, where the best draft would give `rate` tokens a second."""
        if rate > self.plain_rate:
            return None
        if rate:
            return f"drafts would give {rate:.3g} tokens a second, plain decoding {self.plain_rate:.3g}"
        return (
            "drafts cost more time than they saved; they are tried again now and then, in at most "
            f"{ALLOWANCE:.1%} of the time"
        )

    def asks(self) -> bool:
        return self.asking.choose()

    def prune(self, tree: TokenTree) -> TokenTree:
        """The nodes that earn their verification at the best rate known, as far as credit bears that, and a
        plain cycle more; a sampled tree stays whole."""
        return self._cut(tree, self._drafting, self.credit + 1)

    def _cut(self, tree: TokenTree, drafting: float, credit: float) -> TokenTree:
        """`drafting`: seconds that the tree has taken."""
        if tree.drafts is not None or len(tree) == 1:
            return tree
        scores = self.beliefs.chances.scores(tree)
        likeliest = np.argsort(-scores, kind="stable")
        tokens = np.cumsum(np.exp(scores[likeliest]))
        seconds = self.costs.passes(np.arange(1, len(tree) + 1), self._overlaps)
        borne = (drafting + seconds) * self.plain_rate - 1 <= credit  # should all of it be wrong
        worth = np.where(borne, tokens, 0.0) - self._rate * seconds
        return tree.select(np.sort(likeliest[: int(np.argmax(worth)) + 1]))

    def gains(self, tree: TokenTree) -> FloatArray | None:
        return None

    def record(self, cycle: Cycle) -> None:
        if self.pauses and cycle.passes is None:
            self.rested()
            return
        self._pause -= 1
        self._rested += 1
        if self.refusal is None and cycle.passes is not None:
            self._refusals = 0
        beside, tokens = cycle.outcome.beside, len(cycle.outcome.tokens)
        nodes = len(cycle.tree) + beside  # what the pass cost
        overlap = cycle.overlap or Overlap()
        for fading in (self.beliefs, self.hits, self.asking):
            fading.fade(self._rested)
        self.stalls.pass_by(self._rested / self.plain_rate)
        self._rested = 0
        ahead, alone = overlap.ahead, float(self.costs.verify.at(nodes))
        drafts = float(self.costs.draft.at(cycle.passes or 0))
        usual, sure = float(self.costs.passes(nodes, ahead)), self.costs.sure(nodes, cycle.passes, ahead)
        seconds = self.stalls.counts(cycle, drafts, drafts + usual, sure)
        if not cycle.outcome.prompts:  # whose rows cost otherwise than trees'
            self.costs.add(nodes, cycle.verify_seconds, cycle.passes, cycle.draft_seconds, ahead)
        self.costs.tried(overlap.passes)
        # A plain cycle would have shared the pass with the same others.
        self.took = took = seconds / max(float(self.costs.verify.at(1 + beside)), 1e-9)
        self.credit += ALLOWANCE * took
        saved = None
        if cycle.passes is not None:
            steps = min(cycle.passes + overlap.found, int(STEPS[-1]))
            self.beliefs.learn(steps, cycle.tree, cycle.outcome)
            if overlap.hit is not None:
                # A hit is asked for, too: of a worker, or of one far away, that takes its time.
                saved = self.costs.drafting(overlap.found) if overlap.hit else 0.0
                self.hits.add(overlap.hit, saved)
            self.credit += tokens - took
        late = min(cycle.verify_seconds, PAUSE * alone) - alone
        self.asking.learn(saved, overlap.asked, late if ahead else None)
        self.credit = min(self.credit, SAVED)

    @property
    def plain_rate(self) -> float:
        """Tokens per second without drafts."""
        return 1 / max(float(self.costs.verify.at(1)), 1e-9)
