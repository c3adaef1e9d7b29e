"""How much of its speed is left beside busy neighbours: of a small model in memory, and of a streamed one.

    python -m benchmarks.neighbours [--what small] --memory 8GB

A neighbour is a loop of one thread, in this cgroup. `of quiet` is over the first number of neighbours.
"""

from __future__ import annotations

import subprocess
import sys
import time
from collections.abc import Callable
from contextlib import ExitStack
from functools import partial
from pathlib import Path

from benchmarks.common import Row, arguments, interleave, names, numbers
from benchmarks.models.make_model import ensure_model
from benchmarks.tables import Report, ratio, spread
from benchmarks.worker import Worker, per_cycle
from edgespec.apps.common import demo_model
from edgespec.devices.probe import cpu_count
from edgespec.values import parse_bytes

SMALL_BYTES = 10**9  # the dial of the small model
SETTLE_SECONDS = 0.5  # until the system has shared out the cores
TOKENS = {"small": 60, "streamed": 6}  # of a reply


def beside(count: int, measure: Callable[[], Row]) -> Row:
    busy = [subprocess.Popen([sys.executable, "-c", "while True: pass"]) for _ in range(count)]
    try:
        time.sleep(SETTLE_SECONDS)
        return measure()
    finally:
        for process in busy:
            process.kill()
            process.wait()


def reply(worker: Worker, tokens: int) -> Row:
    return {"rate": 1 / per_cycle(worker.reply(tokens))["cycle_seconds"]}


def main() -> None:
    parser = arguments(__doc__, rounds=7)
    parser.add_argument("--what", type=names, default="small,streamed")
    parser.add_argument("--neighbours", type=numbers, default="0,1,2")
    parser.add_argument("--streamed", type=Path, help="default: the 7b shape")
    parser.add_argument("--memory", type=parse_bytes, default="3GB", help="of the streamed model")
    args = parser.parse_args()
    arms: dict[tuple[str, int], Callable[[], Row]] = {}
    with ExitStack() as opened:
        for what in args.what:
            model = demo_model() if what == "small" else args.streamed or ensure_model("7b")
            dial = SMALL_BYTES if what == "small" else args.memory
            measure = partial(reply, opened.enter_context(Worker(model, dial)), TOKENS[what])
            measure()  # the first one loads what is loaded late
            for count in args.neighbours:
                arms[what, count] = partial(beside, count, measure)
        found = interleave({f"{what} {count}": arm for (what, count), arm in arms.items()}, args.rounds)
    report = Report(f"Beside busy processes, {cpu_count()} CPUs", raw=dict(found))
    for what, count in arms:
        mine, quiet = (
            [row["rate"] for row in found[f"{what} {number}"]] for number in (count, args.neighbours[0])
        )
        cells = {"what": what, "neighbours": count, "tokens/s": spread(mine, 1)}
        report.add({**cells, "of quiet": ratio(mine, quiet)})
    report.finish(args.json)


if __name__ == "__main__":
    main()
