"""The plan of an engine: what its options ask for, on a machine. Nothing is measured here."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from contextlib import suppress
from dataclasses import replace

from edgespec.config import MOST_BATCH, EngineOptions
from edgespec.devices.machine import Machine
from edgespec.drafters.choice import choose_drafters
from edgespec.drafters.kind import Kind
from edgespec.drafters.kinds import kinds_of
from edgespec.drafters.resident import Drafters
from edgespec.errors import BudgetError
from edgespec.offload.plan.fill import check_dial
from edgespec.offload.plan.ledger import gigabytes, smallest_dial_text
from edgespec.offload.plan.needs import Extras, Request
from edgespec.offload.plan.plan import Plan
from edgespec.runtimes.formats.describe import ModelFiles
from edgespec.runtimes.formats.needs import plan_model

WORTH = 1.05  # times as many tokens a second: less is no reason for twice the batch
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

    Batch `auto` is the number of sequences of which the most tokens a second are expected. Under drafter
    `auto` those that it can do without are left out where they do not fit, and under schedule
    `auto` an early exit that there is no use for.

    Raises BudgetError (naming the largest batch that fits, if it is the batch) and OptionError.
    """
    drafters = drafters or Drafters({})

    def plan_for(sequences: int) -> Plan:
        return _plan(files, options, machine, drafters, sequences)

    if options.batch == 0:
        return _fastest(plan_for)
    try:
        return plan_for(options.batch)
    except BudgetError as error:
        if options.batch == 1 or (most := _most(plan_for, options.batch)) == 0:
            raise
        raise BudgetError(
            f"a batch of {options.batch} is too large for the dial, {gigabytes(error.dial)}, which has room "
            f"for {most}: use batch={most}, a smaller context=, or "
            f"memory={smallest_dial_text(error.smallest)}",
            error.owners,
            error.dial,
            error.smallest,
        ) from None


def _most(plan_for: Callable[[int], Plan], too_many: int) -> int:
    """The largest number of sequences that fits; 0 where not even one does."""
    fits = 0
    while too_many - fits > 1:
        tried = (fits + too_many) // 2
        try:
            plan_for(tried)
            fits = tried
        except BudgetError:
            too_many = tried
    return fits


def _fastest(plan_for: Callable[[int], Plan]) -> Plan:
    """Raises BudgetError where not even one sequence fits."""
    best, rate, sequences = plan_for(1), 0.0, 1
    while sequences <= MOST_BATCH:
        try:
            plan = plan_for(sequences)
        except BudgetError:
            break
        if (now := sequences / plan.costs().cycle(nodes=sequences)) > WORTH * rate:
            best, rate = plan, now
        sequences *= 2
    return best


def _plan(
    files: ModelFiles, options: EngineOptions, machine: Machine, drafters: Drafters, sequences: int
) -> Plan:
    dial = choose_dial(options, machine)
    kinds = kinds_of(choose_drafters(options))
    asked = options.context, options.resident_layers, options.device_memory
    request = Request(dial, *asked, sequences, trees=bool(kinds))
    indices = _indices(kinds, sequences)

    def plan_with(drafters: Drafters) -> Plan:
        return plan_model(files, machine, request, Extras.joined([drafters.extras, indices]))

    if options.schedule == "auto" and drafters.exit is not None:
        with suppress(BudgetError):
            plan = plan_with(drafters)
            if _able(plan, options):
                return _explained(plan, drafters)
        drafters = replace(drafters, exit=None)
    try:
        plan = plan_with(drafters)
    except BudgetError:
        if not drafters.spare:
            raise
        drafters = drafters.without_spare()
        plan = plan_with(drafters)
    return _explained(plan, drafters)


def _indices(kinds: Sequence[Kind], sequences: int) -> Extras:
    """What drafters without files keep of many conversations' tokens; for one it is in the headroom."""
    nbytes = sum(kind.position_bytes for kind in kinds)
    if sequences == 1 or not nbytes:
        return Extras()

    def of(positions: int) -> int:
        return positions * nbytes

    return Extras({"indices of n-grams": of}, further={"indices of n-grams": of})


def _able(plan: Plan, options: EngineOptions) -> bool:
    """An early exit would speak: by a head in memory, while something drafts beside the target's pass."""
    head = {chunk.index for chunk in plan.table.end()}
    kept = head <= plan.pinned | plan.on_device
    return kept and (plan.streamed_bytes > 0 or options.drafts_apart)


def _explained(plan: Plan, drafters: Drafters) -> Plan:
    unused = [why for found in drafters.found.values() if (why := found.unused(plan)) is not None]
    return replace(plan, reasons=[*plan.reasons, *drafters.reasons, *unused])
