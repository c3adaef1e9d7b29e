"""Weekdays, months and dates."""

# ruff: noqa: E501 (tables of phrasings)

from __future__ import annotations

from edgespec.demo_model.recipe.draw import Draw, Exchange

DAYS = ("Monday", "Tuesday", "Wednesday", "Thursday", "Friday", "Saturday", "Sunday")
MONTHS = (
    "January", "February", "March", "April", "May", "June", "July", "August", "September", "October", "November",
    "December",
)  # fmt: skip
LENGTHS = (28, 31, 30)  # February, the long months, the others
ORDINALS = (
    "first", "second", "third", "fourth", "fifth", "sixth", "seventh", "eighth", "ninth", "tenth", "eleventh",
    "twelfth",
)  # fmt: skip


def month_length(month: int) -> int:
    """Days of month 0..11 in a common year."""
    return 28 if month == 1 else 30 if month in (3, 5, 8, 10) else 31


_AFTER = (
    "Which {u} comes after {x}?",
    "What {u} is after {x}?",
    "What comes after {x}?",
    "What is the {u} after {x}?",
    "Which {u} follows {x}?",
)
_AFTER_UNSEEN = ("What {u} comes after {x}?", "Which {u} is after {x}?", "What {u} follows {x}?")
_BEFORE = (
    "Which {u} comes before {x}?",
    "What {u} is before {x}?",
    "What comes before {x}?",
    "What is the {u} before {x}?",
)
_BEFORE_UNSEEN = ("What {u} comes before {x}?", "Which {u} is before {x}?")
_LATER = (
    "What day is it {n} days after {x}?", "Today is {x}. What day is it in {n} days?", "What day is {n} days after {x}?",
    "If today is {x}, what day is it in {n} days?", "Which day is {n} days after {x}?", "{n} days after {x} is which day?",
    "It is {x}. Which day comes in {n} days?",
)  # fmt: skip
_LATER_UNSEEN = (
    "Which day is it {n} days after {x}?",
    "Today is {x}. Which day is it in {n} days?",
    "It is {x}. What day is it in {n} days?",
)
_LENGTH = (
    "How many days does {x} have?",
    "How many days are in {x}?",
    "How long is {x}?",
    "How many days are there in {x}?",
    "What is the number of days in {x}?",
)
_LENGTH_UNSEEN = ("How many days has {x}?", "Tell me how many days {x} has.", "How many days long is {x}?")
_NTH = (
    "What is the {n} month?",
    "Which month is the {n}?",
    "What is the {n} month of the year?",
    "Which is the {n} month?",
    "Name the {n} month.",
)
_NTH_UNSEEN = (
    "Which month is the {n} month?",
    "Tell me the {n} month.",
    "Which month is the {n} of the year?",
)
_NEXT_DATE = (
    "Which date comes after {x}?",
    "What date is the day after {x}?",
    "What comes after {x}?",
    "What is the date after {x}?",
    "Today is {x}. What date is tomorrow?",
    "What is the day after {x}?",
)
_NEXT_DATE_UNSEEN = (
    "What date comes after {x}?",
    "Today is {x}. Which date is tomorrow?",
    "Which date is the day after {x}?",
)
_WEEKEND = (
    "Is {x} on the weekend?",
    "Is {x} a weekday or the weekend?",
    "Is {x} part of the weekend?",
    "Is {x} a weekday?",
    "Is {x} a working day?",
)
_WEEKEND_UNSEEN = ("Is {x} in the weekend?", "Is {x} a weekend day?", "Does {x} belong to the weekend?")


def _cyclic(d: Draw) -> Exchange:
    names, unit = d.pick(((DAYS, "day"), (MONTHS, "month")))
    i = d.number(0, len(names) - 1)
    if d.chance(0.5):
        text = d.phrase(_AFTER, _AFTER_UNSEEN)
        reply = f"After {names[i]} comes {names[(i + 1) % len(names)]}."
    else:
        text = d.phrase(_BEFORE, _BEFORE_UNSEEN)
        reply = f"Before {names[i]} comes {names[i - 1]}."
    return Exchange(d.question(text.format(u=unit, x=names[i])), reply, "dates")


def _later(d: Draw) -> Exchange:
    day, n = d.arguments(lambda: (d.number(0, 6), d.number(2, 10)), "days later")
    text = d.phrase(_LATER, _LATER_UNSEEN).format(x=DAYS[day], n=n)
    steps = ", ".join(f"{k} {DAYS[(day + k) % 7]}" for k in range(1, n + 1))
    return Exchange(d.question(text), f"{steps}. So it is {DAYS[(day + n) % 7]}.", "dates")


def _next_date(d: Draw) -> Exchange:
    def sample() -> tuple[int, int]:
        month = d.number(0, 11)
        last = month_length(month)
        return month, last if d.chance(0.3) else d.number(1, last)

    month, day = d.arguments(sample, "date")
    text = d.phrase(_NEXT_DATE, _NEXT_DATE_UNSEEN).format(x=f"{day} {MONTHS[month]}")
    if day < month_length(month):
        reply = f"After {day} {MONTHS[month]} comes {day + 1} {MONTHS[month]}."
    else:
        reply = f"{MONTHS[month]} has {day} days, so after {day} {MONTHS[month]} comes 1 {MONTHS[(month + 1) % 12]}."
    return Exchange(d.question(text), reply, "dates")


def date_question(d: Draw) -> list[Exchange]:
    """One question about days, months or dates."""
    kind = d.number(0, 7)
    if kind < 2:
        return [_cyclic(d)]
    if kind < 4:
        return [_later(d)]
    if kind < 5:
        return [_next_date(d)]
    month = d.number(0, 11)
    if kind == 5:
        text = d.phrase(_LENGTH, _LENGTH_UNSEEN).format(x=MONTHS[month])
        extra = ", or 29 in a leap year" if month == 1 else ""
        reply = f"{MONTHS[month]} has {month_length(month)} days{extra}."
    elif kind == 6:
        text = d.phrase(_NTH, _NTH_UNSEEN).format(n=ORDINALS[month])
        reply = f"The {ORDINALS[month]} month is {MONTHS[month]}."
    else:
        day = d.number(0, 6)
        text = d.phrase(_WEEKEND, _WEEKEND_UNSEEN).format(x=DAYS[day])
        reply = f"{DAYS[day]} is {'on the weekend' if day > 4 else 'a weekday'}."
    return [Exchange(d.question(text), reply, "dates")]
