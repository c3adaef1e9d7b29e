"""Random chat templates, and what transformers' sandbox makes of them."""

# ruff: noqa: E501
from __future__ import annotations

import json
import random
from typing import Any

from jinja2 import TemplateError, nodes
from jinja2.ext import Extension, loopcontrols
from jinja2.parser import Parser
from jinja2.sandbox import ImmutableSandboxedEnvironment

MESSAGES: list[list[dict[str, Any]]] = [
    [{"role": "user", "content": "Hi"}],
    [{"role": "system", "content": " Be <b>brief</b> & kind.\n"}, {"role": "user", "content": "été 你好 ß"}],
    [
        {"role": "user", "content": "a,b,,c"},
        {
            "role": "assistant",
            "content": "<think>\nx\n</think>\n\nYes",
            "tool_calls": [{"name": "f", "n": 3}],
        },
        {"role": "tool", "content": ["one", "two", {"type": "text", "text": "three"}]},
        {"role": "user", "content": "", "n": 7},
    ],
]


class _Generation(Extension):
    tags = {"generation"}  # noqa: RUF012

    def parse(self, parser: Parser) -> nodes.Node:
        line = next(parser.stream).lineno
        return nodes.Scope(parser.parse_statements(("name:endgeneration",), drop_needle=True), lineno=line)


def _raise(message: str) -> None:
    raise TemplateError(message)


def _tojson(
    x: Any, ensure_ascii: bool = False, indent: Any = None, separators: Any = None, sort_keys: bool = False
) -> str:
    return json.dumps(x, ensure_ascii=ensure_ascii, indent=indent, separators=separators, sort_keys=sort_keys)


def sandbox() -> ImmutableSandboxedEnvironment:
    """As transformers makes it."""
    env = ImmutableSandboxedEnvironment(
        trim_blocks=True, lstrip_blocks=True, extensions=[loopcontrols, _Generation]
    )
    env.filters["tojson"] = _tojson
    env.globals |= {"raise_exception": _raise, "dict": lambda *args, **kwargs: dict(*args, **kwargs)}
    return env


