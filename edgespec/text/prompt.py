"""What a prompt may be: a text, chat messages, or token ids."""

from __future__ import annotations

import operator
from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any, Protocol

from edgespec.errors import OptionError

if TYPE_CHECKING:
    from edgespec.text.tokenizer import Tokenizer


class Array(Protocol):
    """Of numpy or torch."""

    def tolist(self) -> Any: ...


Prompt = str | Sequence[int] | Array | Sequence[Mapping[str, Any]]


def encode_prompt(tokenizer: Tokenizer, prompt: Prompt) -> list[int]:
    """Token ids of text, of chat messages (by the model's template), or of ids as they are.

    Raises OptionError for anything else, mixtures too: nothing is left out silently.
    """
    if isinstance(prompt, str):
        return tokenizer.encode(prompt)
    items = _items(prompt)
    messages = [item for item in items if isinstance(item, Mapping)]
    if messages and len(messages) == len(items):
        return tokenizer.apply_chat(messages)
    return [_id(place, item) for place, item in enumerate(items)]


def token_ids(prompt: Sequence[int] | Array) -> list[int]:
    """Token ids as they are. Raises OptionError for anything else."""
    if isinstance(prompt, str):
        raise OptionError(
            "a session takes token ids, and the prompt is a text; engine.encode() makes them of it"
        )
    return [_id(place, item) for place, item in enumerate(_items(prompt))]


_WANTED = "give a text, a list of messages (dictionaries of role and content), or a list of token ids"


def _items(prompt: Any) -> Sequence[Any]:
    items = prompt.tolist() if hasattr(prompt, "tolist") else prompt
    if isinstance(prompt, (bytes, bytearray)) or not isinstance(items, Sequence):
        raise OptionError(f"the prompt is of type {type(prompt).__name__}; {_WANTED}")
    return items


def _id(place: int, item: Any) -> int:
    try:
        if not isinstance(item, bool):
            return operator.index(item)
    except TypeError:
        pass
    raise OptionError(f"item {place} of the prompt is {str(item)[:40]!r}; {_WANTED}")
