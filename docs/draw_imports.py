"""Draws docs/imports.svg: which folders of modules use which, from the imports themselves.

A floor is as high as the longest way down. An arrow is left out where others lead to the same box. Boxes are
ordered within their floors by the mean of their neighbours, so that few arrows cross (Sugiyama's method).
"""

from __future__ import annotations

import sys
from collections.abc import Sequence
from functools import cache
from itertools import pairwise
from math import fsum
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parent.parent))  # this checkout, whatever is installed

from tests.test_imports import folder_of, import_graph, room_graph

PAGE = Path(__file__).with_name("imports.svg")
FLOOR, BOX, HEIGHT, GAP, MARGIN = 74, 136, 34, 16, 24  # px
COLOURS = {
    "apps": "#f7d9c4",
    "edgespec": "#dbe7f7",
    "runtimes": "#dcf0dc",
    "offload": "#fbeebf",
    "devices": "#e9dcf2",
    "kernels": "#f5d5dd",
}
Node = str | tuple[str, str, int]  # a room, or the place of an arrow (from, to) on a floor between


def drawn(rooms: dict[str, set[str]]) -> str:
    """The picture of a graph without circles: who uses whom."""

    @cache
    def reached(room: str) -> frozenset[str]:
        return frozenset(rooms[room]).union(*map(reached, rooms[room]))

    @cache
    def floor(room: str) -> int:
        return 1 + max(map(floor, rooms[room]), default=-1)

    used = set().union(*rooms.values())
    shown = sorted(room for room in rooms if rooms[room] or room in used)
    arrows = [
        (room, other)
        for room in shown
        for other in sorted(rooms[room])
        if not any(other in reached(between) for between in rooms[room])
    ]
    floors: list[list[Node]] = [[] for _ in range(1 + max(map(floor, shown)))]
    for room in shown:
        floors[floor(room)].append(room)
    ways: list[list[Node]] = []
    for start, end in arrows:
        between: list[Node] = [(start, end, n) for n in range(floor(start) - 1, floor(end), -1)]
        for n, place in zip(range(floor(start) - 1, floor(end), -1), between, strict=True):
            floors[n].append(place)
        ways.append([start, *between, end])
    place = placed(floors, ways)
    width = max(place.values()) + BOX / 2 + MARGIN
    height = MARGIN * 2 + HEIGHT + FLOOR * (len(floors) - 1) + 34
    level = {node: n for n, row in enumerate(floors) for node in row}

    def y(node: Node) -> float:
        return MARGIN + HEIGHT / 2 + FLOOR * (len(floors) - 1 - level[node])

    lines = [
        f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {width:.0f} {height:.0f}" width="{width:.0f}" '
        'font-family="Helvetica, Arial, sans-serif" font-size="13" text-anchor="middle">',
        '<marker id="to" viewBox="0 0 8 8" refX="7" refY="4" markerWidth="7" markerHeight="7" orient="auto">'
        '<path d="M0 0L8 4L0 8z" fill="#555"/></marker>',
        f'<rect width="{width:.0f}" height="{height:.0f}" fill="white"/>',
    ]
    for way in ways:
        points = [(place[node], y(node)) for node in way]
        path = f"M{points[0][0]:.0f} {points[0][1] + HEIGHT / 2:.0f}"
        for n, ((x0, y0), (x1, y1)) in enumerate(pairwise(points)):
            y0 += HEIGHT / 2 if n == 0 else 0
            y1 -= HEIGHT / 2 + 1 if n == len(points) - 2 else 0
            bend = (y1 - y0) / 2
            path += f"C{x0:.0f} {y0 + bend:.0f} {x1:.0f} {y1 - bend:.0f} {x1:.0f} {y1:.0f}"
        lines.append(f'<path d="{path}" fill="none" stroke="#777" marker-end="url(#to)"/>')
    for room in shown:
        x = place[room]
        name = room.removeprefix("edgespec.").replace(".", "/") if room != "edgespec" else "import edgespec"
        lines += [
            f'<rect x="{x - BOX / 2:.0f}" y="{y(room) - HEIGHT / 2:.0f}" width="{BOX}" height="{HEIGHT}" '
            f'rx="6" fill="{COLOURS[folder_of(room) or "edgespec"]}" stroke="#555"/>',
            f'<text x="{x:.0f}" y="{y(room) + 4.5:.0f}">{name}</text>',
        ]
    for n, (folder, colour) in enumerate(COLOURS.items()):
        x = MARGIN + n * 100
        lines.append(
            f'<rect x="{x}" y="{height - 32:.0f}" width="14" height="14" fill="{colour}" stroke="#555"/>'
            f'<text x="{x + 20}" y="{height - 20:.0f}" text-anchor="start">{folder}/</text>'
        )
    return "\n".join([*lines, "</svg>", ""])


def placed(floors: list[list[Node]], ways: Sequence[Sequence[Node]]) -> dict[Node, float]:
    """Where each node is from left to right, in px; orders the floors."""
    near: dict[Node, list[Node]] = {node: [] for row in floors for node in row}
    for way in ways:
        for above, below in pairwise(way):
            near[above].append(below)
            near[below].append(above)
    x: dict[Node, float] = {node: 100.0 * n for row in floors for n, node in enumerate(row)}
    for turn in range(60):
        for row in floors if turn % 2 else floors[::-1]:
            wanted = {
                node: round(fsum(x[other] for other in near[node]) / len(near[node]), 3) for node in row
            }
            row.sort(key=lambda node: (wanted[node], str(node)))
            x.update(apart(row, [wanted[node] for node in row]))
    left = min(x.values())
    return {node: at - left + BOX / 2 + MARGIN for node, at in x.items()}


def apart(row: Sequence[Node], wanted: Sequence[float]) -> dict[Node, float]:
    """Places nearest to the wanted ones, in least squares, that keep the order and room for each."""
    size = [BOX + GAP if isinstance(node, str) else GAP for node in row]
    offset = [0.0]
    for one, next_one in pairwise(size):
        offset.append(offset[-1] + (one + next_one) / 2)
    blocks: list[tuple[float, int]] = []  # mean of wanted - offset, and of how many
    for want, skip in zip(wanted, offset, strict=True):
        mean, count = want - skip, 1
        while blocks and blocks[-1][0] > mean:
            other, many = blocks.pop()
            mean, count = (mean * count + other * many) / (count + many), count + many
        blocks.append((mean, count))
    means = [mean for mean, count in blocks for _ in range(count)]
    return {node: mean + skip for node, mean, skip in zip(row, means, offset, strict=True)}


def current() -> str:
    """The picture of the imports as they are now."""
    return drawn(room_graph(import_graph()))


if __name__ == "__main__":
    PAGE.write_text(current(), encoding="utf-8")
