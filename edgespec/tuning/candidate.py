"""A way of drafting, as predictions see it."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from pathlib import Path

from edgespec.errors import Call
from edgespec.offload.plan.costs import PASS_SECONDS
from edgespec.offload.plan.needs import Extras
from edgespec.offload.plan.plan import Plan
from edgespec.tuning.acceptance import PRIORS, Prior
from edgespec.tuning.runs import MOST_TEXT

Stored = Mapping[str, int]  # bytes by encoding


@dataclass(frozen=True)
class Candidate:
    """A way of drafting.

    drafter: the option's value. members: its kinds. extras: what it keeps in memory. reads: what one of its
    steps reads. layers: that a step passes. prior: believed of its drafts. files: the options that name its
    files. before: what must be made first. set_: other options that it is this one by. rows: of a step
    between two passes, ahead_rows: of one in the target's waits. reads_prompt: with layers of its own,
    before the first token. beside: seconds of a step, beside its weights and layers.
    """

    drafter: str
    members: tuple[str, ...] = ()
    extras: Extras = field(default_factory=Extras)
    reads: Callable[[Plan], Stored] = lambda plan: {}
    layers: int = 0
    prior: Callable[[Plan], Prior] = lambda plan: PRIORS["ngram"]
    files: Mapping[str, str] = field(default_factory=dict)
    before: tuple[Call, ...] = ()
    set_: Mapping[str, int] = field(default_factory=dict)
    rows: int = 1
    ahead_rows: int = 1
    reads_prompt: bool = False
    beside: float = PASS_SECONDS

    @property
    def named(self) -> str:
        """Its files in one text, the same from every folder: what is known of a draft model is not of
        another."""
        return name_files(self.files)

    def used(self, plan: Plan) -> bool:
        """The plan has room for it."""
        if self.extras.must_pin is not None and plan.depth not in self.extras.depths:
            return False
        return self.extras.stand_in is None or bool(plan.copied)


def name_files(files: Mapping[str, str]) -> str:
    """Options' files as a `Trial` has them."""
    paths = (Path(name) for name in files.values())
    return " ".join(str(path.resolve() if path.exists() else path) for path in paths)[:MOST_TEXT]


PLAIN = Candidate("none")
NGRAM = Candidate("ngram", ("ngram",))
