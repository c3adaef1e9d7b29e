"""The kinds of schedules: a row each. A new one is a file with its `make`, and a row. Needs no torch."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pkgutil import resolve_name
from typing import TYPE_CHECKING

from edgespec.config import FAN_OUTS, EngineOptions
from edgespec.control.controller import Adaptive
from edgespec.control.costs import Costs
from edgespec.control.partner import Partner
from edgespec.control.shares import Shares
from edgespec.core.acceptance import Acceptance
from edgespec.core.schedule import Controller, Place, Schedule
from edgespec.drafters import choice, kinds
from edgespec.drafters.base import Drafter
from edgespec.drafters.combined import Combined
from edgespec.drafters.kind import Kind
from edgespec.errors import OptionError
from edgespec.offload.plan.plan import Plan
from edgespec.runtimes.config import ModelConfig
from edgespec.schedules.serial import Plain
from edgespec.values import did_you_mean, options_of

if TYPE_CHECKING:
    from edgespec.drafters.resident import Resident

Make = Callable[[Drafter, Controller, EngineOptions, Place], Schedule]
"""For the conversation of this drafter; the options are the engine's, with those of the schedule's own."""

Check = Callable[[EngineOptions, ModelConfig], None]
"""Raises OptionError for options of the schedule's own that this model cannot have; before it is loaded."""


@dataclass(frozen=True)
class ScheduleKind:
    """A kind of schedule.

    roots: it drafts behind several roots at once, for outcomes that are not known yet: so must its drafters.
    make, check: a `Make`, and a `Check` if there is anything to check: "module:name", imported when it is
        asked for.
    options: that change nothing under a schedule which does not name them.
    drawn: what it does, it does for drafts that are drawn at random (`ratio`), too.
    shares: it goes on where a pass of several conversations verifies only some nodes of its trees.
    """

    name: str
    roots: bool
    make: str
    check: str | None = None
    options: tuple[str, ...] = ()
    drawn: bool = True
    shares: bool = False

    def refusal(self, drafter: Kind) -> str | None:
        """Why this drafter cannot follow it; None = it can."""
        if self.roots and not drafter.roots:
            where = ", in the slots that the target's own pass writes" if drafter.inside_target else ""
            return f"drafts behind several roots at once, and {drafter.label} behind one{where}"
        return None


SCHEDULES = (
    ScheduleKind("serial", roots=False, make="edgespec.schedules.serial:make", shares=True),
    ScheduleKind(
        "ssd",
        roots=True,
        make="edgespec.schedules.ssd:make",
        options=("fan_out", "fan_out_budget", "fallback"),
    ),
    ScheduleKind(
        "mirror",
        roots=True,
        make="edgespec.schedules.mirror:make",
        check="edgespec.schedules.mirror:check",
        options=("exit_layer", "kappa", "fallback"),
        drawn=False,  # nothing may go by what was drawn, and what the exit names would
    ),
)


def schedule_kind(name: str) -> ScheduleKind:
    """The row of this name. Raises OptionError when there is none."""
    rows = {row.name: row for row in SCHEDULES}
    if name not in rows:
        hint = did_you_mean(name, ("auto", *rows), f"choose from auto, {', '.join(rows)}")
        raise OptionError(f"schedule {name!r} is unknown; {hint}", "schedule")
    return rows[name]


def check_schedule(name: str, members: Sequence[str]) -> None:
    """Raises OptionError for an unknown schedule, and for one that these kinds of drafters cannot follow."""
    if name == "auto":
        return
    schedule, drafters = schedule_kind(name), kinds.kinds_of(members)
    for drafter in drafters:
        why = schedule.refusal(drafter)
        if why is None:
            continue
        able = [kind.name for kind in kinds.KINDS if schedule.refusal(kind) is None]
        others = [f"schedule={s.name}" for s in SCHEDULES if not any(map(s.refusal, drafters))]
        ways = [f"a drafter that can ({', '.join(able)})", *others]
        raise OptionError(f"schedule {name} {why}; use {' or '.join(ways)}")


def check_acceptance(acceptance: Acceptance, options: EngineOptions, members: tuple[str, ...]) -> None:
    """Raises OptionError when the acceptance cannot judge these drafters' trees (see `drafters.choice`),
    or the schedule would not do for them what it is asked for."""
    choice.check_acceptance(acceptance, options.drafter, members, options.draft_worker is not None)
    if acceptance.name != "ratio" or options.schedule == "auto" or not members:
        return
    if not schedule_kind(options.schedule).drawn:
        able = " or ".join(f"schedule={row.name}" for row in SCHEDULES if row.drawn)
        raise OptionError(
            "ratio acceptance needs drafts that are drawn at random, and schedule "
            f"{options.schedule} prepares likely ones, that the target's early exit names; use {able}, or "
            "acceptance=sample"
        )


