"""A cycle of a setting as a chart, as it is predicted: what flash, processors and the drafter do when."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from html import escape
from typing import TYPE_CHECKING

from edgespec.apps.tune_charts import WIDTH, svg, ticks_to
from edgespec.values import format_seconds, two_digits

if TYPE_CHECKING:
    from edgespec.tuning.predict import Setting

NAME = 84  # width that a lane's name takes
LANE, GAP = 26, 12
RIGHT = 14

Bar = tuple[str, float, float]
"""What is done, from when to when: seconds since the cycle began."""


def lanes_of(setting: Setting) -> dict[str, list[Bar]]:
    """By who works: what `offload.plan.costs.CostModel.cycle` adds up. While something is drafted before the
    pass, the ring is read full for it; behind its own, flash reads on for the next."""
    costs = setting.costs
    drafting = costs.step * setting.steps if setting.drafter != "none" else 0.0
    computing = costs.working(setting.tree_nodes)
    ahead = min(costs.ahead, drafting, costs.io)
    ends = drafting + max(costs.io - ahead, computing)
    lanes: dict[str, list[Bar]] = {}
    if costs.io:
        lanes["flash"] = [("reads ahead", 0.0, ahead), ("reads", drafting, drafting + costs.io - ahead)]
    lanes["computing"] = [("verifies", drafting, drafting + computing)]
    if setting.drafter != "none":
        lanes["drafting"] = [("drafts", 0.0, drafting)]
        waits = ends - drafting - computing
        if setting.schedule != "serial" and waits > 0:
            lanes["drafting"].append(("may draft ahead, for as long", ends - waits, ends))
    lanes = {name: [bar for bar in bars if bar[2] > bar[1]] for name, bars in lanes.items()}
    return {name: bars for name, bars in lanes.items() if bars}  # n-grams' drafts take no time


def _scale(lanes: Mapping[str, Sequence[Bar]]) -> tuple[int, str]:
    """The unit that a cycle is told in, and how many a second has: so that ticks are short, and lie apart."""
    ends = max(bar[2] for bars in lanes.values() for bar in bars)
    return (1, "seconds") if ends >= 1 else (1000, "ms")


def _time(seconds: float, unit: str) -> str:
    return f"{two_digits(seconds * 1000)} ms" if unit == "ms" else format_seconds(seconds)


def cycle_svg(setting: Setting) -> str:
    """One cycle, bars by lane over seconds."""
    lanes = lanes_of(setting)
    ends = max(bar[2] for bars in lanes.values() for bar in bars)
    scale, unit = _scale(lanes)
    ticks = ticks_to(ends * scale)
    wide = WIDTH - NAME - RIGHT

    def across(seconds: float) -> float:
        return NAME + wide * seconds * scale / ticks[-1]

    height = len(lanes) * (LANE + GAP)
    marks = [(tick, NAME + wide * tick / ticks[-1]) for tick in ticks]
    parts = [f'<path class="grid" d="M{x:.1f} 0V{height + 4}"/>' for _, x in marks]
    for tick, x in marks:
        at = "end" if tick == ticks[-1] else "middle"
        parts.append(f'<text x="{x:.1f}" y="{height + 22}" text-anchor="{at}">{tick:g}</text>')
    for n, (name, bars) in enumerate(lanes.items()):
        y = n * (LANE + GAP) + GAP // 2
        parts.append(f'<text x="{NAME - 8}" y="{y + LANE / 2 + 5}" text-anchor="end">{escape(name)}</text>')
        for said, begins, over in bars:
            x, length = across(begins), max(1.0, across(over) - across(begins))
            kind = "free" if said.startswith("may") else f"o{n}"
            told = escape(f"{said}: {_time(over - begins, unit)}")
            parts.append(
                f'<rect class="{kind}" x="{x:.1f}" y="{y}" width="{length:.1f}" height="{LANE}">'
                f"<title>{told}</title></rect>"
            )
    parts.append(f'<text x="{NAME - 8}" y="{height + 22}" text-anchor="end">{unit}</text>')
    return svg(height + 28, "A cycle, as it is predicted; the list below has the numbers", parts)


def cycle_words(setting: Setting) -> list[str]:
    """The same in words, one bar a line."""
    lanes = lanes_of(setting)
    _, unit = _scale(lanes)
    return [
        f"{name}: {said} {_time(over - begins, unit)}"
        for name, bars in lanes.items()
        for said, begins, over in bars
    ]
