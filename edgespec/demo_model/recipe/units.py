"""Conversions between units, with the factor named and the product worked out."""

# ruff: noqa: E501 (tables of phrasings)

from __future__ import annotations

from dataclasses import dataclass

from edgespec.demo_model.recipe.arithmetic import product_steps
from edgespec.demo_model.recipe.draw import Draw, Exchange


@dataclass(frozen=True)
class Measure:
    """`1 big is factor small`; each unit as (singular, plural, abbreviation)."""

    big: tuple[str, str, str]
    small: tuple[str, str, str]
    factor: int


UNITS = (
    Measure(("kilometre", "kilometres", "km"), ("metre", "metres", "m"), 1000),
    Measure(("metre", "metres", "m"), ("centimetre", "centimetres", "cm"), 100),
    Measure(("centimetre", "centimetres", "cm"), ("millimetre", "millimetres", "mm"), 10),
    Measure(("kilogram", "kilograms", "kg"), ("gram", "grams", "g"), 1000),
    Measure(("tonne", "tonnes", "t"), ("kilogram", "kilograms", "kg"), 1000),
    Measure(("litre", "litres", "l"), ("millilitre", "millilitres", "ml"), 1000),
    Measure(("hour", "hours", "h"), ("minute", "minutes", "min"), 60),
    Measure(("minute", "minutes", "min"), ("second", "seconds", "s"), 60),
    Measure(("day", "days", ""), ("hour", "hours", "h"), 24),
    Measure(("week", "weeks", ""), ("day", "days", ""), 7),
    Measure(("year", "years", ""), ("month", "months", ""), 12),
    Measure(("foot", "feet", "ft"), ("inch", "inches", "in"), 12),
    Measure(("euro", "euros", ""), ("cent", "cents", ""), 100),
    Measure(("gigabyte", "gigabytes", "GB"), ("megabyte", "megabytes", "MB"), 1000),
)

_ASK = (
    "How many {to} are {n} {of}?", "How many {to} are in {n} {of}?", "Convert {n} {of} to {to}.", "{n} {of} in {to}",
    "What is {n} {of} in {to}?", "How many {to} do {n} {of} have?", "{n} {of} to {to}", "How much is {n} {of} in {to}?",
    "Change {n} {of} into {to}.", "{n} {of} are how many {to}?", "I have {n} {of}. How many {to} is that?",
)  # fmt: skip
_ASK_UNSEEN = (
    "How many {to} is {n} {of}?", "Convert {n} {of} into {to}.", "What are {n} {of} in {to}?",
    "Tell me how many {to} are in {n} {of}.", "{n} {of} is how many {to}?",
)  # fmt: skip
_FACTOR = (
    "How many {to} are in one {of}?", "How many {to} are in a {of}?", "How many {to} does a {of} have?",
    "How many {to} make one {of}?", "How many {to} are there in one {of}?",
)  # fmt: skip
_FACTOR_UNSEEN = (
    "How many {to} does one {of} have?",
    "How many {to} make a {of}?",
    "Tell me how many {to} are in a {of}.",
)


def _count(d: Draw, unit: Measure) -> int:
    """Counts whose product is within what the model can multiply."""
    return d.number(2, 9 if unit.factor in (12, 24, 60) else 99)


def conversion(d: Draw) -> list[Exchange]:
    """One conversion down (hours to minutes) or up (180 minutes to hours), or the factor alone."""
    kind = d.pick(("down", "down", "down", "up", "factor"))
    if kind == "factor":
        unit = d.pick(UNITS)
        text = d.phrase(_FACTOR, _FACTOR_UNSEEN).format(of=unit.big[0], to=unit.small[1])
        return [Exchange(d.question(text), f"1 {unit.big[0]} is {unit.factor} {unit.small[1]}.", "units")]

    def sample() -> tuple[int, int]:
        index = d.number(0, len(UNITS) - 1)
        return index, d.number(2, 9) if kind == "up" else _count(d, UNITS[index])

    index, n = d.arguments(sample, f"unit {kind}")
    unit = UNITS[index]
    big, small, total = unit.big[1], unit.small[1], n * unit.factor
    asked_big, asked_small = unit.big[1], unit.small[1]
    if unit.big[2] and unit.small[2] and d.chance(0.3):
        asked_big, asked_small = unit.big[2], unit.small[2]
    if kind == "down":
        text = d.phrase(_ASK, _ASK_UNSEEN).format(n=n, of=asked_big, to=asked_small)
        steps = product_steps(unit.factor, n)
        reply = f"1 {unit.big[0]} is {unit.factor} {small}. {steps}. So {n} {big} are {total} {small}."
    else:
        text = d.phrase(_ASK, _ASK_UNSEEN).format(n=total, of=asked_small, to=asked_big)
        reply = f"1 {unit.big[0]} is {unit.factor} {small}. {unit.factor} * {n} = {total}. So {total} {small} are {n} {big}."
    return [Exchange(d.question(text, lower=False), reply, "units")]
