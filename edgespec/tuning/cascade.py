"""A cascade as a way of drafting, by the headers of its adapters. Imports torch."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path

from edgespec.drafters.cascade.files import find_cascade, knows_better
from edgespec.drafters.cascade.variant import VARIANTS
from edgespec.errors import ModelError
from edgespec.offload.plan.plan import Plan
from edgespec.tuning.acceptance import PRIORS, Prior
from edgespec.tuning.candidate import Candidate
from edgespec.tuning.subject import Subject


def find_cascade_candidate(subject: Subject, adapters: str) -> Candidate:
    """The adapters in a directory. Raises ModelError when they are not for this model."""
    if not subject.here:
        raise ModelError(
            f"{subject.name} is not on this machine, and adapters belong to its weights; fetch it"
        )
    found = find_cascade(Path(adapters), subject.files, None)
    agreed = {file.depth: file.agreement for file in found.verify if knows_better(file, found.draft)}

    def reads(plan: Plan) -> Mapping[str, int]:
        """The first layers and the head, by the draft's exit; in every round what is up to the verifier's."""
        stored = dict[str, int]()
        rounds = VARIANTS["tree"].round
        for chunk in plan.table.chunks:
            share = 1.0 if chunk.layer < found.draft.depth else 0.0
            if chunk.layer == plan.table.layers:
                share = 1 + 1 / rounds
            elif found.draft.depth <= chunk.layer < plan.depth:
                share = 1 / rounds
            for piece, _ in chunk.matrices():
                stored[piece.encoding] = stored.get(piece.encoding, 0) + int(piece.nbytes * share)
        stored["BF16"] = stored.get("BF16", 0) + found.draft.nbytes
        return stored

    def prior(plan: Plan) -> Prior:
        """Of the draft; where a verifier that knows better has looked through its tree, between both."""
        own = found.draft.agreement
        if own is None:
            return PRIORS["cascade"]
        return Prior.around((own + (agreed.get(plan.depth) or own)) / 2)

    return Candidate(
        "cascade",
        ("cascade",),
        found.extras,
        reads,
        found.draft.depth,
        prior,
        {"adapters": adapters},
    )
