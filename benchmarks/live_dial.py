"""Another dial in mid-reply: the same text, memory below it when the call returns, and full speed again?

    python -m benchmarks.live_dial [--memory 8GB --lower 4GB]

In a cgroup whose limit follows the dial (`dial_process.py`), and beside a process at one dial. "after" is
from the second cycle behind a change on.
"""

from __future__ import annotations

import json
import statistics
import sys
from functools import partial
from pathlib import Path

from benchmarks.common import Row, arguments, compile_checkout, environment, interleave
from benchmarks.measure import limit_met, run
from benchmarks.models.make_model import ensure_model
from benchmarks.tables import Report
from edgespec.values import format_bytes, parse_bytes

EVERY = 6  # cycles at each dial


def change(model: Path, drafter: str, start: int, dials: list[int]) -> Row:
    """From `start` to each of the dials, and back."""
    options = {"memory": start, "context": 512, "drafter": drafter}
    what = {"dials": dials, "every": EVERY, "tokens": EVERY * 4}
    command = [sys.executable, "-m", "benchmarks.dial_process", str(model)]
    command += [json.dumps(options), json.dumps(what)]
    return run(command, memory=start, watch=[model], env=environment()).row()


def main() -> None:
    parser = arguments(__doc__, rounds=3)
    parser.add_argument("--model", type=Path, help="default: the 7b shape")
    parser.add_argument("--memory", type=parse_bytes, default=parse_bytes("8GB"), help="first and last dial")
    parser.add_argument("--lower", type=parse_bytes, default=parse_bytes("4GB"), help="the dial between")
    parser.add_argument("--drafter", default="none")
    args = parser.parse_args()
    model = args.model or ensure_model("7b")
    compile_checkout()
    arms = {
        "changed": partial(change, model, args.drafter, args.memory, [args.lower]),
        "fixed": partial(change, model, args.drafter, args.memory, []),
    }
    results = interleave(arms, args.rounds)
    report = Report(f"Live dial: {model.name}, {args.drafter}", raw={"runs": results})
    for name, rows in results.items():
        for row in rows:
            if row["failure"]:
                report.failed(name, row["failure"])
                continue
            for made in row["changes"]:
                first = made["from"]
                after = row["cycles"][first + 1 : first + EVERY - 1]
                report.add({
                    "arm": name,
                    "to": format_bytes(made["dial"]),
                    "call, s": f"{made['seconds']:.2f}",
                    "cycles met": made["cycles"],
                    "resident set then": format_bytes(made["rss"]),
                    "cycle before, s": f"{statistics.median(row['cycles'][first - 4 : first - 1]):.2f}",
                    "after, s": f"{statistics.median(after):.2f}" if after else "",
                })  # fmt: skip
    told = [row for rows in results.values() for row in rows if not row["failure"]]
    same = all(row["same"] and row["text"] == told[0]["text"] for row in told)
    report.notes.append(f"Text {'identical' if same else 'DIFFERENT'}; limit {limit_met(told)}.")
    report.finish(args.json)


if __name__ == "__main__":
    main()
