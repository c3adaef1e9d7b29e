"""Is the memory dial a hard cap, and is it filled?

Each dial is run twice from cold caches: without a limit, where the peak (page cache included) must be 90 to
100 % of the dial, and in a cgroup limited to the dial, which the run must never meet. The prompt is as long
as a pass may be at the smallest dial, because that is what the dial has to have room for.
"""

from __future__ import annotations

import statistics
from functools import partial
from pathlib import Path

from benchmarks.common import (
    PROMPT,
    Row,
    arguments,
    compile_checkout,
    environment,
    generate_command,
    interleave,
    sizes,
)
from benchmarks.measure import failure, limit_met, run
from benchmarks.models.make_model import ensure_model
from benchmarks.page_cache import drop_caches
from benchmarks.tables import Report
from edgespec.values import format_bytes

LONG_PROMPT = (PROMPT * 500)[:500]  # at most 501 tokens of the made models' tokenizer


def generate(model: Path, adapters: Path | None, dial: int, tokens: int, limit: int | None) -> Row:
    """One cold reply, measured from outside."""
    drop_caches([model], everything=True)
    more = ("--adapters", adapters) if adapters else ()
    command = generate_command(model, LONG_PROMPT, dial, tokens, "auto", *more)
    return run(command, memory=limit, watch=[model], env=environment()).row()


def main() -> None:
    parser = arguments(__doc__, rounds=3)
    parser.add_argument("--model", type=Path, help="default: the 7b shape")
    parser.add_argument("--adapters", type=Path, help="its cascade's")
    parser.add_argument("--dials", type=sizes, default=sizes("2GB,4GB,8GB"))
    parser.add_argument("--tokens", type=int, default=4)
    args = parser.parse_args()
    model = args.model or ensure_model("7b")
    compile_checkout()

    arms = {}
    for dial in args.dials:
        arms[f"{dial} free"] = partial(generate, model, args.adapters, dial, args.tokens, None)
        arms[f"{dial} capped"] = partial(generate, model, args.adapters, dial, args.tokens, dial)
    results = interleave(arms, args.rounds)

    title = f"Memory: {model.name}, {args.tokens} tokens in reply to 500, cold, median of {args.rounds} runs"
    report = Report(title, raw=dict(results))
    for dial in args.dials:
        free, capped = results[f"{dial} free"], results[f"{dial} capped"]
        if why := failure(free + capped):
            report.failed(format_bytes(dial), why)
            continue
        peak = statistics.median(row["peak"] for row in free)
        said = statistics.median(row["stats"]["peak_memory"] for row in free)
        highest = max(row["peak"] for row in capped)
        report.add(
            {
                "dial": format_bytes(dial),
                "peak, no limit": format_bytes(peak),
                "of the dial": f"{peak / dial:.1%}",
                "edgespec says": format_bytes(said),
                "weights in page cache": f"{max(row['cached_after'] / row['watched'] for row in free):.2%}",
                "capped": f"limit {limit_met(capped)}, no kill, peak {highest / dial:.1%}",
                "written": format_bytes(max(row["bytes_written"] for row in free + capped)),
            }
        )
    report.finish(args.json)


if __name__ == "__main__":
    main()
