"""Does streaming run at the disk's speed, and is compute hidden behind it?

Per round and dial: raw direct reads of the same files, a few timed cycles, raw reads again. Bytes per pass
are counted between two moments when the ring is full. Compute is the cycle of the same model fully resident.
"""

from __future__ import annotations

import itertools
import statistics
from functools import partial
from pathlib import Path

from benchmarks.common import Row, arguments, interleave, sizes
from benchmarks.models.make_model import ensure_model
from benchmarks.raw_rates import best_read_threads, direct_read_rate
from benchmarks.tables import Report, median_ratio, spread
from benchmarks.worker import Worker, per_cycle
from edgespec.values import format_bytes, parse_bytes

COLUMNS = ("dial", "read a pass", "against plan", "GB/s", "of raw reads", "cycle, s")


class RawReads:
    """Direct reads that go on through the model's files from call to call."""

    def __init__(self, model: Path, nbytes: int) -> None:
        self.model, self.nbytes = model, nbytes
        self.threads = best_read_threads([model])
        self.turn = itertools.count()

    def rate(self) -> float:
        start = next(self.turn) * 509  # requests; a prime, so that repeats begin elsewhere
        return direct_read_rate([self.model], self.nbytes, self.threads, start)


def streamed(model: Path, dial: int, tokens: int, blocks: int, raw: RawReads) -> Row:
    """Blocks of cycles, each compared with the raw reads just before and just after it."""
    with Worker(model, dial) as worker:
        plan = worker.loaded["plan"]
        if not plan["bytes_per_pass"]:
            raise SystemExit(f"{model.name} streams nothing at {format_bytes(dial)}: choose a smaller dial")
        worker.reply(2)
        replies, rates = [], [raw.rate()]
        for _ in range(blocks):
            replies.append(worker.reply(tokens))
            rates.append(raw.rate())
    around = [(before + after) / 2 for before, after in itertools.pairwise(rates)]
    passes = sum(reply["passes"] for reply in replies)
    return {
        "plan": plan,
        "blocks": [
            {**per_cycle(reply), "raw_rate": rate} for reply, rate in zip(replies, around, strict=True)
        ],
        "bytes_per_pass": sum(reply["streamed"] for reply in replies) / passes,
        "disk_per_pass": sum(reply["disk"] for reply in replies) / passes,
        "replies": replies,
    }


def resident(model: Path, memory: int, tokens: int) -> Row:
    with Worker(model, memory) as worker:
        if worker.loaded["plan"]["bytes_per_pass"]:
            raise SystemExit(f"{model.name} is not resident at {format_bytes(memory)}: use --resident-memory")
        worker.reply(2)
        return per_cycle(worker.reply(tokens))


def main() -> None:
    parser = arguments(__doc__, rounds=3)
    parser.add_argument("--model", type=Path, help="default: the 7b shape")
    parser.add_argument("--dials", type=sizes, default=sizes("2GB,4GB,8GB"))
    parser.add_argument("--tokens", type=int, default=5, help="of each timed reply")
    parser.add_argument("--blocks", type=int, default=4, help="timed replies a round and dial")
    parser.add_argument("--raw", type=parse_bytes, default="4GB", help="bytes of each raw read")
    parser.add_argument("--resident-memory", type=parse_bytes, default="18GB", help="dial of the compute arm")
    args = parser.parse_args()
    model = args.model or ensure_model("7b")

    raw = RawReads(model, args.raw)
    arms = {str(dial): partial(streamed, model, dial, args.tokens, args.blocks, raw) for dial in args.dials}
    arms["compute"] = partial(resident, model, args.resident_memory, 4 * args.tokens)
    results = interleave(arms, args.rounds)
    compute = [row["cycle_seconds"] for row in results["compute"]]

    report = Report(
        f"Streaming: {model.name}, plain decoding, {args.rounds} × {args.blocks} blocks, median (range)",
        [*COLUMNS, "I/O, s", "compute, s", "cycle / max", "cycles timed"],
        raw={**results, "raw_read_threads": raw.threads},
    )
    for dial in args.dials:
        rows = results[str(dial)]
        read = statistics.median(row["bytes_per_pass"] for row in rows)
        off = [
            row["bytes_per_pass"] / row["plan"]["bytes_per_pass"] - 1 for row in rows
        ]  # plans differ a little
        blocks = [
            {**block, "io": row["bytes_per_pass"] / block["raw_rate"], "compute": seconds}
            for row, seconds in zip(rows, compute, strict=True)
            for block in row["blocks"]
        ]
        cycle = [block["cycle_seconds"] for block in blocks]
        bound = [max(block["io"], block["compute"]) for block in blocks]
        raw_rates = [block["raw_rate"] for block in blocks]
        report.add(
            format_bytes(dial),
            format_bytes(read),
            f"{max(off, key=abs):+.2%}",
            spread([block["read_rate"] / 1e9 for block in blocks]),
            f"{median_ratio([block['read_rate'] for block in blocks], raw_rates):.1%}",
            spread(cycle),
            spread([block["io"] for block in blocks]),
            spread(compute, 3),
            f"{median_ratio(cycle, bound):.3f}",
            str(sum(block["cycles"] for block in blocks)),
        )
    disk = max(
        abs(row["disk_per_pass"] / row["bytes_per_pass"] - 1) for d in args.dials for row in results[str(d)]
    )
    report.notes.append(
        f"Raw reads: O_DIRECT, 4 MiB, {raw.threads} threads, {format_bytes(args.raw)} before and after each "
        "block. The kernel's count of bytes read (`/proc/<pid>/io`) differs from the streamer's by at most "
        f"{disk:.2%}."
    )
    report.finish(args.json)


if __name__ == "__main__":
    main()
