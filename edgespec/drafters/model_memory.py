"""What a draft model needs, by its headers. Needs no torch."""

from __future__ import annotations

from edgespec.devices.arithmetic import Arithmetic
from edgespec.drafters.forest import kept_bytes
from edgespec.drafters.model import DRAFT_ROWS
from edgespec.offload.plan.needs import Extras
from edgespec.runtimes.formats.describe import ModelFiles
from edgespec.runtimes.formats.needs import cache_bytes, first_pass_bytes, resident_bytes


def model_extras(
    files: ModelFiles, how: Arithmetic, worker: bool, prepares: bool, rows: int = DRAFT_ROWS
) -> Extras:
    """All of the model, and one conversation with so many slots; in a `worker`, another process with what a
    first pass leaves there, too; else, where it `prepares` while the target verifies, what drafts are drawn
    from, or what another conversation takes."""

    def alone(context: int) -> int:
        return resident_bytes(files, context, rows, how)

    if worker:
        left = first_pass_bytes(files, how)
        return Extras({"drafter": lambda context: alone(context) + left}, processes=("draft worker",))
    if prepares:
        kept = kept_bytes(DRAFT_ROWS, files.config.vocab_size)
        return Extras({"drafter": alone, "drawn drafts": lambda context: kept})

    def another(context: int) -> int:
        return cache_bytes(files.config, min(context, files.config.max_context), rows, files.element)

    return Extras({"drafter": alone}, further={"drafter": another})
