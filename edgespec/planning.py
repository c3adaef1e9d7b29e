"""The plan of an engine: what its options ask for, on a machine. Nothing is measured here."""

from __future__ import annotations

from dataclasses import replace

import torch

from edgespec.config import EngineOptions
from edgespec.devices.machine import Machine
from edgespec.drafters.resident import ResidentFiles
from edgespec.errors import BudgetError, OptionError
from edgespec.offload.plan.ledger import gigabytes
from edgespec.offload.plan.needs import Request
from edgespec.offload.plan.plan import Plan
from edgespec.runtimes.formats.describe import ModelFiles
from edgespec.runtimes.torch.plan import plan_model

FREE_SHARE = 0.9  # of the free memory belongs to the dial when the user names none


def choose_dial(options: EngineOptions, machine: Machine) -> int:
    """Bytes that the process may use: what the user says, else most of what is free. Raises OptionError."""
    dial = options.memory or machine.baseline + int(machine.available * FREE_SHARE)
    if dial > machine.total + 2**20:  # a cgroup's limit is cut to whole pages
        raise OptionError(
            f"the dial is {gigabytes(dial)}, but this machine has {gigabytes(machine.total)}; lower --memory"
        )
    return dial


def plan_engine(
    files: ModelFiles,
    options: EngineOptions,
    machine: Machine,
    device: torch.device,
    drafting: ResidentFiles | None = None,
) -> Plan:
    """The plan for these options on this machine; reads no weights.

    Under drafter `auto` a cascade or a low-bit copy that does not fit is left out.

    Raises BudgetError and OptionError.
    """
    dial = choose_dial(options, machine)
    drafting = drafting or ResidentFiles()
    optional = drafting.copy is not None or drafting.cascade is not None
    if optional and device.type != "cpu":
        if options.drafter != "auto":
            raise OptionError(f"drafter {options.drafter} runs on the CPU only, so far; use --device cpu")
        reason = f"a low-bit copy and a cascade draft on the CPU only, not on {device.type}"
        drafting = replace(drafting, copy=None, cascade=None, reason=reason)

    request = Request(dial, options.context, options.resident_layers, options.device_memory)

    def plan(drafting: ResidentFiles) -> Plan:
        return plan_model(files, machine, request, drafting.extras(files))

    try:
        found = plan(drafting)
        if drafting.reason is not None:
            found = replace(found, reasons=[*found.reasons, drafting.reason])
        if drafting.copy is not None and not found.owners.get("substitute"):
            found = replace(
                found, reasons=[*found.reasons, "nothing streams, so the low-bit copy is not used"]
            )
        return found
    except BudgetError:
        if not optional or options.drafter != "auto":
            raise
    without = "the low-bit copy" if drafting.cascade is None else "the cascade"
    found = plan(replace(drafting, copy=None, cascade=None))
    return replace(found, reasons=[*found.reasons, f"no room to draft with {without}"])
