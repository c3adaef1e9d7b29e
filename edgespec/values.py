"""Values of options as people write them, and the fields that hold them. Needs no torch.

Each reader takes what a flag, a variable, edgespec.toml or Python gives, and returns one type or raises
OptionError; the field that asked says which option it was.
"""

from __future__ import annotations

import difflib
import functools
import math
import operator
import os
import re
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, fields, replace
from pathlib import Path
from types import UnionType
from typing import Any, TypeVar, get_args, get_origin, get_type_hints

from edgespec.errors import OptionError

# GB = 10^9 bytes. "8G" is 2^30 to some programs and 10^9 to others: the smaller keeps what either promises.
UNITS = {
    "B": 1,
    **{unit + end: 1000**power for power, unit in enumerate("KMGT", 1) for end in ("", "B")},
    **{unit + "IB": 1024**power for power, unit in enumerate("KMGT", 1)},
}
LEAST_BYTES = 10**6  # a smaller size is a forgotten unit: nothing runs in less
MOST_BYTES = 10**18
MOST = 2**63 - 1  # that a seed, or a count, may be


def parse_bytes(value: str | float) -> int:
    """Bytes of "8GB", "8G", "512MB", "1.5 GiB", or of a number of bytes such as 8e9. Raises OptionError."""
    number: float
    if isinstance(value, str):
        match = re.fullmatch(r"\s*(\d{1,20}(?:\.\d{1,20})?)\s*([A-Za-z]*)\s*", value)
        if not match or (match[2] and match[2].upper() not in UNITS):
            raise OptionError(f"{value[:80]!r} is not a size; write for example 8GB, 512MB or 1.5GiB")
        if not match[2] and float(match[1]) < LEAST_BYTES:
            raise OptionError(f"{value!r} has no unit; write for example {match[1]}GB or {match[1]}MB")
        number = float(match[1]) * (UNITS[match[2].upper()] if match[2] else 1)
    else:
        number = as_number(value)
    if not math.isfinite(number) or number > MOST_BYTES:
        raise OptionError(f"{str(value)[:80]} is not a size; write for example 8GB, 512MB or 1.5GiB")
    return int(number)


def format_bytes(n: float) -> str:
    """1234567 -> "1.23 MB"."""
    for unit, size in (("GB", 10**9), ("MB", 10**6), ("KB", 10**3)):
        if abs(n) >= size:
            return f"{n / size:.3g} {unit}" if abs(n) < 1000 * size else f"{n / size:,.0f} {unit}"
    return f"{n:.0f} B"


def format_seconds(seconds: float) -> str:
    """0.34 -> "0.34 s", 75 -> "1 min 15 s"."""
    if 0 < seconds < 0.001:
        return "under 1 ms"
    if seconds < 9.95:
        return f"{seconds:.2g} s"
    if seconds < 60:
        return f"{seconds:.0f} s"
    minutes, rest = divmod(round(seconds), 60)
    if minutes < 60:
        return f"{minutes} min {rest} s"
    return f"{minutes // 60} h {minutes % 60} min"


def two_digits(value: float) -> str:
    """0.31, 4.2, 160."""
    return f"{value:.2g}" if value < 99.5 else f"{float(f'{value:.2g}'):,.0f}"


def count_of(n: int, thing: str) -> str:
    """1, "message" -> "1 message"; 2 -> "2 messages"."""
    return f"{n} {thing}" if n == 1 else f"{n} {thing}s"


def as_whole(value: Any) -> int:
    """An integer of any kind (numpy's too, but no bool), or its text. Raises OptionError."""
    try:
        if not isinstance(value, bool):
            number = int(value[:30]) if isinstance(value, str) else operator.index(value)
            if abs(number) < 2**64:  # nothing here counts further
                return number
    except (TypeError, ValueError):
        pass
    raise OptionError("it must be a whole number")


