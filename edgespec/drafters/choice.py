"""Who drafts, by the options: what they mean and what is refused, by the rows of `kinds`. Needs no torch.

Unknown names, options without a use, and pairs that cannot be are refused by name, before anything is read
but what a directory of adapters says that it is.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from itertools import combinations
from pathlib import Path

from edgespec.config import OF_SCHEDULES, EngineOptions
from edgespec.core.acceptance import Acceptance
from edgespec.drafters import kinds
from edgespec.drafters.kind import TRAINED, Kind
from edgespec.drafters.kinds import clash, drafter_names, kinds_of
from edgespec.errors import OptionError
from edgespec.runtimes.formats.trained import trained_kind
from edgespec.values import did_you_mean


def given_files(options: EngineOptions) -> dict[str, str]:
    """What the kinds' own options say, by option, where something is said; not what is the schedule's."""
    taken, named = OF_SCHEDULES.get(options.schedule, ()), options.drafter.split("+")
    wanted = [kind.option for kind in kinds.KINDS if kind.option not in taken or kind.name in named]
    said = {option: getattr(options, option) for option in wanted if option is not None}
    return {option: value for option, value in said.items() if value is not None}


def choose_drafters(options: EngineOptions) -> tuple[str, ...]:
    """The names of the kinds that the option `drafter` means, each drafting branches of one tree; () = none.

    `auto` is all that there may be: n-grams are free, what there is to draft with shows when the model is
    opened (`find_drafters`), and the controller leaves out whatever does not pay.

    Raises OptionError for unknown names, missing files, pairs that cannot be, and options without a use.
    """
    drafter, given = options.drafter, given_files(options)
    if drafter == "auto":
        found = _auto(given, options.draft_worker is not None)
        check_worker(options, found)
        check_batch(options, [kind for kind in found if kind.needs])
        found = [kind for kind in found if kind.shares or options.batch == 1]
        return tuple(kind.name for kind in found) if options.tree_nodes > 1 else ()
    members = () if drafter == "none" else tuple(drafter.split("+"))
    chosen = kinds_of(members)
    if twice := [name for name in members if members.count(name) > 1]:
        raise OptionError(f"drafter {drafter!r} names {twice[0]} twice", "drafter")
    if len(chosen) < len(members):
        known = drafter_names()
        raise OptionError(
            f"drafter {drafter!r} is unknown; "
            + did_you_mean(drafter, known, f"choose from {', '.join(known)} (or others joined by +)"),
            "drafter",
        )
    check_pairs(chosen)
    for kind in chosen:
        if kind.needs and kind.option not in given:
            raise OptionError(f"drafter {drafter} needs {kind.needs}", hint=kind.made_by)
    for option, value in given.items():
        users = [kind.name for kind in kinds.KINDS if kind.option == option]
        if not set(users) & set(members):
            words = option.replace("_", " ")
            raise OptionError(
                f"drafter {drafter} does not use the {words} {value}; use drafter={users[0]} or auto, or "
                f"leave {option}= out"
            )
    check_worker(options, chosen)
    check_batch(options, chosen)
    return members


def check_batch(options: EngineOptions, chosen: Sequence[Kind]) -> None:
    """Raises OptionError for one of these that cannot draft for a batch."""
    able = " or ".join(kind.name for kind in kinds.KINDS if kind.shares)
    for kind in chosen:
        if options.batch != 1 and not kind.shares:
            raise OptionError(
                f"batch is {options.batch or 'auto'}, and {kind.label} drafts for one conversation at a "
                f"time; use drafter={able}, or batch=1"
            )


def check_worker(options: EngineOptions, chosen: Sequence[Kind]) -> None:
    """Raises OptionError for a draft worker that has nothing to do, or for one, here or on a server, that
    does less than is asked for."""
    if options.fan_out != "best-first" and any(kind.elsewhere for kind in chosen):
        raise OptionError(
            f"fan_out {options.fan_out} goes by how drafts ranked what came, which a draft server does not "
            "tell; use fan_out=best-first, or leave draft_server= out"
        )
    if options.draft_worker is None:
        return
    costly = [kind for kind in chosen if not kind.make]
    able = [kind.name for kind in kinds.KINDS if kind.beside]
    way = f"use drafter={' or '.join(able)}, or leave draft_worker= out"
    for kind in costly:
        if kind.elsewhere:
            raise OptionError(
                f"draft_worker is {options.draft_worker}, but {kind.label} drafts on its own machine; leave "
                "draft_worker= out",
                "draft_worker",
            )
        if not kind.beside:
            raise OptionError(
                f"draft_worker is {options.draft_worker}, but {kind.label} drafts with the target's own "
                f"weights, in its process; {way}",
                "draft_worker",
            )
    if options.fan_out != "best-first":
        raise OptionError(
            f"fan_out {options.fan_out} goes by how drafts ranked what came, which a draft worker does not "
            "tell; use fan_out=best-first, or leave draft_worker= out"
        )
    if not costly:
        what = f"drafter {options.drafter}" + (" without draft_model=" if options.drafter == "auto" else "")
        raise OptionError(
            f"draft_worker is {options.draft_worker}, but {what} has nothing that needs a process; {way}",
            "draft_worker",
        )


def _auto(given: Mapping[str, str], worker: bool = False) -> list[Kind]:
    """All that may draft. One that drafts alone has no other beside it that costs passes; of
    others that want one file, that or `find_drafters` shows whose it is. With a `worker`, who drafts in none
    and can do without is left out."""
    trained = _kind_given(given)
    there = [kind for kind in kinds.KINDS if not kind.needs or kind.option in given]
    there = [kind for kind in there if kind.option != TRAINED or kind.name == trained]
    if worker:
        there = [kind for kind in there if kind.make or kind.beside or kind.needs]
    alone = [kind for kind in there if kind.alone]
    check_pairs(alone)
    rivals = [kind for kind in kinds.KINDS if kind.option in given and not kind.make]
    for kind in alone:
        for rival in rivals:
            if rival.option != kind.option:
                raise OptionError(f"{kind.label} and {rival.label} would both draft; {_way_out(kind, rival)}")
    return [kind for kind in there if kind.make or not alone or kind in alone]


def _kind_given(given: Mapping[str, str]) -> str | None:
    """The kind whose adapters are given, as their directory says; one that says nothing is explained by the
    first of those that want it."""
    if TRAINED not in given:
        return None
    wanting = [kind.name for kind in kinds.KINDS if kind.option == TRAINED]
    said = trained_kind(Path(given[TRAINED]))
    return said if said in wanting else wanting[0]


def _way_out(alone: Kind, rival: Kind) -> str:
    """What to do about files for both of these under auto."""
    out = " or ".join(f"{kind.option}=" for kind in (alone, rival) if kind.option is not None)
    parts = [kind for kind in kinds_of(alone.takes) if kind.option == rival.option]
    ways = [f"say drafter={alone.name}+{k.name} when {k.option}= names {k.label}" for k in parts]
    return ", or ".join([f"leave {out} out", *ways])


def check_pairs(chosen: Sequence[Kind]) -> None:
    """Raises OptionError for kinds that cannot draft together."""
    for pair in combinations(chosen, 2):
        if (why := clash(*pair)) is not None:
            raise OptionError(f"{why}; choose one of them")


def check_acceptance(
    acceptance: Acceptance, drafter: str, members: tuple[str, ...], worker: bool = False
) -> None:
    """Raises OptionError when the acceptance cannot judge the trees of these `members` of `drafter`, or of a
    `worker`.

    Under `auto`, kinds that cannot draw stay silent where drafts must be drawn, as long as another drafts.
    """
    if acceptance.name == "ratio" and worker:
        raise OptionError(
            "ratio acceptance needs the distributions that drafts are drawn from, and a draft worker sends "
            "only their probabilities; leave draft_worker= out, or use acceptance=sample"
        )
    if acceptance.name == "ratio" and any(kind.elsewhere for kind in kinds_of(members)):
        raise OptionError(
            "ratio acceptance needs the distributions that drafts are drawn from, and a draft server sends "
            "only their probabilities; leave draft_server= out, or use acceptance=sample"
        )
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
