"""How fast does `edgespec pack` write a store, and with how much memory?

The rate is bytes of the store over the whole command's time, compared with the slower of the disk's direct
reads and writes measured beside it, and with a raw copy, which is all that one disk can do. It runs in a
cgroup of 1 GB, page cache included.
"""

from __future__ import annotations

import shutil
from functools import partial
from pathlib import Path

from benchmarks.common import Row, arguments, edgespec_command, environment, interleave, names
from benchmarks.measure import failure, limit_met, run
from benchmarks.models.make_model import ensure_model
from benchmarks.page_cache import drop_caches, files_under
from benchmarks.raw_rates import best_read_threads, direct_copy_rate, direct_read_rate, direct_write_rate
from benchmarks.tables import Report, median_ratio, spread
from edgespec.values import format_bytes, parse_bytes

LIMIT = 10**9


def pack(model: Path, precision: str, limit: int | None) -> Row:
    """Pack from cold caches to a directory beside the model, and remove it."""
    target = model.with_name(f"{model.name}.packing-benchmark")
    shutil.rmtree(target, ignore_errors=True)
    drop_caches([model])
    command = edgespec_command("pack", model, "-o", target, "--precision", precision)
    try:
        usage = run(command, memory=limit, watch=[model], env=environment())
        written = sum(file.stat().st_size for file in files_under(target)) if usage.exit_code == 0 else 0
    finally:
        shutil.rmtree(target, ignore_errors=True)
    return {**usage.row(), "size": written}


def raw(model: Path, nbytes: int, threads: int) -> Row:
    return {
        "read": direct_read_rate([model], nbytes, threads),
        "write": direct_write_rate(model.parent, nbytes),
        "copy": direct_copy_rate([model], model.parent, nbytes),
    }


def main() -> None:
    parser = arguments(__doc__, rounds=3)
    parser.add_argument("--model", type=Path, help="default: the 7b shape")
    parser.add_argument("--precisions", type=names, default=["source", "int8", "int4"])
    parser.add_argument("--raw", type=parse_bytes, default="4GB", help="bytes of each raw read and write")
    args = parser.parse_args()
    model = args.model or ensure_model("7b")

    arms = {p: partial(pack, model, p, LIMIT) for p in args.precisions}
    threads = best_read_threads([model])
    arms["raw"] = partial(raw, model, args.raw, threads)
    results = interleave(arms, args.rounds)

    title = f"Packing: {model.name} in {format_bytes(LIMIT)}, median (range) of {args.rounds} runs"
    report = Report(title, raw=results)
    reads, writes, copies = ([row[way] for row in results["raw"]] for way in ("read", "write", "copy"))
    for precision in args.precisions:
        rows = results[precision]
        if why := failure(rows):
            report.failed(precision, why)
            continue
        rates = [row["size"] / row["wall"] for row in rows]
        slower = median_ratio(rates, list(map(min, reads, writes)))
        report.add(
            {
                "precision": precision,
                "store": format_bytes(rows[0]["size"]),
                "written, GB/s": spread([rate / 1e9 for rate in rates]),
                "read, GB/s": spread([row["bytes_read"] / row["wall"] / 1e9 for row in rows]),
                "of the slower of read and write": f"{slower:.0%}",
                "of a raw copy": f"{median_ratio(rates, copies):.0%}",
                "peak": format_bytes(max(row["peak"] for row in rows)),
                "limit": limit_met(rows),
            }
        )
    read, write, copy = (spread([rate / 1e9 for rate in rates]) for rates in (reads, writes, copies))
    report.notes.append(
        f"Disk by itself: read {read} GB/s, write {write} GB/s, both at once, as packing must: {copy} GB/s "
        f"(O_DIRECT; {threads}, 2, 4 threads)."
    )
    report.finish(args.json)


if __name__ == "__main__":
    main()
