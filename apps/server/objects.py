"""Replies to chats and texts as OpenAI's objects."""

from __future__ import annotations

import secrets
from collections.abc import Iterator
from dataclasses import dataclass, field
from time import time
from typing import Any, ClassVar

from edgespec import __version__
from edgespec.apps.server.problems import Problem
from edgespec.response import Response, Stats


@dataclass(frozen=True)
class Shape:
    """See `stream.ReplyShape`. What one reply's objects have in common. chat: a message's, else a text's.
    usage: told at the end of a stream, too."""

    model: str
    chat: bool
    usage: bool = False
    created: int = field(default_factory=lambda: int(time()))
    id: str = ""
    done: ClassVar[bytes | None] = b"data: [DONE]"

    def __post_init__(self) -> None:
        object.__setattr__(self, "id", f"{'chatcmpl' if self.chat else 'cmpl'}-{secrets.token_hex(12)}")

    def whole(self, reply: Response) -> dict[str, Any]:
        message = {"role": "assistant", "content": reply.text, "refusal": None}
        said = {"message": message} if self.chat else {"text": reply.text}
        choice = {"index": 0, **said, "logprobs": None, "finish_reason": reply.finish_reason}
        kind = "chat.completion" if self.chat else "text_completion"
        return self._object(kind, [choice]) | {"usage": usage(reply.stats), "timings": timings(reply.stats)}

    def begin(self) -> Iterator[dict[str, Any]]:
        if self.chat:
            yield self._piece({"role": "assistant", "content": ""}, None)

    def said(self, said: Response) -> Iterator[dict[str, Any]]:
        reason = None if said.finish_reason == "cancelled" else said.finish_reason
        if said.text or said.finish_reason:
            content = {"content": said.text} if said.text else {}
            found = self._piece(content if self.chat else said.text, reason)
            yield found if reason is None else found | {"timings": timings(said.stats)}
        if reason and self.usage:
            yield self._object(self._kind, []) | {"usage": usage(said.stats)}

    def broken(self, problem: Problem) -> dict[str, Any]:
        return problem.body

    @property
    def _kind(self) -> str:
        return "chat.completion.chunk" if self.chat else "text_completion"

    def _piece(self, said: Any, reason: str | None) -> dict[str, Any]:
        choice = {
            "index": 0,
            "delta" if self.chat else "text": said,
            "logprobs": None,
            "finish_reason": reason,
        }
        return self._object(self._kind, [choice])

    def _object(self, kind: str, choices: list[dict[str, Any]]) -> dict[str, Any]:
        return {
            "id": self.id,
            "object": kind,
            "created": self.created,
            "model": self.model,
            "system_fingerprint": f"edgespec-{__version__}",
            "choices": choices,
        }


def usage(stats: Stats) -> dict[str, Any]:
    return {
        "prompt_tokens": stats.prompt_tokens,
        "completion_tokens": stats.reply_tokens,
        "total_tokens": stats.prompt_tokens + stats.reply_tokens,
        "prompt_tokens_details": {"cached_tokens": stats.reused_tokens},
    }


def timings(stats: Stats) -> dict[str, Any]:
    """Named as llama.cpp's, where it has them: counts of tokens, milliseconds, drafts."""
    fresh = stats.prompt_tokens - stats.reused_tokens
    return {
        "cache_n": stats.reused_tokens,
        "prompt_n": fresh,
        "prompt_ms": stats.prefill_seconds * 1000,
        "prompt_per_second": fresh / stats.prefill_seconds if stats.prefill_seconds else 0.0,
        "predicted_n": stats.reply_tokens,
        "predicted_ms": stats.decode_seconds * 1000,
        "predicted_per_second": stats.tokens_per_second,
        "draft_n": stats.drafted,
        "draft_n_accepted": stats.accepted,
        "cycles": stats.cycles,
        "tokens_per_cycle": stats.tokens_per_cycle,
        "bytes_read": stats.bytes_read,
        "decode_bytes_read": stats.decode_bytes_read,
        "read_gbps": stats.read_gbps,
        "peak_memory": stats.peak_memory,
        "memory": stats.dial,
    }
