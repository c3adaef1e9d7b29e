"""What every benchmark shares: the checkout under test, interleaved arms, medians, and the report.

Conventions: arms run in turn, round by round, each round starting with another arm, because a shared
machine drifts; a figure is the median over rounds with its range; a ratio is the median of the rounds' own
ratios. Every script prints a markdown table and writes the same rows, with the machine's description, as
JSON to benchmarks/results/.
"""

from __future__ import annotations

import argparse
import compileall
import importlib.metadata
import json
import os
import platform
import signal
import statistics
import subprocess
import sys
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from edgespec.values import format_bytes, parse_bytes

REPO = Path(__file__).resolve().parents[1]

__all__ = [
    "REPO",
    "Report",
    "arguments",
    "compile_checkout",
    "edgespec_command",
    "environment",
    "format_bytes",
    "generate_command",
    "interleave",
    "median_ratio",
    "parse_bytes",
    "sizes",
    "spread",
    "tail",
]

PROMPT = "Once upon a time there was a small machine that wanted to read a large book."

Row = dict[str, Any]


def edgespec_command(*args: str | Path | int) -> list[str]:
    """The command line of this checkout's `edgespec`."""
    return [sys.executable, "-c", "from edgespec.apps.start import main; main()", *map(str, args)]


def generate_command(
    model: Path, prompt: str, dial: int, tokens: int, drafter: str = "none", *more: str | Path | int
) -> list[str]:
    """One reply by this checkout, its tokens and stats as the last line of JSON."""
    options = ["-p", prompt, "--memory", dial, "--drafter", drafter, "--max-tokens", tokens, "--json", *more]
    return edgespec_command("generate", model, *options)


def environment() -> dict[str, str]:
    """Environment of measured processes: this checkout, offline, no settings left over from the caller."""
    kept = {k: v for k, v in os.environ.items() if not k.startswith(("EDGESPEC_", "OMP_", "MKL_"))}
    return {**kept, "PYTHONPATH": str(REPO), "HF_HUB_OFFLINE": "1"}


def compile_checkout() -> None:
    """Write the byte code that a first run would write, so that no measured run does."""
    for package in ("edgespec", "runtimes", "offload", "kernels", "devices", "apps"):
        compileall.compile_dir(REPO / package, quiet=2)


def interleave(arms: Mapping[str, Callable[[], Row]], rounds: int) -> dict[str, list[Row]]:
    """Run every arm once a round, starting each round with the next arm. Progress goes to stderr."""
    results: dict[str, list[Row]] = {name: [] for name in arms}
    names = list(arms)
    for i in range(rounds):
        turn = i % len(names)
        for name in names[turn:] + names[:turn]:
            began = time.perf_counter()
            results[name].append(arms[name]())
            seconds = time.perf_counter() - began
            print(f"round {i + 1}/{rounds}  {name}: {seconds:.1f} s", file=sys.stderr, flush=True)
    return results


def median_ratio(above: Sequence[float], below: Sequence[float]) -> float:
    """Median over rounds of above[i] / below[i]: what drifts slowly cancels."""
    return statistics.median(a / b for a, b in zip(above, below, strict=True))


def spread(values: Sequence[float], digits: int = 2) -> str:
    """ "median (min–max)", or the one value."""
    if len(values) == 1:
        return f"{values[0]:.{digits}f}"
    return f"{statistics.median(values):.{digits}f} ({min(values):.{digits}f}–{max(values):.{digits}f})"


def tail(text: str, length: int = 160) -> str:
    """The last line of a message, for a table cell."""
    lines = [line.strip() for line in text.strip().splitlines() if line.strip()]
    return lines[-1][:length].replace("|", "\\|") if lines else ""


def sizes(text: str) -> list[int]:
    """ "2GB,4GB" -> bytes."""
    return [parse_bytes(part) for part in text.split(",")]


def arguments(doc: str | None, rounds: int) -> argparse.ArgumentParser:
    """A parser with what every script takes. SIGTERM ends a script as Ctrl-C does, tidily."""
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(128 + signal.SIGTERM))
    parser = argparse.ArgumentParser(description=(doc or "").split("\n")[0])
    parser.add_argument("--rounds", type=int, default=rounds, help=f"interleaved rounds (default {rounds})")
    parser.add_argument("--json", type=Path, help="results file (default benchmarks/results/<script>.json)")
    return parser


@dataclass
class Report:
    """One script's table. Cells are text for people, `raw` is everything measured."""

    title: str
    columns: Sequence[str]
    rows: list[Sequence[str]] = field(default_factory=list)
    raw: Row = field(default_factory=dict)
    notes: list[str] = field(default_factory=list)

    def add(self, *cells: str) -> None:
        if len(cells) != len(self.columns):
            raise ValueError(f"{len(cells)} cells for {len(self.columns)} columns")
        self.rows.append(cells)

    def markdown(self) -> str:
        lines = ["| " + " | ".join(self.columns) + " |", "|" + "---|" * len(self.columns)]
        lines += ["| " + " | ".join(cells) + " |" for cells in self.rows]
        return (
            f"**{self.title}**\n\n" + "\n".join(lines) + "".join(f"\n\n{note}" for note in self.notes) + "\n"
        )

    def finish(self, file: Path | None) -> None:
        """Print the table and write the JSON."""
        print(self.markdown())
        file = file or Path(__file__).parent / "results" / f"{Path(sys.argv[0]).stem}.json"
        file.parent.mkdir(parents=True, exist_ok=True)
        content = {
            "title": self.title,
            "command": [Path(sys.argv[0]).name, *sys.argv[1:]],
            "machine": machine(),
            "table": [dict(zip(self.columns, cells, strict=True)) for cells in self.rows],
            "notes": self.notes,
            "raw": self.raw,
        }
        file.write_text(json.dumps(content, indent=1) + "\n")


def machine() -> Row:
    """What the figures were measured on."""
    versions = {}
    for package in ("torch", "numpy", "transformers"):
        try:
            versions[package] = importlib.metadata.version(package)
        except importlib.metadata.PackageNotFoundError:
            continue
    commit = subprocess.run(
        ["git", "-C", str(REPO), "describe", "--always", "--dirty"],
        capture_output=True,
        text=True,
        check=False,
    )
    return {
        "cpu": cpu_name(),
        "cores": len(os.sched_getaffinity(0)) if sys.platform == "linux" else os.cpu_count(),
        "memory": os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES"),
        "system": platform.platform(),
        "python": platform.python_version(),
        "versions": versions,
        "load": os.getloadavg(),
        "commit": commit.stdout.strip(),
        "date": time.strftime("%Y-%m-%d %H:%M"),
    }


def cpu_name() -> str:
    """The processor, and the matrix extensions that decide how fast bf16 is."""
    try:
        lines = Path("/proc/cpuinfo").read_text().splitlines()
    except OSError:
        return platform.processor()
    table = {key.strip(): value.strip() for key, _, value in (line.partition(":") for line in lines)}
    flags = table.get("flags", "").split()
    extras = [flag for flag in ("avx2", "avx512_bf16", "amx_bf16") if flag in flags]
    return f"{table.get('model name', 'unknown')} ({', '.join(extras)})"
