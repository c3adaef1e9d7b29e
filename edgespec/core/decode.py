"""The core loop: propose a tree, verify it in one pass of the target, keep what the target agrees with.

Plain decoding is the same loop with trees of one node. This module speaks token ids; text stays at the edge.
"""

from __future__ import annotations

from collections.abc import Generator

from edgespec.core.acceptance import Acceptance
from edgespec.core.sampling import Noise
from edgespec.core.schedule import Schedule
from edgespec.core.trace import Cycle, Trace
from edgespec.core.verify import S, Verifier
from edgespec.runtimes.base import PassObserver


def decode(
    verifier: Verifier[S],
    seat: S,
    root: int,
    acceptance: Acceptance,
    noise: Noise,
    schedule: Schedule,
    observer: PassObserver | None = None,
    trace: Trace | None = None,
) -> Generator[Cycle, None, None]:
    """Cycles for ever, from the last emitted token on; the last token of each one's outcome is the next root.

    `observer` hears of the passes, the schedule only through it; `trace` how long drafts and passes took.
    """
    trace = trace or Trace()
    while True:
        with verifier.turn:
            if observer is not None:
                observer.on_chunk()  # the reply may have been cancelled, and its engine closed, meanwhile
            with trace.telling("draft"):
                tree = schedule.next_tree(root)
        with trace.telling("verify"):
            (outcome,) = verifier.verify([(seat, tree, noise)], acceptance, observer)
        yield schedule.settle(outcome)
        root = outcome.bonus
