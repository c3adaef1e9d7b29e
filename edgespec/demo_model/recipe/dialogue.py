"""Conversations: the mixture of all parts, and what links their turns."""

from __future__ import annotations

from collections.abc import Callable

from edgespec.demo_model.recipe.arithmetic import calculation, number_question
from edgespec.demo_model.recipe.calendar import date_question
from edgespec.demo_model.recipe.draw import TRAINING, Draw, Exchange, Split
from edgespec.demo_model.recipe.facts import fact
from edgespec.demo_model.recipe.lists import number_list, word_list
from edgespec.demo_model.recipe.product import product_question
from edgespec.demo_model.recipe.product_questions import is_held_out_question
from edgespec.demo_model.recipe.smalltalk import ask_name, smalltalk, tell_name
from edgespec.demo_model.recipe.stories import story
from edgespec.demo_model.recipe.units import conversion
from edgespec.demo_model.recipe.unknown import unknown

Part = Callable[[Draw], list[Exchange]]

# Weights follow how hard a part is to learn: arithmetic needs the most examples.
PARTS: tuple[tuple[Part, int], ...] = (
    (calculation, 30),
    (number_question, 17),
    (conversion, 11),
    (date_question, 10),
    (word_list, 26),
    (number_list, 12),
    (fact, 24),
    (product_question, 130),  # more than 220 topics, asked in every way
    (smalltalk, 20),
    (unknown, 50),
    (story, 4),
)
_DECK = tuple(part for part, weight in PARTS for _ in range(weight))


def conversation(seed: str, split: Split = TRAINING, turns: int | None = None) -> list[Exchange]:
    """One conversation of at least `turns` exchanges (default: mostly one to four).

    The same seed gives the same conversation on every machine.
    """
    d = Draw(seed, split)
    turns = turns or d.pick((1, 1, 1, 2, 2, 3, 4))
    out: list[Exchange] = []
    told: str | None = None
    while len(out) < turns:
        if d.chance(0.05):
            opening, told = tell_name(d)
            out.append(opening)
            if d.chance(0.4):
                out.append(ask_name(d, told))
        elif d.chance(0.14 if told else 0.01):
            out.append(ask_name(d, told))
        else:
            out.extend(_part(d))
    return out


def _part(d: Draw) -> list[Exchange]:
    """Some part's exchanges: in training, of none that ask what the exam asks."""
    while True:
        exchanges = d.pick(_DECK)(d)
        if d.split.unseen_phrasings or not any(is_held_out_question(e.user) for e in exchanges):
            return exchanges
