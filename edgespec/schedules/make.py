"""A conversation's schedule, from what the engine was opened with."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING

from edgespec.control.controller import Adaptive
from edgespec.drafters.base import Drafter
from edgespec.drafters.combined import Combined
from edgespec.drafters.ngram import NGram
from edgespec.offload.plan.plan import Plan
from edgespec.schedules.serial import Plain, Serial

if TYPE_CHECKING:
    from edgespec.drafters.resident import Resident
    from edgespec.engine import Engine
    from edgespec.runtimes.torch.kv_cache import TorchKVCache


def make_controller(plan: Plan, resident: Sequence[Resident]) -> Adaptive:
    """What an engine believes before its first cycle: by the measured rates of this machine."""
    return Adaptive(plan.costs(sum(r.nbytes for r in resident)))


def make_schedule(engine: Engine, cache: TorchKVCache) -> Plain:
    """For the conversation whose cache this is."""
    members: list[Drafter] = [NGram()] if "ngram" in engine.drafters else []
    members += [resident.drafter(cache, engine.config.vocab_size) for resident in engine.resident]
    if not members:
        return Plain()
    drafter = members[0] if len(members) == 1 else Combined(members)
    return Serial(drafter, engine.controller.heir(), engine.options.tree_nodes)
