"""A conversation's schedule, from what the engine was opened with."""

from __future__ import annotations

from typing import TYPE_CHECKING

from edgespec.controller import Adaptive
from edgespec.drafters.base import Drafter
from edgespec.drafters.combined import Combined
from edgespec.drafters.model import ModelDrafter
from edgespec.drafters.ngram import NGram
from edgespec.estimates import Prior
from edgespec.schedules.serial import Plain, Serial

if TYPE_CHECKING:
    from edgespec.engine import Engine


def make_schedule(engine: Engine, context: int) -> Plain:
    """For a conversation of `context` positions."""
    members: list[Drafter] = []
    if "ngram" in engine.drafters:
        members.append(NGram())
    if "model" in engine.drafters and engine.draft is not None:
        members.append(ModelDrafter(engine.draft.model, context, engine.config.vocab_size))
    if not members or engine.options.tree_nodes == 1:
        return Plain()
    drafter = members[0] if len(members) == 1 else Combined(members)
    return Serial(drafter, Adaptive(_prior(engine)), engine.options.tree_nodes)


def _prior(engine: Engine) -> Prior:
    """Costs by the measured rates of this machine."""
    plan = engine.plan
    compute = plan.rates.compute * 1e9  # bytes a second
    return Prior(
        io=plan.bytes_per_pass / (plan.rates.read * 1e9) if plan.rates.read else 0.0,
        compute=plan.table.nbytes / compute,
        step=engine.draft.nbytes / compute if engine.draft is not None else 0.0,
    )
