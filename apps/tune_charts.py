"""The charts of a tuning as inline SVG: speed by memory, and who owns the bytes of each dial."""

from __future__ import annotations

import re
from collections.abc import Sequence
from html import escape
from math import ceil, floor, log2, log10
from typing import TYPE_CHECKING

from edgespec.apps.tune_words import speed_of
from edgespec.offload.plan.ledger import HEADROOM
from edgespec.values import format_bytes

if TYPE_CHECKING:
    from edgespec.tuning.result import Row

FREE = "free"
WIDTH = 460  # units of an SVG; on a phone they are 0.75 pixels wide, and texts of 14 still read
LEFT, RIGHT, TOP, BOTTOM = 58, 18, 12, 44  # margins of the chart of speeds
HEIGHT = 300
LABEL = 74  # width that a dial's label takes
BAR = 26  # height of a dial's bar, and 12 between two
COLOURS = 8  # of owners; the page and the picture have so many


def owners_of(rows: Sequence[Row]) -> dict[str, list[int]]:
    """Bytes by owner, of each row's best plan; the largest first, and last what nobody uses. What differs
    between dials in a name ("KV cache and attention (640 positions)") is left out of it."""
    plans = [row.best.plan for row in rows if row.best is not None]
    found: dict[str, list[int]] = {}
    for i, plan in enumerate(plans):
        for owner, nbytes in (plan.owners | {FREE: plan.ledger.free}).items():
            found.setdefault(re.sub(r" \(.*\)$", "", owner), [0] * len(plans))[i] += nbytes
    used = sorted((owner for owner in found if owner not in (HEADROOM, FREE)), key=lambda o: -sum(found[o]))
    return {owner: found[owner] for owner in (*used, HEADROOM, FREE) if any(found.get(owner, ()))}


def ticks_to(top: float) -> list[float]:
    """About five round numbers from 0 to `top` or more."""
    step = 10 ** floor(log10(top / 4))
    step = next(step * n for n in (1, 2, 2.5, 5, 10) if step * n * 5 >= top)
    return [step * i for i in range(ceil(top / step - 1e-9) + 1)]


def places(dials: Sequence[int]) -> list[float]:
    """0 to 1, by the logarithm: twice the memory is as far everywhere."""
    if len(dials) == 1:
        return [0.5]
    first, last = log2(dials[0]), log2(dials[-1])
    return [(log2(dial) - first) / (last - first) for dial in dials]


def speeds_svg(rows: Sequence[Row]) -> str:
    """Tokens a second by memory: the best with its 80 %, and plain decoding. rows: ascending."""
    ticks = ticks_to(max(row.best.speed.high for row in rows if row.best is not None))
    inner, tall = WIDTH - LEFT - RIGHT, HEIGHT - TOP - BOTTOM
    # Half a label's width stays free on both sides.
    across = [LEFT + 24 + place * (inner - 48) for place in places([row.dial for row in rows])]

    def up(speed: float) -> float:
        return TOP + tall * (1 - speed / ticks[-1])

    parts = []
    for tick in ticks:
        parts.append(f'<path class="grid" d="M{LEFT} {up(tick):.1f}H{WIDTH - RIGHT}"/>')
        parts.append(f'<text x="{LEFT - 8}" y="{up(tick) + 5:.1f}" text-anchor="end">{tick:g}</text>')
    free_from = 0.0
    for x, row in zip(across, rows, strict=True):
        parts.append(f'<path class="grid" d="M{x:.1f} {HEIGHT - BOTTOM}v5"/>')
        if x - 26 >= free_from:  # else the labels would overlap
            label = escape(format_bytes(row.dial))
            parts.append(f'<text x="{x:.1f}" y="{HEIGHT - BOTTOM + 21}" text-anchor="middle">{label}</text>')
            free_from = x + 26
        if row.best is None:
            y = HEIGHT - BOTTOM
            parts.append(f'<path class="never" d="M{x - 5:.1f} {y - 5}l10 10m0 -10l-10 10"/>')
    runs = [(x, row.best, row.plain) for x, row in zip(across, rows, strict=True) if row.best and row.plain]
    low = [f"{x:.1f} {up(best.speed.low):.1f}" for x, best, _ in runs]
    high = [f"{x:.1f} {up(best.speed.high):.1f}" for x, best, _ in runs]
    if len(runs) > 1:
        parts.append(f'<path class="band" d="M{"L".join([*high, *reversed(low)])}Z"/>')
    for kind, points in (
        ("plain", [(x, up(plain.speed.middle)) for x, _, plain in runs]),
        ("best", [(x, up(best.speed.middle)) for x, best, _ in runs]),
    ):
        parts.append(f'<path class="{kind}" d="M{"L".join(f"{x:.1f} {y:.1f}" for x, y in points)}"/>')
        parts += [f'<circle class="{kind}" cx="{x:.1f}" cy="{y:.1f}" r="4.5"/>' for x, y in points]
    for (_, best, _), a, b in zip(runs, low, high, strict=True):
        said = f"{format_bytes(best.dial)}: {speed_of(best.speed)} tokens/s"
        parts.append(f'<path class="range" d="M{a}L{b}"><title>{escape(said)}</title></path>')
    middle = LEFT + inner / 2
    parts.append(f'<text x="{middle:.0f}" y="{HEIGHT - 4}" text-anchor="middle">memory</text>')
    return svg(HEIGHT, "Tokens a second by memory; the table below has the numbers", parts)


def owners_svg(rows: Sequence[Row]) -> str:
    """A bar a dial, all of the same length: the shares of a dial's bytes by owner."""
    fitting = [row for row in rows if row.best is not None]
    owners = owners_of(rows)
    parts, y = [], 4
    for i, row in enumerate(fitting):
        label = escape(format_bytes(row.dial))
        parts.append(f'<text x="{LABEL - 8}" y="{y + BAR / 2 + 5}" text-anchor="end">{label}</text>')
        x = float(LABEL)
        for n, (owner, sizes) in enumerate(owners.items()):
            wide = sizes[i] / row.dial * (WIDTH - LABEL - 2)
            if wide <= 0:
                continue
            parts.append(
                f'<rect class="{colour_of(n, owner)}" x="{x:.2f}" y="{y}" width="{wide:.2f}" height="{BAR}">'
                f"<title>{escape(owner)}: {escape(format_bytes(sizes[i]))}</title></rect>"
            )
            x += wide
        y += BAR + 12
    return svg(y, "Shares of each dial by owner; the table below has the numbers", parts)


def colour_of(n: int, owner: str) -> str:
    """The class of an owner's colour."""
    return {HEADROOM: "headroom", FREE: "free"}.get(owner, f"o{n % COLOURS}")


def svg(height: int, label: str, parts: Sequence[str]) -> str:
    """The parts, under a label for who does not see them."""
    # No width or height of its own: the page's style stretches it, the viewBox keeps its shape.
    opening = f'<svg viewBox="0 0 {WIDTH} {height}" role="img" aria-label="{escape(label)}">'
    return "\n".join([opening, *parts, "</svg>"])
