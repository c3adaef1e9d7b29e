"""The filters, tests and functions of chat templates: those that the templates of known models use.

Signatures are Jinja's and transformers', so that arguments are bound alike; what is written is the same.
"""

from __future__ import annotations

import functools
import json
import re
from collections.abc import Callable, Iterator
from datetime import datetime
from itertools import groupby
from typing import Any

from jinja2 import filters as jinja
from jinja2.exceptions import TemplateError, TemplateRuntimeError
from jinja2.runtime import Undefined
from jinja2.sandbox import safe_range
from jinja2.tests import TESTS as JINJA_TESTS
from markupsafe import Markup, escape

from edgespec.text.template_budget import LimitError
from edgespec.text.template_values import Namespace, Values, replace_text

Table = dict[str, Callable[..., Any]]  # name -> function(values, value, *arguments)


def apply(table: Table, v: Values, name: str, /, *args: Any, **kwargs: Any) -> Any:
    """Run one of a table. Raises LimitError for Jinja's others, TemplateRuntimeError for unknown ones."""
    v.budget.spend(3)
    if name in table:
        return table[name](v, *args, **kwargs)
    kind = "filter" if table is FILTERS else "test"
    if name in jinja.FILTERS or name in JINJA_TESTS:
        raise LimitError(f"it uses the {kind} {name!r}, which known chat templates do not")
    raise TemplateRuntimeError(f"No {kind} named {name!r}.")


def _on_text(function: Callable[..., Any], cost: int = 8, growth: int = 12) -> Callable[..., Any]:
    """A filter of a text: the work, and at most the bytes, of each of its characters."""

    def run(v: Values, value: Any, *args: Any) -> Any:
        text = v.text(value)
        v.budget.need(growth * len(text))
        v.budget.scan(cost * len(text))
        return v.budget.made(function(text, *args))

    return run


def _trim(v: Values, value: Any, chars: str | None = None) -> Any:
    text = v.text(value)
    v.find(text, chars, backwards=True)
    return v.budget.made(text.strip(chars))


def _short(value: Any) -> Any:
    if isinstance(value, str) and len(value) > 1000:
        raise LimitError("it reads a number from a long text")
    return value


def _round(v: Values, value: Any, precision: int = 0, method: Any = "common") -> Any:
    if abs(precision) > 100:
        raise LimitError("it rounds to over 100 digits")
    return jinja.do_round(value, precision, method)


def _default(v: Values, value: Any, default_value: Any = "", boolean: bool = False) -> Any:
    return default_value if isinstance(value, Undefined) or (boolean and not value) else value


def _reverse(v: Values, value: Any) -> Any:
    return v.budget.made(value[::-1]) if isinstance(value, str) else iter(v.items(value)[::-1])


def _items(v: Values, value: Any) -> Iterator[Any]:
    if not isinstance(value, (dict, Undefined)):
        raise TypeError("Can only get item pairs from a mapping.")
    return iter(() if isinstance(value, Undefined) else value.items())


def _attr(v: Values, value: Any, name: str) -> Any:
    found = v.own(value, name)
    return Undefined(obj=value, name=name) if found is None else found[0]


def _join(v: Values, value: Any, d: Any = "", attribute: Any = None) -> str:
    return v.budget.join([v.text(item) for item in _taken(v, v.items(value), attribute)], v.text(d))


def _replace(v: Values, s: Any, old: Any, new: Any, count: int | None = None) -> str:
    return replace_text(v, v.text(s), v.text(old), v.text(new), -1 if count is None else count)


def _indent(v: Values, s: Any, width: Any = 4, first: bool = False, blank: bool = False) -> Any:
    if not isinstance(s, str):
        raise TypeError(f"cannot indent {type(s).__name__!r}")
    lines = v.lines(s)
    wide = len(width) if isinstance(width, str) else max(0, width)
    v.budget.need(4 * (len(s) + lines * (wide + 64)))
    return v.budget.made(jinja.do_indent(s, width, first, blank))


