"""What a chat template may use: work, characters and parts, counted and not timed.

A template fails, or passes, the same on every machine. Every value is bounded when it is made, those that one
operation could blow up before.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator, Mapping
from contextvars import ContextVar
from typing import Any

# One unit is about 20 ns of work.
WORK = 30_000_000  # units a rendering may use; a hostile template fails within a second or so
CHARACTERS = 4_000_000  # of one value or of all output, beside room for the messages themselves
NODES = 100_000  # of one value: a list of lists counts all of them
DEPTH = 60
BITS = 4096  # of an integer
TURN = 20  # a loop turn, an output, an operator
CALL = 150  # of a function, a macro, a filter or a test
_NODE = 15

# Filters that do not look into what they get.
_SHALLOW = {"attr", "batch", "count", "d", "default", "first", "items", "last", "length", "list", "map"}
_SHALLOW |= {"reject", "rejectattr", "reverse", "select", "selectattr", "slice"}

_CONTAINERS: Any = (list, tuple, dict, type({}.keys()), type({}.values()), type({}.items()))


class LimitError(Exception):
    """The template uses too much. (Not a TemplateError: nothing inside a template handles it.)"""


class Meter:
    """What one rendering may still use; `size`, (characters, nodes) of its input, adds room for that."""

    def __init__(self, size: tuple[int, int] = (0, 0)) -> None:
        self._work = WORK + 20 * size[0]
        self._characters = CHARACTERS + 4 * size[0]
        self._nodes = NODES + 4 * size[1]
        self._output = 0

    def spend(self, units: int) -> None:
        self._work -= units
        if self._work < 0:
            raise LimitError("it works too long")

    def made(self, value: Any) -> Any:
        """Charge a value that was just made, and refuse a huge one."""
        characters, count = self.measure(value)
        self.spend(characters // 4 if isinstance(value, str) else count * _NODE)
        return value

    def read(self, value: Any) -> Any:
        """Charge for going through a value that exists."""
        characters, count = self.measure(value)
        self.spend(characters // 16 + count * _NODE)
        return value

    def measure(self, value: Any) -> tuple[int, int]:
        """(characters, nodes) of a value as if it had no shared parts; refuses what passes a bound."""
        characters = count = 0
        waiting: list[tuple[Any, int]] = [(value, 0)]
        while waiting:
            item, depth = waiting.pop()
            count += 1
            if isinstance(item, str):
                characters += len(item)
            elif isinstance(item, int) and item.bit_length() > BITS:
                raise LimitError(f"it computes with numbers of over {BITS} bits")
            elif isinstance(item, _CONTAINERS):
                if depth == DEPTH:
                    raise LimitError(f"it nests values more than {DEPTH} deep")
                self._bound(characters, count + len(waiting) + len(item))
                waiting += [(child, depth + 1) for child in item]
                if isinstance(item, dict):
                    waiting += [(child, depth + 1) for child in item.values()]
        self._bound(characters, count)
        return characters, count

    def _bound(self, characters: int, count: int) -> None:
        if characters > self._characters or count > self._nodes:
            raise LimitError(
                f"it builds a value of over {self._characters} characters or {self._nodes} parts"
            )

    def room(self, characters: int) -> None:
        """Refuse a text, or a list, of this length before it is made."""
        self._bound(characters, 0)

    def output(self, text: str) -> str:
        self._output += len(text)
        self.spend(TURN + len(text) // 4)
        self._bound(self._output, 0)
        return text

    def turns(self, items: Iterable[Any]) -> Iterator[Any]:
        for item in items:
            self.spend(TURN)
            yield item


METER: ContextVar[Meter] = ContextVar("METER")  # of the rendering under way


def check_filter(name: str, args: tuple[Any, ...], kwargs: Mapping[str, Any]) -> None:
    """Charge a filter, and refuse it if its result would be far larger than what it gets."""
    given = [*args, *kwargs.values()]
    METER.get().spend(CALL)
    if name not in _SHALLOW:
        METER.get().read(given)
    if name in ("center", "batch", "slice", "indent", "truncate", "round"):
        width = max((abs(n) for n in given[1:] if isinstance(n, int)), default=0)
        lines = given[0].count("\n") + 1 if name == "indent" and isinstance(given[0], str) else 1
        METER.get().room(100 * width)
        METER.get().room(width * lines)
        if any(isinstance(text, str) and len(text) > 100 for text in given[1:]):
            raise LimitError(f"it gives {name} a long text")
    elif name == "join":
        check_method(str(given[1]) if len(given) > 1 else "", name, (given[0],))
    elif name == "replace":
        check_method(str(given[0]), name, tuple(given[1:3]))
    elif name == "format":
        check_format(str(given[0]), "%", given[1:])
    elif name == "sum" and any(isinstance(start, (list, tuple, str)) for start in given[2:]):
        raise LimitError("it sums lists or texts")


def check_method(owner: str, name: str, args: tuple[Any, ...]) -> tuple[Any, ...]:
    """Refuse `owner.name(*args)` whose result would be huge; returns the arguments, iterators read."""
    meter = METER.get()
    meter.read([owner, *args])
    if name in ("expandtabs", "translate", "maketrans", "encode"):
        raise LimitError(f"str.{name} is not available")
    if name in ("ljust", "rjust", "center", "zfill"):
        meter.room(max((n for n in args if isinstance(n, int)), default=0))
    elif name == "replace" and len(args) >= 2:
        old, new = str(args[0]), str(args[1])
        meter.room(len(owner) + (owner.count(old) if old else len(owner) + 1) * len(new))
    elif name == "join" and args:
        parts = list(meter.turns(args[0]))
        meter.room(meter.measure(parts)[0] + len(owner) * len(parts))
        return (parts,)
    return args


def check_format(form: str, mark: str, args: Any) -> None:
    """Refuse a format whose fields are wide, or which repeats its arguments into something huge."""
    if re.search(r"\d{4}|\*", form) or (mark == "{" and re.search(r"\{[^}]*\{", form)):
        raise LimitError("it formats with wide fields")
    meter = METER.get()
    meter.room(len(form) + form.count(mark) * (1000 + meter.measure(args)[0]))
