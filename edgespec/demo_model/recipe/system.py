"""System prompts, and conversations that obey them in ways that can be checked.

An instruction changes how every reply is written (`SystemPrompt.rewrite`), or answers questions of its own (`SystemPrompt.facts`).
"""

# ruff: noqa: E501 (tables of phrasings)

from __future__ import annotations

import re
from collections.abc import Callable
from dataclasses import dataclass, replace

from edgespec.demo_model.recipe.dialogue import conversation
from edgespec.demo_model.recipe.draw import TRAINING, Draw, Exchange, Split
from edgespec.demo_model.recipe.lists import WORDS
from edgespec.demo_model.recipe.names import name
from edgespec.demo_model.recipe.smalltalk import INTENTS
from edgespec.demo_model.recipe.system_words import (
    ASK_FACT,
    ASK_FACT_UNSEEN,
    INSTRUCTIONS,
    OVER,
    PERSONAS,
    THINGS,
    TITLES,
)

WHO = "I am a small demo model that comes with EdgeSpec."
NO_WORD = "Unknown."
DIRECTED = 6  # one conversation in so many has a system prompt


@dataclass(frozen=True)
class SystemPrompt:
    """A system prompt. `rewrite` gives the reply that obeys it (None: this exchange does not suit it); `kept` is
    whether a text looks as the prompt demands, right or wrong; `facts` are questions it answers."""

    text: str
    kind: str
    rewrite: Callable[[Exchange], str | None] = lambda e: e.reply
    kept: Callable[[str], bool] = bool
    facts: tuple[Exchange, ...] = ()


def _word(d: Draw) -> str:
    return d.arguments(
        lambda: d.pick((d.pick(WORDS), d.pick(OVER), name(d), f"{d.pick(WORDS)} {d.pick(WORDS)}")),
        "system word",
    )


def _around(
    text: str,
    kind: str,
    before: str = "",
    after: str = "",
    who: str | None = None,
    facts: tuple[Exchange, ...] = (),
) -> SystemPrompt:
    """Every reply with `before` and `after` around it; `who`: what it says it is."""

    def rewrite(e: Exchange) -> str:
        reply = f"I am {who}." if who and e.reply == WHO else e.reply
        return before + reply + after

    def kept(reply: str) -> bool:
        return reply.startswith(before) and reply.endswith(after)

    return SystemPrompt(text, kind, rewrite, kept, facts)


def _one_word(e: Exchange) -> str | None:
    """The word that says most of the reply; None where there is none or it needs steps."""
    if e.category == "facts" and (
        match := re.fullmatch(r"The capital of .* is ([\w ]+)\.|.* (\w+)\.", e.reply)
    ):
        return (match[1] or match[2]).split()[-1].capitalize() + "."
    if e.category == "unknown":
        return NO_WORD
    if e.category == "EdgeSpec" and (
        match := re.match(r"(?<![\w/.-])(?:/|--)[a-z][a-z-]*|(?:Yes|No)\b|Ctrl-[A-Z]", e.reply)
    ):
        return match[0] + "."
    if e.category == "small talk" and (match := re.match(r"(Hello|Goodbye|No|Okay|Thank|Nice)\b", e.reply)):
        return {"Thank": "Thanks"}.get(match[1], match[1]) + "."
    if e.category == "numbers" and (
        match := re.search(r"it is (odd|even)\.$|^After \d+ comes (\d+)\.$", e.reply)
    ):
        return (match[1] or match[2]).capitalize() + "."
    return None


def _unless_long(change: Callable[[str], str]) -> Callable[[Exchange], str | None]:
    return lambda e: None if e.category == "stories" or len(e.reply) > 160 else change(e.reply)


# Their weights.
_KINDS = [
    "persona",
    "persona",
    "end",
    "end",
    "begin",
    "call",
    "call",
    "name",
    "only",
    "upper",
    "upper",
    "lower",
    "word",
    "word",
    "excited",
    "smile",
    "thank",
    "plain",
    "plain",
    "fact",
    "fact",
]
_CHANGES: dict[str, tuple[Callable[[Exchange], str | None], Callable[[str], bool]]] = {
    "upper": (_unless_long(str.upper), lambda reply: reply == reply.upper()),
    "lower": (_unless_long(str.lower), lambda reply: reply == reply.lower()),
    "word": (_one_word, lambda reply: len(reply.split()) == 1),
    "excited": (lambda e: e.reply.rstrip(".!") + "!!!", lambda reply: reply.endswith("!!!")),
}