def as_number(value: Any) -> float:
    """A number of any kind (numpy's too, but no bool), or its text. Raises OptionError."""
    try:
        if not isinstance(value, (bool, bytes, bytearray)):
            return float(value)
    except (TypeError, ValueError, OverflowError, RuntimeError):  # torch raises the last for several numbers
        pass
    raise OptionError("it must be a number")


def as_switch(value: Any) -> bool:
    """A bool, or its text. Raises OptionError."""
    words = {"yes": True, "true": True, "1": True, "no": False, "false": False, "0": False}
    if isinstance(value, bool):
        return value
    if isinstance(value, str) and value.lower() in words:
        return words[value.lower()]
    raise OptionError("it must be yes or no")


def as_text(value: Any) -> str:
    """A text or a path. Raises OptionError."""
    if isinstance(value, (str, os.PathLike)):
        return str(value)
    raise OptionError("it must be a text")


def as_texts(value: Any) -> tuple[str, ...]:
    """One text, or several. Raises OptionError."""
    if isinstance(value, str):
        return (value,)
    if isinstance(value, Sequence) and not isinstance(value, (bytes, bytearray)):
        texts = tuple(value)
        if all(isinstance(text, str) for text in texts):
            return texts
    raise OptionError("it must be a text or a list of texts")


def as_counts(value: Any) -> tuple[int, ...]:
    """Whole numbers: one, several, or their text with commas. Raises OptionError."""
    parts = value.split(",") if isinstance(value, str) else value if isinstance(value, Sequence) else (value,)
    try:
        return tuple(as_whole(part) for part in parts)
    except OptionError:
        raise OptionError("it is not a list of numbers; write for example 9 or 9,15") from None


def as_path(value: Any) -> Path:
    """A path, or its text. Raises OptionError."""
    return Path(as_text(value))


def in_words(message: str, words: Mapping[str, str]) -> str:
    """A message, which names options as Python does (`memory=`), with these words for them."""

    def word(match: re.Match[str]) -> str:
        return words[match[1]] + (f" {match[2]}" if match[2] else "")

    # Not in paths, whose folders may be named so: runs/seed=3/model.
    return re.sub(rf"(?<![\w/\\.-])({'|'.join(words)})=(?![^\s]*[/\\])([\w.+\"'-]*)", word, message)


def did_you_mean(given: str, known: Iterable[str], otherwise: str | None = None) -> str:
    """What to do about an unknown name: "did you mean X?", or `otherwise` (by default a list of all)."""
    names = sorted(known)
    longer = [name for name in names if given and name.startswith(given)]  # temp: temperature
    near = longer if len(longer) == 1 else difflib.get_close_matches(given, names, 1)
    if near:
        return f"did you mean {near[0]}?"
    return otherwise or f"known are {', '.join(names)}"


@dataclass(frozen=True)
class Option:
    """How an option is shown and bounded.

    metavar: what stands for its value; "SIZE" is a number of bytes, written as 8GB, "MODEL" a path or a name
        on the hub, "N|auto" a number, 0 written as auto; a switch has none.
    panel: the heading under which help shows it; "": no other than the command's.
    default: what happens when it is not set, in words; "": the field's default says it.
    short: a letter for the command line, as "-p".
    least, most: inclusive bounds of a number, or of each of several.
    hidden: works, but is not shown: there is nothing to choose yet.
    only: the commands that have its flag; (): all that take its dataclass.
    """

    help: str
    metavar: str = ""
    panel: str = ""
    default: str = ""
    short: str = ""
    least: float | None = None
    most: float | None = None
    choices: tuple[str, ...] = ()
    hidden: bool = False
    only: tuple[str, ...] = ()


