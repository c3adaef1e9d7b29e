"""What a chat template would leave out of a conversation is refused: it would change nothing, unsaid."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

from edgespec.apps.server.problems import Problem
from edgespec.errors import ModelError
from edgespec.text.tokenizer import Tokenizer


def check_heard(
    messages: Sequence[dict[str, Any]], tools: Sequence[dict[str, Any]] | None, tokenizer: Tokenizer
) -> None:
    """Of messages (as `prepare.message_of` makes them) that the template takes. Raises Problem for a content,
    a name, a call or tools that do not come into the prompt."""
    marks = list[tuple[str, int, str]]()  # as it stands in the prompt, of which message, what it is

    def mark(place: int, what: str) -> str:
        marks.append((f"Mark{len(marks)}End", place, what))
        return marks[-1][0]

    marked = [_marked(message, place, mark) for place, message in enumerate(messages)]
    try:
        text = tokenizer.render_chat(marked, tools=tools)
        without = tokenizer.render_chat(marked) if tools else ""
    except ModelError:  # it wants other contents, so it looks at them
        return
    if tools and text == without:
        raise Problem(400, "the model's chat template knows no tools: they would change nothing", "tools")
    for word, place, what in marks:
        if word not in text:
            role = messages[place]["role"]
            out = "the system prompt" if role == "system" else f"{what} of a message of role {role!r}"
            raise Problem(
                400,
                f"the model's chat template leaves {out} out: it would change nothing; say it in "
                "a user's message instead",
                f"messages[{place}]",
            )


def _marked(message: dict[str, Any], place: int, mark: Callable[[int, str], str]) -> dict[str, Any]:
    """The same message in other words."""
    found = dict(message)
    if message["content"]:
        found["content"] = mark(place, "the content")
    if "name" in message:
        found["name"] = mark(place, "the name")
    if "tool_calls" in message:
        found["tool_calls"] = [
            {**call, "function": {**call["function"], "name": mark(place, "the calls")}}
            for call in message["tool_calls"]
        ]
    return found
