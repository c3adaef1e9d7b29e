"""Chat templates: a reader of Jinja's parsed programs, for templates from strangers.

Jinja only parses; nothing is compiled or executed as Python. The nodes are evaluated here one by one, each
charged to a budget, and reach what `template_values` and `template_filters` list. What is written is what
transformers' sandbox writes.
"""

from __future__ import annotations

import functools
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from jinja2 import Environment, TemplateRuntimeError
from jinja2 import nodes as n
from jinja2.ext import Extension, loopcontrols
from jinja2.parser import Parser
from jinja2.runtime import LoopContext, Undefined

from edgespec.text.template_filters import FILTERS, FUNCTIONS, TESTS, apply
from edgespec.text.template_values import Bound, Namespace, Values

_BLOCK = "{text of the block}"  # no name that a template can write


class _Generation(Extension):
    """`{% generation %}`: marks what the assistant said, for training; here only its content matters."""

    tags = {"generation"}  # noqa: RUF012

    def parse(self, parser: Parser) -> n.Node:
        line = next(parser.stream).lineno
        return n.Scope(parser.parse_statements(("name:endgeneration",), drop_needle=True), lineno=line)


@functools.cache
def _dialect() -> Environment:
    return Environment(trim_blocks=True, lstrip_blocks=True, extensions=[loopcontrols, _Generation])


def parse(source: str) -> n.Template:
    """Raises TemplateSyntaxError, RecursionError."""
    return _dialect().parse(source)


def render(template: n.Template, given: Mapping[str, Any], size: tuple[int, int]) -> str:
    """The template's text; `given` are plain values, `size` their (bytes of text, nodes).

    Raises LimitError, jinja2's TemplateError, and what Python raises for wrong types and values.
    """
    return _Interpreter(size).text(template.body, Frame(dict(given), None))


@dataclass(frozen=True, slots=True)
class Frame:
    """Names of one scope; what is set in it is forgotten with it."""

    names: dict[str, Any]
    outer: Frame | None

    def find(self, name: str) -> Any:
        frame: Frame | None = self
        while frame is not None:
            if name in frame.names:
                return frame.names[name]
            frame = frame.outer
        return Bound(None, name) if name in FUNCTIONS else Undefined(name=name)


@dataclass(frozen=True, eq=False)
class Macro:
    """`{% macro %}`, or the body of `{% call %}`, and the scope it was met in."""

    name: str
    node: n.Macro | n.CallBlock
    frame: Frame

    def __repr__(self) -> str:
        return f"<macro {self.name}>"


class _Break(Exception):
    pass


class _Continue(Exception):
    pass