@dataclass(frozen=True)
class Field:
    """An option as a field of its dataclass: name, type, default, and how it is shown."""

    name: str  # ends in an underscore where Python has that word for itself
    kind: type[Any]  # int, float, bool, str, Path or tuple
    item: type[Any] | None  # of a tuple: str or int
    optional: bool  # may be None
    default: Any
    option: Option

    @property
    def flag(self) -> str:
        return f"--{self.name.rstrip('_').replace('_', '-')}"

    @property
    def variable(self) -> str:
        return f"EDGESPEC_{self.name.upper()}"

    @property
    def default_words(self) -> str:
        if self.option.default:
            return self.option.default
        if self.default is None or self.default == ():
            return "none"
        if isinstance(self.default, bool):
            return "yes" if self.default else "no"
        if isinstance(self.default, tuple):
            return ",".join(map(str, self.default))
        return f"{self.default:g}" if isinstance(self.default, float) else str(self.default)

    def typed(self, value: Any) -> Any:
        """`value`, from Python or as text, as the field's type and within its bounds. Raises OptionError."""
        if value is None and self.optional:
            return None
        if value == "auto" and self.option.metavar == "N|auto":
            return 0
        if self.option.metavar == "SIZE":
            try:
                number = parse_bytes(value)
            except OptionError as error:
                raise OptionError(f"{self.name}: {error}", self.name) from None
            if number <= 0:
                raise OptionError(f"{self.name} is {number} bytes; it must be positive", self.name)
            if number < LEAST_BYTES:
                said = value if isinstance(value, str) else f"{value} bytes"
                hint = "" if isinstance(value, str) else f"; {value}GB?"
                raise OptionError(f"{self.name} is {said}; nothing runs in that{hint}", self.name)
            return number
        readers = {int: as_whole, float: as_number, bool: as_switch, str: as_text, Path: as_path}
        read = readers.get(self.kind) or (as_texts if self.item is str else as_counts)
        try:
            found: Any = read(value)
        except OptionError as error:
            # Python refuses to write a number of over 4300 digits.
            huge = isinstance(value, int) and value.bit_length() > 256
            shown = f"a number of {value.bit_length()} bits" if huge else f"{value!r:.80}"
            raise OptionError(f"{self.name} is {shown}; {error}", self.name) from None
        for part in found if self.item is int else (found,):
            self._bound(part)
        return found

    def _bound(self, value: Any) -> None:
        least, most, choices = self.option.least, self.option.most, self.option.choices
        if (least is not None and not value >= least) or (most is not None and not value <= most):  # NaN too
            wanted = f"at least {least}" if most is None else f"from {least} to {most}"
            if most == MOST:
                wanted = f"at least {least}, and below 2^63"
            has = "is" if self.item is None else "has"
            raise OptionError(f"{self.name} {has} {value}; it must be {wanted}", self.name)
        if choices and value not in choices:
            hint = did_you_mean(value, choices, f"choose from {', '.join(choices)}")
            raise OptionError(f"{self.name} {value!r} is unknown; {hint}", self.name)


class Options:
    """Base of the dataclasses of options: every value is checked, and made what its field says."""

    def __post_init__(self) -> None:
        for field in options_of(type(self)).values():
            object.__setattr__(self, field.name, field.typed(getattr(self, field.name)))


def options_of(kind: type[Options]) -> dict[str, Field]:
    """The options of a dataclass, by name."""
    cached: Any = kind  # mypy holds that no class with a __hash__ is hashable itself
    return _options_of(cached)


@functools.cache
def _options_of(kind: type[Any]) -> dict[str, Field]:
    found = {}
    hints = get_type_hints(kind, include_extras=True)
    for field in fields(kind):
        hint, option = get_args(hints[field.name])
        kinds = get_args(hint) if isinstance(hint, UnionType) else (hint,)
        plain, item = get_origin(kinds[0]) or kinds[0], (*get_args(kinds[0]), None)[0]
        found[field.name] = Field(field.name, plain, item, type(None) in kinds, field.default, option)
    return found


T = TypeVar("T", bound=Options)


def with_keywords(options: T, keywords: Mapping[str, Any]) -> T:
    """`options` with some fields changed. Raises OptionError for an unknown name or a wrong value."""
    known = options_of(type(options))
    for name in keywords:
        if name not in known:
            kind = type(options).__name__.removesuffix("Options").lower()
            raise OptionError(f"unknown {kind} option {name}; {did_you_mean(name, known)}")
    return replace(options, **keywords)  # type: ignore[type-var]
