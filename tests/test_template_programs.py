"""Chat templates write what Jinja's own sandbox writes, and what they may use up is bounded."""

# ruff: noqa: E501
from __future__ import annotations

import re
import tracemalloc

import pytest
from jinja2 import TemplateError

from edgespec.errors import ModelError
from edgespec.text.chat_template import TEMPLATE_CHARACTERS, ChatTemplate
from edgespec.text.template_filters import FILTERS, TESTS
from tests.jinja_programs import MESSAGES, Programs, sandbox

USER = {"role": "user", "content": "Hello"}


@pytest.mark.parametrize("start", range(0, 400, 50))
def test_what_is_written_is_what_the_sandbox_writes(start: int) -> None:
    """On random programs; where one fails the other does."""
    env, equal = sandbox(), 0
    for seed in range(start, start + 50):
        source, messages = Programs(seed).template(), MESSAGES[seed % 3]
        given = {"messages": messages, "bos_token": "<s>", "n": 2, "add_generation_prompt": True}
        try:
            expected = env.from_string(source).render(given, tools=None, documents=None)
        except (TemplateError, TypeError, ValueError, LookupError):
            with pytest.raises(ModelError, match="failed"):
                ChatTemplate({"default": source}, {"bos_token": "<s>"}).render(messages, n=2)
            continue
        if re.search(r"(?i) at 0x", expected):
            continue  # an iterator, shown by its address
        assert ChatTemplate({"default": source}, {"bos_token": "<s>"}).render(messages, n=2) == expected, (
            source
        )
        equal += 1
    assert equal > 25


def test_filters_and_tests_are_jinjas() -> None:
    env = sandbox()
    assert FILTERS.keys() <= env.filters.keys()
    assert TESTS.keys() <= env.tests.keys()


