"""Figures, tables, and results files: whatever is measured ends here."""

from __future__ import annotations

import importlib.metadata
import json
import os
import platform
import statistics
import subprocess
import sys
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np

from benchmarks.common import REPO, Row
from edgespec.core.sampling import FloatArray, IntArray
from edgespec.devices.files import replacing
from edgespec.devices.probe import cpu_count, cpu_features, cpu_name, memory_total

RESULTS = Path(__file__).parent / "results"


def median_ratio(above: Sequence[float], below: Sequence[float]) -> float:
    """Median over rounds of above[i] / below[i]: what drifts slowly cancels."""
    return statistics.median(a / b for a, b in zip(above, below, strict=True))


def interval(count: int, figure: Callable[[IntArray], FloatArray]) -> tuple[float, float]:
    """The middle 95 % of 2000 draws of `count` things out of as many: how far their choice moves a figure.

    figure: [draws, count] numbers of things -> [draws] values.
    """
    drawn = np.random.default_rng(0).integers(0, count, (2000, count))
    low, high = np.percentile(figure(drawn), [2.5, 97.5]).tolist()
    return low, high


def ratio(above: Sequence[float], below: Sequence[float]) -> str:
    """ "median (low–high)" of the rounds' ratios, with the 95 % interval of that median; or the one ratio."""
    found = np.divide(above, below)
    if len(found) == 1:
        return f"{found[0]:.2f}"
    low, high = interval(len(found), lambda drawn: np.median(found[drawn], axis=1))
    return f"{np.median(found):.2f} ({low:.2f}–{high:.2f})"


def spread(values: Sequence[float], digits: int = 2) -> str:
    """ "median (min–max)", or the one value."""
    if len(values) == 1:
        return f"{values[0]:.{digits}f}"
    return f"{statistics.median(values):.{digits}f} ({min(values):.{digits}f}–{max(values):.{digits}f})"


def tail(text: str, length: int = 160) -> str:
    """The last line of a message, for a table cell."""
    lines = [line.strip() for line in text.strip().splitlines() if line.strip()]
    return lines[-1][:length].replace("|", "\\|") if lines else ""


@dataclass
class Report:
    """One script's table: rows of cells by column, text for people; `raw` is everything measured."""

    title: str
    raw: Row = field(default_factory=dict)
    rows: list[Row] = field(default_factory=list)
    notes: list[str] = field(default_factory=list)

    def add(self, row: Row) -> None:
        """The first row names the columns. Raises ValueError for a row of others."""
        if self.rows and row.keys() != self.rows[0].keys():
            raise ValueError(f"{len(row)} cells for {len(self.rows[0])} columns: {', '.join(row)}")
        self.rows.append({column: str(cell) for column, cell in row.items()})

    def failed(self, name: str, why: str) -> None:
        """Of an arm that gave no figures."""
        self.notes.append(f"{name} failed: {why}")

    def markdown(self) -> str:
        lines = ["| " + " | ".join(row.values()) + " |" for row in self.rows]
        for columns in self.rows[:1]:
            lines = ["| " + " | ".join(columns) + " |", "|" + "---|" * len(columns), *lines]
        return "\n\n".join([f"**{self.title}**", "\n".join(lines), *self.notes]) + "\n"

    def finish(self, file: Path | None) -> None:
        """Print the table and write the JSON."""
        print(self.markdown())
        file = file or RESULTS / f"{Path(sys.argv[0]).stem}.json"
        file.parent.mkdir(parents=True, exist_ok=True)
        content = {
            "title": self.title,
            "command": [Path(sys.argv[0]).name, *sys.argv[1:]],
            "machine": machine(),
            "table": self.rows,
            "notes": self.notes,
            "raw": self.raw,
        }
        file.write_text(json.dumps(content, indent=1) + "\n")


class Store:
    """A JSON file of named measurements, for scripts of hours: each is written when it is made, and not made
    again. Delete the file, or name another, to measure afresh."""

    def __init__(self, file: Path) -> None:
        self.file = file
        self.rows: Row = json.loads(file.read_text())["measured"] if file.exists() else {}

    @property
    def table(self) -> Path:
        """Where a report of them is written: beside them."""
        return self.file.with_stem(f"{self.file.stem}-table")

    def get(self, key: str, measure: Callable[..., Row], *given: Any) -> Row:
        """The measurement called `key`, made now by measure(*given) if it is not there.

        One that fails is kept with its `error`, so that the others go on; it is tried again the next time.
        """
        if key not in self.rows or "error" in self.rows[key]:
            began = time.perf_counter()
            try:
                self.rows[key] = measure(*given)
            except (RuntimeError, OSError, ValueError) as error:
                self.rows[key] = {"error": str(error)}
            seconds = time.perf_counter() - began
            failed = self.rows[key].get("error", "")
            print(f"{key}: {failed or 'done'} ({seconds:.0f} s)", file=sys.stderr, flush=True)
            self.file.parent.mkdir(parents=True, exist_ok=True)
            with replacing(self.file) as partial:
                partial.write_text(json.dumps({"machine": machine(), "measured": self.rows}) + "\n")
        row: Row = self.rows[key]
        return row

    def need(self, key: str, measure: Callable[..., Row], *given: Any) -> Row:
        """The same, of what all else rests on. Raises SystemExit where it fails."""
        row = self.get(key, measure, *given)
        if "error" in row:
            raise SystemExit(row["error"])
        return row


def machine() -> Row:
    """What the figures were measured on."""
    command = ["git", "-C", str(REPO), "describe", "--always", "--dirty"]
    commit = subprocess.run(command, capture_output=True, text=True, check=False)
    return {
        "cpu": cpu_name(),
        "features": sorted(cpu_features() & {"avx2", "avx512_bf16", "avx512_vnni", "amx_bf16"}),
        "cores": cpu_count(),
        "memory": memory_total(),
        "system": platform.platform(),
        "python": platform.python_version(),
        "versions": {name: importlib.metadata.version(name) for name in ("torch", "numpy")},
        "load": os.getloadavg(),
        "commit": commit.stdout.strip(),
        "date": time.strftime("%Y-%m-%d %H:%M"),
    }
