"""What a scheduler and its engine have done, or who drafts for targets elsewhere, as Prometheus reads it."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping

from edgespec.devices.probe import peak_memory
from edgespec.drafters.remote.host import DraftHost
from edgespec.serving.scheduler import Scheduler
from edgespec.split.host import Host

TYPE = "text/plain; version=0.0.4; charset=utf-8"


def metrics(scheduler: Scheduler) -> str:
    return "".join(_lines(scheduler))


def draft_metrics(host: DraftHost) -> str:
    counters = host.counters
    return "".join(_values([
        ("conversations_total", "counter", "Conversations of targets elsewhere.", counters.conversations),
        ("conversations_refused_total", "counter", "Of these there was no room for.", counters.refused),
        ("draft_rounds_total", "counter", "Rounds of drafting that were asked for.", counters.rounds),
        ("drafted_tokens_total", "counter", "Tokens that were drafted in them.", counters.nodes),
        ("draft_rounds_ahead_total", "counter", "Rounds while targets verify.", counters.rounds_ahead),
        ("drafted_ahead_total", "counter", "Tokens that were drafted in them.", counters.nodes_ahead),
        ("draft_seconds_total", "counter", "Seconds that rounds took.", counters.seconds),
        ("peak_memory_bytes", "gauge", "The most memory that was used.", peak_memory()),
        ("conversations", "gauge", "Conversations that are open.", host.taken),
        ("conversations_at_once", "gauge", "Conversations that there is memory for.", host.seats),
    ]))  # fmt: skip


def _lines(scheduler: Scheduler) -> Iterator[str]:
    counters, state, engine = scheduler.counters, scheduler.state, scheduler.engine
    replies = {"stop": 0, "length": 0, "cancelled": 0, "error": 0} | dict(counters.replies)
    yield from _by_reason("replies_total", "Replies by why they ended.", replies)
    host = scheduler.visitors.tenant
    if isinstance(host, Host):  # else no client that drafts has come yet
        words = "Connections of clients that the server has ended, by why."
        yield from _by_reason("clients_refused_total", words, host.refusals)
        yield from _values([
            ("conversations", "gauge", "Conversations of these that are known.", len(host.guests)),
            ("conversation_positions", "gauge", "KV positions that they hold.", host.held),
            ("conversations_dropped_total", "counter", "Whose memory went to others.", host.guests.dropped),
            ("vector_bytes_total", "counter", "Bytes sent for drafters to attend to.", host.vector_bytes),
        ])  # fmt: skip
    passes, seconds, cycles = counters.passes, counters.pass_seconds, counters.cycles
    tokens, read = counters.reply_tokens, engine.bytes_read
    yield from _values([
        ("requests_refused_total", "counter", "Requests refused as the queue was full.", counters.refused),
        ("prompt_tokens_total", "counter", "Tokens of prompts.", counters.prompt_tokens),
        ("prompt_tokens_reused_total", "counter", "Of these, not computed again.", counters.reused_tokens),
        ("tokens_total", "counter", "Tokens of replies.", tokens),
        ("cycles_total", "counter", "Cycles of replies.", cycles),
        ("drafted_tokens_total", "counter", "Drafted tokens that were verified.", counters.drafted),
        ("accepted_tokens_total", "counter", "Of these, accepted.", counters.accepted),
        ("passes_total", "counter", "Passes of the target, whoever shared them.", passes),
        ("pass_seconds_total", "counter", "Seconds that they took.", seconds),
        ("bytes_read_total", "counter", "Bytes of weights read from the disk.", read),
        ("tokens_per_cycle", "gauge", "Tokens of a reply in each of its cycles.", _rate(tokens, cycles)),
        ("tokens_per_pass", "gauge", "Tokens of all replies in each pass.", _rate(tokens, passes)),
        ("read_gbps", "gauge", "GB read from the disk in a second of passes.", _rate(read / 1e9, seconds)),
        ("peak_memory_bytes", "gauge", "The most memory that was used.", engine.peak_memory()),
        ("memory_bytes", "gauge", "The dial: memory that may be used.", engine.dial),
        ("rounds_total", "counter", "Rounds of clients that draft themselves.", scheduler.visitors.rounds),
        ("queue_requests", "gauge", "Requests that wait.", state.waiting),
        ("replying", "gauge", "Replies under way.", state.replying),
        ("replies_at_once", "gauge", "Replies that may be under way.", state.most),
        ("sessions_kept", "gauge", "Sessions kept for their next prompts.", state.kept),
        ("kv_positions_held", "gauge", "KV positions that sessions hold.", state.positions),
        ("kv_positions", "gauge", "KV positions that there are.", state.most_positions),
    ])  # fmt: skip


def _by_reason(name: str, words: str, counts: Mapping[str, int]) -> Iterator[str]:
    yield _head(name, "counter", words)
    for reason, count in counts.items():
        yield f'edgespec_{name}{{reason="{reason}"}} {count}\n'


def _values(rows: Iterable[tuple[str, str, str, float]]) -> Iterator[str]:
    """Of names, kinds, words and values."""
    for name, kind, words, value in rows:
        yield f"{_head(name, kind, words)}edgespec_{name} {value:.10g}\n"


def _rate(count: float, per: float) -> float:
    return count / per if per else 0.0


def _head(name: str, kind: str, words: str) -> str:
    return f"# HELP edgespec_{name} {words}\n# TYPE edgespec_{name} {kind}\n"
