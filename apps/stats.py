"""How a reply's measurements are shown: one line, a table, or a JSON object."""

from __future__ import annotations

from dataclasses import asdict
from typing import TYPE_CHECKING, Any

from edgespec.offload.plan.ledger import PROGRAMS
from edgespec.response import Stats
from edgespec.values import count_of, format_bytes, format_seconds, two_digits

if TYPE_CHECKING:
    from edgespec.offload.plan.plan import Plan
    from edgespec.tuning.predict import Interval


def stats_line(stats: Stats, width: int | None = None) -> str:
    """Speed, tokens per cycle, drafts accepted, bytes per token, read rate, peak memory against the dial.

    width: cells of the terminal; what does not fit is left out, the least telling first (/stats has it all).
    """
    parts: list[tuple[int, str]] = []  # what matters more has the lower number
    models = _by_model(stats)
    timed = models and stats.reply_tokens > 1
    if timed:
        parts.append((0, f"{stats.tokens_per_second:.3g} tok/s"))
    if stats.cycles and models:
        parts.append((3, f"{stats.tokens_per_cycle:.3g} tok/cycle"))
    if stats.drafted:
        parts.append((2, f"{stats.accepted}/{stats.drafted} drafts accepted"))
    if timed:
        parts.append((4, f"{format_bytes(stats.bytes_per_token)}/tok"))
        parts.append((5, f"read {format_bytes(stats.read_gbps * 1e9)}/s"))
    parts.append((1, f"peak {_peak(stats)}"))
    if not stats.lossless:
        parts.append((0, _acceptance(stats)))
    if stats.unverified_tokens:
        parts.append((0, f"{count_of(stats.unverified_tokens, 'token')} not verified"))
    if stats.drafter_damaged:
        parts.append((0, "the drafter's weights are damaged: it drafts no more"))
    while width is not None and len(" · ".join(text for _, text in parts)) >= width:
        least = max(parts)
        if not least[0]:
            break
        parts.remove(least)
    return " · ".join(text for _, text in parts)


def _by_model(stats: Stats) -> bool:
    """What a drafter has said alone tells nothing of the model's speed."""
    return not stats.unverified_tokens or stats.unverified_tokens < stats.reply_tokens


def memory_line(stats: Stats, plan: Plan) -> str:
    """Planned beside measured memory."""
    return f"memory: planned {_planned(plan)} · measured peak {_peak(stats)}"


def stats_table(stats: Stats, plan: Plan | None, expected: Interval | None = None) -> str:
    """Everything measured about a reply, one figure a line; `expected`: tokens a second, before it. plan:
    None = it is a server's."""
    speed = f", {stats.tokens_per_second:.3g} tokens/s" + _expected(expected) if _by_model(stats) else ""
    rows = {
        "prompt": f"{stats.prompt_tokens} tokens, {stats.reused_tokens} of them kept from before, "
        f"in {format_seconds(stats.prefill_seconds)}",
        "reply": f"{stats.reply_tokens} tokens in {format_seconds(stats.decode_seconds)}{speed}",
        "cycles": f"{stats.cycles}, {stats.tokens_per_cycle:.3g} tokens each{_speedup(stats)}",
        "drafts": f"{stats.drafted} tokens verified, {stats.accepted} accepted ({_acceptance(stats)})"
        + (f"; paused: {stats.undrafted}" if stats.undrafted else ""),
        "read": f"{format_bytes(stats.bytes_read)}, {format_bytes(stats.bytes_per_token)}/token, "
        f"{format_bytes(stats.read_gbps * 1e9)}/s while decoding",
        "peak memory": _peak(stats) + (f", planned {_planned(plan)}" if plan is not None else ""),
    }
    return "\n".join(f"{name:<12} {value}" for name, value in rows.items())


def stats_object(
    stats: Stats, plan: dict[str, Any] | None, expected: Interval | None = None
) -> dict[str, Any]:
    """The `stats` of `--json`: seconds and bytes, beside the plan that was run (None: a server's) and the
    speed that was `expected`, with its 80 %."""
    return {
        "tokens_per_second": stats.tokens_per_second,
        "expected_tokens_per_second": None if expected is None else asdict(expected),
        "tokens_per_cycle": stats.tokens_per_cycle,
        "predicted_speedup": stats.predicted_speedup,
        "measured_speedup": stats.measured_speedup,
        "bytes_per_token": stats.bytes_per_token,
        "read_gbps": stats.read_gbps,
        "peak_memory": stats.peak_memory,
        "memory": stats.dial,
        "cycles": stats.cycles,
        "drafted": stats.drafted,
        "accepted": stats.accepted,
        "schedule": stats.schedule,
        "schedules": stats.schedules,
        "cache_hits": stats.cache_hits,
        "cache_misses": stats.cache_misses,
        "drafted_while_verifying": stats.drafted_while_verifying,
        "fallbacks": stats.fallbacks,
        "fallback_frequency": stats.fallback_frequency,
        "early_exit": asdict(stats.early_exit) | {"overlap_mass": stats.early_exit.overlap_mass},
        "acceptance": stats.acceptance,
        "lossless": stats.lossless,
        "drafter_damaged": stats.drafter_damaged,
        "undrafted": stats.undrafted,
        "prompt_tokens": stats.prompt_tokens,
        "reused_tokens": stats.reused_tokens,
        "reply_tokens": stats.reply_tokens,
        "unverified_tokens": stats.unverified_tokens,
        "prefill_seconds": stats.prefill_seconds,
        "decode_seconds": stats.decode_seconds,
        "bytes_read": stats.bytes_read,
        "plan": plan,
    }


def _expected(expected: Interval | None) -> str:
    if expected is None:
        return ""
    low, middle, high = map(two_digits, (expected.low, expected.middle, expected.high))
    return f"; {middle} were expected ({low}-{high})"


def _speedup(stats: Stats) -> str:
    if stats.predicted_speedup is None or stats.measured_speedup is None:
        return ""
    return f"; {stats.measured_speedup:.3g} × plain decoding, predicted {stats.predicted_speedup:.3g}"


def _acceptance(stats: Stats) -> str:
    return stats.acceptance if stats.lossless else f"{stats.acceptance}, not the model's exact output"


def _planned(plan: Plan) -> str:
    """Named apart: page cache, which is not in the process, but in a container's peak; and headroom, which is
    for what no plan foresees: a peak that is as planned has none of it."""
    ledger = plan.ledger
    cache = ledger.owners.get(PROGRAMS, 0)
    beside = f" + {format_bytes(cache)} of {PROGRAMS}" if cache else ""
    return f"{format_bytes(ledger.planned - cache)}{beside} + {format_bytes(ledger.headroom)} of headroom"


def _peak(stats: Stats) -> str:
    peak = format_bytes(stats.peak_memory)
    return f"{peak} of {format_bytes(stats.dial)}" if stats.dial else peak
