"""What whole replies should gain by the laws of SSD and Mirror-SD, from what was measured of their cycles."""

from __future__ import annotations

import statistics
from contextlib import suppress
from itertools import pairwise

import numpy as np

from benchmarks.common import Row
from benchmarks.tables import ratio
from edgespec.control.overlap import (
    NOTHING,
    Drafted,
    best_fallback,
    critical_batch,
    hit_rate,
    serial_speedup,
    speedup,
    speedup_bounds,
)


def hidden(cycles: list[Row], first: list[Row], plain: list[Row]) -> tuple[str, str]:
    """Of a cycle after a hit, its seconds by those of its pass alone: the median. "" where nothing hit.

    Alone are the first arm's passes, and plain decoding's, with lines between their numbers of nodes. Theirs
    begin with what flash has read ahead while somebody drafted, a ring at most, and a hit's do not: so the
    second figure is by passes that have all to read, as flash reads in plain ones. (Where arithmetic bounds
    passes, what was read ahead shortens none, and the first figure is the one.)"""
    hits = [cycle for cycle in cycles if cycle.get("hit")]
    if not hits:
        return "", ""
    alone = [cycle for row in (*first, *plain) for cycle in cycles_of(row) if not cycle.get("hit")]
    counts = sorted({cycle["nodes"] for cycle in alone})
    found = []
    for ring in (0.0, ring_seconds(first, plain)):
        took = [
            statistics.median(c["verify"] + min(c["draft"], ring) for c in alone if c["nodes"] == count)
            for count in counts
        ]
        each = [(c["draft"] + c["verify"]) / float(np.interp(c["nodes"], counts, took)) for c in hits]
        found.append(f"{statistics.median(each):.2f}")
    return found[0], found[1]


def ring_seconds(rounds: list[Row], plain: list[Row]) -> float:
    """What flash takes to fill the ring, as fast as in plain decoding's passes; 0 where nothing streams."""
    plan = rounds[0]["plan"] if rounds else {}
    if not plan.get("bytes_per_pass"):
        return 0.0
    passes = statistics.median(map(pass_seconds, plain))
    return float(passes * plan["owners"]["ring"] / plan["bytes_per_pass"])


def theory(rounds: list[Row], first: list[Row]) -> Row:
    """Beside the first arm: the measured gain, and what it should be by the hits of these replies."""
    gain = ratio([rate(row["replies"]) for row in rounds], [rate(row["replies"]) for row in first])
    found = dict.fromkeys(("× first arm", "Equation 10", "Equation 1", "Corollary 9", "after a miss"), "")
    found |= {"× first arm": gain, "Equation 10": equation_10(rounds)}
    looked_up = [
        [c for c in r["cycles"] if c.get("hit") is not None] for row in rounds for r in row["replies"]
    ]
    cycles = [cycle for reply in looked_up for cycle in reply]
    hits, misses = ([cycle for cycle in cycles if cycle["hit"] is hit] for hit in (True, False))
    if not (hits and misses):
        return found
    once = statistics.median(map(pass_seconds, first))
    share, late = len(hits) / len(cycles), drafted(misses, once)
    primary = Drafted(drafted(hits, once).tokens, 0.0)  # drafted within a pass
    pairs = [(a["hit"], b["hit"]) for reply in looked_up for a, b in pairwise(reply)]
    after = [[then for before, then in pairs if before is hit] for hit in (True, False)]
    with suppress(ValueError):  # without pairs, or where a hit follows every hit and no miss
        found["Equation 1"] = f"{hit_rate(*map(statistics.fmean, after)):.0%}"
    alone = drafted([cycle for row in first for cycle in cycles_of(row)], once)
    least, most = speedup_bounds(share, primary, alone)
    found["Corollary 9"] = f"{least:.2f}–{most:.2f}"
    name = best_fallback(share, primary, {"the drafter": late}) or "nobody"
    late_too = Drafted(primary.tokens, late.seconds)
    found["after a miss"] = f"{name}, to a batch of {critical_batch(share, late_too, NOTHING):.1f}"
    return found


def equation_10(rounds: list[Row]) -> str:
    """Seconds of the cycles of schedule mirror, by Mirror-SD's latency law / measured; "" without them."""
    exits = [reply["exit"] for row in rounds for reply in row["replies"] if "exit" in reply]
    law, took = (sum(exit[key] for exit in exits) for key in ("law_seconds", "measured_seconds"))
    return f"{law / took:.2f}" if took else ""


def theorem_7(row: Row, first: Row) -> float:
    """Tokens/s that a round should make, if a pass took what the first arm's takes: SSD's Theorem 7 by the
    measured hits, or E / (1 + T) (its Corollary 9) where nothing was looked up."""
    cycles, once = cycles_of(row), pass_seconds(first)
    asked = [cycle for cycle in cycles if cycle.get("hit") is not None]
    hits, misses = ([cycle for cycle in asked if cycle["hit"] is hit] for hit in (True, False))
    if not asked:
        return serial_speedup(drafted(cycles, once)) / once
    primary = Drafted(drafted(hits, once).tokens, 0.0)  # drafted within a pass
    return speedup(len(hits) / len(asked), primary, drafted(misses, once)) / once


def drafted(cycles: list[Row], once: float) -> Drafted:
    """Tokens and drafting of a mean cycle, in passes of so many seconds."""
    if not cycles:
        return NOTHING
    tokens, seconds = (statistics.fmean(cycle[key] for cycle in cycles) for key in ("tokens", "draft"))
    return Drafted(max(tokens, 1.0), seconds / once)


def promised(row: Row, plain: Row) -> float:
    """Tokens/s of a round whose cycles were plain passes: T x plain / cycle."""
    cycles = sum(len(reply["cycles"]) for reply in row["replies"])
    return sum(map(made, row["replies"])) / cycles / pass_seconds(plain)


def cycles_of(row: Row) -> list[Row]:
    """Of a round's replies, or of plain decoding."""
    found: list[Row] = row["cycles"] if "cycles" in row else [c for r in row["replies"] for c in r["cycles"]]
    return found


def pass_seconds(row: Row) -> float:
    """The median of a round."""
    return float(statistics.median(cycle["verify"] for cycle in cycles_of(row)))


def made(reply: Row) -> int:
    """Tokens behind the first, which the prompt's pass gives."""
    return len(reply["tokens"]) - 1


def rate(replies: list[Row]) -> float:
    """Tokens a second of decoding."""
    return sum(map(made, replies)) / sum(c["seconds"] for r in replies for c in r["cycles"])
