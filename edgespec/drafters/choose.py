"""Drafters and schedules by name, and what goes with what. Needs no torch."""

from __future__ import annotations

from edgespec.acceptance import Acceptance
from edgespec.errors import OptionError

MEMBERS = ("ngram", "model", "substitute")  # each may be a branch of the tree
DRAFTERS = ("none", "auto", *MEMBERS, "ngram+model", "ngram+substitute")
SCHEDULES = ("serial",)


def choose_drafters(drafter: str, draft_model: str | None, schedule: str) -> tuple[str, ...]:
    """The members of the drafter called `drafter`, each drafting branches of one tree; () = none.

    `auto` is all that there may be: n-grams are free, what there is to draft with shows when the model is
    opened (`drafters.resident`), and the controller leaves out whatever does not pay.

    Raises OptionError for unknown names, a missing draft model, and one that would not be used.
    """
    if schedule not in SCHEDULES:
        raise OptionError(f"schedule {schedule!r} is unknown; choose from {', '.join(SCHEDULES)}")
    if drafter == "auto":
        return MEMBERS if draft_model is not None else ("ngram", "substitute")
    members = () if drafter == "none" else tuple(drafter.split("+"))
    if not set(members) <= set(MEMBERS) or len(set(members)) < len(members):
        raise OptionError(f"drafter {drafter!r} is unknown; choose from {', '.join(DRAFTERS)}")
    if "model" in members and draft_model is None:
        raise OptionError(f"drafter {drafter} needs a small model to draft with; name it with --draft-model")
    if not {"model", "substitute"} & set(members) and draft_model is not None:
        raise OptionError(
            f"drafter {drafter} does not use the draft model {draft_model}; use --drafter model or auto, or "
            "leave --draft-model out"
        )
    return members


def check_acceptance(acceptance: Acceptance, drafter: str, members: tuple[str, ...]) -> None:
    """Raises OptionError when the acceptance cannot judge the trees of these `members` of `drafter`.

    Under `auto`, n-grams simply stay silent where drafts must be drawn, as long as somebody else drafts.
    """
    if acceptance.name != "ratio" or "ngram" not in members:
        return
    if drafter != "auto":
        raise OptionError(
            "ratio acceptance needs drafts that are drawn at random, and n-gram drafts are copied; use "
            "--drafter auto, model or none, or --acceptance sample"
        )
    if members == ("ngram",):
        raise OptionError(
            "ratio acceptance needs drafts that are drawn at random, and without a draft model --drafter "
            "auto has only n-grams, which are copied; name one with --draft-model, or use --acceptance sample"
        )
