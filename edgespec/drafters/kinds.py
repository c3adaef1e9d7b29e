"""The kinds of drafters: a row each. A new one is a file with its `find`, and a row. Needs no torch.

What goes with what follows from the rows: unknown names, options without a use, and pairs that cannot be are
refused by name, before anything is read.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass

from edgespec.core.acceptance import Acceptance
from edgespec.drafters.base import Drafter
from edgespec.drafters.ngram import NGram
from edgespec.drafters.resident import Drafters, Find, Found, Search
from edgespec.errors import OptionError
from edgespec.values import did_you_mean


def _find_model(search: Search, found: dict[str, Found]) -> Found | None:
    from edgespec.drafters.draft_model import find  # torch is not needed before there are files

    return find(search, found)


def _find_substitute(search: Search, found: dict[str, Found]) -> Found | None:
    from edgespec.drafters.substitute import find

    return find(search, found)


def _find_cascade(search: Search, found: dict[str, Found]) -> Found | None:
    from edgespec.drafters.cascade.files import find

    return find(search, found)


@dataclass(frozen=True)
class Kind:
    """A kind of drafter.

    label: as messages call it.
    roots: it can draft behind several roots, for outcomes that are not known yet.
    draws: it can draw its drafts at random, as `ratio` acceptance needs.
    watches: it learns from the target's own passes.
    inside_target: it drafts in the target's own layers, beside nobody else who costs passes but those it
        `takes` as parts of itself.
    option: the engine option that names its files, which `needs` says must be there; "" = it needs none.
    spare: under auto, it is left out where there is no room for it.
    cpu_only: it drafts beside a target on the CPU only, so far.
    make, find: what takes no memory is simply made, for each conversation; the others have files.
    """

    name: str
    label: str
    roots: bool
    draws: bool
    watches: bool
    inside_target: bool = False
    takes: tuple[str, ...] = ()
    option: str | None = None
    needs: str = ""
    spare: bool = False
    cpu_only: bool = False
    make: Callable[[], Drafter] | None = None
    find: Find | None = None


KINDS = (
    Kind("ngram", "n-grams", roots=True, draws=False, watches=False, make=NGram),
    Kind(
        "model",
        "a draft model",
        roots=True,
        draws=True,
        watches=False,
        option="draft_model",
        needs="a small model to draft with; name it with draft_model=",
        find=_find_model,
    ),
    Kind(
        "substitute",
        "the low-bit copy",
        roots=True,
        draws=True,
        watches=False,
        option="draft_model",
        spare=True,
        cpu_only=True,
        find=_find_substitute,
    ),
    Kind(
        "cascade",
        "the cascade",
        roots=False,
        draws=True,
        watches=True,
        inside_target=True,
        takes=("substitute",),
        option="adapters",
        needs="trained adapters; name their directory with adapters= (`edgespec train cascade` makes one)",
        spare=True,
        cpu_only=True,
        find=_find_cascade,
    ),
)
NAMES = tuple(kind.name for kind in KINDS)
JOINED = ("ngram+model", "ngram+substitute", "ngram+cascade", "cascade+substitute")
DRAFTERS = ("none", "auto", *NAMES, *JOINED)
SCHEDULES = {"serial": False}  # by name: does it draft behind several roots?


def kinds_of(members: Sequence[str], kinds: Sequence[Kind] = KINDS) -> list[Kind]:
    """The rows of these names, in the order of the rows."""
    return [kind for kind in kinds if kind.name in members]


def choose_drafters(
    drafter: str,
    draft_model: str | None,
    schedule: str,
    adapters: str | None = None,
    kinds: Sequence[Kind] = KINDS,
) -> tuple[str, ...]:
    """The names of the kinds that the option `drafter` means, each drafting branches of one tree; () = none.

    `auto` is all that there may be: n-grams are free, what there is to draft with shows when the model is
    opened (`find_drafters`), and the controller leaves out whatever does not pay.

    Raises OptionError for unknown names, missing files, pairs that cannot be, and options without a use.
    """
    if schedule not in SCHEDULES:
        raise OptionError(f"schedule {schedule!r} is unknown; choose from {', '.join(SCHEDULES)}", "schedule")
    given = {"draft_model": draft_model, "adapters": adapters}
    if drafter == "auto":
        there = _auto([k for k in kinds if not k.needs or given[k.option or ""] is not None], draft_model)
        check_pairs(there, schedule)
        return tuple(kind.name for kind in there)
    members = () if drafter == "none" else tuple(drafter.split("+"))
    chosen = kinds_of(members, kinds)
    if twice := [name for name in members if members.count(name) > 1]:
        raise OptionError(f"drafter {drafter!r} names {twice[0]} twice", "drafter")
    if len(chosen) < len(members):
        raise OptionError(
            f"drafter {drafter!r} is unknown; "
            + did_you_mean(drafter, DRAFTERS, f"choose from {', '.join(DRAFTERS)} (or others joined by +)"),
            "drafter",
        )
    check_pairs(chosen, schedule)
    for kind in chosen:
        if kind.option and (rivals := [k.name for k in chosen if k.option == kind.option])[1:]:
            raise OptionError(
                f"{' and '.join(rivals)} both want {kind.option}=; choose one of them", "drafter"
            )
        if kind.needs and given[kind.option or ""] is None:
            raise OptionError(f"drafter {drafter} needs {kind.needs}")
    for option, value in given.items():
        users = [kind.name for kind in kinds if kind.option == option]
        if value is not None and not set(users) & set(members):
            words = option.replace("_", " ")
            raise OptionError(
                f"drafter {drafter} does not use the {words} {value}; use drafter={users[0]} or auto, or "
                f"leave {option}= out"
            )
    return members


def _auto(there: list[Kind], draft_model: str | None) -> list[Kind]:
    """Under auto one that drafts inside the target has no other beside it that costs passes."""
    inside = [kind for kind in there if kind.inside_target]
    if inside and draft_model is not None:
        raise OptionError(
            f"adapters and a draft model would both draft; leave adapters= or draft_model= out, or say "
            f"drafter={inside[0].name}+substitute when the draft model is a low-bit copy"
        )
    return [kind for kind in there if kind.make or not inside or kind in inside]


def check_pairs(chosen: Sequence[Kind], schedule: str) -> None:
    """Raises OptionError for kinds that cannot draft together, or not under this schedule."""
    for kind in chosen:
        if SCHEDULES[schedule] and not kind.roots:
            raise OptionError(
                f"schedule {schedule} drafts behind several roots at once, and {kind.label} behind one; use "
                "another drafter"
            )
        if not kind.inside_target:
            continue
        for other in chosen:
            if other is not kind and not other.make and other.name not in kind.takes:
                raise OptionError(f"{kind.label} and {other.label} would both draft; choose one of them")


def check_acceptance(acceptance: Acceptance, drafter: str, members: tuple[str, ...]) -> None:
    """Raises OptionError when the acceptance cannot judge the trees of these `members` of `drafter`.

    Under `auto`, kinds that cannot draw stay silent where drafts must be drawn, as long as another drafts.
    """
    copied = [kind for kind in kinds_of(members) if not kind.draws]
    if acceptance.name != "ratio" or not copied:
        return
    label = " and ".join(kind.label for kind in copied)
    if drafter != "auto":
        raise OptionError(
            f"ratio acceptance needs drafts that are drawn at random, and {label} are copied; use "
            "drafter=auto, model or none, or acceptance=sample"
        )
    if len(copied) == len(members):
        raise OptionError(
            f"ratio acceptance needs drafts that are drawn at random, and without a draft model drafter=auto "
            f"has only {label}, which are copied; name one with draft_model=, or use acceptance=sample"
        )


def find_drafters(search: Search, kinds: Sequence[Kind] = KINDS) -> Drafters:
    """What there is to draft with, of the kinds that were chosen; nothing is loaded.

    Raises OptionError for what is asked for and not there, and as `Find`.
    """
    found: dict[str, Found] = {}
    reasons: list[str] = []
    for kind in kinds_of(search.members, kinds):
        if kind.find is None:
            continue
        try:
            item = kind.find(search, found)
        except OptionError as error:
            if not search.auto or search.named is not None:
                raise
            reasons.append(str(error))
            continue
        if item is not None and kind.cpu_only and search.device != "cpu":
            if not search.auto:
                raise OptionError(f"drafter {search.drafter} runs on the CPU only, so far; use device=cpu")
            reasons.append(f"{kind.label} drafts on the CPU only, not on {search.device}")
        elif item is not None:
            found[kind.name] = item
    spare = {kind.name: kind.label for kind in kinds if kind.spare and kind.name in found and search.auto}
    return Drafters(found, tuple(reasons), spare)
