"""`edgespec tune -i`, drawn: what is seen is a function of the dial, the way of drafting, and the window."""

from __future__ import annotations

import re
import textwrap
from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING

from edgespec.apps.tune_words import command, how, machine_line, model_line, speed_of
from edgespec.config import EngineOptions
from edgespec.offload.plan.ledger import HEADROOM
from edgespec.tuning.reasons import reasons_for
from edgespec.values import format_bytes, format_seconds

if TYPE_CHECKING:
    from edgespec.tuning.live import Live, Way
    from edgespec.tuning.predict import Setting
    from edgespec.tuning.result import Tuning

Line = list[tuple[str, str]]
"""Pieces of a line: (prompt_toolkit's style, text)."""

LEAST_WIDTH, LEAST_HEIGHT = 60, 16
FINE, COARSE = 10**8, 10**9  # bytes that a key moves the dial by
KEYS = {"left": -FINE, "right": FINE, "pagedown": -COARSE, "pageup": COARSE}
DIM, BOLD, HEAD = "fg:ansibrightblack", "bold", "fg:ansicyan bold"
COLOURS = ("ansigreen", "ansiblue", "ansiyellow", "ansimagenta", "ansicyan", "ansired")
SHADES = "█▓▒░"  # by which owners differ without colours, too
PINNED, FREE = "pinned weights", "free"
HELP = "←→ 100 MB   PgUp PgDn 1 GB   Home End   ↑↓ way of drafting   q: leave, with the command"
SHORT_HELP = "←→ 100 MB  PgUp PgDn 1 GB  ↑↓ drafting  q leave"


@dataclass(frozen=True)
class State:
    """dial: bytes. way: of drafting; None = whichever is the fastest."""

    dial: int
    way: Way | None = None


