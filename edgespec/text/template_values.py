"""What a chat template may do with text, numbers, lists and dictionaries, as Jinja's sandbox does it, and
what each costs (`template_budget`).

Every operation is a function with a signature of its own: arguments are bound to names before they are looked
at, so their order does not matter. Only methods of builtin values are reachable, and only those listed.
"""

from __future__ import annotations

import operator
import re
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, cast

from jinja2.exceptions import SecurityError, TemplateError
from jinja2.runtime import LoopContext, Undefined
from jinja2.sandbox import SandboxedFormatter, modifies_known_mutable
from markupsafe import Markup

from edgespec.text.template_budget import BITS, CONTAINERS, Budget, LimitError

FORM = 1000  # characters of a format string
_BREAKS = "\n\r\v\f\x1c\x1d\x1e\x85\u2028\u2029"  # where str.splitlines cuts
_LOOP = {"index", "index0", "revindex", "revindex0", "first", "last", "length", "depth", "depth0"}
_LOOP |= {"previtem", "nextitem", "cycle"}
_VIEWS: Any = (type({}.keys()), type({}.items()))
_BUILTIN = (str, int, float, type(None), range, *CONTAINERS)

COMPARE: dict[str, Callable[[Any, Any], Any]] = {
    "eq": operator.eq,
    "ne": operator.ne,
    "lt": operator.lt,
    "lteq": operator.le,
    "gt": operator.gt,
    "gteq": operator.ge,
    "in": lambda a, b: a in b,
    "notin": lambda a, b: a not in b,
}
BINARY: dict[str, Callable[[Any, Any], Any]] = {
    "+": operator.add,
    "-": operator.sub,
    "*": operator.mul,
    "/": operator.truediv,
    "//": operator.floordiv,
    "**": operator.pow,
    "%": operator.mod,
}


class Namespace:
    """`namespace(...)`: the only value that changes. It shows nothing of its content."""

    def __init__(self, attributes: dict[str, Any]) -> None:
        self.attributes: dict[str, Any] = {}
        for name, value in attributes.items():
            self.set(name, value)

    def set(self, name: str, value: Any) -> None:
        if str(name).startswith("_"):
            raise TemplateError(f"a namespace cannot have an attribute {name!r}")
        self.attributes[name] = value

    def __repr__(self) -> str:
        return "<namespace>"


@dataclass(frozen=True, eq=False, repr=False)
class Bound:
    """A method of a value, or (owner None) a function, not called yet. Not compared by what it holds."""

    owner: Any
    name: str

    def __repr__(self) -> str:
        return f"<method {self.name}>"


