"""Does memory stay where the plan put it, for hours?

Random conversations (`soak_process.py`) from cold caches in a cgroup of exactly the dial, which they may not
meet. The resident set may grow by 1 MB per 1,000 replies after the first 50.
"""

from __future__ import annotations

import json
import sys
from functools import partial
from pathlib import Path

from benchmarks.common import Row, arguments, compile_checkout, environment, interleave
from benchmarks.measure import limit_met, run
from benchmarks.models.make_model import ensure_model
from benchmarks.page_cache import drop_caches, usual_read_ahead
from benchmarks.tables import Report
from edgespec.values import format_bytes, parse_bytes


def soak(model: Path, options: Row, limits: Row) -> Row:
    drop_caches([model], everything=True)
    command = [sys.executable, "-m", "benchmarks.soak_process", str(model)]
    command += [json.dumps(options), json.dumps(limits)]
    with usual_read_ahead(model):
        return run(command, memory=options["memory"], watch=[model], env=environment()).row()


def main() -> None:
    parser = arguments(__doc__, rounds=1)
    parser.add_argument("--model", type=Path, help="default: the 0.5b shape, 0.7 GB, which then streams")
    parser.add_argument("--memory", type=parse_bytes, default=parse_bytes("650MB"), help="the dial")
    parser.add_argument("--drafter", default="ngram")
    parser.add_argument("--adapters", help="the cascade's")
    parser.add_argument("--replies", type=int)
    parser.add_argument("--minutes", type=float)
    parser.add_argument("--every", type=int, default=1000, help="replies between two looks at the memory")
    args = parser.parse_args()
    model = args.model or ensure_model("0.5b")
    compile_checkout()
    options = {"memory": args.memory, "drafter": args.drafter, "adapters": args.adapters}
    minutes = args.minutes or (None if args.replies else 30)
    limits = {"replies": args.replies, "minutes": minutes, "every": args.every}
    results = interleave({"soak": partial(soak, model, options, limits)}, args.rounds)["soak"]

    title = f"Soak: {model.name} in {format_bytes(args.memory)}, {args.drafter}"
    report = Report(title, raw={"runs": results})
    for row in results:
        if row["failure"]:
            report.failed("soak", row["failure"])
            continue
        for look in row["looks"]:
            figures = {
                "replies": look["replies"],
                "tokens": look["tokens"],
                "minutes": f"{look['seconds'] / 60:.1f}",
                "resident set": format_bytes(look["rss"]),
                "of no file": format_bytes(look["own"]),
                "allocated": format_bytes(look["allocated"]) if look["allocated"] else "",
            }
            report.add(figures)
        peak = format_bytes(row["peak"])
        report.notes.append(f"Limit {limit_met([row])}, peak {peak}, hits {row['limit_hits']}.")
    report.finish(args.json)


if __name__ == "__main__":
    main()
