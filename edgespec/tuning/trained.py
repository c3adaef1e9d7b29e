"""A trained module as a way of drafting, by its headers. Imports torch."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

from edgespec.drafters.eagle.files import find_eagle
from edgespec.drafters.specformer.files import find_specformer
from edgespec.errors import ModelError
from edgespec.offload.plan.plan import Plan
from edgespec.tuning.acceptance import PRIORS, Prior
from edgespec.tuning.candidate import Candidate
from edgespec.tuning.subject import Subject

FIND: Mapping[str, Callable[..., Any]] = {"eagle": find_eagle, "specformer": find_specformer}
"""By kind: what a directory holds, for a target's files, to be prepared with or not."""


def find_trained(subject: Subject, kind: str, adapters: str, prepares: bool) -> Candidate:
    """What was trained for this model: a step reads it, and the head. Raises ModelError when it is not for
    this model."""
    if not subject.here:
        raise ModelError(
            f"{subject.name} is not on this machine, and adapters belong to its weights; fetch it"
        )
    found = FIND[kind](Path(adapters), subject.files, prepares)
    agreed: float | None = found.module.agreement
    prior = PRIORS[kind] if agreed is None else Prior.around(agreed)

    def reads(plan: Plan) -> Mapping[str, int]:
        stored = {"BF16": found.module.nbytes}
        for chunk in plan.table.chunks:
            for piece, _ in chunk.matrices() if chunk.layer == plan.table.layers else ():
                stored[piece.encoding] = stored.get(piece.encoding, 0) + piece.nbytes
        return stored

    return Candidate(kind, (kind,), found.extras, reads, 1, lambda plan: prior, {"adapters": adapters})
