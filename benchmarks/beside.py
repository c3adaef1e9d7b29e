"""What does a drafter gain by a process, and a core, of its own? The same passes and nodes by every schedule.

    python -m benchmarks.beside --target models/7b-inflated-int4 --draft half-int8 --passes 8 --nodes 12

The target computes on the first core that this process may use, the draft worker on the second, in all arms,
`serial` among them. One engine is open at a time; arms are in turn, and all must say the same.

    draft, pass    ms a cycle: of drafting before a pass, and of the pass (medians)
    share          of drafting in the cycle
    hidden         of the first arm's drafting, what is no longer before the pass: `overlap`
    hits; found    outcomes that were prepared for; passes of drafting that these were worth
    over first     tokens/s over the first arm's, round by round
"""

from __future__ import annotations

import os
from argparse import Namespace
from collections.abc import Sequence
from functools import partial
from pathlib import Path
from statistics import fmean, median
from typing import Any

import edgespec
from benchmarks.common import Row, arguments, compile_checkout, interleave, names
from benchmarks.held_out import prompts, stories
from benchmarks.tables import Report, ratio, spread
from edgespec.apps.common import demo_model
from edgespec.config import GenerationOptions
from edgespec.control.controller import Fixed
from edgespec.core.schedule import TreeBudget
from edgespec.core.trace import Cycle, Trace
from edgespec.drafters.beside import Beside

DEPTH = 16


def pin(process: int, *cores: int) -> None:
    """All threads of a process."""
    for thread in os.listdir(f"/proc/{process}/task"):
        os.sched_setaffinity(int(thread), cores)


def answer(args: Namespace, cores: Sequence[int], schedule: str, asked: Sequence[list[int]]) -> Row:
    """All prompts, one after the other, by an engine of its own; the first is said once before."""
    options: dict[str, Any] = {"memory": args.memory, "context": args.context, "drafter": "model"}
    pin(os.getpid(), *cores)  # while it opens, as a worker begins where who starts it may run
    with edgespec.load(
        args.target,
        draft_model=args.draft,
        draft_worker=1,
        schedule=schedule,
        resident_layers=args.resident_layers,
        threads=1,
        **options,
    ) as engine:
        (worker,) = engine.resident
        assert isinstance(worker, Beside)
        pin(os.getpid(), cores[0])
        pin(worker.worker._process.pid, cores[1])  # type: ignore[attr-defined]
        budget = Fixed(TreeBudget(args.nodes + 1, DEPTH, args.passes))
        cycles, said, tokens, seconds = list[Cycle](), list[list[int]](), 0, 0.0
        for place, prompt in enumerate([asked[0], *asked]):
            heard = list[Cycle]()
            with engine.new_session(len(prompt) + args.tokens, budget, Trace(heard.append)) as session:
                responses = list(session.generate(prompt, GenerationOptions(max_tokens=args.tokens)))
            stats = responses[-1].stats
            assert stats is not None
            if not place:
                continue
            cycles += [cycle for cycle in heard if cycle.passes is not None]
            said.append([r.token for r in responses if r.token is not None])
            tokens, seconds = tokens + stats.reply_tokens - 1, seconds + stats.decode_seconds
    return figures(cycles) | {"said": said, "speed": tokens / seconds}


def figures(cycles: Sequence[Cycle]) -> Row:
    looked = [c.overlap for c in cycles if c.overlap is not None and c.overlap.hit is not None]
    draft, verify = (
        [1e3 * s for s in each]
        for each in zip(*((c.draft_seconds, c.verify_seconds) for c in cycles), strict=True)
    )
    return {
        "draft": median(draft),
        "pass": median(verify),
        "share": sum(draft) / (sum(draft) + sum(verify)),
        "tokens": fmean(len(c.outcome.tokens) for c in cycles),
        "hits": fmean(o.hit for o in looked) if looked else None,
        "found": fmean(o.found for o in looked) if looked else None,
    }


def main() -> None:
    parser = arguments(__doc__, rounds=3)
    parser.add_argument("--small", type=Path, default=demo_model(), help="whose prompts these are")
    parser.add_argument("--target", type=Path, required=True)
    parser.add_argument("--draft", type=Path, required=True, help="a draft model, exported or not")
    parser.add_argument("--schedules", type=names, default=names("serial,ssd,mirror"))
    parser.add_argument("--passes", type=int, default=8, help="of the drafter before each verification")
    parser.add_argument("--nodes", type=int, default=12)
    parser.add_argument("--resident-layers", type=int, help="of the target; default: as planned")
    parser.add_argument("--prompts", type=int, default=2)
    parser.add_argument("--stories", action="store_true", help="requests for stories, whose replies are long")
    parser.add_argument("--tokens", type=int, default=64)
    parser.add_argument("--memory", default="8GB")
    parser.add_argument("--context", type=int, default=512)
    args = parser.parse_args()
    cores = sorted(os.sched_getaffinity(0))
    if len(cores) < 2:
        raise SystemExit("a target and a worker need two cores")
    compile_checkout()
    asked = (stories if args.stories else prompts)(args.small, args.prompts)
    found = interleave(
        {name: partial(answer, args, cores, name, asked) for name in args.schedules}, args.rounds
    )
    first = found[args.schedules[0]]
    report = Report(f"{args.passes} passes, {args.nodes} nodes, {len(asked)} held-out prompts")
    for name, rows in found.items():
        if any(row["said"] != first[0]["said"] for row in rows):
            raise SystemExit(f"{name} says something else than {args.schedules[0]}")
        mean = {key: fmean(row[key] for row in rows) for key in ("draft", "pass", "share", "tokens")}
        speeds = [row["speed"] for row in rows]
        cells: Row = {"schedule": name, "tokens/s": spread(speeds, 3)}
        cells["over first"] = ratio(speeds, [row["speed"] for row in first])
        cells |= {"draft, ms": f"{mean['draft']:.1f}", "pass, ms": f"{mean['pass']:.1f}"}
        cells["share"] = f"{mean['share']:.0%}"
        cells["hidden"] = f"{1 - mean['draft'] / fmean(row['draft'] for row in first):.0%}"
        looked = [row for row in rows if row["hits"] is not None]
        cells["hits; found"] = (
            f"{fmean(r['hits'] for r in looked):.0%}; {fmean(r['found'] for r in looked):.1f}"
            if looked
            else ""
        )
        report.add({**cells, "tokens a cycle": f"{mean['tokens']:.2f}"})
    report.finish(args.json)


if __name__ == "__main__":
    main()
