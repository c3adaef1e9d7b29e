"""What requests may hold. Every field of OpenAI's that would change a reply is heard, or refused by name.

Values that change nothing (n = 1, no penalty) are taken, as clients send them unasked.
"""

from __future__ import annotations

from typing import Annotated, Any, Literal, TypeVar

import msgspec
from msgspec import UNSET, Meta, Raw, Struct, UnsetType

from edgespec.apps.server.problems import Problem

MOST_MESSAGES, MOST_TOOLS, MOST_STOPS, MOST_STOP = 4096, 256, 16, 1000
MOST_NEUTRAL = 100  # bytes of a value that changes nothing,
MOST_VALUE = 64 * 1024  # and of a tool, or what one is called with
NULL = Raw(b"null")  # values that are Raw are only taken apart where that is called for, and bounded
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
    cache_prompt: bool | None = None  # as llama.cpp calls it: what a request before has computed may be used
    seed: Whole | None = None
    stop: Stop | Annotated[list[Stop], Meta(max_length=MOST_STOPS)] | None = None
    stream: bool | None = None
    stream_options: StreamOptions | None = None
    # What changes no reply:
    user: Raw = NULL
    metadata: Raw = NULL
    store: Raw = NULL
    service_tier: Raw = NULL
    safety_identifier: Raw = NULL
    prompt_cache_key: Raw = NULL
    prompt_cache_retention: Raw = NULL
    # What would, unless it has a neutral value:
    n: Raw = NULL
    logprobs: Raw = NULL
    logit_bias: Raw = NULL
    frequency_penalty: Raw = NULL
    presence_penalty: Raw = NULL


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
    "audio": (),
    "prediction": (),
    "reasoning_effort": (),
    "web_search_options": (),
    "background": (False,),
    "conversation": (),
    "include": ([],),
    "max_tool_calls": (),
    "reasoning": ({},),
    "text": ({}, {"format": {"type": "text"}}),
    "truncation": ("disabled",),
}


class ContentPart(Struct):
    type: str
    text: str | UnsetType = UNSET


class FunctionCall(Struct):
    name: Short
    arguments: Raw = NULL


class ToolCall(Struct):
    function: FunctionCall
    id: Short | None = None
    type: Short = "function"


Role = Literal["system", "developer", "user", "assistant", "tool"]


class ChatMessage(Struct, forbid_unknown_fields=True):
    role: Role
    content: Text | Annotated[list[ContentPart], Meta(max_length=MOST_MESSAGES)] | None = None
    name: Short | None = None
    tool_calls: Annotated[list[ToolCall], Meta(max_length=MOST_TOOLS)] | None = None
    tool_call_id: Short | None = None
    refusal: Raw = NULL  # as a reply of ours has it
    annotations: Raw = NULL
    audio: None = None
    function_call: None = None


class ChatRequest(ReplyRequest, forbid_unknown_fields=True, kw_only=True):
    messages: Annotated[list[ChatMessage], Meta(min_length=1, max_length=MOST_MESSAGES)]
    max_completion_tokens: Whole | None = None
    tools: Annotated[list[Raw], Meta(max_length=MOST_TOOLS)] | None = None
    top_logprobs: Raw = NULL
    response_format: Raw = NULL
    modalities: Raw = NULL
    tool_choice: Raw = NULL
    parallel_tool_calls: Raw = NULL
    verbosity: Raw = NULL
    functions: Raw = NULL
    function_call: Raw = NULL
    audio: Raw = NULL
    prediction: Raw = NULL
    reasoning_effort: Raw = NULL
    web_search_options: Raw = NULL


class CompletionRequest(ReplyRequest, forbid_unknown_fields=True, kw_only=True):
    prompt: Raw  # a text, its tokens, or a list of one of these
    best_of: Raw = NULL
    echo: Raw = NULL
    suffix: Raw = NULL


class TokenizeRequest(Struct, forbid_unknown_fields=True):
    content: Text | None = None
    messages: Annotated[list[ChatMessage], Meta(min_length=1, max_length=MOST_MESSAGES)] | None = None
    add_special: bool = True


class MemoryRequest(Struct, forbid_unknown_fields=True):
    memory: str | int | float


T = TypeVar("T", bound=Struct)
R = TypeVar("R")


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
        raw = memoryview(getattr(found, name, NULL))
        given = unpacked(Raw(raw), object, name) if len(raw) <= MOST_NEUTRAL else UNSET
        if given is not None and not any(_same(given, value) for value in values):
            said = bytes(raw[:80]).decode(errors="replace")
            raise Problem(400, f"{name} is {said}, which is not supported; leave it out", name)
    return found


def unpacked(raw: Raw, kind: type[R], name: str, most: int = MOST_VALUE) -> R:
    """What was left as it came. Raises Problem."""
    if (length := memoryview(raw).nbytes) > most:
        raise Problem(400, f"{name} has {length} bytes; at most {most} are read", name)
    try:
        return msgspec.json.decode(raw, type=kind)
    except (msgspec.DecodeError, UnicodeDecodeError, RecursionError) as error:
        raise Problem(400, f"{name}: {error}", name) from None


def _same(given: Any, value: Any) -> bool:
    return given == value and isinstance(given, bool) == isinstance(value, bool)  # True is 1 to Python


def _named(fact: str) -> str:
    """The field in "Object missing required field `x`" or "Object contains unknown field `x`"."""
    return fact.split("`")[1] if fact.count("`") == 2 and "field" in fact else ""
