"""How short of memory the system is, as it says itself: read, never asked for."""

from __future__ import annotations

import re
from dataclasses import dataclass
from pathlib import Path

from edgespec.devices.cgroup import unified_cgroups


@dataclass(frozen=True, slots=True)
class Pressure:
    """stalled: percent of the last ten seconds in which somebody waited for memory, in the machine or in this
    process's cgroups (PSI, "some avg10"); None = nobody counts that.
    high: bytes that these cgroups should stay below, or be slowed down ("memory.high"); None = no such bound.
    """

    stalled: float | None
    high: int | None


def memory_pressure(proc: Path = Path("/proc")) -> Pressure | None:
    """None where the system tells neither (macOS, Windows, Linux without PSI and cgroup v2)."""
    groups = unified_cgroups(proc / "self")
    files = [proc / "pressure/memory", *(group / "memory.pressure" for group in groups)]
    stalled = [found for file in files if (found := _some(file)) is not None]
    high = [int(text) for group in groups if (text := _text(group / "memory.high").strip()).isdigit()]
    if not (stalled or high):
        return None
    return Pressure(max(stalled, default=None), min(high, default=None))


def _some(file: Path) -> float | None:
    found = re.search(r"^some avg10=(\d{1,3}\.\d+)", _text(file), re.MULTILINE)
    return float(found[1]) if found else None


def _text(file: Path) -> str:
    try:
        return file.read_text()
    except (OSError, ValueError):
        return ""
