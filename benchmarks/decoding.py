"""How near does plain decoding come to the hardware: to the disk where it streams, to memory where it fits?

    python -m benchmarks.decoding --dials 2GB,4GB,8GB --resident-memory 18GB
    python -m benchmarks.decoding --model models/1b-bf16 --dials 6GB --tokens 64 --rounds 7

Raw reads before and after each timed reply: of the same files where the dial makes the model stream, of
memory where it fits. Bytes per pass are counted between two moments when the ring is full. With
--resident-memory the model's compute is timed in turn, as a cycle with all of it in memory, and cycles are
compared with the larger of I/O and compute.
"""

from __future__ import annotations

import itertools
import statistics
from collections.abc import Callable
from functools import cached_property, partial
from pathlib import Path

from benchmarks.common import Row, arguments, interleave, sizes
from benchmarks.models.make_model import ensure_model
from benchmarks.raw_rates import MemoryRead, best_read_threads, direct_rate
from benchmarks.tables import Report, median_ratio, spread
from benchmarks.worker import Worker, per_cycle
from edgespec.runtimes.formats.describe import describe_model
from edgespec.values import format_bytes, parse_bytes


class RawReads:
    """Direct reads that go on through the model's files from call to call; or reads of memory."""

    def __init__(self, model: Path, nbytes: int) -> None:
        self.model, self.nbytes = model, nbytes
        self.turn = itertools.count()
        self.threads = 0  # as fits the disk, once it is read

    @cached_property
    def memory(self) -> MemoryRead:
        return MemoryRead(min(self.nbytes, 2 * 10**9))

    def rate(self, streamed: bool) -> float:
        """Bytes a second."""
        if not streamed:
            return self.memory.rate()
        self.threads = self.threads or best_read_threads([self.model])
        start = next(self.turn) * 509  # requests; a prime, so that repeats begin elsewhere
        return direct_rate([self.model], None, self.nbytes, self.threads, start)


def decode(model: Path, dial: int, tokens: int, blocks: int, raw: RawReads) -> Row:
    """Replies, each compared with the raw reads just before and just after it."""
    with Worker(model, dial) as worker:
        planned = worker.loaded["plan"]["bytes_per_pass"]
        worker.reply(2)
        replies, rates = [], [raw.rate(bool(planned))]
        for _ in range(blocks):
            replies.append(worker.reply(tokens))
            rates.append(raw.rate(bool(planned)))
        loaded = worker.loaded
    passes = sum(reply["passes"] for reply in replies)
    streamed, disk = (sum(reply[key] for reply in replies) / passes for key in ("streamed", "disk"))
    # What one token multiplies by: all matrices but an untied embedding.
    weights = sum(chunk.nbytes for chunk in describe_model(model).table.chunks)
    timed = []
    for reply, before, after in zip(replies, rates, rates[1:], strict=False):
        block = {**per_cycle(reply), "raw_rate": (before + after) / 2}
        if not planned:
            block["read_rate"] = weights / block["cycle_seconds"]
        timed.append(block)
    return {
        **loaded,
        "streamed": streamed,
        "disk": disk,
        "planned": planned,
        "blocks": timed,
        "replies": replies,
    }


def compute(model: Path, memory: int, tokens: int) -> Row:
    with Worker(model, memory) as worker:
        if worker.loaded["plan"]["bytes_per_pass"]:
            raise SystemExit(f"{model.name} is not resident at {format_bytes(memory)}: use --resident-memory")
        worker.reply(2)
        return per_cycle(worker.reply(tokens))


def cells(rows: list[Row], computed: list[float]) -> Row:
    """Of a dial; `computed` are the rounds' seconds of computing a cycle, if that was timed."""
    blocks = [block for row in rows for block in row["blocks"]]
    cycle, rates, raw = (
        [block[key] for block in blocks] for key in ("cycle_seconds", "read_rate", "raw_rate")
    )
    streamed = statistics.median(row["streamed"] for row in rows)
    off = [row["streamed"] / row["planned"] - 1 for row in rows if row["planned"]]  # plans differ a little
    io = [row["streamed"] / block["raw_rate"] for row in rows for block in row["blocks"]]
    # The round's compute, once for each of its blocks.
    times = [t for t, row in zip(computed, rows, strict=False) for _ in row["blocks"]]
    bound = [max(pair) for pair in zip(io, times, strict=False)]
    return {
        "read a pass": format_bytes(streamed),
        "against plan": f"{max(off, key=abs):+.2%}" if off else "",
        "tokens/s": spread([1 / seconds for seconds in cycle]),
        "GB/s": spread([rate / 1e9 for rate in rates]),
        "of raw reads": f"{median_ratio(rates, raw):.1%}",
        "cycle, s": spread(cycle, 3),
        "I/O, s": spread(io) if off else "",
        "compute, s": spread(computed, 3) if computed else "",
        "cycle / max": f"{median_ratio(cycle, bound):.3f}" if bound and off else "",
        "cycles timed": sum(block["cycles"] for block in blocks),
        "load, s": spread([row["load_seconds"] for row in rows], 1),
    }


def main() -> None:
    parser = arguments(__doc__, rounds=3)
    parser.add_argument("--model", type=Path, help="default: the 7b shape")
    parser.add_argument("--dials", type=sizes, default=sizes("2GB,4GB,8GB"))
    parser.add_argument("--tokens", type=int, default=5, help="of each timed reply")
    parser.add_argument("--blocks", type=int, default=4, help="timed replies a round and dial")
    parser.add_argument("--raw", type=parse_bytes, default="4GB", help="bytes of each raw read")
    parser.add_argument("--resident-memory", type=parse_bytes, help="dial of an arm that times compute")
    args = parser.parse_args()
    model = args.model or ensure_model("7b")
    raw = RawReads(model, args.raw)
    arms: dict[str, Callable[[], Row]] = {
        str(dial): partial(decode, model, dial, args.tokens, args.blocks, raw) for dial in args.dials
    }
    if args.resident_memory:
        arms["compute"] = partial(compute, model, args.resident_memory, 4 * args.tokens)
    results = interleave(arms, args.rounds)
    computed = [row["cycle_seconds"] for row in results.get("compute", [])]

    title = f"Plain decoding: {model.name}, {args.rounds} × {args.blocks} replies, median (range)"
    report = Report(title, raw=dict(results))
    for dial in args.dials:
        report.add({"dial": format_bytes(dial), **cells(results[str(dial)], computed)})
    off = max(abs(row["disk"] - row["streamed"]) for dial in args.dials for row in results[str(dial)])
    report.notes.append(
        f"Raw reads before and after each reply: of files O_DIRECT, 4 MiB, {raw.threads} threads, "
        f"{format_bytes(args.raw)}; of memory where nothing is streamed. The kernel's count of bytes "
        f"read a pass (`/proc/<pid>/io`) differs from the streamer's by at most {format_bytes(off)}."
    )
    report.finish(args.json)


if __name__ == "__main__":
    main()
