"""Fresh memory cgroups, version 1 and 2: limits, peaks, limit hits, and throttled reads.

Some kernels (v1 on 6.18) leave v1's hit counter at 0 for ever; `Cgroup.limit_hits` is None there. Needs
root, or a delegated subtree.
"""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator, Sequence
from contextlib import AbstractContextManager, contextmanager, nullcontext
from dataclasses import dataclass
from functools import lru_cache
from pathlib import Path

from edgespec.devices.cgroup import cgroup_folders

THROTTLE_HELP = "read rates of emulated slower disks to run on, such as 0.5GB,1GB a second; root"


class CgroupUnavailable(SystemExit):
    """No memory cgroup can be made here; the message, with which a script ends, says why."""


@dataclass(frozen=True)
class Controls:
    """Names of one cgroup version's files."""

    limit: str
    swap: str
    peak: str
    read_limit: str


V1 = Controls(
    limit="memory.limit_in_bytes",
    swap="memory.memsw.limit_in_bytes",  # memory + swap
    peak="memory.max_usage_in_bytes",
    read_limit="blkio.throttle.read_bps_device",
)
V2 = Controls(
    limit="memory.max",
    swap="memory.swap.max",
    peak="memory.peak",
    read_limit="io.max",
)


class Cgroup:
    """One fresh group: `directory` for memory, `io_directory` for read throttling (the same one on v2)."""

    def __init__(self, directory: Path, io_directory: Path | None, controls: Controls) -> None:
        self.directory, self.io_directory, self.controls = directory, io_directory, controls
        self.directories = {directory, io_directory or directory}

    def enter(self) -> None:
        """Move the calling process in (the child's side of a fork)."""
        for directory in self.directories:
            (directory / "cgroup.procs").write_text("0")

    def limit_memory(self, nbytes: int) -> None:
        """Cap everything that is charged here; no swap."""
        (self.directory / self.controls.limit).write_text(str(nbytes))
        swap = self.directory / self.controls.swap
        if swap.exists():  # absent when the kernel counts no swap
            swap.write_text("0" if self.controls is V2 else str(nbytes))
        if self.controls is V1:
            (self.directory / "memory.swappiness").write_text("0")

    def limit_reads(self, path: Path, bytes_per_second: int) -> None:
        """Throttle reads from the disk that holds `path`."""
        if self.io_directory is None:
            raise CgroupUnavailable("skipped: no blkio (v1) or io (v2) controller, so no throttled reads")
        device = os.stat(path).st_dev
        number = f"{os.major(device)}:{os.minor(device)}"
        block = Path("/sys/dev/block") / number
        if (block / "partition").exists():  # only whole disks can be throttled
            number = (block.resolve().parent / "dev").read_text().strip()
        rate = f"rbps={bytes_per_second}" if self.controls is V2 else str(bytes_per_second)
        (self.io_directory / self.controls.read_limit).write_text(f"{number} {rate}")

    def peak(self) -> int:
        return int((self.directory / self.controls.peak).read_text())

    def limit_hits(self) -> int | None:
        if self.controls is V2:
            return read_table(self.directory / "memory.events").get("max", 0)
        hits = self.failures()
        return hits if hits or counts_limit_hits() else None

    def failures(self) -> int:
        """Version 1's count of limit hits. Memory + swap has the same limit and is charged first."""
        counters = [self.directory / name for name in ("memory.failcnt", "memory.memsw.failcnt")]
        return sum(int(counter.read_text()) for counter in counters if counter.exists())

    def oom_kills(self) -> int:
        name = "memory.oom_control" if self.controls is V1 else "memory.events"
        return read_table(self.directory / name).get("oom_kill", 0)

    def remove(self) -> None:
        for directory in self.directories:
            for _ in range(50):
                for pid in (directory / "cgroup.procs").read_text().split():  # what the command left behind
                    if int(pid) != os.getpid():
                        os.kill(int(pid), signal.SIGKILL)
                try:
                    directory.rmdir()
                    break
                except OSError:
                    time.sleep(0.1)


def read_table(path: Path) -> dict[str, int]:
    """A file of "key number" lines."""
    pairs = (line.split() for line in path.read_text().splitlines())
    return {pair[0]: int(pair[1]) for pair in pairs if len(pair) == 2 and pair[1].isdigit()}


