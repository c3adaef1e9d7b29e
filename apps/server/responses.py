"""OpenAI's Responses API: its requests as chats, and replies as its objects and events.

Nothing is kept: a conversation's next request has all of it as `input`, what was replied among it.
"""

from __future__ import annotations

import secrets
from collections.abc import Iterator
from dataclasses import dataclass, field
from time import time
from typing import Annotated, Any, ClassVar, Literal

from msgspec import UNSET, Meta, Raw, Struct

from edgespec.apps.server.fields import (
    MOST_MESSAGES,
    NULL,
    ChatMessage,
    ChatRequest,
    ContentPart,
    ReplyRequest,
    Text,
    unpacked,
)
from edgespec.apps.server.objects import timings
from edgespec.apps.server.prepare import PreparedPrompt
from edgespec.apps.server.problems import Problem
from edgespec.response import Response, Stats

TEXTS = ("input_text", "output_text", "text")  # parts of messages: from the user, of a reply, in short


class InputItem(Struct, forbid_unknown_fields=True):
    """A message, or as a reply of ours has it."""

    type: Annotated[str, Meta(max_length=100)] = "message"
    role: Literal["system", "developer", "user", "assistant"] | None = None
    content: Text | Annotated[list[ContentPart], Meta(max_length=MOST_MESSAGES)] | None = None
    id: Raw = NULL
    status: Raw = NULL
    phase: Raw = NULL


class ResponsesRequest(ReplyRequest, forbid_unknown_fields=True, kw_only=True):
    input: Text | Annotated[list[InputItem], Meta(min_length=1, max_length=MOST_MESSAGES)]
    instructions: Text | None = None
    max_output_tokens: Annotated[int, Meta(ge=1, le=2**63 - 1)] | None = None
    tools: list[Raw] | None = None
    previous_response_id: Annotated[str, Meta(max_length=1000)] | None = None
    # See `fields.NEUTRAL`:
    tool_choice: Raw = NULL
    parallel_tool_calls: Raw = NULL
    max_tool_calls: Raw = NULL
    top_logprobs: Raw = NULL
    background: Raw = NULL
    conversation: Raw = NULL
    include: Raw = NULL
    reasoning: Raw = NULL
    text: Raw = NULL
    truncation: Raw = NULL


def chat_of(asked: ResponsesRequest) -> ChatRequest:
    """The same request as a chat's. Raises Problem."""
    if asked.previous_response_id is not None or unpacked(asked.store, object, "store") is True:
        name = "store" if asked.previous_response_id is None else "previous_response_id"
        raise Problem(400, f"{name}: replies are not kept here; send the whole conversation as input", name)
    if asked.tools:
        raise Problem(400, "tools are not supported here; /v1/chat/completions takes them", "tools")
    if asked.max_tokens is not None:
        raise Problem(400, "max_tokens is called max_output_tokens here", "max_tokens")
    items = [InputItem(role="user", content=asked.input)] if isinstance(asked.input, str) else asked.input
    messages = [_message_of(item, place) for place, item in enumerate(items)]
    if asked.instructions is not None:
        messages.insert(0, ChatMessage(role="system", content=asked.instructions))
    shared = {name: getattr(asked, name) for name in ReplyRequest.__struct_fields__}
    return ChatRequest(messages=messages, max_completion_tokens=asked.max_output_tokens, **shared)


def _message_of(item: InputItem, place: int) -> ChatMessage:
    if item.type != "message":
        fact = f"an item of type {item.type!r} is not supported; messages are"
        raise Problem(400, fact, f"input[{place}].type")
    if item.role is None or item.content is None:
        missing = "role" if item.role is None else "content"
        raise Problem(400, f"input[{place}] has no {missing}", f"input[{place}].{missing}")
    content = item.content
    if isinstance(content, list):
        for part in content:
            if part.type not in TEXTS or part.text is UNSET:
                fact = f"a part of type {part.type[:80]!r} is not supported; {', '.join(TEXTS)} are"
                raise Problem(400, fact, f"input[{place}].content")
        content = "".join(str(part.text) for part in content)
    return ChatMessage(role=item.role, content=content)


