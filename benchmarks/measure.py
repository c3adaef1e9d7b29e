"""What does a command cost? Run in a fresh memory cgroup, again and again.

    python -m benchmarks.measure --memory 2GB --watch models/7b-bf16 -- edgespec generate models/7b-bf16 ...
    python -m benchmarks.measure --rounds 11 -- edgespec --help

The peak counts the page cache. With a limit, swap is off inside the cgroup, and a run that met its limit
says so, because a kernel that reclaims page cache to stay below the limit kills nobody.
"""

from __future__ import annotations

import json
import os
import signal
import statistics
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Callable, Mapping, Sequence
from contextlib import ExitStack
from dataclasses import asdict, dataclass, field
from pathlib import Path

from benchmarks.cgroup import fresh_cgroup
from benchmarks.common import Row, arguments, interleave
from benchmarks.page_cache import cached_bytes, drop_caches
from benchmarks.tables import Report, spread, tail
from edgespec.devices.disk import files_under
from edgespec.values import format_bytes, parse_bytes

LARGEST_CHARGE = 4 * 2**20  # a charge is at most a huge page (2 MiB) and the batches of the CPUs


@dataclass
class Usage:
    """What one command cost. Sizes in bytes, times in seconds."""

    command: list[str]
    limit: int | None
    exit_code: int = 0  # negative: killed by that signal
    wall: float = 0.0
    cpu: float = 0.0
    peak: int = 0  # most memory ever charged to the cgroup: anonymous + page cache + kernel
    limit_hits: int | None = 0  # allocations that met it (v1 failcnt, v2 events.max); None: not counted
    oom_kills: int = 0
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
        if self.oom_kills or self.limit_hits:
            return True
        # A kernel that does not count hits: no charge failed if the largest would still have fitted.
        return self.limit_hits is None and self.peak > self.limit - LARGEST_CHARGE

    def row(self) -> Row:
        """For a results file: everything, of the streams the last lines; and the JSON object that a command
        printed last, if it did."""
        streams = {"stdout": self.stdout[-2000:], "stderr": self.stderr[-2000:]}
        row = {**asdict(self), **streams, "met": self.met_limit, "failure": self.failure()}
        last = self.stdout.strip().rpartition("\n")[2]
        return row | json.loads(last) if last.startswith("{") and not row["failure"] else row

    def failure(self) -> str:
        """One line on why it failed; "" when it did not."""
        if self.oom_kills:
            return "killed by the kernel: out of memory in its cgroup"
        if self.timed_out:
            return f"stopped after {self.wall:.0f} s"
        if self.exit_code < 0:
            return f"killed by {signal.Signals(-self.exit_code).name}"
        return (tail(self.stderr) or f"exit code {self.exit_code}") if self.exit_code else ""


def limit_met(rows: Sequence[Row]) -> str:
    return "met" if any(row["met"] for row in rows) else "never met"


def failure(rows: Sequence[Row]) -> str:
    """Of the first run that failed; "" when none did."""
    return next((row["failure"] for row in rows if row["failure"]), "")


def process_io(pid: int | str) -> tuple[int, int]:
    """(bytes read, bytes written) at the disk by a process and its reaped children."""
    lines = Path(f"/proc/{pid}/io").read_text().splitlines()
    table = {key: int(value) for key, value in (line.split(":") for line in lines)}
    return table["read_bytes"], table["write_bytes"] - table["cancelled_write_bytes"]


def run(
    command: Sequence[str],
    memory: int | None = None,
    read_bps: int | None = None,
    watch: Sequence[Path] = (),
    env: Mapping[str, str] | None = None,
    timeout: float | None = None,
    talk: Callable[[subprocess.Popen[bytes]], None] | None = None,
) -> Usage:
    """Run `command` in a fresh cgroup, limited to `memory` bytes and `read_bps` bytes of reads a second.

    `watch` are files or directories whose page cache is measured afterwards; reads are throttled on the
    disk that holds the first. `talk` has the other ends of its stdin and stdout, and closes both. Raises
    CgroupUnavailable.
    """
    usage = Usage(list(command), memory)
    files = [file for path in watch for file in files_under(path)]
    with ExitStack() as stack:
        group = stack.enter_context(fresh_cgroup(memory))
        if read_bps is not None:
            group.limit_reads(files[0] if files else Path.cwd(), read_bps)
        out, err = (stack.enter_context(tempfile.TemporaryFile("w+", errors="replace")) for _ in range(2))
        began = time.perf_counter()
        given, taken = (subprocess.DEVNULL, out) if talk is None else (subprocess.PIPE, subprocess.PIPE)
        process = subprocess.Popen(
            command, stdin=given, stdout=taken, stderr=err, env=env, preexec_fn=group.enter
        )
        stack.callback(process.kill)

        def stop() -> None:
            usage.timed_out = True
            process.kill()

        if timeout is not None:
            timer = threading.Timer(timeout, stop)
            stack.callback(timer.cancel)
            timer.start()
        if talk is not None:
            talk(process)
        os.waitid(os.P_PID, process.pid, os.WEXITED | os.WNOWAIT)  # a zombie still has its /proc/<pid>/io
        usage.wall = time.perf_counter() - began
        usage.bytes_read, usage.bytes_written = process_io(process.pid)
        _, status, resources = os.wait4(process.pid, 0)
        process.returncode = usage.exit_code = os.waitstatus_to_exitcode(status)
        usage.cpu = resources.ru_utime + resources.ru_stime
        usage.peak, usage.limit_hits, usage.oom_kills = group.peak(), group.limit_hits(), group.oom_kills()
        usage.cached_after, usage.watched = cached_bytes(files), sum(f.stat().st_size for f in files)
        for stream in (out, err):
            stream.seek(0)
        usage.stdout, usage.stderr = out.read(), err.read()
    return usage


def main() -> None:
    parser = arguments(__doc__, rounds=1)
    parser.add_argument("--memory", type=parse_bytes, help="limit, e.g. 2GB; none without")
    parser.add_argument("--read-rate", type=parse_bytes, help="bytes a second, e.g. 500MB")
    parser.add_argument("--watch", type=Path, action="append", default=[], help="files of cached_after")
    parser.add_argument("--cold", action="store_true", help="with nothing in the page cache")
    parser.add_argument("command", nargs="+", help="after --")
    args = parser.parse_args()

    def once() -> Row:
        drop_caches(args.watch, everything=args.cold)
        usage = run(args.command, args.memory, args.read_rate, args.watch)
        sys.stderr.write(usage.stdout + usage.stderr)
        return usage.row()

    rows = interleave({"command": once}, args.rounds)["command"]
    report = Report(" ".join(args.command), raw={"runs": rows})
    figures = {
        "wall, s": spread([row["wall"] for row in rows]),
        "CPU, s": spread([row["cpu"] for row in rows]),
        "peak": format_bytes(max(row["peak"] for row in rows)),
        "read": format_bytes(statistics.median(row["bytes_read"] for row in rows)),
    }
    report.add({**figures, "limit": limit_met(rows), "failure": failure(rows)})
    report.finish(args.json)


if __name__ == "__main__":
    main()