def moved(state: State, key: str, live: Live) -> State:
    """After a key: the dial on whole steps, and between the least and the most."""
    if key in ("up", "down"):
        ways = [None, *live.ways]
        place = ways.index(state.way) + (1 if key == "down" else -1)
        return replace(state, way=ways[min(max(place, 0), len(ways) - 1)])
    if key in ("home", "end"):
        dial = live.least if key == "home" else live.most
    else:
        step = abs(KEYS[key])
        places = -(-state.dial // step) - 1 if KEYS[key] < 0 else state.dial // step + 1
        dial = min(max(places * step, live.least), live.most)
    return replace(state, dial=dial) if live.row(dial).best is not None else state


def chosen(live: Live, state: State) -> Setting:
    """What runs in this state: where its way does not fit the dial, the fastest."""
    setting = live.setting(state.dial, state.way) or live.row(state.dial).best
    assert setting is not None  # `moved` goes to no dial at which nothing runs
    return setting


def drawn(
    found: Tuning, live: Live, state: State, engine: EngineOptions, width: int, height: int
) -> list[Line]:
    """`height` lines of at most `width` cells."""
    if width < LEAST_WIDTH or height < LEAST_HEIGHT:
        said = f"{width} x {height} is too small; {LEAST_WIDTH} x {LEAST_HEIGHT} will do (q leaves)"
        return [[("", line)] for line in textwrap.wrap(said, max(1, width))[:height]]
    setting, inner = chosen(live, state), width - 1
    row = live.row(state.dial)
    parts = {
        "head": [[(HEAD, _cut(found.model, inner // 2)), (DIM, f"  {model_line(found)}")]],
        "machine": [[(DIM, machine_line(found))]],
        "dial": _dial(live, state, inner),
        "bar": _bar(setting, inner),
        "plan": _wrapped(_planned(found, setting), inner),
        "table": _table(live, state, inner),
        "first": _wrapped(_first(live, setting), inner),
        "why": [line for reason in reasons_for(setting, [row]) for line in _wrapped(f"- {reason}", inner)],
        "command": _wrapped(_commands(found, setting, engine), inner, HEAD),
    }
    keys: Line = [(DIM, HELP if len(HELP) <= inner else SHORT_HELP)]
    selected = [None, *live.ways].index(state.way)
    lines = _fitted(parts, selected, height - 1)
    return [*([_clipped(line, inner) for line in lines]), *([[]] * (height - 1 - len(lines))), keys]


# The lines that parts are cut down to when the window is low, in the order in which that is done.
_CUTS = (
    *(
        ("why", 4),
        ("command", 2),
        ("table", 7),
        ("bar", 4),
        ("why", 3),
        ("machine", 0),
        ("table", 6),
        ("why", 2),
    ),
    *(("bar", 3), ("table", 5), ("dial", 1), ("bar", 2), ("plan", 1), ("why", 1), ("table", 4), ("first", 1)),
    ("command", 1),
)
_FIXED = 3  # lines of the table
_GAPS = ("machine", "dial", "plan", "first", "why")  # behind which a line stays free, if there is room


def _fitted(parts: dict[str, list[Line]], selected: int, height: int) -> list[Line]:
    gaps = list(_GAPS)
    sizes = {name: len(lines) for name, lines in parts.items()}
    over = sum(sizes.values()) - height
    for name, least in _CUTS:
        cut = min(max(0, over), max(0, sizes[name] - least))
        sizes[name] -= cut
        over -= cut
    del gaps[max(0, -over) :]
    lines = list[Line]()
    for name, part in parts.items():
        if (
            name == "table"
        ):  # always its heading, the fastest and plain decoding; and what is around the choice
            rest = sizes[name] - _FIXED
            first = min(max(_FIXED, 1 + selected - rest // 2), len(part) - rest)
            part = [*part[:_FIXED], *part[first : first + rest]]
        elif sizes[name] < len(part):
            part = part[: sizes[name]]
            if part:
                part[-1] = [*part[-1], ("", " …")]
        lines += [*part, *([[]] if name in gaps else [])]
    return lines


def _dial(live: Live, state: State, width: int) -> list[Line]:
    label = f"memory {format_bytes(state.dial):>8}  "
    cells = width - len(label)
    place = round((state.dial - live.least) / max(1, live.most - live.least) * (cells - 1))
    least, most = format_bytes(live.least), format_bytes(live.most)
    scale = f"{least} is the least".ljust(cells - len(most)) + most
    track: Line = [("fg:ansigreen", "━" * place), (BOLD, "●"), (DIM, "─" * (cells - 1 - place))]
    return [[(BOLD, label), *track], [(DIM, " " * len(label) + scale)]]


def _owners(setting: Setting) -> list[tuple[str, int]]:
    """In an order that stays while the dial moves: what must be, what is pinned, and what nobody uses."""
    owners = {re.sub(r" \(.*\)$", "", name): nbytes for name, nbytes in setting.plan.owners.items()}
    last = [(PINNED, owners.pop(PINNED, 0)), (HEADROOM, owners.pop(HEADROOM, 0))]
    return [*owners.items(), *last, (FREE, setting.plan.ledger.free)]


def _bar(setting: Setting, width: int) -> list[Line]:
    """The dial's bytes by owner, and below who is who, the largest first; who has less than half a cell is
    named, not drawn."""
    bar, named = Line(), list[tuple[int, Line]]()
    at, end = 0, 0.0
    for place, (name, nbytes) in enumerate(_owners(setting)):
        if not nbytes:
            continue
        style, shade = f"fg:{COLOURS[place % len(COLOURS)]}", SHADES[place % len(SHADES)]
        if name in (HEADROOM, FREE):
            style, shade = DIM, "·" if name == HEADROOM else " "
        end += nbytes / setting.dial * width
        bar.append((style, shade * (round(end) - at)))
        at = max(at, round(end))
        named.append((nbytes, [(style, shade), ("", f" {name} {format_bytes(nbytes)}   ")]))
    legend, used = list[Line]([[]]), 0
    for _, pieces in sorted(named, key=lambda one: -one[0]):
        cells = sum(len(text) for _, text in pieces)
        if used + cells > width + 3:  # the blanks at the end may be past the edge
            legend.append([])
            used = 0
        legend[-1] += pieces
        used += cells
    return [bar, *legend]


def _planned(found: Tuning, setting: Setting) -> str:
    plan, machine = setting.plan, found.machine
    said = "pinned: the whole model"
    if setting.streams:
        share, seconds = plan.pinned_bytes / plan.table.nbytes, format_seconds(setting.costs.io)
        said = f"pinned: {format_bytes(plan.pinned_bytes)}, {share:.0%}"
        said += f"; a pass reads {format_bytes(plan.bytes_per_pass)} in {seconds}"
    said += f"; context {plan.context}"
    free = machine.baseline + machine.available
    if found.preset is None and setting.dial > free:
        said += f"; only {format_bytes(free)} are free now"
    return said


def _table(live: Live, state: State, width: int) -> list[Line]:
    """The fastest and every way: its speed, and the interval drawn on one scale."""
    row = live.row(state.dial)
    assert row.plain is not None
    assert row.best is not None
    plain = row.plain.speed.middle
    top = max(s.speed.high for s in row.settings)
    listed: list[tuple[Way | None, str, Setting | None]] = [(None, f"fastest: {_name(row.best)}", row.best)]
    for way in live.ways:
        setting = live.setting(state.dial, way)
        name = "plain decoding" if way[0] == "none" else ", ".join(way[:2])
        listed.append((way, _name(setting) if setting else name, setting))
    wide = min(max(len(name) for _, name, _ in listed), width // 2 - 4)
    cells = width - wide - 36
    lines = list[Line]([[(DIM, f"  {'':{wide}}  tokens/s (80 % between)  x plain")]])
    for listed_way, name, setting in listed:
        style = "reverse" if listed_way == state.way else ""
        line: Line = [(style, f"{'▶' if listed_way == state.way else ' '} {_cut(name, wide):{wide}}")]
        if setting is None:
            waits = listed_way is None or listed_way[1] == "serial" or row.plain.streams
            why = "does not fit" if waits else "nothing streams, so there are no waits to draft in"
            line.append((DIM, f"  {why}" + "; the fastest is shown" * (listed_way == state.way)))
        else:
            times = setting.speed.middle / plain
            line.append(("", f"  {speed_of(setting.speed):<23}{times:>8.2f}"))
            if cells >= 8:
                line += [("", " "), *_interval(setting, top, cells)]
        lines.append(line)
    return lines


def _name(setting: Setting) -> str:
    apart = "".join(f", {name.replace('_', ' ')} {value}" for name, value in setting.set_.items())
    return how(setting) + apart + (", once packed" if setting.before else "")


def _interval(setting: Setting, top: float, cells: int) -> Line:
    ends = (setting.speed.low, setting.speed.middle, setting.speed.high)
    low, middle, high = (min(cells - 1, int(value / top * cells)) for value in ends)
    return [
        (DIM, " " * low + "─" * (middle - low)),
        ("fg:ansigreen", "●"),
        (DIM, "─" * (high - middle)),
    ]


def _first(live: Live, setting: Setting) -> str:
    ends = setting.first_token
    said = (
        f"first token after 500: {format_seconds(ends.middle)} "
        f"({format_seconds(ends.low)} to {format_seconds(ends.high)})"
    )
    more = live.more(setting)
    return said if more is None else f"{said}; 1 GB more: {more - 1:+.0%} tokens/s"


def _commands(found: Tuning, setting: Setting, engine: EngineOptions) -> str:
    first = "once a low-bit copy is packed: " if setting.before else ""
    return first + command(found, setting, engine)


def _wrapped(text: str, width: int, style: str = "") -> list[Line]:
    return [[(style, line)] for line in textwrap.wrap(text, width - 2, subsequent_indent="  ")]


def _cut(text: str, cells: int) -> str:
    return text if len(text) <= cells else text[: cells - 1] + "…"


def _clipped(line: Sequence[tuple[str, str]], width: int) -> Line:
    kept, left = Line(), width
    for style, text in line:
        kept.append((style, text[:left]))
        left -= len(kept[-1][1])
    return kept
