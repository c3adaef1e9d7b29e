"""Sums, differences, products and quotients with the steps written out, and follow-ups on the last result."""

# ruff: noqa: E501 (tables of phrasings)

from __future__ import annotations

from edgespec.demo_model.recipe.draw import Draw, Exchange
from edgespec.demo_model.recipe.names import THINGS, name

TOO_BIG = "Those numbers are too big for me."
BY_ZERO = "No number can be divided by zero."


def add(a: int, b: int) -> str:
    """Column by column from the right, each with its carry: `8 + 5 = 13, 7 + 6 + 1 = 14. So 78 + 65 = 143.`"""
    if a < 10 and b < 10:
        return f"{a} + {b} = {a + b}."
    steps, carry, x, y = [], 0, a, b
    while x or y:
        total = x % 10 + y % 10 + carry
        steps.append(f"{x % 10} + {y % 10}{' + 1' if carry else ''} = {total}")
        carry, x, y = total // 10, x // 10, y // 10
    return f"{', '.join(steps)}. So {a} + {b} = {a + b}."


def subtract(a: int, b: int) -> str:
    """Column by column; a column that borrows shows ten more, the next one takes 1 away."""
    if a < b:
        return f"{b} is larger. {subtract(b, a)} So {a} - {b} = -{b - a}."
    if a < 10:
        return f"{a} - {b} = {a - b}."
    steps, borrow, x, y = [], 0, a, b
    while x or y:
        top = x % 10 + (10 if x % 10 - borrow < y % 10 else 0)
        steps.append(f"{top} - {y % 10}{' - 1' if borrow else ''} = {top - y % 10 - borrow}")
        borrow, x, y = int(top > 9), x // 10, y // 10
    return f"{', '.join(steps)}. So {a} - {b} = {a - b}."


def product_steps(a: int, b: int) -> str:
    """Steps of a * b with one of them below ten, or a power of ten; empty when it is one step."""
    if a < b:
        a, b = b, a
    if a < 10 or (a % 10 == 0 and a <= 90) or b in (0, 1) or a in (100, 1000):
        return f"{a} * {b} = {a * b}"
    tens, ones = a // 10 * 10, a % 10
    return f"{tens} * {b} = {tens * b}, {ones} * {b} = {ones * b}, {tens * b} + {ones * b} = {a * b}"


def multiply(a: int, b: int) -> str:
    steps = product_steps(a, b)
    result = f"{a} * {b} = {a * b}"
    return f"{steps}." if steps == result else f"{steps}. So {result}."


def divide(a: int, b: int) -> str:
    q, r = divmod(a, b)
    rest = f", {a} - {b * q} = {r}" if r else ""
    return f"{b} * {q} = {b * q}{rest}. So {a} / {b} = {q}{f' remainder {r}' if r else ''}."


