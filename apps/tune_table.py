"""Tables of the terminal: the columns that fit a width."""

from __future__ import annotations

from collections.abc import Collection, Sequence

LEAST = 3  # columns that stay, however narrow it is


def fitted(
    lines: Sequence[Sequence[str]], told: Sequence[int], left: Collection[int], width: int
) -> list[str]:
    """Lines of at most `width`, the heads first. Columns that do not fit are left out, the least telling
    first.

    told: of each column, what matters more having the lower number. left: columns whose text begins at the
    left. A line of two cells has a text for all columns but the first, whose width counts for none of them.
    """
    whole = [line for line in lines if len(line) == len(told)]
    wide = [max(len(line[i]) for line in (whole if i else lines)) for i in range(len(told))]
    shown = list(range(len(told)))
    while sum(wide[i] + 2 for i in shown) - 2 > width and len(shown) > LEAST:
        shown.remove(max(shown, key=lambda i: told[i]))
    found = []
    for line in lines:
        if len(line) < len(told):
            found.append(f"{line[0]:>{wide[0]}}  {line[1]}")
            continue
        cells = (line[i].ljust(wide[i]) if i in left else line[i].rjust(wide[i]) for i in shown)
        found.append("  ".join(cells).rstrip())
    return found
