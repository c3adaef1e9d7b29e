"""Jinja for templates from strangers: what they can reach is sandboxed, what they can use up is metered.

Jinja's own sandbox keeps a template away from Python's internals, but lets it loop for hours or build
terabytes. Here every loop turn, call, operator, filter and output is charged to a meter (`template_meter`).
"""

from __future__ import annotations

import functools
import json
from collections.abc import Callable, Iterable, Iterator
from datetime import datetime
from typing import Any

from jinja2 import TemplateError, nodes, pass_context
from jinja2.ext import Extension, loopcontrols
from jinja2.parser import Parser
from jinja2.runtime import Context
from jinja2.sandbox import ImmutableSandboxedEnvironment
from jinja2.utils import Namespace
from jinja2.visitor import NodeTransformer

from edgespec.text.template_meter import (
    BITS,
    CALL,
    METER,
    TURN,
    LimitError,
    check_filter,
    check_format,
    check_method,
)


class TemplateEnvironment(ImmutableSandboxedEnvironment):
    """Chat templates' dialect, as transformers defines it, metered. Render with METER set."""

    intercepted_binops = frozenset({"+", "*", "**", "%"})

    def __init__(self) -> None:
        super().__init__(
            trim_blocks=True,
            lstrip_blocks=True,
            optimized=False,  # constants are not worth computing outside the meter
            extensions=[loopcontrols, _Generation],
            finalize=_output,
        )
        for name in ("random", "urlize", "wordwrap", "xmlattr", "pprint", "striptags"):
            del self.filters[name]  # of no use in a chat template, and costly or unpredictable
        self.filters["tojson"] = _tojson
        for name, function in self.filters.items():
            self.filters[name] = _metered_filter(name, function)
        self.tests = {name: _metered_test(function) for name, function in self.tests.items()}
        self.filters |= {"made ": _made, "read ": _read, "turns ": _turns, "concat ": _concat}
        del self.globals["lipsum"]
        self.globals |= {
            "namespace": _Namespace,
            "dict": lambda *args, **kwargs: dict(*args, **kwargs),
            "raise_exception": _raise_exception,
            "strftime_now": lambda form: datetime.now().strftime(form),
        }

    def _parse(self, source: str, name: str | None, filename: str | None) -> nodes.Template:
        template: nodes.Template = _Instrument().visit(Parser(self, source, name, filename).parse())
        return template

    def call_binop(self, context: Context, operator: str, left: Any, right: Any) -> Any:
        meter = METER.get()
        meter.spend(TURN)
        if operator == "%" and isinstance(left, str):
            check_format(left, "%", right)
        elif operator == "**" and isinstance(left, int) and isinstance(right, int):
            if left.bit_length() * right > BITS:
                raise LimitError(f"it computes with numbers of over {BITS} bits")
        elif operator == "*":
            for part, times in ((left, right), (right, left)):
                if isinstance(times, int) and isinstance(part, (str, list, tuple)):
                    meter.room(len(part) * max(times, 0))
        elif operator == "+" and isinstance(left, str) and isinstance(right, str):
            meter.room(len(left) + len(right))
        return meter.made(super().call_binop(context, operator, left, right))

    def call(__self, __context: Context, __obj: Any, *args: Any, **kwargs: Any) -> Any:
        meter = METER.get()
        meter.spend(CALL)
        owner, name = getattr(__obj, "__self__", None), getattr(__obj, "__name__", "")
        if isinstance(owner, str):
            args = check_method(owner, name, args)
        elif isinstance(owner, (list, tuple)):
            meter.read([owner, *args])
        return meter.made(super().call(__context, __obj, *args, **kwargs))

    def wrap_str_format(self, value: Any) -> Callable[..., str] | None:
        wrapped = super().wrap_str_format(value)
        if wrapped is None:
            return None

        def format(*args: Any, **kwargs: Any) -> str:
            check_format(value.__self__, "{", [*args, kwargs])
            return wrapped(*args, **kwargs)

        return format


