"""A conversation's schedule, from what the engine was opened with."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING

from edgespec.control.controller import Adaptive
from edgespec.core.schedule import Controller, Schedule
from edgespec.drafters.base import Drafter
from edgespec.drafters.combined import Combined
from edgespec.offload.plan.plan import Plan
from edgespec.schedules.serial import Plain, Serial

if TYPE_CHECKING:
    from edgespec.drafters.resident import Resident


def make_controller(plan: Plan, resident: Sequence[Resident]) -> Adaptive:
    """What an engine believes before its first cycle: by the measured rates of this machine."""
    return Adaptive(plan.costs(sum(r.nbytes for r in resident)))


def make_schedule(drafters: Sequence[Drafter], controller: Controller, nodes: int) -> Schedule:
    """For the conversation of these drafters; `nodes`: of the largest tree, its root included."""
    if not drafters:
        return Plain()
    return Serial(drafters[0] if len(drafters) == 1 else Combined(drafters), controller, nodes)
