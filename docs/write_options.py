"""Writes the tables of docs/cli.md from where options and chat commands are declared."""

from __future__ import annotations

import re
import sys
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parent.parent))  # this checkout, whatever is installed

from edgespec.apps.commands import COMMANDS
from edgespec.apps.options import ALL
from edgespec.config import PANELS

PAGE = Path(__file__).with_name("cli.md")


def option_table() -> str:
    lines = ["| option | meaning | default |", "|---|---|---|"]
    for panel in PANELS:
        for field in ALL.values():
            option = field.option
            if option.panel == panel and not option.hidden:
                shown = field.flag if field.kind is bool else f"{field.flag} {option.metavar}"
                lines.append(f"| `{shown}` | {option.help} | {field.default_words} |")
    return "\n".join(lines)


def command_table() -> str:
    lines = ["| command | |", "|---|---|"]
    lines += [f"| `{c.usage.replace('|', '&#124;')}` | {c.help} |" for c in COMMANDS.values()]
    return "\n".join(lines)


def updated(page: str) -> str:
    """The page with its tables as the code has them now."""
    for name, table in (("options", option_table()), ("commands", command_table())):
        begin, end = f"<!-- {name}: written by write_options.py -->\n", f"\n<!-- end of {name} -->"
        page, count = re.subn(
            f"(?s){re.escape(begin)}.*?{re.escape(end)}", lambda _, t=begin + table + end: t, page
        )
        if count != 1:
            raise SystemExit(f"{PAGE} has {count} tables of {name}; it must have one, between its two marks")
    return page


if __name__ == "__main__":
    PAGE.write_text(updated(PAGE.read_text(encoding="utf-8")), encoding="utf-8")
