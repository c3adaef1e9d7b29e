"""What a drafter's memory could do for the target instead. Needs no torch."""

from __future__ import annotations

from dataclasses import replace

from edgespec.offload.ledger import Ledger
from edgespec.offload.plan import Plan, choose_pinned


def without_drafter(plan: Plan) -> Plan | None:
    """The plan with layers pinned in the drafter's place; None when that would pin nothing more."""
    owners = plan.owners
    freed = owners.pop("drafter", 0) + owners.pop("substitute", 0)
    left = tuple(c for c in plan.table.chunks if c.index not in plan.pinned | plan.on_device)
    more = choose_pinned(replace(plan.table, chunks=left), freed) if freed and left else []
    if not more:
        return None
    owners["pinned weights"] += sum(c.read_bytes for c in more)
    return replace(
        plan,
        ledger=Ledger(plan.dial, owners),
        pinned=plan.pinned | {c.index for c in more},
        reasons=[*plan.reasons, f"drafting lost: {len(more)} chunks pinned in the drafter's place"],
    )


def speedup(before: Plan, after: Plan) -> float:
    """How much faster plain decoding is predicted to be; 1 where it cannot be told."""
    then, now = before.predicted_cycle_seconds, after.predicted_cycle_seconds
    return then / now if then and now else 1.0