_ADD = (
    "What is {a} + {b}?", "{a} + {b}", "{a}+{b}", "{a} + {b} = ?", "What is {a} plus {b}?", "{a} plus {b}",
    "Add {a} and {b}.", "How much is {a} plus {b}?", "Calculate {a} + {b}.", "What do {a} and {b} make together?",
    "What is the sum of {a} and {b}?", "Add {b} to {a}.", "Compute {a} plus {b}.", "What's {a}+{b}?",
    "I need {a} + {b}.", "How much is {a} + {b}?", "Give me the sum of {a} and {b}.", "{a} and {b} added together?",
    "Figure out {a} + {b}.", "I would like to add {a} and {b}.", "Tell me {a} plus {b}.",
)  # fmt: skip
_ADD_UNSEEN = (
    "What does {a} + {b} make?", "How much is {a} and {b} together?", "Tell me the sum of {a} and {b}.",
    "I want to add {a} and {b}.", "Work out {a} + {b}.", "Please give me {a} plus {b}.", "What's the sum of {a} and {b}?",
)  # fmt: skip
_SUB = (
    "What is {a} - {b}?", "{a} - {b}", "{a}-{b}", "{a} - {b} = ?", "What is {a} minus {b}?", "{a} minus {b}",
    "Subtract {b} from {a}.", "How much is {a} minus {b}?", "Calculate {a} - {b}.", "Take {b} away from {a}.",
    "What is the difference of {a} and {b}?", "Compute {a} minus {b}.", "What's {a}-{b}?", "I need {a} - {b}.",
    "How much is {a} - {b}?", "What is left when I take {b} from {a}?", "Figure out {a} - {b}.",
    "I would like to subtract {b} from {a}.", "Tell me {a} minus {b}.",
)  # fmt: skip
_SUB_UNSEEN = (
    "What does {a} - {b} make?", "Tell me the difference of {a} and {b}.", "I want to subtract {b} from {a}.",
    "Work out {a} - {b}.", "Please give me {a} minus {b}.", "What's {a} minus {b}?",
)  # fmt: skip
_MUL = (
    "What is {a} * {b}?", "{a} * {b}", "{a}*{b}", "{a} * {b} = ?", "What is {a} times {b}?", "{a} times {b}",
    "Multiply {a} by {b}.", "How much is {a} times {b}?", "Calculate {a} * {b}.", "{a} x {b}", "What is {a} x {b}?",
    "What is the product of {a} and {b}?", "Compute {a} times {b}.", "What's {a}*{b}?", "I need {a} * {b}.",
    "Multiply {a} and {b}.", "How much is {a} multiplied by {b}?", "Figure out {a} * {b}.",
    "I would like to multiply {a} by {b}.", "Tell me {a} times {b}.",
)  # fmt: skip
_MUL_UNSEEN = (
    "What does {a} * {b} make?", "Tell me the product of {a} and {b}.", "I want to multiply {a} by {b}.",
    "Work out {a} * {b}.", "Please give me {a} times {b}.", "What is {a} multiplied by {b}?",
)  # fmt: skip
_DIV = (
    "What is {a} / {b}?", "{a} / {b}", "{a}/{b}", "{a} / {b} = ?", "What is {a} divided by {b}?", "{a} divided by {b}",
    "Divide {a} by {b}.", "How much is {a} divided by {b}?", "Calculate {a} / {b}.", "How often does {b} go into {a}?",
    "Compute {a} divided by {b}.", "What's {a}/{b}?", "I need {a} / {b}.", "Figure out {a} / {b}.",
    "I would like to divide {a} by {b}.", "Tell me {a} divided by {b}.",
)  # fmt: skip
_DIV_UNSEEN = (
    "What does {a} / {b} make?", "I want to divide {a} by {b}.", "Work out {a} / {b}.",
    "Please give me {a} divided by {b}.", "How many times does {b} go into {a}?",
)  # fmt: skip
_DOUBLE = (
    "Double {a}.",
    "What is twice {a}?",
    "What is double {a}?",
    "What is {a} doubled?",
    "Two times {a}?",
    "Twice {a}?",
)
_DOUBLE_UNSEEN = ("How much is twice {a}?", "What's double {a}?", "Calculate the double of {a}.")
_COMPARE = (
    "Which is larger, {a} or {b}?",
    "Which number is bigger: {a} or {b}?",
    "Is {a} or {b} larger?",
    "What is larger, {a} or {b}?",
    "Compare {a} and {b}.",
)
_COMPARE_UNSEEN = (
    "Which one is larger: {a} or {b}?",
    "Tell me which is bigger, {a} or {b}.",
    "Is {a} or {b} the bigger number?",
)
_PARITY = (
    "Is {a} even or odd?",
    "Is {a} even?",
    "Is {a} odd?",
    "Is {a} an even number?",
    "Is the number {a} even or odd?",
    "{a}: even or odd?",
)
_PARITY_UNSEEN = ("Is {a} an odd number?", "Tell me if {a} is even or odd.", "Is the number {a} odd?")
_NEXT = (
    "Which number comes after {a}?",
    "What comes after {a}?",
    "What is the next number after {a}?",
    "Count on from {a}.",
)
_NEXT_UNSEEN = ("What number follows after {a}?", "Tell me which number comes after {a}.")
_THREE = (
    "What is {a} + {b} + {c}?",
    "{a} + {b} + {c}",
    "{a}+{b}+{c}",
    "Add {a}, {b} and {c}.",
    "What is the sum of {a}, {b} and {c}?",
    "How much is {a} plus {b} plus {c}?",
)
_THREE_UNSEEN = (
    "Calculate {a} + {b} + {c}.",
    "What do {a}, {b} and {c} make together?",
    "Give me the sum of {a}, {b} and {c}.",
)
_GAIN = (
    "{n} has {a} {t} and buys {b} more. How many {t} does {n} have?", "{n} has {a} {t}. {m} gives {n} {b} more. How many {t} does {n} have now?",
    "{n} had {a} {t} and found {b} more. How many {t} are there?", "{n} has {a} {t} and gets {b} more from {m}. How many {t} does {n} have now?",
)  # fmt: skip
_GAIN_UNSEEN = (
    "{n} has {a} {t} and finds {b} more. How many {t} does {n} have now?",
    "{n} had {a} {t} and {m} gives {n} {b} more. How many {t} are there?",
)
_LOSS = (
    "{n} has {a} {t} and gives {b} away. How many {t} are left?", "{n} has {a} {t}. {n} loses {b}. How many {t} does {n} have left?",
    "{n} had {a} {t} and ate {b}. How many {t} are left?", "{n} has {a} {t} and gives {b} to {m}. How many {t} does {n} have left?",
)  # fmt: skip
_LOSS_UNSEEN = (
    "{n} has {a} {t} and loses {b}. How many {t} are left?",
    "{n} had {a} {t} and gives {b} to {m}. How many {t} does {n} have left?",
)


