"""Short stories from a grammar, and questions about the story just told."""

# ruff: noqa: E501, SIM905 (word tables, easier to read and to extend as text)

from __future__ import annotations

from dataclasses import dataclass

from edgespec.demo_model.recipe.draw import Draw, Exchange
from edgespec.demo_model.recipe.names import name

HEROES = (
    "fox|bear|mouse|owl|rabbit|frog|cat|dog|horse|duck|wolf|hedgehog|goat|sheep|girl|boy|fisherman|baker|farmer|robot|dragon|"
    "king|queen|knight|sailor|painter|miller|shepherd|turtle|squirrel"
).split("|")
PLACES = (
    "forest|valley|village|castle|garden|desert|harbour|mill|meadow|mountain|cave|island|city|farm|swamp|old house|tower|river bank"
).split("|")
_KINDS = "small|brave|shy|clever|old|young|lazy|curious|kind|quiet|proud|hungry|lonely|cheerful".split("|")
_TREASURES = "golden key|silver bell|red lantern|blue stone|old map|wooden flute|magic seed|warm coat|glass ball|lost ring|white feather|big book".split(
    "|"
)
_WEATHER = (
    "the sun was shining",
    "it was raining",
    "snow was falling",
    "the wind was blowing",
    "there was thick fog",
    "the stars were bright",
)
_TIMES = (
    "One morning",
    "One day",
    "One evening",
    "One winter night",
    "Late in autumn",
    "On the first day of spring",
)
_WAYS = (
    "climbed over a steep hill", "crossed a cold river", "walked through the dark wood", "followed a narrow path",
    "asked the moon for the way", "looked under every stone", "slept in a hollow tree", "ran along the shore",
)  # fmt: skip
_OBSTACLES = (
    "a bridge was broken", "a storm came up", "the path was gone", "a big rock lay in the way", "night fell early",
    "a gate was locked", "the water was too deep", "thorns grew everywhere",
)  # fmt: skip
_HELP = (
    "showed {h} a secret way", "carried {h} on its back", "shared some bread with {h}", "lit a small fire for {h}",
    "told {h} an old secret", "lent {h} a strong rope", "sang until {h} was no longer afraid",
)  # fmt: skip
_MORALS = (
    "And {h} learned that a friend is worth more than gold.", "From that day on, {h} was never lonely again.",
    "And {h} knew that small steps lead far.", "Since then {h} has helped everyone who is lost.",
    "And they all lived happily ever after.", "And {h} slept well that night.", "Since then {h} tells this story every winter.",
)  # fmt: skip


@dataclass(frozen=True)
class Story:
    hero: str
    name: str
    place: str
    treasure: str
    helper: str
    helper_name: str
    text: str


def tell(d: Draw, hero: str | None = None, named: str | None = None, place: str | None = None) -> Story:
    """A story of about a hundred tokens; what is not given is drawn."""
    hero = hero or d.pick(HEROES)
    h = named or name(d)
    place = place or d.pick(PLACES)
    helper = d.pick([x for x in HEROES if x != hero])
    helper_name = name(d)
    while helper_name == h:
        helper_name = name(d)
    kind, treasure = d.pick(_KINDS), d.pick(_TREASURES)
    article = "an" if kind[0] in "aeiou" else "a"
    helper_article = "an" if helper[0] in "aeiou" else "a"
    opening = d.pick((
        f"Once upon a time there was {article} {kind} {hero} named {h}. {h} lived in a {place}." if place[0] != "o" else
        f"Once upon a time there was {article} {kind} {hero} named {h}. {h} lived in an {place}.",
        f"In {'an' if place[0] in 'aeiou' else 'a'} {place} lived {article} {kind} {hero} named {h}.",
    ))  # fmt: skip
    wish = d.pick((
        f"More than anything {h} wanted to find the {treasure}.",
        f"{h} had lost the {treasure} and was very sad.",
        f"{h} had heard of the {treasure} and dreamed of it every night.",
    ))  # fmt: skip
    departure = f"{d.pick(_TIMES)}, when {d.pick(_WEATHER)}, {h} went out to look for it."
    first, second = d.sample(_WAYS, 2)
    journey = f"{h} {first} and {second}, but {d.pick(_OBSTACLES)}."
    meeting = f"There {h} met {helper_article} {helper} named {helper_name}. {helper_name} {d.pick(_HELP).format(h=h)}."
    end = d.pick((
        f"Together they found the {treasure} behind a waterfall.",
        f"Under an old oak they found the {treasure} at last.",
        f"In the end {h} held the {treasure} and laughed with joy.",
        f"They did not find the {treasure}, but they had found each other.",
    ))  # fmt: skip
    text = " ".join((opening, wish, departure, journey, meeting, end, d.pick(_MORALS).format(h=h)))
    return Story(hero, h, place, treasure, helper, helper_name, text)


