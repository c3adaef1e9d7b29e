"""Names that questions about EdgeSpec are filled with: `{known}` in a wording is one of these families."""

# ruff: noqa: E501, SIM905 (word tables, easier to read and to extend as text)

from __future__ import annotations

import re
from collections.abc import Callable, Mapping

from edgespec.demo_model.recipe.draw import Draw
from edgespec.demo_model.recipe.names import name

# What `runtimes.config.ARCHITECTURES` runs, by the names that people use.
_KNOWN = tuple(
    "Llama|Llama 2|Llama 3|Llama 3.1|Llama 3.2|Llama 3.3|Llama-2-7b|Llama 2 13B|Llama 3 8B|Llama 3.1 8B|Llama-3.2-3B|a Llama|Llama models|"
    "Vicuna|Vicuna 7B|Vicuna-13b|Mistral|Mistral 7B|Mistral-7B-Instruct|Mistral models|TinyLlama|Code Llama|Meta's Llama|"
    "Qwen|Qwen2|Qwen2.5|Qwen 2.5|Qwen 2|Qwen3|Qwen 3|Qwen3-8B|Qwen2.5 7B|Qwen2.5-7B-Instruct|Qwen3 0.6B|Qwen3-4B|Qwen models|llama 3 70b|qwen 14b".split(
        "|"
    )
)
# What it refuses: another architecture.
_OTHER = tuple(
    "Gemma|Gemma 2|Gemma 3|gemma-2b|Gemma 2 9B|Google's Gemma|PaliGemma|Phi|Phi-2|Phi-3|Phi 3|Phi-4|phi 4 mini|Microsoft's Phi|Falcon|Falcon 7B|Falcon-40B|"
    "MPT|MPT-7B|GPT-2|GPT2|GPT-J|GPT-Neo|GPT-NeoX|Pythia|OPT|OPT-6.7b|BLOOM|Bloom|Bloomz|StableLM|StarCoder|StarCoder2|SantaCoder|Mamba|Mamba 2|Jamba|RWKV|RWKV-6|"
    "Command R|Cohere|Command R+|Aya|DBRX|Grok|DeepSeek|DeepSeek-V3|DeepSeek V2|DeepSeek R1|ChatGLM|GLM-4|GLM|Baichuan|Baichuan 2|InternLM|InternLM2|Nemotron|"
    "OLMo|OLMo 2|Granite|MiniCPM|Kimi|Kimi K2|Ernie|EXAONE|Persimmon|T5|Flan-T5|CodeGen|Dolly|Orion|Arctic|Hunyuan|Zamba|RecurrentGemma|Griffin|XGLM|ByT5|gpt-oss|gemma 7b|phi3".split(
        "|"
    )
)
_MACHINES = tuple(
    "laptop|notebook|PC|desktop|server|workstation|ThinkPad|old laptop|gaming PC|work laptop|home server|mini PC|NUC|Dell|Lenovo|HP laptop|"
    "cloud instance|virtual machine|VM|VPS|NAS|company server|small computer|ten year old PC|Xeon server|Ryzen box|Surface|Chromebook|Framework laptop".split(
        "|"
    )
)
_SIZES = (
    1,
    2,
    3,
    4,
    6,
    7,
    8,
    9,
    11,
    12,
    13,
    14,
    20,
    22,
    27,
    30,
    32,
    33,
    34,
    40,
    65,
    70,
    72,
    90,
    100,
    120,
    180,
    235,
    405,
)


def _other(d: Draw) -> str:
    """Most are real; a name that nobody has heard is not among the known families either."""
    if d.chance(0.75):
        return d.arguments(lambda: d.pick(_OTHER), "family")
    made = "".join(name(d) for _ in range(d.number(1, 2))).lower()
    made = made if d.chance(0.3) else made.capitalize()
    return made + d.pick(
        (
            "",
            "",
            f" {d.number(1, 9)}",
            f"-{d.pick(_SIZES)}b",
            f" {d.pick(_SIZES)}B",
            "LM",
            f"LM-{d.number(2, 4)}",
        )
    )