@dataclass
class ResponseShape:
    """See `stream.ReplyShape`. prepared: how it is made."""

    model: str
    asked: ResponsesRequest
    prepared: PreparedPrompt
    created: int = field(default_factory=lambda: int(time()))
    done: ClassVar[bytes | None] = None

    def __post_init__(self) -> None:
        self.id, self.item = f"resp_{secrets.token_hex(12)}", f"msg_{secrets.token_hex(12)}"
        self._events, self._text = 0, ""

    def whole(self, reply: Response) -> dict[str, Any]:
        status = _status(reply.finish_reason)
        return self._object(status, [self._message(status, reply.text)], reply.stats)

    def begin(self) -> Iterator[dict[str, Any]]:
        for name in ("created", "in_progress"):
            yield self._event(f"response.{name}", response=self._object("in_progress", []))
        message = self._message("in_progress", None)
        yield self._event("response.output_item.added", output_index=0, item=message)
        yield self._event("response.content_part.added", **self._place, part=_part(""))

    def said(self, said: Response) -> Iterator[dict[str, Any]]:
        self._text += said.text
        if said.text:
            yield self._event("response.output_text.delta", **self._place, delta=said.text, logprobs=[])
        if said.finish_reason not in (None, "cancelled"):
            status = _status(said.finish_reason)
            message = self._message(status, self._text)
            yield self._event("response.output_text.done", **self._place, text=self._text, logprobs=[])
            yield self._event("response.content_part.done", **self._place, part=_part(self._text))
            yield self._event("response.output_item.done", output_index=0, item=message)
            yield self._event(f"response.{status}", response=self._object(status, [message], said.stats))

    def broken(self, problem: Problem) -> dict[str, Any]:
        """As its clients know errors, and as all of OpenAI's do."""
        told = {"code": problem.code, "message": problem.message, "param": problem.param}
        return self._event("error", **told, **problem.body)

    @property
    def _place(self) -> dict[str, Any]:
        return {"item_id": self.item, "output_index": 0, "content_index": 0}

    def _event(self, kind: str, **found: Any) -> dict[str, Any]:
        self._events += 1
        return {"type": kind, "sequence_number": self._events - 1, **found}

    def _message(self, status: str, text: str | None) -> dict[str, Any]:
        content = [] if text is None else [_part(text)]
        return {"id": self.item, "type": "message", "status": status, "role": "assistant", "content": content}

    def _object(
        self, status: str, output: list[dict[str, Any]], stats: Stats | None = None
    ) -> dict[str, Any]:
        options = self.prepared.options
        found: dict[str, Any] = {
            "id": self.id,
            "object": "response",
            "created_at": self.created,
            "status": status,
            "error": None,
            "incomplete_details": {"reason": "max_output_tokens"} if status == "incomplete" else None,
            "model": self.model,
            "output": output,
            "instructions": self.asked.instructions,
            "max_output_tokens": self.asked.max_output_tokens,
            "temperature": options.temperature,
            "top_p": options.top_p,
            "text": {"format": {"type": "text"}},
            "truncation": "disabled",
            "tools": [],
            "tool_choice": "none",
            "parallel_tool_calls": False,
            "background": False,
            "store": False,
            "previous_response_id": None,
            "metadata": {},
            "usage": None if stats is None else _usage(stats),
        }
        return found if stats is None else found | {"timings": timings(stats)}


def _status(reason: str | None) -> str:
    return "incomplete" if reason == "length" else "completed"


def _part(text: str) -> dict[str, Any]:
    return {"type": "output_text", "text": text, "annotations": [], "logprobs": []}


def _usage(stats: Stats) -> dict[str, Any]:
    return {
        "input_tokens": stats.prompt_tokens,
        "input_tokens_details": {"cached_tokens": stats.reused_tokens, "cache_write_tokens": 0},
        "output_tokens": stats.reply_tokens,
        "output_tokens_details": {"reasoning_tokens": 0},
        "total_tokens": stats.prompt_tokens + stats.reply_tokens,
    }
