"""What this machine is: its memory, processor and disks, and what this process uses of them."""

from __future__ import annotations

import contextlib
import functools
import math
import os
import platform
import re
import subprocess
import sys
import time
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import psutil

from edgespec.devices.cgroup import MemoryCgroup, cpu_quota, memory_cgroups

# Memory.


def memory_total() -> int:
    """Bytes this process could ever have: the machine's, or the tightest cgroup's limit."""
    limits = [group.limit for group in memory_cgroups() if group.limit is not None]
    return min([psutil.virtual_memory().total, *limits])


def memory_available() -> int:
    """Bytes that can be allocated now without swapping, in the machine and in every cgroup around us."""
    rooms = [group.available for group in memory_cgroups() if group.available is not None]
    return min([psutil.virtual_memory().available, *rooms])


@dataclass(frozen=True, slots=True)
class ProcessMemory:
    """Bytes of this process."""

    current: int  # resident
    peak: int  # see `peak_memory`


def process_memory() -> ProcessMemory:
    """Memory of this process now and at its highest."""
    return ProcessMemory(psutil.Process().memory_info().rss, peak_memory())


def peak_memory(others: int = 0) -> int:
    """Most bytes this process has taken: its resident set, and what `others` that it has started took beside
    it; or, where it was alone in a memory cgroup with a limit, that cgroup's peak, because the limit counts
    page cache too. Cheap enough for every cycle."""
    own = _own_cgroup()
    together = (own and own.peak) or 0
    return max(_peak_resident() + others, together if together > _forgotten else 0)


_forgotten = 0  # bytes: the cgroup's peak that counts no more


def forget_peak() -> None:
    """From now on, `peak_memory` is of what comes; where the system allows it (Linux). A cgroup's own peak
    stays, and says nothing until it rises."""
    global _forgotten, _highest
    _highest = 0
    own = _own_cgroup()
    _forgotten = (own and own.peak) or 0
    with contextlib.suppress(OSError):
        Path("/proc/self/clear_refs").write_text("5")  # VmHWM; proc(5)


@functools.cache
def _own_cgroup() -> MemoryCgroup | None:
    """The limited cgroup that holds this process alone. Looked up once, before it starts others."""
    group = next(iter(memory_cgroups()), None)
    if group is None or group.limit is None:
        return None
    return group if _text(group.path / "cgroup.procs").split() == [str(os.getpid())] else None


def _peak_resident() -> int:
    if sys.platform == "win32":
        return int(psutil.Process().memory_info().peak_wset)
    else:
        import resource

        most = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
        return _high_water(most * 1024) if sys.platform == "linux" else most  # bytes on macOS


_highest = 0  # bytes: the last answer of `_high_water`


def _high_water(most: int) -> int:
    """By Linux. `most` bytes, which getrusage tells in 1 us, would include what this process was before exec,
    and what is forgotten; but it is never less, so the file, 40 us, is read only where it is more."""
    global _highest
    if most > _highest:
        found = re.search(r"^VmHWM:\s+(\d+) kB$", Path("/proc/self/status").read_text(), re.MULTILINE)
        _highest = int(found[1]) * 1024 if found else 0
    return _highest


def unified_memory() -> bool:
    """A guess whether accelerators here share the processor's memory: Apple silicon, Jetson, DGX Spark."""
    if sys.platform == "darwin":
        return platform.machine() == "arm64"
    board = _text(Path("/proc/device-tree/compatible")) + _text(Path("/sys/class/dmi/id/product_name"))
    return "nvidia,tegra" in board or "dgx_spark" in board.lower().replace(" ", "_")


# Processor.


def cpu_count() -> int:
    """Logical processors this process may run on, or as many as its cgroups allow it the time of."""
    if sys.platform == "linux":
        free = len(os.sched_getaffinity(0))
        return min(free, math.ceil(cpu_quota() or free))
    else:
        return os.cpu_count() or 1


