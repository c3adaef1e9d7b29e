"""Draws some cycles of a timeline that `--trace` wrote, as an SVG.

python docs/draw_timeline.py trace.json docs/timeline.svg --from 12 --cycles 3
"""

from __future__ import annotations

import argparse
import json
from collections import defaultdict
from html import escape
from pathlib import Path
from typing import Any

WIDTH, LABEL, ROW, GAP, MARGIN = 960, 84, 22, 8, 12  # px
LETTER = 6.2  # px of width
TICKS = 8  # at most
COLOURS = {"cycle": "#dbe7f7", "layer": "#dcf0dc", "head": "#bfe3bf", "chunk": "#fbeebf", "draft": "#f7d9c4"}
WAITING = "#f5d5dd"
Event = dict[str, Any]


def read(path: Path) -> tuple[dict[int, str], dict[int, list[Event]]]:
    """Names of tracks in their order, and their events by time; what encloses others is left out."""
    names, events = dict[int, str](), defaultdict[int, list[Event]](list)
    for event in json.loads(path.read_text(encoding="utf-8"))["traceEvents"]:
        if event["name"] == "thread_name":
            names[event["tid"]] = event["args"]["name"]
        elif event["ph"] == "X" and event["name"] not in ("verify", "prefill"):
            events[event["tid"]].append(event)
    for track in events.values():
        track.sort(key=lambda event: event["ts"])
    return dict(sorted(names.items())), events


def drawn(names: dict[int, str], events: dict[int, list[Event]], first: int, count: int) -> str:
    """The picture from the cycle of number `first` on, the first being 0."""
    cycles = events[min(names)][first : first + count]
    if not cycles:
        raise SystemExit(f"there are no cycles from {first} on; the trace has {len(events[min(names)])}")
    began, ended = cycles[0]["ts"], cycles[-1]["ts"] + cycles[-1]["dur"]
    scale = (WIDTH - LABEL - 2 * MARGIN) / (ended - began)
    height = 2 * MARGIN + len(names) * (ROW + GAP) + ROW
    lines = [
        f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {WIDTH} {height}" width="{WIDTH}" '
        'font-family="Helvetica, Arial, sans-serif" font-size="11">',
        f'<rect width="{WIDTH}" height="{height}" fill="white"/>',
    ]
    for place, (track, name) in enumerate(names.items()):
        y = MARGIN + place * (ROW + GAP)
        lines.append(f'<text x="{MARGIN}" y="{y + 15}">{escape(name)}</text>')
        for event in events[track]:
            start, stop = max(event["ts"], began), min(event["ts"] + event["dur"], ended)
            if start < stop:
                x, width = MARGIN + LABEL + (start - began) * scale, max((stop - start) * scale, 0.3)
                kind = event["name"].split()[0]
                colour = WAITING if name == "waits" else COLOURS.get(kind, "#e9dcf2")
                lines.append(bar(x, y, width, colour, event["name"]))
    lines += axis((ended - began) / 1e3, scale * 1e3, height - MARGIN - ROW)
    return "\n".join([*lines, "</svg>", ""])


def bar(x: float, y: float, width: float, colour: str, name: str) -> str:
    shape = f'<rect x="{x:.1f}" y="{y}" width="{width:.1f}" height="{ROW}" fill="{colour}"'
    if width > 3:  # else there would be nothing but its edges
        shape += ' stroke="#555" stroke-width="0.5"'
    shape += f"><title>{escape(name)}</title></rect>"
    short = name.split()[-1] if name.startswith(("layer", "chunk")) else name
    for text in (name, short):
        if len(text) * LETTER < width - 2:
            middle = f'x="{x + width / 2:.1f}" y="{y + 15}" text-anchor="middle"'
            return f"{shape}<text {middle}>{escape(text)}</text>"
    return shape


def axis(length: float, scale: float, y: int) -> list[str]:
    """Ticks over `length` ms, at `scale` px each."""
    step = next(
        unit * 10**power
        for power in range(-3, 9)
        for unit in (1, 2, 5)
        if length / (unit * 10**power) <= TICKS
    )
    lines = []
    for n in range(int(length / step) + 1):
        x = MARGIN + LABEL + n * step * scale
        lines.append(f'<path d="M{x:.1f} {y}v5" stroke="#555"/>')
        lines.append(f'<text x="{x:.1f}" y="{y + 17}" text-anchor="middle">{n * step:g} ms</text>')
    return lines


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("trace", type=Path)
    parser.add_argument("picture", type=Path)
    parser.add_argument("--from", type=int, default=1, dest="first", help="number of the first cycle, from 0")
    parser.add_argument("--cycles", type=int, default=3, help="how many")
    wanted = parser.parse_args()
    wanted.picture.write_text(drawn(*read(wanted.trace), wanted.first, wanted.cycles), encoding="utf-8")
