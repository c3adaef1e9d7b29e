"""How often has an outcome been prepared for, by fan-out and by policy? On small models, at given waits.

    python -m benchmarks.hits --small edgespec/demo_model --draft models/demo-draft-run/model

A pass's waits are a number of nodes here (`--nodes`; `waiting.py`), drafted when its outcome is known already
but not told. The first table is SSD's Figure 3: the chance that the bonus token is among the F that the
drafter finds likeliest behind the accepted ones. The second compares the policies at the same number of
nodes; `speed` is in tokens a target's pass, where a pass of drafting that had to be waited for takes `PRICE`
of one.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

import numpy as np

import edgespec
from benchmarks.common import Row, arguments, names, numbers
from benchmarks.held_out import prompts, stories
from benchmarks.tables import RESULTS, Report, Store
from benchmarks.waiting import PRICE, TREE_DEPTH, Waiting, columns, more_hits, reply, times_as_fast
from edgespec.control.fixed import Fixed
from edgespec.drafters.base import Drafter
from edgespec.drafters.growth import KNOWN
from edgespec.engine import Engine
from edgespec.runtimes.base import KVCache
from edgespec.schedules.fan_out import CacheShape
from edgespec.schedules.ssd import DEPTH

POLICIES = FIRST, *_ = ("uniform", "geometric", "measured", "best-first")
BASES = POLICIES[:2]  # that the others are compared with
OUTCOMES = TREE_DEPTH + 1  # that the fixed fan-outs prepare for: each depth has one
COUNTED = "hits", "lookups", "tokens", "cycles", "passes"
PASSES = 8  # of drafting in a cycle, prepared or not
FAN_OUTS = (1, 2, 3, 4, 6, 8, 12, 16)
HOW = {  # acceptance, temperature
    "T=0": ("greedy", 0.0),
    "T=1": ("sample", 1.0),
    "T=1 ratio": ("ratio", 1.0),
}


@dataclass(frozen=True)
class Bench:
    engine: Engine
    asked: Sequence[Sequence[int]]

    def replies(self, how: str, policy: str, waits: int) -> Row:
        return {"replies": [self.reply(tokens, how, policy, waits) for tokens in self.asked]}

    def reply(self, tokens: Sequence[int], how: str, policy: str, waits: int) -> Row:
        shape = None if policy == "best-first" else CacheShape(policy, DEPTH, KNOWN)

        def make(seat: KVCache, drafter: Drafter, fixed: Fixed) -> Waiting:
            return Waiting(waits, drafter, fixed, shape=shape, outcomes=OUTCOMES)

        row, schedule = reply(self.engine, tokens, make, PASSES, *HOW[how])
        assert isinstance(schedule, Waiting)
        return {**row, "ranks": schedule.ranks}


def hit_rates(ranks: Sequence[tuple[bool, int]]) -> list[float]:
    """[FAN_OUTS] the share of outcomes whose bonus token was among the likeliest F."""
    return [
        float(np.mean([rank < fan_out for _, rank in ranks])) if ranks else math.nan for fan_out in FAN_OUTS
    ]


def power(hits: Sequence[float]) -> tuple[float, float]:
    """Exponent r and factor c of misses = c F^-r: the line of least squares through both logarithms."""
    found = [(math.log(f), math.log(1 - hit)) for f, hit in zip(FAN_OUTS, hits, strict=True) if hit < 1]
    if len(found) < 2:
        return math.nan, math.nan
    slope, start = np.polyfit(*zip(*found, strict=True), 1).tolist()
    return -slope, math.exp(start)


def curves(rows: dict[str, Row]) -> Report:
    """`rows` by temperature, of a policy that asks about every node."""
    report = Report(f"Chance of a hit by fan-out (ranks of {KNOWN} continuations are known)")
    for how, row in rows.items():
        ranks = [(bool(hit), rank) for reply in row["replies"] for hit, rank in reply["ranks"]]
        parts = {
            "after hits": [r for r in ranks if r[0]],
            "after misses": [r for r in ranks if not r[0]],
            "all": ranks,
        }
        for name, part in parts.items():
            hits = hit_rates(part)
            r, factor = power(hits)
            cells = {f"F={f}": f"{hit:.3f}" for f, hit in zip(FAN_OUTS, hits, strict=True)}
            law = f"{factor:.2f} F^-{r:.2f}"
            report.add({"": how, "outcomes": f"{name} ({len(part)})", **cells, "misses": law})
    return report


def compared(ours: Row, base: Row, price: float) -> dict[str, str]:
    """Hits and speed of `ours` over `base`, with 95 % intervals over prompts."""
    return {"hits": more_hits(ours, base), "speed": times_as_fast(ours, base, price)}


def main() -> None:
    parser = arguments(__doc__, rounds=1)
    parser.add_argument("--small", type=Path, required=True, help="the target")
    parser.add_argument("--draft", type=Path, required=True, help="the draft model")
    parser.add_argument("--how", type=names, default=list(HOW), help=f"of {', '.join(HOW)}")
    parser.add_argument("--nodes", type=numbers, default=[64, 128, 256, 512], help="of a pass's waits")
    parser.add_argument("--prompts", type=int, default=48)
    parser.add_argument(
        "--stories", action="store_true", help="long replies, instead of the domain's mixture"
    )
    args = parser.parse_args()
    store = Store(args.json or RESULTS / "hits.json")
    asked = (stories if args.stories else prompts)(args.small, args.prompts)
    named = {"drafter": "model", "draft_model": str(args.draft), "schedule": "ssd"}
    with edgespec.load(str(args.small), memory="2GB", **named) as engine:
        bench = Bench(engine, asked)
        for how in args.how:
            for nodes in args.nodes:
                for policy in POLICIES:
                    store.get(f"{how}/{policy}/{nodes}", bench.replies, how, policy, nodes)
    rows = store.rows
    report = curves({how: rows[f"{how}/{FIRST}/{max(args.nodes)}"] for how in args.how})
    print(report.markdown())
    report = Report(
        f"Policies at the same nodes a pass; {len(asked)} prompts, {OUTCOMES} outcomes of fixed ones"
    )
    for how in args.how:
        for nodes in args.nodes:
            bases = {name: rows[f"{how}/{name}/{nodes}"] for name in BASES}
            for policy in POLICIES:
                row = rows[f"{how}/{policy}/{nodes}"]
                hits, lookups, tokens, cycles, passes = columns(row, *COUNTED).sum(1).tolist()
                over = {
                    f"{what} over {name}": cell
                    for name, base in bases.items()
                    for what, cell in compared(row, base, PRICE).items()
                }
                report.add(
                    {
                        "": how,
                        "nodes": nodes,
                        "policy": policy,
                        "hits": f"{hits / lookups:.3f}",
                        "tokens a cycle": f"{tokens / cycles:.2f}",
                        "waited for": f"{passes / cycles:.1f}",
                        "speed": f"{tokens / (cycles + PRICE * passes):.2f}",
                        **over,
                    }
                )
    print(report.markdown())


if __name__ == "__main__":
    main()
