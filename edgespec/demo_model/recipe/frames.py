"""How people ask what a thing is and how something is done, as small grammars: `[a|b|]` is one of these."""

# ruff: noqa: E501 (tables of phrasings)

from __future__ import annotations

import re

from edgespec.demo_model.recipe.draw import Draw

NAME = (
    "[what|wat] [does|do] {x} do?", "what [does|would] {x} do [exactly|here|]?", "what is {x}?", "[what's|whats] {x}?",
    "what is {x} [for|good for|used for|there for|about]?", "[what's|whats] {x} [for|good for|used for]?", "what {x} [is|does]?",
    "[explain|describe|define] {x} [to me|please|briefly|]", "[can|could|would] you [explain|describe] {x}?", "tell me about {x}",
    "how [do|can|would|should] I use {x}?", "when [do|would|should] I [use|need|want] {x}?", "why [do|would|should] I [use|need|want] {x}?",
    "{x}?", "{x}", "what about {x}?", "I want to [know what {x} is|understand {x}|know about {x}]", "[what is the meaning|meaning] of {x}?",
    "how does {x} work?", "why is there {x}?", "what [happens|happens if|happens when] I use {x}?", "what [can|could] I do with {x}?",
    "what do you know about {x}?", "do I need {x}?", "what is the [point|purpose|use|idea|job|effect] of {x}?", "what does {x} mean?",
    "what is [meant by|the deal with] {x}?", "is there {x}?", "I do not [understand|know|get] {x}", "help me with {x}", "{x} - what is that?",
    "where do I use {x}?", "I read about {x}, what is it?", "who needs {x}?", "what was {x} again?", "and {x}?",
)  # fmt: skip
GOAL = (
    "how do I {g}?", "how can I {g}?", "how [could|would|should] I {g}?", "how to {g}?", "how does one {g}?", "how do you {g}?",
    "{g}", "{g} [please|]", "[can|could|may] I {g}?", "is it possible to {g}?", "how is it possible to {g}?", "{g}, how?", "{g}?",
    "is there a [way|command|flag|option|trick|possibility] to {g}?", "is there [something|anything] to {g}?",
    "I [want|need|would like|have|wish|am trying|try|plan] to {g}", "I'd like to {g}", "I want to {g}, [how|what do I do|how do I do that]?",
    "what [do I|must I|should I|can I] [type|enter|do|use|write|run] to {g}?", "what do I have to [do|type] to {g}?",
    "which [command|flag|option] [do I need|lets me|is there|do I use|must I use|is used|do I take] to {g}?", "[which|what] command [is there|] to {g}?",
    "show me how to {g}", "tell me how to {g}", "explain how to {g}", "what is the [command|best way|way|flag|option|easiest way] to {g}?",
    "where [can|do] I {g}?", "help me {g}", "please help me to {g}", "I [do not|don't] know how to {g}", "let me {g}", "what if I want to {g}?",
    "do you know how to {g}?", "am I able to {g}?", "I wonder how to {g}", "how am I supposed to {g}?", "ways to {g}?", "when I want to {g}, what do I do?",
    "{g} - how does that go?", "what lets me {g}?", "need to {g}", "want to {g}", "[command|flag|option|way] to {g}?", "{g}, which [command|flag|option]?",
    "I'd love to {g}", "[can|could] you tell me how to {g}?", "what to do to {g}?", "{g}, can I?", "how would one {g}?",
)  # fmt: skip
_INNERMOST = re.compile(r"\[([^\[\]]*)\]")


def spelled(d: Draw, grammar: str) -> str:
    """One text of a grammar: each innermost `[a|b|]` becomes one of its alternatives."""
    while match := _INNERMOST.search(grammar):
        grammar = grammar[: match.start()] + d.pick(match[1].split("|")) + grammar[match.end() :]
    return re.sub(r" +(?=[?,.]|$)", "", re.sub(r"  +", " ", grammar)).strip()
