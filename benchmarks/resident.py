"""Does a model that fits decode at memory speed, and leave the disk alone?

Decoding reads every weight but the embedding once a token, so tokens/s times those bytes is a rate of memory
reads; it is compared with plain reads of memory measured in between.
"""

from __future__ import annotations

import statistics
from pathlib import Path

from benchmarks.common import Row, arguments, interleave
from benchmarks.models.make_model import ensure_model
from benchmarks.raw_rates import MemoryRead
from benchmarks.tables import Report, median_ratio, spread
from benchmarks.worker import Worker, per_cycle
from edgespec.runtimes.formats.describe import describe_model
from edgespec.values import format_bytes, parse_bytes


def weight_bytes(model: Path) -> int:
    """Bytes that one token of plain decoding multiplies by: all matrices but an untied embedding."""
    files = describe_model(model)
    if files.config.tied_head:
        raise SystemExit("use a model with an untied head: its bytes a token are unambiguous")
    return sum(chunk.nbytes for chunk in files.table.chunks)


def main() -> None:
    parser = arguments(__doc__, rounds=7)
    parser.add_argument("--model", type=Path, help="default: the 1b shape")
    parser.add_argument("--memory", type=parse_bytes, default="6GB")
    parser.add_argument("--tokens", type=int, default=64)
    args = parser.parse_args()
    model = args.model or ensure_model("1b")
    per_token = weight_bytes(model)
    memory = MemoryRead()

    with Worker(model, args.memory) as worker:
        if worker.loaded["plan"]["bytes_per_pass"]:
            raise SystemExit(f"{model.name} does not fit {format_bytes(args.memory)}: raise --memory")
        worker.reply(args.tokens)

        def decode() -> Row:
            reply = worker.reply(args.tokens)
            return {**per_cycle(reply), "disk": reply["disk"], "streamed": reply["streamed"]}

        results = interleave({"decode": decode, "memory": lambda: {"rate": memory.rate()}}, args.rounds)
        load_seconds = worker.loaded["load_seconds"]

    decode_rates = [per_token / row["cycle_seconds"] for row in results["decode"]]
    memory_rates = [row["rate"] for row in results["memory"]]
    report = Report(
        f"Resident: {model.name}, dial {format_bytes(args.memory)}, {args.rounds} times {args.tokens} tokens",
        ["tokens/s", "weights, GB/s", "memory reads, GB/s", "share", "disk reads after load", "load, s"],
        raw=results,
    )
    report.add(
        spread([1 / row["cycle_seconds"] for row in results["decode"]]),
        spread([rate / 1e9 for rate in decode_rates], 1),
        spread([rate / 1e9 for rate in memory_rates], 1),
        f"{median_ratio(decode_rates, memory_rates):.0%}",
        format_bytes(statistics.median(row["disk"] for row in results["decode"])),
        f"{load_seconds:.1f}",
    )
    report.finish(args.json)


if __name__ == "__main__":
    main()
