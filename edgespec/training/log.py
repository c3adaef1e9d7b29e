"""What a run has logged: a line of JSON for each step and each evaluation."""

from __future__ import annotations

import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any

LOG = "log.jsonl"


def add(directory: Path, values: Mapping[str, Any]) -> None:
    with open(directory / LOG, "a", encoding="utf-8") as file:
        file.write(json.dumps(values) + "\n")


def rewind(directory: Path, step: int) -> None:
    """Drop what a killed run logged after `step`, that of its last checkpoint."""
    path = directory / LOG
    if path.is_file():
        kept = [line for line in read_log(path) if line["step"] <= step and step]
        path.write_text("".join(json.dumps(line) + "\n" for line in kept), encoding="utf-8")


def read_log(path: Path) -> list[dict[str, Any]]:
    """The lines of a log; one that was cut off by a kill is left out."""
    lines = []
    for text in path.read_text(encoding="utf-8", errors="replace").splitlines():
        try:
            line = json.loads(text)
        except ValueError:
            continue
        if isinstance(line, dict) and isinstance(line.get("step"), int):
            lines.append(line)
    return lines
