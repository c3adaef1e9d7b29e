"""How short of memory the system is, as it says itself: read, never asked for."""

from __future__ import annotations

import re
import sys
from dataclasses import dataclass
from pathlib import Path

from edgespec.devices.cgroup import unified_cgroups
from edgespec.devices.probe import sysctl

NORMAL = 1  # macOS's level; 2 is a warning, 4 critical
# Of a machine's memory, at least, where nobody counts who waits for it: Android keeps apps from that.
AVAILABLE = 0.05


@dataclass(frozen=True, slots=True)
class Pressure:
    """stalled: percent of the last ten seconds in which somebody waited for memory, in the machine or in this
    process's cgroups (PSI, "some avg10"); None = nobody counts that.
    high: bytes that these cgroups should stay below, or be slowed down ("memory.high"); None = no such bound.
    short: the system says that it is (macOS), or has hardly any left.
    """

    stalled: float | None
    high: int | None
    short: bool = False


def memory_pressure(proc: Path = Path("/proc")) -> Pressure | None:
    """None where the system tells nothing (Windows)."""
    if sys.platform == "darwin":
        level = sysctl("kern.memorystatus_vm_pressure_level").strip()
        return Pressure(None, None, int(level) > NORMAL) if level.isdigit() else None
    groups = unified_cgroups(proc / "self")
    files = [proc / "pressure/memory", *(group / "memory.pressure" for group in groups)]
    stalled = [found for file in files if (found := _some(file)) is not None]
    high = [int(text) for group in groups if (text := _text(group / "memory.high").strip()).isdigit()]
    left = None if stalled else _available(proc)
    if not (stalled or high or left is not None):
        return None
    short = left is not None and left < AVAILABLE
    return Pressure(max(stalled, default=None), min(high, default=None), short)


def _some(file: Path) -> float | None:
    found = re.search(r"^some avg10=(\d{1,3}\.\d+)", _text(file), re.MULTILINE)
    return float(found[1]) if found else None


def _available(proc: Path) -> float | None:
    """As a share of the machine's memory."""
    found = re.findall(r"^(MemTotal|MemAvailable): +(\d{1,15}) kB$", _text(proc / "meminfo"), re.MULTILINE)
    total, left = (dict(found).get(name) for name in ("MemTotal", "MemAvailable"))
    return int(left) / int(total) if total and left and int(total) else None


def _text(file: Path) -> str:
    try:
        return file.read_text()
    except (OSError, ValueError):
        return ""
