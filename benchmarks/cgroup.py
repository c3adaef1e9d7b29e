"""Run a command in a fresh memory cgroup and report everything it cost.

    python benchmarks/cgroup.py --memory 2GB --watch models/7b-bf16 -- edgespec generate models/7b-bf16 ...

The peak counts the page cache. With a limit, swap is off inside the cgroup and *limit hits* are counted,
because a kernel that reclaims page cache to stay below the limit kills nobody. Some kernels (v1 on 6.18)
leave that counter at 0 for ever; there, a run counts as untouched by its limit when the peak stayed a few
MiB below it: no single charge is larger than a 2 MiB page. Control groups version 1 and 2; needs root, or
a delegated subtree.
"""

from __future__ import annotations

import argparse
import json
import os
import signal
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import asdict, dataclass, field
from functools import lru_cache
from pathlib import Path

from page_cache import cached_bytes, files_under

SAMPLE_SECONDS = 0.2
LARGEST_CHARGE = 4 * 2**20  # a charge is at most a huge page (2 MiB) and the batches of the CPUs


class CgroupUnavailable(RuntimeError):
    """No memory cgroup can be made here; the message says why."""


@dataclass
class Usage:
    """What one command cost. Sizes in bytes, times in seconds."""

    command: list[str]
    limit: int | None
    exit_code: int = 0  # negative: killed by that signal
    wall: float = 0.0
    cpu: float = 0.0
    peak: int = 0  # most memory ever charged to the cgroup: anonymous + page cache + kernel
    cache_peak: int = 0  # most page cache charged to it, sampled
    anon_peak: int = 0  # most anonymous memory, sampled
    limit_hits: int | None = (
        0  # allocations that met the limit (v1 failcnt, v2 events.max); None: not counted
    )
    oom_kills: int = 0
    max_rss: int = 0
    bytes_read: int = 0  # from the disk, page faults included (/proc/<pid>/io)
    bytes_written: int = 0  # to the disk
    cached_after: int = 0  # bytes of the watched files that the page cache holds afterwards
    watched: int = 0  # size of the watched files
    timed_out: bool = False
    stdout: str = field(default="", repr=False)
    stderr: str = field(default="", repr=False)

    @property
    def met_limit(self) -> bool:
        """The kernel had to reclaim or kill to keep the limit."""
        if self.limit is None:
            return False
        return bool(self.oom_kills or self.limit_hits) or self.peak > self.limit - LARGEST_CHARGE

    def failure(self) -> str:
        """One line on why it failed; "" when it did not."""
        if self.oom_kills:
            return "killed by the kernel: out of memory in its cgroup"
        if self.timed_out:
            return f"stopped after {self.wall:.0f} s"
        if self.exit_code < 0:
            return f"killed by {signal.Signals(-self.exit_code).name}"
        lines = [line for line in self.stderr.strip().splitlines() if line.strip()]
        return (lines[-1] if lines else f"exit code {self.exit_code}") if self.exit_code else ""


@dataclass(frozen=True)
class Controls:
    """Names of one cgroup version's files."""

    limit: str
    swap: str
    peak: str
    cache: str  # key in memory.stat
    anon: str
    read_limit: str


V1 = Controls(
    limit="memory.limit_in_bytes",
    swap="memory.memsw.limit_in_bytes",  # memory + swap
    peak="memory.max_usage_in_bytes",
    cache="total_cache",
    anon="total_rss",
    read_limit="blkio.throttle.read_bps_device",
)
V2 = Controls(
    limit="memory.max",
    swap="memory.swap.max",
    peak="memory.peak",
    cache="file",
    anon="anon",
    read_limit="io.max",
)


