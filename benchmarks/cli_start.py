"""How long does `edgespec --help` take? The first run from cold caches, then the median of warm ones."""

from __future__ import annotations

import os
import subprocess
import sys
import time

from benchmarks.common import Row, arguments, compile_checkout, edgespec_command, environment, interleave
from benchmarks.page_cache import drop_caches
from benchmarks.tables import Report, spread


def timed(command: list[str]) -> Row:
    began = time.perf_counter()
    subprocess.run(command, check=True, stdout=subprocess.DEVNULL, env=environment())
    return {"seconds": time.perf_counter() - began}


def main() -> None:
    args = arguments(__doc__, rounds=11).parse_args()
    compile_checkout()
    cold = None
    if os.access("/proc/sys/vm/drop_caches", os.W_OK):
        drop_caches([], everything=True)
        cold = timed(edgespec_command("--help"))["seconds"]
    arms = {
        "edgespec --help": lambda: timed(edgespec_command("--help")),
        "edgespec generate --help": lambda: timed(edgespec_command("generate", "--help")),
        "python alone": lambda: timed([sys.executable, "-c", ""]),
    }
    results = interleave(arms, args.rounds)
    report = Report(
        f"Start-up, median (range) of {args.rounds} runs", ["command", "seconds"], raw=dict(results)
    )
    for name, rows in results.items():
        report.add(f"`{name}`", spread([row["seconds"] for row in rows]))
    if cold is not None:
        report.add("`edgespec --help`, nothing in the page cache", f"{cold:.2f}")
    report.finish(args.json)


if __name__ == "__main__":
    main()
