"""Questions about EdgeSpec: its commands, its flags and its terms, as a new user types them."""

# ruff: noqa: E501 (tables of phrasings)

from __future__ import annotations

import re
from collections.abc import Sequence

from edgespec.demo_model.recipe import (
    product_chat,
    product_concepts,
    product_flags,
    product_models,
    product_options,
    product_system,
    product_terms,
    product_use,
)
from edgespec.demo_model.recipe.draw import Draw, Exchange
from edgespec.demo_model.recipe.frames import GOAL, NAME, around, spelled
from edgespec.demo_model.recipe.product_names import filled
from edgespec.demo_model.recipe.product_questions import QUESTIONS, is_held_out_question
from edgespec.demo_model.recipe.product_topics import Topic

ALL: tuple[Topic, ...] = (
    *product_chat.TOPICS, *product_flags.TOPICS, *product_options.TOPICS, *product_concepts.TOPICS,
    *product_models.TOPICS, *product_system.TOPICS, *product_terms.TOPICS, *product_use.TOPICS,
)  # fmt: skip
TOPICS = {topic.name: topic for topic in ALL}

DIAL_REPLY = "Add --memory {n}GB to the command."

_DIAL = (
    "how do I [use|give it|run with|run in|get by with] only {n} {gb}?", "I have [only|] {n} {gb} [of memory|of RAM|RAM|], what do I [do|enter|run|use]?",
    "[set|limit|restrict|cap|bound|reduce] [the memory|memory|the RAM|RAM|it|the limit|memory use] to {n} {gb} [please|]",
    "how [do|can|could] I [set|limit|restrict|cap|reduce] [the memory|memory|RAM|it|the memory limit|the dial] to {n} {gb}?",
    "[use|take|it may use|it may take|let it use|give it|allow] [only|at most|no more than|not more than|up to|] {n} {gb} [of memory|of RAM|]",
    "I want [to use|it to use|it to take|EdgeSpec to use] [only|at most|] {n} {gb}", "my [machine|computer|PC|notebook|box] has [just|only|] {n} {gb} [of memory|of RAM|]",
    "how do I run [a model|it|EdgeSpec|a large model] in {n} {gb}?", "[keep|hold|stay] [it|the memory|memory use|] [under|below|within] {n} {gb}",
    "how do I [keep|hold] [the memory|memory use|EdgeSpec|the process] [below|under|within] {n} {gb}?", "[memory|a limit of|memory limit] {n} {gb}, how?",
    "which flag for {n} {gb}?", "can I [limit|set|hold|keep] it [to|at] {n} {gb}?", "{n} {gb} of memory", "it must not use more than {n} {gb}",
    "can it run with {n} {gb}?", "[how do I|can I] [make|let] it [use|take] [less than|at most|only] {n} {gb} of [memory|RAM]?", "I do not want it to [use|take] more than {n} {gb}", "there are only {n} {gb} of RAM in [my laptop|here|this machine]",
)  # fmt: skip
# Follow-ups that only the topic before makes clear: topic, question, topic of the reply.
_FOLLOW = (
    ("/save", "[and|] how do I [get|open|load|read] it [back|again|later]?", "/load"),
    ("/save", "[and|] which command [loads|opens|reads] it [again|]?", "/load"),
    ("/load", "[and|] how do I [make|write] such a file?", "/save"),
    ("/set", "[and|] how do I [reset it|reset that|set it back|undo that]?", "/set default"),
    ("/system", "[and|] how do I [remove|delete|unset] it [again|]?", "/system"),
    ("/system", "[and|] can it come from a file?", "--system-file"),
    ("/stats", "[and|] how do I [hide|switch off|turn off] [them|the line|that]?", "/stats off"),
    ("pack", "[and|] how do I [check|verify|test] it?", "pack --verify"),
    ("train", "[and|] how do I use [them|these|the adapters] [then|]?", "--adapters"),
    ("/clear", "[and|] how do I [take back|remove|undo] only the last [message|question]?", "/undo"),
    ("/undo", "[and|] how do I [forget|clear|delete] [everything|all of it|the rest]?", "/clear"),
    ("/exit", "[and|] how do I [go on|continue|come back|resume] [later|tomorrow|after that]?", "--continue"),
    ("memory", "[and|] [while it runs|in the chat|during a chat]?", "memory while chatting"),
    ("memory", "[and|] [without it|if I leave it out|what is the default]?", "default memory"),
    ("drafts", "[and|] [do they|does that] change the [output|text|answer]?", "exact"),
    ("drafts", "[and|] who makes them?", "drafter"),
    ("exact", "[and|] [how|why] is that [so|possible]?", "how exact"),
    ("--temperature", "[and|] how do I change it in the chat?", "/set"),
    ("EdgeSpec", "[and|] which models can I use?", "models"),
    ("EdgeSpec", "[and|] how do I [install|get] it?", "install"),
    ("family yes", "[and|] [what about|how about|also|] {other}?", "family no"),
    ("family no", "[and|] [what about|how about|but|] {known}?", "family yes"),
    ("families", "[and|] [what about|does it run|also|] {other}?", "family no"),
    ("family no", "[and|then] [which models|which ones|what|which] [does it run|are supported|do] [then|]?", "families"),
    ("Linux", "[and|] [on|what about|also on] [Windows|Windows 11|a Windows PC]?", "Windows"),
    ("Windows", "[and|] [on|what about|also on] [macOS|a Mac|my Mac]?", "macOS"),
    ("macOS", "[and|] [does it use|what about|with] [Metal|MPS|the GPU of the Mac]?", "Metal"),
    ("large model", "[and|] [how fast|how slow] [is that|will it be|would that be]?", "large model speed"),
    ("large model", "[and|] [how much|what] disk [space|] does [that|it] need?", "disk space"),
    ("--max-tokens", "[and|] [without it|what is the default|if I leave it out]?", "default length"),
    ("--drafter", "[and|] which [one|] [is best|should I take|do you recommend]?", "which drafter"),
    ("/save", "[and|] [in which format|what kind of file is that|who can read it]?", "saved file"),
    ("install", "[and|] how do I [remove|uninstall] it [again|]?", "uninstall"),
    ("Python", "[and|] how do I [generate|get a reply|get text]?", "Python reply"),
)  # fmt: skip


