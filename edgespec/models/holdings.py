"""What an engine holds in memory under its dial, and how it changes hands between passes. Needs no torch."""

from __future__ import annotations

from collections.abc import Callable, Sequence

from edgespec.control.handover import HandOver, speedup, without_drafter
from edgespec.core.schedule import Schedule
from edgespec.core.trace import Cycle
from edgespec.devices.allocator import return_freed_memory
from edgespec.devices.probe import forget_peak, peak_memory
from edgespec.drafters.resident import Exits, Outside, Resident, Sharing
from edgespec.offload.plan.plan import Plan
from edgespec.runtimes.target import Target


class Holdings:
    """A target's weights, what drafts for it and its early exit, as `plan` shares out memory among them.

    Whoever changes them has the verifier's turn, so that no pass is under way.
    """

    def __init__(
        self,
        target: Target,
        plan: Plan,
        resident: Sequence[Resident] = (),
        exits: Exits | None = None,
        as_asked: bool = False,
    ) -> None:
        """as_asked: what is pinned was the user's choice, so drafters keep their memory."""
        self.target, self.exits, self.as_asked = target, exits, as_asked
        self.resident = list(resident)  # drafters,
        # and those of them that are elsewhere: asked once, as of a protocol it takes 20 us, each cycle.
        self._outsiders = [one for one in self.resident if isinstance(one, Outside)]
        self._outside = self._before = 0  # bytes, as of `peak_memory`; the latter until a worker was closed
        self.adopt(plan)

    def adopt(self, plan: Plan) -> None:
        """This is how memory is used from now on."""
        self.plan = plan
        keeps = not self.resident or self.as_asked or plan.sequences > 1
        self.without_drafter = after = None if keeps else without_drafter(plan)
        self.handover = HandOver(speedup(plan, after) if after else 1.0)

    @property
    def gone(self) -> bool:
        """Nobody is left who could draft with the memory that is held for it."""
        return len(self._outsiders) == len(self.resident) and all(one.gone for one in self._outsiders)

    def concerns(self, cycle: Cycle) -> bool:
        """Whether memory could change hands at all, and this cycle has something to say to it."""
        return self.without_drafter is not None and (cycle.took is not None or self.gone)

    def losing(self, cycle: Cycle) -> bool:
        """Whether, after this cycle, layers should have the drafters' memory."""
        if not self.concerns(cycle):
            return False
        took, tokens = cycle.took, len(cycle.outcome.tokens)
        return self.gone or (took is not None and self.handover.record(tokens, took))

    def hand_over(self, schedule: Schedule, check: Callable[[], None]) -> None:
        """Pin layers in the drafters' place. `check` raises Cancelled; what is not pinned by then streams."""
        after = self.without_drafter
        assert after is not None
        if not self.gone:  # else it is known why
            schedule.give_back(after.reasons[-1])
        self._before = self.peak_memory()
        self.close()
        self._outside = 0
        return_freed_memory()
        self.target.weights.pin(after.pinned, progress=lambda nbytes: check())
        self.plan, self.without_drafter = after, None

    def move(self, plan: Plan, give_back: Callable[[str], None]) -> None:
        """Use memory by another plan. After any error it is used as before, but for drafters whose copies
        are gone: they are closed, and `give_back` told why."""
        copies = plan.copied != self.plan.copied
        sharing = [resident for resident in self.resident if copies and isinstance(resident, Sharing)]
        try:
            self.target.weights.move(plan)
            for resident in sharing:
                resident.share(plan.copied)
        except BaseException:
            if sharing:  # of what is gone
                give_back("its memory could not follow the dial")
                self.close()
            self.target.weights.move(self.plan)
            raise
        finally:
            return_freed_memory()
        forget_peak()
        self._before = 0
        self.adopt(plan)

    def peak_memory(self) -> int:
        """Bytes this process has used at most: what the dial caps (`devices.probe.peak_memory`). A draft
        worker's are among them."""
        now = sum(one.outside for one in self._outsiders)
        self._outside = max(self._outside, now)
        return max(self._before, peak_memory(self._outside))

    def close(self) -> None:
        """Free what drafts."""
        self._outsiders = []
        while self.resident:
            self.resident.pop().close()
        if self.exits is not None:
            self.exits.close()