def _value(d: Draw) -> int:
    """Small numbers more often than large ones, as people ask."""
    return d.number(0, d.pick((9, 20, 99, 99, 99, 999, 999)))


def _pair(d: Draw) -> tuple[int, int]:
    return _value(d), _value(d)


def _factors(d: Draw) -> tuple[int, int]:
    a, b = d.number(2, d.pick((9, 12, 99, 99))), d.number(0 if d.chance(0.1) else 2, 9)
    if d.chance(0.12):
        b = d.pick((10, 100))
    return (a, b) if d.chance(0.6) else (b, a)


def _quotient(d: Draw) -> tuple[int, int]:
    b = d.number(2, 9)
    return b * d.number(1, 9) + (d.number(0, b - 1) if d.chance(0.5) else 0), b


def _big(d: Draw) -> tuple[str, str, int, int]:
    """A question beyond what is taught, per operation."""
    kind = d.number(0, 3)
    if kind < 2:
        a, b = d.arguments(lambda: (d.number(1000, 99999), d.number(1, d.pick((99, 9999)))), "big")
        a, b = (a, b) if d.chance(0.5) else (b, a)
        return d.phrase((_ADD, _SUB)[kind], (_ADD_UNSEEN, _SUB_UNSEEN)[kind]), TOO_BIG, a, b
    if kind == 2:
        a, b = d.arguments(lambda: (d.number(11, 999), d.number(11, 99)), "big product")
        a, b = (a + 1 if a == 100 else a), b
        return d.phrase(_MUL, _MUL_UNSEEN), TOO_BIG, a, b
    a, b = d.arguments(lambda: (d.number(100, 999), d.number(2, 9)), "big quotient")
    if d.chance(0.15):
        return d.phrase(_DIV, _DIV_UNSEEN), BY_ZERO, a, 0
    return d.phrase(_DIV, _DIV_UNSEEN), TOO_BIG, a, b


def _follow_up(d: Draw, result: int) -> tuple[str, str, int] | None:
    """A question that refers to the result before it, its answer and the new result."""
    if not 0 <= result <= 499:
        return None
    kind = d.pick(("double", "plus", "minus"))
    if kind == "double":
        text = d.phrase(
            ("And double that?", "Double that.", "And twice that?", "Now double it.", "What is double that?"),
            ("And what is twice that?", "Please double that.", "What is twice that?"),
        )
        return text, add(result, result), 2 * result
    b = d.number(1, 99)
    if kind == "plus":
        text = d.phrase(
            (
                "And plus {b}?",
                "Add {b} to that.",
                "Now add {b}.",
                "Plus {b}?",
                "And {b} more?",
                "What is that plus {b}?",
            ),
            ("Now plus {b}.", "Please add {b} to that.", "And that plus {b}?"),
        )
        return text.format(b=b), add(result, b), result + b
    if b > result:
        return None
    text = d.phrase(
        (
            "And minus {b}?",
            "Subtract {b} from that.",
            "Now subtract {b}.",
            "Minus {b}?",
            "What is that minus {b}?",
            "Take {b} away from that.",
        ),
        ("Now minus {b}.", "Please subtract {b} from that.", "And that minus {b}?"),
    )
    return text.format(b=b), subtract(result, b), result - b


