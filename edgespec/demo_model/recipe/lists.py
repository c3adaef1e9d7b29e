"""Lists of words and numbers: sort, count, pick, reverse, search."""

# ruff: noqa: E501, SIM905 (tables, easier to read and to extend as text)

from __future__ import annotations

from edgespec.demo_model.recipe.calendar import ORDINALS
from edgespec.demo_model.recipe.draw import Draw, Exchange

WORDS = tuple(
    "apple pear plum cherry lemon grape melon fig mango peach "  # fruit
    "cat dog horse cow sheep goat fox bear wolf owl duck mouse frog fish bee "  # animals
    "red blue green yellow black white brown pink grey purple "  # colours
    "table chair lamp door window spoon fork knife plate cup book pen paper clock key bed box bag "  # things
    "sun moon star cloud rain snow wind river lake hill tree rose leaf stone sand sea "  # nature
    "bread milk cheese butter egg rice soup salt sugar honey tea".split()  # food
)
_JOIN = (", ", ", ", ", ", " ")

_COUNT = (
    "How many items are in this list: {x}?",
    "Count these: {x}",
    "How many words are there: {x}?",
    "Count the items: {x}",
    "How many are these: {x}?",
    "How many things are in the list {x}?",
    "How long is this list: {x}?",
)
_COUNT_UNSEEN = (
    "How many words are in this list: {x}?",
    "How many items are there: {x}?",
    "Count the words: {x}",
    "How many things are these: {x}?",
)
_FIRST = (
    "What is the first item: {x}?",
    "What is the first word in this list: {x}?",
    "Which comes first: {x}?",
    "Name the first item of this list: {x}",
    "The first of these: {x}",
)
_FIRST_UNSEEN = (
    "What is the first item in this list: {x}?",
    "Name the first word: {x}",
    "Which item comes first: {x}?",
)
_LAST = (
    "What is the last item: {x}?",
    "What is the last word in this list: {x}?",
    "Which comes last: {x}?",
    "Name the last item of this list: {x}",
    "The last of these: {x}",
)
_LAST_UNSEEN = (
    "What is the last item in this list: {x}?",
    "Name the last word: {x}",
    "Which item comes last: {x}?",
)
_NTH = (
    "What is the {n} item: {x}?",
    "What is the {n} word in this list: {x}?",
    "Name the {n} item of this list: {x}",
    "The {n} of these: {x}",
    "Which is {n}: {x}?",
)
_NTH_UNSEEN = ("What is the {n} item in this list: {x}?", "Name the {n} word: {x}", "Which item is {n}: {x}?")
_REVERSE = (
    "Reverse this list: {x}",
    "Reverse: {x}",
    "Reverse the words: {x}",
    "Write this list backwards: {x}",
    "Turn this list around: {x}",
    "Put these in reverse order: {x}",
    "Say these backwards: {x}",
)
_REVERSE_UNSEEN = (
    "Reverse the list: {x}",
    "Write these backwards: {x}",
    "Reverse the order: {x}",
    "Reverse these words: {x}",
)
_SORT_WORDS = (
    "Sort these words: {x}",
    "Sort: {x}",
    "Sort this list: {x}",
    "Put these words in alphabetical order: {x}",
    "Sort alphabetically: {x}",
    "Order these words: {x}",
    "Sort these by the alphabet: {x}",
)
_SORT_WORDS_UNSEEN = (
    "Sort the words: {x}",
    "Put this list in alphabetical order: {x}",
    "Sort these words alphabetically: {x}",
)
_SORT = (
    "Sort these numbers: {x}",
    "Sort: {x}",
    "Sort this list: {x}",
    "Put these numbers in order: {x}",
    "Order these numbers: {x}",
    "Sort the numbers from small to large: {x}",
    "Sort from smallest to largest: {x}",
)
_SORT_UNSEEN = (
    "Sort the numbers: {x}",
    "Put the numbers in order: {x}",
    "Sort these from small to large: {x}",
)
_LARGEST = (
    "What is the largest of {x}?",
    "Which number is the largest: {x}?",
    "What is the biggest number: {x}?",
    "Find the largest number: {x}",
    "What is the maximum of {x}?",
    "The largest of {x}?",
)
_LARGEST_UNSEEN = ("Which is the largest: {x}?", "What is the largest number: {x}?", "Find the biggest: {x}")
_SMALLEST = (
    "What is the smallest of {x}?",
    "Which number is the smallest: {x}?",
    "What is the smallest number: {x}?",
    "Find the smallest number: {x}",
    "What is the minimum of {x}?",
    "The smallest of {x}?",
)
_SMALLEST_UNSEEN = (
    "Which is the smallest: {x}?",
    "What is the smallest number in {x}?",
    "Find the smallest: {x}",
)
_CONTAINS = (
    "Is {w} in this list: {x}?",
    "Does this list contain {w}: {x}?",
    "Is there {w} in {x}?",
    "Is {w} one of these: {x}?",
)
_CONTAINS_UNSEEN = ("Is {w} in the list: {x}?", "Does the list contain {w}: {x}?", "Is {w} one of {x}?")
_FOLLOW = (
    ("And sorted?", "Now sort them.", "Sort them.", "And in alphabetical order?"),
    ("And backwards?", "Now reverse them.", "Reverse them.", "And in reverse order?"),
    ("How many are there?", "Count them.", "How many is that?", "And how many are these?"),
    ("And the last one?", "Which is the last?", "What is the last one?", "Now the last one."),
    ("And the first one?", "Which is the first?", "What is the first one?", "Now the first one."),
)
_FOLLOW_UNSEEN = (
    ("Please sort them.", "And now sorted?"), ("Please reverse them.", "And now backwards?"),
    ("Please count them.", "And how many are there?"), ("And which is the last one?", "Tell me the last one."),
    ("And which is the first one?", "Tell me the first one."),
)  # fmt: skip


