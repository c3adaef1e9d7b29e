"""How often was an outcome not prepared for under schedule mirror, by kappa and by the exit's layer?

    python -m benchmarks.exits --small edgespec/demo_model --draft models/demo-draft-run/model

Mirror-SD's Proposition 2 bounds the fallbacks by what the exit does not name (1 - Omega, Equation 9): fewer
for more names, and for a later exit; but a later exit leaves less of the pass to draft in. Half of the
target's layers stream, on a disk throttled so that a pass waits for its drafts; its head, which the exit
needs, is in memory. Fixed trees, greedy, held-out stories. 95 % intervals are by the choice of prompts.
"""

from __future__ import annotations

from collections.abc import Sequence
from functools import partial
from itertools import chain
from pathlib import Path

import numpy as np

import edgespec
from benchmarks.cgroup import THROTTLE_HELP, require_throttle, throttled
from benchmarks.common import Row, arguments, numbers
from benchmarks.held_out import stories
from benchmarks.tables import RESULTS, Report, Store, interval
from edgespec.config import GenerationOptions
from edgespec.control.fixed import Fixed
from edgespec.core.schedule import TreeBudget
from edgespec.response import whole
from edgespec.runtimes.formats.describe import describe_model
from edgespec.values import format_bytes, parse_bytes

TOKENS = 96  # of a reply, at most
BUDGET = TreeBudget(32, 8, 8)  # nodes, depth, passes
TOLD = GenerationOptions(max_tokens=TOKENS)


def replies(small: Path, asked: Sequence[list[int]], **named: object) -> Row:
    """Each reply's tokens, and counts of its lookups. Raises RuntimeError where the exit says nothing."""
    said, counts = list[list[int]](), list[dict[str, int]]()
    with edgespec.load(small, memory="2GB", **named) as engine:
        table = engine.plan.table
        engine.target.weights.pin([chunk.index for chunk in table.chunks if chunk.layer == table.layers])
        for prompt in asked:
            controller = None if named["drafter"] == "none" else Fixed(BUDGET)
            with engine.new_session(len(prompt) + TOKENS + BUDGET.nodes, controller) as session:
                reply = whole(session.generate(prompt, TOLD))
            stats, exit = reply.stats, reply.stats.early_exit
            said.append(reply.tokens)
            found = {"hits": stats.cache_hits, "misses": stats.cache_misses, "cycles": stats.cycles}
            found |= {"nodes": stats.drafted_while_verifying, "asked": exit.tokens, "named": exit.found}
            counts.append(found)
    if named.get("schedule") == "mirror" and not any(count["asked"] for count in counts):
        raise RuntimeError(reply.stats.undrafted or "the exit was never asked")
    return {"said": said, "counts": counts}


def cells(counts: Sequence[dict[str, int]]) -> Row:
    by_prompt = {key: np.array([count[key] for count in counts]) for key in counts[0]}
    total = {key: int(numbers.sum()) for key, numbers in by_prompt.items()}
    misses, lookups = by_prompt["misses"], by_prompt["hits"] + by_prompt["misses"]
    low, high = interval(len(counts), lambda drawn: misses[drawn].sum(-1) / lookups[drawn].sum(-1))
    return {
        "lookups": int(lookups.sum()),
        "fallbacks": f"{total['misses'] / lookups.sum():.3f} ({low:.3f}–{high:.3f})",
        "Omega": f"{total['named'] / total['asked']:.3f}" if total["asked"] else "",
        "nodes prepared a cycle": f"{total['nodes'] / total['cycles']:.0f}",
    }


def main() -> None:
    parser = arguments(__doc__, rounds=1)
    parser.add_argument("--small", type=Path, required=True, help="the target")
    parser.add_argument("--draft", type=Path, required=True, help="the draft model")
    parser.add_argument("--kappas", type=numbers, default=[1, 2, 4, 8, 16, 32])
    parser.add_argument("--layers", type=numbers, default=[], help="before the exit; default: 1, 3, ...")
    parser.add_argument("--prompts", type=int, default=10)
    parser.add_argument("--throttle", type=parse_bytes, default=parse_bytes("0.15GB"), help=THROTTLE_HELP)
    args = parser.parse_args()
    require_throttle(args.small)
    store, asked = Store(args.json or RESULTS / "exits.json"), stories(args.small, args.prompts)
    layers = describe_model(args.small).config.layers
    exits = [(layer, 8) for layer in args.layers or range(1, layers, 2)]
    half = {"resident_layers": layers // 2}
    drafting = {"drafter": "model", "draft_model": str(args.draft), **half}
    with throttled(args.small, args.throttle):
        plain = store.get("plain", partial(replies, args.small, asked, drafter="none", **half))
        store.get("ssd", partial(replies, args.small, asked, schedule="ssd", **drafting))
        for layer, kappa in chain(((layers // 2, kappa) for kappa in args.kappas), exits):
            named = {"schedule": "mirror", "exit_layer": layer, "kappa": kappa, **drafting}
            store.get(f"mirror {layer} {kappa}", partial(replies, args.small, asked, **named))
    report = Report(f"Fallbacks of mirror, {args.small.name}, disk {format_bytes(args.throttle)}/s")
    for name, row in store.rows.items():
        schedule, *way = name.split()
        if schedule in ("ssd", "mirror") and "counts" in row:
            own = dict(zip(("exit behind layer", "kappa"), way or ("", ""), strict=True))
            same = "yes" if row["said"] == plain["said"] else "**no**"
            report.add({"schedule": schedule, **own, **cells(row["counts"]), "same text": same})
    report.finish(store.table)


if __name__ == "__main__":
    main()
