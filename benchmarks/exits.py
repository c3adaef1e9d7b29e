"""What does the target's early exit give schedule mirror, by kappa, by its layer, and with a trained adapter?

    python -m benchmarks.exits --small edgespec/demo_model --drafts models/demo-draft-run/model \\
        --adapters edgespec/demo_model/cascade

By what the exit does not name (1 - Omega, Equation 9) Mirror-SD has fewer fallbacks (the outcome was not
prepared for) for more names, its Proposition 1, and for a later exit, Proposition 2; but a later exit leaves
less of the pass to draft in. A pass's waits are a number of nodes here (`waiting.py`), of which those of the
layers before the exit are drafted without it; what the exit takes is free. Greedy. `speed` is in tokens a
target's pass, where a pass of drafting that had to be waited for takes --price of one. 95 % intervals are by
the choice of prompts, and paired beside others: hits beside the same draft's under ssd, speed beside the
first draft's under serial.
"""

from __future__ import annotations

from collections.abc import Sequence
from contextlib import ExitStack, closing
from pathlib import Path
from typing import NamedTuple

import numpy as np

import edgespec
from benchmarks.common import Row, arguments, names, numbers, paths
from benchmarks.held_out import stories
from benchmarks.tables import RESULTS, Report, Store
from benchmarks.waiting import (
    NODES,
    PRICE,
    Exiting,
    Waiting,
    columns,
    hit_share,
    more_hits,
    reply,
    speed,
    times_as_fast,
    with_interval,
)
from edgespec.control.fixed import Fixed
from edgespec.drafters.base import Drafter, shared_prefix
from edgespec.drafters.cascade.early import find
from edgespec.runtimes.base import KVCache
from edgespec.runtimes.formats.describe import describe_model
from edgespec.runtimes.formats.trained import trained_kind
from edgespec.schedules.exits import BareExit
from edgespec.schedules.serial import Serial


class Exit(NamedTuple):
    """Layers before it, kappa, and whose adapter lies before its head."""

    layers: int
    kappa: int
    adapters: Path | None


def replies(
    small: Path,
    draft: Path,
    asked: Sequence[list[int]],
    waits: int,
    passes: int,
    schedule: str,
    exit: Exit | None = None,
) -> Row:
    """Of all prompts, with a draft model or what was trained for it. waits: nodes; exit: mirror's."""
    kind = trained_kind(draft)
    named = {"drafter": kind, "adapters": draft} if kind else {"drafter": "model", "draft_model": draft}
    with ExitStack() as stack:
        engine = stack.enter_context(edgespec.load(small, memory="2GB", schedule="ssd", **named))

        def make(seat: KVCache, drafter: Drafter, fixed: Fixed) -> Serial:
            if exit is not None:
                mine = exits.exit(seat), exit.kappa
                return Exiting(waits, engine.config.layers, drafter, fixed, NODES, *mine)
            return Serial(drafter, fixed, NODES) if schedule == "serial" else Waiting(waits, drafter, fixed)

        if exit is not None:
            depth, files = exit.layers, engine.files
            found = find(exit.adapters, files, depth) if exit.adapters else BareExit(files, depth)
            exits = stack.enter_context(closing(found.open(engine.target, lambda nbytes: None)))
        return {"replies": [reply(engine, tokens, make, passes)[0] for tokens in asked]}


def cells(row: Row, ssd: Row, serial: Row, price: float) -> Row:
    """Of one way to draft."""
    count = len(row["replies"])
    total = {key: int(columns(row, key).sum()) for key in row["replies"][0] if key != "said"}
    found: Row = dict.fromkeys(("lookups", "fallbacks", "more hits than ssd", "found"), "")
    if total["lookups"]:
        fallbacks = with_interval(lambda drawn: 1 - hit_share(row, drawn), count, "{:.3f}")
        found |= {"lookups": total["lookups"], "fallbacks": fallbacks}
        found["found"] = f"{total['found'] / total['hits']:.1f}"
        if row is not ssd:
            found["more hits than ssd"] = more_hits(row, ssd)
    return {
        "Omega": f"{total['named'] / total['asked']:.3f}" if total["asked"] else "",
        **found,
        "tokens a cycle": f"{total['tokens'] / total['cycles']:.2f}",
        "waited for": f"{total['passes'] / total['cycles']:.1f}",
        "speed": f"{float(speed(row, price, np.arange(count))):.2f}",
        "× serial": "" if row is serial else times_as_fast(row, serial, price),
    }


