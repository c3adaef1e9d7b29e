"""From a request to the tokens of a prompt, and how to reply to it."""

from __future__ import annotations

import secrets
from collections.abc import Sequence
from contextlib import suppress
from dataclasses import dataclass
from typing import Any

import msgspec
from msgspec import UNSET, Raw

from edgespec.apps.server.fields import ChatMessage, ChatRequest, CompletionRequest, ReplyRequest, unpacked
from edgespec.apps.server.heard import check_heard
from edgespec.apps.server.problems import Problem
from edgespec.config import GenerationOptions
from edgespec.text.tokenizer import Tokenizer
from edgespec.values import with_keywords


@dataclass(frozen=True)
class PreparedPrompt:
    prompt: list[int]
    options: GenerationOptions


def options_for(
    asked: ReplyRequest, default: GenerationOptions, extra_stop: Sequence[str] = ()
) -> GenerationOptions:
    """How to reply: what the request says, else what the server was started with. Without a seed, a sampled
    reply is another each time. Raises OptionError for a value out of its bounds."""
    given: dict[str, Any] = {
        name: getattr(asked, name)
        for name in ("temperature", "top_p", "top_k", "min_p", "seed", "stop", "ignore_eos")
        if getattr(asked, name) is not None
    }
    limits: dict[str, int] = {
        name: limit
        for name in ("max_tokens", "max_completion_tokens")
        if (limit := getattr(asked, name, None)) is not None
    }
    if len({*limits.values()}) > 1:
        raise Problem(400, "max_tokens and max_completion_tokens differ; give one of them", "max_tokens")
    for name, limit in limits.items():
        if limit < 1:
            raise Problem(400, f"{name} is {limit}; it must be at least 1", name)
        given["max_tokens"] = limit
    options = with_keywords(default, given)
    if asked.seed is None and options.temperature and not default.seed:
        options = with_keywords(options, {"seed": secrets.randbelow(2**31)})
    return with_keywords(options, {"stop": (*options.stop, *extra_stop)})


def prepare_chat(asked: ChatRequest, tokenizer: Tokenizer, default: GenerationOptions) -> PreparedPrompt:
    """Raises Problem, OptionError, ModelError when the template refuses the messages, TokenizerError,
    ContextError."""
    options = options_for(asked, default, tokenizer.template.stop)
    messages = [message_of(message, place) for place, message in enumerate(asked.messages)]
    given = (
        asked.tools if asked.tools and unpacked(asked.tool_choice, object, "tool_choice") != "none" else []
    )
    tools = [unpacked(tool, dict[str, Any], f"tools[{place}]") for place, tool in enumerate(given)] or None
    prompt = tokenizer.apply_chat(messages, tools=tools)
    check_heard(messages, tools, tokenizer)
    return PreparedPrompt(prompt, options)


def prepare_text(
    asked: CompletionRequest, tokenizer: Tokenizer, default: GenerationOptions
) -> PreparedPrompt:
    """Raises Problem, OptionError, TokenizerError, ContextError."""
    options, prompt = options_for(asked, default), _prompt_of(asked.prompt)
    return PreparedPrompt(tokenizer.encode(prompt) if isinstance(prompt, str) else prompt, options)


def _prompt_of(raw: Raw) -> str | list[int]:
    """Raises Problem."""
    for kind in (str, list[int], tuple[str], tuple[list[int]]):
        with suppress(msgspec.DecodeError, UnicodeDecodeError, RecursionError):
            found: Any = msgspec.json.decode(raw, type=kind)
            prompt: str | list[int] = found[0] if isinstance(found, tuple) else found
            return prompt
    raise Problem(
        400,
        "prompt is neither a text, nor its tokens, nor a list of one of these; send several prompts in "
        "requests of their own",
        "prompt",
    )


def message_of(message: ChatMessage, place: int) -> dict[str, Any]:
    """As templates know it: parts of text joined, and arguments of calls as objects, not as their JSON."""
    content = message.content
    if content is None and not message.tool_calls:
        raise Problem(400, f"messages[{place}] has no content", f"messages[{place}].content")
    if isinstance(content, list):
        for part in content:
            if part.type != "text" or part.text is UNSET:
                raise Problem(
                    400,
                    f"a part of type {part.type[:80]!r} is not supported; text is",
                    f"messages[{place}].content",
                )
        content = "".join(str(part.text) for part in content)
    role = "system" if message.role == "developer" else message.role
    found: dict[str, Any] = {"role": role, "content": content if content is not None else ""}
    for name in ("name", "tool_call_id"):
        if (value := getattr(message, name)) is not None:
            found[name] = value
    if message.tool_calls:
        found["tool_calls"] = [
            {
                "id": call.id,
                "type": call.type,
                "function": {
                    "name": call.function.name,
                    "arguments": _object(call.function.arguments, f"messages[{place}].tool_calls"),
                },
            }
            for call in message.tool_calls
        ]
    return found


def _object(raw: Raw, name: str) -> Any:
    """Arguments of a call: an object, or its JSON, as clients send it."""
    found = unpacked(raw, object, name)
    if not isinstance(found, str):
        return found
    try:
        return msgspec.json.decode(found)
    except (msgspec.DecodeError, RecursionError):
        return found