LONG = "{% set n = namespace(t='a' * 3000000) %}{% set m = namespace(t='a' * 3000000 ~ 'b') %}"
DAGS = (
    "{% set n = namespace(a=(1,), b=(1,)) %}"
    "{% for i in range(50) %}{% set n.a = (n.a, n.a) %}{% set n.b = (n.b, n.b) %}{% endfor %}"
)
HOSTILE = {
    # Arguments by name, in another order than checks expect.
    "join by name": "{{ range(5000) | join(attribute=none, d='x' * 500000) | length }}",
    "replace by name": "{{ ('a' * 50000) | replace(new='x' * 50000, old='a') | length }}",
    "indent by \\r": "{{ ('\\r' * 80000) | indent(30000, blank=true) | length }}",
    "date": "{{ strftime_now('%099999d' * 400000) }}",
    "date, short": "{{ strftime_now('%0999d' * 10) }}",
    # Texts that a namespace hides.
    "hidden sort": LONG + "{{ ([n] * 9999) | sort(attribute='t') | length }}",
    "hidden groupby": LONG + "{{ ([n] * 9999) | groupby('t') | length }}",
    "hidden unique": LONG + "{{ ([n] * 9999) | unique(attribute='t') | list | length }}",
    "hidden max": LONG + "{{ ([n, m] * 49000) | map(attribute='t') | max }}",
    "hidden sort, exact": LONG + "{{ ([n, m] * 49000) | sort(attribute='t', case_sensitive=true) | length }}",
    "hidden emoji": "{% set n = namespace(a=[]) %}{% for i in range(30) %}"
    "{% set n.a = n.a + [namespace(t='😀' * 3900000)] %}{% endfor %}",
    # Searches whose worst case is a product.
    "rfind": "{{ ('a' * 2400000).rfind('ab' ~ 'a' * 1200000) }}",
    "rsplit": "{{ ('a' * 2400000).rsplit('ab' ~ 'a' * 1200000) }}",
    "rpartition": "{{ ('a' * 2400000).rpartition('ab' ~ 'a' * 1200000) }}",
    "strip": "{{ ('a' * 3000000).strip('b' * 3000000 ~ 'a') }}",
    "find": "{% for i in range(9999) %}{{ ('a' * 2000000).find('b' ~ 'a' * 98) }}{% endfor %}",
    # Sums, hashes and comparisons of what is large, or shared so often that it is as if it were.
    "sum of lists": "{% for i in range(9) %}{{ ([[1]] * 45000) | sum(start=[]) | length }}{% endfor %}",
    "hidden sum": "{% set n = namespace(b=[1] * 99999) %}{{ ([n] * 9999) | map(attribute='b') | sum(start=[]) | length }}",
    "hash": "{% set t = (1,) * 50000 %}{% set d = {} %}{% for i in range(99999) %}{% set x = d[t] %}{% endfor %}",
    "shared key": DAGS + "{{ {n.a: 1} }}",
    "shared unique": DAGS + "{{ [n.a] | unique | list | length }}",
    "shared min": DAGS + "{{ [n.a, n.b] | min }}",
    "shared in": DAGS + "{{ n.a in [n.b] }}",
    "shared index": DAGS + "{{ [n.b].index(n.a) }}",
    "shared dict": DAGS + "{{ {'a': n.a} == {'a': n.b} }}",
    "shared group": DAGS + "{{ [{'k': n.a}, {'k': n.b}] | groupby('k') | length }}",
    "shared tojson": DAGS + "{{ n.a | tojson | length }}",
    "deep": "{% set n = namespace(a=[]) %}{% for i in range(20000) %}{% set n.a = [n.a] %}{% endfor %}{{ n.a == [1] }}",
    "sets": "{% set d = dict(a=1) %}{% for i in range(99999) %}{{ d.keys() - range(99999) }}{% endfor %}",
    # Formats behind other names.
    "odd": "{{ '%99999999d' is odd }}",
    "divisibleby": "{{ '%99999999d' is divisibleby(1) }}",
    "select odd": "{{ ['%99999999d'] | select('odd') | list }}",
    "precision": "{{ '%.99999999f' % 1 }}",
    "percent": "{{ '%(' * 900000 % 1 }}",
    "long %": "{{ ('%s' * 500) % ((['a' * 100000],) * 500) }}",
    "long format": "{{ ('{0}' * 300).format(['\x01' * 1000000]) }}",
    # Cuts into many parts.
    "title": "{% for i in range(99) %}{{ ('-a' * 1900000) | title | length }}{% endfor %}",
    "wordcount": "{% for i in range(99) %}{{ ('-a' * 1900000) | wordcount }}{% endfor %}",
    "split": "{{ ('a ' * 4000000).split() | length }}",
    "split at": "{{ ('a,' * 4000000).split(',') | length }}",
    "splitlines": "{{ ('\\n' * 4000000).splitlines() | length }}",
    "list": "{{ ('é' * 5000000) | list | length }}",
    # Numbers.
    "round": "{{ 1 | round(999999999) }}",
    "int": "{{ ('9' * 400000) | int }}",
    "factorial": "{% set n = namespace(x=1) %}{% for i in range(1, 9999) %}{% set n.x = n.x * i %}{% endfor %}",
    "constant": "{{ 0x" + "f" * 60000 + " * 2 }}",
    # Steps.
    "range in": "{% for i in range(99999) %}{{ 'a' in range(99999) }}{% endfor %}",
    "range last": "{% for i in range(99999) %}{{ range(99999) | last }}{% endfor %}",
    "cycle": "{% for i in range(99999) %}{{ loop.cycle(*range(9999)) }}{% endfor %}",
    "condition": "{% for i in range(99999) if range(99999) | list | length == 0 %}{% endfor %}",
    "macros": "{% for i in range(99999) %}{% macro f() %}" + "{{a}}" * 10000 + "{% endmacro %}{% endfor %}",
    "attributes": "{{ ([{}] * 9999) | sort(attribute='1,' * 90000) | list }}",
    # Programs that are hard to compile.
    "chain": "{{a" + ".a" * 32000 + "}}",
    "long ~": "{{a" + "~a" * 120000 + "}}",
    "long {{": "{{a}}" * 52000,
    "sets and ifs": "".join(f"{{%set a{i}=1%}}" for i in range(7000)) + "{%if a%}{%endif%}" * 7000,
}


@pytest.mark.parametrize("name", HOSTILE)
def test_hostile_templates_are_stopped(name: str) -> None:
    template = {"default": HOSTILE[name]}
    with pytest.raises(ModelError, match=r"was stopped|may have"):
        ChatTemplate(template).render([USER])


MEMORY = "join by name, replace by name, indent by \\r, date, hidden sort, hidden emoji, long %, long format, split"
MEMORY += ", split at, splitlines, list, hidden sum"