def told(schedule: str, exit: Exit | None) -> str:
    """A way to draft, in the results file."""
    if exit is None:
        return schedule
    whose = "adapter" if exit.adapters else "head"
    return f"{schedule}, {whose} behind {exit.layers}, {exit.kappa}"


def alike(row: Row, base: Row) -> bool:
    """They say the same, as far as both go: the last cycle of a reply may be longer."""
    for one, other in zip(row["replies"], base["replies"], strict=True):
        if shared_prefix(one["said"], other["said"]) < min(one["tokens"], other["tokens"]):
            return False
    return True


def main() -> None:
    parser = arguments(__doc__, rounds=1)
    parser.add_argument("--small", type=Path, required=True, help="the target")
    parser.add_argument(
        "--drafts", type=paths, required=True, help="draft models, or what was trained for it"
    )
    parser.add_argument("--adapters", type=Path, help="what `train cascade` left: exits by these, too")
    parser.add_argument("--kappas", type=numbers, default=[1, 2, 4, 8, 16, 32])
    parser.add_argument("--layers", type=numbers, help="before the exit; default: 1, 3, ...")
    parser.add_argument("--trained", type=numbers, default=[2, 3, 5, 7], help="the same of adapters")
    parser.add_argument("--kinds", type=names, default=["head", "adapter"], help="of exits")
    parser.add_argument("--nodes", type=int, default=384, help="of a pass's waits")
    parser.add_argument("--passes", type=int, default=12, help="of drafting in a cycle, prepared or not")
    parser.add_argument("--price", type=float, default=PRICE)
    parser.add_argument("--prompts", type=int, default=24)
    args = parser.parse_args()
    store, asked = Store(args.json or RESULTS / "exits.json"), stories(args.small, args.prompts)
    layers = describe_model(args.small).config.layers
    ways: list[tuple[str, Exit | None]] = [("serial", None), ("ssd", None)]
    for kind in args.kinds:
        depths = args.trained if kind == "adapter" else args.layers or list(range(1, layers, 2))
        if kind == "adapter" and args.adapters is None:
            continue
        middle = min(depths, key=lambda depth: abs(2 * depth - layers))
        whose = args.adapters if kind == "adapter" else None
        ways += [("mirror", Exit(middle, kappa, whose)) for kappa in args.kappas]
        ways += [("mirror", Exit(depth, 8, whose)) for depth in depths if depth != middle]
    rows = {
        (draft, *way): store.need(
            f"{draft.name}, {args.passes} passes beside {args.nodes} nodes/{told(*way)}",
            replies,
            args.small,
            draft,
            asked,
            args.nodes,
            args.passes,
            *way,
        )
        for draft in args.drafts
        for way in ways
    }
    serial = next(iter(rows.values()))
    report = Report(f"{args.small.name}: {args.nodes} nodes a pass, {len(asked)} stories")
    for (draft, schedule, exit), row in rows.items():
        depth, kappa, adapters = exit or ("", "", None)
        own = {"draft": draft.name, "schedule": schedule, "exit behind layer": depth, "kappa": kappa}
        own["adapter"] = "yes" if adapters else ""
        ssd = rows[(draft, "ssd", None)]
        same = "yes" if alike(row, serial) else "**no**"
        report.add({**own, **cells(row, ssd, serial, args.price), "same text": same})
    report.finish(store.table)


if __name__ == "__main__":
    main()
