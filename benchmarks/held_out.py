"""Prompts of the demo model's own domain that its training never saw, as token ids."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

from tokenizers import Tokenizer

from edgespec.demo_model.recipe.dialogue import conversation
from edgespec.demo_model.recipe.draw import HELD_OUT, Draw
from edgespec.demo_model.recipe.stories import story
from edgespec.demo_model.recipe.tokenizer import ASSISTANT_ID, BOS_ID, encode


def prompts(model: Path, count: int) -> list[list[int]]:
    """Conversations of the domain's own mixture, each up to the last question."""
    tokenizer = Tokenizer.from_file(str(model / "tokenizer.json"))
    out = []
    for i in range(count):
        ids, _ = encode(tokenizer, conversation(f"drafting {i}", HELD_OUT))
        last = len(ids) - 1 - ids[::-1].index(ASSISTANT_ID)
        out.append(ids[: last + 1])
    return out


def stories(model: Path, count: int) -> list[list[int]]:
    """Requests for stories: the longest replies there are."""
    tokenizer = Tokenizer.from_file(str(model / "tokenizer.json"))
    out = []
    for i in range(count):
        ids, _ = encode(tokenizer, story(Draw(f"drafting story {i}", HELD_OUT))[:1])
        out.append(ids[: ids.index(ASSISTANT_ID) + 1])
    return out


def text_prompts(model: Path, file: Path, count: int, length: int = 64) -> list[list[int]]:
    """So many passages of a text, evenly spread, for a model that goes on with them."""
    tokenizer = Tokenizer.from_file(str(model / "tokenizer.json"))
    ids = tokenizer.encode(file.read_text(encoding="utf-8"), add_special_tokens=False).ids
    step = (len(ids) - length) // count
    if step < length:
        raise SystemExit(f"{file} has {len(ids)} tokens, too few for {count} passages of {length}")
    return [[BOS_ID, *ids[i * step : i * step + length - 1]] for i in range(count)]


def repetition(prompt: Sequence[int], reply: Sequence[int], n: int = 4) -> float:
    """Share of the reply's n-grams that occur before, in the prompt or the reply."""
    text = [*prompt, *reply]
    seen = {tuple(text[i : i + n]) for i in range(len(prompt) - n + 1)}
    repeated = total = 0
    for end in range(len(prompt) + 1, len(text) + 1):
        gram = tuple(text[max(0, end - n) : end])
        repeated += gram in seen
        total += 1
        seen.add(gram)
    return repeated / total if total else 0.0
