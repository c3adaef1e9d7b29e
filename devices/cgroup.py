"""The cgroups this process is in, version 1 or 2: limits of memory, how near they are, and of processors."""

from __future__ import annotations

import re
from dataclasses import dataclass
from pathlib import Path

_UNLIMITED = 2**60  # bytes; version 1 writes the largest number it has


@dataclass(frozen=True, slots=True)
class MemoryCgroup:
    """One cgroup's memory, in bytes, its page cache included."""

    path: Path
    limit: int | None  # None = none of its own
    usage: int
    reclaimable: int  # part of usage: page cache not in use lately
    limit_hits: int  # times an allocation met the limit (failcnt; "max" in memory.events)
    peak_file: Path

    @property
    def peak(self) -> int | None:
        """The highest usage so far; None on kernels before 5.19, version 2."""
        return _number(self.peak_file)

    @property
    def available(self) -> int | None:
        """What may still be allocated before the limit is met, counting idle page cache as free."""
        return None if self.limit is None else max(0, self.limit - self.usage + self.reclaimable)


def memory_cgroups(proc: Path = Path("/proc/self")) -> list[MemoryCgroup]:
    """This process's own cgroup first, then those around it, as far as they can be seen. [] elsewhere."""
    version, folders = cgroup_folders("memory", proc)
    groups = map(_read_v1 if version == 1 else _read_v2, folders)
    return [group for group in groups if group is not None]


def unified_cgroups(proc: Path = Path("/proc/self")) -> list[Path]:
    """This process's version 2 cgroups, from the inside out, whatever version 1 has beside them."""
    version, folders = cgroup_folders("pressure", proc)  # that is in no version 1
    return folders if version == 2 else []


def cpu_quota(proc: Path = Path("/proc/self")) -> float | None:
    """How many processors' time the cgroups around this process allow it; None = as many as there are."""
    version, folders = cgroup_folders("cpu", proc)
    quotas = [quota for folder in folders if (quota := _quota(version, folder)) is not None]
    return min(quotas, default=None)


def cgroup_folders(controller: str, proc: Path = Path("/proc/self")) -> tuple[int, list[Path]]:
    """The version that has this controller, and this process's folders there from the inside out. []
    elsewhere."""
    try:
        memberships = (proc / "cgroup").read_text().splitlines()
        mounts = (proc / "mountinfo").read_text().splitlines()
    except OSError:
        return 2, []
    paths: dict[str, str] = {}  # controllers -> path; version 2 is the line "0::/path"
    for line in memberships:
        _, controllers, path = line.split(":", 2)
        paths |= dict.fromkeys(controllers.split(","), path)
    for line in mounts:
        before, _, after = line.partition(" - ")
        root, point = (_unescape(field) for field in before.split()[3:5])
        kind, _, options = after.split(maxsplit=2)
        if kind == "cgroup" and controller in options.split(",") and controller in paths:
            return 1, _up(Path(point), root, paths[controller])
        if kind == "cgroup2" and controller not in paths and "" in paths:
            return 2, _up(Path(point), root, paths[""])
    return 2, []


def _up(point: Path, root: str, path: str) -> list[Path]:
    """Cgroups from `path` up to the mount point; a container's mount shows a tree that starts at `root`."""
    root = root.rstrip("/")
    inside = path[len(root) :] if path == root or path.startswith(root + "/") else ""
    place = point / inside.strip("/") if ".." not in Path(inside).parts else point
    around = [place, *place.parents]
    return around[: around.index(point) + 1]


def _quota(version: int, folder: Path) -> float | None:
    """Processors; version 1 writes -1 and version 2 "max" where there is no limit."""
    try:
        if version == 1:
            texts = [(folder / name).read_text() for name in ("cpu.cfs_quota_us", "cpu.cfs_period_us")]
        else:
            texts = (folder / "cpu.max").read_text().split()
        quota, period = map(int, texts)
    except (OSError, ValueError):
        return None
    return quota / period if quota > 0 and period > 0 else None


def _read_v1(folder: Path) -> MemoryCgroup | None:
    limit, usage = _number(folder / "memory.limit_in_bytes"), _number(folder / "memory.usage_in_bytes")
    if usage is None:
        return None
    return MemoryCgroup(
        folder,
        limit=None if limit is None or limit >= _UNLIMITED else limit,
        usage=usage,
        reclaimable=_field(folder / "memory.stat", "total_inactive_file"),
        limit_hits=_number(folder / "memory.failcnt") or 0,
        peak_file=folder / "memory.max_usage_in_bytes",
    )


def _read_v2(folder: Path) -> MemoryCgroup | None:
    usage = _number(folder / "memory.current")
    if usage is None:
        return None
    return MemoryCgroup(
        folder,
        limit=_number(folder / "memory.max"),
        usage=usage,
        reclaimable=_field(folder / "memory.stat", "inactive_file"),
        limit_hits=_field(folder / "memory.events", "max"),
        peak_file=folder / "memory.peak",
    )


def _number(path: Path) -> int | None:
    try:
        return int(path.read_text())
    except (OSError, ValueError):  # not there, or "max"
        return None


def _field(path: Path, name: str) -> int:
    try:
        found = re.search(rf"^{name} (\d+)$", path.read_text(), re.MULTILINE)
    except OSError:
        return 0
    return int(found[1]) if found else 0


def _unescape(field: str) -> str:
    return re.sub(r"\\([0-7]{3})", lambda match: chr(int(match[1], 8)), field)
