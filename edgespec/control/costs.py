"""What the controller believes about the cost of passes and of drafting. Needs no torch."""

from __future__ import annotations

import numpy as np

from edgespec.control.curve import AGREE, Curve, bucket
from edgespec.control.estimates import MEMORY
from edgespec.control.notes import Notes, from_notes
from edgespec.core.sampling import FloatArray, IntArray
from edgespec.offload.plan.costs import CostModel

SURE = 2.0  # cycles' worth of evidence
AGAIN = 0.02  # of the time may go into trying again whether overlapped passes are still slow
FORETOLD = 8  # passes at first, or more, in which the plan's word for one of one row will do


class Costs:
    """What passes and drafting cost. All conversations of an engine learn it together."""

    def __init__(self, prior: CostModel | None = None) -> None:
        self.prior = prior = prior or CostModel()
        beside = prior.overhead + prior.apart
        self.verify = Curve(prior.passes, beside=beside)
        self.overlapped = Curve(prior.passes)  # passes with drafting in their waits
        self.draft = Curve(prior.steps, start=0.0)
        self.longest = 0.0  # draft of late, in steps; fading
        self._timed = 0  # passes
        self._rest = 0.0  # seconds of other passes, until overlapped ones are as if they had never been timed

    def cycle(self, nodes: FloatArray | int, steps: IntArray | int) -> FloatArray:
        """Seconds of cycles that draft so many steps and verify so many nodes; counts as arrays or not."""
        return self.verify.at(nodes) + self.draft.at(steps)

    def drafting(self, steps: int) -> float:
        """Seconds of so many steps themselves, without what a draft of none takes."""
        none, some = self.draft.at(np.array([0, steps]))
        return float(some - none)

    def passes(self, nodes: FloatArray | IntArray | int, overlapped: bool) -> FloatArray:
        """Seconds of passes, with drafting in their waits or without: as long until more is known, as nothing
        gets quicker by it."""
        alone = self.verify.at(nodes)
        return np.maximum(alone, self.overlapped.at(nodes)) if overlapped and self._rest > 0 else alone

    def foretold(self, rows: int, passes: float = 0) -> bool:
        """No plain pass need be timed yet, in the first `passes` and `FORETOLD` at least: by the plan flash
        bounds one of so many rows, too, so that any pass tells what a plain one costs. Until one takes longer
        than the plan says, or less: it may be the disk, or rows that are dearer here (of bf16, six cost one
        more where there is no AMX)."""
        took, io = float(self.verify.at(rows)), self.prior.io
        if self._timed >= max(FORETOLD, passes) or not io / AGREE <= took <= io * AGREE:
            return False
        return self.prior.io > float(self.prior.computing(np.array(rows)))

    def sure(self, nodes: int, steps: int | None, overlapped: bool) -> bool:
        """Such passes and drafts were timed often enough of late to tell a pause of the machine by."""
        passes = self.overlapped if overlapped else self.verify
        return passes.weight(nodes) >= SURE and (not steps or self.draft.weight(steps) >= SURE)

    def add(
        self,
        nodes: int,
        verify_seconds: float,
        steps: int | None,
        draft_seconds: float,
        overlapped: bool = False,
    ) -> None:
        """A cycle; `steps` None = the drafter was not asked. `overlapped`: it drafted in the pass's waits."""
        self.add_pass(nodes, verify_seconds, overlapped)
        if steps is not None:
            self.add_draft(steps, draft_seconds)

    def add_pass(
        self, nodes: int, verify_seconds: float, overlapped: bool = False, plain: int | None = None
    ) -> None:
        """A pass; what was known fades. plain: nodes of it without drafts, where that is to be told from
        hardly more."""
        self._timed += 1
        self.verify.fade()
        self.overlapped.fade()
        self.draft.fade()
        self.longest *= MEMORY
        if overlapped:
            if self._rest <= 0:
                self.overlapped = Curve(self.prior.passes)
            self.overlapped.add(nodes, verify_seconds)
            alone = float(self.verify.at(nodes))
            self._rest = max(float(self.overlapped.at(nodes)) - alone, alone) / AGAIN
        else:
            few = plain is not None and nodes > plain and bucket(nodes) == bucket(plain)
            self.verify.add(nodes, verify_seconds, apart=few)
            self._rest -= verify_seconds

    def add_draft(self, steps: int, seconds: float) -> None:
        """A draft before the pass that was added last."""
        self.draft.add(steps, seconds)
        self.longest = max(self.longest, steps)

    def notes(self) -> Notes:
        curves = {"verify": self.verify, "overlapped": self.overlapped, "draft": self.draft}
        numbers = {"longest": round(self.longest, 3), "rest": round(max(self._rest, 0.0), 3)}
        return {name: curve.notes() for name, curve in curves.items()} | numbers

    def recall(self, notes: Notes) -> None:
        """As if measured just now. Raises ValueError, TypeError or KeyError, in the midst of it."""
        self.longest, self._rest = float(from_notes(notes["longest"])), float(from_notes(notes["rest"]))
        self.verify.recall(notes["verify"])
        self.overlapped.recall(notes["overlapped"])
        self.draft.recall(notes["draft"])

    def tried(self, steps: int) -> None:
        """So many were made in a pass's waits, of more rows and between other work: no measure of what a
        draft costs, but as many steps are no adventure any more, once some were timed."""
        if self.draft.known:
            self.longest = max(self.longest, steps)
