"""From a model's files to its open weights: find drafters, know the machine, plan, open."""

from __future__ import annotations

from dataclasses import replace

import torch

from edgespec.config import EngineOptions
from edgespec.devices.machine import Machine
from edgespec.devices.probe import cpu_count
from edgespec.drafters.kinds import find_drafters
from edgespec.drafters.resident import Exits, Outside, Remembering, Resident, Search, Served
from edgespec.errors import DeviceError, OptionError
from edgespec.kernels.threads import use_threads
from edgespec.models.planning import plan_engine
from edgespec.offload.plan.plan import Plan
from edgespec.progress import Progress, ProgressCallback
from edgespec.runtimes.formats.passes import judged_rows, pass_rows
from edgespec.runtimes.target import Target
from edgespec.runtimes.torch.choices import reasons, settle
from edgespec.runtimes.torch.machine import measure_machine
from edgespec.runtimes.torch.moa_memory import MoaMemoryFiles
from edgespec.runtimes.torch.open import open_target
from edgespec.runtimes.torch.thread_count import planned_threads, settle_threads
from edgespec.schedules.exits import find_exit


def load_model(
    search: Search,
    options: EngineOptions,
    progress: ProgressCallback | None = None,
    machine: Machine | None = None,
) -> tuple[Plan, Target, list[Resident], Exits | None, Remembering | None]:
    """Open a target, its drafters, its early exit and what clients' drafters attend to, as planned for this
    machine (None = as measured now).

    Raises what finding, planning and opening raise; nothing then stays open.
    """
    device = choose_device(options)
    table = search.files.table
    cpu = device.type == "cpu"
    use_threads(options.threads or planned_threads(table, search.files.dtype if cpu else None), cpu_count())
    drafters = find_drafters(replace(search, device=device.type, server=Served.of(options)))
    drafters = replace(drafters, exit=find_exit(options, search.files, drafters))
    if options.client_adapters is not None:
        drafters = replace(drafters, memory=MoaMemoryFiles.find(options.client_adapters, search.files))
    if progress is not None:  # disk, memory and matmuls: seconds at the first start, then remembered
        progress(Progress("probe", 0, 1, "steps"))
    machine = machine or measure_machine(search.files, device)
    plan = plan_engine(search.files, options, machine, drafters)
    if cpu:
        settle(table)
        plan = replace(plan, reasons=[*plan.reasons[:1], *reasons(table), *plan.reasons[1:]])
    total, done = plan.pinned_bytes + drafters.reads(plan), 0

    def advance(nbytes: int, compiling: tuple[int, int] | None = None) -> None:
        nonlocal done
        done += nbytes
        if progress is not None and compiling is not None:
            progress(Progress("compile", *compiling, "functions"))
        elif progress is not None:
            progress(Progress("load", done, total, "bytes"))

    trees = bool(search.members)
    rows = pass_rows(plan.sequences, trees), judged_rows(plan.sequences, trees)
    target = open_target(search.files, plan, machine.read_settings, advance, device, *rows)
    try:
        if cpu and options.threads is None and not plan.streamed:
            settle_threads(target, table)
        planned = drafters.exit is not None and set(drafters.exit.extras.names) <= set(plan.extras.names)
        exits = drafters.exit.open(target, advance) if drafters.exit is not None and planned else None
        memory = None if drafters.memory is None else drafters.memory.open(device, advance)
        resident = drafters.open(target, plan, advance)
        where = [f"drafts: {r.placement}" for r in resident if isinstance(r, Outside) and r.placement]
        return replace(plan, reasons=[*where, *plan.reasons]), target, resident, exits, memory
    except BaseException:
        target.weights.close()
        raise


def choose_device(options: EngineOptions) -> torch.device:
    """The device that computes.

    Raises DeviceError when it is missing, OptionError for device memory without a discrete accelerator.
    """
    available = torch.cuda.is_available()
    name = "cpu" if options.device == "auto" else options.device  # CUDA only when asked: docs/architecture.md
    if name == "cuda" and not available:
        raise DeviceError("no CUDA device is available to this build of torch; use device=cpu")
    discrete = name == "cuda" and not torch.cuda.get_device_properties(0).is_integrated
    if options.device_memory is not None and not discrete:
        raise OptionError("device_memory applies to a discrete accelerator; here one dial, memory, is all")
    return torch.device(name)
