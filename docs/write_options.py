"""Writes the tables of docs/cli.md from where options and chat commands are declared."""

from __future__ import annotations

import re
import sys
from collections.abc import Iterable
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parent.parent))  # this checkout, whatever is installed

from edgespec.apps.bench import BenchFlags
from edgespec.apps.chat import ChatFlags
from edgespec.apps.commands import COMMANDS
from edgespec.apps.devices import DevicesFlags
from edgespec.apps.generate import GenerateFlags
from edgespec.apps.options import ALL, switches
from edgespec.apps.serve import ServeFlags
from edgespec.apps.tune import TuneFlags
from edgespec.config import PANELS
from edgespec.models.options import ExportOptions, PackOptions
from edgespec.training.options import (
    CascadeOptions,
    EagleOptions,
    MoaOptions,
    SpdOptions,
    SpecFormerOptions,
    StreamingOptions,
)
from edgespec.values import Field, Options, options_of

PAGE = Path(__file__).with_name("cli.md")


OF_COMMANDS: dict[str, type[Options]] = {  # beside what is common
    "chat": ChatFlags,
    "generate": GenerateFlags,
    "serve": ServeFlags,
    "tune": TuneFlags,
    "devices": DevicesFlags,
    "pack": PackOptions,
    "export": ExportOptions,
    "bench": BenchFlags,
    "train cascade": CascadeOptions,
    "train moa": MoaOptions,
    "train eagle": EagleOptions,
    "train specformer": SpecFormerOptions,
    "train streaming": StreamingOptions,
    "train spd": SpdOptions,
}


def option_table(fields: Iterable[Field]) -> str:
    lines = ["| option | meaning | default |", "|---|---|---|"]
    for field in fields:
        option = field.option
        if not option.hidden:
            shown = [f"`{f'{flag} {option.metavar}'.strip()}`" for flag in switches(field)]
            shown += [f"`{option.short}`"] if option.short else []
            lines.append(f"| {', '.join(shown)} | {option.help} | {field.default_words} |")
    return "\n".join(lines)


def common_table() -> str:
    shared = [field for field in ALL.values() if not field.option.only]
    return option_table(sorted(shared, key=lambda field: PANELS.index(field.option.panel)))


def command_table() -> str:
    lines = ["| command | |", "|---|---|"]
    lines += [f"| `{c.usage.replace('|', '&#124;')}` | {c.help} |" for c in COMMANDS.values()]
    return "\n".join(lines)


def updated(page: str) -> str:
    """The page with its tables as the code has them now."""
    tables = {"options": common_table(), "commands": command_table()}
    for name, of in OF_COMMANDS.items():
        own = [field for field in ALL.values() if name in field.option.only]
        tables[f"options of {name}"] = option_table([*options_of(of).values(), *own])
    for name, table in tables.items():
        begin, end = f"<!-- {name}: written by write_options.py -->\n", f"\n<!-- end of {name} -->"
        page, count = re.subn(
            f"(?s){re.escape(begin)}.*?{re.escape(end)}", lambda _, t=begin + table + end: t, page
        )
        if count != 1:
            raise SystemExit(f"{PAGE} has {count} tables of {name}; it must have one, between its two marks")
    if unknown := set(re.findall("<!-- (.*): written by write_options.py -->", page)) - tables.keys():
        raise SystemExit(f"{PAGE} has marks of {', '.join(sorted(unknown))}, which nobody writes")
    return page


if __name__ == "__main__":
    PAGE.write_text(updated(PAGE.read_text(encoding="utf-8")), encoding="utf-8")