SLOTS: Mapping[str, Callable[[Draw], str]] = {
    "known": lambda d: d.pick(_KNOWN),
    "other": _other,
    "machine": lambda d: d.arguments(lambda: d.pick(_MACHINES), "machine"),
    "billions": lambda d: f"{d.arguments(lambda: d.pick(_SIZES), 'billions')}{d.pick(('B', 'b', 'B', ' billion'))}",
    "gb": lambda d: f"{d.arguments(lambda: d.number(1, 64), 'gigabytes')}{d.pick((' GB', 'GB', ' gigabytes', ' gigs', 'gb'))}",
}  # fmt: skip
_SLOT = re.compile(r"\{(" + "|".join(SLOTS) + r")\}")


def filled(d: Draw, text: str) -> str:
    """The text with a name in each of its slots."""
    return _SLOT.sub(lambda match: SLOTS[match[1]](d), text)


def families(x: str) -> tuple[str, ...]:
    """Ways to ask whether EdgeSpec runs this kind of model."""
    it = "[EdgeSpec|it|this|edgespec|this program]"
    return tuple(
        w.replace("{it}", it).replace("{x}", x)
        for w in (
            "[does|can|will|could] {it} [run|support|handle|load|use|take|execute|read] {x}?", "[does|can|will] {it} [work|deal|cope] with {x}?",
            "does {it} know {x}?", "is {x} [supported|known|possible|okay|compatible|allowed]?", "[does|will|would] {x} [work|run|load] [here|with it|with EdgeSpec|in edgespec|on this|]?", "{x} support?",
            "[what|how] about {x}?", "can I [use|run|load|try|chat with|give it] {x} [here|with it|with EdgeSpec|in EdgeSpec|]?", "is there support for {x}?", "do you support {x}?",
            "I [have|downloaded|like|use|want] {x}, [does it work|will it run|can I use it|is it supported|is that possible]?", "I [want|would like|need|plan] to [run|use|load|try] {x}, [does that work|is that possible|can I|okay]?",
            "my model is {x}, [does it work|will it run|is that fine|can it be used]?", "are {x} checkpoints supported?", "[can|could] {x} be [run|used|loaded]?", "{x} [compatible|works|supported|possible|ok]?", "is {it} compatible with {x}?",
            "will my {x} [work|run|load]?", "does {it} do {x}?", "[yes or no, |]does {x} run?", "what happens if I [load|give it|try] {x}?",
        )
    )  # fmt: skip


def places(x: str) -> tuple[str, ...]:
    """Ways to ask whether EdgeSpec runs on this kind of machine."""
    it = "[EdgeSpec|it|this|edgespec|this program]"
    return tuple(
        w.replace("{it}", it).replace("{x}", x)
        for w in (
            "[does|can|will|would] {it} [run|work|function] [on|with|under] {x}?", "is {x} [supported|possible|okay|tested|enough]?", "{x}?", "{x} support?", "[what|how] about {x}?",
            "can I [run|use|install|try|start] {it} on {x}?", "is there a version for {x}?", "I [have|use|own] {x}, [does it work|will it run|can I use it|is that fine|is it supported]?",
            "I [am|work] on {x}, [does it work|will it run|can I use it|can I run it]?", "[works|runs|running|working] on {x}?", "do you support {x}?", "has anyone [run|tried|tested] {it} on {x}?", "[has|was] {it} [been tested|tested|tried] on {x}?",
            "how [do|can|would] I [run|use|install|set up|start] {it} on {x}?", "[run|install|use|set up] {it} on {x}", "does {it} support {x}?", "I want to [run|use|install] {it} on {x}", "is {it} [available|made|there] for {x}?", "{x} [compatible|ok|possible|version|too]?", "will my {x} do?",
        )
    )  # fmt: skip