def prompt(d: Draw) -> SystemPrompt:
    """Any system prompt."""
    kind = d.pick(_KINDS)
    x = _word(d)
    shown = f'"{x}"' if d.chance(0.25) else x
    if kind == "persona":
        who = d.pick(tuple(PERSONAS))
        text = (
            d.phrase(*INSTRUCTIONS[kind])
            .format(x=who)
            .replace("a old", "an old")
            .replace(" a owl", " an owl")
        )
        return _around(text, kind, *PERSONAS[who], who=f"{'an' if who == 'owl' else 'a'} {who}")
    if kind == "call":
        return _calling(d)
    if kind == "name":
        own = name(d)
        seen, unseen = next((s, u) for reply, s, u in INTENTS if reply == WHO)
        asked = Exchange(d.phrase(seen, unseen), f"I am {own}.", "small talk")
        return _around(d.phrase(*INSTRUCTIONS[kind]).format(x=own), kind, who=own, facts=(asked,))
    if kind == "fact":
        t = d.pick(THINGS)
        question = d.question(d.phrase(ASK_FACT, ASK_FACT_UNSEEN).format(t=t))
        text = d.phrase(*INSTRUCTIONS[kind]).format(t=t, x=x)
        return SystemPrompt(text, kind, facts=(Exchange(question, f"The {t} is {x}.", "small talk"),))
    text = d.phrase(*INSTRUCTIONS[kind]).format(x=shown)
    if kind in _CHANGES:
        return SystemPrompt(text, kind, *_CHANGES[kind])
    said = x[0].upper() + x[1:]
    if kind == "only":
        return SystemPrompt(text, kind, lambda e: f"{said}.", lambda reply: reply == f"{said}.")
    added = {
        "end": ("", f" {said}."),
        "begin": (f"{said}. ", ""),
        "smile": ("", " :)"),
        "thank": ("", " Thank you for asking!"),
        "plain": ("", ""),
    }
    return _around(text, kind, *added[kind])


def _calling(d: Draw) -> SystemPrompt:
    """The user is addressed by a name or title, at the end of each reply."""
    title = d.pick(TITLES) if d.chance(0.5) else name(d)

    def rewrite(e: Exchange) -> str:
        return f"{e.reply[:-1]}, {title}{e.reply[-1]}" if e.reply[-1] in ".!?" else f"{e.reply}, {title}."

    text = d.phrase(*INSTRUCTIONS["call"]).format(x=title)
    return SystemPrompt(text, "call", rewrite, lambda reply: reply.rstrip(".!?").endswith(f", {title}"))


def directed(
    seed: str, split: Split = TRAINING, turns: int | None = None
) -> tuple[SystemPrompt, list[Exchange]]:
    """A system prompt and a conversation that obeys it; now and then its first turns come from before it was set."""
    d = Draw(f"system {seed}", split)
    chosen = prompt(d)
    out: list[Exchange] = []
    talk = conversation(f"{seed} directed", split, turns)
    free = d.number(1, 3) if len(talk) > 3 and d.chance(0.08) else 0
    for i, e in enumerate(talk):
        if chosen.facts and d.chance(0.5):
            out.append(replace(chosen.facts[0], category="system prompts"))
        if i < free:
            out.append(e)
            continue
        reply = chosen.rewrite(e)
        if chosen.kind == "word" and (reply is None or e.category in ("follow-up", "context")):
            continue  # what it refers to may be left out
        if reply is None:
            break
        out.append(Exchange(e.user, reply, "system prompts" if reply != e.reply else e.category, e.exact))
    if not out:
        greeting = Exchange("Hello!", "Hello! How can I help you?", "small talk")
        out.append(
            replace(greeting, reply=chosen.rewrite(greeting) or greeting.reply, category="system prompts")
        )
    return chosen, out
