"""The plan of an engine: what its options ask for, on a machine. Nothing is measured here."""

from __future__ import annotations

from contextlib import suppress
from dataclasses import replace

from edgespec.config import EngineOptions
from edgespec.devices.machine import Machine
from edgespec.drafters.resident import Drafters
from edgespec.errors import BudgetError
from edgespec.offload.plan.fill import check_dial
from edgespec.offload.plan.needs import Request
from edgespec.offload.plan.plan import Plan
from edgespec.runtimes.formats.describe import ModelFiles
from edgespec.runtimes.formats.needs import plan_model

FREE_SHARE = 0.9  # of the free memory belongs to the dial when the user names none


def choose_dial(options: EngineOptions, machine: Machine) -> int:
    """Bytes that the process may use: what the user says, else most of what is free. Raises OptionError."""
    dial = options.memory or machine.baseline + int(machine.available * FREE_SHARE)
    check_dial(dial, machine.total)
    return dial


def plan_engine(
    files: ModelFiles, options: EngineOptions, machine: Machine, drafters: Drafters | None = None
) -> Plan:
    """The plan for these options on this machine, with room for these drafters; reads no weights.

    Under drafter `auto` those that it can do without are left out where they do not fit, and under schedule
    `auto` an early exit that there is no use for.

    Raises BudgetError and OptionError.
    """
    dial = choose_dial(options, machine)
    request = Request(dial, options.context, options.resident_layers, options.device_memory)
    drafters = drafters or Drafters({})
    if options.schedule == "auto" and drafters.exit is not None:
        with suppress(BudgetError):
            plan = plan_model(files, machine, request, drafters.extras)
            if _able(plan, options):
                return _explained(plan, drafters)
        drafters = replace(drafters, exit=None)
    try:
        plan = plan_model(files, machine, request, drafters.extras)
    except BudgetError:
        if not drafters.spare:
            raise
        drafters = drafters.without_spare()
        plan = plan_model(files, machine, request, drafters.extras)
    return _explained(plan, drafters)


def _able(plan: Plan, options: EngineOptions) -> bool:
    """An early exit would speak: by a head in memory, while something drafts beside the target's pass."""
    head = {chunk.index for chunk in plan.table.chunks if chunk.layer == plan.table.layers}
    kept = head <= plan.pinned | plan.on_device
    return kept and (plan.streamed_bytes > 0 or options.draft_worker is not None)


def _explained(plan: Plan, drafters: Drafters) -> Plan:
    unused = [why for found in drafters.found.values() if (why := found.unused(plan)) is not None]
    return replace(plan, reasons=[*plan.reasons, *drafters.reasons, *unused])
