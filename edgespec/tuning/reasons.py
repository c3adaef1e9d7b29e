"""Why a setting is recommended, in words."""

from __future__ import annotations

from collections.abc import Sequence

from edgespec.tuning.predict import Setting
from edgespec.tuning.result import Row
from edgespec.values import format_bytes, format_seconds

WORTH = 1.02  # times as fast: less is not worth a word


def reasons_for(setting: Setting, rows: Sequence[Row]) -> tuple[str, ...]:
    """The dial, what a pass waits for, the drafter, the tree, the schedule, what one more GB would buy."""
    row = next(row for row in rows if row.dial == setting.dial)
    assert row.plain is not None
    found = [*_bound(setting), *_drafting(setting, row.plain, row.best or setting)]
    larger = [other for other in rows if other.dial > setting.dial and other.best is not None]
    if larger:
        best = max(other.best.speed.middle for other in larger if other.best is not None)
        more = best / setting.speed.middle
        found.append(
            f"larger dials give at most {more - 1:.0%} more" if more > WORTH else "larger dials give no more"
        )
    elif row.more is not None and row.more > WORTH:
        found.append(f"1 GB more would give {row.more - 1:.0%} more")
    return tuple(found)


def _bound(setting: Setting) -> list[str]:
    plan = setting.plan
    costs = setting.costs
    if not setting.streams:
        return ["the whole model fits: nothing is read from flash, and memory's rate is the limit"]
    computing = costs.working(setting.tree_nodes)
    said = (
        f"a pass reads {format_bytes(plan.bytes_per_pass)} in {format_seconds(costs.io)} and computes "
        f"{format_seconds(computing)}"
    )
    if setting.bound == "flash":
        return [f"flash-bound: {said}; every pinned byte saves time, and more rows a pass cost none"]
    return [f"compute-bound: {said}"]


def _drafting(setting: Setting, plain: Setting, best: Setting) -> list[str]:
    if setting.drafter == "none" == best.drafter:
        return ["drafts would cost more than they give"]
    if setting.drafter == "none":
        faster = best.speed.middle / plain.speed.middle
        return [f"{best.drafter} under {best.schedule} should be {faster:.1f} times as fast"]
    times = setting.speed.middle / plain.speed.middle
    if times < WORTH and plain.speed.middle > setting.speed.middle / WORTH:
        return [f"{setting.drafter}, as was asked for, should be no faster than plain decoding"]
    found = [
        f"{setting.drafter} should make {setting.tokens_per_cycle:.1f} tokens a cycle: {times:.1f} times as "
        "fast as plain decoding"
    ]
    if setting.bound == "flash":
        found.append(f"trees of {setting.tree_nodes} nodes are verified while the pass reads")
    else:
        found.append(f"trees of {setting.tree_nodes} nodes should give most of those that are allowed")
    found[-1] += "; the controller finds their size as it runs"
    if setting.depth:
        why = "quicker than the deepest with room" if setting.set_ else "the deepest with room"
        found.append(f"the cascade's verifier lies behind layer {setting.depth}, {why}")
    if setting.schedule == "ssd" and setting.streams and times > WORTH:
        found.append("ssd drafts in the waits of a pass what else would follow it")
    return found