_ANY = (
    "Tell me a story.",
    "Tell a story.",
    "I want to hear a story.",
    "A story, please.",
    "Tell me a short story.",
    "Write a story.",
    "Do you know a story?",
    "Write me a short story.",
    "Make up a story.",
    "Can you tell stories?",
    "Let me hear a story.",
)
_ANY_UNSEEN = (
    "Please tell a short story.",
    "I want a story.",
    "Do you know a short story?",
    "Make up a short story.",
)
_HERO = (
    "Tell me a story about {a}.",
    "Tell a story about {a}.",
    "I want to hear a story about {a}.",
    "Write a story about {a}.",
    "A story about {a}, please.",
    "Make up a story about {a}.",
    "Tell me a short story about {a}.",
    "Do you know a story about {a}?",
)
_HERO_UNSEEN = (
    "I want a story about {a}.",
    "Write me a short story about {a}.",
    "Let me hear a story about {a}.",
)
_NAMED = tuple(t.replace("{a}", "{a} named {n}") for t in _HERO)
_NAMED_UNSEEN = tuple(t.replace("{a}", "{a} named {n}") for t in _HERO_UNSEEN)
_PLACED = tuple(t.replace("{a}", "{a} in {p}") for t in _HERO)
_PLACED_UNSEEN = tuple(t.replace("{a}", "{a} in {p}") for t in _HERO_UNSEEN)
_AGAIN = (
    "Another one.",
    "Tell me another one.",
    "Another story, please.",
    "One more!",
    "And another story?",
    "Again, please.",
    "Tell another story.",
    "Now another one.",
)
_AGAIN_UNSEEN = ("One more story, please.", "Another one, please.", "Tell me one more.")
_QUESTIONS = (
    (("What was the name of the {hero}?", "How was the {hero} called?", "What was the {hero} called?"), ("What was the {hero}'s name?",), "The {hero} was called {name}."),
    (("Who helped {name}?", "Who was the friend of {name}?", "Who gave help to {name}?", "Tell me the friend of {name}."), ("By whom was {name} helped?", "Tell me who helped {name}."), "It was {helper_name}."),
    (("What did {name} look for?", "What was {name} looking for?", "What did {name} want to find?"), ("What was it that {name} looked for?", "Tell me what {name} was looking for."), "It was the {treasure}."),
    (("Where did {name} live?", "Where was the home of {name}?", "In what place did {name} live?", "Tell me the home of {name}."), ("Tell me where {name} lived.", "Where lived {name}?"), "The home was the {place}."),
    (("Who was {helper_name}?", "What was {helper_name}?", "What kind of creature was {helper_name}?", "Tell me what {helper_name} was."), ("Tell me who {helper_name} was.", "And who was {helper_name}?"), "That was a {helper}."),
)  # fmt: skip


def _article(noun: str) -> str:
    return f"{'an' if noun[0] in 'aeiou' else 'a'} {noun}"


def story(d: Draw) -> list[Exchange]:
    """A story on request, sometimes with another one or questions about it."""
    kind = d.number(0, 4)
    if kind == 0:
        request, told = d.phrase(_ANY, _ANY_UNSEEN), tell(d)
    elif kind < 3:
        hero = d.pick(HEROES)
        request, told = d.phrase(_HERO, _HERO_UNSEEN).format(a=_article(hero)), tell(d, hero)
    elif kind == 3:
        hero, n = d.pick(HEROES), name(d)
        request, told = d.phrase(_NAMED, _NAMED_UNSEEN).format(a=_article(hero), n=n), tell(d, hero, n)
    else:
        hero, place = d.pick(HEROES), d.pick(PLACES)
        request = d.phrase(_PLACED, _PLACED_UNSEEN).format(a=_article(hero), p=_article(place))
        told = tell(d, hero, place=place)
    out = [Exchange(d.request(request, lower=kind != 3), told.text, "stories", exact=False)]
    if d.chance(0.15):
        told = tell(d)
        out.append(Exchange(d.phrase(_AGAIN, _AGAIN_UNSEEN), told.text, "stories", exact=False))
    if d.chance(0.5):
        for seen, unseen, reply in d.sample(_QUESTIONS, d.number(1, 2)):
            text = d.phrase(seen, unseen).format(**vars(told))
            out.append(Exchange(text, _with_article(reply.format(**vars(told))), "context"))
    return out


def _with_article(reply: str) -> str:
    head, separator, noun = reply.rpartition(" was a ")
    return f"{head} was {_article(noun)}" if separator else reply
