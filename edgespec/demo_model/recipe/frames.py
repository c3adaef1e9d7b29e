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
    "[explain|describe|sum up] {x} in [one|a single] sentence", "[can|could] you [explain|describe] {x} in [one sentence|simple words|short|a few words]?", "{x}: what is [it|that]?", "what's this {x} thing?",
    "what is {x} [in short|in simple terms|in one sentence|please|really|in this program]?", "what exactly [is|does] {x}?", "what do you mean by {x}?", "[info|information|something] [on|about] {x} [please|]", "[more|a word] [about|on] {x}",
    "I keep [seeing|reading] {x}, what is [it|that]?", "I [saw|found|came across] {x} [in the help|in the docs|somewhere|], what [is it|does it do|does that mean]?", "the [docs|help text|README] [mention|mentions] {x}, what is that?",
    "[could|can|will] you tell me what {x} [is|does|means]?", "remind me what {x} [is|does]", "any idea what {x} [is|does]?", "[please|] tell me what {x} [is|does|means]", "do you know what {x} [is|does|means]?",
    "give me a short [explanation|description|definition] of {x}", "never heard of {x}", "so what is {x}?", "I wonder what {x} [is|does]", "I [am confused by|am not sure about|don't see the point of|don't get] {x}", "is {x} [important|useful|good for anything]?",
    "what would I need {x} for?", "why [would|should] I care about {x}?", "[what|which] thing is {x}?", "{x} means what?", "{x} explained", "{x} does what?", "{x}, what for?", "[short|quick] explanation of {x}?", "learn about {x}",
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
    "[any|some] [way|trick|option|command|chance|hint how] to {g}?", "is there [a|any] [way|possibility] [for me|] to {g}?", "is there a way [I can|that I can] {g}?", "I am looking for a [way|command|flag] to {g}", "[quickest|best|simplest|easiest] way to {g}?",
    "{g} - [possible|is that possible|any way|can I]?", "is [it|that] [hard|easy|possible|allowed] to {g}?", "would it be possible to {g}?", "[what's|whats] the [way|command|flag|option|trick] to {g}?", "my [goal|aim|plan] is to {g}", "I'm trying to {g}",
    "I [can't|cannot|could not] [figure out|find out|see|find] how to {g}", "I [tried|failed] to {g}, how does it go?", "suppose I want to {g}", "what should I do [if I want|when I want] to {g}?", "I have to {g}, [how|what do I type|which command]?",
    "[can|could|would] you {g} for me?", "do I have a way to {g}?", "how do we {g}?", "how'd I {g}?", "what [do you|would you] do to {g}?", "who can tell me how to {g}?", "I would like to know how to {g}", "is {g} possible?", "[steps|instructions|commands] to {g}?",
    "[can|could] someone [tell me|explain] how to {g}?", "I need [a way|some way] to {g}", "the [command|way|option] to {g} [please|is what]?", "if I want to {g}, [what then|what do I use|which command is it]?", "can one {g}?", "how about a way to {g}?", "hoping to {g}", "why can't I {g}?", "it [won't|will not|does not] let me {g}", "{g} [does not|doesn't] work, [how does it go|what am I doing wrong]?", "[nobody|no one] told me how to {g}",
)  # fmt: skip
# What people say around any question; it changes no answer.
_BEFORE = (
    "I am new [here|to this|to all this]",
    "[sorry|excuse me], [a|] [beginner|stupid|silly|basic] question",
    "[I have|just] [a|one] [quick|short|small|simple|last] question",
    "one more [thing|question]",
    "first time user [here|]",
    "just curious",
    "I could not find it in the help",
    "I did not understand this yet",
    "a colleague asked me",
    "my boss wants to know",
    "before I begin",
    "[hi|hello|hey] there",
    "good morning",
    "[hi|hello], I need some help",
    "maybe you know",
    "I am a bit lost",
    "for a project at work",
    "I was wondering",
    "help",
    "[ok|okay|well|hmm|right]",
    "thanks, and",
    "next question",
    "I tried it yesterday",
    "I forgot",
    "I cannot remember",
    "it is late and I am tired",
    "short answer please",
    "in one sentence",
    "[something|one thing] I never understood",
    "not sure whom to ask",
)
_AFTER = (
    "thanks", "[thank you|thanks a lot|many thanks|cheers]", "[any|some] [idea|hint|advice]?", "I could not find it", "[in|with] [simple words|one sentence]", "for me", "I wonder", "please explain", "[can|could] you help?", "please help", "[do you know|you know]?", "I forgot", "short answer please", "just curious", "or not?", "right?", "really?", "if I may ask", "again?", "in general", "exactly?",
)  # fmt: skip
_INNERMOST = re.compile(r"\[([^\[\]]*)\]")


def spelled(d: Draw, grammar: str) -> str:
    """One text of a grammar: each innermost `[a|b|]` becomes one of its alternatives."""
    while match := _INNERMOST.search(grammar):
        grammar = grammar[: match.start()] + d.pick(match[1].split("|")) + grammar[match.end() :]
    return re.sub(r" +(?=[?,.]|$)", "", re.sub(r"  +", " ", grammar)).strip()


def around(d: Draw, text: str) -> str:
    """The text as it is, or in one of eight with something said before or after it."""
    if not d.chance(0.125):
        return text
    if d.chance(0.6):
        return spelled(d, d.pick(_BEFORE)) + d.pick((", ", ": ", ". ", " - ", "; ", "... ")) + text
    return text.rstrip("?.!") + d.pick((", ", "? ", ". ", " - ", " ")) + spelled(d, d.pick(_AFTER))