def count(items: list[str]) -> str:
    steps = ", ".join(f"{i} {w}" for i, w in enumerate(items, 1))
    return f"{steps}. The list has {len(items)} items."


def _operation(kind: int, items: list[str]) -> str:
    if kind == 0:
        return f"Sorted: {', '.join(sorted(items))}"
    if kind == 1:
        return f"Reversed: {', '.join(reversed(items))}"
    if kind == 2:
        return count(items)
    return f"The last item is {items[-1]}." if kind == 3 else f"The first item is {items[0]}."


def word_list(d: Draw) -> list[Exchange]:
    """A question about a list of words, and sometimes a second about the same list."""
    items = d.arguments(lambda: d.sample(WORDS, d.number(3, 4)), "words")
    x = d.pick(_JOIN).join(items)
    kind = d.number(0, 6)
    if kind < 5:
        seen = (_SORT_WORDS, _REVERSE, _COUNT, _LAST, _FIRST)[kind]
        unseen = (_SORT_WORDS_UNSEEN, _REVERSE_UNSEEN, _COUNT_UNSEEN, _LAST_UNSEEN, _FIRST_UNSEEN)[kind]
        text, reply = d.phrase(seen, unseen), _operation(kind, items)
    elif kind == 5:
        n = d.number(0, min(len(items), 5) - 1)
        text = d.phrase(_NTH, _NTH_UNSEEN).replace("{n}", ORDINALS[n])
        reply = f"The {ORDINALS[n]} item is {items[n]}."
    else:
        word = d.pick(items) if d.chance(0.5) else d.pick(WORDS)
        text = d.phrase(_CONTAINS, _CONTAINS_UNSEEN).replace("{w}", word)
        reply = f"Yes, {word} is in the list." if word in items else f"No, {word} is not in the list."
    out = [
        Exchange(d.request(text.format(x=x)) if kind < 3 else d.question(text.format(x=x)), reply, "lists")
    ]
    if d.chance(0.25):
        follow = d.number(0, 4)
        text = d.phrase(_FOLLOW[follow], _FOLLOW_UNSEEN[follow])
        # The reply refers to the list as first given, whatever was done with it in between.
        out.append(Exchange(d.question(text), _operation(follow, items), "follow-up"))
    return out


def number_list(d: Draw) -> list[Exchange]:
    """Sort numbers, or find the largest or smallest."""
    numbers = d.arguments(lambda: d.sample(range(1, d.pick((20, 100, 100))), d.number(3, 4)), "numbers")
    x = ", ".join(map(str, numbers))
    kind = d.number(0, 3)
    if kind < 2:
        return [
            Exchange(
                d.request(d.phrase(_SORT, _SORT_UNSEEN).format(x=x)),
                f"Sorted: {', '.join(map(str, sorted(numbers)))}",
                "lists",
            )
        ]
    if kind == 2:
        text, reply = d.phrase(_LARGEST, _LARGEST_UNSEEN), f"The largest number is {max(numbers)}."
    else:
        text, reply = d.phrase(_SMALLEST, _SMALLEST_UNSEEN), f"The smallest number is {min(numbers)}."
    return [Exchange(d.question(text.format(x=x)), reply, "lists")]