class Cgroup:
    """One fresh group: `directory` for memory, `io_directory` for read throttling (the same one on v2)."""

    def __init__(self, directory: Path, io_directory: Path | None, controls: Controls) -> None:
        self.directory, self.io_directory, self.controls = directory, io_directory, controls

    def enter(self) -> None:
        """Move the calling process in (the child's side of a fork)."""
        for directory in {self.directory, self.io_directory} - {None}:
            assert directory is not None
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
            raise CgroupUnavailable("no blkio (v1) or io (v2) controller: reads cannot be throttled")
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
        # Memory + swap has the same limit and is charged first, so it counts most of them.
        counters = [self.directory / name for name in ("memory.failcnt", "memory.memsw.failcnt")]
        hits = sum(int(counter.read_text()) for counter in counters if counter.exists())
        return hits if hits or counts_limit_hits() else None

    def oom_kills(self) -> int:
        name = "memory.oom_control" if self.controls is V1 else "memory.events"
        return read_table(self.directory / name).get("oom_kill", 0)

    def stat(self) -> tuple[int, int]:
        """(page cache, anonymous) bytes charged now."""
        table = read_table(self.directory / "memory.stat")
        return table.get(self.controls.cache, 0), table.get(self.controls.anon, 0)

    def remove(self) -> None:
        for directory in {self.directory, self.io_directory} - {None}:
            assert directory is not None
            for _ in range(50):
                for pid in (directory / "cgroup.procs").read_text().split():  # what the command left behind
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


def mounts(text: str) -> dict[str, Path]:
    """Where each controller is mounted, from /proc/mounts; "" is the v2 hierarchy."""
    found: dict[str, Path] = {}
    for line in text.splitlines():
        _, point, kind, options = line.split()[:4]
        if kind == "cgroup2":
            found[""] = Path(point)
        elif kind == "cgroup":
            found.update(dict.fromkeys(options.split(","), Path(point)))
    return found


def own_groups(text: str) -> dict[str, str]:
    """This process's group in each hierarchy, from /proc/self/cgroup; "" is v2."""
    groups: dict[str, str] = {}
    for line in text.splitlines():
        _, controllers, path = line.split(":", 2)
        groups.update(dict.fromkeys(controllers.split(","), path))
    return groups


def make_child(mount: Path, own: str, controller: str | None, name: str) -> Path:
    """Make group `name` in the process's own group or the nearest ancestor that allows it.

    `controller` names what v2 must pass down to children; None on v1. Raises CgroupUnavailable.
    """
    start = mount / own.lstrip("/")
    reasons = []
    for parent in (start, *start.parents):
        if not parent.is_relative_to(mount):
            break
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
        "no cgroup can be made (root or a delegated subtree is needed): " + "; ".join(reasons)
    )


@contextmanager
def fresh_cgroup(memory: int | None = None) -> Iterator[Cgroup]:
    """A new cgroup, removed at the end. Raises CgroupUnavailable."""
    if sys.platform != "linux":
        raise CgroupUnavailable("control groups are a Linux feature")
    points = mounts(Path("/proc/mounts").read_text())
    own = own_groups(Path("/proc/self/cgroup").read_text())
    name = f"edgespec-bench-{os.getpid()}-{time.monotonic_ns()}"
    io: Path | None = None
    if "memory" in points:
        directory = make_child(points["memory"], own.get("memory", "/"), None, name)
        if "blkio" in points:
            io = make_child(points["blkio"], own.get("blkio", "/"), None, name)
        group = Cgroup(directory, io, V1)
    elif "" in points and "memory" in (points[""] / "cgroup.controllers").read_text().split():
        directory = make_child(points[""], own.get("", "/"), "memory", name)
        io = directory if (directory / "io.max").exists() else None
        group = Cgroup(directory, io, V2)
    else:
        raise CgroupUnavailable("the kernel offers no memory controller here")
    try:
        if memory is not None:
            group.limit_memory(memory)
        yield group
    finally:
        group.remove()


@lru_cache
def counts_limit_hits() -> bool:
    """Whether this kernel's v1 failcnt moves: tried by writing 32 MiB of page cache in a group of 8 MiB."""
    with fresh_cgroup(8 * 2**20) as group, tempfile.NamedTemporaryFile() as file:
        command = ["dd", "if=/dev/zero", f"of={file.name}", "bs=64k", "count=512"]
        subprocess.run(command, preexec_fn=group.enter, capture_output=True, check=False)
        counters = (group.directory / name for name in ("memory.failcnt", "memory.memsw.failcnt"))
        return any(int(counter.read_text()) for counter in counters if counter.exists())