class Values:
    """Operations on one rendering's values, charged to its budget; `size` as there."""

    def __init__(self, size: tuple[int, int] = (0, 0)) -> None:
        self.budget = Budget(size)

    def text(self, value: Any) -> str:
        """As a template writes it."""
        if isinstance(value, str):
            return str(value)
        if isinstance(value, CONTAINERS):
            self.budget.need(10 * self.budget.read(value))  # repr of a character has at most 10
        return str(self.budget.made(str(value)))

    def items(self, value: Any) -> list[Any]:
        """What an iteration gives, charged."""
        found = []
        for item in value:
            self.budget.make(64)
            self.budget.spend(1)
            found.append(item)
        return found

    # Attributes and items: `foo.bar` prefers the attribute, `foo['bar']` the item.

    def attribute(self, owner: Any, name: str) -> Any:
        found = self.own(owner, name)
        if found is None and isinstance(owner, dict) and name in owner:
            return owner[name]
        return Undefined(obj=owner, name=name) if found is None else found[0]

    def item(self, owner: Any, key: Any) -> Any:
        if isinstance(key, slice):
            if isinstance(owner, (str, list, tuple)):
                self.budget.need((4 if isinstance(owner, str) else 16) * len(owner))
            elif not isinstance(owner, (range, Undefined)):
                raise TypeError(f"{type(owner).__name__!r} object cannot be sliced")
            return self.budget.made(owner[key])
        if not isinstance(key, int):
            self.budget.read(key)  # it is hashed
        try:
            if isinstance(owner, (*_BUILTIN, Undefined)):
                return owner[key]  # type: ignore[index]
        except (TypeError, LookupError):
            pass
        found = self.own(owner, key) if isinstance(key, str) else None
        return Undefined(obj=owner, name=key) if found is None else found[0]

    def own(self, owner: Any, name: str) -> tuple[Any] | None:
        """The attribute `name`, if there is one."""
        if isinstance(owner, Undefined):
            owner._fail_with_undefined_error()
        if isinstance(owner, Namespace):
            return (owner.attributes[name],) if name in owner.attributes else None
        if isinstance(owner, LoopContext):
            if name not in _LOOP:
                return None
            return (Bound(owner, name) if name == "cycle" else getattr(owner, name),)
        if not isinstance(owner, _BUILTIN) or not hasattr(type(owner), name):
            return None
        if name.startswith("_") or modifies_known_mutable(owner, name):
            fact = f"access to attribute {name!r} of {type(owner).__name__!r} object is unsafe."
            return (Undefined(fact, obj=owner, name=name, exc=SecurityError),)
        if name in getattr(owner, "_fields", ()):  # what `groupby` gives: .grouper and .list
            return (getattr(owner, name),)
        return (Bound(owner, name),)

    def getitem(self, owner: Any, key: Any) -> Any:
        """For Jinja's formatter."""
        return self.item(owner, key)

    def getattr(self, owner: Any, name: str) -> Any:
        return self.attribute(owner, name)

    # Operators.

    def compare(self, name: str, left: Any, right: Any) -> Any:
        """`name`: a key of COMPARE."""
        if name in ("in", "notin"):
            if isinstance(right, str):
                self.find(right, left)
            elif isinstance(right, dict):
                self.budget.read(left)
            elif isinstance(right, range):
                self.budget.spend(1 if isinstance(left, int) else len(right))
            else:
                right = right if isinstance(right, CONTAINERS) else self.items(right)
                self.budget.read((left, right))
        elif isinstance(left, str) and isinstance(right, str):
            self.budget.scan(4 * min(len(left), len(right)))
        elif isinstance(left, CONTAINERS) and isinstance(right, CONTAINERS):
            self.budget.read((left, right))
        return COMPARE[name](left, right)

    def binary(self, sign: str, left: Any, right: Any) -> Any:
        """`sign`: a key of BINARY."""
        if isinstance(left, _VIEWS) or isinstance(right, _VIEWS):
            raise LimitError("it computes with sets")
        if sign == "%" and isinstance(left, str):
            self.plain(left)
            if len(left) > FORM or re.search(r"%(\([^)]*\))?[-#0 +]*(\*|\d{4}|\d*\.(\*|\d{4}))", left):
                raise LimitError("it formats with wide fields")
            self.budget.need(len(left) + left.count("%") * (1000 + 10 * self.budget.read(right)))
        elif sign == "+" and isinstance(left, str) and isinstance(right, str):
            if not isinstance(left, Markup) and not isinstance(right, Markup):
                return self.budget.join((left, right))
            self.budget.need(20 * (len(left) + len(right)))  # the other is escaped
        elif sign == "+" and isinstance(left, (list, tuple)) and isinstance(right, (list, tuple)):
            self.budget.need(16 * (len(left) + len(right)))
        elif sign == "*":
            for part, times in ((left, right), (right, left)):
                if isinstance(times, int) and isinstance(part, (str, list, tuple)):
                    self.budget.need((4 if isinstance(part, str) else 16) * len(part) * max(times, 0))
        if sign in ("*", "**") and isinstance(left, int) and isinstance(right, int):
            bits = left.bit_length() * right if sign == "**" else left.bit_length() + right.bit_length()
            if bits > BITS:
                raise LimitError(f"it computes with numbers of over {BITS} bits")
        return self.budget.made(BINARY[sign](left, right))

    # Methods.

    def call(self, bound: Bound, args: list[Any], kwargs: dict[str, Any]) -> Any:
        """Call a method. Raises LimitError for one that known templates do not use."""
        if isinstance(bound.owner, LoopContext):
            return bound.owner.cycle(*args, **kwargs)
        self.plain(bound.owner)
        for kind, methods in METHODS.items():
            if isinstance(bound.owner, kind) and bound.name in methods:
                return methods[bound.name](self, bound.owner, *args, **kwargs)
        kind = type(bound.owner)
        raise LimitError(f"it calls {kind.__name__}.{bound.name}, which known chat templates do not")

    def plain(self, value: Any) -> None:
        """Refuse what `safe` and `escape` give: its methods escape what they get."""
        if isinstance(value, Markup):
            raise LimitError("it formats or cuts escaped text, which known chat templates do not")

    def find(self, text: str, part: Any, backwards: bool = False) -> None:
        """Charge a search: forwards its worst case is bounded, backwards it is the lengths' product."""
        m = len(part) if isinstance(part, str) else 1
        self.budget.scan(len(text) * max(1, m if backwards else min(m, 100)))

    def cut(self, found: Any) -> Any:
        """Charge the texts that a text was cut into."""
        for part in found:
            self.budget.make(64 + 4 * len(part))
        return found

    def lines(self, text: str) -> int:
        """At least the number of a text's lines, charged."""
        self.budget.scan(8 * len(text))
        return 1 + sum(text.count(mark) for mark in _BREAKS)