def _wording(d: Draw, topic: Topic) -> str:
    kinds: Sequence[Sequence[str]] = (topic.names, topic.goals, topic.goals, topic.asks, topic.asks)
    table = d.pick([kind for kind in kinds if kind])
    if table is topic.names:
        text = spelled(d, d.pick(NAME)).replace("{x}", spelled(d, d.pick(table)))
    elif table is topic.goals:
        text = spelled(d, d.pick(GOAL)).replace("{g}", spelled(d, d.pick(table)))
    else:
        text = spelled(d, d.pick(table))
    return filled(d, text)


def typed(d: Draw, text: str) -> str:
    """With a capital or without, with its mark or without; one in sixteen has a slip of the finger."""
    if d.chance(0.6):
        text = text[:1].upper() + text[1:]
    if text[-1] not in "?.!" and d.chance(0.3):
        text += d.pick(".!?")
    if d.chance(0.3):
        text = d.question(text)
    elif d.chance(0.5):
        text = text.lower().rstrip("?.!") if d.chance(0.5) else text.lower()
    if not d.chance(0.06):
        return text
    words = [w for w in re.findall(r"(?<![\w/-])[a-z]{4,}(?![\w-])", text) if w != "edgespec"]
    return text if not words else text.replace(word := d.pick(words), _slip(d, word), 1)


def _slip(d: Draw, word: str) -> str:
    """One letter lost, doubled, or exchanged with the next."""
    i = d.number(0, len(word) - 2)
    kind = d.number(0, 2)
    if kind == 0:
        return word[:i] + word[i + 1 :]
    return word[:i] + (word[i] * 2 + word[i + 1 :] if kind == 1 else word[i + 1] + word[i] + word[i + 2 :])


def _dial(d: Draw) -> Exchange:
    n = d.arguments(lambda: d.number(1, 64), "dial")
    text = ""
    while not text or is_held_out_question(text):
        text = (
            spelled(d, d.pick(_DIAL))
            .replace("{n}", str(n))
            .replace(" {gb}", d.pick((" GB", "GB", " gigabytes", " GB")))
        )
    return Exchange(typed(d, text), DIAL_REPLY.format(n=n), "EdgeSpec")


def _asked(d: Draw, topic: Topic) -> Exchange:
    text = ""
    while not text or is_held_out_question(text):
        text = _wording(d, topic)
    return Exchange(typed(d, around(d, text)), topic.reply, "EdgeSpec")


def answer(topic: str) -> str:
    """The reply to whatever asks for this topic; `memory of 6 GB` is one for every number."""
    if topic in TOPICS:
        return TOPICS[topic].reply
    number = re.fullmatch(r"memory of (\d+) GB", topic)
    if number is None:
        raise KeyError(topic)
    return DIAL_REPLY.format(n=number[1])


def product_question(d: Draw) -> list[Exchange]:
    """A question about EdgeSpec, and sometimes what follows from it; held out: `product_questions`."""
    if d.split.unseen_phrasings:
        text, asked = d.pick(QUESTIONS)
        return [Exchange(text, answer(asked.topic), "EdgeSpec")]
    if d.chance(0.05):
        return [_dial(d)]
    if d.chance(0.1):
        before, text, after = d.pick(_FOLLOW)
        return [
            _asked(d, TOPICS[before]),
            Exchange(typed(d, filled(d, spelled(d, text))), TOPICS[after].reply, "EdgeSpec"),
        ]
    return [_asked(d, d.pick(ALL))]
