"""Chat templates are strangers' programs: broken ones fail cleanly, hostile ones are stopped."""

from __future__ import annotations

import pytest

from edgespec.errors import ModelError
from edgespec.text.chat_template import TEMPLATE_CHARACTERS, ChatTemplate

TOKENS = {"bos_token": "<s>"}
USER = {"role": "user", "content": "Hello"}

BROKEN = {
    "syntax": ("{% for %}", "failed"),
    "unknown filter": ("{{ 1 | nosuch }}", "nosuch"),
    "include": ("{% include 'etc' %}", "failed"),
    "type": ("{{ messages + 1 }}", "TypeError"),
    "division": ("{{ 1 / 0 }}", "ZeroDivisionError"),
    "raised": ("{{ raise_exception('roles must alternate') }}", "roles must alternate"),
    "undefined": ("{{ nothing.at.all }}", "undefined"),
    "escape": ("{{ ''.__class__.__mro__ }}", "unsafe"),
    "escape by attr": ("{{ (messages|attr('__class__')).x }}", "unsafe"),
    "escape by format": ("{{ '{0.__class__.x}'.format(messages) }}", "unsafe"),
    "mutation": ("{{ messages.append(1) }}", "unsafe|not safely"),
    "mutation by type": ("{{ dict.update(messages[0], role='x') }}", "no attribute 'update'"),
    "namespace": ("{% set n = namespace() %}{% set n.__class__ = 1 %}", "cannot have"),
}


@pytest.mark.parametrize("name", BROKEN)
def test_broken_templates(name):
    source, message = BROKEN[name]
    with pytest.raises(ModelError, match=message):
        ChatTemplate({"default": source}, TOKENS).render([USER])


DOUBLE = "{% set n = namespace(x='ab') %}{% for i in range(99) %}"
HOSTILE = {
    "big range": "{% for i in range(10**9) %}{% endfor %}",
    "nested loops": "{% for i in range(99999) %}{% for j in range(99999) %}{% endfor %}{% endfor %}",
    "loops over text": "{% for i in 'x' * 9999 %}{% for j in 'x' * 9999 %}{% endfor %}{% endfor %}",
    "output": "{% for i in range(99999) %}" + "x" * 1000 + "{% endfor %}",
    "hidden output": "{% set y %}{% for i in range(99999) %}" + "x" * 1000 + "{% endfor %}{% endset %}",
    "recursion": "{% macro f() %}{{ f() }}{% endmacro %}{{ f() }}",
    "fork": "{% macro f(n) %}{% if n %}{{ f(n - 1) }}{{ f(n - 1) }}{% endif %}{% endmacro %}{{ f(60) }}",
    "times": "{{ 'x' * 10**10 }}",
    "list times": "{{ [1] * 10**10 }}",
    "power": "{{ 10 ** (10 ** 9) }}",
    "squares": "{% set n = namespace(x=3) %}{% for i in range(99) %}{% set n.x = n.x * n.x %}{% endfor %}",
    "doubling +": DOUBLE + "{% set n.x = n.x + n.x %}{% endfor %}",
    "doubling ~": DOUBLE + "{% set n.x = n.x ~ n.x %}{% endfor %}",
    "doubling list": DOUBLE + "{% set n.x = [n.x, n.x] %}{% endfor %}{{ n.x }}",
    "doubling dict": DOUBLE + "{% set n.x = {1: n.x, 2: n.x} %}{% endfor %}{{ n.x|tojson }}",
    "doubling call": DOUBLE + "{% set n.x = dict(a=n.x, b=n.x) %}{% endfor %}{{ n.x == 1 }}",
    "doubling batch": DOUBLE + "{% set n.x = ([n.x] * 2)|batch(2)|list %}{% endfor %}",
    "doubling join": DOUBLE + "{% set n.x = [n.x, n.x]|join %}{% endfor %}",
    "doubling replace": DOUBLE + "{% set n.x = n.x|replace('a', n.x) %}{% endfor %}",
    "doubling method": DOUBLE + "{% set n.x = n.x.replace('a', n.x) %}{% endfor %}",
    "doubling str.join": DOUBLE + "{% set n.x = n.x.join(['', n.x, '']) %}{% endfor %}",
    "doubling format": DOUBLE + "{% set n.x = '{0}{0}'.format(n.x) %}{% endfor %}",
    "doubling %": DOUBLE + "{% set n.x = '%s%s' % (n.x, n.x) %}{% endfor %}",
    "doubling set": DOUBLE + "{% set y %}{{ n.x }}{{ n.x }}{% endset %}{% set n.x = y %}{% endfor %}",
    "doubling macro": "{% macro f(n) %}{% if n %}{% set y = f(n-1) %}{{ y }}{{ y }}{% else %}xx{% endif %}"
    "{% endmacro %}{{ f(90) }}",
    "wide %": "{{ '%999999999d' % 1 }}",
    "wide star %": "{{ '%*d' % (999999999, 1) }}",
    "wide format filter": "{{ '%999999999d' | format(1) }}",
    "wide format": "{{ '{:999999999}'.format(1) }}",
    "wide nested format": "{{ '{:{}}'.format(1, 999999999) }}",
    "wide center": "{{ 'x' | center(999999999) }}",
    "wide ljust": "{{ 'x'.ljust(999999999) }}",
    "wide indent": "{{ ('\n' * 99999) | indent(99999) }}",
    "wide tojson": "{{ range(9999)|list|tojson(indent=99999) }}",
    "tabs": "{{ ('\t' * 99999).expandtabs(99999) }}",
    "translate": "{{ ('x' * 99999).translate({120: 'x' * 99999}) }}",
    "slices": "{% set s = 'x' * 3999999 %}{% for i in range(99999) %}{% set t = s[1:] %}{% endfor %}",
    "searches": "{% set s = 'x' * 3999999 %}{% for i in range(99999) %}{{ 'y' in s }}{% endfor %}",
    "comparisons": "{% set s = [[1] * 99] * 99 %}{% set t = [[1] * 99] * 99 %}"
    "{% for i in range(99999) %}{{ s == t }}{% endfor %}",
    "tests": "{% set s = [[1] * 99] * 99 %}{% set t = [[1] * 99] * 99 %}"
    "{% for i in range(99999) %}{{ s is eq(t) }}{% endfor %}",
    "chains": "{{ range(99999)|map('string')|map('int')|list|length }}" * 999,
    "sum": "{{ (range(99999)|batch(1)|list)|sum(start=[])|length }}",
    "nesting": "{{ " + "(" * 9999 + "1" + ")" * 9999 + " }}",
    "blocks": "{% if 1 %}" * 999 + "{% endif %}" * 999,
    "batch": "{{ [1] | batch(999999999, 0) | list | length }}",
    "long": "x" * (TEMPLATE_CHARACTERS + 1),
}


@pytest.mark.parametrize("name", HOSTILE)
def test_hostile_templates_are_stopped(name):
    with pytest.raises(ModelError, match=r"was stopped|Range too big|may have"):
        ChatTemplate({"default": HOSTILE[name]}, TOKENS).render([USER])


def test_namespaces_hide_what_no_measure_sees():
    source = DOUBLE + "{% set n.x = namespace(a=[n.x, n.x]) %}{% endfor %}{{ [n.x, n.x] }}"
    assert ChatTemplate({"default": source}).render([USER]) == "[<namespace>, <namespace>]"