Method = Callable[..., Any]


def _simple(name: str) -> Method:
    """A method of str whose result is no longer than thrice its text, in time of its length."""
    method = getattr(str, name)

    def run(v: Values, text: str, *args: Any) -> Any:
        v.budget.need(12 * len(text))
        v.budget.scan(8 * len(text) + v.budget.read(args))
        return v.budget.made(method(text, *args))

    return run


def _strip(name: str) -> Method:
    method = getattr(str, name)

    def run(v: Values, text: str, chars: str | None = None, /) -> Any:
        v.find(text, chars, backwards=True)
        v.budget.need(4 * len(text))
        return v.budget.made(method(text, chars))

    return run


def _search(name: str) -> Method:
    method, backwards = getattr(str, name), name.startswith("r")

    def run(v: Values, text: str, part: str, /, *span: int) -> Any:
        v.find(text, part, backwards)
        found = method(text, part, *span)
        return v.cut(found) if isinstance(found, tuple) else found

    return run


def _split(name: str) -> Method:
    method, backwards = getattr(str, name), name.startswith("r")

    def run(v: Values, text: str, sep: str | None = None, maxsplit: int = -1) -> Any:
        v.find(text, sep, backwards)
        most = v.budget.bytes // 64  # parts that there is room for
        found = method(text, sep, most if maxsplit < 0 else min(maxsplit, most))
        if len(found) > most:
            v.budget.need(64 * len(found))
        return v.cut(found)

    return run


def _splitlines(v: Values, text: str, keepends: bool = False) -> Any:
    v.budget.need(64 * v.lines(text) + 4 * len(text))
    return v.cut(text.splitlines(keepends))


def replace_text(v: Values, text: str, old: str, new: str, count: int = -1, /) -> str:
    """`str.replace`."""
    v.find(text, old)
    times = text.count(old) if old else len(text) + 1
    v.budget.need(4 * (len(text) + len(new) * (times if count < 0 else min(times, count))))
    return cast(str, v.budget.made(text.replace(old, new, count)))


def _join(v: Values, text: str, parts: Any, /) -> str:
    found = v.items(parts)
    return v.budget.join(found, text) if all(isinstance(p, str) for p in found) else text.join(found)


def _format(v: Values, text: str, /, *args: Any, **kwargs: Any) -> str:
    if len(text) > FORM or re.search(r"\{[^{}]*(\{|:[^}]*\d{4})", text.replace("{{", "")):
        raise LimitError("it formats with wide fields")
    v.budget.need(len(text) + text.count("{") * (1000 + 10 * v.budget.read((args, kwargs))))
    return cast(str, v.budget.made(SandboxedFormatter(cast(Any, v)).vformat(text, args, kwargs)))


def _get(v: Values, table: dict[Any, Any], key: Any, default: Any = None, /) -> Any:
    v.budget.read(key)
    return table.get(key, default)


def _view(name: str) -> Method:
    return lambda v, table: getattr(dict, name)(table)


def _within(name: str) -> Method:
    def run(v: Values, owner: Any, item: Any, /, *span: int) -> Any:
        v.budget.read((owner, item))
        return getattr(owner, name)(item, *span)

    return run


_SIMPLE = (
    "upper lower capitalize title swapcase casefold startswith endswith removeprefix removesuffix isalpha "
)
_SIMPLE += "isalnum isdigit isdecimal isnumeric isspace isupper islower istitle isascii"
METHODS: dict[type, dict[str, Method]] = {
    str: {name: _simple(name) for name in _SIMPLE.split()}
    | {name: _strip(name) for name in ("strip", "lstrip", "rstrip")}
    | {
        name: _search(name)
        for name in ("find", "rfind", "index", "rindex", "count", "partition", "rpartition")
    }
    | {"split": _split("split"), "rsplit": _split("rsplit"), "splitlines": _splitlines}
    | {"replace": replace_text, "join": _join, "format": _format},
    dict: {"get": _get} | {name: _view(name) for name in ("items", "keys", "values")},
    list: {"index": _within("index"), "count": _within("count")},
    tuple: {"index": _within("index"), "count": _within("count")},
}
