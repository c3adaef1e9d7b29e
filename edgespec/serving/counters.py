"""What a scheduler has done so far, and is doing."""

from __future__ import annotations

from collections import Counter
from dataclasses import dataclass, field


@dataclass
class Counters:
    """Since it was started. Written by the scheduler's thread alone."""

    replies: Counter[str] = field(default_factory=Counter)  # by why they ended; "error" among them
    refused: int = 0  # as the queue was full
    prompt_tokens: int = 0
    reused_tokens: int = 0  # of these, that were computed before
    reply_tokens: int = 0
    cycles: int = 0  # of replies: passes in which they got tokens
    drafted: int = 0
    accepted: int = 0
    passes: int = 0  # of the target, whoever shares them
    pass_seconds: float = 0.0
    reply_seconds: float = 0.0  # of all replies, from the first pass to the last


@dataclass(frozen=True)
class Occupancy:
    """At this moment."""

    waiting: int  # requests
    replying: int
    kept: int  # sessions between replies
    most: int  # replies at once
    positions: int  # of KV memory, that sessions hold,
    most_positions: int  # and may hold together