def seconds_of_others() -> float | None:
    """Time that other processes, and a virtual machine's host, have had of the processors that this one may
    run on; from the system's start on, in steps of some 10 ms. None where nobody knows: in a cgroup that is
    given less than these processors, or where the system does not tell."""
    try:
        times = psutil.cpu_times(percpu=True)
        ours = os.sched_getaffinity(0) if sys.platform == "linux" else range(len(times))
        if cpu_count() < len(ours):
            return None
        return sum(map(_busy, (times[cpu] for cpu in ours))) - time.process_time()
    except (OSError, RuntimeError, IndexError):
        return None


def _busy(times: Any) -> float:
    """Of psutil's times of a processor; a guest's are the user's, too."""
    idle = times.idle + sum(getattr(times, name, 0.0) for name in ("iowait", "guest", "guest_nice"))
    return float(sum(times) - idle)


@functools.cache
def cpu_name() -> str:
    """The processor as its maker calls it."""
    if sys.platform == "darwin":
        return sysctl("machdep.cpu.brand_string").strip() or platform.machine()
    found = re.search(r"^model name\s*:\s*(.+)$", _text(Path("/proc/cpuinfo")), re.MULTILINE)
    return found[1].strip() if found else platform.processor() or platform.machine()


@functools.cache
def cpu_features() -> frozenset[str]:
    """Instruction sets by Linux's names: "avx2", "avx512_bf16", "amx_bf16"; on ARM "bf16", "i8mm", "sve".

    Empty where the system does not say (Windows).
    """
    if sys.platform == "darwin":
        return parse_features(sysctl("hw.optional"))
    return parse_features(_text(Path("/proc/cpuinfo")))


def parse_features(text: str) -> frozenset[str]:
    """Features in /proc/cpuinfo ("flags", on ARM "Features") or in `sysctl hw.optional` of macOS."""
    if listed := re.search(r"^(?:flags|Features)\s*:\s*(.*)$", text, re.MULTILINE):
        return frozenset(listed[1].split())
    # "hw.optional.arm.FEAT_BF16: 1", "hw.optional.avx2_0: 1"
    names = re.findall(r"^hw\.optional\.(?:arm\.)?(?:FEAT_)?(\w+): 1$", text, re.MULTILINE)
    return frozenset(name.lower().removesuffix("_0") for name in names)


# Disks.


@dataclass(frozen=True, slots=True)
class Disk:
    """The block device a file lies on, as far as the system tells."""

    device: str  # "major:minor"; on Windows and macOS the device number
    name: str | None  # "nvme0n1"; of the whole disk, not the partition
    rotational: bool | None  # True = the system believes it spins; virtual disks often claim that
    nbytes: int | None


def disk_of(path: Path) -> Disk:
    """The disk that holds `path`. Raises OSError when there is no such file."""
    number = path.stat().st_dev
    if sys.platform == "win32":
        return Disk(str(number), None, None, None)
    device = f"{os.major(number)}:{os.minor(number)}"
    node = Path("/sys/dev/block") / device
    if not node.exists() and (source := _mount_source(device)) is not None:  # btrfs and overlays
        node = Path("/sys/dev/block") / source
    if not node.exists():
        return Disk(device, None, None, None)
    node = node.resolve()
    if (node / "partition").exists():
        node = node.parent
    rotational, sectors = _text(node / "queue/rotational").strip(), _text(node / "size").strip()
    return Disk(
        device,
        node.name,
        rotational == "1" if rotational else None,
        int(sectors) * 512 if sectors.isdigit() else None,
    )


def _mount_source(device: str) -> str | None:
    """major:minor of the block device that a filesystem with an anonymous device number is mounted from."""
    for line in _text(Path("/proc/self/mountinfo")).splitlines():
        before, _, after = line.partition(" - ")
        if before.split()[2] == device:
            try:
                number = os.stat(after.split()[1]).st_rdev
            except OSError:
                return None
            return f"{os.major(number)}:{os.minor(number)}" if number else None
    return None


def _text(path: Path) -> str:
    try:
        return path.read_text(errors="replace")
    except OSError:
        return ""


def sysctl(name: str) -> str:
    command = ["/usr/sbin/sysctl", name] if name == "hw.optional" else ["/usr/sbin/sysctl", "-n", name]
    try:
        return subprocess.run(command, capture_output=True, text=True, timeout=10, check=False).stdout
    except (OSError, subprocess.SubprocessError):
        return ""
