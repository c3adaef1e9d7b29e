"""What a drafter's memory could do for the target instead, and when it should. Needs no torch."""

from __future__ import annotations

from dataclasses import replace

from edgespec.offload.plan.ledger import Ledger
from edgespec.offload.plan.needs import Extras
from edgespec.offload.plan.pinning import choose_pinned
from edgespec.offload.plan.plan import Plan

PATIENCE = 5.0  # cycles that drafting may fall behind, before it is given up for good
MARGIN = 1.05  # that the plan's prediction may be off by


class HandOver:
    """Whether plain decoding, with more layers pinned in the drafter's place, would be ahead by now.

    One for all conversations of an engine, as memory is. What drafting gained earlier does not count: a
    conversation that goes on about something else should not lose what the last one won.
    """

    def __init__(self, speedup: float) -> None:
        """`speedup` of plain decoding with the drafter's memory."""
        self.speedup = speedup
        self.behind = 0.0  # cycles, since drafting was last ahead

    def begin_anew(self) -> None:
        """Another conversation begins: drafting may suit it better."""
        self.behind /= 2

    def record(self, tokens: int, plain_cycles: float) -> bool:
        """A cycle gave `tokens` and took as long as `plain_cycles` plain ones: should the drafter go?"""
        instead = plain_cycles * self.speedup / MARGIN  # tokens in that time
        # As a share, because the tokens of a good drafter's cycles scatter by as many as they are.
        self.behind = max(0.0, self.behind + 1 - tokens / instead)
        return self.behind > PATIENCE


def without_drafter(plan: Plan) -> Plan | None:
    """The plan with layers pinned in the drafter's place; None when that would pin nothing more."""
    owners = plan.owners
    freed = sum(owners.pop(name, 0) for name in plan.extras.names)
    left = tuple(c for c in plan.table.chunks if c.index not in plan.pinned | plan.on_device)
    more = choose_pinned(replace(plan.table, chunks=left), freed) if freed and left else []
    if not more:
        return None
    owners["pinned weights"] += sum(c.read_bytes for c in more)
    return replace(
        plan,
        ledger=Ledger(plan.dial, owners),
        pinned=plan.pinned | {c.index for c in more},
        copied=frozenset(),
        extras=Extras(),
        reasons=[*plan.reasons, f"drafting lost: {len(more)} chunks pinned in the drafter's place"],
    )


def speedup(before: Plan, after: Plan) -> float:
    """How much faster plain decoding is predicted to be; 1 where it cannot be told."""
    then, now = before.predicted_cycle_seconds, after.predicted_cycle_seconds
    return then / now if then and now else 1.0