class _Interpreter:
    def __init__(self, size: tuple[int, int]) -> None:
        self.values = Values(size)
        self.budget = self.values.budget

    def text(self, body: Sequence[n.Node], frame: Frame) -> str:
        """What statements write, as one text."""
        out: list[str] = []
        self.run(body, frame, out)
        return self.budget.join(out)

    def run(self, body: Sequence[n.Node], frame: Frame, out: list[str]) -> None:
        """Statements; what they write goes to `out`."""
        for node in body:
            self.budget.enter()
            match node:
                case n.Output():
                    for part in node.nodes:
                        self.budget.spend(1)
                        if isinstance(part, n.TemplateData):
                            out.append(part.data)
                        else:
                            out.append(self.values.text(self.eval(part, frame)))
                case n.If():
                    branches = (node, *node.elif_)
                    taken = next((b.body for b in branches if self.eval(b.test, frame)), node.else_)
                    self.run(taken, frame, out)
                case n.For():
                    self.loop(node, frame, out)
                case n.Assign():
                    self.assign(node.target, self.eval(node.node, frame), frame)
                case n.AssignBlock():
                    self.assign(node.target, self.block(node.body, node.filter, frame), frame)
                case n.FilterBlock():
                    out.append(self.values.text(self.block(node.body, node.filter, frame)))
                case n.Macro():
                    frame.names[node.name] = Macro(node.name, node, frame)
                case n.CallBlock():
                    out.append(self.values.text(self.call(node.call, frame, Macro("caller", node, frame))))
                case n.With():
                    inner = Frame({}, frame)
                    for target, value in zip(node.targets, node.values, strict=True):
                        self.assign(target, self.eval(value, frame), inner)
                    self.run(node.body, inner, out)
                case n.Scope():
                    self.run(node.body, Frame({}, frame), out)
                case n.Break():
                    raise _Break
                case n.Continue():
                    raise _Continue
                case _:
                    raise _unavailable(node)
            self.budget.depth -= 1

    def loop(self, node: n.For, frame: Frame, out: list[str]) -> None:
        if node.recursive:
            raise TemplateRuntimeError("recursive loops are not available in chat templates")
        completed, depth = False, self.budget.depth
        items = self.turns(iter(self.eval(node.iter, frame)), node, frame)
        try:
            for item, loop in LoopContext(items, Undefined):
                inner = Frame({"loop": loop}, frame)
                self.assign(node.target, item, inner)
                try:
                    self.run(node.body, inner, out)
                    completed = True
                except _Continue:
                    self.budget.depth = depth
        except _Break:
            self.budget.depth = depth
        if not completed:  # as Jinja has it: also when every turn was cut short
            self.run(node.else_, Frame({}, frame), out)

    def turns(self, items: Iterator[Any], node: n.For, frame: Frame) -> Iterator[Any]:
        for item in items:
            self.budget.spend(1)
            if node.test is not None:
                inner = Frame({}, frame)
                self.assign(node.target, item, inner)
                if not self.eval(node.test, inner):
                    continue
            yield item

    def block(self, body: Sequence[n.Node], node: n.Filter | None, frame: Frame) -> Any:
        """A block's text through its filters, of which the innermost has no node of its own."""
        text = self.text(body, Frame({}, frame))
        return text if node is None else self.eval(node, Frame({_BLOCK: text}, frame))

    def assign(self, target: n.Node, value: Any, frame: Frame) -> None:
        self.budget.spend(1)
        match target:
            case n.Name():
                frame.names[target.name] = value
            case n.NSRef():
                space = frame.find(target.name)
                if not isinstance(space, Namespace):
                    raise TemplateRuntimeError("cannot assign attribute on non-namespace object")
                space.set(target.attr, value)
            case n.Tuple():
                items = self.values.items(value)
                if len(items) != len(target.items):
                    raise ValueError(f"{len(items)} values for {len(target.items)} names")
                for one, item in zip(target.items, items, strict=True):
                    self.assign(one, item, frame)

    def eval(self, node: n.Node | None, frame: Frame) -> Any:
        if node is None:  # of a slice
            return None
        self.budget.enter()
        value = self.value(node, frame)
        self.budget.depth -= 1
        return value

    def value(self, node: n.Node, frame: Frame) -> Any:
        match node:
            case n.Name():
                return frame.find(node.name)
            case n.Const():
                return node.value if isinstance(node.value, str) else self.budget.made(node.value)
            case n.Getattr():
                return self.values.attribute(self.eval(node.node, frame), node.attr)
            case n.Getitem():
                owner = self.eval(node.node, frame)
                if not isinstance(node.arg, n.Slice):  # in a tuple it would be hashed, with all it holds
                    return self.values.item(owner, self.eval(node.arg, frame))
                ends = (node.arg.start, node.arg.stop, node.arg.step)
                return self.values.item(owner, slice(*(self.eval(end, frame) for end in ends)))
            case n.And():
                return self.eval(node.left, frame) and self.eval(node.right, frame)
            case n.Or():
                return self.eval(node.left, frame) or self.eval(node.right, frame)
            case n.Not():
                return not self.eval(node.node, frame)
            case n.Neg() | n.Pos():
                value = self.eval(node.node, frame)
                return self.budget.made(-value if isinstance(node, n.Neg) else +value)
            case n.BinExpr():
                left = self.eval(node.left, frame)
                return self.values.binary(node.operator, left, self.eval(node.right, frame))
            case n.Compare():
                result = left = self.eval(node.expr, frame)
                for operand in node.ops:
                    right = self.eval(operand.expr, frame)
                    result = self.values.compare(operand.op, left, right)
                    if not result:
                        break
                    left = right
                return result
            case n.Concat():
                return self.budget.join([self.values.text(self.eval(part, frame)) for part in node.nodes])
            case n.CondExpr():
                if self.eval(node.test, frame):
                    return self.eval(node.expr1, frame)
                return Undefined("it has no else") if node.expr2 is None else self.eval(node.expr2, frame)
            case n.List() | n.Tuple():
                items = self.budget.made([self.eval(item, frame) for item in node.items])
                return items if isinstance(node, n.List) else tuple(items)
            case n.Dict():
                table = {}
                for pair in node.items:
                    key = self.eval(pair.key, frame)
                    self.budget.read(key)  # it is hashed
                    self.budget.make(100)
                    table[key] = self.eval(pair.value, frame)
                return table
            case n.Filter() | n.Test():
                value = frame.find(_BLOCK) if node.node is None else self.eval(node.node, frame)
                args, kwargs = self.arguments(node, frame)
                table = FILTERS if isinstance(node, n.Filter) else TESTS
                return apply(table, self.values, node.name, value, *args, **kwargs)
            case n.Call():
                return self.call(node, frame)
        raise _unavailable(node)

    def arguments(self, node: n.Call | n.Filter | n.Test, frame: Frame) -> tuple[list[Any], dict[str, Any]]:
        args = [self.eval(argument, frame) for argument in node.args]
        if node.dyn_args is not None:
            args += self.values.items(self.eval(node.dyn_args, frame))
        kwargs = {str(pair.key): self.eval(pair.value, frame) for pair in node.kwargs}
        if node.dyn_kwargs is not None:
            kwargs |= {
                str(key): item for key, item in self.values.items(self.eval(node.dyn_kwargs, frame).items())
            }
        return args, kwargs

    def call(self, node: n.Call, frame: Frame, caller: Macro | None = None) -> Any:
        called = self.eval(node.node, frame)
        args, kwargs = self.arguments(node, frame)
        if caller is not None:
            kwargs["caller"] = caller
        if isinstance(called, Macro):
            return self.expand(called, args, kwargs)
        if isinstance(called, Bound) and called.owner is None:
            return apply(FUNCTIONS, self.values, called.name, *args, **kwargs)
        if isinstance(called, Bound):
            return self.values.call(called, args, kwargs)
        if isinstance(called, Undefined):
            called()  # raises
        raise TypeError(f"{type(called).__name__!r} object is not callable")

    def expand(self, macro: Macro, args: list[Any], kwargs: dict[str, Any]) -> str:
        """A macro's text; which arguments it takes is Jinja's rule: others only if the body reads them."""
        self.budget.spend(10)
        names = [argument.name for argument in macro.node.args]
        reads = _reads(macro.node) - set(names)
        own: dict[str, Any] = dict(zip(names, args, strict=False))
        own |= {name: kwargs.pop(name) for name in names[len(args) :] if name in kwargs}
        frame = Frame(own, macro.frame)
        if "caller" in reads:
            own["caller"] = kwargs.pop("caller", None) or Undefined("No caller defined", name="caller")
        if "kwargs" in reads:
            own["kwargs"], kwargs = kwargs, {}
        if "varargs" in reads:
            own["varargs"], args = tuple(args[len(names) :]), []
        if kwargs or len(args) > len(names):
            raise TypeError(f"macro {macro.name!r} takes {len(names)} arguments, and no others")
        defaults = dict(zip(reversed(names), reversed(macro.node.defaults), strict=False))
        for name in names:
            if name not in own:
                missing = Undefined(f"parameter {name!r} was not provided", name=name)
                own[name] = self.eval(defaults[name], frame) if name in defaults else missing
        return self.text(macro.node.body, frame)


@functools.lru_cache(maxsize=256)
def _reads(macro: n.Macro | n.CallBlock) -> frozenset[str]:
    """Of the names that only some macros get, those that its body reads."""
    found = {name.name for name in macro.find_all(n.Name)}
    return frozenset(found & {"caller", "kwargs", "varargs"})


def _unavailable(node: n.Node) -> TemplateRuntimeError:
    return TemplateRuntimeError(f"{type(node).__name__} is not available in chat templates")