def _tojson(
    v: Values,
    x: Any,
    ensure_ascii: bool = False,
    indent: int | None = None,
    separators: Any = None,
    sort_keys: bool = False,
) -> Any:
    """As transformers has it: Jinja's own escapes HTML."""
    if isinstance(indent, str) or (indent or 0) > 8 or len("".join(separators or ())) > 8:
        raise LimitError("it asks tojson for wide spacing")
    size = v.budget.read(x)
    v.budget.need((12 if indent is None else 30) * size)  # "\ud83d\ude00"; 60 levels of 8 spaces
    v.budget.scan(8 * size)
    form = json.dumps(x, ensure_ascii=ensure_ascii, indent=indent, separators=separators, sort_keys=sort_keys)
    return v.budget.made(form)


# Over sequences. `attribute`: "a.b", or 0; where things are sorted also several, with commas.


def _taken(v: Values, items: list[Any], attribute: Any, default: Any = None) -> list[Any]:
    """The attribute of each item; the items themselves without one."""
    path = attribute.split(".") if isinstance(attribute, str) else [] if attribute is None else [attribute]
    for part in path:
        v.budget.spend(len(items))
        key = int(part) if isinstance(part, str) and part.isdigit() else part
        items = [v.item(item, key) for item in items]
        if default is not None:
            items = [default if isinstance(item, Undefined) else item for item in items]
    return items


def _keys(v: Values, items: list[Any], attribute: Any, exact: bool, default: Any = None) -> list[Any]:
    """What items are sorted or told apart by, read and charged; texts in lower case unless `exact`."""
    keys = _taken(v, items, attribute, default)
    v.budget.read(keys)
    return [v.budget.made(key.lower()) if isinstance(key, str) and not exact else key for key in keys]


def _sorted(v: Values, items: list[Any], keys: list[Any], reverse: bool = False) -> list[Any]:
    v.budget.scan(len(items).bit_length() * 4 * v.budget.read(keys))
    return [items[i] for i in sorted(range(len(items)), key=keys.__getitem__, reverse=reverse)]


def _sort(
    v: Values, value: Any, reverse: bool = False, case_sensitive: bool = False, attribute: Any = None
) -> list[Any]:
    items = v.items(value)
    several = attribute.split(",") if isinstance(attribute, str) else [attribute]
    columns = [_keys(v, items, one, case_sensitive) for one in several]
    return _sorted(v, items, [list(key) for key in zip(*columns, strict=True)], reverse)


def _dictsort(
    v: Values, value: Any, case_sensitive: bool = False, by: str = "key", reverse: bool = False
) -> list[Any]:
    if by not in ("key", "value"):
        raise TemplateRuntimeError('You can only sort by either "key" or "value"')
    items = v.items(value.items())
    return _sorted(v, items, _keys(v, items, int(by == "value"), case_sensitive), reverse)


def _unique(v: Values, value: Any, case_sensitive: bool = False, attribute: Any = None) -> Iterator[Any]:
    items = v.items(value)
    first: dict[Any, Any] = {}
    for key, item in zip(_keys(v, items, attribute, case_sensitive), items, strict=True):
        first.setdefault(key, item)
    return iter(first.values())


def _groupby(
    v: Values, value: Any, attribute: Any, default: Any = None, case_sensitive: bool = False
) -> list[Any]:
    items = v.items(value)
    keys, whole = _keys(v, items, attribute, case_sensitive, default), _taken(v, items, attribute, default)
    order = _sorted(v, list(range(len(items))), keys)
    runs = [list(run) for _, run in groupby(order, key=keys.__getitem__)]
    return [jinja._GroupTuple(whole[run[0]], [items[i] for i in run]) for run in runs]


def _extreme(pick: Any) -> Callable[..., Any]:
    def run(v: Values, value: Any, case_sensitive: bool = False, attribute: Any = None) -> Any:
        items = v.items(value)
        keys = _keys(v, items, attribute, case_sensitive)
        return items[pick(range(len(items)), key=keys.__getitem__)] if items else Undefined("No item.")

    return run


def _sum(v: Values, iterable: Any, attribute: Any = None, start: Any = 0) -> Any:
    items = [start, *_taken(v, v.items(iterable), attribute)]
    return functools.reduce(lambda a, b: v.binary("+", a, b), items)


def _map(v: Values, value: Any, /, *args: Any, **kwargs: Any) -> Iterator[Any]:
    items = v.items(value) if value else []
    if "attribute" in kwargs:
        return iter(_taken(v, items, **kwargs))
    return iter([apply(FILTERS, v, args[0], item, *args[1:], **kwargs) for item in items])


