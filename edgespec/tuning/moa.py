"""A Mixture-of-Attentions drafter as a way of drafting, by the headers of its file. Imports torch."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path

from edgespec.drafters.moa import describe_moa
from edgespec.offload.plan.plan import Plan
from edgespec.runtimes.formats.gguf import PLAIN
from edgespec.runtimes.formats.moa_sizes import KIND, drafting_parameters
from edgespec.tuning.acceptance import PRIORS, Prior
from edgespec.tuning.candidate import Candidate
from edgespec.tuning.cascade import refuse_absent
from edgespec.tuning.subject import Subject

LAYERS = 2  # that a pass of drafting goes through: over tokens, and to memory


def find_moa_candidate(subject: Subject, adapters: str, prepares: bool) -> Candidate:
    """What is in a directory. Raises ModelError when it is not for this model."""
    refuse_absent(subject)
    found = describe_moa(Path(adapters), subject.files, prepares, auto=False)
    own = drafting_parameters(subject.files.config, found.file.shape) * subject.files.element
    (encoding,) = (name for name, dtype in PLAIN.items() if dtype == subject.files.activations)

    def reads(plan: Plan) -> Mapping[str, int]:
        stored = {encoding: own}
        for chunk in plan.table.chunks:
            if chunk.layer == plan.table.layers:
                for piece, _ in chunk.matrices():
                    stored[piece.encoding] = stored.get(piece.encoding, 0) + piece.nbytes
        return stored

    agreed = found.file.agreement
    prior = PRIORS["model"] if agreed is None else Prior.around(agreed)
    files = {"adapters": adapters}
    return Candidate(KIND, (KIND,), found.extras, reads, LAYERS, lambda plan: prior, files)
