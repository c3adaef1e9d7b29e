"""What requests may hold. Every field of OpenAI's that would change a reply is heard, or refused by name.

Values that change nothing (n = 1, no penalty) are taken, as clients send them unasked.
"""

from __future__ import annotations

from typing import Annotated, Any, TypeVar

import msgspec
from msgspec import UNSET, Meta, Struct, UnsetType

from edgespec.apps.server.problems import Problem

MOST_MESSAGES, MOST_TOOLS, MOST_STOPS, MOST_STOP = 4096, 256, 16, 1000
Text = Annotated[str, Meta(max_length=4 * 2**20)]
Short = Annotated[str, Meta(max_length=1000)]
Stop = Annotated[str, Meta(max_length=MOST_STOP)]
Whole = Annotated[int, Meta(ge=-(2**63), le=2**63 - 1)]


class StreamOptions(Struct, forbid_unknown_fields=True):
    include_usage: bool = False
    include_obfuscation: bool = False  # nothing is


class ReplyRequest(Struct, forbid_unknown_fields=True):
    """What all requests for replies may say of how it is made."""

    model: Short | None = None
    max_tokens: Whole | None = None
    temperature: float | None = None
    top_p: float | None = None
    top_k: Whole | None = None  # this and the following three are ours
    min_p: float | None = None
    ignore_eos: bool | None = None
    cache_prompt: bool = True  # as llama.cpp calls it: what a request before has computed may be used
    seed: Whole | None = None
    stop: Stop | Annotated[list[Stop], Meta(max_length=MOST_STOPS)] | None = None
    stream: bool | None = None
    stream_options: StreamOptions | None = None
    # What changes no reply:
    user: Any = None
    metadata: Any = None
    store: Any = None
    service_tier: Any = None
    safety_identifier: Any = None
    prompt_cache_key: Any = None
    # What would, unless it has these values:
    n: Any = None
    logprobs: Any = None
    logit_bias: Any = None
    frequency_penalty: Any = None
    presence_penalty: Any = None


NEUTRAL: dict[str, tuple[Any, ...]] = {
    "n": (1,),
    "logprobs": (False,),
    "logit_bias": ({},),
    "frequency_penalty": (0,),
    "presence_penalty": (0,),
    "top_logprobs": (0,),
    "response_format": ({"type": "text"},),
    "modalities": (["text"],),
    "tool_choice": ("auto", "none"),
    "parallel_tool_calls": (True, False),  # the reply is the model's own either way
    "verbosity": ("medium",),
    "functions": ([],),
    "function_call": ("auto", "none"),
    "best_of": (1,),
    "echo": (False,),
    "suffix": ("",),
}


class ContentPart(Struct):
    type: str
    text: str | UnsetType = UNSET


class FunctionCall(Struct):
    name: Short
    arguments: Any = None


class ToolCall(Struct):
    function: FunctionCall
    id: Short | None = None
    type: Short = "function"


class ChatMessage(Struct, forbid_unknown_fields=True):
    role: Short
    content: Text | list[ContentPart] | None = None
    name: Short | None = None
    tool_calls: Annotated[list[ToolCall], Meta(max_length=MOST_TOOLS)] | None = None
    tool_call_id: Short | None = None
    refusal: Any = None  # as a reply of ours has it
    annotations: Any = None
    audio: None = None
    function_call: None = None


class ChatRequest(ReplyRequest, forbid_unknown_fields=True, kw_only=True):
    messages: Annotated[list[ChatMessage], Meta(min_length=1, max_length=MOST_MESSAGES)]
    max_completion_tokens: Whole | None = None
    tools: Annotated[list[dict[str, Any]], Meta(max_length=MOST_TOOLS)] | None = None
    top_logprobs: Any = None
    response_format: Any = None
    modalities: Any = None
    tool_choice: Any = None
    parallel_tool_calls: Any = None
    verbosity: Any = None
    functions: Any = None
    function_call: Any = None


class CompletionRequest(ReplyRequest, forbid_unknown_fields=True, kw_only=True):
    prompt: Text | list[Any]  # a text, its tokens, or a list of one of these
    best_of: Any = None
    echo: Any = None
    suffix: Any = None


class TokenizeRequest(Struct, forbid_unknown_fields=True):
    content: Text | None = None
    messages: Annotated[list[ChatMessage], Meta(min_length=1, max_length=MOST_MESSAGES)] | None = None
    add_special: bool = True


class MemoryRequest(Struct, forbid_unknown_fields=True):
    memory: str | int | float


T = TypeVar("T", bound=Struct)


def decoded(body: bytes, kind: type[T]) -> T:
    """A request's body. Raises Problem naming the field that is wrong."""
    try:
        found = msgspec.json.decode(body, type=kind)
    except msgspec.ValidationError as error:
        fact, _, path = str(error).partition(" - at `$")
        field = ".".join(filter(None, (path.rstrip("`").lstrip("."), _named(fact))))
        raise Problem(400, f"{field}: {fact}" if field else fact, field or None) from None
    except (msgspec.DecodeError, UnicodeDecodeError, RecursionError) as error:
        raise Problem(400, f"the body is not valid JSON: {error}") from None
    for name, values in NEUTRAL.items():
        given = getattr(found, name, None)
        if given is not None and not any(_same(given, value) for value in values):
            raise Problem(400, f"{name} is {str(given)[:80]!r}, which is not supported; leave it out", name)
    return found


def _same(given: Any, value: Any) -> bool:
    return given == value and isinstance(given, bool) == isinstance(value, bool)  # True is 1 to Python


def _named(fact: str) -> str:
    """The field in "Object missing required field `x`" or "Object contains unknown field `x`"."""
    return fact.split("`")[1] if fact.count("`") == 2 and "field" in fact else ""