def _select(keep: bool, by_attribute: bool) -> Callable[..., Any]:
    def run(v: Values, value: Any, /, *args: Any, **kwargs: Any) -> Iterator[Any]:
        items = v.items(value) if value else []
        keys = _taken(v, items, args[0]) if by_attribute else items
        name, *rest = args[by_attribute:] or [None]

        def true(key: Any) -> bool:
            return bool(key if name is None else apply(TESTS, v, name, key, *rest, **kwargs))

        return iter([item for item, key in zip(items, keys, strict=True) if true(key) == keep])

    return run


FILTERS: Table = {
    "upper": _on_text(str.upper),
    "lower": _on_text(str.lower),
    "capitalize": _on_text(str.capitalize),
    "title": _on_text(jinja.do_title, cost=256, growth=64),  # cuts it into words
    "trim": _trim,
    "string": lambda v, value: v.text(value),
    "escape": _on_text(escape, growth=20),
    "safe": _on_text(Markup),
    "int": lambda v, value, default=0, base=10: v.budget.made(jinja.do_int(_short(value), default, base)),
    "float": lambda v, value, default=0.0: jinja.do_float(_short(value), default),
    "round": _round,
    "abs": lambda v, value: abs(value),
    "length": lambda v, value: len(value),
    "default": _default,
    "first": lambda v, value: next(iter(value), Undefined("No first item, sequence was empty.")),
    "last": lambda v, value: next(iter(reversed(value)), Undefined("No last item, sequence was empty.")),
    "list": lambda v, value: v.items(value),
    "reverse": _reverse,
    "items": _items,
    "attr": _attr,
    "join": _join,
    "replace": _replace,
    "indent": _indent,
    "tojson": _tojson,
    "sort": _sort,
    "dictsort": _dictsort,
    "unique": _unique,
    "groupby": _groupby,
    "max": _extreme(max),
    "min": _extreme(min),
    "sum": _sum,
    "map": _map,
    "select": _select(True, False),
    "reject": _select(False, False),
    "selectattr": _select(True, True),
    "rejectattr": _select(False, True),
}
FILTERS |= {"count": FILTERS["length"], "d": _default, "e": FILTERS["escape"]}


def _of_kind(name: str) -> Callable[..., Any]:
    return lambda v, value: JINJA_TESTS[name](value)  # type: ignore[operator]


def _comparing(name: str) -> Callable[..., Any]:
    return lambda v, value, other: v.compare(name, value, other)


_KINDS = "defined undefined none boolean true false integer float number string mapping sequence iterable"
TESTS: Table = {
    "odd": lambda v, value: v.binary("%", value, 2) == 1,
    "even": lambda v, value: v.binary("%", value, 2) == 0,
    "divisibleby": lambda v, value, num: v.binary("%", value, num) == 0,
    "sameas": lambda v, value, other: value is other,
    "lower": lambda v, value: FILTERS["string"](v, value).islower(),
    "upper": lambda v, value: FILTERS["string"](v, value).isupper(),
}
TESTS |= {name: _of_kind(name) for name in _KINDS.split()}
_ALIASES = {"eq": "eq == equalto", "ne": "ne !=", "lt": "lt < lessthan", "gt": "gt > greaterthan"}
_ALIASES |= {"lteq": "le <=", "gteq": "ge >=", "in": "in"}
for _name, _names in _ALIASES.items():
    TESTS |= dict.fromkeys(_names.split(), _comparing(_name))


def _dict(v: Values, /, *args: Any, **kwargs: Any) -> Any:
    v.budget.read((args, kwargs))
    return v.budget.made(dict(*args, **kwargs))


def _raise_exception(v: Values, message: Any) -> None:
    raise TemplateError(v.text(message)[:1000])


def _strftime_now(v: Values, form: str) -> str:
    if len(form) > 100 or re.search(r"%[^%A-Za-z]*\d", form):
        raise LimitError("it formats the date with wide fields")
    return datetime.now().strftime(form)


FUNCTIONS: Table = {
    "range": lambda v, *args: safe_range(*args),
    "dict": _dict,
    "namespace": lambda v, /, *args, **kwargs: Namespace(_dict(v, *args, **kwargs)),
    "raise_exception": _raise_exception,
    "strftime_now": _strftime_now,
}
