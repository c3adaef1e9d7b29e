"""What drafts on a client: which of an engine's options mean something there. Needs no torch."""

from __future__ import annotations

from pathlib import Path

from edgespec.config import EngineOptions
from edgespec.drafters.choice import choose_drafters
from edgespec.drafters.client_model import ClientModel
from edgespec.drafters.engines import check_engine_option
from edgespec.drafters.kinds import kinds_of
from edgespec.errors import OptionError
from edgespec.models.hub import find_here
from edgespec.schedules.kinds import check_idle, check_schedule
from edgespec.values import options_of

OF_DRAFTING = (
    "drafter", "adapters", "draft_model", "draft_engine", "schedule", "tree_nodes", "fan_out",
    "fan_out_budget", "fallback",
)  # fmt: skip
OPENED_HERE = ("moa", "model")  # kinds of drafters with files that a client can draft with


def meant_here(options: EngineOptions) -> tuple[str, ...]:
    """Options of an engine that mean something on a client: the others are the server's."""
    return OF_DRAFTING if options.draft_model is None else (*OF_DRAFTING, "threads", "draft_worker")


def check_drafting(options: EngineOptions) -> tuple[str, ...]:
    """The kinds of drafters. Raises OptionError for what cannot be done, or changes nothing, on a client."""
    known, ours = options_of(EngineOptions), meant_here(options)
    for name in known:
        if name not in ours and getattr(options, name) != known[name].default:
            raise OptionError(f"{name} is the server's to choose; leave it out", name)
    if options.draft_worker is not None:
        raise OptionError(
            "draft_worker is for a process beside a target, which is on the server; say with threads= how "
            "many processors draft here",
            "draft_worker",
        )
    members = choose_drafters(options)
    if options.drafter == "auto":
        members = tuple(kind.name for kind in kinds_of(members) if kind.make is not None or kind.needs)
    if needing := [kind for kind in kinds_of(members) if kind.make is None and kind.name not in OPENED_HERE]:
        raise OptionError(
            f"{needing[0].label} drafts where torch is; use drafter=ngram, {' or '.join(OPENED_HERE)}",
            "drafter",
        )
    if options.schedule == "mirror":
        raise OptionError(
            "schedule mirror asks an early exit of the target, which is on the server; use schedule=ssd or "
            "serial",
            "schedule",
        )
    check_schedule(options.schedule, members)
    check_engine_option(options)
    check_idle(options)
    return members


def found_model(options: EngineOptions, members: tuple[str, ...]) -> ClientModel | None:
    """Raises ModelError for what is not there, and as `ClientModel`."""
    if "model" not in members:
        return None
    found = find_here(str(options.draft_model))
    return ClientModel(found if isinstance(found, Path) else None, options)
