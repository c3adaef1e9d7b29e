"""What does useless drafting cost? A pass over 64 nodes, and --drafter auto on text nobody can guess.

    python -m benchmarks.bounds --small DEMO --target models/7b-inflated --arms "substitute int4" \\
        --dials 8GB --resident-target models/1b-bf16 --resident-draft models/0.5b-bf16
"""

from __future__ import annotations

import statistics
from pathlib import Path

from benchmarks.arms import OWN, Bench, Options, drafting_arguments, open_worker, whole
from benchmarks.common import Row
from benchmarks.held_out import noise
from benchmarks.tables import Report, spread
from edgespec.values import format_bytes

HOT = 8.0  # a temperature at which nobody can guess the next token


def nodes(bench: Bench, dial: int) -> Report:
    name = format_bytes(dial)
    report = Report(f"A pass over 64 nodes against one node at {name}")
    mode = {"kind": "wrong", "nodes": [1, 64]}
    for turn in range(bench.args.rounds):
        bench.store.get(f"{name}/nodes/{turn}", bench.timed, dial, "none", {}, mode, turn)
    if found := bench.rounds(f"{name}/nodes"):
        one, many = (
            [statistics.median(c["verify"] for c in row["cycles"] if c["nodes"] == count) for row in found]
            for count in (1, 64)
        )
        figures = {"1 node, s": spread(one), "64 nodes, s": spread(many)}
        figures["ratio"] = spread([b / a for a, b in zip(one, many, strict=True)], 3)
        report.add({**figures, "passes": sum(len(row["cycles"]) for row in found)})
    return report


def adversarial(bench: Bench, dial: int) -> Report:
    """Text at a temperature that makes every token a surprise, after prompts of random tokens."""
    name, args = format_bytes(dial), bench.args
    report = Report(f"--drafter auto on random tokens at {name}")
    ngram: dict[str, Options] = {"ngram": {}}
    resident: dict[str, Options] = (
        {"model": {"draft_model": args.resident_draft}} if args.resident_draft else {}
    )
    streamed = {arm.name: arm.big for arm in bench.arms}
    places = [("resident", args.resident_target, ngram | resident, 40 * args.cycles)]
    places += [("streamed", args.target, streamed | ngram, 20 * args.cycles)]
    for where, model, ways, count in places:
        if model is None:
            continue
        stem = f"{name}/adversarial/{where}"
        for turn in range(args.rounds):
            job = model, dial, count, turn
            bench.store.get(f"{stem}/plain/{turn}", surprise, *job, "none", {})
            for way, options in ways.items():
                bench.store.get(f"{stem}/{way}/{turn}", surprise, *job, "auto", options)
        plain = bench.rounds(f"{stem}/plain")
        for way in ways:
            found = bench.rounds(f"{stem}/{way}")
            ratios = [f["rate"] / p["rate"] for f, p in zip(found, plain, strict=False)]
            if ratios:
                timed = sum(f["tokens"] for f in found)
                figures = {"× plain": spread(ratios, 3), "tokens timed": timed}
                report.add({"where": where, "drafters": way, **figures})
    return report


def surprise(model: Path, dial: int, count: int, seed: int, drafter: str, options: Options) -> Row:
    """A reply that ends early is followed by another, in a conversation of its own."""
    seconds, tokens = 0.0, 0
    with open_worker(model, dial, drafter, **options) as worker:
        for turn, prompt in enumerate(noise(model, 200)):
            job = {"temperature": HOT, "seed": 1000 * seed + turn}
            # The first token and the first and the last cycle are not timed.
            for cycle in whole(worker.run(prompt, min(count + 3, 900), OWN, **job)):
                seconds += cycle["seconds"]
                tokens += cycle["tokens"]
            if tokens >= count:
                break
    return {"seconds": seconds, "tokens": tokens, "rate": tokens / seconds}


def main() -> None:
    parser = drafting_arguments(__doc__)
    parser.add_argument("--resident-target", type=Path, help="a model that fits the dial")
    parser.add_argument("--resident-draft", type=Path, help="and a draft model for it")
    bench = Bench(parser)
    for dial in bench.args.dials:
        for part in (nodes, adversarial):
            print(part(bench, dial).markdown(), flush=True)


if __name__ == "__main__":
    main()