def process_io(pid: int | str) -> tuple[int, int]:
    """(bytes read, bytes written) at the disk by a process and its reaped children."""
    table = {}
    for line in Path(f"/proc/{pid}/io").read_text().splitlines():
        key, value = line.split(":")
        table[key] = int(value)
    return table["read_bytes"], table["write_bytes"] - table["cancelled_write_bytes"]


def run(
    command: Sequence[str],
    memory: int | None = None,
    read_bps: int | None = None,
    watch: Sequence[Path] = (),
    env: Mapping[str, str] | None = None,
    timeout: float | None = None,
) -> Usage:
    """Run `command` in a fresh cgroup, limited to `memory` bytes and `read_bps` bytes of reads a second.

    `watch` are files or directories whose page cache is measured afterwards; reads are throttled on the
    disk that holds the first. Raises CgroupUnavailable.
    """
    usage = Usage(list(command), memory)
    files = [file for path in watch for file in files_under(path)]
    with ExitStack() as stack:
        group = stack.enter_context(fresh_cgroup(memory))
        if read_bps is not None:
            group.limit_reads(files[0] if files else Path.cwd(), read_bps)
        out = stack.enter_context(tempfile.TemporaryFile())
        err = stack.enter_context(tempfile.TemporaryFile())
        began = time.perf_counter()
        process = subprocess.Popen(
            command, stdout=out, stderr=err, stdin=subprocess.DEVNULL, env=env, preexec_fn=group.enter
        )
        stack.callback(process.kill)
        stop = threading.Event()
        sampler = threading.Thread(target=_sample, args=(group, usage, process, began, timeout, stop))
        sampler.start()
        try:
            os.waitid(os.P_PID, process.pid, os.WEXITED | os.WNOWAIT)  # a zombie still has its /proc/<pid>/io
            usage.wall = time.perf_counter() - began
            usage.bytes_read, usage.bytes_written = process_io(process.pid)
        finally:
            stop.set()
            sampler.join()
        _, status, resources = os.wait4(process.pid, 0)
        process.returncode = usage.exit_code = os.waitstatus_to_exitcode(status)
        usage.cpu = resources.ru_utime + resources.ru_stime
        usage.max_rss = resources.ru_maxrss * 1024
        usage.peak, usage.limit_hits, usage.oom_kills = group.peak(), group.limit_hits(), group.oom_kills()
        usage.cached_after, usage.watched = cached_bytes(files), sum(f.stat().st_size for f in files)
        for stream, name in ((out, "stdout"), (err, "stderr")):
            stream.seek(0)
            setattr(usage, name, stream.read().decode(errors="replace"))
    return usage


def _sample(
    group: Cgroup,
    usage: Usage,
    process: subprocess.Popen[bytes],
    began: float,
    timeout: float | None,
    stop: threading.Event,
) -> None:
    while not stop.wait(SAMPLE_SECONDS):
        cache, anon = group.stat()
        usage.cache_peak = max(usage.cache_peak, cache)
        usage.anon_peak = max(usage.anon_peak, anon)
        if timeout is not None and time.perf_counter() - began > timeout:
            usage.timed_out = True
            process.kill()
            return


def main() -> None:
    from common import parse_bytes

    parser = argparse.ArgumentParser(description=(__doc__ or "").split("\n")[0])
    parser.add_argument("--memory", type=parse_bytes, help="limit, e.g. 2GB; none without")
    parser.add_argument("--read-rate", type=parse_bytes, help="bytes a second, e.g. 500MB")
    parser.add_argument(
        "--watch", type=Path, action="append", default=[], help="files whose page cache is measured"
    )
    parser.add_argument("--timeout", type=float, help="seconds")
    parser.add_argument("command", nargs="+", help="after --")
    args = parser.parse_args()
    try:
        usage = run(args.command, args.memory, args.read_rate, args.watch, timeout=args.timeout)
    except CgroupUnavailable as error:
        raise SystemExit(f"skipped: {error}") from None
    sys.stdout.write(usage.stdout)
    sys.stderr.write(usage.stderr)
    report = asdict(usage)
    del report["stdout"], report["stderr"]
    print(json.dumps(report, indent=1), file=sys.stderr)


if __name__ == "__main__":
    main()