def make_child(folders: Sequence[Path], controller: str | None, name: str) -> Path:
    """Make group `name` in the innermost of these groups that allows it.

    `controller` names what v2 must pass down to children; None on v1. Raises CgroupUnavailable.
    """
    reasons = []
    for parent in folders:
        try:
            if controller is not None:
                control = parent / "cgroup.subtree_control"
                if controller not in control.read_text().split():
                    control.write_text(f"+{controller}")
            (parent / name).mkdir()
            return parent / name
        except OSError as error:
            reasons.append(f"{parent}: {error.strerror}")
    raise CgroupUnavailable(
        "skipped: no cgroup can be made (root or a delegated subtree is needed): " + "; ".join(reasons)
    )


@contextmanager
def fresh_cgroup(memory: int | None = None) -> Iterator[Cgroup]:
    """A new cgroup, removed at the end. Raises CgroupUnavailable."""
    if sys.platform != "linux":
        raise CgroupUnavailable("skipped: control groups are a Linux feature")
    name = f"edgespec-bench-{os.getpid()}-{time.monotonic_ns()}"
    version, folders = cgroup_folders("memory")
    io: Path | None = None
    if folders and version == 1:
        directory = make_child(folders, None, name)
        version, folders = cgroup_folders("blkio")
        if folders and version == 1:
            io = make_child(folders, None, name)
        group = Cgroup(directory, io, V1)
    elif folders and "memory" in (folders[-1] / "cgroup.controllers").read_text().split():
        directory = make_child(folders, "memory", name)
        io = directory if (directory / "io.max").exists() else None
        group = Cgroup(directory, io, V2)
    else:
        raise CgroupUnavailable("skipped: the kernel offers no memory controller here")
    try:
        if memory is not None:
            group.limit_memory(memory)
        yield group
    finally:
        group.remove()


def require_throttle(path: Path) -> None:
    """Raises CgroupUnavailable where reads from the disk of `path` cannot be throttled."""
    with fresh_cgroup() as group:
        try:
            group.limit_reads(path, 10**9)
        except OSError as error:
            why = f"{path} lies on no disk of its own, or root is needed ({error.strerror})"
            raise CgroupUnavailable(f"skipped: reads cannot be throttled: {why}") from None


@contextmanager
def throttled(path: Path, bytes_per_second: int | None) -> Iterator[None]:
    """This process, and those that it starts, read from the disk of `path` at most so fast; None: as ever.
    Raises CgroupUnavailable."""
    if bytes_per_second is None:
        yield
        return
    with remembering(bytes_per_second), fresh_cgroup() as group:
        group.limit_reads(path, bytes_per_second)
        assert group.io_directory is not None
        (group.io_directory / "cgroup.procs").write_text("0")
        try:
            yield
        finally:
            (group.io_directory.parent / "cgroup.procs").write_text("0")


def remembering(read_bps: int | None) -> AbstractContextManager[object]:
    """What processes remember of an emulated disk stays theirs: nothing is known of it, and nothing kept."""
    return nullcontext() if read_bps is None else own_cache()


@contextmanager
def own_cache() -> Iterator[Path]:
    """An empty folder in which this process, and those that it starts, remember things for the moment."""
    before = os.environ.get("EDGESPEC_CACHE")
    with tempfile.TemporaryDirectory() as folder:
        os.environ["EDGESPEC_CACHE"] = folder
        try:
            yield Path(folder)
        finally:
            os.environ.pop("EDGESPEC_CACHE")
            os.environ.update({} if before is None else {"EDGESPEC_CACHE": before})


@lru_cache
def counts_limit_hits() -> bool:
    """Whether this kernel's v1 failcnt moves: tried by writing 32 MiB of page cache in a group of 8 MiB."""
    with fresh_cgroup(8 * 2**20) as group, tempfile.NamedTemporaryFile() as file:
        command = ["dd", "if=/dev/zero", f"of={file.name}", "bs=64k", "count=512"]
        subprocess.run(command, preexec_fn=group.enter, capture_output=True, check=False)
        return group.failures() > 0
