"""Does a 70B shape (138 GB in bf16) run under a 4 GB dial?

The disk need not hold it: four distinct layers are packed once and repeated to eighty (repeat_layers.py).
One reply in a cgroup limited to the dial, with raw direct reads of the same files before and after.
"""

from __future__ import annotations

import shutil
import statistics
from collections.abc import Callable
from functools import partial
from pathlib import Path

from benchmarks.cgroup import CgroupUnavailable
from benchmarks.common import PROMPT, Row, arguments, environment, generate_command, interleave, pack
from benchmarks.measure import run
from benchmarks.models.make_model import ensure_model
from benchmarks.models.repeat_layers import repeat_layers
from benchmarks.models.shapes import get_shape, models_dir
from benchmarks.page_cache import drop_caches
from benchmarks.raw_rates import best_read_threads, direct_read_rate
from benchmarks.tables import Report, median_ratio, spread
from edgespec.values import format_bytes, parse_bytes


def ensure_large(name: str, distinct: int) -> Path:
    """The full-depth packed store with `distinct` layers on disk, made now if it is not there."""
    target = models_dir() / f"{name}-packed-{distinct}-repeated"
    if not target.exists():
        packed = models_dir() / f"{name}-{distinct}layers-packed"
        if not packed.exists():
            source = ensure_model(name, distinct)
            pack(source, packed)
        repeat_layers(packed, target, get_shape(name).layers)
        shutil.rmtree(packed)  # the links keep the data
    return target


def generate(model: Path, dial: int, tokens: int) -> Row:
    drop_caches([model])
    command = generate_command(model, PROMPT, dial, tokens)
    usage = run(command, memory=dial, watch=[model], env=environment())
    return usage.row()


def main() -> None:
    parser = arguments(__doc__, rounds=1)
    parser.add_argument("--shape", default="70b")
    parser.add_argument("--distinct", type=int, default=4, help="layers that are on disk")
    parser.add_argument("--memory", type=parse_bytes, default="4GB")
    parser.add_argument("--tokens", type=int, default=3)
    parser.add_argument("--raw", type=parse_bytes, default="4GB", help="bytes of each raw read")
    args = parser.parse_args()
    model = ensure_large(args.shape, args.distinct)

    raw = partial(direct_read_rate, [model], args.raw, best_read_threads([model]))
    arms: dict[str, Callable[[], Row]] = {
        "raw before": lambda: {"rate": raw()},
        "edgespec": partial(generate, model, args.memory, args.tokens),
        "raw after": lambda: {"rate": raw()},
    }
    try:
        results = interleave(arms, args.rounds)
    except CgroupUnavailable as error:
        raise SystemExit(f"skipped: {error}") from None
    report = Report(
        f"Large: {model.name} in a cgroup of {format_bytes(args.memory)}, {args.tokens} tokens",
        ["s a token", "GB read a token", "GB/s", "of raw reads", "peak", "limit"],
        raw=results,
    )
    rows = results["edgespec"]
    failures = [row["failure"] for row in rows if row["failure"]]
    if failures:
        report.failed("failed", failures[0])
        report.finish(args.json)
        return
    rates = [row["stats"]["read_gbps"] for row in rows]
    pairs = zip(results["raw before"], results["raw after"], strict=True)
    raw_rates = [(before["rate"] + after["rate"]) / 2e9 for before, after in pairs]
    report.add(
        spread([1 / row["stats"]["tokens_per_second"] for row in rows], 1),
        f"{statistics.median(row['stats']['bytes_per_token'] for row in rows) / 1e9:.1f}",
        spread(rates),
        f"{median_ratio(rates, raw_rates):.0%}",
        format_bytes(max(row["peak"] for row in rows)),
        "met" if any(row["met"] for row in rows) else "never met",
    )
    report.notes.append(
        f"{args.distinct} of {get_shape(args.shape).layers} layers are on disk; a pass reads them again and "
        "again, and so do the raw reads."
    )
    report.finish(args.json)


if __name__ == "__main__":
    main()
