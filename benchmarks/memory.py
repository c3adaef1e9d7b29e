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
from benchmarks.measure import run
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

    columns = [
        "dial",
        "peak, no limit",
        "of the dial",
        "edgespec says",
        "weights in page cache",
        "capped",
        "written",
    ]
    title = f"Memory: {model.name}, {args.tokens} tokens in reply to 500, cold, median of {args.rounds} runs"
    report = Report(title, columns, raw=dict(results))
    for dial in args.dials:
        free, capped = results[f"{dial} free"], results[f"{dial} capped"]
        if failed := [row["failure"] for row in free + capped if row["failure"]]:
            report.failed(format_bytes(dial), failed[0])
            continue
        peak = statistics.median(row["peak"] for row in free)
        met = sum(row["met"] for row in capped)
        verdict = f"limit met in {met} of {len(capped)} runs" if met else "limit never met"
        report.add(
            format_bytes(dial),
            format_bytes(peak),
            f"{peak / dial:.1%}",
            format_bytes(statistics.median(row["stats"]["peak_memory"] for row in free)),
            f"{max(row['cached_after'] / row['watched'] for row in free):.2%}",
            f"{verdict}, no kill, peak {max(row['peak'] for row in capped) / dial:.1%}",
            format_bytes(max(row["bytes_written"] for row in free + capped)),
        )
    report.finish(args.json)


if __name__ == "__main__":
    main()
