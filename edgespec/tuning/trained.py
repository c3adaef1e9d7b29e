"""A trained module as a way of drafting, by its headers. Imports torch."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

from edgespec.drafters.eagle.drafter import EagleDrafter
from edgespec.drafters.eagle.files import find_eagle
from edgespec.drafters.moa import find_moa
from edgespec.drafters.moa_draft import MoaDrafter
from edgespec.drafters.specformer.files import find_specformer
from edgespec.drafters.streaming.drafter import StreamingDrafter
from edgespec.drafters.streaming.files import find_streaming
from edgespec.drafters.streaming.spd import find_spd
from edgespec.drafters.trained import TrainedFiles
from edgespec.offload.chunks import by_encoding
from edgespec.offload.plan.plan import Plan
from edgespec.runtimes.formats.describe import ModelFiles
from edgespec.runtimes.formats.gguf import PLAIN
from edgespec.tuning.acceptance import PRIORS, Prior
from edgespec.tuning.candidate import Candidate
from edgespec.tuning.cascade import refuse_absent
from edgespec.tuning.subject import Subject

FIND: Mapping[str, Callable[[Path, ModelFiles, bool], TrainedFiles[Any]]] = {
    "moa": find_moa,
    "eagle": find_eagle,
    "specformer": find_specformer,
    "streaming": find_streaming,
    "spd": find_spd,
}
"""By kind: what a directory holds, for a target's files, to be prepared with or not."""

AHEAD = {
    "moa": MoaDrafter.ahead_width,
    "eagle": EagleDrafter.ahead_width,
    "streaming": StreamingDrafter.ahead_width,
    "spd": StreamingDrafter.ahead_width,
}
"""By kind: rows of a step in the target's waits, of those that draft there."""


def find_trained(subject: Subject, kind: str, adapters: str, prepares: bool) -> Candidate:
    """What was trained for this model: a step reads it, and the head. Raises ModelError when it is not for
    this model."""
    refuse_absent(subject)
    found = FIND[kind](Path(adapters), subject.files, prepares)
    agreed = found.module.agreement
    prior = PRIORS[kind] if agreed is None else Prior.around(agreed)
    (encoding,) = (name for name, dtype in PLAIN.items() if dtype == subject.files.activations)

    def reads(plan: Plan) -> Mapping[str, int]:
        stored = by_encoding(plan.table.end(found.through))
        stored[encoding] = stored.get(encoding, 0) + found.step_bytes
        return stored

    files = {"adapters": adapters}
    grows = kind in AHEAD
    return Candidate(
        kind,
        (kind,),
        found.extras,
        reads,
        found.layers,
        lambda plan: prior,
        files,
        rows=PRIORS[kind].width if grows else 1,
        ahead_rows=AHEAD[kind] if grows else 1,
        reads_prompt=kind in ("streaming", "spd"),  # the others see what the target's layers said of it
    )
