"""The kinds of drafters: a row each. A new one is a file with its `find`, and a row. Needs no torch.

What goes with what follows from the rows: `choice` refuses by them.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from itertools import combinations
from pkgutil import resolve_name

from edgespec.drafters.kind import TRAINED, Kind
from edgespec.drafters.ngram import POSITION_BYTES, NGram
from edgespec.drafters.resident import Drafters, Find, Found, Search
from edgespec.errors import Call, OptionError


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
    _trained("eagle", "the EAGLE drafter", "edgespec.drafters.eagle.files:find", roots=True, shares=True),
    _trained(
        "specformer",
        "the SpecFormer drafter",
        "edgespec.drafters.specformer.files:find",
        roots=False,
        shares=True,
    ),
    _trained(
        "streaming",
        "the streaming drafter",
        "edgespec.drafters.streaming.files:find",
        roots=True,
        shares=True,
        beside=True,
    ),
    _trained(
        "spd",
        "the SPD drafter",
        "edgespec.drafters.streaming.spd:find",
        roots=True,
        shares=True,
        beside=True,
    ),
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


def clash(one: Kind, other: Kind) -> str | None:
    """Why two kinds cannot both be named; None = they can."""
    for alone, beside in ((one, other), (other, one)):
        if alone.alone and not beside.make and beside.name not in alone.takes:
            return f"{alone.label} and {beside.label} would both draft"
    if one.option is not None and one.option == other.option:
        return f"{one.name} and {other.name} both want {one.option}="
    return None


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