# What follows an expression of each kind, and the kind that it gives.
AFTER = {
    "text": """
        |upper |lower |capitalize |title |trim |trim('Hx') |trim(chars='i·') |string |replace('a','bb') |replace('','-',2)
        |replace(new='x',old='i') |indent |indent(2,true) |indent(width=3,blank=true) |indent('>·') |tojson |reverse |list|join
        |list|join('.') |default('D') |default('D',true) |d(boolean=true) |first |last .strip() .lstrip('H') .rstrip('\\n')
        .upper() .lower() .title() .capitalize() .swapcase() .replace('i','é') .replace('i','o',1) .join(['a','b']) [1:] [:2]
        [::-1] [-3:] .removeprefix('H') .split('i')[-1] .split()|join('+') .rsplit(',',1)[0] .partition(',')[2] ~none
        .rpartition(',')|join('/') .splitlines()|join('$') |int|string |float|string |select|join |sort|join |unique|join |max
        |min |map('upper')|join('-') +'x' ~1 *2""",
    "number": "+1 -2 *3 //2 %3 **2 |abs |round |round(1) |round(1,'floor') |int |float |d(0) |string|int",
    "list": """
        |list [1:] [::-1] [::2] +[1] *2 |reverse|list |select|list |select('string')|list |reject('none')|list
        |select('in',['Hi',1])|list |unique|list |map('string')|list |map('replace','i','y')|list""",
    "chat": """
        [1:] [::-1] |list |selectattr('role','equalto','user')|list |selectattr('n')|list |selectattr('n','defined')|list
        |rejectattr('role','in',('user','tool'))|list |sort(attribute='role') |sort(attribute='role',reverse=true)
        |unique(attribute='role')|list |reverse|list *2""",
}
INTO = {
    ("text", "number"): "|length .find('i') .rfind('i') .count('i') |int |count .split(',')|length",
    (
        "text",
        "list",
    ): ".split(',') .split() .split('i',1) .rsplit(',',1) .splitlines() .partition(',') |list |unique|list",
    ("text", "truth"): """
        .startswith('H') .endswith(('i','n')) .isdigit() .isalpha() .islower() .istitle() ==x !='Hi' <'b' >='B' ·is·string
        ·is·defined ·is·lower ·is·eq('Hi') ·is·not·none ·is·in(['Hi',1]) ·is·sequence ·is·iterable ·is·mapping ·is·number""",
    (
        "number",
        "truth",
    ): "<2 ==1 ·is·odd ·is·even ·is·divisibleby(2) ·is·integer ·is·float ·is·lt(3) ·is·number >=loop.index ·in[1,2]",
    ("number", "text"): "|string ~'!' |tojson |default('D')",
    (
        "list",
        "text",
    ): "|join |join(',·') |string |tojson |tojson(indent=2) |map('string')|sort|join(';') |first|string |last|string",
    ("list", "number"): "|length |count",
    ("list", "truth"): "==[1] ·is·sequence ·is·iterable ·is·mapping ==(1,2) !=x",
    ("chat", "text"): """
        |map(attribute='role')|join(',·') |join(',',attribute='role') |tojson |tojson(indent=2) |tojson(ensure_ascii=true)
        |tojson(sort_keys=true,separators=(',',':')) |string |map(attribute='content.0')|join [0].content|string [-1].role
        [0]['content']|string |groupby('role')|map(attribute='list')|map('length')|join('.') [0].zz [0].get('zz','q')
        |groupby('role')|map('first')|join [0]|dictsort(true,'key',true)|string [0]|dictsort|string [0].items()|list|string
        [0]|items|list|tojson [0].keys()|list|join |max(attribute='role')|string |map(attribute='n',default=1)|join
        [0]|list|join""",
    (
        "chat",
        "list",
    ): "|map(attribute='role')|list |map(attribute='n',default=0)|list |map(attribute='content')|list",
    (
        "chat",
        "number",
    ): "|length |map(attribute='n',default=1)|sum |sum(attribute='n',start=1) |selectattr('n')|list|length",
    ("chat", "truth"): "·is·sequence [0]·is·mapping [0].n·is·defined [0].content·is·string",
    ("truth", "text"): "|string ~'' |tojson |d('D',true)",
    ("truth", "truth"): "==true ·is·boolean ·is·true ·is·sameas(false) ·and(x==1) ·or(n>1)",
    ("truth", "number"): "+0 |int",
    ("list", "chat"): "==0·and[]or·messages",
}
ATOMS = {
    "text": """m.role m['content'] m.content x 'Hi' 'a-b·c' '' "é\\n" bos_token messages[0]['content'] messages[-1].role f(x)
        f('q',b=n) nothing|d('N') 'a{}b{}'.format(1,'z') '%05.1f'%2.5 '%s!'%'w' ns.a loop.cycle('o','e') '{0[role]}'.format(messages[0])
        '{a:>5}'.format(a=n) m.zz|d('Z') loop.previtem|d('P')|string""",
    "number": "n 0 1 7 2.5 -3 loop.index loop.index0 loop.length loop.revindex loop.depth messages|length ns.c m.n|d(4)",
    "list": "[3,1,2] ['b','A',none] (1,2) range(4) range(1,9,3)|list [] [x,n] [[1],[x]] l ('k',)",
    "chat": "messages messages messages messages[::-1] [m] messages[1:]+[m]",
    "truth": "true false loop.first loop.last m.n messages[0].role=='system' add_generation_prompt x·is·defined",
}