def calculation(d: Draw) -> list[Exchange]:
    """One calculation, and sometimes one or two more with its result."""
    kind = d.pick(("add", "add", "add", "sub", "sub", "sub", "mul", "mul", "mul", "div", "big", "double"))
    a, b, result = 0, 0, -1
    if kind == "add":
        a, b = d.arguments(lambda: _pair(d), "add")
        text, reply, result = d.phrase(_ADD, _ADD_UNSEEN), add(a, b), a + b
    elif kind == "sub":
        a, b = d.arguments(lambda: _pair(d), "sub")
        if d.chance(0.85):
            a, b = max(a, b), min(a, b)
        text, reply, result = d.phrase(_SUB, _SUB_UNSEEN), subtract(a, b), a - b
    elif kind == "mul":
        a, b = d.arguments(lambda: _factors(d), "mul")
        text, reply, result = d.phrase(_MUL, _MUL_UNSEEN), multiply(a, b), a * b
    elif kind == "div":
        a, b = d.arguments(lambda: _quotient(d), "div")
        text, reply, result = d.phrase(_DIV, _DIV_UNSEEN), divide(a, b), a // b if a % b == 0 else -1
    elif kind == "big":
        text, reply, a, b = _big(d)
    else:
        a = d.arguments(lambda: _value(d), "double")
        text, reply, result = d.phrase(_DOUBLE, _DOUBLE_UNSEEN), add(a, a), 2 * a
    out = [Exchange(d.question(text.format(a=a, b=b)), reply, "arithmetic")]
    while d.chance(0.25) and (more := _follow_up(d, result)):
        out.append(Exchange(d.question(more[0]), more[1], "follow-up"))
        result = more[2]
    return out


def number_question(d: Draw) -> list[Exchange]:
    """Comparison, even or odd, the next number, three summands, and small word problems."""
    kind = d.pick(("compare", "parity", "next", "three", "gain", "loss", "gain", "loss"))
    if kind in ("gain", "loss"):
        return [_word_problem(d, kind)]
    if kind == "compare":
        a, b = d.arguments(lambda: _pair(d), kind)
        text = d.phrase(_COMPARE, _COMPARE_UNSEEN).format(a=a, b=b)
        reply = f"{max(a, b)} is larger than {min(a, b)}." if a != b else "They are equal."
    elif kind == "parity":
        a = d.arguments(lambda: _value(d), kind)
        text = d.phrase(_PARITY, _PARITY_UNSEEN).format(a=a)
        reply = f"{a} ends in {a % 10}, so it is {'odd' if a % 2 else 'even'}."
    elif kind == "next":
        a = d.arguments(lambda: _value(d), kind)
        text, reply = d.phrase(_NEXT, _NEXT_UNSEEN).format(a=a), f"After {a} comes {a + 1}."
    else:
        a, b, c = d.arguments(lambda: (d.number(1, 9), d.number(1, 9), d.number(1, 9)), kind)
        text = d.phrase(_THREE, _THREE_UNSEEN).format(a=a, b=b, c=c)
        reply = f"{a} + {b} = {a + b}, {a + b} + {c} = {a + b + c}. So {a} + {b} + {c} = {a + b + c}."
    return [Exchange(d.question(text), reply, "numbers")]


def _word_problem(d: Draw, kind: str) -> Exchange:
    n, m, thing = name(d), name(d), d.pick(THINGS)
    a, b = d.arguments(lambda: (d.number(2, 99), d.number(1, d.pick((9, 40)))), kind)
    if kind == "gain":
        text, steps, result = d.phrase(_GAIN, _GAIN_UNSEEN), add(a, b), a + b
    else:
        a, b = max(a, b), min(a, b)
        text, steps, result = d.phrase(_LOSS, _LOSS_UNSEEN), subtract(a, b), a - b
    return Exchange(
        text.format(n=n, m=m, a=a, b=b, t=thing), f"{steps} The answer is {result} {thing}.", "word problems"
    )
