"""What `edgespec bench` prints: a Markdown table, or a row a test as CSV, JSON or JSON lines."""

from __future__ import annotations

import csv
import io
import json
from collections.abc import Sequence
from typing import Any

from edgespec import __version__
from edgespec.apps.bench_runs import Arm, Test
from edgespec.values import format_bytes

BATCHED = {"batch": {1}}  # is said where it is another
SHOWN = 8  # positions of drafted tokens in the Markdown table
SWEPT = ("memory", "batch", "threads", "drafter", "schedule", "steps")
FOUND = ("weight_bytes", "precision", "device", "memory", "peak_memory", "cgroup_peak", "plan")

Row = dict[str, Any]


def rows_of(model: str, settings: Sequence[Arm], cold: bool) -> list[Row]:
    """One flat row a test of each setting that was measured."""
    return [
        {"edgespec": __version__, "model": model, "cold": cold, **_asked(setting), **_measured(setting, test)}
        for setting in settings
        for test in setting.tests
        if test.runs
    ]


def _asked(setting: Arm) -> Row:
    wanted = setting.options
    return {
        **{key: setting.found[key] for key in ("weight_bytes", "precision")},
        "device": wanted.device,
        "memory": setting.found["memory"],
        "batch": setting.found["batch"],
        "threads": wanted.threads,
        "drafter": wanted.drafter,
        "drafters": setting.found["drafters"],
        "schedule": setting.found["schedule"],
        "steps": setting.steps,
        "peak_memory": setting.found["peak_memory"],
        "cgroup_peak": setting.found["cgroup_peak"],
        "memory_gbps": setting.found["memory_gbps"],
    }


def _measured(setting: Arm, test: Test) -> Row:
    return {
        "test": test.name,
        "depth": test.depth,
        "tokens_per_second": test.average("tokens_per_second"),
        "tokens_per_second_sd": test.deviation,
        "tokens_per_cycle": test.average("tokens_per_cycle"),
        "acceptance_by_position": test.acceptance,
        "accepted_length": test.average("accepted_length"),
        "kappa": test.average("kappa"),
        "r1": test.average("r1"),
        "r2": test.average("nodes"),
        "rho": setting.found["rho"],
        "bytes_per_token": test.average("bytes_per_token"),
        "read_gbps": test.average("read_gbps"),
        "direct_read_gbps": test.average("direct_gbps"),
        "share_of_direct_read": test.share_of_direct,
        "share_of_roofline": test.average("roofline"),
        "load_seconds": test.average("load_seconds"),
        "samples": [run.tokens_per_second for run in test.runs],
    }


def as_text(output: str, model: str, settings: Sequence[Arm], cold: bool) -> str:
    """The rows as "md", "csv", "json" (one object; of one setting with its plan) or "jsonl"."""
    rows = rows_of(model, settings, cold)
    if output == "jsonl":
        return "\n".join(map(json.dumps, rows))
    if output == "csv":
        return _csv(rows)
    if output == "md":
        return _table(rows)
    head: Row = {"edgespec": __version__, "model": model}
    if len(settings) == 1:
        found = {**settings[0].found, "device": settings[0].options.device}
        head |= {key: found[key] for key in FOUND}
    return json.dumps({**head, "tests": rows})


def _csv(rows: Sequence[Row]) -> str:
    """Lists are numbers with spaces between them; what there is none of is empty."""
    out = io.StringIO()
    writer = csv.DictWriter(out, list(rows[0]), lineterminator="\n")
    writer.writeheader()
    for row in rows:
        lists = {k: " ".join(map(str, v)) for k, v in row.items() if isinstance(v, list)}
        writer.writerow({**row, **lists})
    return out.getvalue().rstrip("\n")


def _table(rows: Sequence[Row]) -> str:
    """Columns that say the same of all rows are left out, unless they are always there."""
    swept = [key for key in SWEPT if len({row[key] for row in rows} | BATCHED.get(key, set())) > 1]
    # As many for all rows; 2 as llama-bench has, unless a large model would then have but one digit.
    decimals = 2 if min(row["tokens_per_second"] for row in rows) >= 1 else 3
    cells = [_cells(row, swept, decimals) for row in rows]
    empty = [head for head in cells[0] if head in OPTIONAL and not any(line[head] for line in cells)]
    heads = [head for head in cells[0] if head not in empty]
    lines = [heads, *([line[head] or "–" for head in heads] for line in cells)]
    texts = [f"| {' | '.join(line)} |" for line in lines]
    left = [
        " --- |" if head in ("model", "precision", "drafter", "schedule") else " ---: |" for head in heads
    ]
    return "\n".join([texts[0], "|" + "".join(left), *texts[1:]])


WORDS = ("model", "precision", "drafter", "schedule")
OPTIONAL = ("of roofline", "accepted at 1, 2, …", "accepted a cycle", "load", "cgroup's peak")


def _cells(row: Row, swept: Sequence[str], decimals: int) -> dict[str, str]:
    """By column; "" = there is nothing to say."""
    cycle, share, roofline, length, cgroup = (
        row[key]
        for key in (
            "tokens_per_cycle", "share_of_direct_read", "share_of_roofline", "accepted_length", "cgroup_peak",
        )
    )  # fmt: skip
    accepted = " ".join(f"{100 * part:.0f}" for part in row["acceptance_by_position"][:SHOWN])
    settings = {key: "" if row[key] is None else str(row[key]) for key in swept}
    if "memory" in swept:
        settings["memory"] = format_bytes(row["memory"])
    return {
        "model": row["model"],
        "size": format_bytes(row["weight_bytes"]),
        "precision": row["precision"],
        **settings,
        "test": row["test"],
        "tokens/s": f"{row['tokens_per_second']:.{decimals}f} ± {row['tokens_per_second_sd']:.{decimals}f}",
        "tokens/cycle": "" if cycle is None else f"{cycle:.3g}",
        "read a token": format_bytes(row["bytes_per_token"]),
        "read rate": f"{format_bytes(row['read_gbps'] * 1e9)}/s",
        "of the disk's": "" if share is None else f"{share:.0%}",
        "of roofline": "" if roofline is None else f"{roofline:.0%}",
        "accepted at 1, 2, …": f"{accepted} %" if accepted else "",
        "accepted a cycle": "" if length is None else f"{length:.3g}",
        "load": f"{row['load_seconds']:.1f} s" if row["cold"] else "",
        "peak memory": f"{format_bytes(row['peak_memory'])} of {format_bytes(row['memory'])}",
        "cgroup's peak": "" if cgroup is None else format_bytes(cgroup),
    }
