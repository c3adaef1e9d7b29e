"""Drafters and schedules by name, and what goes with what. Needs no torch."""

from __future__ import annotations

from edgespec.core.acceptance import Acceptance
from edgespec.errors import OptionError

# Each may be a branch of the tree; but a cascade's shallow verifier is the substitute where both are named.
MEMBERS = ("ngram", "model", "substitute", "cascade")
JOINED = ("ngram+model", "ngram+substitute", "ngram+cascade", "cascade+substitute")
DRAFTERS = ("none", "auto", *MEMBERS, *JOINED)
SCHEDULES = ("serial",)


def choose_drafters(
    drafter: str, draft_model: str | None, schedule: str, adapters: str | None = None
) -> tuple[str, ...]:
    """The members of the drafter called `drafter`, each drafting branches of one tree; () = none.

    `auto` is all that there may be: n-grams are free, what there is to draft with shows when the model is
    opened (`drafters.resident`), and the controller leaves out whatever does not pay.

    Raises OptionError for unknown names, a missing draft model or adapters, and any that would not be used.
    """
    if schedule not in SCHEDULES:
        raise OptionError(f"schedule {schedule!r} is unknown; choose from {', '.join(SCHEDULES)}")
    if drafter == "auto":
        if adapters is not None and draft_model is not None:
            raise OptionError(
                "adapters and a draft model would both draft; leave --adapters or --draft-model out, or say "
                "--drafter cascade+substitute when the draft model is a low-bit copy"
            )
        if adapters is not None:
            return ("ngram", "cascade")
        return ("ngram", "substitute") if draft_model is None else ("ngram", "model", "substitute")
    members = () if drafter == "none" else tuple(drafter.split("+"))
    if not set(members) <= set(MEMBERS) or len(set(members)) < len(members):
        raise OptionError(
            f"drafter {drafter!r} is unknown; choose from {', '.join(DRAFTERS)} (or others joined by +)"
        )
    if "model" in members and draft_model is None:
        raise OptionError(f"drafter {drafter} needs a small model to draft with; name it with --draft-model")
    if "cascade" in members and "model" in members:
        raise OptionError("a cascade and a draft model would both draft; choose one of them")
    if "cascade" in members and adapters is None:
        raise OptionError(
            f"drafter {drafter} needs trained adapters; name their directory with --adapters "
            "(`edgespec train cascade` makes one)"
        )
    if "cascade" not in members and adapters is not None:
        raise OptionError(
            f"drafter {drafter} does not use the adapters {adapters}; use --drafter cascade or auto, or "
            "leave --adapters out"
        )
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