@pytest.mark.parametrize("name", MEMORY.split(", "))
def test_hostile_templates_make_little_before_they_are_stopped(name: str) -> None:
    tracemalloc.start()
    try:
        with pytest.raises(ModelError):
            ChatTemplate({"default": HOSTILE[name]}).render([USER])
        assert tracemalloc.get_traced_memory()[1] < 60 * 2**20
    finally:
        tracemalloc.stop()


@pytest.mark.parametrize("unit", [".a", "(a)", "|e"])
def test_long_chains_are_parsed_and_then_stopped(unit: str) -> None:
    """A program of 64 K characters has some 30,000 nodes, here each within the next."""
    source = "{{a" + unit * ((TEMPLATE_CHARACTERS - 5) // len(unit)) + "}}"
    with pytest.raises(ModelError, match="nests or recurses"):
        ChatTemplate({"default": source}).render([USER])


@pytest.mark.parametrize(
    "expression", ["n.a.index == n.b.index", "n.a.index in [n.b.index]", "loop is sameas(n.a)", "n == n"]
)
def test_what_holds_a_value_is_not_compared_by_it(expression: str) -> None:
    """Methods, loops and namespaces: else a comparison would go through values that nobody has charged."""
    template = ChatTemplate({"default": DAGS + "{% for i in [1] %}{{ " + expression + " }}{% endfor %}"})
    assert template.render([USER]) in ("False", "True")


def test_slices_are_no_values() -> None:
    """Python 3.12 hashes them, with all they hold."""
    with pytest.raises(ModelError, match="Slice is not available"):
        ChatTemplate({"default": DAGS + "{{ {}[n.a:n.b, 1] }}"}).render([USER])


def test_what_is_not_for_chat_templates_says_so() -> None:
    for source, message in {
        "{{ [1] | batch(2) }}": "filter 'batch', which known chat templates do not",
        "{{ 1 | nosuch }}": "No filter named 'nosuch'",
        "{{ 1 is nosuch }}": "No test named 'nosuch'",
        "{{ 'a'.encode() }}": "str.encode, which known chat templates do not",
        "{{ ('<' | e).upper() }}": "formats or cuts escaped text",
        "{% for a in [1] %}{{ loop.changed(a) }}{% endfor %}": "no attribute 'changed'",
        "{% for a in [1] recursive %}{% endfor %}": "recursive loops are not available",
        "{% block a %}{% endblock %}": "Block is not available",
        "{% set n = 1 %}{% set n.a = 1 %}": "non-namespace",
    }.items():
        with pytest.raises(ModelError, match=re.escape(message)):
            ChatTemplate({"default": source}).render([USER])


def test_names_of_arguments_are_the_templates_own() -> None:
    """Whatever the functions behind filters, tests and functions call theirs."""
    source = (
        "{% set n = namespace(name=1, v=2, table=3, args=4, kwargs=5) %}{{ n.name }}{{ n.v }}{{ n.table }}"
    )
    assert ChatTemplate({"default": source}).render([USER]) == "123"
    source = "{% macro m(self, name, node) %}{{ self }}{{ name }}{{ node }}{% endmacro %}{{ m(node=1, self=2, name=3) }}"
    assert ChatTemplate({"default": source}).render([USER]) == "231"
    source = "{{ '{v}{text}{name}'.format(v=1, text=2, name=3) }}{{ dict(v=1, name=2) }}"
    assert ChatTemplate({"default": source}).render([USER]) == "123{'v': 1, 'name': 2}"


def test_safe_text_escapes_what_is_added_to_it() -> None:
    """As in transformers; some templates add to it (Functionary 3.1)."""
    for source in (
        "{{ 'a<'|safe + x }}",
        "{{ x + '<b'|safe }}",
        "{{ 'a<'|safe ~ x }}",
        "{{ ('<'|e) * 3 + x }}",
    ):
        expected = sandbox().from_string(source).render(x="<&>'")
        assert ChatTemplate({"default": source}).render([USER], x="<&>'") == expected


def test_what_a_template_says_in_an_error_is_bounded() -> None:
    with pytest.raises(ModelError) as caught:
        ChatTemplate({"default": "{{ raise_exception('x' * 100000) }}"}).render([USER])
    assert len(str(caught.value)) < 1200