class _Instrument(NodeTransformer):
    """Puts the meter where Jinja has no hook: loops, literals, concatenation, comparison, slices, text."""

    def _wrap(self, name: str, node: Any) -> nodes.Filter:
        return nodes.Filter(node, f"{name} ", [], [], None, None, lineno=node.lineno)

    def visit_For(self, node: nodes.For) -> nodes.Node:
        self.generic_visit(node)
        node.iter = self._wrap("turns", node.iter)
        return node

    def visit_TemplateData(self, node: nodes.TemplateData) -> nodes.Node:
        return nodes.Const(node.data, lineno=node.lineno)  # so that it passes through `_output`

    def visit_Concat(self, node: nodes.Concat) -> nodes.Node:
        self.generic_visit(node)
        return self._wrap("concat", nodes.List(node.nodes, lineno=node.lineno))

    def visit_Compare(self, node: nodes.Compare) -> nodes.Node:
        self.generic_visit(node)
        node.expr = self._wrap("read", node.expr)
        for operand in node.ops:
            operand.expr = self._wrap("read", operand.expr)
        return node

    def visit_Getitem(self, node: nodes.Getitem) -> nodes.Node:
        self.generic_visit(node)
        return self._wrap("made", node) if isinstance(node.arg, nodes.Slice) else node

    def visit_List(self, node: nodes.List) -> nodes.Node:
        self.generic_visit(node)
        return self._wrap("made", node)

    def visit_Dict(self, node: nodes.Dict) -> nodes.Node:
        self.generic_visit(node)
        return self._wrap("made", node)

    def visit_Tuple(self, node: nodes.Tuple) -> nodes.Node:
        self.generic_visit(node)
        return self._wrap("made", node) if node.ctx == "load" else node


class _Generation(Extension):
    """`{% generation %}`: marks what the assistant said, for training; here only its content matters."""

    tags = {"generation"}  # noqa: RUF012

    def parse(self, parser: Parser) -> nodes.Node:
        line = next(parser.stream).lineno
        body = parser.parse_statements(("name:endgeneration",), drop_needle=True)
        return nodes.Scope(body, lineno=line)


class _Namespace(Namespace):
    """Shows nothing of its content, which no measure sees, and takes no underscored names."""

    def __repr__(self) -> str:
        return "<namespace>"

    def __setitem__(self, name: str, value: Any) -> None:
        if name.startswith("_"):
            raise TemplateError(f"a namespace cannot have an attribute {name!r}")
        super().__setitem__(name, value)


def _raise_exception(message: str) -> None:
    raise TemplateError(message)


def _tojson(
    value: Any,
    ensure_ascii: bool = False,
    indent: int | None = None,
    separators: tuple[str, str] | None = None,
    sort_keys: bool = False,
) -> str:
    if isinstance(indent, str) or (indent or 0) > 8 or len("".join(separators or ())) > 8:
        raise LimitError("it asks tojson for wide spacing")
    return json.dumps(
        value, ensure_ascii=ensure_ascii, indent=indent, separators=separators, sort_keys=sort_keys
    )


# Filters that Jinja does not show; templates cannot name them, for the space. Taking the context keeps Jinja
# from calling them while it compiles.


@pass_context
def _output(context: Context, value: Any) -> str:
    METER.get().measure(value)
    return METER.get().output(str(value))


@pass_context
def _made(context: Context, value: Any) -> Any:
    return METER.get().made(value)


@pass_context
def _read(context: Context, value: Any) -> Any:
    return METER.get().read(value)


@pass_context
def _turns(context: Context, items: Iterable[Any]) -> Iterator[Any]:
    return METER.get().turns(items)


@pass_context
def _concat(context: Context, parts: list[Any]) -> str:
    METER.get().measure(parts)
    text: str = METER.get().made("".join(map(str, parts)))
    return text


def _metered_filter(name: str, function: Callable[..., Any]) -> Callable[..., Any]:
    hidden = hasattr(function, "jinja_pass_arg")  # its first argument is Jinja's

    @functools.wraps(function)
    def metered(*args: Any, **kwargs: Any) -> Any:
        meter = METER.get()
        own, args = args[:hidden], args[hidden:]
        if name == "join":
            args = (list(args[0]), *args[1:])
        check_filter(name, args, kwargs)
        result = function(*own, *args, **kwargs)
        return meter.turns(result) if isinstance(result, Iterator) else meter.made(result)

    return metered


def _metered_test(function: Any) -> Callable[..., Any]:
    @functools.wraps(function)
    def metered(*args: Any) -> Any:
        METER.get().spend(CALL)
        METER.get().read(list(args))
        return function(*args)

    return metered


@functools.cache
def environment() -> TemplateEnvironment:
    """The one environment. Its templates may render in several threads, each with its own METER."""
    return TemplateEnvironment()