class Programs:
    """Writes templates; most of them mean something."""

    def __init__(self, seed: int) -> None:
        self.random = random.Random(seed)
        self.loops = 0  # that what is written now is inside of

    def pick(self, table: Any, kind: Any) -> str:
        """One of a table's words."""
        while "loop" in (word := str(self.random.choice(table[kind].split()))) and not self.loops:
            pass
        return word.replace("·", " ")

    def expression(self, kind: str, depth: int = 3) -> str:
        roll = self.random.random()
        if depth == 0 or roll < 0.15:
            return f"({self.pick(ATOMS, kind)})"
        if roll < 0.45 and kind in AFTER:
            return f"({self.expression(kind, depth - 1)}{self.pick(AFTER, kind)})"
        if roll < 0.5:
            a, b, c = (self.expression(k, depth - 1) for k in (kind, "truth", kind))
            return f"({a} if {b} else {c})"
        if roll < 0.55:
            signs = {
                "text": "~+",
                "number": "+-*",
                "list": "+",
                "chat": "+",
                "truth": ["and", "or", "and not"],
            }[kind]
            a, b = self.expression(kind, depth - 1), self.expression(kind, depth - 1)
            return f"({a} {self.random.choice(signs)} {b})"
        source = self.random.choice([a for a, b in INTO if b == kind])
        return f"({self.expression(source, depth - 1)}{self.pick(INTO, (source, kind))})"

    def body(self, depth: int) -> str:
        return "".join(self.statement(depth) for _ in range(self.random.randint(1, 2)))

    def statement(self, depth: int = 2) -> str:
        space = self.random.choice(["", "\n", "  ", "\n    ", "<|x|>\n", "{# c #}\n", " {#- c -#} "])
        left, right = self.random.choice(["", "", "-"]), self.random.choice(["", "", "-"])
        e = {kind: self.expression(kind) for kind in ATOMS}
        show = f"{{{{{left} {self.random.choice([e['text'], e['text'], e['number'], e['list']])} {right}}}}}"
        if depth == 0:
            return space + show
        stop = self.random.choice(["break", "continue"])
        forms = [
            "{{ TEXT }}",
            "{% if TRUTH %}BODY{% endif %}",
            "{% if TRUTH %}BODY{% elif TEXT %}x{% else %}MORE{% endif %}",
            "{% for m in CHAT %}BODY{% endfor %}",
            "{% for m in CHAT %}{{ m.role }}{% set x = m.role %}BODY{% endfor %}",
            "{% for m in CHAT if m.content is string and TRUTH %}BODY{% else %}MORE{% endfor %}",
            "{% for m in CHAT %}BODY{% if TRUTH %}{% STOP %}{% endif %}MORE{% else %}none{% endfor %}",
            "{% for k, v in messages[0].items() %}{{ k }}={{ v }};BODY{% endfor %}",
            "{% for k in LIST %}{% for m in messages %}BODY{% endfor %}{{ loop.index }}{% endfor %}",
            "{% set x = TEXT %}",
            "{% set n = NUMBER %}",
            "{% set l = LIST %}",
            "{% set ns.a = TEXT %}",
            "{% set ns.c = ns.c + 1 %}{{ ns.c }}",
            "{% set x, n = TEXT, NUMBER %}",
            "{% set x %}BODY{% endset %}{{ x|length }}",
            "{% set x | upper | trim %}BODY{% endset %}",
            "{% macro f(a, b=NUMBER) -%}[{{ a }}{{ b }}{{ x }}]{%- endmacro %}{{ f(TEXT) }}{{ f(b=n, a=1) }}",
            "{% macro f(a) %}{{ a }}{{ varargs }}{{ kwargs }}{% endmacro %}{{ f(1, TEXT, q=n) }}",
            "{% macro r(i) %}{{ i }}{% if i > 0 %}{{ r(i - 1) }}{% endif %}{% endmacro %}{{ r(4) }}",
            "{% macro g(a) %}<{{ caller(a) }}>{% endmacro %}{% call(q) g(TEXT) %}{{ q }}BODY{% endcall %}",
            "{% filter upper %}BODY{% endfilter %}",
            "{% with x = TEXT, n = 3 %}BODY{% endwith %}{{ x }}",
            "{% generation %}BODY{% endgeneration %}",
        ]
        form = self.random.choice(forms)
        self.loops += "{% for" in form
        body, more = self.body(depth - 1), self.body(depth - 1)
        self.loops -= "{% for" in form
        form = form.replace("{%", "{%" + left, 1).replace("STOP", stop)
        for kind, text in e.items():
            form = form.replace(kind.upper(), text)
        return space + form.replace("BODY", body).replace("MORE", more)

    def template(self) -> str:
        start = "{% set ns = namespace(a='A', c=0) %}{% set x = 'xX' %}{% set n = 2 %}{% set l = ['q'] %}"
        start += "{% set m = messages[0] %}{% macro f(a, b=1) %}({{ a }}/{{ b }}){% endmacro %}"
        return start + "".join(self.statement() for _ in range(self.random.randint(1, 3)))
