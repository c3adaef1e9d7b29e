"""A cascade as a way of drafting, by the headers of its adapters. Imports torch."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path

from edgespec.drafters.cascade.files import CascadeFiles, find_cascade, knows_better
from edgespec.drafters.cascade.variant import VARIANTS
from edgespec.drafters.substitute import CopyFiles, find_copy
from edgespec.errors import ModelError, OptionError
from edgespec.offload.pack.layout import LOW_BIT
from edgespec.offload.plan.plan import Plan
from edgespec.tuning.acceptance import PRIORS, Prior
from edgespec.tuning.candidate import Candidate
from edgespec.tuning.subject import Subject

# Of a pass of drafting, with its part of what the verifier takes: the demo model's take 4.7 to 6.7 ms, for
# 0.3 of weights (an EPYC).
ROUND_SECONDS = 5e-3


def find_cascade_candidates(subject: Subject, adapters: str, wanted: int | None) -> list[Candidate]:
    """The adapters in a directory: with the deepest verifier that there is room for, as the engine would have
    it, and with each of the others, or where one is `wanted` with that alone. Raises ModelError when they are
    not for this model, OptionError when none verifies where that is wanted."""
    refuse_absent(subject)
    found = find_cascade(Path(adapters), subject.files, None, wanted)
    depths = [] if wanted is not None or len(found.depths) < 2 else found.depths
    return [_with_adapters(found, adapters), *(_with_adapters(found, adapters, depth) for depth in depths)]


def _with_adapters(found: CascadeFiles, adapters: str, depth: int | None = None) -> Candidate:
    """`depth`: as the option `verifier_layers`."""
    if depth is not None:
        found = replace(found, wanted=depth)
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
        set_={} if depth is None else {"verifier_layers": depth},
        beside=ROUND_SECONDS,
    )


def cascade_with_copy(subject: Subject, adapters: str, named: str | None, wanted: int | None) -> Candidate:
    """The adapters' draft, with a low-bit copy of the model, `named` or packed with it, as the verifier.

    Raises ModelError as above, OptionError when there is no copy.
    """
    refuse_absent(subject)
    copy = find_copy(subject.files, None if named is None else Path(named).expanduser())
    if copy is None:
        raise OptionError(
            f"{subject.name} has no low-bit copy for cascade+substitute to verify with; pack one, or use "
            "drafter=cascade"
        )
    found = find_cascade(Path(adapters), subject.files, CopyFiles(subject.files, copy), wanted)
    encoding = LOW_BIT[copy.table.precision]

    def reads(plan: Plan) -> Mapping[str, int]:
        """The first layers and the head, by the draft's exit; in every round the copy of what is behind the
        layers that are pinned for it, and what has no copy as it is."""
        stored = {"BF16": found.draft.nbytes}
        rounds = VARIANTS["tree"].round
        for chunk in plan.table.chunks:
            if chunk.layer < found.draft.depth or chunk.layer == plan.table.layers:
                for piece, _ in chunk.matrices():
                    stored[piece.encoding] = stored.get(piece.encoding, 0) + piece.nbytes
            if chunk.layer < plan.depth:
                continue
            if chunk.index in plan.copied:
                stored[encoding] = stored.get(encoding, 0) + copy.nbytes(chunk) // rounds
                continue
            for piece, _ in chunk.matrices():
                stored[piece.encoding] = stored.get(piece.encoding, 0) + piece.nbytes // rounds
        return stored

    def prior(plan: Plan) -> Prior:
        """Between the draft's and the copy's, which looks through its tree."""
        own = found.draft.agreement
        believed = PRIORS["cascade"].middle if own is None else own
        return Prior.around((believed + PRIORS["substitute"].middle) / 2)

    files = {"adapters": adapters} | ({} if named is None else {"draft_model": named})
    members = ("cascade", "substitute")
    return Candidate(
        "+".join(members),
        members,
        found.extras,
        reads,
        found.draft.depth,
        prior,
        files,
        beside=ROUND_SECONDS,
    )


def refuse_absent(subject: Subject) -> None:
    """Raises ModelError for a model whose weights are not here: what was trained belongs to them."""
    if not subject.here:
        raise ModelError(
            f"{subject.name} is not on this machine, and adapters belong to its weights; fetch it"
        )
