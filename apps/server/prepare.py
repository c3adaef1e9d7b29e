"""From a request to the tokens of a prompt, and how to reply to it."""

from __future__ import annotations

import secrets
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import msgspec
from msgspec import UNSET

from edgespec.apps.server.fields import ChatMessage, ChatRequest, CompletionRequest, ReplyRequest
from edgespec.apps.server.problems import Problem
from edgespec.config import GenerationOptions, with_keywords
from edgespec.text.prompt import token_ids
from edgespec.text.tokenizer import Tokenizer


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
    """Raises Problem, OptionError, ModelError when the template refuses the messages, TokenizerError."""
    options = options_for(asked, default, tokenizer.template.stop)
    messages = [message_of(message, place) for place, message in enumerate(asked.messages)]
    tools = None if asked.tool_choice == "none" else asked.tools or None
    if tools:
        plain, with_tools = tokenizer.render_chat(messages), tokenizer.render_chat(messages, tools=tools)
        if plain == with_tools:
            raise Problem(400, "the model's chat template knows no tools: they would change nothing", "tools")
    _check_system(messages, tokenizer)
    return PreparedPrompt(tokenizer.apply_chat(messages, tools=tools), options)


def prepare_text(
    asked: CompletionRequest, tokenizer: Tokenizer, default: GenerationOptions
) -> PreparedPrompt:
    """Raises Problem, OptionError, TokenizerError."""
    prompt: Any = asked.prompt
    if isinstance(prompt, list) and prompt and not isinstance(prompt[0], int):
        if len(prompt) > 1:
            raise Problem(
                400, f"prompt has {len(prompt)} prompts; send each in a request of its own", "prompt"
            )
        (prompt,) = prompt
    options = options_for(asked, default)
    return PreparedPrompt(tokenizer.encode(prompt) if isinstance(prompt, str) else token_ids(prompt), options)


def message_of(message: ChatMessage, place: int) -> dict[str, Any]:
    """As templates know it: parts of text joined, and arguments of calls as objects, not as their JSON."""
    content = message.content
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
                "function": {"name": call.function.name, "arguments": _object(call.function.arguments)},
            }
            for call in message.tool_calls
        ]
    return found


def _object(arguments: Any) -> Any:
    if not isinstance(arguments, str):
        return arguments
    try:
        return msgspec.json.decode(arguments)
    except (msgspec.DecodeError, RecursionError):
        return arguments


def _check_system(messages: Sequence[dict[str, Any]], tokenizer: Tokenizer) -> None:
    """Raises Problem for a system prompt that the template would leave out."""
    if messages[0]["role"] == "system" and messages[0]["content"]:
        asked = {"role": "user", "content": "?"}
        if tokenizer.render_chat([messages[0], asked]) == tokenizer.render_chat([asked]):
            raise Problem(
                400,
                "the model's chat template leaves the system prompt out: it would change nothing; say it in "
                "the first message instead",
                "messages[0]",
            )
