"""Does streaming run at the disk's speed, and is compute hidden behind it?

Per round and dial: raw direct reads of the same files, a few timed cycles, raw reads again. Bytes per pass
are counted between two moments when the ring is full. Compute is the cycle of the same model fully resident.
"""

from __future__ import annotations

import itertools
import statistics
from functools import partial
from pathlib import Path

from common import Report, Row, arguments, format_bytes, interleave, median_ratio, parse_bytes, sizes, spread
from make_model import ensure_model
from raw_rates import best_read_threads, direct_read_rate
from worker import Worker, cycles


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
    """Blocks of cycles between raw reads."""
    with Worker(model, dial) as worker:
        plan = worker.loaded["plan"]
        worker.reply(2)
        replies, rates = [], [raw.rate()]
        for _ in range(blocks):
            replies.append(worker.reply(tokens))
            rates.append(raw.rate())
    timed = [cycles(reply) for reply in replies]
    return {
        "plan": plan,
        "replies": replies,
        "raw_rates": rates,
        "cycle_seconds": statistics.median(row["cycle_seconds"] for row in timed),
        "read_rate": statistics.median(row["read_rate"] for row in timed),
        "efficiency": statistics.median(
            row["read_rate"] / ((before + after) / 2)
            for row, before, after in zip(timed, rates, rates[1:], strict=False)
        ),
        "raw_rate": statistics.median(rates),
        "bytes_per_pass": sum(r["streamed"] for r in replies) / sum(r["cycles"] for r in replies),
        "disk_per_pass": sum(r["disk"] for r in replies) / sum(r["cycles"] for r in replies),
    }


def resident(model: Path, memory: int, tokens: int) -> Row:
    with Worker(model, memory) as worker:
        if worker.loaded["plan"]["bytes_per_pass"]:
            raise SystemExit(
                f"{model.name} is not resident at {format_bytes(memory)}: raise --resident-memory"
            )
        worker.reply(2)
        return cycles(worker.reply(tokens))


def main() -> None:
    parser = arguments(__doc__, rounds=3)
    parser.add_argument("--model", type=Path, help="default: the 7b shape")
    parser.add_argument("--dials", type=sizes, default=sizes("2GB,4GB,8GB"))
    parser.add_argument("--tokens", type=int, default=6, help="of each timed reply")
    parser.add_argument("--blocks", type=int, default=3, help="timed replies a round and dial")
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
        f"Streaming: {model.name}, plain decoding, median (range) of {args.rounds} rounds",
        [
            "dial",
            "read a pass",
            "against plan",
            "GB/s",
            "of raw reads",
            "cycle, s",
            "I/O, s",
            "compute, s",
            "cycle / max",
        ],
        raw={**results, "raw_read_threads": raw.threads},
    )
    for dial in args.dials:
        rows = results[str(dial)]
        planned = rows[0]["plan"]["bytes_per_pass"]
        io = [row["bytes_per_pass"] / row["raw_rate"] for row in rows]
        cycle = [row["cycle_seconds"] for row in rows]
        read = statistics.median(row["bytes_per_pass"] for row in rows)
        report.add(
            format_bytes(dial),
            format_bytes(read),
            f"{read / planned - 1:+.2%}" if planned else "resident",
            spread([row["read_rate"] / 1e9 for row in rows]),
            f"{statistics.median(row['efficiency'] for row in rows):.1%}",
            spread(cycle),
            spread(io),
            spread(compute, 3),
            f"{median_ratio(cycle, [max(pair) for pair in zip(io, compute, strict=True)]):.3f}",
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