def check_idle(options: EngineOptions) -> None:
    """Raises OptionError for an option that is set and changes nothing under this schedule, for a fan-out
    that leaves outcomes out, and for a schedule that a batch cannot have. Under `auto` whatever is set waits
    for a schedule that asks for it."""
    if options.batch != 1 and options.schedule != "auto" and not schedule_kind(options.schedule).shares:
        able = " or ".join(f"schedule={row.name}" for row in SCHEDULES if row.shares)
        raise OptionError(
            f"schedule {options.schedule} prepares for the outcomes of whole trees, and a pass of a batch "
            f"(batch is {options.batch or 'auto'}) verifies the best nodes of all; use {able}, or batch=1",
            "schedule",
        )
    if options.fan_out != "best-first" and options.fan_out_budget < options.tree_nodes:
        nodes, budget = options.tree_nodes, options.fan_out_budget
        raise OptionError(
            f"fan_out_budget is {budget}, below the {nodes} outcomes that a chain of {nodes - 1} drafted "
            f"tokens has before its bonus token is guessed, and trees of {nodes} nodes (tree_nodes=) may be "
            f"such a chain; use fan_out_budget={nodes} or more, or tree_nodes={budget}",
            "fan_out_budget",
        )
    if options.schedule == "auto":
        return
    schedule, known = schedule_kind(options.schedule), options_of(EngineOptions)
    for name in dict.fromkeys(name for row in SCHEDULES for name in row.options):
        users = [row.name for row in SCHEDULES if name in row.options]
        if schedule.name not in users and getattr(options, name) != known[name].default:
            raise OptionError(
                f"{name} changes nothing under schedule {schedule.name}; use schedule={' or '.join(users)}, "
                "or leave it out",
                name,
            )
    if options.fan_out == "best-first" and options.fan_out_budget != known["fan_out_budget"].default:
        others = " or ".join(name for name in FAN_OUTS if name != options.fan_out)
        raise OptionError(
            "fan_out_budget changes nothing with fan_out=best-first, which prepares for all outcomes; "
            f"use fan_out={others}, or leave it out",
            "fan_out_budget",
        )


def check_model(options: EngineOptions, config: ModelConfig) -> None:
    """Raises OptionError for options of the schedule's own that do not go with this model. Under `auto`,
    which does without a schedule that the model cannot have, for those that were set for one."""
    for row in SCHEDULES:
        asked = options.schedule == row.name or (options.schedule == "auto" and _set_for(row, options))
        if asked and row.check is not None:
            check: Check = resolve_name(row.check)
            check(options, config)


def _set_for(schedule: ScheduleKind, options: EngineOptions) -> bool:
    """An option that no other schedule has is not its default."""
    others = {name for row in SCHEDULES if row is not schedule for name in row.options}
    known = options_of(EngineOptions)
    own = (name for name in schedule.options if name not in others)
    return any(getattr(options, name) != known[name].default for name in own)


def choose_schedule(name: str, members: Sequence[str], free: bool) -> str:
    """What `auto` means for these kinds of drafters: `ssd` where something is `free` to draft while the
    target verifies (this process in its waits for flash, or a worker) and all can, if that costs any of them
    time; else `serial`, as for a batch. Whether to go on while the target verifies is then for the controller
    to measure."""
    if name != "auto":
        return name
    drafters = kinds.kinds_of(members)
    hides = any(kind.find is not None for kind in drafters)
    able = not any(map(schedule_kind("ssd").refusal, drafters))
    return "ssd" if free and hides and able else "serial"


def make_controller(plan: Plan, resident: Sequence[Resident]) -> Adaptive:
    """What an engine believes before its first cycle: by the measured rates of this machine. Where passes are
    shared, a `Partner` with the `Shares` of all."""
    prior = plan.costs(sum(r.nbytes for r in resident))
    return Adaptive(prior) if plan.sequences == 1 else Partner(Shares(Costs(prior)))


def make_schedule(
    name: str,
    options: EngineOptions,
    drafters: Sequence[Drafter],
    controller: Controller,
    place: Place,
) -> Schedule:
    """The schedule of this name, for the conversation of these drafters. Under `auto` an early exit that
    there is room for is asked now and then, and always where that pays."""
    if not drafters:
        return Plain()
    if options.schedule == "auto" and name == "ssd" and place.exit is not None:
        name = "mirror"
    make: Make = resolve_name(schedule_kind(name).make)
    return make(drafters[0] if len(drafters) == 1 else Combined(drafters), controller, options, place)
