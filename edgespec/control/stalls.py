"""Pauses of the machine, which are nobody's fault, told from a drafter that keeps stalling. Needs no torch.

A cycle that takes far longer than usual counts as a usual one: the machine was elsewhere, and would have been
without drafts. What drafts were waited for is another matter if it comes again and again (a worker that
swaps, or a device that others use): medians never show it, and plain decoding would not have waited. So of
such waits no more than a share of the time is forgiven; beyond that they count in full.
"""

from __future__ import annotations

from edgespec.control.curve import PAUSE
from edgespec.core.trace import Cycle

FORGIVEN = 0.02  # of the time may be waits for drafts that count for nothing


class Stalls:
    """See the module. All conversations of an engine share one: a worker stalls for any of them."""

    def __init__(self) -> None:
        self._forgiven = 0.0  # seconds, less their share of the time since

    def pass_by(self, seconds: float) -> None:
        """So much time has."""
        self._forgiven = max(0.0, self._forgiven - FORGIVEN * seconds)

    def counts(self, cycle: Cycle, drafts: float, usual: float, sure: bool) -> float:
        """Seconds that it counts as. drafts, usual: seconds of its drafting, and of all of it, as believed;
        sure: that was timed often enough."""
        seconds = cycle.draft_seconds + cycle.verify_seconds
        if not seconds > PAUSE * usual > 0:
            return seconds
        counted, waited = usual if sure else PAUSE * usual, cycle.draft_seconds - drafts
        if waited <= counted or cycle.verify_seconds > PAUSE * (usual - drafts):  # the pass took long, too
            return counted
        if self._forgiven > 0:
            return counted + waited
        self._forgiven = waited
        return counted
