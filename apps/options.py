"""The options that commands share, and how flags become typed options. Needs no torch."""

from __future__ import annotations

import difflib
import os
from collections.abc import Mapping
from dataclasses import fields
from typing import Annotated, Any

import typer

from edgespec.config import PRECISIONS, EngineOptions, GenerationOptions, parse_bytes, resolve
from edgespec.errors import OptionError

MODEL_HELP = "Hugging Face directory or hub id, GGUF file, or packed directory."
Model = Annotated[str, typer.Argument(metavar="MODEL", help=MODEL_HELP, show_default=False)]

_MEMORY, _DRAFTING, _SAMPLING = "Memory", "Drafting", "Reply"


def _option(*names: str, panel: str, metavar: str, help: str) -> Any:
    return typer.Option(*names, rich_help_panel=panel, metavar=metavar, help=help, show_default=False)


Memory = Annotated[
    str | None,
    _option(
        "--memory",
        panel=_MEMORY,
        metavar="SIZE",
        help="Most memory the process may use, such as 8GB or 512MB. Default: what the machine has free.",
    ),
]
Device = Annotated[
    str | None,
    _option("--device", panel=_MEMORY, metavar="NAME", help="auto, cpu or cuda. Default: auto."),
]
DeviceMemory = Annotated[
    str | None,
    _option(
        "--device-memory",
        panel=_MEMORY,
        metavar="SIZE",
        help="Most memory on the accelerator. Default: what it has free.",
    ),
]
ContextLength = Annotated[
    int | None,
    _option(
        "--context",
        panel=_MEMORY,
        metavar="TOKENS",
        help="Positions that prompt and reply may take together. Default: by the memory plan.",
    ),
]
Precision = Annotated[
    str | None,
    _option(
        "--precision",
        panel=_MEMORY,
        metavar="NAME",
        help=f"{', '.join(PRECISIONS)}. Default: what the files hold.",
    ),
]
ResidentLayers = Annotated[
    int | None,
    _option(
        "--resident-layers",
        panel=_MEMORY,
        metavar="N",
        help="Keep exactly the first N layers in memory. Default: by the memory plan.",
    ),
]
Drafter = Annotated[
    str | None,
    _option(
        "--drafter",
        panel=_DRAFTING,
        metavar="NAME",
        help="none, auto, ngram, model, substitute, cascade, ngram+model, ngram+substitute, ngram+cascade or "
        "cascade+substitute. "
        "Default: auto, what makes replies faster.",
    ),
]
DraftModel = Annotated[
    str | None,
    _option(
        "--draft-model",
        panel=_DRAFTING,
        metavar="MODEL",
        help="A small model with the same tokenizer (drafter model), or a low-bit packed copy of MODEL "
        "(drafter substitute; not needed when it was packed with MODEL).",
    ),
]
Adapters = Annotated[
    str | None,
    _option(
        "--adapters",
        panel=_DRAFTING,
        metavar="DIR",
        help="What `edgespec train cascade` made for MODEL (drafter cascade).",
    ),
]
Schedule = Annotated[
    str | None,
    _option("--schedule", panel=_DRAFTING, metavar="NAME", help="serial, the default."),
]
Acceptance = Annotated[
    str | None,
    _option(
        "--acceptance",
        panel=_DRAFTING,
        metavar="NAME",
        help="greedy, sample, ratio, or typical (lossy). Default: greedy at temperature 0, else sample.",
    ),
]
TreeNodes = Annotated[
    int | None,
    _option(
        "--tree-nodes",
        panel=_DRAFTING,
        metavar="N",
        help=f"Most tokens verified in a pass. Default: {EngineOptions.tree_nodes}.",
    ),
]
MaxTokens = Annotated[
    int | None,
    _option(
        "--max-tokens",
        panel=_SAMPLING,
        metavar="N",
        help="Longest reply. Default: until the model ends or the context is full.",
    ),
]
Temperature = Annotated[
    float | None,
    _option("--temperature", panel=_SAMPLING, metavar="T", help="0 takes the likeliest token. Default: 0."),
]
TopP = Annotated[
    float | None,
    _option(
        "--top-p",
        panel=_SAMPLING,
        metavar="P",
        help="Sample from the likeliest tokens that hold this much probability. Default: 1, all.",
    ),
]
TopK = Annotated[
    int | None,
    _option("--top-k", panel=_SAMPLING, metavar="K", help="Sample from the K likeliest. Default: 0, all."),
]
MinP = Annotated[
    float | None,
    _option(
        "--min-p",
        panel=_SAMPLING,
        metavar="P",
        help="Leave out tokens less likely than P times the likeliest. Default: 0, none.",
    ),
]
Seed = Annotated[
    int | None,
    _option("--seed", panel=_SAMPLING, metavar="N", help="Same seed, same reply. Default: 0."),
]
Stop = Annotated[
    list[str] | None,
    _option("--stop", panel=_SAMPLING, metavar="TEXT", help="End the reply before this text. Repeatable."),
]

# Variables that are not options of a run: where things are remembered, install.sh's, the benchmark scripts'.
_OTHER_VARIABLES = {"EDGESPEC_CACHE", "EDGESPEC_TORCH", "EDGESPEC_VENV", "EDGESPEC_BENCH_DIR"}


def engine_options(flags: Mapping[str, Any]) -> EngineOptions:
    """From parameters (None = not given), the environment and edgespec.toml. Raises OptionError."""
    _check_environment()
    sizes = {
        name: _size(name, flags[name]) for name in ("memory", "device_memory") if flags.get(name) is not None
    }
    return resolve(EngineOptions, {**flags, **sizes})


def generation_options(flags: Mapping[str, Any]) -> GenerationOptions:
    """From parameters (None = not given), the environment and edgespec.toml. Raises OptionError."""
    _check_environment()
    return resolve(GenerationOptions, {**flags, "stop": tuple(flags.get("stop") or ()) or None})


def check_together(engine: EngineOptions, generation: GenerationOptions) -> None:
    """Raises OptionError when drafter, acceptance and sampling do not go together; needs no model."""
    from edgespec.core.acceptance import make_acceptance  # numpy: not for --help
    from edgespec.drafters.choose import check_acceptance, choose_drafters

    members = choose_drafters(engine.drafter, engine.draft_model, engine.schedule, engine.adapters)
    check_acceptance(make_acceptance(generation.acceptance, generation), engine.drafter, members)


def _size(name: str, text: str) -> int:
    try:
        return parse_bytes(text)
    except OptionError as error:
        raise OptionError(f"--{name.replace('_', '-')}: {error}") from None


def known_variables() -> set[str]:
    """Names of all environment variables of this project."""
    names = [f.name for kind in (EngineOptions, GenerationOptions) for f in fields(kind)]
    return {f"EDGESPEC_{name.upper()}" for name in names} | _OTHER_VARIABLES


def _check_environment() -> None:
    """A misspelt EDGESPEC_* variable is an error too: no option is silently ignored."""
    known = sorted(known_variables())
    for name in sorted(os.environ):
        if name.startswith("EDGESPEC_") and name not in known:
            near = difflib.get_close_matches(name, known, 1)
            hint = f"did you mean {near[0]}?" if near else f"known are {', '.join(known)}"
            raise OptionError(f"environment variable {name} is not an option; {hint}")
