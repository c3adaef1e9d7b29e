"""The kinds of drafters: a row each. A new one is a file with its `find`, and a row. Needs no torch.

What goes with what follows from the rows: unknown names, options without a use, and pairs that cannot be are
refused by name, before anything is read but what a directory of adapters says that it is.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace
from itertools import combinations
from pathlib import Path
from pkgutil import resolve_name

from edgespec.config import OF_SCHEDULES, EngineOptions
from edgespec.core.acceptance import Acceptance
from edgespec.drafters.kind import TRAINED, Kind
from edgespec.drafters.ngram import POSITION_BYTES, NGram
from edgespec.drafters.resident import Drafters, Find, Found, Search
from edgespec.errors import Call, OptionError
from edgespec.runtimes.formats.trained import trained_kind
from edgespec.values import did_you_mean


def _trained(
    kind: str, label: str, find: str, roots: bool, shares: bool = False, beside: bool = False
) -> Kind:
    """What is trained for the target by the command of its name."""
    return Kind(
        kind,
        label,
        roots=roots,
        draws=True,
        beside=beside,
        shares=shares,
        option=TRAINED,
        needs="what was trained; make it, and name its directory with adapters=DIR",
        made_by=Call(f"train_{kind}", {"model": "MODEL", "data": "TEXT", "out": "DIR"}),
        spare=True,
        cpu_only=True,
        find=find,
    )


KINDS = (
    Kind("ngram", "n-grams", roots=True, draws=False, shares=True, position_bytes=POSITION_BYTES, make=NGram),
    Kind(
        "model",
        "a draft model",
        roots=True,
        draws=True,
        beside=True,
        shares=True,
        option="draft_model",
        needs="a small model to draft with; name it with draft_model=",
        find="edgespec.drafters.engines:find",
    ),
    Kind(
        "substitute",
        "the low-bit copy",
        roots=True,
        draws=True,
        option="draft_model",
        spare=True,
        cpu_only=True,
        find="edgespec.drafters.substitute:find",
    ),
    replace(
        _trained("cascade", "the cascade", "edgespec.drafters.cascade.files:find", roots=False),
        inside_target=True,
        takes=("substitute",),
        needs="trained adapters; make them, and name their directory with adapters=DIR",
    ),
    _trained("moa", "the MoA drafter", "edgespec.drafters.moa:find", roots=True),
    replace(
        _trained("eagle", "the EAGLE drafter", "edgespec.drafters.eagle.files:find", roots=True), shares=True
    ),
    replace(
        _trained(
            "specformer", "the SpecFormer drafter", "edgespec.drafters.specformer.files:find", roots=False
        ),
        shares=True,
    ),
    _trained(
        "streaming",
        "the streaming drafter",
        "edgespec.drafters.streaming.files:find",
        roots=True,
        beside=True,
    ),
    _trained("spd", "the SPD drafter", "edgespec.drafters.streaming.spd:find", roots=True, beside=True),
    Kind(
        "remote",
        "the draft server",
        roots=True,
        draws=False,
        elsewhere=True,
        option="draft_server",
        needs="a server that drafts; name it with draft_server=",
        find="edgespec.drafters.remote.server:find",
    ),
)


def kinds_of(members: Sequence[str]) -> list[Kind]:
    """The rows of these names, in the order of the rows."""
    return [kind for kind in KINDS if kind.name in members]


def drafter_names() -> list[str]:
    """What the option `drafter` is shown to take: every kind, and every two that can draft together."""
    pairs = [pair for pair in combinations(KINDS, 2) if clash(*pair) is None]
    joined = [(b, a) if a.name in b.takes else (a, b) for a, b in pairs]
    return ["none", "auto", *(kind.name for kind in KINDS), *(f"{a.name}+{b.name}" for a, b in joined)]


def given_files(options: EngineOptions) -> dict[str, str]:
    """What the kinds' own options say, by option, where something is said; not what is the schedule's."""
    taken, named = OF_SCHEDULES.get(options.schedule, ()), options.drafter.split("+")
    wanted = [kind.option for kind in KINDS if kind.option not in taken or kind.name in named]
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
        users = [kind.name for kind in KINDS if kind.option == option]
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
    able = " or ".join(kind.name for kind in KINDS if kind.shares)
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
    able = [kind.name for kind in KINDS if kind.beside]
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
    there = [kind for kind in KINDS if not kind.needs or kind.option in given]
    there = [kind for kind in there if kind.option != TRAINED or kind.name == trained]
    if worker:
        there = [kind for kind in there if kind.make or kind.beside or kind.needs]
    alone = [kind for kind in there if kind.alone]
    check_pairs(alone)
    rivals = [kind for kind in KINDS if kind.option in given and not kind.make]
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
    wanting = [kind.name for kind in KINDS if kind.option == TRAINED]
    said = trained_kind(Path(given[TRAINED]))
    return said if said in wanting else wanting[0]


def _way_out(alone: Kind, rival: Kind) -> str:
    """What to do about files for both of these under auto."""
    out = " or ".join(f"{kind.option}=" for kind in (alone, rival) if kind.option is not None)
    parts = [kind for kind in kinds_of(alone.takes) if kind.option == rival.option]
    ways = [f"say drafter={alone.name}+{k.name} when {k.option}= names {k.label}" for k in parts]
    return ", or ".join([f"leave {out} out", *ways])


def clash(one: Kind, other: Kind) -> str | None:
    """Why two kinds cannot both be named; None = they can."""
    for alone, beside in ((one, other), (other, one)):
        if alone.alone and not beside.make and beside.name not in alone.takes:
            return f"{alone.label} and {beside.label} would both draft"
    if one.option is not None and one.option == other.option:
        return f"{one.name} and {other.name} both want {one.option}="
    return None


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


def find_drafters(search: Search) -> Drafters:
    """What there is to draft with, of the kinds that were chosen; nothing is loaded.

    Raises OptionError for what is asked for and not there, and as `Find`.
    """
    found: dict[str, Found] = {}
    reasons: list[str] = []
    for kind in kinds_of(search.members):
        if kind.find is None:
            continue
        find: Find = resolve_name(kind.find)
        try:
            item = find(search, found)
        except OptionError as error:
            if not search.auto or kind.elsewhere or kind.option in search.given:
                raise
            reasons.append(error.message)
            continue
        if item is not None and kind.cpu_only and search.device != "cpu":
            if not search.auto:
                raise OptionError(f"drafter {search.drafter} runs on the CPU only, so far; use device=cpu")
            reasons.append(f"{kind.label} drafts on the CPU only, not on {search.device}")
        elif item is not None:
            found[kind.name] = item
    spare = {kind.name: kind.label for kind in KINDS if kind.spare and kind.name in found and search.auto}
    return Drafters(found, tuple(reasons), spare)
